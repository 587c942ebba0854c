//! Writing: iterators over pieces of text, as they are made, until the model ends the text or it is long enough.

use std::ops::Range;

use burn::tensor::TensorReadError;
use rayon::prelude::*;

use super::language_model::{AnyDecoder, LanguageModel};
use super::sampler::{ChooseToken, Sampler};
use crate::config::GenerateConfig;
use crate::tokenizer::{DecodeStream, Tokenizer, TokenizerError};

/// Why no text can be written.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The prompt is empty.
    #[error("the prompt is empty\n  hint: give at least one character to write on from, such as --prompt \"The\"")]
    EmptyPrompt,
    /// The prompt has characters that the tokenizer does not know.
    #[error("cannot use the prompt: {0}")]
    Prompt(#[from] TokenizerError),
    /// Tokens have no bytes of their own.
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

/// A piece of one sample's text, of whole characters unless it is [raw](Writers::raw).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The sample that it belongs to.
    pub sample_idx: u64,
    /// The text that can be shown now; often empty.
    pub text: Vec<u8>,
    /// Whether it is the sample's last one.
    pub is_last: bool,
}

/// Writes several samples of a prompt at once; an iterator over rounds, each with a piece of every unfinished sample.
///
/// They share the prefill, and on the CPU every pass over the weights. Each is the text that a [`Writer`] writes alone.
#[derive(Debug)]
pub struct Writers {
    decoder: AnyDecoder,
    sequences: Vec<Sequence>,
    first_idx: u64,
    context_length: usize,
    /// How many tokens at the beginning of each text are outside the context.
    forgotten: usize,
    has_read: bool,
}

/// Writes on from a prompt; an iterator over pieces of text, each of whole characters.
///
/// When the context is full, its older half is forgotten and the newer half read anew, at a constant cost per token.
#[derive(Debug)]
pub struct Writer(Writers);

impl Writers {
    /// Writers of these samples.
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
            // Of a prompt that is longer than the context, the model reads the end.
            forgotten: prompt.len().saturating_sub(context_length),
            has_read: false,
        })
    }

    /// Writers whose pieces are the bytes of the tokens, also where these are no text.
    ///
    /// # Errors
    /// If tokens have no bytes of their own.
    pub fn raw(mut self) -> Result<Self, GenerateError> {
        for sequence in &mut self.sequences {
            if sequence.tokenizer.token_bytes(0).is_none() {
                return Err(GenerateError::NoBytes);
            }
            sequence.is_raw = true;
        }
        Ok(self)
    }

    /// How many tokens of the prompt the model reads, and how many before these do not fit its context.
    #[must_use]
    pub fn prompt_tokens(&self) -> (usize, usize) {
        let n = self.sequences.first().map_or(0, |sequence| sequence.tokens.len());
        (n - self.forgotten, self.forgotten)
    }

    /// Computes the logits of the next token of every sample that goes on.
    fn read(&mut self) -> Result<(), TensorReadError> {
        let Self { decoder, sequences, forgotten, context_length, .. } = self;
        // Samples that go on have as many tokens as each other, and `next` has seen that one goes on.
        let n_tokens = sequences.iter().find(|sequence| !sequence.done).map_or(0, |sequence| sequence.tokens.len());
        if !std::mem::replace(&mut self.has_read, true) {
            decoder.prefill(0, &sequences[0].tokens[*forgotten..])?;
            decoder.share();
            return Ok(());
        }
        if n_tokens - *forgotten > *context_length {
            *forgotten = n_tokens - (*context_length / 2).max(1);
            let mut going_on = sequences.iter().enumerate().filter(|(_, sequence)| !sequence.done);
            return going_on.try_for_each(|(i, sequence)| decoder.prefill(i, &sequence.tokens[*forgotten..]));
        }
        let next = |sequence: &Sequence| sequence.tokens.last().copied().filter(|_| !sequence.done);
        decoder.decode(&sequences.iter().map(next).collect::<Vec<_>>())
    }

    /// Lets every sample that goes on write a token.
    fn round(&mut self) -> Result<Vec<Piece>, GenerateError> {
        self.read()?;
        let Self { decoder, sequences, first_idx, .. } = self;
        let write = |(i, sequence): (usize, &mut Sequence)| {
            let text = sequence.write(decoder.logits(i))?;
            Ok(Piece { sample_idx: *first_idx + i as u64, text, is_last: sequence.done })
        };
        let mut going_on: Vec<_> = sequences.iter_mut().enumerate().filter(|(_, sequence)| !sequence.done).collect();
        match going_on.len() {
            1 => going_on.pop().map(write).into_iter().collect(),
            _ => going_on.into_par_iter().map(write).collect(),
        }
    }
}

impl Iterator for Writers {
    type Item = Result<Vec<Piece>, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.sequences.iter().all(|sequence| sequence.done) {
            return None;
        }
        let round = self.round();
        Some(round.inspect_err(|_| self.sequences.clear())) // nothing is written after an error
    }
}

