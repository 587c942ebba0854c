//! Continuous batching: sequences join and leave one decoder between tokens and reuse prefixes that are already cached.
//!
//! This module deals with tokens and logits only. The logits of a sequence depend neither on the other sequences nor on
//! the slot that its prefix was copied from.

use burn::tensor::TensorReadError;

use super::language_model::{AnyDecoder, LanguageModel};

/// The most tokens of one prompt that are read between two tokens of the other sequences (chunked prefill).
const CHUNK: usize = 128;

/// The same limit as [`CHUNK`], for all prompts together.
const CHUNKS: usize = 4 * CHUNK;

/// A model that decodes several sequences, each in one of a fixed number of slots (here called places).
#[derive(Debug)]
pub struct Batch {
    decoder: AnyDecoder,
    context_length: usize,
    places: Vec<Place>,
    /// Counts joins and leaves.
    clock: u64,
}

/// Selects the positions of a prompt whose logits are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Only the logits after the last token.
    Last,
    /// The logits after every token, which must be computed even if the prefix is cached.
    Each,
}

#[derive(Debug, Default)]
struct Place {
    /// The part of the sequence that is within the context.
    tokens: Vec<u32>,
    /// The number of these tokens that the decoder has read.
    n_read: usize,
    /// The number of these tokens whose cache was reused instead of computed.
    n_shared: usize,
    is_taken: bool,
    wants_each: bool,
    /// The value of the clock when the sequence joined or left.
    since: u64,
}

impl Place {
    /// The length of the longest prefix of `prompt` that this place has read. The last token of the prompt never
    /// counts, since it is always read again for its logits.
    fn n_common(&self, prompt: &[u32]) -> usize {
        let read = &self.tokens[..self.n_read];
        read.iter().zip(&prompt[..prompt.len() - 1]).take_while(|(a, b)| a == b).count()
    }
}

impl Batch {
    /// A batch of `n_places` places for sequences as long as the model's context.
    ///
    /// # Panics
    /// If there are no places.
    pub fn new(model: LanguageModel, n_places: usize) -> Self {
        let context_length = model.config().context_length;
        Self {
            decoder: AnyDecoder::new(model, n_places, context_length),
            context_length,
            places: std::iter::repeat_with(Place::default).take(n_places).collect(),
            clock: 0,
        }
    }

    /// Takes a place for a sequence and returns its index, or `None` if all places are taken.
    ///
    /// # Panics
    /// If the prompt is empty or longer than the context.
    pub fn join(&mut self, prompt: &[u32], logits: Logits) -> Option<usize> {
        assert!((1..=self.context_length).contains(&prompt.len()), "{} tokens of prompt", prompt.len());
        let free = (0..self.places.len()).filter(|place| !self.places[*place].is_taken);
        let oldest = free.min_by_key(|place| self.places[*place].since)?;
        let wants_each = logits == Logits::Each;
        let place = if wants_each { oldest } else { self.home(prompt).unwrap_or(oldest) };
        let n_read = if wants_each { 0 } else { self.places[place].n_common(prompt) };
        self.decoder.truncate(place, n_read);
        self.clock += 1;
        let (tokens, since) = (prompt.to_vec(), self.clock);
        self.places[place] = Place { tokens, n_read, n_shared: n_read, is_taken: true, wants_each, since };
        Some(place)
    }

    /// The free place that has read the longest prefix of the prompt, unless using it would discard too much other
    /// text.
    fn home(&self, prompt: &[u32]) -> Option<usize> {
        let free = (0..).zip(&self.places).filter(|(_, place)| !place.is_taken);
        let (n_common, i) = free.map(|(i, place)| (place.n_common(prompt), i)).max()?;
        (n_common > 0 && n_common >= self.places[i].n_read / 2).then_some(i)
    }

