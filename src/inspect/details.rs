//! What the attention weights of one prompt are made of, and what becomes of its tokens' vectors.

use super::{AttentionMaps, InspectError, Prompt, Selection, capture};
use crate::config::ModelConfig;
use crate::model::Gpt;
use crate::model::parameters::HostTensor;
use crate::model::probe::Point;

/// Attention weights with the queries and keys that they come from, and how alike the tokens' vectors are: all
/// that one needs to follow a weight from its beginning, for every token at once. [`super::Explanation`] goes
/// further, for a single one.
#[derive(Clone, Debug, PartialEq)]
pub struct Details {
    /// What was read, T tokens.
    pub prompt: Prompt,
    /// The shape of the model.
    pub config: ModelConfig,
    /// Which layers and heads are meant.
    pub selection: Selection,
    /// Who looks at whom, in all layers and heads.
    pub maps: AttentionMaps,
    /// The queries of each layer of the selection as they are compared: normed and rotated where the model does
    /// that, `[1, H, T, D]`.
    pub queries: Vec<HostTensor>,
    /// The keys, likewise: `[1, Hkv, T, D]`.
    pub keys: Vec<HostTensor>,
    /// How alike the vectors of any two tokens are in the residual stream: first as embeddings, then after each
    /// layer of the model, selected or not. The cosine of the angle of token i and token j, j at most i, row
    /// by row: `[L + 1][T (T + 1) / 2]`.
    pub similarity: Vec<Vec<f32>>,
}

impl Details {
    /// Reads a prompt, and keeps all of this.
    ///
    /// # Errors
    /// As [`capture()`].
    pub fn new(model: &Gpt, prompt: &Prompt, selection: &Selection) -> Result<Self, InspectError> {
        let points =
            [Point::Embedding, Point::Queries, Point::Keys, Point::Weights, Point::Residual];
        let recording = capture(model, prompt, &points)?;
        let config = model.config().clone();
        let of_layers = |point| {
            let layers = selection.layers.clone();
            layers.map(|layer| recording.get(layer, point).clone()).collect()
        };
        let after = (0..config.n_layers).map(|layer| recording.get(layer, Point::Residual));
        let stages = std::iter::once(recording.get(None, Point::Embedding)).chain(after);
        Ok(Self {
            prompt: prompt.clone(),
            selection: selection.clone(),
            maps: recording.attention(),
            queries: of_layers(Point::Queries),
            keys: of_layers(Point::Keys),
            similarity: stages.map(cosines).collect(),
            config,
        })
    }

    /// How many numbers there are to show of a prompt with `n_tokens`.
    #[must_use]
    pub fn n_numbers(config: &ModelConfig, selection: &Selection, n_tokens: usize) -> usize {
        let n_pairs = n_tokens * (n_tokens + 1) / 2;
        let n_heads = selection.layers.len() * selection.heads.len();
        let n_kv_heads = selection.layers.len() * selection.heads.len().min(config.n_kv_heads);
        let head_dim = config.d_model / config.n_heads;
        (n_heads + config.n_layers + 1) * n_pairs + (n_heads + n_kv_heads) * n_tokens * head_dim
    }

    /// D, the length of a query and of a key.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.config.d_model / self.config.n_heads
    }

    /// The head of keys and values that `head` reads, counted from 0.
    #[must_use]
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.config.n_heads / self.config.n_kv_heads)
    }
}

/// The cosines of any two rows of `[1, T, C]`, the second not after the first; 0 where one has no length.
#[allow(
    clippy::cast_possible_truncation,
    reason = "seven digits of a cosine are more than anyone reads"
)]
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
    use crate::tokenizer::Tokenizer;

    fn details(place: [Option<usize>; 2]) -> Details {
        let config = ModelConfig {
            context_length: 8,
            d_model: 16,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            d_ff: 16,
            position: PositionKind::Rope,
            qk_norm: true,
            ..ModelConfig::default()
        };
        let model = Gpt::new(&config, 256, 1, &Device::flex());
        let prompt = Prompt::read("hello", &Tokenizer::byte(), 8).expect("bytes");
        let selection = Selection::new(place[0], place[1], 2, 4).expect("is there");
        Details::new(&model, &prompt, &selection).expect("captured")
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
        let vectors = HostTensor {
            shape: vec![1, 4, 2],
            values: vec![3.0, 0.0, 2.0, 2.0, -1.0, 0.0, 0.0, 0.0],
        };
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
        let of = |tensors: &[HostTensor]| -> usize {
            tensors.iter().map(|tensor| tensor.values.len()).sum()
        };
        assert_eq!(
            Details::n_numbers(&it.config, &it.selection, 5),
            triangles + of(&it.queries) + of(&it.keys)
        );
    }
}
