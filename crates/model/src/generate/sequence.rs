//! One sequence: chooses its tokens from logits, decodes them, and decides which text can be shown.

use std::sync::Arc;

use super::error::GenerateError;
use super::sampler::{ChooseToken, Sampler};
use crate::config::GenerateConfig;
use crate::tokenizer::{DecodeStream, Tokenizer};

/// The reason why a sequence ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model chose the end-of-text token or one of the config's `stop_token_ids`, or the guide's grammar is complete.
    Model,
    /// A stop string occurred.
    StopString,
    /// It has the requested number of tokens.
    Length,
}

/// A generated token.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The chosen token.
    pub token: u32,
    /// The number of characters between the prompt and the token, including those held back.
    pub offset: usize,
    /// The text that can be shown now; may be empty.
    pub text: Vec<u8>,
    /// The reason why the sequence ends here, or `None` if it continues.
    pub end: Option<End>,
}

impl Generated {
    /// The token that the model reads next, or `None` if the sequence has ended.
    pub fn next(&self) -> Option<u32> {
        self.end.is_none().then_some(self.token)
    }
}

/// A prompt and the tokens generated after it, one at a time.
#[derive(Debug)]
pub struct Sequence {
    sampler: Box<dyn ChooseToken>,
    /// The number of token ids; logits from this index on are padding.
    n_ids: usize,
    /// The tokens that end the sequence and are not part of its text.
    ends: Arc<[u32]>,
    decoder: DecodeStream,
    tokenizer: Tokenizer,
    /// Whether the text is the raw bytes of tokens instead of whole characters.
    is_raw: bool,
    stops: StopStrings,
    tokens: Vec<u32>,
    /// The number of generated characters; an estimate for raw bytes.
    n_characters: usize,
    left: usize,
    done: bool,
}

impl Sequence {
    /// The sequence of sample `sample_idx`, which begins with the prompt.
    pub fn new(tokenizer: &Tokenizer, config: &GenerateConfig, prompt: &[u32], sample_idx: u64) -> Self {
        Self {
            sampler: Box::new(Sampler::of_sequence(tokenizer, config, prompt.len(), sample_idx)),
            n_ids: tokenizer.n_ids(),
            ends: config.ends(tokenizer),
            decoder: DecodeStream::after(tokenizer, prompt),
            tokenizer: tokenizer.clone(),
            is_raw: false,
            stops: StopStrings::new(&config.stop),
            tokens: prompt.to_vec(),
            n_characters: 0,
            left: config.max_new_tokens,
            done: config.max_new_tokens == 0,
        }
    }

    /// Emits the raw bytes of each token, even if they are not valid UTF-8.
    pub(super) fn emit_bytes(&mut self) -> Result<(), GenerateError> {
        self.is_raw = true;
        self.tokenizer.token_bytes(0).map(drop).ok_or(GenerateError::NoBytes)
    }

    /// Replaces the sampler.
    pub fn set_sampler(&mut self, sampler: Box<dyn ChooseToken>) {
        self.sampler = sampler;
    }

    /// Whether the sequence has ended.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Chooses and appends a token from these logits.
    ///
    /// # Errors
    /// If the logits are not finite, or no token is allowed.
    pub fn generate(&mut self, logits: &[f32]) -> Result<Generated, GenerateError> {
        let token = self.sampler.choose(&logits[..self.n_ids], &self.tokens);
        let token = token.ok_or_else(|| match logits.iter().all(|logit| logit.is_finite()) {
            true => GenerateError::NoToken(self.tokens.len()),
            false => GenerateError::NotFinite(self.tokens.len()),
        })?;
        self.tokens.push(token);
        self.left -= 1;
        let is_end = self.ends.contains(&token);
        let mut piece = match self.is_raw {
            _ if is_end => Vec::new(),
            true => self.tokenizer.token_bytes(token).unwrap_or_default().to_vec(),
            false => self.decoder.push(token).into_bytes(),
        };
        let is_complete = self.sampler.is_complete();
        let is_last = is_end || is_complete || self.left == 0;
        if is_last && !self.is_raw {
            piece.extend(self.decoder.finish().into_bytes());
        }
        let offset = self.n_characters;
        self.n_characters += String::from_utf8_lossy(&piece).chars().count();
        let (mut text, stopped) = self.stops.push(&piece);
        self.done = stopped || is_last;
        if self.done && !stopped {
            text.extend(self.stops.finish());
        }
        let end = match self.done {
            false => None,
            true if stopped => Some(End::StopString),
            true if is_end || is_complete => Some(End::Model),
            true => Some(End::Length),
        };
        Ok(Generated { token, offset, text, end })
    }
}

/// Cuts text before the first stop string and holds back characters that could begin one.
#[derive(Clone, Debug)]
struct StopStrings {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
}

impl StopStrings {
    fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| stop.clone().into_bytes()).collect();
        Self { stops, held: Vec::new() }
    }

    /// Adds the next piece; returns the text that can be shown, and whether it ends there.
    fn push(&mut self, piece: &[u8]) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(piece);
        let position = |stop: &Vec<u8>| self.held.windows(stop.len()).position(|window| window == stop.as_slice());
        let first = self.stops.iter().filter_map(position).min();
        if let Some(at) = first {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| self.longest_start(stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text that was held back and did not become a stop string.
    fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// The length of the longest suffix of the held text that begins `stop`. If the text is valid UTF-8, so is the suffix.
    fn longest_start(&self, stop: &[u8]) -> usize {
        (1..stop.len()).rev().find(|n| self.held.ends_with(&stop[..*n])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut texts = StopStrings::new(&stops);
        let text = |bytes| String::from_utf8(bytes).expect("pieces hold whole characters");
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
    fn text_ends_before_stop_string_across_pieces() {
        assert_eq!(shown(&["END"], &["abE", "N", "Dcd"]), ("ab".to_owned(), true));
        assert_eq!(shown(&["\n\n", "x"], &["a\n", "\nb"]), ("a".to_owned(), true));
        assert_eq!(shown(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
    }

    #[test]
    fn text_that_ends_no_stop_string_is_shown() {
        assert_eq!(shown(&["END"], &["abE", "Nd"]), ("abENd".to_owned(), false));
        assert_eq!(shown(&["END"], &["abEN"]), ("abEN".to_owned(), false));
        assert_eq!(shown(&["éa"], &["é", "b"]), ("éb".to_owned(), false));
        assert_eq!(shown(&[], &["any"]), ("any".to_owned(), false));
    }
}
