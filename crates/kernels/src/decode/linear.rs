//! Linear layers whose weights are packed once and multiplied many times.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::packed_rows::{PackedRows, Rows};
use super::pages::Pages;
use crate::activation::Activation;
use crate::gemm::{
    Arithmetic, Bf16x2, Epilogue, Int8x4, Integers, MatrixMut, Mixed, PackedRef, Quantized, Row, RowMajor,
    SplittableEpilogue, Store, StoreMode, WIDTH, Weight, multiply_all, n_panels, quantize, scales,
};
use crate::mlp::epilogue::ActivationEpilogue;
use crate::simd;

/// The storage format of weights, and the rounding of the rows that they are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As trained, 4 bytes per weight.
    #[default]
    F32,
    /// `bfloat16`: the range of f32 with 8 significant bits instead of 24, 2 bytes per weight.
    Bf16,
    /// Integers from -127 to 127 in blocks of 32 with one scale each, 1.125 bytes per weight.
    Int8,
    /// [`Precision::Int8`], with activations rounded to such blocks too, once per product.
    W8A8,
}

impl Precision {
    /// All formats, from the most to the least precise.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Int8, Self::W8A8];

    /// The name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::W8A8 => "w8a8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

thread_local! {
    /// Memory for rounded rows, so that decoding allocates nothing.
    static QUANTIZED: Cell<Vec<Quantized>> = const { Cell::new(Vec::new()) };
}

/// A linear layer: weights `[K, N]`, packed in blocks of 32 rows, and an optional bias.
#[derive(Debug)]
pub struct PackedLinear {
    weights: Weights,
    shape: [usize; 2],
    /// Padded to whole panels; empty if there is no bias.
    bias: Vec<f32>,
    /// Whether rows are rounded to int8, as these weights are.
    rounds_rows: bool,
}

#[derive(Debug)]
enum Weights {
    F32(Pages<f32>),
    Bf16(Pages<Bf16x2>),
    Int8(Pages<Int8x4>),
}

impl PackedLinear {
    /// Packs a weight matrix of the `shape` `[inputs, outputs]`, whose elements are `at(input, output)`.
    ///
    /// # Panics
    /// If the length of the bias is not the number of outputs.
    pub fn pack(
        precision: Precision,
        shape: [usize; 2],
        at: impl Fn(usize, usize) -> f32 + Sync,
        bias: Option<Vec<f32>>,
    ) -> Self {
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == shape[1]), "a bias for each output");
        let weights = match precision {
            Precision::F32 => Weights::F32(pack(shape, at)),
            Precision::Bf16 => Weights::Bf16(pack(shape, at)),
            Precision::Int8 | Precision::W8A8 => Weights::Int8(pack(shape, at)),
        };
        let mut bias = bias.unwrap_or_default();
        bias.resize(bias.len().next_multiple_of(WIDTH), 0.0);
        Self { weights, shape, bias, rounds_rows: precision == Precision::W8A8 }
    }

    /// The storage format of the weights.
    pub fn precision(&self) -> Precision {
        match self.weights {
            Weights::F32(_) => Precision::F32,
            Weights::Bf16(_) => Precision::Bf16,
            Weights::Int8(_) if self.rounds_rows => Precision::W8A8,
            Weights::Int8(_) => Precision::Int8,
        }
    }

    /// The size of the packed weights in bytes. Every product reads all of them.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::F32(rows) => size_of_val(&rows[..]),
            Weights::Bf16(rows) => size_of_val(&rows[..]),
            Weights::Int8(rows) => size_of_val(&rows[..]),
        }
    }

    /// `[inputs, outputs]`
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// All weights as the storage format rounds them, `[inputs, outputs]`, computed on all cores.
    pub fn widened(&self) -> Vec<f32> {
        let [inputs, outputs] = self.shape;
        let mut out = vec![0.0; inputs * outputs];
        let rows = out.par_chunks_mut((WIDTH * outputs).max(1)).enumerate();
        rows.for_each(|(i, out)| self.widen(i * WIDTH..inputs.min((i + 1) * WIDTH), 0..outputs, out));
        out
    }

    /// A part of the rounded weights, in rows. The ranges begin with multiples of [`WIDTH`].
    pub(crate) fn widen(&self, inputs: Range<usize>, outputs: Range<usize>, out: &mut [f32]) {
        assert!(inputs.end <= self.shape[0] && outputs.end <= self.shape[1], "{inputs:?}, {outputs:?}");
        let n_blocks = n_panels(self.shape[0]);
        match &self.weights {
            Weights::F32(rows) => simd::dispatch(Widen { rows, n_blocks, inputs, outputs, out }),
            Weights::Bf16(rows) => simd::dispatch(Widen { rows, n_blocks, inputs, outputs, out }),
            Weights::Int8(rows) => simd::dispatch(Widen { rows, n_blocks, inputs, outputs, out }),
        }
    }

    /// The weight from `input` to `output`, as the storage format rounds it.
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn value(&self, input: usize, output: usize) -> f32 {
        let [inputs, outputs] = self.shape;
        assert!(input < inputs && output < outputs, "[{input}, {output}] of [{inputs}, {outputs}]");
        match &self.weights {
            Weights::F32(rows) => value(rows, inputs, [input, output]),
            Weights::Bf16(rows) => value(rows, inputs, [input, output]),
            Weights::Int8(rows) => value(rows, inputs, [input, output]),
        }
    }

    /// `out = x weights + bias`, row by row.
    ///
    /// # Panics
    /// If the sizes do not match; so do [`Self::add`], [`Self::pack_into`] and [`Self::activate`].
    pub fn store(&self, x: &PackedRows, out: &mut Rows) {
        assert_eq!(out.n_columns, self.shape[1], "outputs");
        self.multiply_to(StoreMode::Overwrite, x.view(), out.whole_panels(x.n_rows));
    }

    /// `out += x weights + bias`, row by row.
    pub fn add(&self, x: &PackedRows, out: &mut Rows) {
        assert_eq!(out.n_columns, self.shape[1], "outputs");
        self.multiply_to(StoreMode::Accumulate, x.view(), out.whole_panels(x.n_rows));
    }

    /// `out = x weights + bias`, packed.
    pub fn pack_into(&self, x: &PackedRows, out: &mut PackedRows) {
        assert_eq!(out.n_columns, self.shape[1], "outputs");
        self.multiply_to(StoreMode::Overwrite, x.view(), out.resize(x.n_rows));
    }

    /// `out = activation(x weights + bias)`, packed. If the activation is gated, `gate` holds a value for each output
    /// and is overwritten.
    pub fn activate(&self, x: &PackedRows, activation: Activation, gate: &mut PackedRows, out: &mut PackedRows) {
        assert_eq!(out.n_columns, self.shape[1], "outputs");
        let (active, gate) = (out.resize(x.n_rows), gate.resize(x.n_rows));
        // SAFETY: the block is empty.
        let derivatives = [unsafe { gate.block(0..0, 0..0) }, gate];
        self.multiply(
            x.view(),
            LinearEpilogue::Activate(ActivationEpilogue { activation, bias: &self.bias, active, derivatives }),
        );
    }

    /// The bias, which is empty if there is none, and padded to whole panels.
    pub(super) fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// Stores `x weights + bias` to `out`, which has whole panels.
    pub(super) fn multiply_to(&self, mode: StoreMode, x: PackedRef<'_>, out: MatrixMut<'_>) {
        self.multiply(x, LinearEpilogue::Store(Store { mode, out, bias: &self.bias }));
    }

    fn multiply(&self, x: PackedRef<'_>, output: LinearEpilogue<'_>) {
        let [inputs, outputs] = [self.shape[0], n_panels(self.shape[1]) * WIDTH];
        assert_eq!(x.n_columns(), inputs, "inputs");
        let n_blocks = n_panels(inputs);
        match &self.weights {
            Weights::F32(rows) => {
                let right = PackedRef::within(rows, [inputs, outputs], n_blocks * f32::ROWS);
                multiply_all(RowMajor(x), right, output);
            }
            Weights::Bf16(rows) => {
                let right = PackedRef::new(rows, [n_blocks * Bf16x2::ROWS, outputs]);
                multiply_all(Mixed::new(x), right, output);
            }
            Weights::Int8(rows) => {
                let right = PackedRef::new(rows, [n_blocks * Int8x4::ROWS, outputs]);
                if self.rounds_rows {
                    let mut rows = QUANTIZED.take();
                    quantize(x, &mut rows);
                    multiply_all(Integers::new(&rows, x.n_rows()), right, output);
                    QUANTIZED.set(rows);
                } else {
                    multiply_all(Mixed::new(x), right, output);
                }
            }
        }
    }
}

