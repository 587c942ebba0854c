//! The token embedding as a map: the plane along which the vectors of frequent tokens vary most.

use burn::tensor::{Int, Tensor, TensorData};
use serde::Serialize;

use super::InspectError;
use super::capture::host_tensor;
use super::vectors::{cosine, dot, largest};
use tinderbox_model::Gpt;
use tinderbox_model::tokenizer::{Tokenizer, visible};

/// The number of similar tokens named for each token.
const N_NEAREST: usize = 5;
/// The most rounds of the power iteration for a component.
const MOST_ROUNDS: usize = 1000;

/// The token embedding in two dimensions.
///
/// The dimensions are the first two principal components of the vectors of these tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EmbeddingMap {
    /// The fraction of the variance along each dimension.
    pub explained: [f64; 2],
    /// The tokens, the most frequent first.
    pub tokens: Vec<MappedToken>,
}

/// A token in the map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappedToken {
    /// The id.
    pub id: u32,
    /// Its readable form.
    pub text: String,
    /// The number of its occurrences in the text.
    pub count: u64,
    /// Its place along the first component.
    pub x: f64,
    /// Its place along the second.
    pub y: f64,
    /// The most similar of the other tokens in the map, with the cosine of their vectors, in descending order.
    pub nearest: Vec<(String, f64)>,
}

impl EmbeddingMap {
    /// Maps the `n_tokens` most frequent tokens; `counts` has the number of occurrences of each id, `[V]`.
    ///
    /// # Errors
    /// If fewer than three tokens occur, or the device fails.
    pub fn new(model: &Gpt, tokenizer: &Tokenizer, counts: &[u64], n_tokens: usize) -> Result<Self, InspectError> {
        let mut ids: Vec<u32> = (0..).zip(counts).filter(|(_, n)| **n > 0).map(|(id, _)| id).collect();
        ids.sort_by_key(|id| std::cmp::Reverse(counts[*id as usize])); // stable
        ids.truncate(n_tokens);
        if ids.len() < 3 {
            return Err(InspectError::TooFewTokens(ids.len()));
        }
        let tensor: Vec<i32> = ids.iter().map(|id| i32::try_from(*id).expect("ids fit 31 bits")).collect();
        let tensor = Tensor::<2, Int>::from_data(TensorData::new(tensor, [1, ids.len()]), &model.device());
        let vectors = host_tensor(model.embed_tokens(tensor))?;
        let vectors: Vec<&[f32]> = (0..ids.len()).map(|at| vectors.vector(0, at)).collect();
        let (explained, places) = components(&vectors);
        let text = |at: usize| visible(&tokenizer.piece(ids[at]));
        let token = |at: usize| {
            #[allow(clippy::cast_possible_truncation, reason = "an order")]
            let cosines: Vec<f32> = (0..ids.len())
                .map(|other| if other == at { f32::NEG_INFINITY } else { cosine(vectors[at], vectors[other]) as f32 })
                .collect();
            let nearest = largest(&cosines, N_NEAREST.min(ids.len() - 1));
            MappedToken {
                id: ids[at],
                text: text(at),
                count: counts[ids[at] as usize],
                x: places[at][0],
                y: places[at][1],
                nearest: nearest.into_iter().map(|other| (text(other), f64::from(cosines[other]))).collect(),
            }
        };
        Ok(Self { explained, tokens: (0..ids.len()).map(token).collect() })
    }
}

/// The shares of variance of the first two principal components, and the coordinates of each vector along them. Power
/// iteration runs on the matrix of inner products, whose size does not depend on the length of the vectors.
fn components(vectors: &[&[f32]]) -> ([f64; 2], Vec<[f64; 2]>) {
    let n = vectors.len();
    let mean: Vec<f64> =
        (0..vectors[0].len()).map(|i| vectors.iter().map(|x| f64::from(x[i])).sum::<f64>() / n as f64).collect();
    let centred: Vec<Vec<f64>> =
        vectors.iter().map(|x| x.iter().zip(&mean).map(|(x, mean)| f64::from(*x) - mean).collect()).collect();
    let mut products: Vec<Vec<f64>> = centred.iter().map(|a| centred.iter().map(|b| dot(a, b)).collect()).collect();
    let variance: f64 = (0..n).map(|at| products[at][at]).sum();
    let (mut explained, mut places) = ([0.0; 2], vec![[0.0; 2]; n]);
    for axis in 0..2 {
        // A start that is orthogonal to no component by chance.
        let mut direction: Vec<f64> = (0..n).map(|at| 1.0 + ((at * 37 + axis * 11) % 101) as f64 / 101.0).collect();
        let mut length = 0.0;
        for _ in 0..MOST_ROUNDS {
            let next: Vec<f64> = products.iter().map(|row| dot(row, &direction)).collect();
            let before = length;
            length = dot(&next, &next).sqrt();
            if length <= 1e-12 * variance {
                direction.fill(0.0);
                length = 0.0;
                break;
            }
            direction = next.into_iter().map(|x| x / length).collect();
            if (length - before).abs() <= 1e-12 * length {
                break;
            }
        }
        // The sign is free: the farthest is on the positive side.
        let farthest = direction.iter().copied().fold(0.0, |far: f64, x| if x.abs() > far.abs() { x } else { far });
        let scale = length.sqrt().copysign(farthest);
        for (place, x) in places.iter_mut().zip(&direction) {
            place[axis] = scale * x;
        }
        explained[axis] = if variance > 0.0 { length / variance } else { 0.0 };
        for (row, a) in products.iter_mut().zip(&direction) {
            row.iter_mut().zip(&direction).for_each(|(product, b)| *product -= length * a * b);
        }
    }
    (explained, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, small_config};

    #[test]
    fn components_follow_largest_variance() {
        // Points of an ellipse: 3 long along (1, 1, 0), 1 along (1, -1, 0), with nothing along the third axis.
        let half = 0.5_f32.sqrt();
        let points: Vec<[f32; 3]> = [(3.0, 0.0), (-3.0, 0.0), (0.0, 1.0), (0.0, -1.0)]
            .map(|(a, b)| [half * (a + b), half * (a - b), 5.0])
            .to_vec();
        let (explained, places) = components(&points.iter().map(|point| &point[..]).collect::<Vec<_>>());
        assert!((explained[0] - 0.9).abs() < 1e-6 && (explained[1] - 0.1).abs() < 1e-6, "{explained:?}");
        let near = |a: [f64; 2], b: [f64; 2]| (a[0].abs() - b[0]).abs() < 1e-4 && (a[1].abs() - b[1]).abs() < 1e-4;
        assert!(near(places[0], [3.0, 0.0]) && near(places[3], [0.0, 1.0]), "{places:?}");
        assert!((places[0][0] + places[1][0]).abs() < 1e-4);
    }

    #[test]
    fn map_keeps_frequent_tokens_and_names_neighbours() {
        let (model, tokenizer) = (testing::model(&small_config()), Tokenizer::byte());
        let mut counts = vec![0; 256];
        b"to be or not to be".iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let map = EmbeddingMap::new(&model, &tokenizer, &counts, 4).expect("three tokens occur");
        assert_eq!(map.tokens.iter().map(|token| token.count).collect::<Vec<_>>(), [5, 4, 3, 2]);
        for token in &map.tokens {
            assert_eq!(token.nearest.len(), 3);
            assert!(token.nearest.iter().all(|(name, _)| *name != token.text), "{token:?}");
            assert!(token.nearest.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        }
        assert!(EmbeddingMap::new(&model, &tokenizer, &vec![0; 256], 4).is_err());
    }
}
