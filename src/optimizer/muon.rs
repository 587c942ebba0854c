//! Muon: a step of the same size in every direction of a matrix.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::gradients::flatten;
use super::{State, StateError, put, take};
use crate::config::OptimizerConfig;
use tinderbox_kernels::{self as kernels, MatmulPrecision};

/// Prefix of its running means' names in a checkpoint.
const KEY: &str = "momentum.";

/// The odd polynomial `a x + b x^3 + c x^5`: steep at 0, so that small singular values grow fast, then between 0.7
/// and 1.2 instead of converging to 1.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, section "Tuning the coefficients".
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

pub(crate) const N_ITERATIONS: usize = 5;

const EPSILON: f64 = 1e-7;

/// Whether a tensor of a checkpoint is one of Muon's.
pub(super) fn is_key(key: &str) -> bool {
    key.starts_with(KEY)
}

/// The rule with its running mean per matrix.
///
/// The gradient of a matrix is close to low rank: a few directions are far larger than all others. Muon makes the
/// step (the running mean with Nesterov's look ahead) orthogonal, and so moves the rare directions as far as the
/// frequent ones. Decay is decoupled, as in `AdamW`.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, and <https://github.com/KellerJordan/Muon>, `muon_update`.
#[derive(Clone, Debug)]
pub(super) struct Muon {
    learning_rate: f64,
    momentum: f64,
    weight_decay: f64,
    precision: MatmulPrecision,
    /// The matrices to move, each with the widths of the matrices side by side in it.
    matrices: BTreeMap<String, Vec<usize>>,
    /// Running means of their gradients, flattened.
    pub(super) means: BTreeMap<String, Tensor<1>>,
}

impl Muon {
    pub(super) fn new(
        config: &OptimizerConfig,
        matrices: BTreeMap<String, Vec<usize>>,
        precision: MatmulPrecision,
    ) -> Self {
        let OptimizerConfig { muon_learning_rate: learning_rate, muon_momentum: momentum, weight_decay, .. } = *config;
        Self { learning_rate, momentum, weight_decay, precision, matrices, means: BTreeMap::new() }
    }

    pub(super) fn moves(&self, name: &str) -> bool {
        self.matrices.contains_key(name)
    }

    /// The new weights of a matrix, from its gradient and a factor for it, at `share` of the peak learning rate.
    ///
    /// # Shapes
    /// `weights, gradient: [m n]`, row by row, factor `[1]` -> `[m n]`
    pub(super) fn update(
        &mut self,
        name: String,
        weights: Tensor<1>,
        (gradient, factor): (Tensor<1>, Option<Tensor<1>>),
        share: f64,
    ) -> Tensor<1> {
        let gradient = match factor {
            Some(factor) => gradient * factor,
            None => gradient,
        };
        let keep = self.momentum;
        let new = gradient * (1.0 - keep);
        let mean = match self.means.remove(&name) {
            Some(old) => old * keep + new.clone(),
            None => new.clone(),
        };
        let ahead = mean.clone() * keep + new; // the mean if this gradient came once more
        let direction = direction(ahead, &self.matrices[&name], self.precision); // [m n]
        self.means.insert(name, mean);
        let learning_rate = self.learning_rate * share;
        weights * (1.0 - learning_rate * self.weight_decay) - direction * learning_rate
    }

    /// Adds the running means to `state`, as `momentum.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, mean) in &self.means {
            put(state, format!("{KEY}{name}"), mean);
        }
    }

    /// Moves the running mean of a matrix of `n` numbers out of `state`.
    pub(super) fn load(&mut self, name: &str, n: usize, state: &mut State, device: &Device) -> Result<(), StateError> {
        let mean = take(state, format!("{KEY}{name}"), n, device)?;
        self.means.insert(name.to_owned(), mean);
        Ok(())
    }
}

/// The orthogonal step of the matrices side by side in `x`, which have `widths` columns each.
///
/// Weights are `[in, out]`. A matrix with more outputs than inputs takes a longer step, so that each of its outputs
/// changes as much as with any other shape.
///
/// # Shapes
/// `x: [m n]`, row by row, `n` being the sum of `widths` -> `[m n]`
fn direction(x: Tensor<1>, widths: &[usize], precision: MatmulPrecision) -> Tensor<1> {
    let columns = widths.iter().sum::<usize>();
    let rows = x.dims()[0] / columns;
    let parts = x.reshape([rows, columns]).split_with_sizes(widths.to_vec(), 1); // [m, n] -> [m, width] each
    let scaled = |part: Tensor<2>| {
        let [_, width] = part.dims();
        let scale = (width as f64 / rows as f64).max(1.0).sqrt();
        orthogonalize(part, precision) * scale
    };
    flatten(Tensor::cat(parts.into_iter().map(scaled).collect(), 1))
}

