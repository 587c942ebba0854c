//! The epilogues of the feed-forward layer's first projection, forward and backward.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::activation::Activation;
use crate::gemm::{Arithmetic, Element, Epilogue, MatrixMut, PackedRef, SplittableEpilogue, WIDTH, biased, part_of};

/// Stores the activation of sums plus bias in panels, and the derivatives with respect to them and to the gate.
pub(crate) struct ActivationEpilogue<'a, E> {
    pub(crate) activation: Activation,
    pub(crate) bias: &'a [f32],
    pub(crate) active: MatrixMut<'a, E>,
    /// The derivative, and the gate, which is replaced by the derivative with respect to it; empty if not needed or if
    /// there is no gate.
    pub(crate) derivatives: [MatrixMut<'a>; 2],
}

impl<E: Element> Epilogue<E> for ActivationEpilogue<'_, E> {
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

impl<E: Element> SplittableEpilogue<E> for ActivationEpilogue<'_, E> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let bias = part_of(self.bias, columns.clone());
        // SAFETY: the caller's.
        let derivatives = self.derivatives.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) });
        // SAFETY: the caller's.
        Self { activation: self.activation, bias, active: unsafe { self.active.block(rows, columns) }, derivatives }
    }
}

/// Stores the sums times the derivatives of the activation in panels.
pub(crate) struct SlopeEpilogue<'a, E> {
    /// The derivatives with respect to the input, and to the gate.
    pub(crate) slopes: [Option<PackedRef<'a>>; 2],
    pub(crate) outs: [MatrixMut<'a, E>; 2],
}

impl<E: Element> Epilogue<E> for SlopeEpilogue<'_, E> {
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

impl<E: Element> SplittableEpilogue<E> for SlopeEpilogue<'_, E> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let slopes = self.slopes.map(|slope| slope.map(|slope| slope.rows(rows.clone()).columns(columns.clone())));
        // SAFETY: the caller's.
        let outs = self.outs.each_ref().map(|out| unsafe { out.block(rows.clone(), columns.clone()) });
        Self { slopes, outs }
    }
}
