//! Muon: a step of the same size in every direction of a matrix.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::gradients::flatten;
use super::{State, StateError, put, take};
use crate::config::{NewtonSchulz, OptimizerConfig};
use tinderbox_kernels::{self as kernels, MatmulPrecision};

/// Prefixes of its running means' names in a checkpoint.
const KEY: &str = "momentum.";
const NEURON_KEY: &str = "neuron_moment.";

pub(crate) const N_ITERATIONS: usize = 5;

/// Odd polynomials `a x + b x^3 + c x^5`, one after the other, for singular values of at most 1.
#[derive(Clone, Copy, Debug)]
struct Polynomials {
    coefficients: [[f64; 3]; N_ITERATIONS],
    /// By how much a matrix is made smaller than its norm says, for numbers that rounding makes larger.
    safety: f64,
}

impl Polynomials {
    fn of(kind: NewtonSchulz) -> Self {
        match kind {
            NewtonSchulz::Jordan => Self { coefficients: [JORDAN; N_ITERATIONS], safety: 1.0 },
            NewtonSchulz::PolarExpress => {
                let s = POLAR_EXPRESS_SAFETY;
                Self { coefficients: POLAR_EXPRESS.map(|[a, b, c]| [a / s, b / s.powi(3), c / s.powi(5)]), safety: s }
            }
        }
    }
}

/// Steep at 0, so that small singular values grow fast, then between 0.7 and 1.2 instead of converging to 1.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, section "Tuning the coefficients".
const JORDAN: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Each is the closest to 1 over what those before make of singular values from a thousandth to 1.
///
/// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
/// Algorithm", algorithm 1, the first five.
const POLAR_EXPRESS: [[f64; 3]; N_ITERATIONS] = [
    [8.287_212_018_145_63, -23.595_886_519_098_837, 17.300_387_312_530_933],
    [4.107_059_111_542_203, -2.947_849_917_937_910_6, 0.544_843_108_292_660_1],
    [3.948_690_853_482_294_6, -2.908_902_115_962_949, 0.551_819_139_437_013_7],
    [3.318_419_657_370_601_5, -2.488_488_024_314_874, 0.510_048_940_123_72],
    [2.300_652_019_954_817, -1.668_903_984_574_749_3, 0.418_807_311_952_567_3],
];

const POLAR_EXPRESS_SAFETY: f64 = 1.01;

const EPSILON: f64 = 1e-7;

/// Added to what the steps of neurons are divided by.
const NEURON_EPSILON: f64 = 1e-10;

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
    polynomials: Polynomials,
    /// The decay rate of the running means of neurons; 0: there are none.
    beta2: f64,
    precision: MatmulPrecision,
    /// The matrices to move, each with the widths of the matrices side by side in it.
    matrices: BTreeMap<String, Vec<usize>>,
    /// Running means of their gradients, flattened.
    pub(super) means: BTreeMap<String, Tensor<1>>,
    /// Running means of the squares of their orthogonal steps, a number for each column.
    pub(super) neurons: BTreeMap<String, Tensor<1>>,
}

impl Muon {
    pub(super) fn new(
        config: &OptimizerConfig,
        matrices: BTreeMap<String, Vec<usize>>,
        precision: MatmulPrecision,
    ) -> Self {
        let OptimizerConfig { muon_learning_rate: learning_rate, muon_momentum: momentum, weight_decay, .. } = *config;
        let (polynomials, beta2) = (Polynomials::of(config.newton_schulz), config.normuon_beta2);
        let (means, neurons) = (BTreeMap::new(), BTreeMap::new());
        Self { learning_rate, momentum, weight_decay, polynomials, beta2, precision, matrices, means, neurons }
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
        let direction = self.direction(&name, ahead); // [m n]
        self.means.insert(name, mean);
        let learning_rate = self.learning_rate * share;
        weights * (1.0 - learning_rate * self.weight_decay) - direction * learning_rate
    }

