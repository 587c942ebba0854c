//! Iterators over the pieces of generated text, which end when the model ends the text or the text is long enough.

use std::ops::Range;

use burn::tensor::TensorReadError;

use super::batch::{Batch, Logits};
use super::guide::Guide;
use super::language_model::LanguageModel;
use super::sampler::{ChooseToken, Sampler};
use super::sequence::Sequence;
use super::speculation::Speculated;
use crate::config::GenerateConfig;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The reason why text cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The prompt is empty.
    #[error("the prompt is empty\n  hint: give at least one character to write on from, such as --prompt \"The\"")]
    EmptyPrompt,
    /// The prompt has characters that are not in the tokenizer's vocabulary.
    #[error("cannot use the prompt: {0}")]
    Prompt(#[from] TokenizerError),
    /// The tokenizer's tokens have no byte representation.
    #[error(
        "the tokens of this model are text, and have no bytes of their own\n  hint: leave out --raw, which is for models \
         of bytes"
    )]
    NoBytes,
    /// The device failed.
    #[error("the device failed: {0}\n  hint: try --device cpu")]
    Device(#[from] TensorReadError),
    /// The model's logits are not finite.
    #[error(
        "the model's logits are not numbers after {0} tokens\n  hint: its weights are damaged; use an \
         earlier one of the run's `checkpoints/step-N`"
    )]
    NotFinite(usize),
}

/// A piece of one sample's text, in whole characters unless it is [raw](Writers::raw).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the sample.
    pub sample_idx: u64,
    /// The text that can now be shown; often empty.
    pub text: Vec<u8>,
    /// Whether it is the sample's last piece.
    pub is_last: bool,
}

/// Generates several samples from one prompt: an iterator over rounds, each with a piece of every unfinished sample, or
/// several pieces of the only one if it [speculates](GenerateConfig::speculate).
///
/// The samples are sequences of one [`Batch`], so they share the prefill and, on the CPU, every pass over the weights.
/// Each sample is the same text that a [`Writer`] would generate alone.
#[derive(Debug)]
pub struct Writers {
    batch: Batch<(u64, Sequence)>,
    n_read: usize,
    n_dropped: usize,
}

/// Continues a prompt: an iterator over pieces of text, each of whole characters.
#[derive(Debug)]
pub struct Writer(Writers);

impl Writers {
    /// Creates the sequences of these samples, each after the prompt.
    ///
    /// # Errors
    /// If the prompt is empty, or has characters that the tokenizer does not know.
    ///
    /// # Panics
    /// If there are no samples.
    pub fn new(
        model: impl Into<LanguageModel>,
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: impl AsRef<[u8]>,
        samples: Range<u64>,
    ) -> Result<Self, GenerateError> {
        let prompt = tokenizer.encode_prompt(prompt)?;
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let model = model.into();
        let context_length = model.config().context_length;
        let capacity = prompt.len().saturating_add(config.max_new_tokens).min(context_length);
        // If a prompt is longer than the context, the model reads its end.
        let n_dropped = prompt.len().saturating_sub(context_length);
        let n_samples = usize::try_from(samples.end - samples.start).expect("they fit into memory");
        let mut batch = Batch::new(model, n_samples, capacity, usize::MAX).speculating(config.speculate);
        for idx in samples {
            let sequence = Sequence::new(tokenizer, config, &prompt, idx);
            if !sequence.is_done() {
                batch.join((idx, sequence), None, &prompt[n_dropped..], Logits::Last);
            }
        }
        Ok(Self { batch, n_read: prompt.len() - n_dropped, n_dropped })
    }

    /// Makes each piece the raw bytes of its token, even if they are not valid UTF-8.
    ///
    /// # Errors
    /// If the tokenizer's tokens have no byte representation.
    pub fn raw(mut self) -> Result<Self, GenerateError> {
        self.batch.sequences_mut().try_for_each(|(_, sequence)| sequence.write_bytes())?;
        Ok(self)
    }

    /// Writes only what the guide allows.
    #[must_use]
    pub fn guided(mut self, tokenizer: &Tokenizer, config: &GenerateConfig, guide: &Guide) -> Self {
        let n_prompt = self.n_read + self.n_dropped;
        for (idx, sequence) in self.batch.sequences_mut() {
            let sampler = Sampler::of_sequence(tokenizer, config, n_prompt, *idx).with_guide(Some(guide.clone()));
            sequence.set_sampler(Box::new(sampler));
        }
        self
    }

    /// The number of prompt tokens that the model reads, and the number of tokens before them that do not fit its
    /// context.
    #[must_use]
    pub fn prompt_tokens(&self) -> (usize, usize) {
        (self.n_read, self.n_dropped)
    }

    /// The numbers of tokens proposed so far.
    #[must_use]
    pub fn speculated(&self) -> Speculated {
        self.batch.speculated()
    }

    /// Chooses the next token of every unfinished sample.
    fn round(&mut self) -> Result<Vec<Piece>, GenerateError> {
        let write = |(idx, sequence): &mut (u64, Sequence), logits: &[f32], _| match sequence.write(logits) {
            Ok(written) => {
                let next = written.next();
                (next, Ok(Piece { sample_idx: *idx, text: written.text, is_last: next.is_none() }))
            }
            Err(error) => (None, Err(error)),
        };
        self.batch.step(|_, _| (), write)?.into_iter().collect()
    }
}

impl Iterator for Writers {
    type Item = Result<Vec<Piece>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty() {
            return None;
        }
        let round = self.round();
        Some(round.inspect_err(|_| self.batch.retain(|_| false))) // nothing is generated after an error
    }
}

impl Writer {
    /// A writer for sample `sample_idx`.
    ///
    /// # Errors
    /// If the prompt is empty, or has characters that the tokenizer does not know.
    pub fn new(
        model: impl Into<LanguageModel>,
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: &str,
        sample_idx: u64,
    ) -> Result<Self, GenerateError> {
        let samples = sample_idx..sample_idx + 1;
        Writers::new(model, tokenizer, config, prompt, samples).map(Self)
    }

    /// Replaces the sampler of the config with `sampler`.
    #[must_use]
    pub fn with_sampler(mut self, sampler: impl ChooseToken + 'static) -> Self {
        if let Some((_, sequence)) = self.0.batch.sequences_mut().next() {
            sequence.set_sampler(Box::new(sampler));
        }
        self
    }
}

impl Iterator for Writer {
    type Item = Result<String, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = |pieces: Vec<Piece>| {
            let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.text).collect();
            String::from_utf8(bytes).expect("whole characters")
        };
        self.0.next().map(|round| round.map(text))
    }
}
