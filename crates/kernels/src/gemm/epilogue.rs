//! Epilogues: how the sums of a product are stored.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::element::Element;
use super::matrix::MatrixMut;
use super::packed::{PackedRef, WIDTH};
use crate::activation::Activation;

/// Takes the sums of a product as they come out of the registers.
pub(crate) trait Epilogue<E> {
    /// Whether sums behind the last column are taken too, so that it always gets those of whole panels.
    const WHOLE_PANELS: bool = false;

    /// Whether the right matrix comes from memory and should be read once.
    const READS_ONCE: bool = false;

    /// Is told of a row's sums before they are computed, so that what they will meet can come into the cache meanwhile.
    #[inline(always)]
    fn prefetch(&self, _row: usize, _column: usize) {}

    /// Takes the sums of row `at[0]` from column `at[1]` on: no more columns than a panel has, all of one panel.
    fn apply<A: Arithmetic<Element = E>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]);
}

/// An epilogue of a whole product, which is applied in blocks.
pub(crate) trait Divisible<E>: Epilogue<E> + Sync {
    /// The epilogue of a block, whose rows and columns are counted from its first.
    ///
    /// # Safety
    /// Nobody else uses the block's outputs as long as it lives.
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self;
}

/// Writes the sums, with the bias.
pub(crate) struct Store<'a> {
    pub(crate) mode: Mode,
    pub(crate) out: MatrixMut<'a>,
    /// Added to every row; empty for none.
    pub(crate) bias: &'a [f32],
}

/// How sums combine with the numbers that are there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    /// They replace them.
    Put,
    /// They are added to them.
    Add,
    /// Both are multiplied, what is there and the sums, and added.
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
            self.store(at, sums); // of known length
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

/// Some columns of a bias; of an empty one nothing.
fn part_of(bias: &[f32], columns: Range<usize>) -> &[f32] {
    if bias.is_empty() { bias } else { &bias[columns] }
}

/// Sums and bias; an empty bias is none.
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

/// Writes to panels what the activation makes of sums and bias, and its derivatives by them and by the gate.
pub(crate) struct Activate<'a, E> {
    pub(crate) activation: Activation,
    pub(crate) bias: &'a [f32],
    /// The activated numbers.
    pub(crate) active: MatrixMut<'a, E>,
    /// The derivative, and the gate, which is replaced by its derivative; where they are not to be kept, or not
    /// there, of no numbers.
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

/// Writes to panels the sums times the derivatives of the activation.
pub(crate) struct Slopes<'a, E> {
    /// By what went into it, and by the gate.
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
