//! The Newton-Schulz iteration, which orthogonalizes matrices.

use burn::backend::Flex;
use burn::tensor::Tensor;

use crate::MatmulPrecision;
use crate::elementary::sum;
use crate::flex::{self, in_f32, primitive, values_mut};
use crate::gemm::{
    Bf16x2, Element, Matrix, MatrixMut, Packed, Role, RowMajor, StoreMode, Transposed, n_waiting, store,
    store_symmetric,
};
use crate::optimizer::sum_of_squares;
use crate::simd;

/// One of several matrices side by side in a tensor: a block of its columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnBlock {
    /// The number of columns.
    pub width: usize,
    /// Multiplies the result.
    pub scale: f64,
}

/// Odd polynomials `a s + b s^3 + c s^5` of the singular values, applied one after another.
#[derive(Clone, Copy, Debug)]
pub struct Polynomials<'a> {
    /// `[a, b, c]` of each polynomial.
    pub coefficients: &'a [[f64; 3]],
    /// Multiplies the norm before the division, as a margin for rounding errors.
    pub safety: f64,
}

/// The smallest divisor of a matrix.
const EPSILON: f64 = 1e-7;

/// Divides each matrix by its Frobenius norm and applies the polynomials to its singular values, leaving the singular
/// vectors unchanged: `x <- a x + (b G + c G^2) x` with `G = x x^T` for each `[a, b, c]`.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>.
///
/// # Shapes
/// `x: [m, n]` -> `[m, n]`, where `n` is the sum of the widths
pub fn newton_schulz(
    x: Tensor<2>,
    blocks: &[ColumnBlock],
    polynomials: Polynomials<'_>,
    precision: MatmulPrecision,
) -> Tensor<2> {
    let [n_rows, n_columns] = x.dims();
    assert_eq!(blocks.iter().map(|block| block.width).sum::<usize>(), n_columns, "the blocks cover all columns");
    if !flex::is_for(&x) {
        return composed_newton_schulz(x, blocks, polynomials);
    }
    let fused = match precision {
        MatmulPrecision::F32 => fused_newton_schulz::<f32>,
        MatmulPrecision::Bf16 => fused_newton_schulz::<Bf16x2>,
    };
    let mut x = primitive(x);
    let scalars = values_mut(&mut x);
    let mut first = 0;
    for block in blocks {
        let view = Strided { shape: [n_rows, block.width], row_step: n_columns };
        fused(&mut scalars[first..], view, polynomials, in_f32(block.scale));
        first += block.width;
    }
    Tensor::from_primitive::<Flex>(x)
}

/// The square matrices, as wide as a matrix's smaller side, that its polynomials take on a CPU: the Gram matrix, the
/// product of the polynomials so far, the next one, and packed copies of all three.
const SQUARES: usize = 6;

/// The bytes that [`newton_schulz`] holds besides `x`, whose blocks have these `widths`; `is_fused` on a CPU, otherwise
/// composed of burn's operations.
pub fn newton_schulz_temporary_bytes([n_rows, n_columns]: [usize; 2], widths: &[usize], is_fused: bool) -> f64 {
    let of_block = |width: &usize| {
        let (matrix, smaller) = (n_rows * width, n_rows.min(*width));
        let square = smaller.pow(2);
        // The deepest product is the Gram matrix.
        let waiting = if is_fused { n_waiting(smaller, n_rows.max(*width)) } else { 0 };
        let held = match is_fused {
            // In place, from a packed copy. A matrix that is not tall is first packed by rows, where a square comes
            // later.
            true if n_rows > *width => matrix + SQUARES * square,
            true => 2 * matrix + (SQUARES - 1) * square,
            // Each iteration needs two more matrices of the same shape, and a square one of the smaller side.
            false => square,
        };
        held + waiting
    };
    let whole = if is_fused { 0 } else { 2 * n_rows * n_columns };
    4.0 * (whole + widths.iter().map(of_block).max().unwrap_or(0)) as f64
}

pub(crate) fn composed_newton_schulz(x: Tensor<2>, blocks: &[ColumnBlock], polynomials: Polynomials<'_>) -> Tensor<2> {
    let widths = blocks.iter().map(|block| block.width).collect();
    let matrices = x.split_with_sizes(widths, 1).into_iter().zip(blocks); // [m, width] each
    let matrices = matrices.map(|(x, block)| composed_block(x, polynomials) * block.scale);
    Tensor::cat(matrices.collect(), 1)
}

