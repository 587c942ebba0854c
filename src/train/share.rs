//! The share of a process in the steps of a run: its rows of each batch, and the sums over all processes.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Tensor, TensorData};

use super::outer::Outer;
use crate::config::{DistributedConfig, SyncKind};
use crate::distributed::Ranks;
use crate::model::{Gpt, LazyTensor, parameters};
use crate::optimizer::Gradients;

/// Tensors travel as soon as they have this many numbers together, 16 MiB: one message for many small ones.
const BUCKET: usize = 1 << 22;

/// The name of the loss among the gradients; no parameter has it.
const LOSS: &str = "";

/// The share of one process; everything if it is alone.
#[derive(Debug)]
pub(super) struct Share {
    ranks: Ranks,
    /// Of ranks that make steps by themselves.
    outer: Option<Outer>,
}

impl Share {
    pub(super) fn alone() -> Self {
        Self { ranks: Ranks::alone(), outer: None }
    }

    /// The share of this one of `ranks`, from a `model` on that is the same for all, as is `step`. `momentum` is that of
    /// an earlier process, by parameter.
    pub(super) fn of(
        ranks: &Ranks,
        config: &DistributedConfig,
        model: &Gpt,
        step: usize,
        momentum: &BTreeMap<String, Vec<f32>>,
    ) -> Self {
        let is_local = !ranks.is_alone() && config.sync == SyncKind::Local;
        let outer = is_local.then(|| Outer::new(config, model, step, momentum));
        Self { ranks: ranks.clone(), outer }
    }

    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    pub(super) fn outer(&self) -> Option<&Outer> {
        self.outer.as_ref()
    }

    /// This process's rows of a micro-batch: as many as another's, or one more or less; at least one where each makes
    /// steps by itself.
    pub(super) fn rows(&self, batch_size: usize) -> Range<usize> {
        let first = |rank: usize| batch_size * rank / self.ranks.size();
        let (first, end) = (first(self.ranks.rank()), first(self.ranks.rank() + 1));
        first..if self.outer.is_some() { end.max(first + 1) } else { end }
    }

    /// The mean over all rows is the sum over the ranks of the mean over their `n_rows` divided by this.
    pub(super) fn n_parts(&self, n_rows: usize, batch_size: usize) -> f32 {
        if self.outer.is_some() { 1.0 } else { batch_size as f32 / n_rows as f32 }
    }

    /// The sum over all ranks of their gradients and losses, of which one without rows has none. Those of this process
    /// where each makes steps by itself.
    ///
    /// Each rank gets the same bits, so that all of them make the same update.
    pub(super) fn sum(&self, model: &Gpt, own: Option<(Gradients, Tensor<1>)>) -> (Gradients, Tensor<1>) {
        if self.ranks.is_alone() || self.outer.is_some() {
            return own.expect("a step has at least one row");
        }
        let (gradients, loss) = own.unzip();
        let gradients = gradients.iter().flat_map(Gradients::iter);
        let own = gradients.chain(loss.iter().map(|loss| (LOSS, loss)));
        let own = own.map(|(name, tensor)| (name.to_owned(), LazyTensor::on_device(tensor.clone()))).collect();
        let lengths = parameters::shapes(model).into_iter().map(|(name, shape)| (name, shape.iter().product()));
        let device = model.device().inner();
        let mut sums = BTreeMap::new();
        sum_each(&self.ranks, &own, lengths.chain([(LOSS.to_owned(), 1)]), |name, values| {
            sums.insert(name, Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &device));
        });
        let loss = sums.remove(LOSS).expect("it was summed too");
        (Gradients::from_named(sums), loss)
    }

    /// Whether ranks that make steps by themselves are to average their weights after `step`.
    pub(super) fn is_due(&self, step: usize) -> bool {
        self.outer.as_ref().is_some_and(|outer| outer.is_due(step))
    }

    /// The weights that all ranks go on with after `step`: the average of those that each has moved by itself, taken a
    /// step further.
    pub(super) fn average(&mut self, model: Gpt, step: usize) -> Gpt {
        match &mut self.outer {
            Some(outer) => outer.average(&self.ranks, model, step),
            None => model,
        }
    }
}

/// Sums tensors over all ranks, and passes each sum on. A tensor of `lengths` that this process does not have is zero.
pub(super) fn sum_each(
    ranks: &Ranks,
    own: &BTreeMap<String, LazyTensor>,
    lengths: impl Iterator<Item = (String, usize)>,
    mut sink: impl FnMut(String, &[f32]),
) {
    let (mut names, mut values): (Vec<(String, usize)>, Vec<f32>) = (Vec::new(), Vec::new());
    let mut lengths = lengths.peekable();
    while let Some((name, length)) = lengths.next() {
        let end = values.len() + length;
        let read = own.get(&name).map(|tensor| {
            tensor.stream(&mut |piece| {
                values.extend_from_slice(piece);
                Ok(())
            })
        });
        // The others must not wait for a device that failed: it says so when the loss is read.
        values.resize(end, if read.is_some_and(|read| read.is_err()) { f32::NAN } else { 0.0 });
        names.push((name, length));
        if values.len() < BUCKET && lengths.peek().is_some() {
            continue;
        }
        ranks.all_reduce(&mut values);
        let mut rest = &values[..];
        for (name, length) in names.drain(..) {
            let (sum, after) = rest.split_at(length);
            sink(name, sum);
            rest = after;
        }
        values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_process_without_others_are_its_numbers_and_zeros() {
        let device = burn::tensor::Device::flex();
        let tensor = |values: &[f32]| LazyTensor::on_device(Tensor::<1>::from_floats(values, &device));
        let own = BTreeMap::from([("a".to_owned(), tensor(&[1.0, 2.0])), ("c".to_owned(), tensor(&[3.0]))]);
        let lengths = [("a", 2), ("b", 3), ("c", 1)].map(|(name, n)| (name.to_owned(), n));
        let mut sums = Vec::new();
        sum_each(&Ranks::alone(), &own, lengths.into_iter(), |name, values| sums.push((name, values.to_vec())));
        let expected = [("a", vec![1.0, 2.0]), ("b", vec![0.0; 3]), ("c", vec![3.0])];
        assert_eq!(sums, expected.map(|(name, values)| (name.to_owned(), values)));
    }
}