/// Brings all singular values of `matrix` near 1: from `U S V^T` to about `U V^T`. Zero singular values stay zero;
/// those above a few thousandths of the Frobenius norm end between 0.68 and 1.21.
///
/// Source: as above, `zeropower_via_newtonschulz5`, where it is in bf16.
///
/// # Shapes
/// `[m, n]` -> `[m, n]`
fn orthogonalize(matrix: Tensor<2>, precision: MatmulPrecision) -> Tensor<2> {
    let [m, n] = matrix.dims();
    let norm = kernels::sum_of_squares(flatten(matrix.clone())).sqrt(); // [1]
    // The products below are square in the number of rows: the smaller side.
    let is_tall = m > n;
    let x = if is_tall { matrix.transpose() } else { matrix };
    // At most 1 as the largest singular value, where the polynomial contracts.
    let x = x / norm.clamp_min(EPSILON).unsqueeze();
    let x = kernels::newton_schulz(x, COEFFICIENTS, N_ITERATIONS, precision);
    if is_tall { x.transpose() } else { x }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn orthogonalize(matrix: Tensor<2>) -> Tensor<2> {
        super::orthogonalize(matrix, MatmulPrecision::F32)
    }

    fn host(x: Tensor<2>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("f32")
    }

    /// An orthogonal matrix: the mirror at the plane across `(1, 2, .., n) + shift`.
    fn mirror(n: usize, shift: f64) -> Vec<Vec<f64>> {
        let v: Vec<f64> = (0..n).map(|i| i as f64 + shift).collect();
        let square: f64 = v.iter().map(|x| x * x).sum();
        let entry = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j] / square;
        (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect()
    }

    /// `U diag(s) V^T`, `[m, n]` with at least as many columns as rows.
    fn with_singular_values(s: &[f64], n: usize) -> Tensor<2> {
        let (u, v) = (mirror(s.len(), 1.0), mirror(n, -0.5));
        let entry = |i: usize, j: usize| -> f64 { (0..s.len()).map(|k| u[i][k] * s[k] * v[j][k]).sum() };
        let values: Vec<f64> = (0..s.len() * n).map(|at| entry(at / n, at % n)).collect();
        Tensor::from_data(TensorData::new(values, [s.len(), n]).convert::<f32>(), &Device::flex())
    }

    /// A singular value after the iterations.
    fn iterated(x: f64) -> f64 {
        let [a, b, c] = COEFFICIENTS;
        (0..N_ITERATIONS).fold(x, |x, _| a * x + b * x.powi(3) + c * x.powi(5))
    }

    #[test]
    fn singular_values_follow_the_polynomial_into_its_band_and_vectors_stay() {
        for n in [5, 6, 9] {
            let s = [3.0, 1.0, 0.3, 0.05, 0.02];
            let norm = s.iter().map(|x| x * x).sum::<f64>().sqrt();
            let expected: Vec<f64> = s.iter().map(|x| iterated(x / norm)).collect();
            assert!(expected.iter().all(|x| (0.68..1.21).contains(x)), "{expected:?}");
            let got = host(orthogonalize(with_singular_values(&s, n)));
            for (got, expected) in got.iter().zip(host(with_singular_values(&expected, n))) {
                assert!((got - expected).abs() < 1e-5, "{got}, not {expected}, of {n}");
            }
        }
    }

    #[test]
    fn size_does_not_matter_and_a_direction_of_zero_stays() {
        let s = [2.0, 0.7, 0.0];
        let one = host(orthogonalize(with_singular_values(&s, 4)));
        let tiny = host(orthogonalize(with_singular_values(&s, 4) * (1.0 / 4096.0)));
        for (one, tiny) in one.iter().zip(tiny) {
            assert!((one - tiny).abs() < 1e-5, "{one} {tiny}");
        }
        let norm = 4.49_f64.sqrt();
        let kept = [iterated(2.0 / norm), iterated(0.7 / norm), 0.0];
        for (one, kept) in one.iter().zip(host(with_singular_values(&kept, 4))) {
            assert!((one - kept).abs() < 1e-4, "{one} {kept}");
        }
    }

    #[test]
    fn a_matrix_of_zeros_stays_one() {
        let zeros = orthogonalize(Tensor::zeros([3, 5], &Device::flex()));
        assert_eq!(host(zeros), vec![0.0; 15]);
    }
}
