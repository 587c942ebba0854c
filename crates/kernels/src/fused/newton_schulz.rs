//! The iteration of Newton and Schulz, by products whose sums are blended with what they belong to.

use burn::backend::Flex;
use burn::tensor::Tensor;

use super::linear::matrix;
use crate::MatmulPrecision;
use crate::flex::in_f32;
use crate::flex::{map_in_place, primitive};
use crate::gemm::{Bf16x2, Element, Matrix, MatrixMut, Mode, Packed, Plain, Role, store};

/// As [`crate::newton_schulz`], of f32 on flex.
pub(crate) fn newton_schulz(
    x: Tensor<2>,
    coefficients: [f64; 3],
    steps: usize,
    precision: MatmulPrecision,
) -> Tensor<2> {
    let x = primitive(x);
    let step = match precision {
        MatmulPrecision::F32 => step::<f32>,
        MatmulPrecision::Bf16 => step::<Bf16x2>,
    };
    let shape = matrix(&x);
    let x = map_in_place(x, |numbers| {
        for _ in 0..steps {
            step(numbers, shape, coefficients.map(in_f32));
        }
    });
    Tensor::from_primitive::<Flex>(x)
}

/// `x <- a x + (b G + c G^2) x`, `G = x x^T`
fn step<E: Element>(x: &mut [f32], [m, n]: [usize; 2], [a, b, c]: [f32; 3]) {
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
    use crate::flex::testing::{assert_close, assert_within, noise, numbers, with_threads};
    use crate::newton_schulz::composed_newton_schulz;

    const COEFFICIENTS: [f64; 3] = [3.0, -3.2, 1.2];

    const SHAPES: [[usize; 2]; 6] = [[1, 1], [1, 9], [7, 5], [33, 70], [64, 64], [100, 301]];

    /// A matrix with singular values below 1.
    fn small(shape @ [m, n]: [usize; 2]) -> Tensor<2> {
        let x = noise(m * n, 1);
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        let x: Vec<_> = x.into_iter().map(|x| x / norm).collect();
        Tensor::from_data(TensorData::new(x, shape), &Device::flex())
    }

    fn run(shape: [usize; 2], precision: MatmulPrecision) -> Vec<f32> {
        numbers(newton_schulz(small(shape), COEFFICIENTS, 3, precision))
    }

    #[test]
    fn equals_the_composed_operation_and_nearly_in_bfloat16() {
        for shape in SHAPES {
            let want = [numbers(composed_newton_schulz(small(shape), COEFFICIENTS, 3))];
            assert_close(&[run(shape, F32)], &want, &format!("{shape:?}"));
            let rounded = [run(shape, Bf16)];
            // Some hundredths of the largest number: what three steps make of factors that are off by 2^-9.
            assert_within(&rounded, &want, 1.0 / 32.0, &format!("{shape:?}, rounded"));
            assert!(shape == [1, 1] || rounded != want, "{shape:?}");
        }
    }

    #[test]
    fn a_matrix_that_does_not_lie_in_rows_is_read_as_it_is() {
        let x = small([33, 70]);
        let transposed = numbers(newton_schulz(x.clone().transpose(), COEFFICIENTS, 2, F32));
        let want = composed_newton_schulz(x.transpose(), COEFFICIENTS, 2);
        assert_close(&[transposed], &[numbers(want)], "transposed");
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for precision in [F32, Bf16] {
            let bytes = |threads| {
                let got = with_threads(threads, || run([131, 301], precision));
                got.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
