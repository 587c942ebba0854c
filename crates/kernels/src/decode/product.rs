//! The product of some rows with packed weights, and what is done with its numbers while they are at hand.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::block::Block;
use super::weights::Blocks;
use super::{Row, WIDTH, Weights, n_panels};
use crate::elementary::{phi, sigmoid};

/// What happens to the numbers of a product.
#[derive(Clone, Copy, Debug)]
pub enum Then<'a> {
    /// They are stored.
    Store,
    /// They are added to what is there.
    Add,
    /// `x Phi(x)`, the Gaussian error linear unit, is stored.
    Gelu,
    /// `max(x, 0)^2` is stored.
    ReluSquared,
    /// `silu(gate) x` is stored, with a gate for each number.
    Gate(&'a [Row]),
}

/// Multiply-adds that one task takes at least: tens of microseconds, where waking a core takes a few.
const TASK: usize = 32 * 1024;

/// `out = x weights + bias`, or what `then` says.
///
/// # Shapes
/// In panels: `x: [n_rows, K]`, `weights: [K, N]`, `bias: [1, N]` -> `out: [n_rows, N]`
///
/// # Panics
/// If the sizes do not fit.
pub fn product(
    weights: &Weights,
    x: &[Row],
    bias: Option<&[Row]>,
    then: Then<'_>,
    out: &mut [Row],
    n_rows: usize,
) {
    assert!(n_rows > 0, "no rows");
    let (x_panels, out_panels) = (n_panels(weights.inputs()), n_panels(weights.outputs()));
    assert_eq!(x.len(), x_panels * n_rows, "numbers of x");
    assert_eq!(out.len(), out_panels * n_rows, "numbers of the product");
    if let Some(bias) = bias {
        assert_eq!(bias.len(), out_panels, "numbers of the bias");
    }
    if let Then::Gate(gate) = then {
        assert_eq!(gate.len(), out.len(), "numbers of the gate");
    }
    let shared = Shared { x, bias, then, n_rows, x_panels };
    match &weights.blocks {
        Blocks::F32(blocks) => shared.run(blocks, out),
        Blocks::Bf16(blocks) => shared.run(blocks, out),
        Blocks::Int8(blocks) => shared.run(blocks, out),
    }
}

/// What all panels of a product share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    x: &'a [Row],
    bias: Option<&'a [Row]>,
    then: Then<'a>,
    n_rows: usize,
    x_panels: usize,
}

impl Shared<'_> {
    fn run<B: Block>(self, blocks: &[B], out: &mut [Row]) {
        let Self { n_rows, x_panels, .. } = self;
        let panel = |(i, (out, blocks)): (usize, (&mut [Row], &[B]))| {
            let then = match self.then {
                Then::Gate(gate) => Then::Gate(&gate[i * n_rows..][..n_rows]),
                other => other,
            };
            let bias = self.bias.map(|bias| &bias[i]);
            Arch::new().dispatch(Panel { blocks, x: self.x, bias, then, out });
        };
        let work = x_panels * WIDTH * WIDTH * n_rows;
        out.par_chunks_mut(n_rows)
            .zip(blocks.par_chunks(x_panels))
            .enumerate()
            .with_min_len(TASK.div_ceil(work))
            .for_each(panel);
    }
}

/// One panel of a product.
struct Panel<'a, B> {
    blocks: &'a [B],
    x: &'a [Row],
    bias: Option<&'a Row>,
    then: Then<'a>,
    out: &'a mut [Row],
}

impl<B: Block> WithSimd for Panel<'_, B> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { blocks, x, bias, then, out } = self;
        multiply(simd, blocks, x, out, After { bias, then });
    }
}

/// What is done with the sums of a row while they are in registers.
///
/// A trait and not a closure, which can not be made to be inlined: what is not is compiled for the oldest CPU.
pub(super) trait Finish {
    /// Writes to `out` what comes of the sums of row `row`.
    fn finish<S: Simd>(&self, row: usize, out: &mut Row, sum: Row);
}

/// The sums are all that is asked for.
pub(super) struct Nothing;

impl Finish for Nothing {
    #[inline(always)]
    fn finish<S: Simd>(&self, _: usize, out: &mut Row, sum: Row) {
        *out = sum;
    }
}

struct After<'a> {
    bias: Option<&'a Row>,
    then: Then<'a>,
}

