//! Data parallelism: the rows of each batch that a rank computes, and the sums over all ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, Tensor, TensorData};

use super::exchange::{lengths, sum_each, with_weights};
use super::outer::Outer;
use crate::distributed::{DistributedConfig, ExchangeDtype, Ranks, SyncKind};
use crate::optimizer::Gradients;
use tinderbox_model::{Gpt, LazyTensor, parameters};

/// The part of one rank in each step; all of it if there are no other ranks.
#[derive(Debug)]
pub(super) struct DataParallel {
    ranks: Ranks,
    gradient_dtype: ExchangeDtype,
    /// The outer optimizer, for ranks that make local steps.
    outer: Option<Outer>,
}

impl DataParallel {
    pub(super) fn alone() -> Self {
        Self { ranks: Ranks::alone(), gradient_dtype: ExchangeDtype::F32, outer: None }
    }

    /// The part of this rank among `ranks`, which all start from the same `model` and `step`. `momentum` is the outer
    /// momentum saved by an earlier process, by parameter name.
    pub(super) fn new(
        ranks: &Ranks,
        config: &DistributedConfig,
        model: &Gpt,
        step: usize,
        momentum: &BTreeMap<String, Vec<f32>>,
    ) -> Self {
        let is_local = !ranks.is_alone() && config.sync == SyncKind::Local;
        let outer = is_local.then(|| Outer::new(config, model, step, momentum));
        Self { ranks: ranks.clone(), gradient_dtype: config.gradient_dtype, outer }
    }

    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    pub(super) fn outer(&self) -> Option<&Outer> {
        self.outer.as_ref()
    }

    /// The rows of a micro-batch that this rank computes. The numbers of rows differ by at most one between ranks; if
    /// the ranks make local steps, each has at least one row.
    pub(super) fn rows(&self, batch_size: usize) -> Range<usize> {
        let first = |rank: usize| batch_size * rank / self.ranks.size();
        let (first, end) = (first(self.ranks.rank()), first(self.ranks.rank() + 1));
        first..if self.outer.is_some() { end.max(first + 1) } else { end }
    }

    /// The rows of a micro-batch whose targets the loss is averaged over: all of them, or this rank's if the ranks make
    /// local steps.
    pub(super) fn averaged_rows(&self, batch_size: usize) -> Range<usize> {
        if self.outer.is_some() { self.rows(batch_size) } else { 0..batch_size }
    }

    /// The sum of gradients and losses over all ranks; a rank without rows contributes nothing. If the ranks make local
    /// steps, returns this rank's gradients and loss unchanged.
    ///
    /// Each rank gets the same bits, so that all ranks make the same update.
    pub(super) fn sum(&self, model: &Gpt, own: Option<(Gradients, Tensor<1>)>) -> (Gradients, Tensor<1>) {
        if self.ranks.is_alone() || self.outer.is_some() {
            return own.expect("a step has at least one row");
        }
        self.ranks.barrier();
        if self.ranks.sums_on_devices() {
            return self.sum_on_devices(model, own);
        }
        let (gradients, loss) = own.unzip();
        let named = |(name, tensor): (&str, &Tensor<1>)| (name.to_owned(), LazyTensor::on_device(tensor.clone()));
        let gradients = gradients.iter().flat_map(Gradients::iter).map(named).collect();
        let device = model.device().inner();
        let mut sums = BTreeMap::new();
        sum_each(&self.ranks, self.gradient_dtype, &gradients, lengths(model), |name, values| {
            sums.insert(name, Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &device));
        });
        // As in `sum_each`, the other ranks must not wait for a failed device.
        let mut loss = [loss.map_or(0.0, |loss| loss.try_into_scalar::<f32>().unwrap_or(f32::NAN))];
        self.ranks.all_reduce(&mut loss, ExchangeDtype::F32);
        (Gradients::from_named(sums), Tensor::from_floats(loss, &device))
    }

    /// Like [`DataParallel::sum`], with an all-reduce between the GPUs.
    fn sum_on_devices(&self, model: &Gpt, own: Option<(Gradients, Tensor<1>)>) -> (Gradients, Tensor<1>) {
        let device = model.device().inner();
        let (gradients, loss) = own.unzip();
        let mut tensors: BTreeMap<_, _> =
            lengths(model).map(|(name, length)| (name, Tensor::zeros([length], &device))).collect();
        let found = gradients.iter().flat_map(Gradients::iter);
        tensors.extend(found.map(|(name, gradient)| (name.to_owned(), gradient.clone())));
        let dtype = match self.gradient_dtype {
            ExchangeDtype::F32 => DType::F32,
            ExchangeDtype::Bf16 => DType::BF16,
        };
        let (names, tensors): (Vec<_>, Vec<_>) =
            tensors.into_iter().map(|(name, tensor)| (name, tensor.cast(dtype))).unzip();
        let sums = self.ranks.sum_on_devices(tensors).into_iter().map(|sum| sum.cast(DType::F32));
        let gradients = Gradients::from_named(names.into_iter().zip(sums).collect());
        let loss = loss.unwrap_or_else(|| Tensor::zeros([1], &device));
        (gradients, self.ranks.sum_on_devices(vec![loss]).remove(0))
    }

    /// Whether ranks that make local steps should average their weights after `step`.
    pub(super) fn is_due(&self, step: usize) -> bool {
        self.outer.as_ref().is_some_and(|outer| outer.is_due(step))
    }

    /// The weights of all ranks after `step`: the outer step applied to the average of the ranks' weights.
    pub(super) fn average(&mut self, model: Gpt, step: usize) -> Gpt {
        match &mut self.outer {
            Some(outer) => outer.average(&self.ranks, model, step),
            None => model,
        }
    }

    /// Averages tensors with the same names over all ranks; `None` if any rank has no tensors yet.
    pub(super) fn average_state(&self, own: &BTreeMap<String, LazyTensor>) -> Option<BTreeMap<String, LazyTensor>> {
        let mut n_empty = [if own.is_empty() { 1.0 } else { 0.0 }];
        self.ranks.all_reduce(&mut n_empty, ExchangeDtype::F32);
        if n_empty[0] > 0.5 {
            return None;
        }
        let size = self.ranks.size() as f32;
        let lengths = own.iter().map(|(name, tensor)| (name.clone(), tensor.n_numbers()));
        let mut averages = BTreeMap::new();
        sum_each(&self.ranks, ExchangeDtype::F32, own, lengths, |name, sums| {
            let values: Vec<f32> = sums.iter().map(|sum| sum / size).collect();
            let shape = own[&name].shape().to_vec();
            averages.insert(name, LazyTensor::computed(shape, move |sink| sink(&values)));
        });
        Some(averages)
    }
}

pub(super) fn weights_of_first(ranks: &Ranks, model: Gpt) -> Gpt {
    if ranks.is_alone() {
        return model;
    }
    let own = if ranks.is_first() { parameters::lazy(&model) } else { BTreeMap::new() };
    let mut weights = BTreeMap::new();
    sum_each(ranks, ExchangeDtype::F32, &own, lengths(&model), |name, values| {
        weights.insert(name, values.to_vec());
    });
    with_weights(model, |name| weights.remove(name))
}
