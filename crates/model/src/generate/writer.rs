//! Iterators over the pieces of generated text, which end when the model ends the text or the text is long enough.

use std::ops::Range;

use burn::tensor::TensorReadError;
use rayon::prelude::*;

use super::language_model::{AnyDecoder, LanguageModel};
use super::sampler::ChooseToken;
use super::sequence::{Sequence, Written};
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

/// Generates several samples from one prompt: an iterator over rounds, each with a piece of every unfinished sample.
///
/// The samples share the prefill and, on the CPU, every pass over the weights. Each sample is the same text that a
/// [`Writer`] would generate alone.
#[derive(Debug)]
pub struct Writers {
    decoder: AnyDecoder,
    sequences: Vec<Sequence>,
    first_idx: u64,
    context_length: usize,
    /// The number of tokens at the beginning of each text that are no longer in the context.
    forgotten: usize,
    has_read: bool,
}

/// Continues a prompt: an iterator over pieces of text, each of whole characters.
///
/// When the context is full, its older half is dropped and the newer half is read again, so the cost per token stays
/// constant.
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
        let first_idx = samples.start;
        let sequences: Vec<_> = samples.map(|idx| Sequence::new(tokenizer, config, &prompt, idx)).collect();
        Ok(Self {
            decoder: AnyDecoder::new(model, sequences.len(), capacity),
            sequences,
            first_idx,
            context_length,
            // If a prompt is longer than the context, the model reads its end.
            forgotten: prompt.len().saturating_sub(context_length),
            has_read: false,
        })
    }

    /// Makes each piece the raw bytes of its token, even if they are not valid UTF-8.
    ///
    /// # Errors
    /// If the tokenizer's tokens have no byte representation.
    pub fn raw(mut self) -> Result<Self, GenerateError> {
        for sequence in &mut self.sequences {
            sequence.write_bytes()?;
        }
        Ok(self)
    }

    /// The number of prompt tokens that the model reads, and the number of tokens before them that do not fit its
    /// context.
    #[must_use]
    pub fn prompt_tokens(&self) -> (usize, usize) {
        let n = self.sequences.first().map_or(0, |sequence| sequence.tokens().len());
        (n - self.forgotten, self.forgotten)
    }

    /// Computes the logits of the next token of every unfinished sample.
    fn read(&mut self) -> Result<(), TensorReadError> {
        let Self { decoder, sequences, forgotten, context_length, .. } = self;
        // Unfinished samples have the same number of tokens, and `next` has checked that there is one.
        let n_tokens =
            sequences.iter().find(|sequence| !sequence.is_done()).map_or(0, |sequence| sequence.tokens().len());
        if !std::mem::replace(&mut self.has_read, true) {
            decoder.prefill(0, &sequences[0].tokens()[*forgotten..])?;
            decoder.share();
            return Ok(());
        }
        if n_tokens - *forgotten > *context_length {
            *forgotten = n_tokens - (*context_length / 2).max(1);
            let mut going_on = sequences.iter().enumerate().filter(|(_, sequence)| !sequence.is_done());
            return going_on.try_for_each(|(i, sequence)| decoder.prefill(i, &sequence.tokens()[*forgotten..]));
        }
        let next = |sequence: &Sequence| sequence.tokens().last().copied().filter(|_| !sequence.is_done());
        decoder.decode(&sequences.iter().map(next).collect::<Vec<_>>())
    }

    /// Chooses the next token of every unfinished sample.
    fn round(&mut self) -> Result<Vec<Piece>, GenerateError> {
        self.read()?;
        let Self { decoder, sequences, first_idx, .. } = self;
        let write = |(i, sequence): (usize, &mut Sequence)| {
            let Written { text, end, .. } = sequence.write(decoder.logits(i))?;
            Ok(Piece { sample_idx: *first_idx + i as u64, text, is_last: end.is_some() })
        };
        let mut going_on: Vec<_> =
            sequences.iter_mut().enumerate().filter(|(_, sequence)| !sequence.is_done()).collect();
        match going_on.len() {
            1 => going_on.pop().map(write).into_iter().collect(),
            _ => going_on.into_par_iter().map(write).collect(),
        }
    }
}

impl Iterator for Writers {
    type Item = Result<Vec<Piece>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.sequences.iter().all(Sequence::is_done) {
            return None;
        }
        let round = self.round();
        Some(round.inspect_err(|_| self.sequences.clear())) // nothing is generated after an error
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
        self.0.sequences[0].set_sampler(Box::new(sampler));
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
