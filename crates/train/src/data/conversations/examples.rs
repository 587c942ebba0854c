//! Batches of records, with targets only where tokens count: rows of similar length, padded to the longest, or packed
//! rows.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tinderbox_kernels::IGNORE_INDEX;

use super::Example;
use super::store::Place;
use crate::data::{Batch, BatchSource, DataError, Draw, Tokens};

/// Records that batches are drawn from. Cheap to clone.
///
/// A pass over them, an epoch, has each once: records of similar length share a batch, and the batches come in random
/// order. If they are packed, rows come in random order. If the last batch of a pass is not full, its other rows are
/// empty.
#[derive(Clone, Debug)]
pub struct Examples {
    tokens: Tokens,
    all: Arc<[Place]>,
    /// The records of each row, if they are packed.
    packed: Option<Arc<[PackedRow]>>,
    batch_size: usize,
    /// The order of the last requested pass, with its seed and number.
    order: Arc<Mutex<Option<PassOrder>>>,
}

/// The records of a row.
type PackedRow = Vec<usize>;

type PassOrder = ((u64, u64), Arc<[PackedRow]>);

/// How far a record may move in the order of lengths, as a fraction of its length: batches of each pass differ.
const JITTER: f64 = 0.2;

impl Examples {
    /// The records at these places of the tokens.
    pub(super) fn new(tokens: Tokens, places: Vec<Place>, batch_size: usize) -> Self {
        Self { tokens, all: places.into(), packed: None, batch_size, order: Arc::default() }
    }

    /// The same, packed into rows of up to this many tokens.
    pub(super) fn packed(self, max_tokens: usize) -> Self {
        let rows = packed(&self.lengths().collect::<Vec<_>>(), max_tokens);
        Self { packed: Some(rows.into()), ..self }
    }

    /// The records, in their order, each read when it is due.
    pub fn iter(&self) -> impl Iterator<Item = Example> {
        (0..self.n_records()).map(|idx| self.read(idx))
    }

    /// The record of this index; zeros if it cannot be read, which [`BatchSource::check`] reports.
    pub(crate) fn read(&self, idx: usize) -> Example {
        self.all[idx].read(&self.tokens)
    }