fn pack<W: Weight>([inputs, outputs]: [usize; 2], at: impl Fn(usize, usize) -> f32 + Sync) -> Pages<W> {
    let n_blocks = n_panels(inputs);
    let scalar = |input: usize, output: usize| match input < inputs && output < outputs {
        true => at(input, output),
        false => 0.0,
    };
    let mut rows = Pages::zeros(n_panels(outputs) * n_blocks * W::ROWS);
    rows.par_chunks_exact_mut(W::ROWS).enumerate().for_each(|(i, block)| {
        let (input, output) = (i % n_blocks * WIDTH, i / n_blocks * WIDTH);
        let scalars: [Row; WIDTH] =
            std::array::from_fn(|row| std::array::from_fn(|column| scalar(input + row, output + column)));
        W::pack(&scalars, block);
    });
    rows
}

struct Widen<'a, W> {
    rows: &'a [Row<W>],
    /// The number of blocks in a panel.
    n_blocks: usize,
    inputs: Range<usize>,
    outputs: Range<usize>,
    out: &'a mut [f32],
}

impl<W: Weight> WithSimd for Widen<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, n_blocks, inputs, outputs, out } = self;
        for first in outputs.clone().step_by(WIDTH) {
            let columns = first - outputs.start..outputs.end.min(first + WIDTH) - outputs.start;
            let blocks = rows[first / WIDTH * n_blocks * W::ROWS..].chunks_exact(W::ROWS).skip(inputs.start / WIDTH);
            for (block, out) in blocks.zip(out.chunks_mut(WIDTH * outputs.len())) {
                for (row, out) in out.chunks_exact_mut(outputs.len()).enumerate() {
                    let mut scalars = [0.0; WIDTH];
                    for (i, scalars) in S::as_mut_simd_f32s(&mut scalars).0.iter_mut().enumerate() {
                        let column = i * S::F32_LANES;
                        let [scalar] = W::widen::<S, 1>(simd, &block[row / W::SCALARS], column, row % W::SCALARS);
                        let [scale] = scales::<S, W, 1>(simd, block, column);
                        *scalars = simd.mul_f32s(scalar, scale);
                    }
                    out[columns.clone()].copy_from_slice(&scalars[..columns.len()]);
                }
            }
        }
    }
}

