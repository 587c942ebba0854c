//! Muon: momentum steps for the matrices of the blocks, orthogonalized by Newton-Schulz iterations.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use tinderbox_kernels::{self as kernels, ColumnBlock, MatmulPrecision, Polynomials};
use tinderbox_model::Parameter;
use tinderbox_model::section::Problems;

use super::gradients::{Gradient, flatten};
use super::rule::{Step, UpdateRule};

tinderbox_model::sections! {
    /// The keys of Muon in `[optimizer]`.
    pub struct MuonConfig {
        /// The peak learning rate of the blocks' matrices, with the same schedule as `learning_rate`. Above 0.
        pub muon_learning_rate: f64 = 0.02,
        /// The decay rate of the running mean of these matrices' gradients. `adamw` ignores this key and the one before
        /// it. In [0, 1).
        pub muon_momentum: f64 = 0.95,
        /// The polynomials that make Muon's steps orthogonal: `jordan` (one, repeated) or `polar_express` (different
        /// ones, which converge further).
        pub newton_schulz: NewtonSchulz = NewtonSchulz::default(),
        /// The number of polynomials applied in a step; `polar_express` needs fewer. From 1 to 10.
        pub newton_schulz_steps: usize = 5,
        /// The decay rate of the running mean square of Muon's steps, one number per output. Dividing each output's
        /// step by the root of its mean square moves all outputs equally far. 0: off. In [0, 1).
        ///
        /// Source: Li et al. 2025, "`NorMuon`: Making Muon more efficient and scalable", algorithm 1.
        pub normuon_beta2: f64 = 0.0,
    }
}

/// The polynomials of the Newton-Schulz iteration that makes Muon's steps orthogonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulz {
    /// One polynomial applied five times: steep at 0, it ends near 1 without converging.
    ///
    /// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    #[default]
    Jordan,
    /// Five polynomials, each optimal for the singular values that the ones before it leave.
    ///
    /// Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to the Muon
    /// Algorithm".
    PolarExpress,
}

/// The polynomials of the iterations, for singular values of at most 1, and the factor that enlarges the norm before
/// the matrix is divided by it.
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

/// The coefficients of Polar Express. Each polynomial is the closest to 1 over the range that the earlier
/// polynomials leave of singular values from a thousandth to 1.
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

/// The number added to the divisors in [`normalization`], which prevents a division by zero.
const NEURON_EPSILON: f64 = 1e-10;

/// The gradient of a matrix is close to low rank: a few directions dominate. Muon orthogonalizes the step (the running
/// mean with Nesterov momentum), so that rare directions move as far as frequent ones. Weight decay is decoupled, as in
/// `AdamW`.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, and <https://github.com/KellerJordan/Muon>, `muon_update`.
impl UpdateRule for MuonConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self { muon_learning_rate, muon_momentum, newton_schulz: _, newton_schulz_steps, normuon_beta2 } = self;
        problems.above_zero("optimizer.muon_learning_rate", *muon_learning_rate);
        problems.below_one("optimizer.muon_momentum", *muon_momentum);
        let is_few = (1..=10).contains(newton_schulz_steps);
        problems.must(is_few, "optimizer.newton_schulz_steps", newton_schulz_steps, "be from 1 to 10");
        problems.below_one("optimizer.normuon_beta2", *normuon_beta2);
    }

    fn fixed_keys(&self) -> &'static [&'static str] {
        &["normuon_beta2"]
    }

    fn for_timing(&self) -> Self {
        let Self { newton_schulz, newton_schulz_steps, normuon_beta2, .. } = *self;
        Self { newton_schulz, newton_schulz_steps, normuon_beta2, ..Self::default() }
    }

    fn learning_rates(&self) -> &'static str {
        "optimizer.muon_learning_rate (of the matrices) or optimizer.learning_rate (of the others)"
    }

    fn takes(&self, parameter: &Parameter) -> bool {
        parameter.hidden_widths().is_some()
    }

    fn state(&self, parameter: &Parameter) -> Vec<(&'static str, usize)> {
        let [rows, columns] = shape(parameter);
        let mut state = vec![("momentum", rows * columns)];
        if self.normuon_beta2 > 0.0 {
            state.push(("neuron_moment", columns));
        }
        state
    }

    /// Those of the iterations as published, regardless of the batch. A CPU computes only half of each symmetric matrix.
    fn flops(&self, parameter: &Parameter) -> f64 {
        let [rows, _] = shape(parameter);
        let of_matrix = |columns: usize| {
            let (m, n) = (rows.min(columns) as f64, rows.max(columns) as f64);
            // The matrix times its transpose, the square of that, and both times the matrix.
            self.newton_schulz_steps as f64 * (4.0 * m * m * n + 2.0 * m * m * m)
        };
        widths(parameter).into_iter().map(of_matrix).sum()
    }

    fn temporary_bytes(&self, parameter: &Parameter, is_fused: bool) -> f64 {
        kernels::newton_schulz_temporary_bytes(shape(parameter), &widths(parameter), is_fused)
    }

    fn update(
        &self,
        step: &Step<'_>,
        parameter: &Parameter,
        weights: Tensor<1>,
        (gradient, factor): Gradient,
        state: Vec<Tensor<1>>,
    ) -> (Tensor<1>, Vec<Tensor<1>>) {
        let mut state = state.into_iter();
        let [update, momentum] = kernels::nesterov(gradient, factor, state.next(), self.muon_momentum);
        let update = update.reshape(shape(parameter)); // [m, n]
        let (update, neurons) = self.orthogonal_update(&widths(parameter), update, state.next(), step.precision);
        let learning_rate = self.muon_learning_rate * (step.learning_rate / step.config.learning_rate);
        let decay = learning_rate * step.config.weight_decay;
        let weights = kernels::descend(weights, flatten(update), learning_rate, decay);
        (weights, [momentum].into_iter().chain(neurons).collect())
    }
}