    /// The orthogonal step of the matrices side by side in `x`.
    ///
    /// Weights are `[in, out]`. A matrix with more outputs than inputs takes a longer step, so that each of its outputs
    /// changes as much as with any other shape.
    ///
    /// # Shapes
    /// `x: [m n]`, row by row, `n` being the sum of the matrices' widths -> `[m n]`
    fn direction(&mut self, name: &str, x: Tensor<1>) -> Tensor<1> {
        let widths = &self.matrices[name];
        let columns = widths.iter().sum::<usize>();
        let rows = x.dims()[0] / columns;
        let parts = x.reshape([rows, columns]).split_with_sizes(widths.clone(), 1); // [m, n] -> [m, width] each
        let scale = |part: &Tensor<2>| (part.dims()[1] as f64 / rows as f64).max(1.0).sqrt();
        let orthogonal = parts.into_iter().map(|part| orthogonalize(part, self.polynomials, self.precision));
        if self.beta2 == 0.0 {
            let scaled = orthogonal.map(|part| {
                let scale = scale(&part);
                part * scale
            });
            return flatten(Tensor::cat(scaled.collect(), 1));
        }
        let orthogonal: Vec<_> = orthogonal.collect();
        let squares: Vec<_> = orthogonal.iter().cloned().map(kernels::mean_squares_of_columns).collect();
        let news = Tensor::cat(squares.clone(), 0) * (1.0 - self.beta2); // [n]
        let neurons = match self.neurons.remove(name) {
            Some(old) => old * self.beta2 + news,
            None => news,
        };
        let of_parts = neurons.clone().split_with_sizes(widths.clone(), 0); // [width] each
        let scaled = orthogonal.into_iter().zip(squares).zip(of_parts).map(|((part, squares), neurons)| {
            let scale = scale(&part);
            part * (evening(squares, neurons) * scale).unsqueeze() // [m, width]
        });
        let direction = flatten(Tensor::cat(scaled.collect(), 1));
        self.neurons.insert(name.to_owned(), neurons);
        direction
    }

    /// Adds the running means to `state`, as `momentum.NAME` and `neuron_moment.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, mean) in &self.means {
            put(state, format!("{KEY}{name}"), mean);
        }
        for (name, neurons) in &self.neurons {
            put(state, format!("{NEURON_KEY}{name}"), neurons);
        }
    }

    /// Moves the running means of a matrix of `n` numbers out of `state`.
    pub(super) fn load(&mut self, name: &str, n: usize, state: &mut State, device: &Device) -> Result<(), StateError> {
        let mean = take(state, format!("{KEY}{name}"), n, device)?;
        self.means.insert(name.to_owned(), mean);
        if self.beta2 > 0.0 {
            let n_neurons = self.matrices[name].iter().sum();
            let neurons = take(state, format!("{NEURON_KEY}{name}"), n_neurons, device)?;
            self.neurons.insert(name.to_owned(), neurons);
        }
        Ok(())
    }
}

/// The factors of the columns of an orthogonal step, whose mean squares are `squares`: one over the root of what these
/// were in the past, and so that the whole step keeps its norm.
///
/// Source: Li et al. 2025, "`NorMuon`: Making Muon more efficient and scalable", algorithm 1, and `normuon_update` in
/// <https://github.com/zichongli5/NorMuon>, which keeps the norm.
///
/// # Shapes
/// `squares, neurons: [n]` -> `[n]`
fn evening(squares: Tensor<1>, neurons: Tensor<1>) -> Tensor<1> {
    let factors = (neurons.sqrt() + NEURON_EPSILON).recip();
    let norm = |squares: Tensor<1>| squares.sum().sqrt(); // over the root of the number of rows
    let after = norm(squares.clone() * factors.clone() * factors.clone());
    let kept = norm(squares) / (after + NEURON_EPSILON);
    factors * kept
}

