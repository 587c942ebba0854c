//! The attention of a prompt: the selected heads, their weights, and the queries and keys behind them.

use std::ops::Range;

use rayon::prelude::*;

use super::vectors::{dot, largest};
use super::{InspectError, Prompt, Recording, capture};
use tinderbox_model::Gpt;
use tinderbox_model::config::ModelConfig;
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::probe::Point;

/// The `n` largest positive `weights` with their positions, in descending order; ties go to the earlier.
pub fn strongest(weights: &[f32], n: usize) -> Vec<(usize, f32)> {
    let largest = largest(weights, n).into_iter().map(|at| (at, weights[at]));
    largest.filter(|(_, weight)| *weight > 0.0).collect()
}

/// The heads to be shown: one or all, of one layer or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSelection {
    /// The layers, counted from 0.
    pub layers: Range<usize>,
    /// The heads of each layer, counted from 0.
    pub heads: Range<usize>,
}

impl HeadSelection {
    /// Selects one layer or all, and one head or all.
    ///
    /// # Errors
    /// If the layer or head is out of range.
    pub fn new(layer: Option<usize>, head: Option<usize>, config: &ModelConfig) -> Result<Self, InspectError> {
        let range = |what, index: Option<usize>, of, n| match index {
            Some(index) if index >= n => Err(InspectError::OutOfRange { what, index, of, n }),
            Some(index) => Ok(index..index + 1),
            None => Ok(0..n),
        };
        let layers = range("layer", layer, "the model", config.n_layers)?;
        Ok(Self { layers, heads: range("head", head, "each layer of the model", config.n_heads)? })
    }

    /// The value of each selected layer and head, `[L][H]`.
    pub fn map<T>(&self, mut value: impl FnMut(usize, usize) -> T) -> Vec<Vec<T>> {
        self.layers.clone().map(|layer| self.heads.clone().map(|head| value(layer, head)).collect()).collect()
    }

    /// The layer and head with the largest value, the first among equals; `None` if the selection is empty.
    pub(crate) fn highest(&self, value: impl Fn(usize, usize) -> f64) -> Option<[usize; 2]> {
        let heads = self.layers.clone().flat_map(|layer| self.heads.clone().map(move |head| [layer, head]));
        let values = heads.map(|[layer, head]| ([layer, head], value(layer, head)));
        values.min_by(|a, b| b.1.total_cmp(&a.1)).map(|(place, _)| place)
    }

    /// The layer and head, if only one head is selected.
    pub fn single(&self) -> Option<(usize, usize)> {
        (self.layers.len() == 1 && self.heads.len() == 1).then_some((self.layers.start, self.heads.start))
    }
}

/// The attention of a prompt, for drawing. [`super::Explanation`] has more detail, for a single token.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptAttention {
    /// The prompt, of T tokens.
    pub prompt: Prompt,
    /// The config of the model.
    pub config: ModelConfig,
    /// The heads to be shown.
    pub selection: HeadSelection,
    /// The weights of every layer and head, and the other values kept.
    pub recording: Recording,
}

impl PromptAttention {
    /// The points besides [`Point::Weights`] that a page shows.
    pub const DETAILS: [Point; 4] = [Point::Embedding, Point::Queries, Point::Keys, Point::Residual];

    /// Reads a prompt, and keeps the weights and the values at `points`.
    pub fn new(
        model: &Gpt,
        prompt: &Prompt,
        selection: &HeadSelection,
        points: &[Point],
    ) -> Result<Self, InspectError> {
        let recording = capture(model, prompt, &[points, &[Point::Weights]].concat())?;
        Ok(Self { prompt: prompt.clone(), config: model.config().clone(), selection: selection.clone(), recording })
    }

    /// The key/value head that `head` reads, counted from 0.
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.config.n_heads / self.config.n_kv_heads)
    }

    /// The cosine similarity of tokens i and j <= i in the residual stream: of the embeddings, then after each layer of
    /// the model, selected or not. Row by row, `[L + 1][T (T + 1) / 2]`.
    ///
    /// # Panics
    /// If [`PromptAttention::DETAILS`] were not recorded.
    pub fn similarity(&self) -> Vec<Vec<f32>> {
        let stages = std::iter::once(None).chain((0..self.config.n_layers).map(Some));
        stages.map(|stage| cosines(self.recording.residual(stage))).collect()
    }
}

/// The cosine of each pair of rows of `[1, T, C]`, the second not after the first; 0 if either is zero.
#[allow(clippy::cast_possible_truncation, reason = "seven digits of a cosine are more than anyone reads")]
fn cosines(vectors: &HostTensor) -> Vec<f32> {
    let n_tokens = vectors.shape[1];
    let unit = |row: &[f32]| -> Vec<f64> {
        let length = dot(row, row).sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        row.iter().map(|x| f64::from(*x) * scale).collect()
    };
    let units: Vec<Vec<f64>> = (0..n_tokens).map(|t| unit(vectors.vector(0, t))).collect();
    let of_token = |at: usize| {
        let one = &units[at];
        units[..=at].iter().map(move |other| in_lanes(one, other) as f32)
    };
    (0..n_tokens).into_par_iter().flat_map_iter(of_token).collect()
}

/// The dot product in eight lanes, which the compiler vectorizes: a page has millions of products.
fn in_lanes(a: &[f64], b: &[f64]) -> f64 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + dot(a_rest, b_rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, prompt, small_config};
    use tinderbox_model::config::PositionKind;

    #[test]
    fn strongest_sorts_by_weight_then_position() {
        let row = [0.25, 0.5, 0.25, 0.0];
        assert_eq!(strongest(&row, 2), [(1, 0.5), (0, 0.25)]);
        assert_eq!(strongest(&row, 9).len(), 3);
    }

    #[test]
    fn similarity_covers_every_layer() {
        let config = ModelConfig { position: PositionKind::Rope, ..small_config() };
        let selection = HeadSelection::new(None, None, &config).expect("the selection is within the model");
        let model = testing::model(&config);
        let it = PromptAttention::new(&model, &prompt("hello"), &selection, &PromptAttention::DETAILS);
        let similarity = it.expect("finite values").similarity();
        assert_eq!(similarity.len(), 3);
        let at = |i: usize, j: usize| i * (i + 1) / 2 + j;
        for stage in &similarity {
            assert_eq!(stage.len(), 15);
            assert!((0..5).all(|i| (stage[at(i, i)] - 1.0).abs() < 1e-6));
        }
        // The two l's of hello have the same embedding, but differ after the first layer.
        assert!((similarity[0][at(3, 2)] - 1.0).abs() < 1e-6);
        assert!(similarity[1][at(3, 2)] < 1.0 - 1e-6);
    }

    #[test]
    fn pairwise_cosines_match_angles() {
        let vectors = HostTensor { shape: vec![1, 4, 2], values: vec![3.0, 0.0, 2.0, 2.0, -1.0, 0.0, 0.0, 0.0] };
        let half = 0.5_f32.sqrt();
        let expected = [1.0, half, 1.0, -1.0, -half, 1.0, 0.0, 0.0, 0.0, 0.0];
        for (found, expected) in cosines(&vectors).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