    /// The number of tokens of each record, of preferences those of the better answer.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.all.iter().map(|place| place.n_tokens)
    }

    /// Whether they are preferences; a batch then has the better answers followed by the worse ones, in as many rows.
    pub(crate) fn are_preferences(&self) -> bool {
        self.all.first().is_some_and(|first| first.n_rejected > 0)
    }

    /// The number of records.
    pub fn n_records(&self) -> usize {
        self.all.len()
    }

    pub(super) fn n_filled_rows(&self) -> usize {
        self.packed.as_ref().map_or(self.n_records(), |rows| rows.len())
    }

    /// The mean number of tokens in a row of a pass.
    pub(crate) fn tokens_per_row(&self) -> f64 {
        self.lengths().sum::<usize>() as f64 / self.n_rows().max(1) as f64
    }

    /// The number of tokens that count in the loss.
    pub(crate) fn n_counted(&self) -> usize {
        self.all.iter().map(|place| place.n_counted).sum()
    }

    /// The ids of these tokens, of each record.
    pub(crate) fn counted(&self) -> impl Iterator<Item = Vec<u32>> {
        self.iter().map(|Example { ids, counts, .. }| {
            let pairs = ids.into_iter().zip(counts).skip(1);
            pairs.filter(|(_, counts)| *counts).map(|(id, _)| id).collect()
        })
    }

    /// The tokens of each record before its last answer, and those of the answer.
    pub fn questions(&self, n: usize) -> Vec<[Vec<u32>; 2]> {
        let split = |example: Example| {
            let last = example.counts.iter().rposition(|counts| *counts)?;
            let first = last - example.counts[..last].iter().rev().take_while(|counts| **counts).count();
            (first > 0).then(|| [example.ids[..first].to_vec(), example.ids[first..=last].to_vec()])
        };
        self.iter().filter_map(split).take(n).collect()
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.n_filled_rows().next_multiple_of(self.batch_size)
    }

    /// The records in each row of a pass.
    fn order(&self, seed: u64, pass: u64) -> Arc<[PackedRow]> {
        let mut last = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((key, order)) = &*last
            && *key == (seed, pass)
        {
            return order.clone();
        }
        let mut key = *b"........ tinderbox: record order";
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream(pass);
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let rows: Vec<PackedRow> = if let Some(rows) = &self.packed {
            let mut rows: Vec<(f64, &PackedRow)> = rows.iter().map(|row| (uniform(), row)).collect();
            rows.sort_by(|a, b| a.0.total_cmp(&b.0));
            rows.into_iter().map(|(_, row)| row.clone()).collect()
        } else {
            let jittered = |idx: usize, uniform: f64| self.all[idx].n_tokens as f64 * (1.0 + JITTER * uniform);
            let mut by_length: Vec<(f64, usize)> =
                (0..self.n_records()).map(|idx| (jittered(idx, uniform()), idx)).collect();
            by_length.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let batches = by_length.chunks(self.batch_size);
            let mut batches: Vec<(f64, &[(f64, usize)])> = batches.map(|batch| (uniform(), batch)).collect();
            // A batch that is not full comes last.
            batches.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.total_cmp(&b.0)));
            batches.iter().flat_map(|(_, batch)| batch.iter().map(|(_, idx)| vec![*idx])).collect()
        };
        let order: Arc<[PackedRow]> =
            rows.into_iter().chain(std::iter::repeat(PackedRow::new())).take(self.n_rows()).collect();
        *last = Some(((seed, pass), order.clone()));
        order
    }

    fn rows(&self, draw: Draw) -> Vec<PackedRow> {
        let Draw { seed, rows, n_earlier_rows, .. } = draw;
        let rows = n_earlier_rows + rows.start as u64..n_earlier_rows + rows.end as u64;
        let n = self.n_rows() as u64;
        let row = |row: u64| {
            let place = usize::try_from(row % n).expect("below the rows of a pass");
            self.order(seed, row / n)[place].clone()
        };
        rows.map(row).collect()
    }

    /// Batches from the shortest records to the longest, with or without the worse answers.
    fn batches(&self, batch_size: usize, n_batches: usize, in_pairs: bool) -> Box<dyn Iterator<Item = Batch>> {
        let mut order: Vec<usize> = (0..self.n_records()).collect();
        order.sort_by_key(|idx| self.all[*idx].n_tokens);
        let batches: Vec<Vec<usize>> = order.chunks(batch_size).map(<[usize]>::to_vec).collect();
        let (n_all, examples) = (batches.len(), self.clone());
        let n = n_all.min(n_batches);
        Box::new((0..n).map(move |i| {
            let rows: Vec<Example> = batches[i * n_all / n].iter().map(|idx| examples.read(*idx)).collect();
            let rows: Vec<Option<&Example>> = rows.iter().map(Some).collect();
            if in_pairs { batch_of_pairs(rows) } else { batch(&rows) }
        }))
    }
}

impl BatchSource for Examples {
    fn draw(&self, draw: Draw) -> Batch {
        let read = |row: &PackedRow| -> Vec<Example> { row.iter().map(|idx| self.read(*idx)).collect() };
        let rows: Vec<Vec<Example>> = self.rows(draw).iter().map(read).collect();
        if self.packed.is_some() {
            return in_a_row(&rows.concat());
        }
        let rows: Vec<Option<&Example>> = rows.iter().map(|row| row.first()).collect();
        if self.are_preferences() { batch_of_pairs(rows) } else { batch(&rows) }
    }

    fn are_preferences(&self) -> bool {
        self.are_preferences()
    }

    fn n_targets(&self, draw: Draw) -> usize {
        let places = self.rows(draw).into_iter().flatten().map(|idx| self.all[idx]);
        if self.are_preferences() { places.count() } else { places.map(|place| place.n_counted).sum() }
    }

    /// From the shortest records to the longest; of preferences only the better answers.
    fn spread(&self, _: usize, batch_size: usize, n_batches: usize) -> Box<dyn Iterator<Item = Batch>> {
        self.batches(batch_size, n_batches, false)
    }

    fn spread_pairs(&self, _: usize, batch_size: usize, n: usize) -> Box<dyn Iterator<Item = Batch>> {
        self.batches(batch_size, n, self.are_preferences())
    }

    fn check(&self) -> Result<(), DataError> {
        self.tokens.check()
    }
}