    /// Copies the longest prefix that any place has read, if it is longer than the part this place has read. Sequences
    /// that wait to read the same prefix thus read each part of it only once.
    fn catch_up(&mut self, i: usize) {
        let Place { tokens, n_read, .. } = &self.places[i];
        let common = self.places.iter().zip(0..).map(|(place, from)| (place.n_common(tokens), from));
        let (n_common, from) = common.max().expect("there are places");
        if n_common > *n_read {
            self.decoder.copy_first(n_common, from, i);
            let place = &mut self.places[i];
            place.n_shared += n_common - place.n_read;
            place.n_read = n_common;
        }
    }

    /// The number of tokens in a place whose cache was reused.
    pub fn n_shared(&self, place: usize) -> usize {
        self.places[place].n_shared
    }

    /// Frees a place. Its cache stays until the place is taken again.
    pub fn leave(&mut self, place: usize) {
        self.clock += 1;
        let place = &mut self.places[place];
        place.is_taken = false;
        place.since = self.clock;
    }

    /// Appends the token sampled from a place's logits. When the context is full, its older half is dropped.
    pub fn push(&mut self, place: usize, token: u32) {
        let Place { tokens, n_read, .. } = &mut self.places[place];
        tokens.push(token);
        if tokens.len() > self.context_length {
            tokens.drain(..tokens.len() - (self.context_length / 2).max(1));
            *n_read = 0;
            self.decoder.truncate(place, 0);
        }
    }

    /// The logits of a place's next token, or `None` until all tokens before it have been read.
    pub fn logits(&self, place: usize) -> Option<&[f32]> {
        let Place { tokens, n_read, .. } = &self.places[place];
        (*n_read == tokens.len()).then(|| self.decoder.logits(place))
    }

