//! Forward passes of which chosen values are kept.

use burn::tensor::{Int, Tensor, TensorData};

use super::{AttentionMaps, InspectError, Prompt};
use crate::model::Gpt;
use crate::model::parameters::HostTensor;
use crate::model::probe::{Point, Probe, Site};

/// A probe that keeps the values at chosen points of every block, and changes nothing.
#[derive(Debug)]
pub struct Capture {
    points: Vec<Point>,
    /// Flat, so that tensors of any rank fit one list; read at the end, so that no site waits for the device.
    taken: Vec<(Site, Vec<usize>, Tensor<1>)>,
}

impl Capture {
    /// A probe that keeps the values at `points`.
    #[must_use]
    pub fn new(points: &[Point]) -> Self {
        Self { points: points.to_vec(), taken: Vec::new() }
    }

    /// Waits for the device and reads the values.
    ///
    /// # Errors
    /// If the device fails, or a number is not finite: the weights are damaged.
    pub fn read(self) -> Result<Recording, InspectError> {
        let read = |(site, shape, values)| Ok((site, HostTensor { shape, values: finite(site, values)? }));
        let taken = self.taken.into_iter().map(read).collect::<Result<_, InspectError>>()?;
        Ok(Recording { taken })
    }
}

impl Probe for Capture {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if self.points.contains(&site.point) {
            let flat = value.clone().reshape([-1]);
            self.taken.push((site, value.dims().to_vec(), flat));
        }
        value
    }
}

/// The values that a [`Capture`] kept, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    taken: Vec<(Site, HostTensor)>,
}

impl Recording {
    /// The values at a site: of a block, or with `None` before or after the blocks.
    ///
    /// # Panics
    /// If they were not kept.
    #[must_use]
    pub fn get(&self, block_idx: impl Into<Option<usize>>, point: Point) -> &HostTensor {
        let site = Site { block_idx: block_idx.into(), point };
        let found = self.taken.iter().find(|(at, _)| *at == site);
        &found.unwrap_or_else(|| panic!("nothing was kept at `{site}`")).1
    }

    /// The residual stream after a layer; with `None`, the embedding.
    pub(super) fn residual(&self, layer: Option<usize>) -> &HostTensor {
        match layer {
            Some(layer) => self.get(layer, Point::Residual),
            None => self.get(None, Point::Embedding),
        }
    }

    /// The attention weights of the first row of the batch, in every layer and head.
    ///
    /// # Panics
    /// If [`Point::Weights`] was not kept.
    #[must_use]
    pub fn attention(&self) -> AttentionMaps {
        let weights = self.taken.iter().filter(|(site, _)| site.point == Point::Weights);
        let layers: Vec<&HostTensor> = weights.map(|(_, weights)| weights).collect();
        let [_, n_heads, t, s] = layers.first().expect("weights were kept").shape[..] else {
            unreachable!("weights have four dimensions");
        };
        assert_eq!(t, s, "a pass without a cache");
        let values = layers.iter().flat_map(|layer| &layer.values[..n_heads * t * t]).copied();
        AttentionMaps::new(layers.len(), n_heads, t, values.collect())
    }
}

/// Reads a prompt, and keeps the values at `points`.
///
/// # Errors
/// As [`Capture::read`].
pub fn capture(model: &Gpt, prompt: &Prompt, points: &[Point]) -> Result<Recording, InspectError> {
    let mut probe = Capture::new(points);
    let _logits = model.forward_with(prompt.tokens(&model.device()), &mut probe);
    probe.read()
}

/// The numbers of a tensor, row-major.
pub(super) fn host<const D: usize>(x: Tensor<D>) -> Result<Vec<f32>, InspectError> {
    Ok(x.reshape([-1]).try_into_vec_as::<f32>()?)
}

/// As [`host`], for values that passed `site`.
fn finite<const D: usize>(site: Site, x: Tensor<D>) -> Result<Vec<f32>, InspectError> {
    let values = host(x)?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(InspectError::NotFinite(site)),
    }
}

/// Reads one row of tokens, and calls `see(layer, head, weights)` with the weights `[T, T]` of each head, so that those
/// of only one layer are held at a time.
///
/// # Errors
/// If the device fails, or a weight is not finite: the model is damaged.
pub(super) fn each_map(model: &Gpt, ids: &[u32], see: impl FnMut(usize, usize, &[f32])) -> Result<(), InspectError> {
    struct Maps<F>(F, Result<(), InspectError>);
    impl<F: FnMut(usize, usize, &[f32])> Probe for Maps<F> {
        fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
            if site.point == Point::Weights && self.1.is_ok() {
                let [.., t, s] = value.dims()[..] else { unreachable!("four dimensions") };
                let layer = site.block_idx.expect("weights are a block's");
                self.1 = finite(site, value.clone()).map(|weights| {
                    let heads = weights.chunks_exact(t * s).enumerate();
                    heads.for_each(|(head, weights)| (self.0)(layer, head, weights));
                });
            }
            value
        }
    }
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let shape = [1, ids.len()];
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &model.device());
    let mut probe = Maps(see, Ok(()));
    let _logits = model.forward_with(tokens, &mut probe);
    probe.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::{constant, prompt, small_model};

    #[test]
    fn weights_that_are_no_numbers_are_an_error() {
        let broken = constant("blocks.1.attention", f32::NAN);
        let error = capture(&broken, &prompt("hello"), &[Point::Weights]).unwrap_err();
        assert!(error.to_string().contains("blocks.1.attention.weights"), "{error}");
        let error = each_map(&broken, &[1, 2, 3], |_, _, _| ()).unwrap_err();
        assert!(error.to_string().contains("blocks.1.attention.weights"), "{error}");
    }

    #[test]
    fn capturing_changes_nothing() {
        let (model, prompt) = (small_model(), prompt("hello"));
        let tokens = || prompt.tokens(&model.device());
        let mut probe = Capture::new(&[Point::Residual, Point::Logits]);
        let seen = model.forward_with(tokens(), &mut probe).into_data();
        let tolerance = burn::tensor::Tolerance::<f32>::absolute(1e-5);
        seen.assert_approx_eq(&model.forward(tokens()).into_data(), tolerance);
        let recording = probe.read().expect("read");
        let kept = &recording.get(None, Point::Logits).values;
        assert_eq!(*kept, seen.try_to_vec::<f32>().expect("f32"));
    }
}
