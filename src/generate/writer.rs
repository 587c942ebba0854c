//! The token iterators: text comes out piece by piece, as it is made.

use std::ops::Range;

use burn::tensor::TensorReadError;
use rayon::prelude::*;

use super::draft::{Draft, NotFinite};
use super::reader::{Author, Reader};
use crate::config::GenerateConfig;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error(
        "the prompt is empty\n  hint: give at least one character to write on from, such as --prompt \
         \"The\""
    )]
    EmptyPrompt,
    /// The prompt has what the tokenizer does not know.
    #[error("cannot use the prompt: {0}")]
    Prompt(#[from] TokenizerError),
    /// The device failed.
    #[error("the device failed: {0}\n  hint: try --device cpu")]
    Device(#[from] TensorReadError),
    /// The model's answer is not a number.
    #[error(
        "the model's logits are not numbers after {0} tokens\n  hint: its weights are damaged; use an \
         earlier one of the run's `checkpoints/step-N`"
    )]
    NotFinite(usize),
}

impl From<NotFinite> for GenerateError {
    fn from(NotFinite(n_tokens): NotFinite) -> Self {
        Self::NotFinite(n_tokens)
    }
}

/// A piece of one sample's text, of whole characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which sample.
    pub sample_idx: u64,
    /// What can be shown now; often nothing.
    pub text: String,
    /// Whether it is the sample's last one.
    pub is_last: bool,
}

/// Writes on from a prompt in several samples at once; an iterator over rounds, each with a piece of every sample
/// that goes on.
///
/// They share one reading of the prompt, and on the CPU every pass over the weights. Each is the text that a
/// [`Writer`] writes alone.
#[derive(Debug)]
pub struct Writers<'a> {
    reader: Reader<'a>,
    drafts: Vec<Draft>,
    first_idx: u64,
    context_length: usize,
    /// How many of the tokens at the beginning of each text are out of sight.
    forgotten: usize,
    has_read: bool,
    failed: bool,
}

/// Writes on from a prompt; an iterator over pieces of text, each of whole characters.
///
/// When the context is full, the older half of it is forgotten and the newer half read anew, so that
/// writing goes on without end at a constant mean cost; what is forgotten no longer has an influence.
#[derive(Debug)]
pub struct Writer<'a>(Writers<'a>);

impl<'a> Writers<'a> {
    /// Writers of these samples, which have read and written nothing yet.
    ///
    /// A model of tensors is one without gradients, see `Module::valid`.
    ///
    /// # Errors
    /// If the prompt is empty, or has characters that the tokenizer does not know.
    ///
    /// # Panics
    /// If there are no samples.
    pub fn new(
        author: impl Into<Author<'a>>,
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: &str,
        samples: Range<u64>,
    ) -> Result<Self, GenerateError> {
        let tokens = tokenizer.encode(prompt)?;
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let author = author.into();
        let context_length = author.config().context_length;
        let drafts: Vec<Draft> = samples
            .clone()
            .map(|sample_idx| Draft::new(tokenizer, config, &tokens, sample_idx))
            .collect();
        let most = tokens.len().saturating_add(config.max_new_tokens);
        Ok(Self {
            reader: Reader::new(author, drafts.len(), most.min(context_length)),
            drafts,
            first_idx: samples.start,
            context_length,
            // Of a prompt that is longer than the context, the end counts.
            forgotten: tokens.len().saturating_sub(context_length),
            has_read: false,
            failed: false,
        })
    }

    /// Computes the logits of the next token of every sample that goes on.
    fn read(&mut self) -> Result<(), TensorReadError> {
        // Samples that go on have written as many tokens.
        let going_on = |draft: &&Draft| !draft.is_done();
        let Some(n_tokens) = self.drafts.iter().find(going_on).map(|d| d.tokens().len()) else {
            return Ok(());
        };
        if !std::mem::replace(&mut self.has_read, true) {
            let prompt = &self.drafts[0].tokens()[self.forgotten..];
            self.reader.read(0, prompt)?;
            self.reader.share();
            return Ok(());
        }
        if n_tokens - self.forgotten > self.context_length {
            self.forgotten = n_tokens - (self.context_length / 2).max(1);
            let drafts = self.drafts.iter().enumerate();
            for (sample, draft) in drafts.filter(|(_, draft)| going_on(draft)) {
                self.reader.read(sample, &draft.tokens()[self.forgotten..])?;
            }
            return Ok(());
        }
        let last = |draft: &Draft| draft.tokens().last().copied();
        let tokens = self.drafts.iter().map(|d| last(d).filter(|_| !d.is_done()));
        let tokens: Vec<_> = tokens.collect();
        self.reader.step(&tokens)
    }

    /// Reads, and lets every sample that goes on write a token.
    fn round(&mut self) -> Result<Vec<Piece>, GenerateError> {
        self.read()?;
        let write = |(sample, draft, logits): (u64, &mut Draft, &[f32])| {
            let text = draft.write(logits)?;
            Ok(Piece { sample_idx: self.first_idx + sample, text, is_last: draft.is_done() })
        };
        let reader = &self.reader;
        let numbered = (0..).zip(self.drafts.iter_mut().enumerate());
        let mut tasks: Vec<_> = numbered
            .filter(|(_, (_, draft))| !draft.is_done())
            .map(|(sample, (i, draft))| (sample, draft, reader.logits(i)))
            .collect();
        match tasks.len() {
            1 => tasks.pop().map(write).into_iter().collect(),
            _ => tasks.into_par_iter().map(write).collect(),
        }
    }
}

impl Iterator for Writers<'_> {
    type Item = Result<Vec<Piece>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.drafts.iter().all(Draft::is_done) {
            return None;
        }
        let round = self.round();
        self.failed = round.is_err();
        Some(round)
    }
}

impl<'a> Writer<'a> {
    /// A writer of sample `sample_idx`, which has read and written nothing yet.
    ///
    /// A model of tensors is one without gradients, see `Module::valid`.
    ///
    /// # Errors
    /// If the prompt is empty, or has characters that the tokenizer does not know.
    pub fn new(
        author: impl Into<Author<'a>>,
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: &str,
        sample_idx: u64,
    ) -> Result<Self, GenerateError> {
        let samples = sample_idx..sample_idx + 1;
        Writers::new(author, tokenizer, config, prompt, samples).map(Self)
    }
}

impl Iterator for Writer<'_> {
    type Item = Result<String, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = |pieces: Vec<Piece>| pieces.into_iter().map(|piece| piece.text).collect();
        self.0.next().map(|round| round.map(text))
    }
}