/// The widths of the matrices that lie side by side in a parameter.
fn widths(parameter: &Parameter) -> Vec<usize> {
    parameter.hidden_widths().expect("Muon takes the matrices of the blocks")
}

fn shape(parameter: &Parameter) -> [usize; 2] {
    parameter.shape[..].try_into().expect("Muon takes matrices only")
}

impl MuonConfig {
    /// The orthogonalized update of the matrices that lie side by side in `x`, and the running mean squares of its
    /// columns (neurons) with `NorMuon`.
    ///
    /// Weights are `[in, out]`. The step of a matrix with more outputs than inputs is larger, so that each output
    /// changes as much as with any other shape.
    ///
    /// # Shapes
    /// `x: [m, n]`, `n` being the sum of the matrices' widths -> `[m, n]`, `[n]`
    fn orthogonal_update(
        &self,
        widths: &[usize],
        x: Tensor<2>,
        neurons: Option<Tensor<1>>,
        precision: MatmulPrecision,
    ) -> (Tensor<2>, Option<Tensor<1>>) {
        let [rows, _] = x.dims();
        let scale = |width: usize| (width as f64 / rows as f64).max(1.0).sqrt();
        let beta2 = self.normuon_beta2;
        if beta2 == 0.0 {
            return (self.orthogonalize(x, widths, scale, precision), None);
        }
        let orthogonal = self.orthogonalize(x, widths, |_| 1.0, precision);
        let squares = kernels::mean_squares_of_columns(orthogonal.clone()); // [n]
        let news = squares.clone() * (1.0 - beta2);
        let neurons = match neurons {
            Some(old) => old * beta2 + news,
            None => news,
        };
        let of_matrices = |x: Tensor<1>| x.split_with_sizes(widths.to_vec(), 0).into_iter(); // [width] each
        let factors = of_matrices(squares).zip(of_matrices(neurons.clone())).zip(widths);
        let factors = factors.map(|((squares, neurons), width)| normalization(squares, neurons) * scale(*width));
        let factors = Tensor::cat(factors.collect(), 0); // [n]
        (orthogonal * factors.unsqueeze(), Some(neurons))
    }

