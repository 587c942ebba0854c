//! Matrix products (GEMM) for training and generation. Both factors are packed. Each scalar of the output is one sum in
//! the order of the left matrix's columns (with AMX, of even and of odd ones, 32 at a time), so its bytes do not depend
//! on the number of threads and, in f32, are the same on every CPU with fused multiply-adds.
//!
//! Generation has its own micro-kernels for weights in bf16 and int8: [`Mixed`] keeps activations in f32, [`Integers`]
//! rounds them to int8. If weights come from memory, a block has all rows, so that each weight is read once.

#![allow(unsafe_code, reason = "each block says why it is sound, and bounds are asserted")]

#[cfg(target_arch = "x86_64")]
mod amx;
mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod bf16;
mod element;
mod epilogue;
mod int8;
#[cfg(target_arch = "x86_64")]
mod int8_x86;
mod macro_kernel;
mod matrix;
mod micro_kernel;
mod pack;
mod packed;
mod quantized;
mod right;
mod scratch;
mod transpose;
mod weight;

use pulp::{Simd, WithSimd};

use arithmetic::WithArithmetic;
pub(crate) use arithmetic::{Arithmetic, Element, Exact};
pub(crate) use element::{Bf16x2, Row, WIDTH, Word, as_elements, n_panels};
pub(crate) use epilogue::{Epilogue, SplittableEpilogue, Store, StoreMode, biased, part_of};
pub(crate) use int8::Integers;
pub(crate) use macro_kernel::{multiply, n_waiting};
pub(crate) use matrix::{Matrix, MatrixMut};
pub(crate) use micro_kernel::{LeftMatrix, Mixed, RowMajor, Transposed};
pub(crate) use pack::{Operand, Packed, Role};
pub(crate) use packed::PackedRef;
pub(crate) use quantized::{Quantized, quantize};
pub(crate) use right::{PackSource, RightMatrix};
pub(crate) use scratch::Scratch;
pub(crate) use weight::{Int8x4, Weight, scales};

use self::macro_kernel::Blocks;
use self::transpose::SIDE;
use crate::simd;
use crate::tasks::{assume_init, for_each, uninit};

struct BlockProduct<'a, L: LeftMatrix, F> {
    left: L,
    right: RightMatrix<'a, L::RightElement>,
    epilogue: F,
}

impl<L: LeftMatrix, F: Epilogue<L::Element>> WithSimd for BlockProduct<'_, L, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        L::Element::run(simd, self);
    }
}

impl<L: LeftMatrix, F: Epilogue<L::Element>> WithArithmetic for BlockProduct<'_, L, F> {
    type Element = L::Element;

    #[inline(always)]
    fn with(mut self, arithmetic: impl Arithmetic<Element = L::Element>) {
        multiply(arithmetic, self.left, self.right, &mut self.epilogue);
    }
}

/// Multiplies on all cores, in blocks.
pub(crate) fn multiply_all<'a, L: LeftMatrix, F: SplittableEpilogue<L::Element>>(
    left: L,
    right: impl Into<RightMatrix<'a, L::RightElement>>,
    epilogue: F,
) {
    multiply_blocks(left, right.into(), epilogue, false);
}

/// [`multiply_all`], or only the part above the diagonal.
fn multiply_blocks<L: LeftMatrix, F: SplittableEpilogue<L::Element>>(
    left: L,
    right: RightMatrix<'_, L::RightElement>,
    epilogue: F,
    is_triangle: bool,
) {
    let blocks = Blocks::new(left, right, F::READS_ONCE);
    let macs = left.n_rows() * left.depth() * right.n_columns();
    for_each(if is_triangle { macs / 2 } else { macs }, blocks.len(), |i| {
        let [mut rows, columns] = blocks.get(i);
        if is_triangle {
            rows.end = rows.end.min(columns.end);
        }
        if rows.is_empty() {
            return;
        }
        simd::dispatch(BlockProduct {
            left: left.part(rows.clone()),
            right: right.columns(columns.clone()),
            // SAFETY: blocks do not overlap, and nothing else accesses the epilogue's outputs until all are done.
            epilogue: unsafe { epilogue.block(rows, columns) },
        });
    });
}

