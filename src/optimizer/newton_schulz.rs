//! The nearest orthogonal matrix, almost, from matrix products alone.

use burn::tensor::Tensor;

use super::gradients::flatten;
use tinderbox_kernels::{self as kernels, MatmulPrecision};

/// The odd polynomial `a x + b x^3 + c x^5`. It is steep at 0, so that small singular values grow fast, and
/// then moves between 0.7 and 1.2 instead of coming to rest at 1.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, section "Tuning the coefficients".
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// How often the polynomial is applied.
pub(crate) const N_ITERATIONS: usize = 5;

/// Keeps a matrix of zeros from dividing by zero.
const EPSILON: f64 = 1e-7;

/// Brings all singular values of `matrix` near 1 and keeps its singular vectors: of `U S V^T` it returns
/// about `U V^T`. Directions in which the matrix is zero stay zero.
///
/// A singular value that is at least a few thousandths of the Frobenius norm ends between 0.68 and 1.21.
///
/// Source: Jordan et al. 2024, as above, `zeropower_via_newtonschulz5` in
/// <https://github.com/KellerJordan/Muon>, where it is in bf16.
///
/// # Shapes
/// `[m, n]` -> `[m, n]`
pub(super) fn orthogonalize(matrix: Tensor<2>, precision: MatmulPrecision) -> Tensor<2> {
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
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn orthogonalize(matrix: Tensor<2>) -> Tensor<2> {
        super::orthogonalize(matrix, MatmulPrecision::F32)
    }

    fn tensor(rows: &[Vec<f64>]) -> Tensor<2> {
        let values: Vec<f64> = rows.concat();
        let shape = [rows.len(), rows[0].len()];
        let data = TensorData::new(values, shape).convert::<f32>();
        Tensor::from_data(data, &Device::flex())
    }

    fn host(x: Tensor<2>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("f32")
    }

    /// An orthogonal matrix: the mirror at the plane across `(1, 2, .., n) + shift`.
    #[allow(clippy::cast_precision_loss, reason = "small sizes")]
    fn mirror(n: usize, shift: f64) -> Vec<Vec<f64>> {
        let v: Vec<f64> = (0..n).map(|i| i as f64 + shift).collect();
        let square: f64 = v.iter().map(|x| x * x).sum();
        let entry = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * v[i] * v[j] / square;
        (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect()
    }

    /// `U diag(s) V^T`, `[m, n]` with at least as many columns as rows.
    fn with_singular_values(s: &[f64], n: usize) -> Tensor<2> {
        let (u, v) = (mirror(s.len(), 1.0), mirror(n, -0.5));
        let entry =
            |i: usize, j: usize| -> f64 { (0..s.len()).map(|k| u[i][k] * s[k] * v[j][k]).sum() };
        let rows: Vec<Vec<f64>> =
            (0..s.len()).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect();
        tensor(&rows)
    }

    /// What the iteration makes of a singular value.
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
    fn a_transposed_matrix_gives_the_transposed_result() {
        let wide = with_singular_values(&[1.0, 0.5, 0.1], 7);
        let tall = wide.clone().transpose();
        let (wide, tall) = (orthogonalize(wide), orthogonalize(tall));
        assert_eq!(tall.dims(), [7, 3]);
        assert_eq!(host(tall.transpose()), host(wide));
    }

    #[test]
    fn a_matrix_of_zeros_stays_one() {
        let zeros = orthogonalize(Tensor::zeros([3, 5], &Device::flex()));
        assert_eq!(host(zeros), vec![0.0; 15]);
    }
}