    /// Brings all singular values of each matrix near its `scale`: from `U S V^T` to about `U V^T`. Zero singular
    /// values stay zero; with five iterations those above a few thousandths of the Frobenius norm end between 0.68 and
    /// 1.21, by Polar Express between 0.87 and 1.13.
    ///
    /// Source: as for Muon, `zeropower_via_newtonschulz5`, which computes in bf16.
    ///
    /// # Shapes
    /// `x: [m, n]` -> `[m, n]`
    fn orthogonalize(
        &self,
        x: Tensor<2>,
        widths: &[usize],
        scale: impl Fn(usize) -> f64,
        precision: MatmulPrecision,
    ) -> Tensor<2> {
        let blocks: Vec<_> = widths.iter().map(|&width| ColumnBlock { width, scale: scale(width) }).collect();
        let (coefficients, safety) = polynomials(self.newton_schulz, self.newton_schulz_steps);
        kernels::newton_schulz(x, &blocks, Polynomials { coefficients: &coefficients, safety }, precision)
    }
}

/// `NorMuon`'s normalization: the factors for the columns of an orthogonalized update. `squares` are the mean squares of
/// the columns, and `neurons` their running means. Each factor is the inverse root of the running mean, scaled so that
/// the norm of the whole update stays the same.
///
/// Source: Li et al. 2025, "`NorMuon`: Making Muon more efficient and scalable", algorithm 1, and `normuon_update` in
/// <https://github.com/zichongli5/NorMuon>, which keeps the norm.
///
/// # Shapes
/// `squares, neurons: [n]` -> `[n]`
fn normalization(squares: Tensor<1>, neurons: Tensor<1>) -> Tensor<1> {
    let factors = (neurons.sqrt() + NEURON_EPSILON).recip();
    let norm = |squares: Tensor<1>| squares.sum().sqrt(); // the norm divided by the root of the number of rows
    let after = norm(squares.clone() * factors.clone() * factors.clone());
    let kept = norm(squares) / (after + NEURON_EPSILON);
    factors * kept
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use tinderbox_model::{Initial, Role};

    use super::*;

    fn orthogonalize(matrix: Tensor<2>, newton_schulz: NewtonSchulz) -> Tensor<2> {
        let muon = MuonConfig { newton_schulz, ..MuonConfig::default() };
        let width = matrix.dims()[1];
        muon.orthogonalize(matrix, &[width], |_| 1.0, MatmulPrecision::F32)
    }

    fn host(x: Tensor<2>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("the tensor is f32")
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
    fn singular_values_follow_polynomial_and_vectors_stay() {
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
    fn scale_does_not_matter_and_zero_direction_stays() {
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
    fn polar_express_converges_to_one() {
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
    fn zero_matrix_stays_zero() {
        for kind in [NewtonSchulz::Jordan, NewtonSchulz::PolarExpress] {
            let zeros = orthogonalize(Tensor::zeros([3, 5], &Device::flex()), kind);
            assert_eq!(host(zeros), vec![0.0; 15]);
        }
    }

    #[test]
    fn flops_match_count_by_hand() {
        let flops = |shape: [usize; 2], role, newton_schulz_steps| {
            let shape = shape.to_vec();
            let parameter =
                Parameter { path: String::new(), shape, role, initial: Initial::Constant(0.0), is_trained: true };
            let muon = MuonConfig { newton_schulz_steps, ..MuonConfig::default() };
            assert!(muon.takes(&parameter));
            muon.flops(&parameter)
        };
        let square = 2.0 * f64::from(4 * 4 * 4) * 3.0; // [4, 4] with [4, 4], three times
        let narrow = 2.0 * f64::from(2 * 2 * 4) * 2.0 + 2.0 * f64::from(2 * 2 * 2); // [4, 2], and its square [2, 2]
        let wide = 2.0 * f64::from(4 * 4 * 8) * 2.0 + 2.0 * f64::from(4 * 4 * 4); // [4, 8], or its transpose
        // Queries [4, 4], keys and values [4, 2] side by side.
        let found = [flops([4, 8], Role::Qkv([4, 2, 2]), 5), flops([4, 8], Role::Up, 5), flops([8, 4], Role::Down, 3)];
        let by_hand = [5.0 * (square + 2.0 * narrow), 5.0 * wide, 3.0 * wide];
        assert!(found.iter().zip(by_hand).all(|(found, by_hand)| (found - by_hand).abs() < 0.5), "{found:?}");
    }
}
