//! Muon: momentum steps for matrices, orthogonalized by Newton-Schulz iterations.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::gradients::{Gradient, flatten};
use super::{State, StateError, put, take};
use crate::config::{NewtonSchulz, OptimizerConfig};
use tinderbox_kernels::{self as kernels, MatmulPrecision, Part, Polynomials};

/// The prefixes for the names of Muon's running means in a checkpoint.
const KEY: &str = "momentum.";
const NEURON_KEY: &str = "neuron_moment.";

/// The polynomials of the iterations, for singular values of at most 1, and the factor by which the norm is enlarged
/// before the matrix is divided by it.
fn polynomials(kind: NewtonSchulz, n_iterations: usize) -> (Vec<[f64; 3]>, f64) {
    match kind {
        NewtonSchulz::Jordan => (vec![JORDAN; n_iterations], 1.0),
        NewtonSchulz::PolarExpress => {
            let s = POLAR_EXPRESS_SAFETY;
            let safe = POLAR_EXPRESS.map(|[a, b, c]| [a / s, b / s.powi(3), c / s.powi(5)]);
            (safe.into_iter().chain(std::iter::repeat(LAST)).take(n_iterations).collect(), s)
        }
    }
}

/// The coefficients of a polynomial that is steep at 0, so that small singular values grow fast. They end between 0.7
/// and 1.2 instead of converging to 1.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, section "Tuning the coefficients".
const JORDAN: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// The coefficients of Polar Express. Each polynomial is the closest to 1 over the range to which the earlier
/// polynomials map singular values from a thousandth to 1.
///
/// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
/// Algorithm", algorithm 1.
const POLAR_EXPRESS: [[f64; 3]; 7] = [
    [8.287_212_018_145_63, -23.595_886_519_098_837, 17.300_387_312_530_933],
    [4.107_059_111_542_203, -2.947_849_917_937_910_6, 0.544_843_108_292_660_1],
    [3.948_690_853_482_294_6, -2.908_902_115_962_949, 0.551_819_139_437_013_7],
    [3.318_419_657_370_601_5, -2.488_488_024_314_874, 0.510_048_940_123_72],
    [2.300_652_019_954_817, -1.668_903_984_574_749_3, 0.418_807_311_952_567_3],
    [1.891_301_407_787_398, -1.267_995_827_194_586_8, 0.376_804_089_485_248_35],
    [1.875_001_480_853_447_9, -1.250_001_645_399_948_7, 0.375_000_164_547_424_8],
];

/// The limit of the Polar Express polynomials, for all later iterations.
const LAST: [f64; 3] = [1.875, -1.25, 0.375];

const POLAR_EXPRESS_SAFETY: f64 = 1.01;

/// The number added to the divisors in [`evening`], which prevents a division by zero.
const NEURON_EPSILON: f64 = 1e-10;

/// Whether a tensor of a checkpoint belongs to Muon.
pub(super) fn is_key(key: &str) -> bool {
    key.starts_with(KEY)
}

/// The update rule with the running means of each matrix.
///
/// The gradient of a matrix is close to low rank: a few directions dominate. Muon orthogonalizes the step (the running
/// mean with Nesterov momentum), so that rare directions move as far as frequent ones. Weight decay is decoupled, as in
/// `AdamW`.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, and <https://github.com/KellerJordan/Muon>, `muon_update`.
#[derive(Clone, Debug)]
pub(super) struct Muon {
    learning_rate: f64,
    momentum: f64,
    weight_decay: f64,
    polynomials: (Vec<[f64; 3]>, f64),
    /// The decay rate of the running mean squares of neurons (`NorMuon`); 0 turns `NorMuon` off.
    beta2: f64,
    precision: MatmulPrecision,
    /// The matrices to update. Each has the widths of the matrices that lie side by side in it.
    matrices: BTreeMap<String, Vec<usize>>,
    pub(super) means: BTreeMap<String, Means>,
}