fn composed_block(x: Tensor<2>, Polynomials { coefficients, safety }: Polynomials<'_>) -> Tensor<2> {
    let [m, n] = x.dims();
    let norm = sum_of_squares(x.clone().reshape([m * n])).sqrt() * safety; // [1]
    // The cost of the matrix products below grows with the square of the number of rows: a tall matrix is transposed.
    let x = if m > n { x.transpose() } else { x };
    let mut x = x / norm.clamp_min(EPSILON).unsqueeze();
    for &[a, b, c] in coefficients {
        let gram = x.clone().matmul(x.clone().transpose()); // [m, m]
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x = x.clone() * a + polynomial.matmul(x);
    }
    if m > n { x.transpose() } else { x }
}

/// The location of a matrix in a slice, with the stride `row_step` between rows.
#[derive(Clone, Copy)]
struct Strided {
    shape: [usize; 2],
    row_step: usize,
}

/// The iteration on one matrix, in place, multiplied by `scale` at the end.
fn fused_newton_schulz<E: Element>(x: &mut [f32], view: Strided, polynomials: Polynomials<'_>, scale: f32) {
    normalize(x, view, polynomials.safety);
    // Successive polynomials of the Gram matrix G amplify rounding errors in its smallest eigenvalues. In f32, three of
    // them are as accurate as polynomials of x, and five would lose three digits. bf16 has no such digits to spare, so
    // there G is computed anew for each polynomial.
    let at_once = if E::SCALARS == 1 { 3 } else { 1 };
    let mut rest = polynomials.coefficients.chunks(at_once).peekable();
    while let Some(coefficients) = rest.next() {
        let scale = if rest.peek().is_none() { scale } else { 1.0 };
        apply::<E>(x, view, coefficients, scale);
    }
}

/// Multiplies a matrix by polynomials of its Gram matrix `G`. The polynomials are computed from `G` alone; they are
/// symmetric and commute, so half of each matrix product suffices.
///
/// Source: Zhang et al. 2026, "Gram Newton-Schulz: A Fast, Hardware-Aware Newton-Schulz Algorithm for Muon",
/// <https://tridao.me/blog/2026/gram-newton-schulz/>.
fn apply<E: Element>(x: &mut [f32], Strided { shape, row_step }: Strided, coefficients: &[[f64; 3]], scale: f32) {
    let [m, n] = shape;
    let side = m.min(n);
    let matrix = Matrix::within(x, shape, row_step);
    let mut gram = vec![0.0; side * side];
    let columns = if m > n {
        let [columns] = Packed::<E>::all([(matrix, Role::Both)]);
        store_symmetric(StoreMode::Overwrite, &mut gram, Transposed(columns.right()), columns.right());
        columns
    } else {
        let [columns, rows] = Packed::<E>::all([(matrix, Role::Both), (matrix.transposed(), Role::Right)]);
        store_symmetric(StoreMode::Overwrite, &mut gram, RowMajor(columns.left()), rows.right());
        columns
    };
    let (constant, product) = product::<E>(gram, side, coefficients);
    let out = MatrixMut::within(x, shape, row_step);
    let mode = StoreMode::AlphaBeta { alpha: scale, beta: scale * constant };
    let [product] = Packed::<E>::all([(Matrix::new(&product, [side; 2]), Role::Both)]);
    if m > n {
        store(mode, out, RowMajor(columns.left()), product.right(), &[]);
    } else {
        store(mode, out, RowMajor(product.left()), columns.right(), &[]);
    }
}

