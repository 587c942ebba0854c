//! Attention weights on the host, a selection of heads, and the queries and keys behind them.

use std::ops::Range;

use super::{InspectError, Prompt, capture};
use crate::config::ModelConfig;
use crate::model::Gpt;
use crate::model::parameters::HostTensor;
use crate::model::probe::Point;

/// The attention weights of all heads: `[L, H, T, T]`, each row summing to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionMaps {
    /// L, the number of layers.
    pub n_layers: usize,
    /// H, the number of heads of each layer.
    pub n_heads: usize,
    /// T, the number of tokens.
    pub n_tokens: usize,
    values: Vec<f32>,
}

impl AttentionMaps {
    /// The maps with these weights, row-major.
    ///
    /// # Panics
    /// If there are not `n_layers * n_heads * n_tokens * n_tokens` of them.
    #[must_use]
    pub fn new(n_layers: usize, n_heads: usize, n_tokens: usize, values: Vec<f32>) -> Self {
        assert_eq!(values.len(), n_layers * n_heads * n_tokens * n_tokens);
        Self { n_layers, n_heads, n_tokens, values }
    }

    /// One head's weights, row by row: `[T, T]`, queries then keys.
    ///
    /// # Panics
    /// If there is no such layer or head.
    #[must_use]
    pub fn map(&self, layer: usize, head: usize) -> &[f32] {
        assert!(layer < self.n_layers && head < self.n_heads);
        let size = self.n_tokens * self.n_tokens;
        let start = (layer * self.n_heads + head) * size;
        &self.values[start..start + size]
    }

    /// How strongly the token at `query` attends to each token, in one head: `[T]`.
    ///
    /// # Panics
    /// If there is no such layer, head or token.
    #[must_use]
    pub fn row(&self, layer: usize, head: usize, query: usize) -> &[f32] {
        let start = query * self.n_tokens;
        &self.map(layer, head)[start..start + self.n_tokens]
    }
}

/// The largest of `weights` with their positions, at most `n` of those above 0, largest first; among equals, the
/// earlier.
#[must_use]
pub fn strongest(weights: &[f32], n: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = weights.iter().copied().enumerate().collect();
    order.retain(|(_, weight)| *weight > 0.0);
    order.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable
    order.truncate(n);
    order
}

/// The heads to be shown: one or all of one layer or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadSelection {
    /// The layers, counted from 0.
    pub layers: Range<usize>,
    /// The heads of each, counted from 0.
    pub heads: Range<usize>,
}

impl HeadSelection {
    /// One layer or all, one head or all, of a model with as many as given.
    ///
    /// # Errors
    /// If there is no such layer or head.
    pub fn new(
        layer: Option<usize>,
        head: Option<usize>,
        n_layers: usize,
        n_heads: usize,
    ) -> Result<Self, InspectError> {
        if let Some(layer) = layer {
            InspectError::check_layer(layer, n_layers)?;
        }
        if let Some(head) = head {
            InspectError::check_head(head, n_heads)?;
        }
        let one_or_all = |one: Option<usize>, n| one.map_or(0..n, |index| index..index + 1);
        Ok(Self { layers: one_or_all(layer, n_layers), heads: one_or_all(head, n_heads) })
    }

    /// The layer and head if there is only one.
    #[must_use]
    pub fn single(&self) -> Option<(usize, usize)> {
        (self.layers.len() == 1 && self.heads.len() == 1).then_some((self.layers.start, self.heads.start))
    }
}

/// The attention of one prompt, to be drawn in some form.
#[derive(Clone, Copy, Debug)]
pub struct AttentionView<'a> {
    /// The tokens.
    pub prompt: &'a Prompt,
    /// The weights.
    pub maps: &'a AttentionMaps,
    /// The heads to be shown.
    pub selection: &'a HeadSelection,
}

/// Attention weights with the queries and keys that they come from, and how similar the tokens' vectors are.
/// [`super::Explanation`] goes further, for a single token.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionDetails {
    /// The prompt, T tokens.
    pub prompt: Prompt,
    /// The config of the model.
    pub config: ModelConfig,
    /// The layers and heads to be shown.
    pub selection: HeadSelection,
    /// The weights of all layers and heads.
    pub maps: AttentionMaps,
    /// The queries of each selected layer after norm and rotation, `[1, H, T, D]`.
    pub queries: Vec<HostTensor>,
    /// The keys of each selected layer, `[1, Hkv, T, D]`.
    pub keys: Vec<HostTensor>,
    /// The cosine similarity of tokens i and j, j at most i, in the residual stream: of the embeddings, then after each
    /// layer of the model, selected or not. Row by row, `[L + 1][T (T + 1) / 2]`.
    pub similarity: Vec<Vec<f32>>,
}

impl AttentionDetails {
    /// Reads a prompt.
    ///
    /// # Errors
    /// As [`capture()`].
    pub fn new(model: &Gpt, prompt: &Prompt, selection: &HeadSelection) -> Result<Self, InspectError> {
        let points = [Point::Embedding, Point::Queries, Point::Keys, Point::Weights, Point::Residual];
        let recording = capture(model, prompt, &points)?;
        let config = model.config().clone();
        let of_layers = |point| {
            let layers = selection.layers.clone();
            layers.map(|layer| recording.get(layer, point).clone()).collect()
        };
        let stages = std::iter::once(None).chain((0..config.n_layers).map(Some));
        Ok(Self {
            prompt: prompt.clone(),
            selection: selection.clone(),
            maps: recording.attention(),
            queries: of_layers(Point::Queries),
            keys: of_layers(Point::Keys),
            similarity: stages.map(|stage| cosines(recording.residual(stage))).collect(),
            config,
        })
    }

