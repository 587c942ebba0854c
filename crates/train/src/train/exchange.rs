//! Sums of named tensors over all ranks, and the weights that come of them.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

use crate::distributed::{ExchangeDtype, MOST_NUMBERS, Ranks};
use tinderbox_model::{Gpt, LazyTensor, follow_path};

/// The names of the trained parameters and their numbers of elements.
pub(super) fn lengths(model: &Gpt) -> impl Iterator<Item = (String, usize)> + use<> {
    let trained = model.parameters().filter(|it| it.is_trained);
    let lengths: BTreeMap<_, _> = trained.map(|it| (it.path, it.shape.iter().product())).collect();
    lengths.into_iter()
}

/// Sums tensors over all ranks, and passes each sum to `sink`. Tensors listed in `lengths` that this rank does not have
/// count as zeros.
///
/// Small tensors are sent together, in buckets that fill one exchange ([`MOST_NUMBERS`]).
pub(super) fn sum_each(
    ranks: &Ranks,
    dtype: ExchangeDtype,
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
        // The other ranks must not wait for a failed device; the failure is reported when the loss is read.
        values.resize(end, if read.is_some_and(|read| read.is_err()) { f32::NAN } else { 0.0 });
        names.push((name, length));
        if values.len() < MOST_NUMBERS && lengths.peek().is_some() {
            continue;
        }
        ranks.all_reduce(&mut values, dtype);
        let mut rest = &values[..];
        for (name, length) in names.drain(..) {
            let (sum, after) = rest.split_at(length);
            sink(name, sum);
            rest = after;
        }
        values.clear();
    }
}

/// The model with these weights, by parameter name; it keeps those for which there are none.
pub(super) fn with_weights(model: Gpt, weights: impl FnMut(&str) -> Option<Vec<f32>>) -> Gpt {
    struct Replacer<F>(Vec<String>, F);
    impl<F: FnMut(&str) -> Option<Vec<f32>>> ModuleMapper for Replacer<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(values) = (self.1)(&self.0.join(".")) else { return param };
            param.map(|old| {
                let new = Tensor::from_data(TensorData::new(values, old.shape()), &old.device());
                new.set_require_grad(old.is_require_grad())
            })
        }
        follow_path!(0);
    }
    model.map(&mut Replacer(Vec::new(), weights))
}