impl Finish for After<'_> {
    #[inline(always)]
    fn finish<S: Simd>(&self, row: usize, out: &mut Row, mut sum: Row) {
        if let Some(bias) = self.bias {
            for (x, bias) in sum.0.iter_mut().zip(bias.0) {
                *x += bias;
            }
        }
        match self.then {
            Then::Store => {}
            Then::Add => {
                for (x, old) in sum.0.iter_mut().zip(out.0) {
                    *x += old;
                }
            }
            Then::Gelu => {
                for x in &mut sum.0 {
                    *x *= phi::<S>(*x).0;
                }
            }
            Then::ReluSquared => {
                for x in &mut sum.0 {
                    let positive = if *x < 0.0 { 0.0 } else { *x }; // not `max`, which would hide NaN
                    *x = positive * positive;
                }
            }
            Then::Gate(gate) => {
                for (x, gate) in sum.0.iter_mut().zip(gate[row].0) {
                    *x *= gate * sigmoid::<S>(gate);
                }
            }
        }
        *out = sum;
    }
}

/// Multiplies all rows of `x` with the blocks of one panel, and finishes each row.
#[inline(always)]
pub(super) fn multiply<S: Simd, B: Block>(
    simd: S,
    blocks: &[B],
    x: &[Row],
    out: &mut [Row],
    finish: impl Finish,
) {
    // As many rows at once as leave registers for the weights.
    match const { WIDTH / S::F32_LANES } {
        2 => by_tiles::<S, B, 2, 8>(simd, blocks, x, out, finish),
        4 => by_tiles::<S, B, 4, 2>(simd, blocks, x, out, finish),
        8 => by_tiles::<S, B, 8, 2>(simd, blocks, x, out, finish),
        _ => by_tiles::<S, B, WIDTH, 1>(simd, blocks, x, out, finish),
    }
}

/// With V registers for a row of weights, and R rows of `x` at once.
#[inline(always)]
fn by_tiles<S: Simd, B: Block, const V: usize, const R: usize>(
    simd: S,
    blocks: &[B],
    x: &[Row],
    out: &mut [Row],
    finish: impl Finish,
) {
    let n_rows = out.len();
    let mut first = 0;
    while n_rows - first >= R {
        tile::<S, B, V, R>(simd, blocks, x, first, out, &finish);
        first += R;
    }
    if R > 4 && n_rows - first >= 4 {
        tile::<S, B, V, 4>(simd, blocks, x, first, out, &finish);
        first += 4;
    }
    if R > 2 && n_rows - first >= 2 {
        tile::<S, B, V, 2>(simd, blocks, x, first, out, &finish);
        first += 2;
    }
    if n_rows > first {
        tile::<S, B, V, 1>(simd, blocks, x, first, out, &finish);
    }
}

