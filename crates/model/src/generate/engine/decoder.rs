//! Passes the tokens of several sequences through an engine and computes the logits of their next tokens.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::adapters::{AdapterWork, Group, InLayer, Products};
use super::layer::Work;
use super::{Engine, in_f32};
use tinderbox_kernels::decode::{Angles, Cache, Rows, Stream, log_sum_exp, softcap_row};

/// The most tokens of one sequence in a pass: enough that reading the weights costs little compared with the arithmetic.
const TOKENS_AT_ONCE: usize = 128;

/// The KV cache and the logits of several sequences. The cache grows with its tokens, in powers of two; nothing else is
/// allocated while decoding.
///
/// The logits of a sequence depend neither on the other sequences nor on how its tokens are divided among calls: equal
/// tokens with the same adapters give bitwise equal logits.
#[derive(Debug)]
pub struct Decoder {
    engine: Arc<Engine>,
    cache: Cache,
    work: Work,
    adapter_work: AdapterWork,
    adapters: Vec<Option<usize>>,
    /// The first row of each sequence in the current pass.
    first_rows: Vec<Option<usize>>,
    /// The rows of the current pass that use adapters.
    groups: Vec<Group>,
    /// The logits of the current rows, `[n, V]`.
    scores: Rows,
    /// The logits of each sequence, `[V]`; empty before its first.
    logits: Vec<Vec<f32>>,
}

impl Decoder {
    /// A decoder for `n_sequences` sequences of up to `capacity` tokens.
    ///
    /// # Panics
    /// If there are no sequences, or the capacity is 0 or larger than the model's context.
    pub fn new(engine: Arc<Engine>, n_sequences: usize, capacity: usize) -> Self {
        let config = engine.config();
        assert!(
            n_sequences > 0 && (1..=config.context_length).contains(&capacity),
            "{n_sequences} sequences of {capacity} tokens in a context of {}",
            config.context_length
        );
        let vocab_size = engine.vocab_size();
        let streams = [[n_sequences, 1], [1, TOKENS_AT_ONCE.min(capacity)]];
        Self {
            cache: Cache::new([config.n_layers, n_sequences], capacity, [config.n_kv_heads, config.head_dim]),
            work: Work::new(&engine.layers, &streams),
            adapter_work: AdapterWork::new(&engine, streams.iter().map(|[n, t]| n * t).max().unwrap_or(0)),
            adapters: vec![None; n_sequences],
            first_rows: vec![None; n_sequences],
            groups: Vec::with_capacity(n_sequences),
            scores: Rows::new(n_sequences, vocab_size),
            logits: vec![Vec::new(); n_sequences],
            engine,
        }
    }

