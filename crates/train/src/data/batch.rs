//! Batches: rows of input tokens and, for each token, the one that follows it.
//!
//! A [`BatchSource`] draws training batches and covers everything once to evaluate; windows of a text are its first
//! implementation. All are stateless.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Batch, DataError, Split, Tokens};

/// Draws the batches of a run.
pub trait BatchSource: Debug + Send + Sync {
    /// Rows of a training step: a pure function of `draw`.
    ///
    /// # Panics
    /// If there are no rows, or too few tokens for a row.
    fn draw(&self, draw: Draw) -> Batch;

    /// The number of targets that [count](Batch::n_targets) in rows of a training step; every rank divides its losses
    /// by it. At least one in every step.
    fn n_targets(&self, draw: Draw) -> usize {
        self.draw(draw).n_targets()
    }

    /// Whether a drawn batch has pairs of rows: the better answers, and then the worse ones. Then the pairs count, each as
    /// one target.
    fn are_preferences(&self) -> bool {
        false
    }

    /// `n_batches` batches of full [windows](BatchSource::windows), spread evenly and always the same, so that losses
    /// are comparable. All of them if there are fewer.
    ///
    /// # Panics
    /// If `context_length` or `batch_size` is 0.
    fn spread(&self, context_length: usize, batch_size: usize, n_batches: usize) -> Box<dyn Iterator<Item = Batch>>;

    /// Like [`BatchSource::spread`], but a batch of preferences has the worse answers, too, as a drawn one does.
    fn spread_pairs(&self, context_length: usize, batch_size: usize, n: usize) -> Box<dyn Iterator<Item = Batch>> {
        self.spread(context_length, batch_size, n)
    }

    /// Covers everything once: every token except the first of each text is a target exactly once.
    ///
    /// # Panics
    /// If `context_length` or `batch_size` is 0.
    fn windows(&self, context_length: usize, batch_size: usize) -> Box<dyn Iterator<Item = Batch>> {
        self.spread(context_length, batch_size, usize::MAX)
    }

    /// Checks that everything read so far was read correctly.
    fn check(&self) -> Result<(), DataError>;
}

/// Rows of a training step.
#[derive(Clone, Debug)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The step, counted from 0.
    pub step: u64,
    /// The rows, counted from the first of the step.
    pub rows: Range<usize>,
    /// The rows of all earlier steps, if each had `context_length` tokens.
    pub n_earlier_rows: u64,
    /// The tokens in each row.
    pub context_length: usize,
    /// Whether rows are drawn independently of each other, and not epoch by epoch.
    pub with_replacement: bool,
}

impl BatchSource for Arc<dyn BatchSource> {
    fn draw(&self, draw: Draw) -> Batch {
        (**self).draw(draw)
    }

    fn n_targets(&self, draw: Draw) -> usize {
        (**self).n_targets(draw)
    }

    fn are_preferences(&self) -> bool {
        (**self).are_preferences()
    }

    fn spread(&self, context_length: usize, batch_size: usize, n_batches: usize) -> Box<dyn Iterator<Item = Batch>> {
        (**self).spread(context_length, batch_size, n_batches)
    }

    fn spread_pairs(&self, context_length: usize, batch_size: usize, n: usize) -> Box<dyn Iterator<Item = Batch>> {
        (**self).spread_pairs(context_length, batch_size, n)
    }

    fn check(&self) -> Result<(), DataError> {
        (**self).check()
    }
}

/// Windows of weighted texts. No window crosses from one text into another.
impl BatchSource for Split {
    fn draw(&self, draw: Draw) -> Batch {
        let Draw { seed, step, rows, n_earlier_rows, context_length, with_replacement } = draw;
        if with_replacement {
            return sample(self, rows, context_length, seed, step);
        }
        let rows = n_earlier_rows + rows.start as u64..n_earlier_rows + rows.end as u64;
        shuffled(self, rows, context_length, seed)
    }

    fn n_targets(&self, draw: Draw) -> usize {
        draw.rows.len() * draw.context_length
    }