/// Rows of records of these lengths, whose sum is at most `capacity` in each row that has more than one: the longest
/// first, each in the row whose rest it fills best (best-fit decreasing).
///
/// Source: Johnson et al. 1974, "Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms".
fn packed(lengths: &[usize], capacity: usize) -> Vec<PackedRow> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|idx| Reverse(lengths[*idx]));
    let mut rows: Vec<PackedRow> = Vec::new();
    let mut by_rest: BTreeSet<(usize, usize)> = BTreeSet::new();
    for idx in order {
        let length = lengths[idx];
        let (rest, row) = by_rest.range((length, 0)..).next().copied().unwrap_or((capacity, rows.len()));
        if row == rows.len() {
            rows.push(PackedRow::new());
        }
        rows[row].push(idx);
        by_rest.remove(&(rest, row));
        by_rest.insert((rest.saturating_sub(length), row));
    }
    rows
}

/// These records one after another in a single row, without padding.
fn in_a_row(examples: &[Example]) -> Batch {
    if examples.is_empty() {
        return batch(&[None]);
    }
    let alone: Vec<Batch> = examples.iter().map(|example| batch(&[Some(example)])).collect();
    let [inputs, targets] = [|batch: &Batch| batch.inputs.clone(), |batch: &Batch| batch.targets.clone()]
        .map(|part| alone.iter().flat_map(part).collect::<Vec<_>>());
    let lengths: Arc<[usize]> = alone.iter().map(|batch| batch.seq_len).collect();
    Batch { seq_len: inputs.len(), inputs, targets, batch_size: 1, lengths: Some(lengths) }
}

/// A batch of these better answers, and then of the worse ones.
fn batch_of_pairs(mut rows: Vec<Option<&Example>>) -> Batch {
    rows.extend_from_within(..);
    let n = rows.len() / 2;
    rows[n..].iter_mut().for_each(|row| *row = row.and_then(|row| row.rejected.as_deref()));
    batch(&rows)
}

