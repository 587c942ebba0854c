//! The iteration of Newton and Schulz, which brings the singular values of a matrix together.

use burn::backend::Flex;
use burn::tensor::Tensor;

use crate::MatmulPrecision;
use crate::flex::{self, in_f32, primitive, values_mut};
use crate::gemm::{Bf16x2, Element, Matrix, MatrixMut, Mode, Packed, Plain, Role, store};

/// A step `x <- a x + (b G + c G^2) x` with `G = x x^T` for each `[a, b, c]`: the polynomial `a s + b s^3 + c s^5` of
/// every singular value, which singular vectors do not notice.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>.
///
/// # Shapes
/// `x: [m, n]` -> `[m, n]`; products are square in m.
#[must_use]
pub fn newton_schulz(x: Tensor<2>, coefficients: &[[f64; 3]], precision: MatmulPrecision) -> Tensor<2> {
    if !flex::is_for(&x) {
        return composed_newton_schulz(x, coefficients);
    }
    let step = match precision {
        MatmulPrecision::F32 => fused_step::<f32>,
        MatmulPrecision::Bf16 => fused_step::<Bf16x2>,
    };
    let shape = x.dims();
    let mut x = primitive(x);
    let numbers = values_mut(&mut x);
    for coefficients in coefficients {
        step(numbers, shape, coefficients.map(in_f32));
    }
    Tensor::from_primitive::<Flex>(x)
}

/// [`newton_schulz`] by burn's own operations.
fn composed_newton_schulz(mut x: Tensor<2>, coefficients: &[[f64; 3]]) -> Tensor<2> {
    for &[a, b, c] in coefficients {
        let gram = x.clone().matmul(x.clone().transpose()); // [m, m]
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x = x.clone() * a + polynomial.matmul(x);
    }
    x
}

/// A step on flex, by products whose sums are blended with the numbers that they replace.
fn fused_step<E: Element>(x: &mut [f32], [m, n]: [usize; 2], [a, b, c]: [f32; 3]) {
    let [columns, rows] = {
        let x = Matrix::new(x, [m, n]);
        Packed::<E>::all([(x, Role::Both), (x.transposed(), Role::Right)])
    };
    let mut gram = vec![0.0; m * m];
    let out = MatrixMut::new(&mut gram, [m, m]);
    store(Mode::Put, out, Plain(columns.left()), rows.right(), &[]);
    let [packed] = Packed::<E>::all([(Matrix::new(&gram, [m, m]), Role::Both)]);
    let out = MatrixMut::new(&mut gram, [m, m]);
    store(Mode::Blend([b, c]), out, Plain(packed.left()), packed.right(), &[]);
    let [polynomial] = Packed::<E>::all([(Matrix::new(&gram, [m, m]), Role::Left)]);
    let out = MatrixMut::new(x, [m, n]);
    store(Mode::Blend([a, 1.0]), out, Plain(polynomial.left()), columns.right(), &[]);
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::MatmulPrecision::{Bf16, F32};
    use crate::testing::{assert_close, assert_threads_change_nothing, assert_within, noise, numbers};

    const COEFFICIENTS: [[f64; 3]; 3] = [[3.0, -3.2, 1.2], [2.5, -2.0, 0.7], [2.0, -1.5, 0.5]];

    /// A matrix with singular values below 1.
    fn small(shape @ [m, n]: [usize; 2]) -> Tensor<2> {
        let x = noise(m * n, 1);
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        let x: Vec<_> = x.into_iter().map(|x| x / norm).collect();
        Tensor::from_data(TensorData::new(x, shape), &Device::flex())
    }

    fn run(x: Tensor<2>, precision: MatmulPrecision) -> [Vec<f32>; 1] {
        [numbers(newton_schulz(x, &COEFFICIENTS, precision))]
    }

    #[test]
    fn equals_the_composed_operation_and_nearly_in_bfloat16() {
        for shape in [[1, 1], [1, 9], [7, 5], [33, 70], [64, 64], [100, 301]] {
            // The transposed one does not lie in rows.
            for x in [small(shape), small(shape).transpose()] {
                let want = [numbers(composed_newton_schulz(x.clone(), &COEFFICIENTS))];
                assert_close(&run(x.clone(), F32), &want, &format!("{shape:?}"));
                let rounded = run(x, Bf16);
                // Some hundredths of the largest number: what three steps make of factors that are off by 2^-9.
                assert_within(&rounded, &want, 1.0 / 32.0, &format!("{shape:?}, rounded"));
                assert!(shape == [1, 1] || rounded != want, "{shape:?}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for precision in [F32, Bf16] {
            assert_threads_change_nothing(|| run(small([131, 301]), precision).into());
        }
    }
}