    /// Reads the last token of each sequence and a chunk of each prompt that is not fully read. Calls `see` with the
    /// logits after each token, for the places that need them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&mut self, mut see: impl FnMut(usize, &[f32]) + Send) -> Result<(), TensorReadError> {
        let mut next = vec![None; self.places.len()];
        let mut waiting: Vec<usize> = Vec::new();
        for (i, place) in self.places.iter().enumerate().filter(|(_, place)| place.is_taken) {
            match &place.tokens[place.n_read..] {
                [] => {}
                [token] if !place.wants_each => next[i] = Some(*token),
                _ => waiting.push(i),
            }
        }
        waiting.sort_by_key(|i| self.places[*i].since);
        let mut left = CHUNKS;
        for i in waiting {
            if !self.places[i].wants_each {
                self.catch_up(i);
            }
            let Self { decoder, places, .. } = &mut *self;
            let Place { tokens, n_read, wants_each, .. } = &mut places[i];
            let n = CHUNK.min(tokens.len() - *n_read).min(left);
            if n == 0 {
                break;
            }
            let chunk = &tokens[*n_read..*n_read + n];
            match wants_each {
                true => decoder.append_each(i, chunk, |logits| see(i, logits))?,
                false => decoder.append(i, chunk)?,
            }
            *n_read += n;
            *wants_each &= *n_read < tokens.len(); // logits of generated tokens go to the sampler
            left -= n;
        }
        self.decoder.decode(&next)?;
        for (place, _) in self.places.iter_mut().zip(&next).filter(|(_, token)| token.is_some()) {
            place.n_read += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::Gpt;
    use crate::config::{ModelConfig, PositionKind};

    fn model() -> LanguageModel {
        let config = ModelConfig {
            context_length: 24,
            d_model: 16,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 2,
            position: PositionKind::Rope,
            ..ModelConfig::default()
        };
        LanguageModel::from(&Gpt::new(&config.with_derived(), 11, 7, &Device::flex()))
    }

    /// The logits after `tokens`, computed without any cache.
    fn alone(tokens: &[u32]) -> Vec<f32> {
        let mut batch = Batch::new(model(), 1);
        assert_eq!(batch.join(tokens, Logits::Last), Some(0));
        batch.step(|_, _| unreachable!("nobody asked")).expect("a CPU");
        batch.logits(0).expect("all was read").to_vec()
    }

    #[test]
    fn a_shared_prefix_is_read_once_and_changes_no_logits() {
        let prompt: Vec<u32> = (0..20).map(|i| i * i % 11).collect();
        let mut batch = Batch::new(model(), 3);
        let first = batch.join(&prompt, Logits::Last).expect("a place");
        batch.step(|_, _| ()).expect("a CPU");
        batch.push(first, 4);
        // The second prefix is in a place in use; of the third text, all but the last token is reused.
        let mut longer = prompt[..15].to_vec();
        longer.extend([3, 3]);
        let second = batch.join(&longer, Logits::Last).expect("a place");
        let third = batch.join(&prompt, Logits::Last).expect("a place");
        assert_eq!(batch.join(&prompt, Logits::Last), None, "all places are taken");
        batch.step(|_, _| ()).expect("a CPU");
        assert_eq!([first, second, third].map(|place| batch.n_shared(place)), [0, 15, 19]);
        let logits = |place| batch.logits(place).expect("all was read").to_vec();
        assert_eq!(logits(first), alone(&[&prompt[..], &[4]].concat()));
        assert_eq!(logits(second), alone(&longer));
        assert_eq!(logits(third), alone(&prompt));
        // A free place keeps its text, and a longer prompt continues it there.
        batch.leave(second);
        longer.push(5);
        assert_eq!(batch.join(&longer, Logits::Last), Some(second));
        assert_eq!(batch.n_shared(second), 17);
        batch.step(|_, _| ()).expect("a CPU");
        assert_eq!(batch.logits(second).expect("all was read"), alone(&longer));
    }

    #[test]
    fn texts_that_come_together_read_their_prefix_once() {
        let prompt: Vec<u32> = (0..20).map(|i| i * i % 11).collect();
        let mut batch = Batch::new(model(), 3);
        let places = [0, 1, 2].map(|last| {
            let text = [&prompt[..], &[last]].concat();
            (batch.join(&text, Logits::Last).expect("a place"), text)
        });
        batch.step(|_, _| ()).expect("a CPU");
        let n_shared = places.each_ref().map(|(place, _)| batch.n_shared(*place));
        assert_eq!(n_shared, [0, 20, 20]);
        for (place, text) in places {
            assert_eq!(batch.logits(place).expect("all was read"), alone(&text));
        }
    }

    #[test]
    fn each_position_has_the_logits_that_it_has_as_the_last() {
        let prompt: Vec<u32> = (0..9).map(|i| i * 5 % 11).collect();
        let mut batch = Batch::new(model(), 2);
        batch.join(&prompt, Logits::Last).expect("a place");
        batch.step(|_, _| ()).expect("a CPU");
        let place = batch.join(&prompt, Logits::Each).expect("a place");
        let mut seen: Vec<Vec<f32>> = Vec::new();
        batch
            .step(|i, logits| {
                assert_eq!(i, place);
                seen.push(logits.to_vec());
            })
            .expect("a CPU");
        assert_eq!(seen.len(), prompt.len());
        for (n, logits) in (1..).zip(&seen) {
            assert_eq!(*logits, alone(&prompt[..n]), "{n}");
        }
        assert_eq!(batch.n_shared(place), 0, "logits have to be computed");
        assert_eq!(batch.logits(place), seen.last().map(Vec::as_slice));
    }

    #[test]
    fn a_full_context_forgets_its_older_half() {
        let prompt: Vec<u32> = (0..24).map(|i| i % 7).collect();
        let mut batch = Batch::new(model(), 1);
        batch.join(&prompt, Logits::Last).expect("a place");
        batch.step(|_, _| ()).expect("a CPU");
        batch.push(0, 9);
        assert!(batch.logits(0).is_none(), "not read yet");
        batch.step(|_, _| ()).expect("a CPU");
        assert_eq!(batch.logits(0).expect("all was read"), alone(&[&prompt[13..], &[9]].concat()));
    }
}
