//! Forward passes that keep chosen values.

use burn::tensor::Tensor;

use super::prompt::to_tensor;
use super::{InspectError, Prompt};
use tinderbox_model::Gpt;
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::probe::{Point, Probe, Site};

/// The site of the model's output.
pub(super) const LOGITS: Site = Site { block_idx: None, point: Point::Logits };

/// The values at chosen points of a forward pass, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording(Vec<(Site, HostTensor)>);

impl Recording {
    /// The values at a site: in a block, or with `None` outside the blocks.
    ///
    /// # Panics
    /// If the site was not captured.
    pub fn get(&self, block_idx: impl Into<Option<usize>>, point: Point) -> &HostTensor {
        let site = Site { block_idx: block_idx.into(), point };
        let found = self.0.iter().find(|(at, _)| *at == site);
        &found.unwrap_or_else(|| panic!("`{site}` was not captured")).1
    }

    /// The residual stream after a layer; with `None`, the embedding.
    pub(super) fn residual(&self, layer: Option<usize>) -> &HostTensor {
        match layer {
            Some(layer) => self.get(layer, Point::Residual),
            None => self.get(None, Point::Embedding),
        }
    }

    /// The attention weights of one head, row by row: `[T, T]`, queries then keys, each row summing to 1.
    ///
    /// # Panics
    /// If [`Point::Weights`] was not captured, or the layer or head is out of range.
    pub fn map(&self, layer: usize, head: usize) -> &[f32] {
        let HostTensor { shape, values } = self.get(layer, Point::Weights); // [1, H, T, T]
        let size = shape[2] * shape[3];
        &values[head * size..(head + 1) * size]
    }

    /// The attention of the token at `query` to each token, in one head: `[T]`.
    ///
    /// # Panics
    /// If [`Point::Weights`] was not captured, or the layer, head or token is out of range.
    pub fn row(&self, layer: usize, head: usize, query: usize) -> &[f32] {
        self.get(layer, Point::Weights).vector(head, query)
    }

    /// A recording of the attention weights of `n_layers` layers, `[L, H, T, T]`.
    pub(crate) fn of_weights([n_layers, n_heads, t]: [usize; 3], values: &[f32]) -> Self {
        let layers = values.chunks(values.len() / n_layers).enumerate();
        let layer = |(layer, values): (usize, &[f32])| {
            let site = Site { block_idx: Some(layer), point: Point::Weights };
            (site, HostTensor { shape: vec![1, n_heads, t, t], values: values.to_vec() })
        };
        Self(layers.map(layer).collect())
    }
}

/// Reads a prompt and keeps the values at `points` of every block.
pub fn capture(model: &Gpt, prompt: &Prompt, points: &[Point]) -> Result<Recording, InspectError> {
    /// Values are flat, so that tensors of any rank fit one list, and are read after the pass, so that no site waits
    /// for the device.
    struct Capture<'a>(&'a [Point], Vec<(Site, Vec<usize>, Tensor<1>)>);
    impl Probe for Capture<'_> {
        fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
            if self.0.contains(&site.point) {
                self.1.push((site, value.dims().to_vec(), value.clone().reshape([-1])));
            }
            value
        }
    }
    let mut probe = Capture(points, Vec::new());
    let _logits = model.forward_with(prompt.tokens(&model.device()), None, &mut probe);
    let read = |(site, shape, values)| Ok((site, HostTensor { shape, values: finite(site, values)? }));
    Ok(Recording(probe.1.into_iter().map(read).collect::<Result<_, InspectError>>()?))
}

/// The numbers of a tensor, row-major.
pub(super) fn host<const D: usize>(x: Tensor<D>) -> Result<Vec<f32>, InspectError> {
    Ok(x.reshape([-1]).try_into_vec_as::<f32>()?)
}

pub(super) fn host_tensor<const D: usize>(x: Tensor<D>) -> Result<HostTensor, InspectError> {
    Ok(HostTensor { shape: x.dims().to_vec(), values: host(x)? })
}

/// Like [`host`], for values at `site`; an error if one is not finite.
pub(super) fn finite<const D: usize>(site: Site, x: Tensor<D>) -> Result<Vec<f32>, InspectError> {
    let values = host(x)?;
    if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(InspectError::NotFinite(site)) }
}

/// Reads one row of tokens, and calls `see(layer, head, weights)` with `[T, T]` weights, holding one layer's at a time.
pub(super) fn each_map(model: &Gpt, ids: &[u32], see: impl FnMut(usize, usize, &[f32])) -> Result<(), InspectError> {
    struct Maps<F>(F, Result<(), InspectError>);
    impl<F: FnMut(usize, usize, &[f32])> Probe for Maps<F> {
        fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
            if site.point == Point::Weights && self.1.is_ok() {
                let [.., t, s] = value.dims()[..] else { unreachable!("four dimensions") };
                let layer = site.block_idx.expect("attention weights belong to a block");
                self.1 = finite(site, value.clone()).map(|weights| {
                    let heads = weights.chunks_exact(t * s).enumerate();
                    heads.for_each(|(head, weights)| (self.0)(layer, head, weights));
                });
            }
            value
        }
    }
    let mut probe = Maps(see, Ok(()));
    let _logits = model.forward_with(to_tensor(ids, &model.device()), None, &mut probe);
    probe.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{edited, model, prompt, small_config};

    #[test]
    fn nan_weights_are_reported() {
        let broken = edited(model(&small_config()), |path, tensor| {
            if path.starts_with("blocks.1.attention") {
                tensor.values.fill(f32::NAN);
            }
        });
        let captured = capture(&broken, &prompt("hello"), &[Point::Weights]).unwrap_err();
        let mapped = each_map(&broken, &[1, 2, 3], |_, _, _| ()).unwrap_err();
        for error in [captured, mapped] {
            assert!(error.to_string().contains("blocks.1.attention.weights"), "{error}");
        }
    }
}