/// The R rows from `first` on.
#[inline(always)]
fn tile<S: Simd, B: Block, const V: usize, const R: usize>(
    simd: S,
    blocks: &[B],
    x: &[Row],
    first: usize,
    out: &mut [Row],
    finish: &impl Finish,
) {
    let zeros = [[simd.splat_f32s(0.0); V]; R];
    let mut sums = zeros;
    for (block, x) in blocks.iter().zip(x.chunks_exact(out.len())) {
        let x: &[Row; R] = x[first..first + R].try_into().expect("R rows");
        let mut part = if B::SCALED { zeros } else { sums };
        for pair in 0..WIDTH / 2 {
            let weights = block.pair::<S, V>(simd, pair);
            for (i, weights) in weights.iter().enumerate() {
                for (sums, x) in part.iter_mut().zip(x) {
                    let x = simd.splat_f32s(x.0[2 * pair + i]);
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = simd.mul_add_f32s(x, *weight, *sum);
                    }
                }
            }
        }
        if B::SCALED {
            let scales = block.scales::<S, V>(simd);
            for (sums, part) in sums.iter_mut().zip(part) {
                for ((sum, part), scale) in sums.iter_mut().zip(part).zip(scales) {
                    *sum = simd.mul_add_f32s(part, scale, *sum);
                }
            }
        } else {
            sums = part;
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        let mut row = Row::ZERO;
        let (values, _) = S::as_mut_simd_f32s(&mut row.0);
        for (values, sum) in values.iter_mut().zip(sums) {
            *values = sum;
        }
        finish.finish::<S>(first + i, &mut out[first + i], row);
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{Bf16, Int8, Whole};
    use super::super::{Precision, read_columns, write_columns};
    use super::*;

    fn noise(i: usize) -> f32 {
        let bits = (i as u32).wrapping_mul(0x9E37_79B9) ^ 0x5bd1;
        let bits = (bits ^ (bits >> 15)).wrapping_mul(0x85EB_CA6B);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Every kind of block, by the instructions of one SIMD level.
    struct Check;

    impl WithSimd for Check {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            check::<S, Whole>(simd);
            check::<S, Bf16>(simd);
            check::<S, Int8>(simd);
        }
    }

    #[inline(always)]
    fn check<S: Simd, B: Block>(simd: S) {
        let row = |n: usize| Row(std::array::from_fn(|i| noise(n * WIDTH + i)));
        let block = |n: usize| B::pack(&std::array::from_fn(|i| row(1000 + n * WIDTH + i)));
        let blocks: Vec<B> = (0..3).map(block).collect();
        for n_rows in [1, 2, 3, 4, 7, 8, 9, 15, 16] {
            let x: Vec<Row> = (0..3 * n_rows).map(row).collect();
            let mut out = vec![Row::ZERO; n_rows];
            multiply(simd, &blocks, &x, &mut out, Nothing);
            for (n, out) in out.iter().enumerate() {
                for (column, got) in out.0.iter().enumerate() {
                    let products = (0..3 * WIDTH).map(|k| {
                        let x = x[k / WIDTH * n_rows + n].0[k % WIDTH];
                        f64::from(x) * f64::from(blocks[k / WIDTH].value(k % WIDTH, column))
                    });
                    let want: f64 = products.sum();
                    assert!((f64::from(*got) - want).abs() < 2e-5, "{got}, not {want}");
                }
            }
        }
    }

    #[test]
    fn every_simd_level_multiplies_every_kind_of_block() {
        Arch::new().dispatch(Check);
        Simd::vectorize(pulp::Scalar, Check);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            Simd::vectorize(simd, Check);
        }
    }

    #[test]
    fn what_is_done_with_the_numbers_is_done_after_the_bias() {
        let ([k, n], n_rows) = ([40, 70], 3);
        let weights = Weights::pack(Precision::F32, [k, n], |i, o| noise(i * n + o));
        let matrix = |columns: usize, seed: usize| {
            let mut rows = vec![Row::ZERO; n_panels(columns) * n_rows];
            for row in 0..n_rows {
                let values: Vec<f32> =
                    (0..columns).map(|i| noise(seed + row * columns + i)).collect();
                write_columns(&mut rows, n_rows, row, 0, &values);
            }
            rows
        };
        let numbers = |rows: &[Row]| {
            let read = |row| {
                let mut values = vec![0.0; n_panels(n) * WIDTH];
                read_columns(rows, n_rows, row, 0, &mut values);
                assert!(values[n..].iter().all(|x| x.abs() < f32::EPSILON), "zeros behind");
                values
            };
            (0..n_rows).flat_map(read).collect::<Vec<f32>>()
        };
        let (x, gate, before) = (matrix(k, 1), matrix(n, 2), matrix(n, 3));
        let bias = super::super::rows_of(&(0..n).map(noise).collect::<Vec<_>>());
        let compute = |then: Then<'_>| {
            let mut out = before.clone();
            product(&weights, &x, Some(&bias), then, &mut out, n_rows);
            numbers(&out)
        };
        let plain = compute(Then::Store);
        let compare = |then, want: &dyn Fn(f64, usize) -> f64| {
            for (i, got) in compute(then).into_iter().enumerate() {
                let want = want(f64::from(plain[i]), i);
                assert!((f64::from(got) - want).abs() < 1e-5, "{then:?}: {got}, not {want}");
            }
        };
        let (gates, old) = (numbers(&gate), numbers(&before));
        compare(Then::Add, &|x, i| x + f64::from(old[i]));
        compare(Then::ReluSquared, &|x, _| x.max(0.0).powi(2));
        compare(Then::Gelu, &|x, _| x * f64::from(phi::<pulp::Scalar>(x as f32).0));
        compare(Then::Gate(&gate), &|x, i| {
            let gate = f64::from(gates[i]);
            x * gate / (1.0 + (-gate).exp())
        });
    }
}