fn value<W: Weight>(rows: &[Row<W>], inputs: usize, [input, output]: [usize; 2]) -> f32 {
    let block = output / WIDTH * n_panels(inputs) + input / WIDTH;
    W::value(&rows[block * W::ROWS..][..W::ROWS], input % WIDTH, output % WIDTH)
}

/// One epilogue type for all kinds of output, so that the product of each precision is compiled only once.
enum LinearEpilogue<'a> {
    Store(Store<'a>),
    Activate(ActivationEpilogue<'a, f32>),
}

impl Epilogue<f32> for LinearEpilogue<'_> {
    const WHOLE_PANELS: bool = true;
    const READS_ONCE: bool = true;

    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        match self {
            Self::Store(store) => Epilogue::<f32>::prefetch(store, row, column),
            Self::Activate(activate) => activate.prefetch(row, column),
        }
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = f32>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]) {
        match self {
            Self::Store(store) => store.apply(arithmetic, at, sums),
            Self::Activate(activate) => activate.apply(arithmetic, at, sums),
        }
    }
}

impl SplittableEpilogue<f32> for LinearEpilogue<'_> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        // SAFETY: the caller upholds the contract of `block`.
        unsafe {
            match self {
                Self::Store(store) => Self::Store(SplittableEpilogue::<f32>::block(store, rows, columns)),
                Self::Activate(activate) => Self::Activate(activate.block(rows, columns)),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "the same operations on the same scalars")]