/// The running means of a matrix.
#[derive(Clone, Debug, Default)]
pub(super) struct Means {
    /// The mean of the gradients, flattened; `None` before the first step.
    momentum: Option<Tensor<1>>,
    /// The mean squares of the orthogonalized steps, one number per column (neuron).
    neurons: Option<Tensor<1>>,
}

impl Muon {
    pub(super) fn new(
        config: &OptimizerConfig,
        matrices: BTreeMap<String, Vec<usize>>,
        precision: MatmulPrecision,
    ) -> Self {
        let OptimizerConfig { muon_learning_rate: learning_rate, muon_momentum: momentum, weight_decay, .. } = *config;
        let polynomials = polynomials(config.newton_schulz, config.newton_schulz_steps);
        let (beta2, means) = (config.normuon_beta2, BTreeMap::new());
        Self { learning_rate, momentum, weight_decay, polynomials, beta2, precision, matrices, means }
    }

    pub(super) fn moves(&self, name: &str) -> bool {
        self.matrices.contains_key(name)
    }

    /// The new weights and running means of a matrix, from its gradient and the gradient's factor, at `share` of the
    /// peak learning rate.
    ///
    /// # Shapes
    /// `weights, gradient: [m n]`, row by row, factor `[1]` -> `[m n]`
    pub(super) fn update(
        &self,
        name: &str,
        weights: Tensor<1>,
        (gradient, factor): Gradient,
        means: Means,
        share: f64,
    ) -> (Tensor<1>, Means) {
        let [ahead, momentum] = kernels::nesterov(gradient, factor, means.momentum, self.momentum);
        let (direction, neurons) = self.direction(&self.matrices[name], ahead, means.neurons); // [m n]
        let learning_rate = self.learning_rate * share;
        let weights = kernels::descend(weights, direction, learning_rate, learning_rate * self.weight_decay);
        (weights, Means { momentum: Some(momentum), neurons })
    }

    /// The orthogonalized step of the matrices that lie side by side in `x`, and the running mean squares of its
    /// columns.
    ///
    /// Weights are `[in, out]`. The step of a matrix with more outputs than inputs is larger, so that each output
    /// changes as much as with any other shape.
    ///
    /// # Shapes
    /// `x: [m n]`, row by row, `n` being the sum of the matrices' widths -> `[m n]`, `[n]`
    fn direction(&self, widths: &[usize], x: Tensor<1>, neurons: Option<Tensor<1>>) -> (Tensor<1>, Option<Tensor<1>>) {
        let columns = widths.iter().sum::<usize>();
        let rows = x.dims()[0] / columns;
        let x = x.reshape([rows, columns]); // [m, n]
        let scale = |width: usize| (width as f64 / rows as f64).max(1.0).sqrt();
        if self.beta2 == 0.0 {
            return (flatten(self.orthogonalize(x, widths, scale)), None);
        }
        let orthogonal = self.orthogonalize(x, widths, |_| 1.0);
        let squares = kernels::mean_squares_of_columns(orthogonal.clone()); // [n]
        let news = squares.clone() * (1.0 - self.beta2);
        let neurons = match neurons {
            Some(old) => old * self.beta2 + news,
            None => news,
        };
        let of_parts = |x: Tensor<1>| x.split_with_sizes(widths.to_vec(), 0).into_iter(); // [width] each
        let factors = of_parts(squares).zip(of_parts(neurons.clone())).zip(widths);
        let factors = factors.map(|((squares, neurons), width)| evening(squares, neurons) * scale(*width));
        let factors = Tensor::cat(factors.collect(), 0); // [n]
        (flatten(orthogonal * factors.unsqueeze()), Some(neurons))
    }

