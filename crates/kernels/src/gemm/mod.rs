//! Products of matrices, for training and for writing: both matrices are packed, and each number is one sum in the order
//! of the left matrix's columns, the same byte for byte for any number of threads, and in f32 on every CPU with fused
//! multiply-adds.
//!
//! Two things stay apart: weights in bf16 and int8 have a micro-kernel of their own ([`Mixed`]), as activations that are
//! written with are never rounded; and blocks of products with weights that come from memory have all rows, so that
//! each weight is read once.

#![allow(unsafe_code, reason = "each block says why it is sound, and bounds are asserted")]
#![allow(
    clippy::inline_always,
    reason = "what is called in an inner loop must have the instructions of its caller's SIMD level"
)]

mod activation;
mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod element;
mod epilogue;
mod macro_kernel;
mod matrix;
mod micro_kernel;
mod pack;
mod packed;
mod scratch;
mod transpose;
mod weight;

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

pub use activation::ActivationKind;
pub(crate) use arithmetic::{Arithmetic, Exact};
pub(crate) use element::{Bf16x2, Element, Word, as_elements};
pub(crate) use epilogue::{Activate, Epilogue, Mode, Slopes, Store, part_of};
pub(crate) use macro_kernel::multiply;
pub(crate) use matrix::{Matrix, MatrixMut};
pub(crate) use micro_kernel::{Left, Mixed, Plain, Transposed};
pub(crate) use pack::{Packed, Role};
pub(crate) use packed::{PackedRef, Row, WIDTH, n_panels};
pub(crate) use scratch::Scratch;
pub(crate) use weight::{Int8x4, Weight};

use self::arithmetic::WithArithmetic;
use self::macro_kernel::Blocks;
use crate::tasks::{fill, for_each};

/// A block of a product.
struct Block<'a, L: Left, F> {
    left: L,
    right: PackedRef<'a, L::Right>,
    epilogue: F,
}

impl<L: Left, F: Epilogue<L::Element>> WithSimd for Block<'_, L, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        L::Element::run(simd, self);
    }
}

impl<L: Left, F: Epilogue<L::Element>> WithArithmetic for Block<'_, L, F> {
    type Element = L::Element;

    #[inline(always)]
    fn with(mut self, arithmetic: impl Arithmetic<Element = L::Element>) {
        multiply(arithmetic, self.left, self.right, &mut self.epilogue);
    }
}

/// Multiplies on all cores. `epilogue` says what becomes of the sums of each block, whose rows and columns are
/// counted from the block's first.
pub(crate) fn multiply_all<L: Left, F: Epilogue<L::Element>>(
    left: L,
    right: PackedRef<'_, L::Right>,
    epilogue: impl Fn([Range<usize>; 2]) -> F + Sync,
) {
    let blocks = Blocks::new(left, right, F::READS_ONCE);
    for_each(left.n_rows() * left.depth() * right.n_columns(), blocks.len(), |i| {
        let [rows, columns] = blocks.get(i);
        Arch::new().dispatch(Block {
            left: left.part(rows.clone()),
            right: right.columns(columns.clone()),
            epilogue: epilogue([rows, columns]),
        });
    });
}

/// `left right + bias` on all cores; an empty bias is none.
pub(crate) fn product<L: Left>(left: L, right: PackedRef<'_, L::Right>, bias: &[f32]) -> Vec<f32> {
    let shape = [left.n_rows(), right.n_columns()];
    // SAFETY: nothing reads the output before it is written, and all of it is.
    unsafe {
        fill(shape[0] * shape[1], |out| {
            store(Mode::Put, MatrixMut::from_uninit(out, shape), left, right, bias);
        })
    }
}