    /// The number of tokens in a sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.cache.len(sequence)
    }

    /// Lets a sequence use the adapters with this index, or none, and drops its tokens, whose keys and values are those
    /// of other weights.
    ///
    /// # Panics
    /// If the engine has no such adapters.
    pub fn set_adapters(&mut self, sequence: usize, adapters: Option<usize>) {
        let n = self.engine.adapters.len();
        assert!(adapters.is_none_or(|adapters| adapters < n), "{adapters:?} of {n}");
        self.truncate(sequence, 0);
        self.adapters[sequence] = adapters;
    }

    /// Drops the tokens of a sequence after the first `n`. Its logits are undefined until the next token is read.
    ///
    /// # Panics
    /// If it has fewer than `n` tokens.
    pub fn truncate(&mut self, sequence: usize, n: usize) {
        self.cache.truncate(sequence, n);
    }

    /// Drops all tokens and the logits of a sequence, and frees their memory.
    pub fn clear(&mut self, sequence: usize) {
        self.truncate(sequence, 0);
        self.logits[sequence] = Vec::new();
    }

    /// The bytes of memory that the keys and values of all sequences take now.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Replaces the tokens of sequence `to` with the first `n` tokens of sequence `from`. The logits are not copied.
    ///
    /// # Panics
    /// If sequence `from` has fewer than `n` tokens, or the two have different adapters.
    pub fn copy_first(&mut self, n: usize, from: usize, to: usize) {
        assert_eq!(self.adapters[from], self.adapters[to], "the adapters of both");
        self.cache.copy(from, to, n);
    }

    /// Copies the tokens and the logits of sequence `from` to sequence `to`.
    ///
    /// # Panics
    /// If the two have different adapters.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.copy_first(self.cache.len(from), from, to);
        if let Ok([from, to]) = self.logits.get_disjoint_mut([from, to]) {
            set(to, from);
        }
    }

    /// The logits of the next token of a sequence, `[V]`.
    pub fn logits(&self, sequence: usize) -> &[f32] {
        &self.logits[sequence]
    }

    /// Appends `tokens` to one sequence and computes the logits of the token after them.
    ///
    /// # Panics
    /// If there are no tokens, or no room for them, or one is not in the vocabulary.
    pub fn prefill(&mut self, sequence: usize, tokens: &[u32]) {
        assert!(!tokens.is_empty(), "no tokens");
        // On rayon's threads, which pass work to each other without going to sleep in between.
        rayon::scope(|_| {
            for tokens in tokens.chunks(TOKENS_AT_ONCE) {
                self.pass_one(sequence, tokens);
            }
            let last = (tokens.len() - 1) % TOKENS_AT_ONCE;
            predict(&self.engine, &mut self.work, &self.groups, last..last + 1, &mut self.scores);
            set(&mut self.logits[sequence], self.scores.row(0));
        });
    }

    /// Does the same as [`Decoder::prefill`] and calls `see` with the logits after each of the tokens, in order.
    ///
    /// # Panics
    /// In the same cases as [`Decoder::prefill`].
    pub fn prefill_each(&mut self, sequence: usize, tokens: &[u32], mut see: impl FnMut(&[f32]) + Send) {
        assert!(!tokens.is_empty(), "no tokens");
        let n_rows = TOKENS_AT_ONCE.min(tokens.len());
        let mut scores = Rows::new(n_rows, self.engine.vocab_size());
        rayon::scope(|_| {
            for tokens in tokens.chunks(TOKENS_AT_ONCE) {
                self.pass_one(sequence, tokens);
                predict(&self.engine, &mut self.work, &self.groups, 0..tokens.len(), &mut scores);
                (0..tokens.len()).for_each(|row| see(scores.row(row)));
            }
            set(&mut self.logits[sequence], scores.row((tokens.len() - 1) % TOKENS_AT_ONCE));
        });
    }

    /// Appends a token to each sequence that has one in `tokens`, and computes the logits of the token after it.
    ///
    /// # Panics
    /// If `tokens` does not have one entry per sequence, or there is no room for a token, or one is not in the
    /// vocabulary.
    pub fn decode(&mut self, tokens: &[Option<u32>]) {
        assert_eq!(tokens.len(), self.first_rows.len(), "an entry for each sequence");
        let n_rows = tokens.iter().flatten().count();
        if n_rows == 0 {
            return;
        }
        rayon::scope(|_| {
            self.embed_each(tokens);
            self.layers(0..tokens.len(), 1, n_rows);
            let Self { engine, work, scores, logits, first_rows, groups, .. } = self;
            predict(engine, work, groups, 0..n_rows, scores);
            for (row, logits) in first_rows.iter().zip(logits) {
                if let Some(row) = row {
                    set(logits, scores.row(*row));
                }
            }
        });
    }

    /// Reads tokens as sequence 0 and returns the cross-entropy of each target, the token after each of `tokens`, in
    /// nats.
    ///
    /// # Panics
    /// If there are not as many targets as tokens, no room for them, or one is not in the vocabulary.
    pub fn token_losses(&mut self, tokens: &[u32], targets: &[u32]) -> Vec<f32> {
        assert_eq!(tokens.len(), targets.len(), "a target for each token");
        self.truncate(0, 0);
        let vocab_size = self.engine.vocab_size();
        let mut scores = Rows::new(TOKENS_AT_ONCE.min(tokens.len()), vocab_size);
        let mut token_losses = vec![0.0; tokens.len()];
        let chunks = tokens.chunks(TOKENS_AT_ONCE).zip(targets.chunks(TOKENS_AT_ONCE));
        for ((tokens, targets), out) in chunks.zip(token_losses.chunks_mut(TOKENS_AT_ONCE)) {
            rayon::scope(|_| {
                self.pass_one(0, tokens);
                predict(&self.engine, &mut self.work, &self.groups, 0..tokens.len(), &mut scores);
                let rows = scores.par_rows_mut(tokens.len()).zip(targets);
                rows.zip(out).for_each(|((logits, target), out)| {
                    let logit = logits[*target as usize]; // before the logits are overwritten
                    *out = log_sum_exp(logits) - logit;
                });
            });
        }
        token_losses
    }

    /// Embeds the token of each sequence that has one. The rows of those with the same adapters are consecutive, after those
    /// without any.
    fn embed_each(&mut self, tokens: &[Option<u32>]) {
        self.groups.clear();
        let mut row = 0;
        for adapters in std::iter::once(None).chain((0..self.engine.adapters.len()).map(Some)) {
            let first = row;
            for (sequence, token) in tokens.iter().enumerate().filter(|(i, _)| self.adapters[*i] == adapters) {
                self.first_rows[sequence] = token.map(|_| row);
                if let Some(token) = token {
                    self.engine.embed(*token, self.cache.len(sequence), adapters, self.work.x.row_mut(row));
                    row += 1;
                }
            }
            self.groups.extend(adapters.filter(|_| row > first).map(|adapters| Group { adapters, rows: first..row }));
        }
    }

    fn pass_one(&mut self, sequence: usize, tokens: &[u32]) {
        let (start, n_rows, adapters) = (self.cache.len(sequence), tokens.len(), self.adapters[sequence]);
        for (row, token) in tokens.iter().enumerate() {
            self.engine.embed(*token, start + row, adapters, self.work.x.row_mut(row));
        }
        self.first_rows[sequence] = Some(0);
        self.groups.clear();
        self.groups.extend(adapters.map(|adapters| Group { adapters, rows: 0..n_rows }));
        self.layers(sequence..sequence + 1, n_rows, n_rows);
    }

    /// Passes the embedded rows, `t` for each sequence that has a first row, through all layers.
    fn layers(&mut self, sequences: Range<usize>, t: usize, n_rows: usize) {
        let Self { engine, cache, work, adapter_work, first_rows, groups, .. } = self;
        let stream = Stream { samples: sequences.clone(), first_rows, t, n_rows };
        let n_pairs = engine.config.rotary_dim() / 2;
        let angles = [&engine.rotation, &engine.local_rotation]
            .map(|tables| tables.as_ref().map(|[cos, sin]| Angles { tables: [cos, sin], n_pairs }));
        for (i, layer) in engine.layers.iter().enumerate() {
            let rotation = angles[usize::from(engine.config.has_local_rope(i))].filter(|_| engine.config.rotates(i));
            let adapters = InLayer { adapters: &engine.adapters, groups, layer_idx: i };
            let products = Products { adapters, n_rows, work: adapter_work };
            layer.forward(work, (cache, i), &stream, rotation, products);
        }
        for sequence in sequences.filter(|sequence| stream.first_rows[*sequence].is_some()) {
            cache.advance(sequence, t);
        }
    }
}

/// Computes the logits of some rows of the residual stream.
fn predict(engine: &Engine, work: &mut Work, groups: &[Group], rows: Range<usize>, out: &mut Rows) {
    let n_rows = rows.len();
    engine.norm.apply(&work.x, rows.clone(), &mut work.normed);
    engine.output.store(&work.normed, out);
    for Group { adapters, rows: of_group } in groups {
        for row in of_group.clone().filter(|row| rows.contains(row)).map(|row| row - rows.start) {
            engine.adapters[*adapters].add_to_logits(&work.normed, row, out.row_mut(row));
        }
    }
    if let Some(cap) = engine.config.logit_softcap {
        out.par_rows_mut(n_rows).for_each(|logits| softcap_row(logits, in_f32(cap)));
    }
}

/// Replaces the logits of a sequence.
fn set(logits: &mut Vec<f32>, new: &[f32]) {
    logits.clear();
    logits.extend_from_slice(new);
}
