//! Continuous batching: sequences join and leave one decoder between tokens and reuse prefixes that are already cached.
//!
//! This is the decode loop of every command that generates. It deals with tokens and logits only: each sequence brings
//! its own way to choose tokens. Its logits depend neither on the other sequences nor on the slot that its prefix was
//! copied from.

use burn::tensor::TensorReadError;
use rayon::prelude::*;

use super::language_model::{AnyDecoder, LanguageModel};
use super::speculation::{self, Speculated};

/// A model that decodes several sequences, each in one of a fixed number of slots, with an `S` that chooses its tokens.
#[derive(Debug)]
pub struct Batch<S> {
    decoder: AnyDecoder,
    context_length: usize,
    /// The maximum number of tokens that the decoder holds of a sequence.
    capacity: usize,
    chunk: usize,
    /// The maximum number of tokens proposed at once; 0 without speculation.
    max_proposed: usize,
    speculated: Speculated,
    slots: Vec<Slot<S>>,
    /// Counts joins and leaves.
    clock: u64,
}

/// Selects the positions of a prompt whose logits are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Only the logits after the last token.
    Last,
    /// The logits after every token, computed even if the prefix is cached.
    Each,
}

#[derive(Debug)]
struct Slot<S> {
    /// `None` if the slot is free; its tokens stay cached until another sequence takes it.
    sequence: Option<S>,
    /// The adapters with which the slot's tokens were read; `None` for the base.
    adapters: Option<usize>,
    /// The part of the sequence that is within the context.
    tokens: Vec<u32>,
    /// The number of tokens that the decoder has read.
    n_read: usize,
    /// The number of prompt tokens whose cache was reused instead of computed.
    n_cached: usize,
    wants_each: bool,
    /// The value of the clock when the sequence joined or left.
    since: u64,
}

impl<S> Slot<S> {
    /// The length of the longest prefix of `prompt` that this slot has read with these adapters. The last token of the
    /// prompt never counts, since it is always read again for its logits.
    fn n_common(&self, prompt: &[u32], adapters: Option<usize>) -> usize {
        if self.adapters != adapters {
            return 0; // the cached keys and values are those of other weights
        }
        let read = &self.tokens[..self.n_read];
        read.iter().zip(&prompt[..prompt.len() - 1]).take_while(|(a, b)| a == b).count()
    }

    fn is_read(&self) -> bool {
        self.n_read == self.tokens.len()
    }
}

impl<S: Send> Batch<S> {
    /// A batch of `n_slots` slots for sequences of up to `capacity` tokens, at most the model's context. Between two
    /// tokens of the other sequences, it reads at most `chunk` tokens of a prompt, and at most four times as many of all
    /// prompts (chunked prefill).
    ///
    /// # Panics
    /// If there are no slots, or the capacity is 0 or larger than the context.
    pub fn new(model: LanguageModel, n_slots: usize, capacity: usize, chunk: usize) -> Self {
        let free = || Slot {
            sequence: None,
            adapters: None,
            tokens: Vec::new(),
            n_read: 0,
            n_cached: 0,
            wants_each: false,
            since: 0,
        };
        Self {
            context_length: model.config().context_length,
            decoder: AnyDecoder::new(model, n_slots, capacity),
            capacity,
            chunk,
            max_proposed: 0,
            speculated: Speculated::default(),
            slots: std::iter::repeat_with(free).take(n_slots).collect(),
            clock: 0,
        }
    }

    /// Proposes up to `n` tokens to the only sequence from its own repetitions, and reads them together with its last
    /// token. Models of tensors ignore this, since their logits may depend on how many tokens are read at once.
    #[must_use]
    pub fn speculating(mut self, n: usize) -> Self {
        self.max_proposed = if matches!(self.decoder, AnyDecoder::Engine(_)) { n } else { 0 };
        self
    }

    /// The counts of tokens proposed so far.
    pub fn speculated(&self) -> Speculated {
        self.speculated
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.sequences().count()
    }

    /// Whether there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another sequence can join.
    pub fn has_free_slot(&self) -> bool {
        self.len() < self.slots.len()
    }