    /// Brings all singular values of each matrix near its `scale`: from `U S V^T` to about `U V^T`. Zero singular
    /// values stay zero; with five iterations those above a few thousandths of the Frobenius norm end between 0.68 and
    /// 1.21, by Polar Express between 0.87 and 1.13.
    ///
    /// Source: as for [`Muon`], `zeropower_via_newtonschulz5`, which computes in bf16.
    ///
    /// # Shapes
    /// `x: [m, n]` -> `[m, n]`
    fn orthogonalize(&self, x: Tensor<2>, widths: &[usize], scale: impl Fn(usize) -> f64) -> Tensor<2> {
        let parts: Vec<_> = widths.iter().map(|&width| Part { width, scale: scale(width) }).collect();
        let (coefficients, safety) = &self.polynomials;
        let polynomials = Polynomials { coefficients, safety: *safety };
        kernels::newton_schulz(x, &parts, polynomials, self.precision)
    }

    /// Adds the running means to `state`, as `momentum.NAME` and `neuron_moment.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, Means { momentum, neurons }) in &self.means {
            for (key, mean) in [(KEY, momentum), (NEURON_KEY, neurons)] {
                if let Some(mean) = mean {
                    put(state, format!("{key}{name}"), mean);
                }
            }
        }
    }

    /// Moves the running means of a matrix with `n` numbers out of `state`.
    pub(super) fn load(&mut self, name: &str, n: usize, state: &mut State, device: &Device) -> Result<(), StateError> {
        let momentum = Some(take(state, format!("{KEY}{name}"), n, device)?);
        let neurons = match self.beta2 > 0.0 {
            true => Some(take(state, format!("{NEURON_KEY}{name}"), self.matrices[name].iter().sum(), device)?),
            false => None,
        };
        self.means.insert(name.to_owned(), Means { momentum, neurons });
        Ok(())
    }
}

/// The factors for the columns of an orthogonalized step. `squares` are the mean squares of the columns, and `neurons`
/// their running means. Each factor is the inverse root of the running mean, scaled so that the norm of the whole step
/// stays the same.
///
/// Source: Li et al. 2025, "`NorMuon`: Making Muon more efficient and scalable", algorithm 1, and `normuon_update` in
/// <https://github.com/zichongli5/NorMuon>, which keeps the norm.
///
/// # Shapes
/// `squares, neurons: [n]` -> `[n]`
fn evening(squares: Tensor<1>, neurons: Tensor<1>) -> Tensor<1> {
    let factors = (neurons.sqrt() + NEURON_EPSILON).recip();
    let norm = |squares: Tensor<1>| squares.sum().sqrt(); // the norm divided by the root of the number of rows
    let after = norm(squares.clone() * factors.clone() * factors.clone());
    let kept = norm(squares) / (after + NEURON_EPSILON);
    factors * kept
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn orthogonalize(matrix: Tensor<2>, newton_schulz: NewtonSchulz) -> Tensor<2> {
        let config = OptimizerConfig { newton_schulz, ..OptimizerConfig::default() };
        let width = matrix.dims()[1];
        Muon::new(&config, BTreeMap::new(), MatmulPrecision::F32).orthogonalize(matrix, &[width], |_| 1.0)
    }

    fn host(x: Tensor<2>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("f32")
    }

    /// An orthogonal matrix: the reflection across the plane orthogonal to `(0, 1, .., n - 1) + shift`.
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

    /// The singular value `x` after five iterations.
    fn iterated(x: f64, kind: NewtonSchulz) -> f64 {
        let (coefficients, safety) = polynomials(kind, 5);
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
                assert!((got - expected).abs() < 3e-5, "{got}, not {expected}, of {n}");
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
    fn more_iterations_of_polar_express_converge_to_one() {
        for (n_iterations, most) in [(3, 0.9), (5, 0.13), (6, 0.02), (7, 1e-3), (10, 1e-9)] {
            let (coefficients, safety) = polynomials(NewtonSchulz::PolarExpress, n_iterations);
            assert_eq!(coefficients.len(), n_iterations);
            for x in [1.0, 0.3, 0.01, 0.002] {
                let x = coefficients.iter().fold(x / safety, |x, [a, b, c]| a * x + b * x.powi(3) + c * x.powi(5));
                assert!((x - 1.0).abs() < most, "{x} after {n_iterations}");
            }
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
