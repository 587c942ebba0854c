//! Iterators over the text of generated sequences. They end when the model or the settings end the sequence.

use std::ops::Range;

use super::batch::{Batch, Logits};
use super::error::GenerateError;
use super::guide::Guide;
use super::language_model::LanguageModel;
use super::sampler::{ChooseToken, Sampler};
use super::sequence::Sequence;
use super::speculation::Speculated;
use crate::config::GenerateConfig;
use crate::tokenizer::Tokenizer;

/// The next piece of a sequence's text, in whole characters unless it is [raw](BatchGenerator::raw).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the sample.
    pub sample_idx: u64,
    /// May be empty, since text is held back until its characters are complete and no stop string can begin in it.
    pub text: Vec<u8>,
    /// Whether the sequence ends with it.
    pub is_last: bool,
}

/// Generates several samples from one prompt: an iterator over rounds, each with a piece of every unfinished sample, or
/// several pieces of the only one if it [speculates](GenerateConfig::speculate).
///
/// The samples are sequences of one [`Batch`], so they share the prefill and, on the CPU, every pass over the weights.
/// A [`Generator`] yields the same text for each of them alone.
#[derive(Debug)]
pub struct BatchGenerator {
    batch: Batch<(u64, Sequence)>,
    n_read: usize,
    n_dropped: usize,
}

/// Generates one sample: an iterator over pieces of text, each of whole characters.
#[derive(Debug)]
pub struct Generator(BatchGenerator);

impl BatchGenerator {
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
        let n_samples = usize::try_from(samples.end - samples.start).expect("a batch fits into memory");
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
        self.batch.sequences_mut().try_for_each(|(_, sequence)| sequence.emit_bytes())?;
        Ok(self)
    }

    /// Samples only tokens that the guide allows.
    #[must_use]
    pub fn guided(mut self, tokenizer: &Tokenizer, config: &GenerateConfig, guide: &Guide) -> Self {
        let n_prompt = self.n_read + self.n_dropped;
        for (idx, sequence) in self.batch.sequences_mut() {
            let sampler = Sampler::of_sequence(tokenizer, config, n_prompt, *idx).with_guide(Some(guide.clone()));
            sequence.set_sampler(Box::new(sampler));
        }
        self
    }

    /// The number of prompt tokens that the model reads, and the number before them that do not fit its context.
    pub fn prompt_tokens(&self) -> (usize, usize) {
        (self.n_read, self.n_dropped)
    }

    /// The counts of tokens proposed so far.
    pub fn speculated(&self) -> Speculated {
        self.batch.speculated()
    }

    /// Chooses the next token of every unfinished sample.
    fn round(&mut self) -> Result<Vec<Piece>, GenerateError> {
        let generate = |(idx, sequence): &mut (u64, Sequence), logits: &[f32], _| match sequence.generate(logits) {
            Ok(generated) => {
                let next = generated.next();
                (next, Ok(Piece { sample_idx: *idx, text: generated.text, is_last: next.is_none() }))
            }
            Err(error) => (None, Err(error)),
        };
        self.batch.step(|_, _| (), generate)?.into_iter().collect()
    }
}

impl Iterator for BatchGenerator {
    type Item = Result<Vec<Piece>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty() {
            return None;
        }
        let round = self.round();
        Some(round.inspect_err(|_| self.batch.retain(|_| false))) // nothing is generated after an error
    }
}

impl Generator {
    /// The generator of sample `sample_idx`.
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
        BatchGenerator::new(model, tokenizer, config, prompt, samples).map(Self)
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

impl Iterator for Generator {
    type Item = Result<String, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = |pieces: Vec<Piece>| {
            let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.text).collect();
            String::from_utf8(bytes).expect("pieces hold whole characters")
        };
        self.0.next().map(|round| round.map(text))
    }
}