    /// The remainder of a text is a shorter row in a separate batch.
    fn spread(&self, context_length: usize, batch_size: usize, n_batches: usize) -> Box<dyn Iterator<Item = Batch>> {
        let texts: Vec<Tokens> = self.texts().cloned().collect();
        let n_targets = |text: &Tokens| text.len().saturating_sub(1);
        let n_windows: usize = texts.iter().map(|text| n_targets(text) / context_length).sum();
        let n_wanted = batch_size.saturating_mul(n_batches);
        let n = n_windows.min(n_wanted);
        let rests = texts.clone().into_iter().filter_map(move |text| {
            let rest = n_targets(&text) % context_length;
            (n_wanted > n_windows && rest > 0).then(|| gather(std::iter::once((&text, n_targets(&text) - rest)), rest))
        });
        let window = move |row: usize| {
            let window = row as u128 * n_windows as u128 / n as u128;
            usize::try_from(window).expect("below the number of windows")
        };
        let full = (0..n).step_by(batch_size).map(move |first| {
            let rows = first..n.min(first.saturating_add(batch_size));
            let windows = rows.map(|row| nth_window(&texts, window(row), context_length));
            gather(windows, context_length)
        });
        Box::new(full.chain(rests))
    }

    fn check(&self) -> Result<(), DataError> {
        self.texts().try_for_each(Tokens::check)
    }
}

/// Draws the windows of some rows of a step, with replacement.
///
/// Each row is a pure function of `(seed, step, row)`: the rows of a step are the same whether they are drawn at once
/// or a few at a time for gradient accumulation. A row's text is drawn first, by weight, then one of its windows,
/// uniformly.
fn sample(split: &Split, rows: Range<usize>, context_length: usize, seed: u64, step: u64) -> Batch {
    // Starts do not depend on the number of texts.
    let mut texts = draws(*b"........ tinderbox: batch texts ", seed, step, rows.start);
    let mut starts = draws(*b"........ tinderbox: batch starts", seed, step, rows.start);
    let windows = rows.map(|_| {
        let (tokens, _) = split.drawn(texts.next_u64());
        (tokens, start_at(starts.next_u64(), tokens, context_length))
    });
    gather(windows, context_length)
}

/// The windows of some rows, counted from the first step of the run, drawn without replacement: an epoch is a pass over
/// non-overlapping windows in random order, and each epoch cuts the text at different offsets.
///
/// With several texts an epoch has as many windows as all of them together, allotted by weight and evenly spaced in
/// each text: those of a text with a large weight overlap.
fn shuffled(split: &Split, rows: Range<u64>, context_length: usize, seed: u64) -> Batch {
    let n_starts: usize = split.texts().map(|tokens| n_starts(tokens, context_length)).sum();
    let n_windows = (n_starts / context_length).max(1) as u64;
    let window = |row: u64| {
        let mut random = draws(*b"........ tinderbox: batch epochs", seed, row / n_windows, 0);
        let offset = random.next_u64();
        let place = permuted(row % n_windows, n_windows, [(); 8].map(|()| random.next_u64()));
        let point = (u128::from(place) << 64 | u128::from(offset)) / u128::from(n_windows);
        let (tokens, fraction) = split.drawn(u64::try_from(point).expect("the place is below the number of windows"));
        (tokens, start_at(fraction, tokens, context_length))
    };
    let windows: Vec<_> = rows.map(window).collect();
    gather(windows.into_iter(), context_length)
}

/// The number of positions in a text where a window of `context_length` tokens and the token after it fit.
fn n_starts(tokens: &Tokens, context_length: usize) -> usize {
    assert!(tokens.len() > context_length, "{} tokens are less than a window", tokens.len());
    tokens.len() - context_length
}

/// Maps `fraction`, of 2^64, to a start position in a text.
fn start_at(fraction: u64, tokens: &Tokens, context_length: usize) -> usize {
    let start = (u128::from(fraction) * n_starts(tokens, context_length) as u128) >> 64;
    usize::try_from(start).expect("below the number of tokens")
}