/// `left right + bias` on all cores; the bias may be empty.
pub(crate) fn product<'a, L: LeftMatrix>(
    left: L,
    right: impl Into<RightMatrix<'a, L::RightElement>>,
    bias: &[f32],
) -> Vec<f32> {
    let right = right.into();
    let shape = [left.n_rows(), right.n_columns()];
    let mut out = uninit(shape[0] * shape[1]);
    // SAFETY: the output is not read before it is written, and all of it is written.
    unsafe {
        store(StoreMode::Overwrite, MatrixMut::from_uninit(&mut out, shape), left, right, bias);
        assume_init(out)
    }
}

/// Stores `left right + bias` to `out` on all cores, in one of the [`StoreMode`]s; the bias may be empty.
pub(crate) fn store<'a, L: LeftMatrix>(
    mode: StoreMode,
    out: MatrixMut<'_>,
    left: L,
    right: impl Into<RightMatrix<'a, L::RightElement>>,
    bias: &[f32],
) {
    let right = right.into();
    assert!(bias.is_empty() || bias.len() == right.n_columns(), "one bias per column");
    multiply_all(left, right, Store { mode, out, bias });
}

/// Like [`store`] without a bias, for a square product that is symmetric except for rounding, as the previous values
/// are: computes the part above the diagonal and mirrors it (as BLAS's SYRK).
pub(crate) fn store_symmetric<L: LeftMatrix>(
    mode: StoreMode,
    values: &mut [f32],
    left: L,
    right: PackedRef<'_, L::RightElement>,
) {
    let n = left.n_rows();
    assert_eq!(right.n_columns(), n, "the product is square");
    let epilogue = Store { mode, out: MatrixMut::new(values, [n, n]), bias: &[] };
    multiply_blocks(left, right.into(), epilogue, true);
    simd::dispatch(Mirror { values, n });
}

/// Mirrors the panels of columns above the diagonal of a square matrix to the rows below it.
struct Mirror<'a> {
    values: &'a mut [f32],
    n: usize,
}