/// Brings all singular values of `matrix` near 1: from `U S V^T` to about `U V^T`. Zero singular values stay zero;
/// those above a few thousandths of the Frobenius norm end between 0.68 and 1.21, by Polar Express between 0.87 and 1.13.
///
/// Source: as above, `zeropower_via_newtonschulz5`, where it is in bf16.
///
/// # Shapes
/// `[m, n]` -> `[m, n]`
fn orthogonalize(matrix: Tensor<2>, polynomials: Polynomials, precision: MatmulPrecision) -> Tensor<2> {
    let [m, n] = matrix.dims();
    let norm = kernels::sum_of_squares(flatten(matrix.clone())).sqrt() * polynomials.safety; // [1]
    // The products below are square in the number of rows: the smaller side.
    let is_tall = m > n;
    let x = if is_tall { matrix.transpose() } else { matrix };
    // At most 1 as the largest singular value, where the polynomials contract.
    let x = x / norm.clamp_min(EPSILON).unsqueeze();
    let x = kernels::newton_schulz(x, &polynomials.coefficients, precision);
    if is_tall { x.transpose() } else { x }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn orthogonalize(matrix: Tensor<2>, kind: NewtonSchulz) -> Tensor<2> {
        super::orthogonalize(matrix, Polynomials::of(kind), MatmulPrecision::F32)
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
    fn iterated(x: f64, kind: NewtonSchulz) -> f64 {
        let Polynomials { coefficients, safety } = Polynomials::of(kind);
        coefficients.iter().fold(x / safety, |x, [a, b, c]| a * x + b * x.powi(3) + c * x.powi(5))
    }

    #[test]
    fn singular_values_follow_the_polynomial_into_its_band_and_vectors_stay() {
        let kinds = [(NewtonSchulz::Jordan, 0.68..1.21), (NewtonSchulz::PolarExpress, 0.87..1.13)];
        for (n, (kind, band)) in [5, 6, 9].into_iter().flat_map(|n| kinds.clone().map(|kind| (n, kind))) {
            let s = [3.0, 1.0, 0.3, 0.05, 0.02];
            let norm = s.iter().map(|x| x * x).sum::<f64>().sqrt();
            let expected: Vec<f64> = s.iter().map(|x| iterated(x / norm, kind)).collect();
            assert!(expected.iter().all(|x| band.contains(x)), "{expected:?}");
            let got = host(orthogonalize(with_singular_values(&s, n), kind));
            for (got, expected) in got.iter().zip(host(with_singular_values(&expected, n))) {
                assert!((got - expected).abs() < 1e-5, "{got}, not {expected}, of {n}");
            }
        }
    }

    #[test]
    fn size_does_not_matter_and_a_direction_of_zero_stays() {
        let s = [2.0, 0.7, 0.0];
        let orthogonalize = |matrix| orthogonalize(matrix, NewtonSchulz::Jordan);
        let one = host(orthogonalize(with_singular_values(&s, 4)));
        let tiny = host(orthogonalize(with_singular_values(&s, 4) * (1.0 / 4096.0)));
        for (one, tiny) in one.iter().zip(tiny) {
            assert!((one - tiny).abs() < 1e-5, "{one} {tiny}");
        }
        let norm = 4.49_f64.sqrt();
        let kept = [2.0, 0.7, 0.0].map(|x| iterated(x / norm, NewtonSchulz::Jordan));
        for (one, kept) in one.iter().zip(host(with_singular_values(&kept, 4))) {
            assert!((one - kept).abs() < 1e-4, "{one} {kept}");
        }
    }

    #[test]
    fn a_matrix_of_zeros_stays_one() {
        for kind in [NewtonSchulz::Jordan, NewtonSchulz::PolarExpress] {
            let zeros = orthogonalize(Tensor::zeros([3, 5], &Device::flex()), kind);
            assert_eq!(host(zeros), vec![0.0; 15]);
        }
    }
}