/// The position of `place` in a random permutation of `0..n`: a Feistel network permutes the numbers below a power of
/// 4, and cycle walking skips those from `n` on.
///
/// Source: Mitchell et al. 2022, "Bandwidth-Optimal Random Shuffling for GPUs", section on bijective functions.
fn permuted(place: u64, n: u64, keys: [u64; 8]) -> u64 {
    let n_bits = (u64::BITS - (n - 1).leading_zeros()).div_ceil(2).max(1);
    let low = (1 << n_bits) - 1;
    let mut place = place;
    loop {
        let (left, right) = keys
            .iter()
            .fold((place >> n_bits, place & low), |(left, right), key| (right, left ^ (mixed(right ^ key) & low)));
        place = left << n_bits | right;
        if place < n {
            return place;
        }
    }
}

/// Mixes bits: each bit of the result depends on every bit of the argument.
///
/// Source: Stafford 2011, "Better Bit Mixing", Mix13, as in `SplitMix64`.
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Random numbers for a step's rows from `first_row` on, 64 bits each. The seed replaces the first bytes of the key;
/// the others separate these numbers from others drawn with the same seed.
fn draws(mut key: [u8; 32], seed: u64, step: u64, first_row: usize) -> ChaCha8Rng {
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(step);
    rng.set_word_pos(2 * first_row as u128); // 32-bit words
    rng
}

/// The tokens of `n_windows` [spread](BatchSource::spread) windows, one by one.
///
/// # Panics
/// If `context_length` or `n_windows` is 0.
pub fn spread_tokens(split: &Split, context_length: usize, n_windows: usize) -> Result<Vec<Vec<u32>>, DataError> {
    let ids = |batch: Batch| batch.inputs.into_iter().map(i32::cast_unsigned).collect();
    let windows = split.spread(context_length, 1, n_windows).map(ids).collect();
    split.check()?;
    Ok(windows)
}

/// The text and the start of a window, numbered across all texts.
fn nth_window(texts: &[Tokens], mut window: usize, context_length: usize) -> (&Tokens, usize) {
    for text in texts {
        let n_windows = text.len().saturating_sub(1) / context_length;
        if window < n_windows {
            return (text, window * context_length);
        }
        window -= n_windows;
    }
    unreachable!("the windows were counted")
}

