//! Batches of records: rows of similar length, padded to the longest, with targets only where tokens count.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tinderbox_kernels::IGNORE_INDEX;

use super::Example;
use crate::data::{Batch, BatchSource, DataError, Draw};

/// Records that batches are drawn from. Cheap to clone.
///
/// A pass over them, an epoch, has each once: records of similar length share a batch, and the batches come in random
/// order. If the last batch of a pass is not full, its other rows are empty.
#[derive(Clone, Debug)]
pub struct Examples {
    all: Arc<[Example]>,
    batch_size: usize,
    /// The order of the pass that was asked for last, with its seed and number.
    order: Arc<Mutex<Option<Pass>>>,
}

type Pass = ((u64, u64), Arc<[Option<usize>]>);

/// How far a record may move in the order of lengths, as a fraction of its length: batches of each pass differ.
const JITTER: f64 = 0.2;

impl Examples {
    pub(super) fn new(examples: Vec<Example>, batch_size: usize) -> Self {
        Self { all: examples.into(), batch_size, order: Arc::default() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Example> {
        self.all.iter()
    }

    fn len(&self) -> usize {
        self.all.len()
    }

    /// The mean number of tokens in a row of a pass.
    pub(crate) fn tokens_per_row(&self) -> f64 {
        self.iter().map(|example| example.ids.len()).sum::<usize>() as f64 / self.n_rows().max(1) as f64
    }

    /// The ids of the tokens that count in the loss.
    pub(crate) fn counted(&self) -> impl Iterator<Item = u32> {
        let of = |example: &Example| -> Vec<u32> {
            let pairs = example.ids.iter().zip(&example.counts).skip(1);
            pairs.filter(|(_, counts)| **counts).map(|(id, _)| *id).collect()
        };
        self.iter().flat_map(of)
    }

    /// The records, for questions that a model answers: the tokens before the last answer, and the answer's.
    #[must_use]
    pub fn questions(&self, n: usize) -> Vec<[Vec<u32>; 2]> {
        let split = |example: &Example| {
            let last = example.counts.iter().rposition(|counts| *counts)?;
            let first = last - example.counts[..last].iter().rev().take_while(|counts| **counts).count();
            (first > 0).then(|| [example.ids[..first].to_vec(), example.ids[first..=last].to_vec()])
        };
        self.iter().filter_map(split).take(n).collect()
    }

    /// The rows of a pass.
    fn n_rows(&self) -> usize {
        self.all.len().next_multiple_of(self.batch_size)
    }

    /// The record in each row of a pass.
    fn order(&self, seed: u64, pass: u64) -> Arc<[Option<usize>]> {
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
        let jittered = |idx: usize, uniform: f64| self.all[idx].ids.len() as f64 * (1.0 + JITTER * uniform);
        let mut by_length: Vec<(f64, usize)> = (0..self.len()).map(|idx| (jittered(idx, uniform()), idx)).collect();
        by_length.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let batches = by_length.chunks(self.batch_size);
        let mut batches: Vec<(f64, &[(f64, usize)])> = batches.map(|batch| (uniform(), batch)).collect();
        // A batch that is not full comes last.
        batches.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then(a.0.total_cmp(&b.0)));
        let rows = batches.iter().flat_map(|(_, batch)| batch.iter().map(|(_, idx)| Some(*idx)));
        let order: Arc<[Option<usize>]> = rows.chain(std::iter::repeat(None)).take(self.n_rows()).collect();
        *last = Some(((seed, pass), order.clone()));
        order
    }

    /// The records of rows, counted from the first of the run.
    fn rows(&self, seed: u64, rows: Range<u64>) -> Vec<Option<&Example>> {
        let n = self.n_rows() as u64;
        let row = |row: u64| {
            let place = usize::try_from(row % n).expect("below the rows of a pass");
            self.order(seed, row / n)[place].map(|idx| &self.all[idx])
        };
        rows.map(row).collect()
    }
}

impl BatchSource for Examples {
    fn draw(&self, draw: Draw) -> Batch {
        let Draw { seed, rows, n_earlier_rows, .. } = draw;
        batch(&self.rows(seed, n_earlier_rows + rows.start as u64..n_earlier_rows + rows.end as u64))
    }

    fn n_targets(&self, draw: Draw) -> usize {
        let Draw { seed, rows, n_earlier_rows, .. } = draw;
        let rows = self.rows(seed, n_earlier_rows + rows.start as u64..n_earlier_rows + rows.end as u64);
        rows.into_iter().flatten().map(Example::n_counted).sum()
    }

    /// From the shortest records to the longest.
    fn spread(&self, _: usize, batch_size: usize, n_batches: usize) -> Box<dyn Iterator<Item = Batch>> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|idx| self.all[*idx].ids.len());
        let batches: Vec<Vec<usize>> = order.chunks(batch_size).map(<[usize]>::to_vec).collect();
        let (n_all, examples) = (batches.len(), self.all.clone());
        let n = n_all.min(n_batches);
        Box::new((0..n).map(move |i| {
            let rows: Vec<_> = batches[i * n_all / n].iter().map(|idx| Some(&examples[*idx])).collect();
            batch(&rows)
        }))
    }

    fn check(&self) -> Result<(), DataError> {
        Ok(())
    }
}

/// A batch of these rows. What follows a record is padding, which no token before it sees and no target counts.
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
    Batch { inputs, targets, batch_size: rows.len(), seq_len }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Records of these lengths, whose first token does not count. The ids of a record are its index.
    fn records(lengths: &[u32], batch_size: usize) -> Examples {
        let example = |(idx, length): (usize, &u32)| {
            let n = *length as usize;
            let id = u32::try_from(idx + 1).expect("few");
            Example { ids: vec![id; n], counts: (0..n).map(|place| place > 0).collect() }
        };
        Examples::new(lengths.iter().enumerate().map(example).collect(), batch_size)
    }

    fn draw(step: u64, batch_size: usize) -> Draw {
        let n_earlier_rows = step * batch_size as u64;
        Draw { seed: 3, step, rows: 0..batch_size, n_earlier_rows, context_length: 64, with_replacement: false }
    }

    #[test]
    fn a_pass_has_each_record_once_and_batches_of_similar_lengths() {
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
    fn rows_are_the_same_however_they_are_divided() {
        let records = records(&[5, 9, 4, 8, 7, 3, 6], 4);
        let whole = records.draw(draw(1, 4));
        let parts = [0..1, 1..4].map(|rows| records.draw(Draw { rows, ..draw(1, 4) }));
        let counted = |batch: &Batch| -> Vec<i32> {
            batch.targets.iter().copied().filter(|target| *target != IGNORE_INDEX).collect()
        };
        assert_eq!(counted(&whole), parts.iter().flat_map(counted).collect::<Vec<_>>());
    }

    #[test]
    fn padding_is_no_target_and_an_evaluation_has_every_record() {
        let records = records(&[5, 2, 3], 2);
        let batches: Vec<Batch> = records.windows(64, 2).collect();
        assert_eq!(batches.iter().map(Batch::n_targets).sum::<usize>(), 4 + 1 + 2);
        let shorter = &batches[0];
        assert_eq!((shorter.batch_size, shorter.seq_len), (2, 2));
        assert_eq!(shorter.targets, [2, IGNORE_INDEX, 3, 3]);
        assert_eq!(shorter.inputs, [2, 0, 3, 3]);
    }
}
