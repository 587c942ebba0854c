//! A forward pass of which chosen values are kept.

use burn::tensor::Tensor;

use super::{AttentionMaps, InspectError, Prompt};
use crate::model::Gpt;
use crate::model::parameters::HostTensor;
use crate::model::probe::{Point, Probe, Site};

/// A probe that keeps what passes at chosen points of every block, and changes nothing.
#[derive(Debug)]
pub struct Capture {
    points: Vec<Point>,
    /// Flat, so that any number of dimensions goes into one list; read at the end, so that a device is not
    /// waited for at each site.
    taken: Vec<(Site, Vec<usize>, Tensor<1>)>,
}

impl Capture {
    /// A probe that keeps what passes at `points`.
    #[must_use]
    pub fn new(points: &[Point]) -> Self {
        Self { points: points.to_vec(), taken: Vec::new() }
    }

    /// Waits for the device and reads what was kept.
    ///
    /// # Errors
    /// If the device fails, or a number is none: the weights are damaged.
    pub fn read(self) -> Result<Recording, InspectError> {
        let read = |(site, shape, values): (Site, Vec<usize>, Tensor<1>)| {
            let values = values.try_into_vec_as::<f32>();
            let values = values.map_err(InspectError::Device)?;
            if !values.iter().all(|value| value.is_finite()) {
                return Err(InspectError::NotFinite(site));
            }
            Ok((site, HostTensor { shape, values }))
        };
        let taken = self.taken.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Recording { taken })
    }
}

impl Probe for Capture {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if self.points.contains(&site.point) {
            let flat = value.clone().flatten(0, D - 1);
            self.taken.push((site, value.dims().to_vec(), flat));
        }
        value
    }
}

/// What a [`Capture`] kept, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    taken: Vec<(Site, HostTensor)>,
}

impl Recording {
    /// What passed at a site: of a block, or with `None` before or after the blocks.
    ///
    /// # Panics
    /// If nothing was kept there.
    #[must_use]
    pub fn get(&self, block_idx: impl Into<Option<usize>>, point: Point) -> &HostTensor {
        let site = Site { block_idx: block_idx.into(), point };
        let found = self.taken.iter().find(|(at, _)| *at == site);
        &found.unwrap_or_else(|| panic!("nothing was kept at `{site}`")).1
    }

    /// The attention weights of the first row of the batch, in every layer and head.
    ///
    /// # Panics
    /// If [`Point::Weights`] was not kept.
    #[must_use]
    pub fn attention(&self) -> AttentionMaps {
        let layers: Vec<&HostTensor> = self
            .taken
            .iter()
            .filter(|(site, _)| site.point == Point::Weights)
            .map(|(_, weights)| weights)
            .collect();
        let [_, n_heads, t, s] = layers.first().expect("weights were kept").shape[..] else {
            unreachable!("weights have four dimensions");
        };
        assert_eq!(t, s, "a pass without a cache");
        let values = layers.iter().flat_map(|layer| &layer.values[..n_heads * t * t]).copied();
        AttentionMaps::new(layers.len(), n_heads, t, values.collect())
    }
}

/// Reads a prompt, and keeps what passes at `points`.
///
/// # Errors
/// As [`Capture::read`].
pub fn capture(model: &Gpt, prompt: &Prompt, points: &[Point]) -> Result<Recording, InspectError> {
    let mut probe = Capture::new(points);
    let _logits = model.forward_with(prompt.tokens(&model.device()), &mut probe);
    probe.read()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::ModelConfig;
    use crate::model::parameters;
    use crate::tokenizer::Tokenizer;

    fn model() -> Gpt {
        let config = ModelConfig {
            context_length: 8,
            d_model: 8,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            d_ff: 16,
            ..ModelConfig::default()
        };
        Gpt::new(&config, 256, 1, &Device::flex())
    }

    #[test]
    fn weights_are_causal_rows_that_sum_to_one() {
        let prompt = Prompt::read("hello", &Tokenizer::byte(), 8).expect("bytes");
        let recording = capture(&model(), &prompt, &[Point::Weights]).expect("read");
        let maps = recording.attention();
        assert_eq!((maps.n_layers, maps.n_heads, maps.n_tokens), (2, 2, 5));
        for (layer, head, query) in [(0, 0, 0), (1, 0, 3), (1, 1, 4)] {
            let row = maps.row(layer, head, query);
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            assert!(row[query + 1..].iter().all(|weight| *weight == 0.0));
        }
        let [_, _, t, s] = recording.get(1, Point::Weights).shape[..] else {
            panic!("four dimensions");
        };
        assert_eq!((t, s), (5, 5));
    }

    #[test]
    fn weights_that_are_no_numbers_are_an_error() {
        let model = model();
        let broken = parameters::assign(model, |path, shape| {
            let value = if path.starts_with("blocks.1.attention") { f32::NAN } else { 0.5 };
            let shape = shape.to_vec();
            let values = vec![value; shape.iter().product()];
            Some(HostTensor { shape, values })
        });
        let prompt = Prompt::read("hello", &Tokenizer::byte(), 8).expect("bytes");
        let error = capture(&broken.expect("fits"), &prompt, &[Point::Weights]).unwrap_err();
        assert!(error.to_string().contains("blocks.1.attention.weights"), "{error}");
    }

    #[test]
    fn capturing_changes_nothing() {
        let prompt = Prompt::read("hello", &Tokenizer::byte(), 8).expect("bytes");
        let model = model();
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