/// The batch of the rows that start at these positions.
fn gather<'a>(windows: impl ExactSizeIterator<Item = (&'a Tokens, usize)>, seq_len: usize) -> Batch {
    let batch_size = windows.len();
    assert!(batch_size > 0 && seq_len > 0, "a batch of {batch_size} rows of {seq_len} tokens");
    let mut inputs = Vec::with_capacity(batch_size * seq_len);
    let mut targets = Vec::with_capacity(batch_size * seq_len);
    let mut row = vec![0; seq_len + 1];
    for (tokens, start) in windows {
        tokens.read(start, &mut row);
        inputs.extend_from_slice(&row[..seq_len]);
        targets.extend_from_slice(&row[1..]);
    }
    Batch { inputs, targets, batch_size, seq_len, lengths: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn text(ids: Range<u32>) -> Tokens {
        let bytes = u64::from(ids.end - ids.start);
        Tokens::from_ids(&ids.collect::<Vec<_>>(), bytes)
    }

    fn count_to(n: u32) -> Split {
        text(0..n).into()
    }

    fn starts(batch: &Batch) -> Vec<i32> {
        batch.inputs.chunks(batch.seq_len).map(|row| row[0]).collect()
    }

    fn assert_targets_follow(batch: &Batch) {
        assert_eq!(batch.inputs.len(), batch.batch_size * batch.seq_len);
        assert_eq!(batch.targets, batch.inputs.iter().map(|id| id + 1).collect::<Vec<_>>());
        for row in batch.inputs.chunks(batch.seq_len) {
            assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }

    #[test]
    fn drawn_batches_are_unchanged() {
        // Recorded values: a change here breaks the reproducibility of all earlier runs.
        let batch = sample(&count_to(1_003_854), 0..4, 1, 1337, 0);
        assert_eq!(batch.inputs, [237_486, 416_080, 74_298, 304_494]);
        let batch = sample(&count_to(1_003_854), 0..2, 1, 1337, 1);
        assert_eq!(batch.inputs, [704_549, 871_790]);
        let batch = shuffled(&count_to(1_003_854), 7_839..7_843, 128, 1337); // an epoch is 7,841 windows
        assert_eq!(starts(&batch), [605_985, 738_731, 258_577, 927_301]);
    }

    #[test]
    fn window_starts_are_uniform() {
        let tokens = count_to(14); // windows of 4 begin at 0 to 9
        let mut counts = [0_u32; 10];
        for start in (0..1000).flat_map(|step| starts(&sample(&tokens, 0..10, 4, 7, step))) {
            counts[usize::try_from(start).unwrap()] += 1;
        }
        // 10,000 draws with p = 0.1: mean 1000, standard deviation 30.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn seeds_and_steps_differ() {
        let tokens = count_to(100_000);
        let batches = [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(seed, step)| sample(&tokens, 0..8, 4, seed, step).inputs);
        assert_eq!(BTreeSet::from(batches).len(), 4);
    }

    #[test]
    fn texts_are_drawn_by_weight_not_length() {
        let split = Split::new(vec![(text(0..1000), 1.0), (text(5000..5010), 3.0)]);
        let mut n_second = 0;
        for step in 0..1000 {
            let batch = sample(&split, 0..10, 4, 7, step);
            assert_targets_follow(&batch); // no window crosses from one text into the other
            n_second += starts(&batch).iter().filter(|start| **start >= 5000).count();
        }
        // 10,000 draws with p = 0.75: mean 7500, standard deviation 43.
        assert!((7280..7720).contains(&n_second), "{n_second}");
        let whole = sample(&split, 0..10, 4, 7, 1).inputs;
        let parts = [0..3, 3..10].map(|rows| sample(&split, rows, 4, 7, 1).inputs);
        assert_eq!(whole, parts.concat());
    }

    #[test]
    fn permutations_are_complete_and_unbiased() {
        let permutation = |n: u64, keys| -> Vec<u64> { (0..n).map(|place| permuted(place, n, keys)).collect() };
        for n in (1..70).chain([255, 256, 257, 5_000]) {
            let numbers = permutation(n, [n; 8]);
            assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len() as u64, n);
            assert!(numbers.iter().all(|number| *number < n));
        }
        // 20,000 permutations of 10: 2000 times each number at each place, with a standard deviation of 42.
        let mut counts = [[0_u32; 10]; 10];
        let mut random = draws([7; 32], 7, 7, 0);
        for _ in 0..20_000 {
            let keys = [(); 8].map(|()| random.next_u64());
            for (place, number) in permutation(10, keys).into_iter().enumerate() {
                counts[place][usize::try_from(number).unwrap()] += 1;
            }
        }
        assert!(counts.as_flattened().iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn epoch_divides_windows_by_weight() {
        let split = Split::new(vec![(text(0..1_004), 1.0), (text(5_000..5_204), 3.0)]);
        // 1000 and 200 starts, 300 windows of 4: 75 of the first text, every 13.3 tokens, and 225 of the second.
        for epoch in 0..4 {
            let batch = shuffled(&split, epoch * 300..(epoch + 1) * 300, 4, 7);
            assert_targets_follow(&batch);
            let starts: BTreeSet<i32> = starts(&batch).into_iter().collect();
            let of_first: Vec<i32> = starts.range(..5_000).copied().collect();
            assert_eq!(of_first.len(), 75);
            assert!(of_first.windows(2).all(|pair| (13..=14).contains(&(pair[1] - pair[0]))));
            assert!(starts.range(5_000..).copied().eq(5_000..5_200), "every window of the second");
        }
    }

    #[test]
    fn windows_of_several_texts_do_not_mix() {
        let split = Split::new(vec![(text(0..10), 1.0), (text(20..22), 9.0), (text(30..47), 1.0)]);
        let batches: Vec<Batch> = split.windows(4, 3).collect();
        let all: Vec<Vec<i32>> = batches.iter().map(starts).collect();
        assert_eq!(all, [vec![0, 4, 30], vec![34, 38, 42], vec![8], vec![20]]);
        assert_eq!((batches[2].seq_len, batches[3].seq_len), (1, 1));
        batches.iter().for_each(assert_targets_follow);
        assert!(split.spread(4, 2, 1).map(|batch| starts(&batch)).eq([[0, 34]]));
    }

    proptest! {
        #[test]
        fn rows_do_not_depend_on_how_they_are_grouped(
            (context_length, n_more) in (1_usize..40, 1_u32..460),
            seed in any::<u64>(),
            step in any::<u64>(),
            (first, cut, end) in (0_usize..20, 1_usize..20, 1_usize..20),
        ) {
            let tokens = count_to(u32::try_from(context_length).unwrap() + n_more);
            let sample = |rows| sample(&tokens, rows, context_length, seed, step);
            let (cut, end) = (first + cut, first + cut + end);
            let whole = sample(first..end);
            assert_targets_follow(&whole);
            prop_assert_eq!(&whole.inputs, &[sample(first..cut).inputs, sample(cut..end).inputs].concat());
        }

        #[test]
        fn epoch_reads_nearly_all_tokens_once(
            (context_length, n_more) in (1_usize..40, 1_u32..2_000),
            seed in any::<u64>(),
            epoch in 0_u64..1_000_000,
            cut in any::<prop::sample::Index>(),
        ) {
            let n_windows = (u64::from(n_more) / context_length as u64).max(1);
            let split = count_to(u32::try_from(context_length).unwrap() + n_more);
            let shuffled = |rows| shuffled(&split, rows, context_length, seed);
            let rows = epoch * n_windows..(epoch + 1) * n_windows;
            let batch = shuffled(rows.clone());
            assert_targets_follow(&batch);
            let tokens: BTreeSet<i32> = batch.inputs.iter().copied().collect();
            prop_assert_eq!(tokens.len(), batch.inputs.len());
            prop_assert!(split.len() - tokens.len() < 2 * context_length);
            let cut = rows.start + cut.index(batch.batch_size) as u64;
            if rows.contains(&cut) && cut > rows.start {
                let parts = [shuffled(rows.start..cut).inputs, shuffled(cut..rows.end).inputs];
                prop_assert_eq!(parts.concat(), batch.inputs);
            }
        }

        #[test]
        fn windows_have_every_target_once(
            n in 0_u32..300, context_length in 1_usize..40, batch_size in 1_usize..9,
        ) {
            let mut targets = Vec::new();
            for batch in count_to(n).windows(context_length, batch_size) {
                assert_targets_follow(&batch);
                prop_assert!(batch.batch_size <= batch_size && batch.seq_len <= context_length);
                targets.extend(batch.targets);
            }
            let expected: Vec<i32> = (1..n.cast_signed()).collect();
            prop_assert_eq!(targets, expected);
        }

        #[test]
        fn spread_windows_are_an_ordered_subset(
            n in 0_u32..600, context_length in 1_usize..20, batch_size in 1_usize..9, n_batches in 0_usize..9,
        ) {
            let tokens = count_to(n);
            let some: Vec<Batch> = tokens.spread(context_length, batch_size, n_batches).collect();
            let wanted = batch_size * n_batches;
            if tokens.len().saturating_sub(1) / context_length < wanted {
                let all: Vec<Batch> = tokens.windows(context_length, batch_size).collect();
                prop_assert_eq!(some, all);
            } else {
                let starts: Vec<i32> = some.iter().flat_map(starts).collect();
                prop_assert_eq!((some.len(), starts.len()), (n_batches, wanted));
                let step = i32::try_from(context_length).unwrap();
                prop_assert!(starts.iter().all(|start| start % step == 0));
                // Evenly: no gap is more than one window wider than another.
                let gaps: BTreeSet<i32> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
                if let (Some(least), Some(most)) = (gaps.first(), gaps.last()) {
                    prop_assert!(*least > 0 && most - least <= step);
                }
            }
        }
    }
}
