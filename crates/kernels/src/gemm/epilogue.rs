//! Epilogues: what happens to the sums of a product before they are stored.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::arithmetic::{Arithmetic, Element};
use super::element::WIDTH;
use super::matrix::MatrixMut;
use super::packed::PackedRef;
use crate::activation::Activation;

/// Receives the sums of a product from the registers.
pub(crate) trait Epilogue<E> {
    /// Whether it also takes the sums behind the last column, and so always receives those of whole panels.
    const WHOLE_PANELS: bool = false;

    /// Whether the right matrix is read from memory, and should be read only once.
    const READS_ONCE: bool = false;

    /// Called before the sums of a row are computed, to prefetch the data that they will be combined with.
    #[inline(always)]
    fn prefetch(&self, _row: usize, _column: usize) {}

    /// Receives the sums of row `at[0]` from column `at[1]` on, all of which are in one panel.
    fn apply<A: Arithmetic<Element = E>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]);
}

/// The epilogue of a whole product, which is applied in blocks.
pub(crate) trait Divisible<E>: Epilogue<E> + Sync {
    /// The epilogue of a block, with rows and columns counted from the block's first.
    ///
    /// # Safety
    /// Nothing else accesses the block's outputs during its lifetime.
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self;
}

/// Stores the sums, plus the bias.
pub(crate) struct Store<'a> {
    pub(crate) mode: Mode,
    pub(crate) out: MatrixMut<'a>,
    /// Added to every row; empty if there is none.
    pub(crate) bias: &'a [f32],
}

/// How sums are combined with the output's previous values (alpha and beta of a BLAS GEMM).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    /// The sums replace them.
    Put,
    /// The sums are added to them.
    Add,
    /// Both the previous values and the sums are scaled, then added.
    Blend([f32; 2]),
}

impl<E> Epilogue<E> for Store<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, at: [usize; 2], sums: &[f32]) {
        if self.bias.is_empty() {
            self.store(at, sums); // with a constant length
        } else {
            let mut values = [0.0; WIDTH];
            let values = biased(&mut values, sums, self.bias, at[1]);
            self.store(at, values);
        }
    }
}

impl<E> Divisible<E> for Store<'_> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let bias = part_of(self.bias, columns.clone());
        // SAFETY: the caller's.
        Self { mode: self.mode, out: unsafe { self.out.block(rows, columns) }, bias }
    }
}

impl Store<'_> {
    #[inline(always)]
    fn store(&mut self, [row, column]: [usize; 2], sums: &[f32]) {
        if let Mode::Put = self.mode {
            return self.out.put(row, column, sums);
        }
        let numbers = self.out.get(row, column, sums.len()).iter_mut().zip(sums);
        match self.mode {
            Mode::Put => {}
            Mode::Add => numbers.for_each(|(out, sum)| *out += sum),
            Mode::Blend([old, new]) => numbers.for_each(|(out, sum)| *out = old * *out + new * sum),
        }
    }
}

/// A range of a bias; empty if the bias is.
fn part_of(bias: &[f32], columns: Range<usize>) -> &[f32] {
    if bias.is_empty() { bias } else { &bias[columns] }
}

/// Sums plus bias, which may be empty.
#[inline(always)]
fn biased<'a>(out: &'a mut [f32; WIDTH], sums: &[f32], bias: &[f32], column: usize) -> &'a mut [f32] {
    let values = &mut out[..sums.len()];
    values.copy_from_slice(sums);
    if !bias.is_empty() {
        for (value, bias) in values.iter_mut().zip(&bias[column..]) {
            *value += bias;
        }
    }
    values
}

/// Stores the activation of sums plus bias in panels, and the derivatives with respect to them and to the gate.
pub(crate) struct Activate<'a, E> {
    pub(crate) activation: Activation,
    pub(crate) bias: &'a [f32],
    /// The activations.
    pub(crate) active: MatrixMut<'a, E>,
    /// The derivative, and the gate, which is replaced by the derivative with respect to it; empty if not needed or if
    /// there is no gate.
    pub(crate) derivatives: [MatrixMut<'a>; 2],
}

impl<E: Element> Epilogue<E> for Activate<'_, E> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.active.prefetch(row, column);
        for out in self.derivatives.iter().filter(|out| !out.is_empty()) {
            out.prefetch(row, column);
        }
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]) {
        let [row, column] = at;
        let [slope, gate] = &mut self.derivatives;
        let mut values = [0.0; WIDTH];
        let values = biased(&mut values, sums, self.bias, column);
        let mut out = [const { MaybeUninit::uninit() }; WIDTH];
        let out = &mut out[..sums.len()];
        let gate = if self.activation.is_gated() { gate.get(row, column, sums.len()) } else { &mut [] };
        let out = self.activation.forward::<A::Simd>(values, gate, out);
        self.active.put_elements(arithmetic, row, column, out);
        if !slope.is_empty() {
            slope.put(row, column, values);
        }
    }
}

impl<E: Element> Divisible<E> for Activate<'_, E> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let bias = part_of(self.bias, columns.clone());
        // SAFETY: the caller's.
        let derivatives = self.derivatives.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) });
        // SAFETY: the caller's.
        Self { activation: self.activation, bias, active: unsafe { self.active.block(rows, columns) }, derivatives }
    }
}

/// Stores the sums times the derivatives of the activation in panels.
pub(crate) struct Slopes<'a, E> {
    /// The derivatives with respect to the input, and to the gate.
    pub(crate) slopes: [Option<PackedRef<'a>>; 2],
    pub(crate) outs: [MatrixMut<'a, E>; 2],
}

impl<E: Element> Epilogue<E> for Slopes<'_, E> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        for (slope, out) in self.slopes.iter().zip(&self.outs) {
            if let Some(slope) = slope {
                slope.prefetch(row, column);
                out.prefetch(row, column);
            }
        }
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]) {
        let [row, column] = at;
        for (slope, out) in self.slopes.iter().zip(&mut self.outs) {
            let Some(slope) = slope else { continue };
            let slope = &slope.panel(column / WIDTH)[row][column % WIDTH..][..sums.len()];
            let mut values = [0.0; WIDTH];
            let values = &mut values[..sums.len()];
            for ((value, sum), slope) in values.iter_mut().zip(sums).zip(slope) {
                *value = sum * slope;
            }
            out.put_elements(arithmetic, row, column, values);
        }
    }
}

impl<E: Element> Divisible<E> for Slopes<'_, E> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let slopes = self.slopes.map(|slope| slope.map(|slope| slope.rows(rows.clone()).columns(columns.clone())));
        // SAFETY: the caller's.
        let outs = self.outs.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) });
        Self { slopes, outs }
    }
}