impl WithSimd for Mirror<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { values, n } = self;
        for first in (WIDTH..n).step_by(WIDTH) {
            let (above, below) = values.split_at_mut(first * n);
            let n_rows = WIDTH.min(n - first);
            let whole = n_rows / SIDE * SIDE;
            for column in (0..first).step_by(SIDE) {
                for row in (0..whole).step_by(SIDE) {
                    let mut square = [[0.0; SIDE]; SIDE];
                    for (i, x) in square.iter_mut().enumerate() {
                        x.copy_from_slice(&above[(column + i) * n + first + row..][..SIDE]);
                    }
                    for (i, x) in transpose::transposed(simd, square).iter().enumerate() {
                        below[(row + i) * n + column..][..SIDE].copy_from_slice(x);
                    }
                }
                for row in whole..n_rows {
                    for i in column..column + SIDE {
                        below[row * n + i] = above[i * n + first + row];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::SimdLevel;
    use crate::testing::noise;

    /// Rows, depth and columns of products. Some are multiples of tiles, registers and panels, others are not.
    const SHAPES: [[usize; 3]; 13] = [
        [1, 1, 1],
        [3, 5, 2],
        [17, 33, 9],
        [64, 32, 64],
        [1, 40, 70],
        [70, 3, 1],
        [25, 64, 48],
        [13, 100, 41],
        [40, 31, 96],
        [200, 130, 170],
        [800, 300, 70],
        [416, 320, 70], // blocks of whole tiles
        [970, 320, 40], // and a last tile of a few rows
    ];

    fn reference(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f64> {
        let mut out = vec![0.0; m * n];
        for (row, out) in out.chunks_mut(n).enumerate() {
            for i in 0..k {
                for (out, b) in out.iter_mut().zip(&b[i * n..]) {
                    *out += f64::from(a[row * k + i]) * f64::from(*b);
                }
            }
        }
        out
    }

    fn transposed(x: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
        let column = |i: usize| (0..rows).map(move |row| x[row * columns + i]);
        (0..columns).flat_map(column).collect()
    }

    fn assert_close(got: &[f32], want: &[f64], what: &str) {
        for (got, want) in got.iter().zip(want) {
            let distance = (f64::from(*got) - want).abs();
            assert!(distance < 1e-4, "{what}: {got}, not {want}");
        }
    }

    /// Rounds scalars as elements do.
    fn rounded<E: Element>(x: &[f32]) -> Vec<f32> {
        let rounded = |x: &f32| match E::SCALARS {
            1 => *x,
            _ => Bf16x2::new(*x, 0.0).widened()[0],
        };
        x.iter().map(rounded).collect()
    }

    /// Factors `[m, k]` and `[k, n]`, and both transposed.
    struct TestMatrices([Vec<f32>; 4]);

    impl TestMatrices {
        fn new([m, k, n]: [usize; 3]) -> Self {
            let (a, b) = (noise(m * k, 1), noise(k * n, 2));
            let (a_transposed, b_transposed) = (transposed(&a, [m, k]), transposed(&b, [k, n]));
            Self([a, b, a_transposed, b_transposed])
        }

        /// The left matrix plain and transposed; the right matrix in rows and in columns.
        fn matrices(&self, [m, k, n]: [usize; 3]) -> [Matrix<'_>; 4] {
            let Self([a, b, a_transposed, b_transposed]) = self;
            let b_transposed = Matrix::new(b_transposed, [n, k]).transposed();
            [Matrix::new(a, [m, k]), Matrix::new(a_transposed, [k, m]), Matrix::new(b, [k, n]), b_transposed]
        }

        fn product<E: Element>(&self, shape: [usize; 3]) -> Vec<f64> {
            reference(&rounded::<E>(&self.0[0]), &rounded::<E>(&self.0[1]), shape)
        }
    }

    #[test]
    fn product_takes_any_layout() {
        for shape in SHAPES {
            check_layouts::<f32>(shape);
            check_layouts::<Bf16x2>(shape);
        }
    }

    fn check_layouts<E: Element>(shape @ [m, _, n]: [usize; 3]) {
        let factors = TestMatrices::new(shape);
        let want: Vec<f64> = factors.product::<E>(shape).iter().map(|x| x + 1.0).collect();
        let [a, a_transposed, b, b_transposed] = factors.matrices(shape);
        for right in [b, b_transposed] {
            let [plain, transposed, packed] =
                Packed::<E>::all([(a, Role::Left), (a_transposed, Role::Both), (right, Role::Right)]);
            let (left, unpacked, right) = (RowMajor(plain.left()), &right, packed.right());
            let what = format!("{shape:?} of {} in one", E::SCALARS);
            let out = product(left, right, &vec![1.0; n]);
            assert_close(&out, &want, &what);
            assert!(product(left, unpacked, &vec![1.0; n]) == out, "{what}, packed by its tasks");
            let regrouped = Operand::new(transposed.left(), m);
            for left in [transposed.right(), regrouped.right()] {
                let mut sums = vec![1.0; m * n];
                let out = MatrixMut::new(&mut sums, [m, n]);
                store(StoreMode::Accumulate, out, Transposed(left), right, &[]);
                assert_close(&sums, &want, &format!("{what}, left transposed"));
            }
        }
    }

    /// The result of a check at each SIMD level: the same bytes at all of them if it `is_exact`.
    fn by_every_level<C: WithSimd<Output = Vec<f32>>>(check: impl Fn() -> C, is_exact: bool) -> Vec<Vec<f32>> {
        let all: Vec<_> = SimdLevel::available().map(|level| level.dispatch(check())).collect();
        assert!(!is_exact || all.iter().all(|values| *values == all[0]), "levels differ");
        all
    }

    /// A product with the instructions of one SIMD level, from a plain and from a transposed left matrix.
    struct Check<E> {
        shape: [usize; 3],
        elements: PhantomData<E>,
    }

    impl<E: Element> WithSimd for Check<E> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
            let shape @ [m, _, n] = self.shape;
            let factors = TestMatrices::new(shape);
            let [a, a_transposed, _, b] = factors.matrices(shape);
            let [plain, transposed, right] = [(a, Role::Left), (a_transposed, Role::Right), (b, Role::Right)]
                .map(|(matrix, role)| Packed::<E>::by(simd, matrix, role));
            let right = RightMatrix::from(right.right());
            let mut values = vec![f32::NAN; 2 * m * n];
            let (first, second) = values.split_at_mut(m * n);
            let epilogue = |out| Store { mode: StoreMode::Overwrite, out: MatrixMut::new(out, [m, n]), bias: &[] };
            E::run(simd, BlockProduct { left: RowMajor(plain.left()), right, epilogue: epilogue(first) });
            E::run(simd, BlockProduct { left: Transposed(transposed.right()), right, epilogue: epilogue(second) });
            values
        }
    }

    #[test]
    fn simd_levels_multiply_alike() {
        for shape in SHAPES {
            check_levels::<f32>(shape);
            check_levels::<Bf16x2>(shape);
        }
    }

    fn check_levels<E: Element>(shape: [usize; 3]) {
        let want = TestMatrices::new(shape).product::<E>(shape);
        // In f32 each scalar is one sum of fused multiply-adds in the same order.
        let got = by_every_level(|| Check::<E> { shape, elements: PhantomData }, E::SCALARS == 1);
        for got in got {
            assert_close(&got, &want.repeat(2), &format!("{shape:?} of {} in one", E::SCALARS));
        }
    }

    /// Rows of f32 times weights, with the instructions of one SIMD level.
    struct MixedCheck<W> {
        n_rows: usize,
        elements: PhantomData<W>,
    }

    impl<W: Weight> WithSimd for MixedCheck<W> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
            let [m, k, n] = [self.n_rows, 3 * WIDTH, 2 * WIDTH];
            let (x, scalars) = (noise(m * k, 1), noise(k * n, 2));
            let mut weights = vec![[W::default(); WIDTH]; 2 * 3 * W::ROWS];
            let mut rounded = vec![0.0; k * n];
            for (block, out) in weights.chunks_exact_mut(W::ROWS).enumerate() {
                let at = |i: usize, j: usize| (block % 3 * WIDTH + i) * n + block / 3 * WIDTH + j;
                let row = |i| std::array::from_fn(|j| scalars[at(i, j)]);
                W::pack(&std::array::from_fn(row), out);
                for (i, j) in (0..WIDTH).flat_map(|i| (0..WIDTH).map(move |j| (i, j))) {
                    rounded[at(i, j)] = W::value(out, i, j);
                }
            }
            let mut values = vec![f32::NAN; m * n];
            let left = Packed::here(simd, Matrix::new(&x, [m, k]));
            let left = Mixed::<W>::new(left.view());
            let right = RightMatrix::from(PackedRef::new(&weights, [3 * W::ROWS, n]));
            let out = MatrixMut::new(&mut values, [m, n]);
            let epilogue = Store { mode: StoreMode::Overwrite, out, bias: &[] };
            f32::run(simd, BlockProduct { left, right, epilogue });
            assert_close(&values, &reference(&x, &rounded, [m, k, n]), &format!("{m} rows of {} in one", W::SCALARS));
            values
        }
    }

    #[test]
    fn simd_levels_multiply_weights_alike() {
        for n_rows in [1, 2, 3, 4, 7, 8, 9, 15, 16] {
            by_every_level(|| MixedCheck::<Bf16x2> { n_rows, elements: PhantomData }, true);
            by_every_level(|| MixedCheck::<Int8x4> { n_rows, elements: PhantomData }, true);
        }
    }

    #[test]
    fn product_keeps_nan() {
        let (mut a, b) = (noise(20 * 3, 1), noise(3 * 4, 2)); // as many rows as a matrix unit multiplies
        a[4] = f32::NAN;
        let [left, right] =
            Packed::<Bf16x2>::all([(Matrix::new(&a, [20, 3]), Role::Left), (Matrix::new(&b, [3, 4]), Role::Right)]);
        let out = product(RowMajor(left.left()), right.right(), &[]);
        for (row, out) in out.chunks(4).enumerate() {
            assert!(out.iter().all(|x| x.is_nan() == (row == 1)), "row {row}");
        }
    }

    #[test]
    fn symmetric_product_equals_whole() {
        for [n, k] in [[1, 1], [5, 40], [32, 7], [33, 64], [70, 3], [200, 130], [301, 400]] {
            check_symmetric::<f32>([n, k]);
            check_symmetric::<Bf16x2>([n, k]);
        }
    }

    fn check_symmetric<E: Element>([n, k]: [usize; 2]) {
        let x = noise(n * k, 1);
        let x = Matrix::new(&x, [n, k]);
        let [left, right] = Packed::<E>::all([(x, Role::Left), (x.transposed(), Role::Right)]);
        let (left, right) = (RowMajor(left.left()), right.right());
        let mut whole = vec![0.0; n * n];
        let mut halves = whole.clone();
        for mode in [StoreMode::Overwrite, StoreMode::AlphaBeta { alpha: -2.0, beta: 0.5 }] {
            store(mode, MatrixMut::new(&mut whole, [n, n]), left, right, &[]);
            store_symmetric(mode, &mut halves, left, right);
            assert!(whole == halves, "[{n}, {k}] of {} in one", E::SCALARS);
        }
    }
}