    /// How many numbers the details of a prompt with `n_tokens` have.
    #[must_use]
    pub fn n_numbers(config: &ModelConfig, selection: &HeadSelection, n_tokens: usize) -> usize {
        let n_pairs = n_tokens * (n_tokens + 1) / 2;
        let n_heads = selection.layers.len() * selection.heads.len();
        let n_kv_heads = selection.layers.len() * selection.heads.len().min(config.n_kv_heads);
        (n_heads + config.n_layers + 1) * n_pairs + (n_heads + n_kv_heads) * n_tokens * config.head_dim()
    }

    /// D, the length of a query and of a key.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.config.head_dim()
    }

    /// The key/value head that `head` reads, counted from 0.
    #[must_use]
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.config.n_heads / self.config.n_kv_heads)
    }
}

/// The cosines of any two rows of `[1, T, C]`, the second not after the first; 0 where one has no length.
#[allow(clippy::cast_possible_truncation, reason = "seven digits of a cosine are more than anyone reads")]
fn cosines(vectors: &HostTensor) -> Vec<f32> {
    let n_tokens = vectors.shape[1];
    let unit = |row: &[f32]| -> Vec<f64> {
        let squares = row.iter().map(|x| f64::from(*x) * f64::from(*x));
        let length = squares.sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        row.iter().map(|x| f64::from(*x) * scale).collect()
    };
    let units: Vec<Vec<f64>> = (0..n_tokens).map(|t| unit(vectors.vector(0, t))).collect();
    let mut cosines = Vec::with_capacity(n_tokens * (n_tokens + 1) / 2);
    for (at, one) in units.iter().enumerate() {
        for other in &units[..=at] {
            let products = one.iter().zip(other).map(|(a, b)| a * b);
            cosines.push(products.sum::<f64>() as f32);
        }
    }
    cosines
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::PositionKind;
    use crate::inspect::tests::{prompt, small_config};

    #[test]
    fn a_map_is_found_by_layer_and_head() {
        let maps = AttentionMaps::new(2, 2, 2, (0..16_u8).map(f32::from).collect());
        assert_eq!(maps.map(1, 0), [8.0, 9.0, 10.0, 11.0]);
        assert_eq!(maps.row(0, 1, 1), [6.0, 7.0]);
    }

    #[test]
    fn the_strongest_come_first_and_of_equals_the_earlier() {
        let row = [0.25, 0.5, 0.25, 0.0];
        assert_eq!(strongest(&row, 2), [(1, 0.5), (0, 0.25)]);
        assert_eq!(strongest(&row, 9).len(), 3);
    }

    #[test]
    fn a_selection_is_within_the_model() {
        let select = |layer, head| HeadSelection::new(layer, head, 2, 4);
        assert_eq!(select(None, None).expect("all").layers, 0..2);
        assert_eq!(select(Some(1), Some(3)).expect("last").single(), Some((1, 3)));
        assert_eq!(select(Some(1), None).expect("a layer").single(), None);
    }

    fn details(place: [Option<usize>; 2]) -> AttentionDetails {
        let config = ModelConfig { position: PositionKind::Rope, qk_norm: true, ..small_config() };
        let model = Gpt::new(&config, 256, 1, &Device::flex());
        let selection = HeadSelection::new(place[0], place[1], 2, 4).expect("is there");
        AttentionDetails::new(&model, &prompt("hello"), &selection).expect("captured")
    }

    #[test]
    fn weights_follow_from_queries_and_keys() {
        let it = details([Some(1), None]);
        assert_eq!((it.queries.len(), it.keys.len(), it.head_dim()), (1, 1, 4));
        for head in 0..4 {
            for query in 0..5 {
                let q = it.queries[0].vector(head, query);
                let score = |key| {
                    let k = it.keys[0].vector(it.kv_head(head), key);
                    let product: f32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    (product / 2.0).exp()
                };
                let scores: Vec<f32> = (0..=query).map(score).collect();
                let sum: f32 = scores.iter().sum();
                let row = it.maps.row(1, head, query);
                for (weight, score) in row.iter().zip(&scores) {
                    assert!((weight - score / sum).abs() < 1e-5, "head {head}");
                }
            }
        }
    }

    #[test]
    fn every_layer_has_its_similarities() {
        let it = details([Some(0), Some(1)]);
        assert_eq!(it.similarity.len(), 3);
        let at = |i: usize, j: usize| i * (i + 1) / 2 + j;
        for stage in &it.similarity {
            assert_eq!(stage.len(), 15);
            for i in 0..5 {
                assert!((stage[at(i, i)] - 1.0).abs() < 1e-6);
            }
        }
        // The two l's of hello: before anything is read they are one vector, afterwards no longer.
        assert!((it.similarity[0][at(3, 2)] - 1.0).abs() < 1e-6);
        assert!(it.similarity[1][at(3, 2)] < 1.0 - 1e-6);
    }

    #[test]
    fn cosines_are_of_angles() {
        let vectors = HostTensor { shape: vec![1, 4, 2], values: vec![3.0, 0.0, 2.0, 2.0, -1.0, 0.0, 0.0, 0.0] };
        let half = 0.5_f32.sqrt();
        let expected = [1.0, half, 1.0, -1.0, -half, 1.0, 0.0, 0.0, 0.0, 0.0];
        for (found, expected) in cosines(&vectors).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn numbers_are_counted_before_they_are_there() {
        let it = details([None, None]);
        let triangles = (2 * 4 + 3) * 15;
        let of = |tensors: &[HostTensor]| -> usize { tensors.iter().map(|tensor| tensor.values.len()).sum() };
        assert_eq!(
            AttentionDetails::n_numbers(&it.config, &it.selection, 5),
            triangles + of(&it.queries) + of(&it.keys)
        );
    }
}