impl Writer {
    /// A writer of sample `sample_idx`.
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

    /// The writer with a sampler of your own in place of the config's.
    #[must_use]
    pub fn with_sampler(mut self, sampler: impl ChooseToken + 'static) -> Self {
        self.0.sequences[0].sampler = Box::new(sampler);
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

/// The text of one sample, which grows by a token at a time.
#[derive(Debug)]
struct Sequence {
    sampler: Box<dyn ChooseToken>,
    /// Logits from here on are of padding.
    n_ids: usize,
    /// Ends the text, and is not part of it.
    end_of_text: Option<u32>,
    decoder: DecodeStream,
    tokenizer: Tokenizer,
    /// Whether pieces are the bytes of tokens, rather than whole characters.
    is_raw: bool,
    stops: StopTexts,
    tokens: Vec<u32>,
    left: usize,
    done: bool,
}

impl Sequence {
    /// The text of sample `sample_idx`, so far only its prompt.
    fn new(tokenizer: &Tokenizer, config: &GenerateConfig, prompt: &[u32], sample_idx: u64) -> Self {
        Self {
            sampler: Box::new(Sampler::new(config, sample_idx).without(tokenizer.gaps())),
            n_ids: tokenizer.n_ids(),
            end_of_text: tokenizer.end_of_text(),
            decoder: DecodeStream::after(tokenizer, prompt),
            tokenizer: tokenizer.clone(),
            is_raw: false,
            stops: StopTexts::new(&config.stop),
            tokens: prompt.to_vec(),
            left: config.max_new_tokens,
            done: config.max_new_tokens == 0,
        }
    }

    /// Chooses a token by these logits, and returns the text that can be shown now.
    fn write(&mut self, logits: &[f32]) -> Result<Vec<u8>, GenerateError> {
        let token = self.sampler.choose(&logits[..self.n_ids], &self.tokens);
        let token = token.ok_or(GenerateError::NotFinite(self.tokens.len()))?;
        self.tokens.push(token);
        self.left -= 1;
        let is_end = Some(token) == self.end_of_text;
        let mut piece = match self.is_raw {
            _ if is_end => Vec::new(),
            true => self.tokenizer.token_bytes(token).unwrap_or_default().to_vec(),
            false => self.decoder.push(token).into_bytes(),
        };
        let is_last = is_end || self.left == 0;
        if is_last && !self.is_raw {
            piece.extend(self.decoder.finish().into_bytes());
        }
        let (mut text, stopped) = self.stops.push(&piece);
        self.done = stopped || is_last;
        if self.done && !stopped {
            text.extend(self.stops.finish());
        }
        Ok(text)
    }
}

/// Ends a text before a stop text, and holds back whatever could still become one.
#[derive(Clone, Debug)]
struct StopTexts {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
}

impl StopTexts {
    fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| stop.clone().into_bytes()).collect();
        Self { stops, held: Vec::new() }
    }

    /// Takes a further piece; returns the text that can be shown, and whether it ends there.
    fn push(&mut self, piece: &[u8]) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(piece);
        let place = |stop: &Vec<u8>| self.held.windows(stop.len()).position(|window| window == stop.as_slice());
        let first = self.stops.iter().filter_map(place).min();
        if let Some(at) = first {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| self.longest_start(stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text that was held back and did not become a stop text.
    fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest suffix of the held text that `stop` begins with; whole characters, if the text is.
    fn longest_start(&self, stop: &[u8]) -> usize {
        (1..stop.len()).rev().find(|n| self.held.ends_with(&stop[..*n])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut texts = StopTexts::new(&stops);
        let text = |bytes| String::from_utf8(bytes).expect("whole characters");
        let mut out = String::new();
        for piece in pieces {
            let (shown, stopped) = texts.push(piece.as_bytes());
            out.push_str(&text(shown));
            if stopped {
                return (out, true);
            }
        }
        out.push_str(&text(texts.finish()));
        (out, false)
    }

    #[test]
    fn ends_before_the_stop_text_even_across_pieces() {
        assert_eq!(shown(&["END"], &["abE", "N", "Dcd"]), ("ab".to_owned(), true));
        assert_eq!(shown(&["\n\n", "x"], &["a\n", "\nb"]), ("a".to_owned(), true));
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
    }

    #[test]
    fn what_only_looked_like_a_stop_text_is_shown() {
        assert_eq!(shown(&["END"], &["abE", "Nd"]), ("abENd".to_owned(), false));
        assert_eq!(shown(&["END"], &["abEN"]), ("abEN".to_owned(), false));
        assert_eq!(shown(&["éa"], &["é", "b"]), ("éb".to_owned(), false));
        assert_eq!(shown(&[], &["any"]), ("any".to_owned(), false));
    }
}