/// The product of the polynomials `a + b G + c G^2`, where each `G` is the Gram matrix after the previous polynomials.
/// Returned as a factor of the identity matrix, and a matrix to be added to that.
fn product<E: Element>(mut gram: Vec<f32>, n: usize, coefficients: &[[f64; 3]]) -> (f32, Vec<f32>) {
    let pack = |x: &[f32], role| {
        let [packed] = Packed::<E>::all([(Matrix::new(x, [n; 2]), role)]);
        packed
    };
    let (mut constant, mut product) = (1.0, Vec::new());
    for (i, of_step) in coefficients.iter().enumerate() {
        let [a, b, c] = of_step.map(in_f32);
        let is_last = i + 1 == coefficients.len();
        let old = pack(&gram, Role::Both);
        let mut polynomial = gram.clone(); // without the constant term
        store_symmetric(StoreMode::AlphaBeta { alpha: c, beta: b }, &mut polynomial, RowMajor(old.left()), old.right());
        let left = pack(&polynomial, Role::Left);
        if !is_last {
            // x becomes p x, so `G = x x^T` is multiplied by the polynomial p from both sides.
            let mode = StoreMode::AlphaBeta { alpha: 1.0, beta: a };
            store_symmetric(mode, &mut gram, RowMajor(left.left()), old.right());
            let once = pack(&gram, Role::Right);
            store_symmetric(mode, &mut gram, RowMajor(left.left()), once.right());
        }
        if i == 0 {
            product = polynomial;
        } else {
            let before = pack(&product, Role::Right);
            for (product, polynomial) in product.iter_mut().zip(&polynomial) {
                *product = a * *product + constant * polynomial;
            }
            store_symmetric(StoreMode::Accumulate, &mut product, RowMajor(left.left()), before.right());
        }
        constant *= a;
    }
    (constant, product)
}

/// Divides a matrix by its Frobenius norm.
fn normalize(x: &mut [f32], Strided { shape: [n_rows, width], row_step }: Strided, safety: f64) {
    simd::dispatch(
        #[inline(always)]
        move || {
            // Each row is summed in f32 and the sums of the rows in f64, so that the norm of a large matrix stays
            // accurate.
            let mut squares = 0.0;
            for row in x.chunks(row_step).take(n_rows) {
                let row = &row[..width];
                squares += f64::from(sum(row, row, |a, b| a * b));
            }
            let factor = in_f32((squares.sqrt() * safety).max(EPSILON).recip());
            for row in x.chunks_mut(row_step).take(n_rows) {
                for x in &mut row[..width] {
                    *x *= factor;
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::testing::{noise, scalars};

    /// Polynomials of Gram matrices lose the smallest singular values to rounding earlier than polynomials of the
    /// matrix itself.
    #[test]
    fn newton_schulz_keeps_null_directions_small() {
        let polar_express = [[8.2, -22.9, 16.8], [4.06, -2.86, 0.52], [3.9, -2.8, 0.52], [3.28, -2.41, 0.48]];
        let jordan = [[3.4445, -4.7750, 2.0315]; 10];
        for coefficients in [&polar_express[..], &jordan] {
            let polynomials = Polynomials { coefficients, safety: 1.01 };
            // A matrix of rank 3, plus noise a ten-millionth as large.
            let [left, right, rest] = [([150, 3], 1), ([3, 200], 2), ([150, 200], 3)].map(|([m, n], seed)| {
                Tensor::<2>::from_data(TensorData::new(noise(m * n, seed), [m, n]), &Device::flex())
            });
            let x = left.matmul(right) + rest * 1e-7;
            let whole = [ColumnBlock { width: 200, scale: 1.0 }];
            let got = scalars(newton_schulz(x, &whole, polynomials, MatmulPrecision::F32));
            let squares = got.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            assert!(squares > 0.5 * 3.0 && squares < 1.5 * 150.0, "{squares} of {coefficients:?}");
        }
    }

    #[test]
    fn temporary_bytes_count_packed_copies_and_squares() {
        let check = |shape: [usize; 2], widths: &[usize], by_hand: [u32; 2]| {
            for (is_fused, scalars) in [true, false].into_iter().zip(by_hand) {
                let found = newton_schulz_temporary_bytes(shape, widths, is_fused);
                assert!((found - 4.0 * f64::from(scalars)).abs() < 0.5, "{shape:?}: {found} bytes, {scalars} scalars");
            }
        };
        check([4, 8], &[8], [2 * 32 + 5 * 16, 2 * 32 + 16]);
        check([4, 80], &[80], [2 * 320 + 5 * 16, 2 * 320 + 16]);
        check([8, 4], &[4], [32 + 6 * 16, 2 * 32 + 16]);
        check([4, 12], &[8, 4], [2 * 32 + 5 * 16, 2 * 48 + 16]);
    }
}
