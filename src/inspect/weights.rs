//! The attention weights of a forward pass, layer by layer as they come.

use burn::tensor::{Int, Tensor, TensorData};

use super::InspectError;
use crate::model::Gpt;
use crate::model::probe::{Point, Probe, Site};

/// A probe that hands each head's weights on as soon as they are there, so that those of one layer are all
/// that is ever held: `see(layer, head, weights)`, weights `[T, T]`.
struct Passing<F> {
    see: F,
    failed: Option<InspectError>,
}

impl<F: FnMut(usize, usize, &[f32])> Passing<F> {
    fn read(&mut self, site: Site, weights: Tensor<4>) -> Result<(), InspectError> {
        let [_, n_heads, t, s] = weights.dims();
        let weights = weights.flatten::<1>(0, 3).try_into_vec_as::<f32>();
        let weights = weights.map_err(InspectError::Device)?;
        if !weights.iter().all(|weight| weight.is_finite()) {
            return Err(InspectError::NotFinite(site));
        }
        let layer = site.block_idx.expect("weights are a block's");
        for (head, map) in weights.chunks_exact(t * s).take(n_heads).enumerate() {
            (self.see)(layer, head, map);
        }
        Ok(())
    }
}

impl<F: FnMut(usize, usize, &[f32])> Probe for Passing<F> {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if site.point == Point::Weights && self.failed.is_none() {
            let dims = value.dims();
            let [b, h, t, s] = dims[..] else {
                unreachable!("weights have four dimensions");
            };
            self.failed = self.read(site, value.clone().reshape([b, h, t, s])).err();
        }
        value
    }
}

/// Reads one row of tokens, and shows `see` each layer's and head's weights.
///
/// # Errors
/// If the device fails, or a weight is not a number: the model is damaged.
pub(super) fn each_map(
    model: &Gpt,
    ids: &[u32],
    see: impl FnMut(usize, usize, &[f32]),
) -> Result<(), InspectError> {
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let n = ids.len();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, n]), &model.device());
    let mut probe = Passing { see, failed: None };
    let _logits = model.forward_with(tokens, &mut probe);
    probe.failed.map_or(Ok(()), Err)
}