/// `left right + bias` into `out` on all cores, in one of the [`Mode`]s; an empty bias is none.
pub(crate) fn store<L: Left>(mode: Mode, out: MatrixMut<'_>, left: L, right: PackedRef<'_, L::Right>, bias: &[f32]) {
    assert!(bias.is_empty() || bias.len() == right.n_columns(), "a number for each column");
    multiply_all(left, right, |[rows, columns]| {
        let bias = part_of(bias, columns.clone());
        // SAFETY: blocks do not overlap, and nobody else writes before all are done.
        let out = unsafe { out.block(rows, columns) };
        Store { mode, out, bias }
    });
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::flex::testing::{noise, with_threads};

    /// Rows, depth and columns of products that end within tiles, registers and panels, and that do not.
    const SHAPES: [[usize; 3]; 10] = [
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
    ];

    /// The product in double precision, plus one.
    fn reference(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f64> {
        let mut out = vec![1.0; m * n];
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

    /// What elements make of numbers.
    fn rounded<E: Element>(x: &[f32]) -> Vec<f32> {
        let rounded = |x: &f32| match E::NUMBERS {
            1 => *x,
            _ => Bf16x2::new(*x, 0.0).widened()[0],
        };
        x.iter().map(rounded).collect()
    }

    #[test]
    fn matrices_in_any_order_multiply() {
        for shape in SHAPES {
            multiplies_in_any_order::<f32>(shape);
            multiplies_in_any_order::<Bf16x2>(shape);
        }
    }

    fn multiplies_in_any_order<E: Element>(shape: [usize; 3]) {
        let [m, k, n] = shape;
        let (a, b, bias) = (noise(m * k, 1), noise(k * n, 2), vec![1.0; n]);
        let want = reference(&rounded::<E>(&a), &rounded::<E>(&b), shape);
        let (a_transposed, b_transposed) = (transposed(&a, [m, k]), transposed(&b, [k, n]));
        for b_is_transposed in [false, true] {
            let b = match b_is_transposed {
                false => Matrix::new(&b, [k, n]),
                true => Matrix::new(&b_transposed, [n, k]).transposed(),
            };
            let [plain, transposed, right] = Packed::<E>::all([
                (Matrix::new(&a, [m, k]), Role::Left),
                (Matrix::new(&a_transposed, [k, m]), Role::Both),
                (b, Role::Right),
            ]);
            let (left, right) = (Plain(plain.left()), right.right());
            let what = format!("{shape:?} of {} in one, right matrix transposed: {b_is_transposed}", E::NUMBERS);
            let whole = product(left, right, &bias);
            assert_close(&whole, &want, &what);
            let copy = E::left_as_right(transposed.left(), m);
            let copy = match &copy {
                None => transposed.right(),
                Some(rows) => PackedRef::new(rows, [E::count(k), m]),
            };
            for left in [transposed.right(), copy] {
                let mut sums = vec![1.0; m * n];
                let out = MatrixMut::new(&mut sums, [m, n]);
                store(Mode::Add, out, Transposed(left), right, &[]);
                assert_close(&sums, &want, &format!("{what}, left too"));
            }
        }
    }

    /// A product by the instructions of one SIMD level.
    struct Check<E> {
        shape: [usize; 3],
        transposed: bool,
        elements: PhantomData<E>,
    }

    impl<E: Element> WithSimd for Check<E> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
            let [m, k, n] = self.shape;
            let (a, b) = (noise(m * k, 1), noise(k * n, 2));
            let (a_transposed, b_transposed) = (transposed(&a, [m, k]), transposed(&b, [k, n]));
            let [plain, transposed, right] = [
                (Matrix::new(&a, [m, k]), Role::Left),
                (Matrix::new(&a_transposed, [k, m]), Role::Right),
                (Matrix::new(&b_transposed, [n, k]).transposed(), Role::Right),
            ]
            .map(|(matrix, role)| Packed::<E>::by(simd, matrix, role));
            let right = right.right();
            let mut values = vec![f32::NAN; m * n];
            let out = MatrixMut::new(&mut values, [m, n]);
            let epilogue = Store { mode: Mode::Put, out, bias: &[] };
            if self.transposed {
                let left = Transposed(transposed.right());
                E::run(simd, Block { left, right, epilogue });
            } else {
                let left = Plain(plain.left());
                E::run(simd, Block { left, right, epilogue });
            }
            values
        }
    }

    #[test]
    fn every_simd_level_multiplies() {
        for shape in SHAPES {
            for transposed in [false, true] {
                every_level_multiplies::<f32>(shape, transposed);
                every_level_multiplies::<Bf16x2>(shape, transposed);
            }
        }
    }

    fn every_level_multiplies<E: Element>(shape: [usize; 3], transposed: bool) {
        let check = || Check::<E> { shape, transposed, elements: PhantomData };
        let native = pulp::Arch::new().dispatch(check());
        let [m, k, n] = shape;
        let [a, b] = [(m * k, 1), (k * n, 2)].map(|(n, seed)| rounded::<E>(&noise(n, seed)));
        let want: Vec<_> = reference(&a, &b, shape).iter().map(|x| x - 1.0).collect();
        assert_close(&native, &want, "native");
        assert_close(&Simd::vectorize(pulp::Scalar, check()), &want, "scalar");
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = pulp::x86::V2::try_new() {
                assert_close(&Simd::vectorize(simd, check()), &want, "SSE");
            }
            if let Some(simd) = pulp::x86::V3::try_new() {
                let avx2 = Simd::vectorize(simd, check());
                assert_close(&avx2, &want, "AVX2");
                if E::NUMBERS == 1 {
                    // Each number is one sum of fused multiply-adds in the same order.
                    assert_eq!(avx2, native, "AVX2, {shape:?}");
                }
            }
        }
    }

    /// Rows of f32 times weights, by the instructions of one SIMD level.
    struct MixedCheck<W> {
        n_rows: usize,
        elements: PhantomData<W>,
    }

    impl<W: Weight> WithSimd for MixedCheck<W> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> Vec<f32> {
            let [m, k, n] = [self.n_rows, 3 * WIDTH, 2 * WIDTH];
            let (x, numbers) = (noise(m * k, 1), noise(k * n, 2));
            let mut weights = vec![[W::default(); WIDTH]; 2 * 3 * W::ROWS];
            let mut rounded = vec![0.0; k * n];
            for (block, out) in weights.chunks_exact_mut(W::ROWS).enumerate() {
                let at = |i: usize, j: usize| (block % 3 * WIDTH + i) * n + block / 3 * WIDTH + j;
                let row = |i| std::array::from_fn(|j| numbers[at(i, j)]);
                W::pack(&std::array::from_fn(row), out);
                for (i, j) in (0..WIDTH).flat_map(|i| (0..WIDTH).map(move |j| (i, j))) {
                    rounded[at(i, j)] = W::value(out, i, j);
                }
            }
            let mut values = vec![f32::NAN; m * n];
            let left = Packed::here(simd, Matrix::new(&x, [m, k]));
            let left = Mixed::<W>::new(left.view());
            let right = PackedRef::new(&weights, [3 * W::ROWS, n]);
            let out = MatrixMut::new(&mut values, [m, n]);
            let epilogue = Store { mode: Mode::Put, out, bias: &[] };
            f32::run(simd, Block { left, right, epilogue });
            let want: Vec<_> = reference(&x, &rounded, [m, k, n]).iter().map(|x| x - 1.0).collect();
            assert_close(&values, &want, &format!("{m} rows of {} in one", W::NUMBERS));
            values
        }
    }

    #[test]
    fn every_simd_level_multiplies_every_kind_of_weights() {
        for n_rows in [1, 2, 3, 4, 7, 8, 9, 15, 16] {
            every_level_multiplies_weights::<f32>(n_rows);
            every_level_multiplies_weights::<Bf16x2>(n_rows);
            every_level_multiplies_weights::<Int8x4>(n_rows);
        }
    }

    fn every_level_multiplies_weights<W: Weight>(n_rows: usize) {
        let check = || MixedCheck::<W> { n_rows, elements: PhantomData };
        let native = Arch::new().dispatch(check());
        Simd::vectorize(pulp::Scalar, check());
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            assert_eq!(Simd::vectorize(simd, check()), native, "AVX2, {n_rows} rows");
        }
        let _ = native;
    }

    #[test]
    fn what_is_no_number_stays_so() {
        let (mut a, b) = (noise(5 * 3, 1), noise(3 * 4, 2));
        a[4] = f32::NAN;
        let [left, right] =
            Packed::<Bf16x2>::all([(Matrix::new(&a, [5, 3]), Role::Left), (Matrix::new(&b, [3, 4]), Role::Right)]);
        let out = product(Plain(left.left()), right.right(), &[]);
        for (row, out) in out.chunks(4).enumerate() {
            assert!(out.iter().all(|x| x.is_nan() == (row == 1)), "row {row}");
        }
    }

    #[test]
    fn blocks_cover_every_number_once() {
        for [m, k, n] in [[1, 1, 1], [768, 128, 384], [100, 5000, 70], [3000, 7, 33]] {
            let rows = vec![[0.0; WIDTH]; (m * n_panels(k)).max(k * n_panels(n))];
            let left = PackedRef::new(&rows, [m, k]);
            let right = PackedRef::new(&rows, [k, n]);
            let mut times = vec![0; m * n];
            let blocks = Blocks::new(Plain(left), right, false);
            for [rows, columns] in (0..blocks.len()).map(|i| blocks.get(i)) {
                for row in rows {
                    columns.clone().for_each(|column| times[row * n + column] += 1);
                }
            }
            assert!(times.iter().all(|times| *times == 1), "[{m}, {k}, {n}]");
        }
    }

    #[test]
    fn a_block_is_written_and_nothing_beside_it() {
        let (a, b) = (noise(6 * 7, 1), noise(7 * 10, 2));
        let matrices = [Matrix::new(&a, [6, 7]), Matrix::new(&b, [7, 10])];
        let [left, right] = Packed::all(matrices.map(|matrix| (matrix, Role::Both)));
        let mut values = vec![f32::NAN; 6 * 12];
        let mut out = MatrixMut::within(&mut values, [6, 10], 12);
        let part = Plain(left.view().rows(2..6));
        store(Mode::Put, out.rows(2, 4), part, right.view(), &[]);
        let want = reference(&a, &b, [6, 7, 10]);
        for (row, values) in values.chunks(12).enumerate() {
            let (written, beside) = values.split_at(if row < 2 { 0 } else { 10 });
            let want: Vec<_> = want[row * 10..].iter().map(|x| x - 1.0).collect();
            assert_close(written, &want, "a row");
            assert!(beside.iter().all(|x| x.is_nan()), "row {row} has more numbers");
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        let bits = |threads| {
            let got = with_threads(threads, || {
                let (a, b) = (noise(300 * 200, 1), noise(200 * 150, 2));
                let matrices = [Matrix::new(&a, [300, 200]), Matrix::new(&b, [200, 150])];
                let [left, right] = Packed::all(matrices.map(|matrix| (matrix, Role::Both)));
                product(Plain(left.view()), right.view(), &[])
            });
            got.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(1), bits(2));
    }
}