mod tests {
    use super::*;
    use crate::testing;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        testing::noise(n, seed).iter().map(|x| x / 2.0).collect()
    }

    fn packed_rows(x: &[f32], n_columns: usize) -> PackedRows {
        let n_rows = x.len() / n_columns;
        let mut out = PackedRows::new(n_rows, n_columns);
        let mut rows = out.resize(n_rows);
        x.chunks(n_columns).enumerate().for_each(|(row, x)| rows.put_across(row, 0, x));
        out
    }

    fn unpacked(rows: &PackedRows) -> Vec<f32> {
        let view = rows.view();
        let row = |row: usize| (0..rows.n_columns).map(move |i| view.panel(i / WIDTH)[row][i % WIDTH]);
        (0..rows.n_rows).flat_map(row).collect()
    }

    const SHAPE: [usize; 2] = [40, 70];

    fn linear(precision: Precision, bias: Option<Vec<f32>>) -> PackedLinear {
        let scalars = noise(40 * 70, 1);
        PackedLinear::pack(precision, SHAPE, |input, output| scalars[input * 70 + output], bias)
    }

    #[test]
    fn packed_weights_keep_places_and_zero_padding() {
        let linear = linear(Precision::F32, None);
        let scalars = noise(40 * 70, 1);
        assert_eq!([linear.value(39, 69), linear.value(0, 32)], [scalars[40 * 70 - 1], scalars[32]]);
        assert_eq!(linear.widened(), scalars);
        assert_eq!(linear.bytes(), 2 * 3 * 32 * 32 * 4);
        let Weights::F32(rows) = &linear.weights else { panic!("f32") };
        assert_eq!(rows[40], [0.0; WIDTH], "below the last row");
        assert_eq!(rows[4 * 32][6..], [0.0; WIDTH - 6], "after the last column");
    }

    /// Rows rounded to 255 values in each block of 32 scalars.
    fn rounded(x: &[f32], n_columns: usize) -> Vec<f32> {
        let block = |block: &[f32]| {
            let scale = block.iter().fold(0.0, |m: f32, x| m.max(x.abs())) / 127.0;
            block.iter().map(|x| (x / scale).round() * scale).collect::<Vec<_>>()
        };
        x.chunks(n_columns).flat_map(|row| row.chunks(WIDTH).flat_map(block)).collect()
    }

    #[test]
    fn packed_linear_multiplies_and_activates_after_bias() {
        let [k, n] = SHAPE;
        for (precision, n_rows) in Precision::ALL.into_iter().flat_map(|x| [1, 3, 30].map(|n| (x, n))) {
            let linear = linear(precision, Some(noise(n, 2)));
            let x = noise(n_rows * k, 3);
            let packed = packed_rows(&x, k);
            let multiplied = if precision == Precision::W8A8 { rounded(&x, k) } else { x.clone() };
            let mut out = Rows::new(n_rows, n);
            linear.store(&packed, &mut out);
            let scalars = |rows: &Rows| (0..n_rows).flat_map(|i| rows.row(i).to_vec()).collect::<Vec<_>>();
            let stored = scalars(&out);
            for (i, got) in stored.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let product = |input| f64::from(multiplied[row * k + input]) * f64::from(linear.value(input, column));
                let want = (0..k).map(product).sum::<f64>() + f64::from(noise(n, 2)[column]);
                assert!((f64::from(*got) - want).abs() < 1e-5, "{precision}: {got}, not {want}");
            }
            linear.add(&packed, &mut out);
            assert!(stored.iter().map(|x| x + x).eq(scalars(&out)), "{precision}");
            let (mut gate, mut out) = (PackedRows::new(n_rows, n), PackedRows::new(n_rows, n));
            linear.pack_into(&packed, &mut out);
            assert_eq!(unpacked(&out), stored, "{precision}");
            let gates = noise(n_rows * n, 5);
            for kind in Activation::ALL {
                if kind.is_gated() {
                    gate = packed_rows(&gates, n);
                }
                linear.activate(&packed, kind, &mut gate, &mut out);
                let mut plain = Rows::new(n_rows, n);
                linear.store(&packed, &mut plain);
                let mut apart = PackedRows::new(n_rows, n);
                if kind.is_gated() {
                    gate = packed_rows(&gates, n);
                }
                apart.activate(&plain, n_rows, kind, &mut gate);
                assert_eq!(unpacked(&apart), unpacked(&out), "{precision}: two steps change bytes");
                for (i, got) in unpacked(&out).into_iter().enumerate() {
                    let (x, gate) = (f64::from(stored[i]), f64::from(gates[i]));
                    let by_tanh = |x: f32| f64::from(x * crate::elementary::phi_by_tanh::<pulp::Scalar>(x).0);
                    let want = match kind {
                        Activation::Gelu => x * f64::from(crate::elementary::phi::<pulp::Scalar>(stored[i]).0),
                        Activation::GeluTanh => by_tanh(stored[i]),
                        Activation::Geglu => x * by_tanh(gates[i]),
                        Activation::ReluSquared => x.max(0.0).powi(2),
                        Activation::Swiglu => x * gate / (1.0 + (-gate).exp()),
                    };
                    assert!((f64::from(got) - want).abs() < 1e-5, "{kind:?}: {got}, not {want}");
                }
            }
        }
    }
}