    /// The sequences, by slot.
    pub fn sequences(&self) -> impl Iterator<Item = &S> {
        self.slots.iter().filter_map(|slot| slot.sequence.as_ref())
    }

    /// Like [`Batch::sequences`].
    pub fn sequences_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().filter_map(|slot| slot.sequence.as_mut())
    }

    /// Gives a free slot to a sequence, and returns the slot's index. The sequence uses the model's adapters with this
    /// index, or none.
    ///
    /// # Panics
    /// If no slot is free, the prompt is empty or longer than the context, or there are no such adapters.
    pub fn join(&mut self, sequence: S, adapters: Option<usize>, prompt: &[u32], logits: Logits) -> usize {
        assert!((1..=self.context_length).contains(&prompt.len()), "{} tokens of prompt", prompt.len());
        let free = (0..self.slots.len()).filter(|slot| self.slots[*slot].sequence.is_none());
        let oldest = free.min_by_key(|slot| self.slots[*slot].since).expect("the caller checked for a free slot");
        let wants_each = logits == Logits::Each;
        let slot = if wants_each { oldest } else { self.cached_slot(prompt, adapters).unwrap_or(oldest) };
        let n_read = if wants_each { 0 } else { self.slots[slot].n_common(prompt, adapters) };
        match self.slots[slot].adapters == adapters {
            true => self.decoder.truncate(slot, n_read),
            false => self.decoder.set_adapters(slot, adapters),
        }
        self.clock += 1;
        let (sequence, tokens, since) = (Some(sequence), prompt.to_vec(), self.clock);
        self.slots[slot] = Slot { sequence, adapters, tokens, n_read, n_cached: n_read, wants_each, since };
        slot
    }

    /// The free slot that has read the longest prefix of the prompt, unless using it would discard too many other tokens.
    fn cached_slot(&self, prompt: &[u32], adapters: Option<usize>) -> Option<usize> {
        let free = (0..).zip(&self.slots).filter(|(_, slot)| slot.sequence.is_none());
        let (n_common, i) = free.map(|(i, slot)| (slot.n_common(prompt, adapters), i)).max()?;
        (n_common > 0 && n_common >= self.slots[i].n_read / 2).then_some(i)
    }

    /// Frees the slots of the sequences that do not pass the test.
    pub fn retain(&mut self, mut test: impl FnMut(&S) -> bool) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].sequence.as_ref().is_some_and(|sequence| !test(sequence)) {
                self.leave(slot);
            }
        }
    }

    /// Forgets the tokens that free slots still have cached, and frees their memory.
    pub fn forget(&mut self) {
        for (i, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.sequence.is_none()) {
            (slot.tokens, slot.n_read) = (Vec::new(), 0);
            self.decoder.clear(i);
        }
    }

    /// The bytes of memory that keys and values take now.
    pub fn cache_bytes(&self) -> usize {
        self.decoder.cache_bytes()
    }

    /// Frees the slots of the sequences that pass the test. Returns them, each with the tokens that it joins with to
    /// continue: all logits after that are the same.
    pub fn take(&mut self, test: impl Fn(&S) -> bool) -> Vec<(S, Vec<u32>)> {
        let mut taken = Vec::new();
        for slot in 0..self.slots.len() {
            if let Some(sequence) = self.slots[slot].sequence.take_if(|sequence| test(sequence)) {
                taken.push((sequence, self.slots[slot].tokens.clone()));
                self.leave(slot);
            }
        }
        taken
    }

    fn leave(&mut self, slot: usize) {
        self.clock += 1;
        self.slots[slot].sequence = None;
        self.slots[slot].since = self.clock;
    }

    /// Reads the last token of each sequence and a chunk of each prompt that is not fully read. Then every sequence
    /// whose tokens are all read chooses its next token: `choose` gets the logits and the number of cached prompt tokens,
    /// and a sequence for which it returns no token leaves. `see` gets the logits after each prompt token of sequences
    /// that joined with [`Logits::Each`]. A sequence that chooses all tokens [proposed](Batch::speculating) to it chooses
    /// one more in the same step.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step<R: Send>(
        &mut self,
        see: impl FnMut(&mut S, &[f32]) + Send,
        choose: impl Fn(&mut S, &[f32], usize) -> (Option<u32>, R) + Sync,
    ) -> Result<Vec<R>, TensorReadError> {
        if let Some((slot, proposal)) = self.proposal() {
            return self.speculate(slot, &proposal, choose);
        }
        self.read(see)?;
        let Self { decoder, slots, .. } = self;
        let read = slots.iter_mut().enumerate().filter(|(_, slot)| slot.is_read());
        let mut read: Vec<_> = read.filter_map(|(i, slot)| Some((i, slot.sequence.as_mut()?, slot.n_cached))).collect();
        let choose =
            |(i, sequence, n_cached): (usize, &mut S, usize)| (i, choose(sequence, decoder.logits(i), n_cached));
        let chosen: Vec<_> = match read.len() {
            1 => read.pop().map(choose).into_iter().collect(),
            _ => read.into_par_iter().map(choose).collect(),
        };
        let advance = |(slot, (token, result))| {
            match token {
                Some(token) => self.push(slot, token),
                None => self.leave(slot),
            }
            result
        };
        Ok(chosen.into_iter().map(advance).collect())
    }

    /// The slot of the only sequence and the tokens proposed to it, if any, once only its last token is unread.
    fn proposal(&self) -> Option<(usize, Vec<u32>)> {
        if self.max_proposed == 0 {
            return None;
        }
        let mut taken = (0..).zip(&self.slots).filter(|(_, slot)| slot.sequence.is_some());
        let (i, slot) = taken.next()?;
        if taken.next().is_some() || slot.wants_each || slot.n_read + 1 != slot.tokens.len() {
            return None;
        }
        let room = self.capacity.saturating_sub(slot.tokens.len());
        let proposal = speculation::proposal(&slot.tokens, self.max_proposed.min(room));
        (!proposal.is_empty()).then(|| (i, proposal.to_vec()))
    }

    /// Reads the last token of a sequence and the tokens proposed after it in one pass. The sequence chooses from the
    /// logits after each of them in order, until it chooses another token than the proposed one.
    fn speculate<R: Send>(
        &mut self,
        i: usize,
        proposal: &[u32],
        choose: impl Fn(&mut S, &[f32], usize) -> (Option<u32>, R) + Sync,
    ) -> Result<Vec<R>, TensorReadError> {
        let Self { decoder, slots, speculated, .. } = self;
        let Slot { sequence, tokens, n_cached, .. } = &mut slots[i];
        let (sequence, n_cached) = (sequence.as_mut().expect("the slot is in use"), *n_cached);
        let mut chosen: Vec<Option<u32>> = Vec::new();
        let mut results = Vec::new();
        let choose_next = |logits: &[f32]| {
            if chosen.iter().zip(proposal).all(|(token, proposed)| *token == Some(*proposed)) {
                let (token, result) = choose(sequence, logits, n_cached);
                chosen.push(token);
                results.push(result);
            }
        };
        decoder.append_each(i, &[&tokens[tokens.len() - 1..], proposal].concat(), choose_next)?;
        let last = chosen.pop().expect("the last token has logits");
        let n_right = chosen.len(); // every choice but the last was proposed
        *speculated += Speculated { n_proposed: proposal.len(), n_right };
        tokens.extend_from_slice(&proposal[..n_right]);
        // The decoder's logits are those after the whole proposal. If the sequence ends, its last token counts as unread,
        // so that no other sequence reuses them.
        let n_read = tokens.len() - usize::from(last.is_none());
        slots[i].n_read = n_read;
        decoder.truncate(i, n_read);
        match last {
            Some(token) => self.push(i, token),
            None => self.leave(i),
        }
        Ok(results)
    }

    /// Appends a token. When the context is full, its older half is dropped and the newer half is read again, so that
    /// the cost per token stays constant.
    fn push(&mut self, slot: usize, token: u32) {
        let Slot { tokens, n_read, .. } = &mut self.slots[slot];
        tokens.push(token);
        if tokens.len() > self.context_length {
            tokens.drain(..tokens.len() - (self.context_length / 2).max(1));
            *n_read = 0;
            self.decoder.truncate(slot, 0);
        }
    }

    fn read(&mut self, mut see: impl FnMut(&mut S, &[f32]) + Send) -> Result<(), TensorReadError> {
        let mut next = vec![None; self.slots.len()];
        let mut waiting: Vec<usize> = Vec::new();
        for (i, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.sequence.is_some()) {
            match &slot.tokens[slot.n_read..] {
                [] => {}
                [token] if !slot.wants_each => next[i] = Some(*token),
                _ => waiting.push(i),
            }
        }
        waiting.sort_by_key(|i| self.slots[*i].since);
        let mut left = self.chunk.saturating_mul(4);
        for i in waiting {
            if !self.slots[i].wants_each {
                self.copy_cached_prefix(i);
            }
            let Self { decoder, slots, chunk, .. } = &mut *self;
            let Slot { sequence, tokens, n_read, wants_each, .. } = &mut slots[i];
            let unread = tokens.len() - *n_read;
            if unread == 0 {
                continue;
            }
            let n = unread.min(*chunk).min(left);
            if n == 0 {
                break;
            }
            let chunk = &tokens[*n_read..*n_read + n];
            match sequence.as_mut().filter(|_| *wants_each) {
                Some(sequence) => decoder.append_each(i, chunk, |logits| see(sequence, logits))?,
                None => decoder.append(i, chunk)?,
            }
            *n_read += n;
            *wants_each &= *n_read < tokens.len(); // logits of generated tokens go to the sampler
            left -= n;
        }
        self.decoder.decode(&next)?;
        for (slot, _) in self.slots.iter_mut().zip(&next).filter(|(_, token)| token.is_some()) {
            slot.n_read += 1;
        }
        Ok(())
    }

    /// Copies the longest prefix that any slot has read, if it is longer than the part that this slot has read. Sequences
    /// that wait to read the same prefix thus read each part of it only once.
    fn copy_cached_prefix(&mut self, i: usize) {
        let Slot { adapters, tokens, n_read, .. } = &self.slots[i];
        let common = self.slots.iter().zip(0..).map(|(slot, from)| (slot.n_common(tokens, *adapters), from));
        let (n_common, from) = common.max().expect("a batch has slots");
        if n_common <= *n_read {
            return;
        }
        // Equal tokens have equal logits.
        let is_same = self.slots[from].is_read() && self.slots[from].tokens == *tokens;
        match is_same {
            true => self.decoder.copy(from, i),
            false => self.decoder.copy_first(n_common, from, i),
        }
        let slot = &mut self.slots[i];
        slot.n_cached += n_common - slot.n_read;
        slot.n_read = if is_same { slot.tokens.len() } else { n_common };
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use burn::tensor::Device;

    use super::*;
    use crate::config::{ModelConfig, PositionKind};
    use crate::{Gpt, Lora, Parameter, Target};

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
        let mut batch = batch(1);
        assert_eq!(batch.join((), None, tokens, Logits::Last), 0);
        batch.read(|(), _| unreachable!("only the last logits were asked for")).expect("a CPU does not fail");
        logits(&batch, 0)
    }

    fn batch<S: Send>(n_slots: usize) -> Batch<S> {
        Batch::new(model(), n_slots, 24, 128)
    }

    fn logits<S: Send>(batch: &Batch<S>, slot: usize) -> Vec<f32> {
        assert!(batch.slots[slot].is_read());
        batch.decoder.logits(slot).to_vec()
    }

    #[test]
    fn shared_prefix_is_read_once_and_changes_no_logits() {
        let prompt: Vec<u32> = (0..20).map(|i| i * i % 11).collect();
        let mut batch = batch(3);
        let first = batch.join((), None, &prompt, Logits::Last);
        batch.read(|(), _| ()).expect("a CPU does not fail");
        batch.push(first, 4);
        // The second prefix is in a slot in use; of the third sequence, all but the last token is reused.
        let mut longer = prompt[..15].to_vec();
        longer.extend([3, 3]);
        let second = batch.join((), None, &longer, Logits::Last);
        let third = batch.join((), None, &prompt, Logits::Last);
        assert!(!batch.has_free_slot());
        batch.read(|(), _| ()).expect("a CPU does not fail");
        assert_eq!([first, second, third].map(|slot| batch.slots[slot].n_cached), [0, 15, 19]);
        assert_eq!(logits(&batch, first), alone(&[&prompt[..], &[4]].concat()));
        assert_eq!(logits(&batch, second), alone(&longer));
        assert_eq!(logits(&batch, third), alone(&prompt));
        // A free slot keeps its tokens, and a longer prompt continues it there.
        batch.leave(second);
        longer.push(5);
        assert_eq!(batch.join((), None, &longer, Logits::Last), second);
        assert_eq!(batch.slots[second].n_cached, 17);
        batch.read(|(), _| ()).expect("a CPU does not fail");
        assert_eq!(logits(&batch, second), alone(&longer));
    }

    #[test]
    fn memory_of_batch_follows_its_tokens() {
        let config = ModelConfig { context_length: 500, ..model().config().clone() };
        let gpt = Gpt::new(&config.with_derived(), 11, 7, &Device::flex());
        for model in [LanguageModel::from(&gpt), LanguageModel::Tensors(Box::new(gpt))] {
            let of_tokens = model.config().cache_bytes(64);
            let mut batch = Batch::new(model, 3, 500, 128);
            for n_tokens in [40, 300, 40] {
                assert_eq!(batch.cache_bytes(), 0);
                for last in 0..3 {
                    let prompt: Vec<u32> = (1..n_tokens).map(|i| i % 7).chain([last]).collect();
                    batch.join(true, None, &prompt, Logits::Each);
                }
                let is_done = |batch: &Batch<bool>| batch.slots.iter().all(Slot::is_read);
                while !is_done(&batch) {
                    batch.read(|_, _| ()).expect("a CPU does not fail");
                }
                let n_bytes = u64::try_from(batch.cache_bytes()).expect("it is small");
                assert!(n_bytes <= 3 * of_tokens * if n_tokens > 64 { 8 } else { 1 }, "{n_tokens}: {n_bytes}");
                assert!(n_bytes > 0);
                (0..3).for_each(|slot| batch.leave(slot));
                assert!(batch.cache_bytes() > 0, "prefixes stay cached");
                batch.forget();
            }
            assert_eq!(batch.cache_bytes(), 0);
        }
    }

    #[test]
    fn simultaneous_sequences_read_their_prefix_once() {
        let prompt: Vec<u32> = (0..20).map(|i| i * i % 11).collect();
        let mut batch = batch(3);
        let slots = [0, 1, 2].map(|last| {
            let tokens = [&prompt[..], &[last]].concat();
            (batch.join((), None, &tokens, Logits::Last), tokens)
        });
        batch.read(|(), _| ()).expect("a CPU does not fail");
        let n_cached = slots.each_ref().map(|(slot, _)| batch.slots[*slot].n_cached);
        assert_eq!(n_cached, [0, 20, 20]);
        for (slot, tokens) in slots {
            assert_eq!(logits(&batch, slot), alone(&tokens));
        }
    }

    /// The model with one set of adapters, which change its logits.
    fn adapted() -> LanguageModel {
        let mut model = model();
        let lora = Lora {
            rank: 2,
            alpha: 4.0,
            use_rslora: false,
            use_dora: false,
            dropout: 0.0,
            targets: Target::ALL.to_vec(),
            last_blocks: None,
            tokens: Vec::new(),
        };
        let values = |row: &Parameter| -> Result<Vec<f32>, Infallible> {
            Ok((0..row.shape.iter().product()).map(|i: usize| (i % 7) as f32 * 0.1 - 0.3).collect())
        };
        assert_eq!(model.engine_mut().expect("a CPU does not fail").add_adapters(&lora, values), Ok(0));
        model
    }

    #[test]
    fn adapters_do_not_share_prefixes() {
        let prompt: Vec<u32> = (0..20).map(|i| i * i % 11).collect();
        let new = |n_slots| Batch::new(adapted(), n_slots, 24, 128);
        let alone = |adapters: Option<usize>| {
            let mut batch = new(1);
            batch.join((), adapters, &prompt, Logits::Last);
            batch.read(|(), _| ()).expect("a CPU does not fail");
            logits(&batch, 0)
        };
        let expected = [None, Some(0)].map(alone);
        assert_ne!(expected[0], expected[1]);
        // Together, and then one after the other in the same slots.
        let mut batch = new(4);
        for n_cached in [[0, 0, 19, 19], [19, 19, 19, 19]] {
            let slots = [None, Some(0), None, Some(0)].map(|adapters| batch.join((), adapters, &prompt, Logits::Last));
            batch.read(|(), _| ()).expect("a CPU does not fail");
            assert_eq!(slots.map(|slot| batch.slots[slot].n_cached), n_cached);
            for (i, slot) in slots.into_iter().enumerate() {
                assert_eq!(logits(&batch, slot), expected[i % 2]);
            }
            for slot in slots {
                batch.leave(slot);
            }
        }
        let mut batch = new(1);
        for adapters in [None, Some(0), None] {
            let slot = batch.join((), adapters, &prompt, Logits::Last);
            batch.read(|(), _| ()).expect("a CPU does not fail");
            assert_eq!((slot, batch.slots[slot].n_cached), (0, 0));
            assert_eq!(logits(&batch, slot), expected[usize::from(adapters.is_some())]);
            batch.leave(slot);
        }
    }

    #[test]
    fn logits_of_each_position_equal_logits_of_last() {
        let prompt: Vec<u32> = (0..9).map(|i| i * 5 % 11).collect();
        let mut batch = batch(2);
        batch.join(false, None, &prompt, Logits::Last);
        batch.read(|_, _| ()).expect("a CPU does not fail");
        let slot = batch.join(true, None, &prompt, Logits::Each);
        let mut seen: Vec<Vec<f32>> = Vec::new();
        let see = |wants_each: &mut bool, logits: &[f32]| {
            assert!(*wants_each);
            seen.push(logits.to_vec());
        };
        batch.read(see).expect("a CPU does not fail");
        assert_eq!(seen.len(), prompt.len());
        for (n, logits) in (1..).zip(&seen) {
            assert_eq!(*logits, alone(&prompt[..n]), "{n}");
        }
        assert_eq!(batch.slots[slot].n_cached, 0, "logits have to be computed");
        assert_eq!(Some(&logits(&batch, slot)), seen.last());
    }

    #[test]
    fn proposal_is_accepted_up_to_first_wrong_token() {
        let prompt = [5, 0, 1, 2, 3, 5];
        let choose = |script: &mut Vec<Option<u32>>, logits: &[f32], _| (script.pop().flatten(), logits.to_vec());
        // After `5 0`, `1 2 3 5` is proposed, and later `1 7 5 0`.
        let chosen = [0, 1, 7, 5, 0, 1, 7];
        let script: Vec<Option<u32>> = [None].into_iter().chain(chosen.into_iter().rev().map(Some)).collect();
        let mut batch = Batch::new(model(), 2, 24, 128).speculating(4);
        assert_eq!(batch.join(script, None, &prompt, Logits::Last), 0);
        let (mut n_chosen, mut seen) = (Vec::new(), Vec::new());
        while !batch.is_empty() {
            let steps = batch.step(|_, _| (), choose).expect("a CPU does not fail");
            n_chosen.push(steps.len());
            seen.extend(steps);
        }
        assert_eq!(n_chosen, [1, 2, 1, 1, 3]);
        assert_eq!(batch.speculated(), Speculated { n_proposed: 8, n_right: 3 });
        let whole = [&prompt[..], &chosen].concat();
        for (n, logits) in (prompt.len()..).zip(&seen) {
            assert_eq!(*logits, alone(&whole[..n]), "{n}");
        }
        // The tokens stay cached: all but the last one, which is read again for its logits, are reused.
        let slot = batch.join(Vec::new(), None, &whole, Logits::Last);
        batch.read(|_, _| ()).expect("a CPU does not fail");
        assert_eq!(batch.slots[slot].n_cached, whole.len() - 1);
        assert_eq!(logits(&batch, slot), alone(&whole));
    }
}
