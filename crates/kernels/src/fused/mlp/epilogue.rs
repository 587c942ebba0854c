//! What becomes of the sums of a feed-forward layer's projections.

use std::mem::MaybeUninit;

use crate::gemm::Activation;
use crate::gemm::{Arithmetic, Element, Epilogue, PackedMut, PackedRef, WIDTH, biased};

/// Writes sums and bias to panels.
pub(super) struct Biased<'a> {
    pub(super) out: PackedMut<'a>,
    pub(super) bias: &'a [f32],
}

impl<E> Epilogue<E> for Biased<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, row: usize, column: usize, sums: &[f32]) {
        let mut values = [0.0; WIDTH];
        let values = biased(&mut values, sums, self.bias, column);
        self.out.put(row, column, values);
    }
}

/// Writes to panels what the activation makes of sums and bias, and its derivatives by them and by the gate.
pub(super) struct Activate<'a, E> {
    pub(super) activation: Activation,
    pub(super) bias: &'a [f32],
    /// What comes of it.
    pub(super) active: PackedMut<'a, E>,
    /// The derivative, and the gate, which is replaced by its derivative; where they are not to be kept, or not
    /// there, of no numbers.
    pub(super) derivatives: [PackedMut<'a>; 2],
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
    fn apply<A: Arithmetic<Element = E>>(
        &mut self,
        arithmetic: A,
        row: usize,
        column: usize,
        sums: &[f32],
    ) {
        let [slope, gate] = &mut self.derivatives;
        let mut values = [0.0; WIDTH];
        let values = biased(&mut values, sums, self.bias, column);
        let mut out = [const { MaybeUninit::uninit() }; WIDTH];
        let out = &mut out[..sums.len()];
        let gate = match self.activation {
            Activation::Swiglu => gate.get(row, column, sums.len()),
            Activation::Gelu | Activation::ReluSquared => &mut [],
        };
        let out = self.activation.forward::<A::Simd>(values, gate, out);
        self.active.put_elements(arithmetic, row, column, out);
        if !slope.is_empty() {
            slope.put(row, column, values);
        }
    }
}

/// Writes to panels the sums times the derivatives of the activation.
pub(super) struct Slopes<'a, E> {
    /// By what went into it, and by the gate.
    pub(super) slopes: [Option<PackedRef<'a>>; 2],
    pub(super) outs: [PackedMut<'a, E>; 2],
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
    fn apply<A: Arithmetic<Element = E>>(
        &mut self,
        arithmetic: A,
        row: usize,
        column: usize,
        sums: &[f32],
    ) {
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