/// A batch of these rows, padded; padding is no target, and no token before it attends to it.
fn batch(rows: &[Option<&Example>]) -> Batch {
    let longest = rows.iter().flatten().map(|example| example.ids.len()).max().unwrap_or(0);
    let seq_len = longest.saturating_sub(1).max(1);
    let mut inputs = vec![0; rows.len() * seq_len];
    let mut targets = vec![IGNORE_INDEX; rows.len() * seq_len];
    let cells = inputs.chunks_mut(seq_len).zip(targets.chunks_mut(seq_len));
    for ((inputs, targets), example) in cells.zip(rows).filter_map(|(cells, row)| Some((cells, (*row)?))) {
        let n = example.ids.len() - 1;
        for (input, id) in inputs.iter_mut().zip(&example.ids[..n]) {
            *input = id.cast_signed();
        }
        for ((target, id), counts) in targets.iter_mut().zip(&example.ids[1..]).zip(&example.counts[1..]) {
            if *counts {
                *target = id.cast_signed();
            }
        }
    }
    Batch { inputs, targets, batch_size: rows.len(), seq_len, lengths: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::store::marked;
    use super::*;

    /// Records of these lengths, whose first token does not count. The ids of a record are its index.
    fn records(lengths: &[u32], batch_size: usize) -> Examples {
        let example = |(idx, length): (usize, &u32)| {
            let n = *length as usize;
            let id = u32::try_from(idx + 1).expect("ids fit u32");
            Example { ids: vec![id; n], counts: (0..n).map(|place| place > 0).collect(), n_cut: 0, rejected: None }
        };
        let (mut tokens, mut places) = (Vec::new(), Vec::new());
        for example in lengths.iter().enumerate().map(example) {
            places.push(Place::of(&example, tokens.len()));
            tokens.extend(marked(&example));
        }
        Examples::new(Tokens::from_ids(&tokens, 0), places, batch_size)
    }

    fn draw(step: u64, batch_size: usize) -> Draw {
        let n_earlier_rows = step * batch_size as u64;
        Draw { seed: 3, step, rows: 0..batch_size, n_earlier_rows, context_length: 64, with_replacement: false }
    }

    #[test]
    fn pass_has_each_record_once_in_batches_of_similar_lengths() {
        let lengths: Vec<u32> = (0..37).map(|idx| 3 + idx * 7 % 37).collect();
        let records = records(&lengths, 4);
        let (mut n_cells, mut n_tokens, mut orders) = (0, 0, Vec::new());
        for pass in 0..3 {
            let mut seen = BTreeMap::new();
            for step in pass * 10..(pass + 1) * 10 {
                let batch = records.draw(draw(step, 4));
                assert_eq!(batch.n_targets(), records.n_targets(draw(step, 4)));
                n_cells += batch.inputs.len();
                for row in batch.targets.chunks(batch.seq_len) {
                    let n = row.iter().filter(|target| **target != IGNORE_INDEX).count();
                    n_tokens += n;
                    if n > 0 {
                        assert!(seen.insert(row[0], n).is_none(), "each once");
                    }
                }
            }
            let want = lengths.iter().zip(1..).map(|(length, id)| (id, *length as usize - 1));
            assert_eq!(seen, want.collect());
            orders.push(records.order(3, pass).to_vec());
        }
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
        assert!(n_cells < n_tokens * 13 / 10, "{n_cells} cells of {n_tokens} tokens");
        let mean = f64::from(lengths.iter().sum::<u32>()) / 40.0; // in the rows of ten batches
        assert!((records.tokens_per_row() - mean).abs() < 1e-12);
    }

    #[test]
    fn rows_do_not_depend_on_their_division() {
        let records = records(&[5, 9, 4, 8, 7, 3, 6], 4);
        let whole = records.draw(draw(1, 4));
        let parts = [0..1, 1..4].map(|rows| records.draw(Draw { rows, ..draw(1, 4) }));
        let counted = |batch: &Batch| -> Vec<i32> {
            batch.targets.iter().copied().filter(|target| *target != IGNORE_INDEX).collect()
        };
        assert_eq!(counted(&whole), parts.iter().flat_map(counted).collect::<Vec<_>>());
    }

    #[test]
    fn packed_rows_are_full_and_hold_each_record_once() {
        assert_eq!(packed(&[3, 9, 2, 6, 1, 12], 10), [vec![5], vec![1, 4], vec![3, 0], vec![2]]);
        let lengths: Vec<u32> = (0..37).map(|idx| 3 + idx * 7 % 37).collect();
        let records = records(&lengths, 2).packed(64);
        let n_tokens = lengths.iter().sum::<u32>() as usize;
        let n_rows = records.n_filled_rows();
        assert!(n_rows <= n_tokens.div_ceil(64) + 1, "{n_rows} rows");
        let mut orders = Vec::new();
        for pass in 0..2 {
            let n_steps = n_rows.div_ceil(2) as u64;
            let mut seen = BTreeMap::new();
            for step in pass * n_steps..(pass + 1) * n_steps {
                let batch = records.draw(draw(step, 2));
                let batch_lengths = batch.lengths.clone().expect("packed batches have lengths");
                assert_eq!((batch.batch_size, batch_lengths.iter().sum()), (1, batch.seq_len));
                assert_eq!(batch.n_targets(), records.n_targets(draw(step, 2)));
                let mut rest = &batch.inputs[..];
                for length in &*batch_lengths {
                    let inputs = rest.split_off(..*length).expect("the row holds all records");
                    assert!(inputs.iter().all(|id| *id == inputs[0]), "of one record");
                    assert!(seen.insert(inputs[0], *length).is_none(), "each once");
                }
            }
            let want = lengths.iter().zip(1..).map(|(length, id)| (id, *length as usize - 1));
            assert_eq!(seen, want.collect());
            orders.push(records.order(3, pass).to_vec());
        }
        assert_ne!(orders[0], orders[1]);
    }

    #[test]
    fn padding_is_no_target_and_evaluation_has_every_record() {
        let records = records(&[5, 2, 3], 2);
        let batches: Vec<Batch> = records.windows(64, 2).collect();
        assert_eq!(batches.iter().map(Batch::n_targets).sum::<usize>(), 4 + 1 + 2);
        let shorter = &batches[0];
        assert_eq!((shorter.batch_size, shorter.seq_len), (2, 2));
        assert_eq!(shorter.targets, [2, IGNORE_INDEX, 3, 3]);
        assert_eq!(shorter.inputs, [2, 0, 3, 3]);
    }
}
