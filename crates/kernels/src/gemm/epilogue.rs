//! What becomes of the sums of a product.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::activation::ActivationKind;
use super::arithmetic::Arithmetic;
use super::element::Element;
use super::matrix::MatrixMut;
use super::packed::{PackedMut, PackedRef, WIDTH};

/// What is done with the sums of a product of elements as they come out of the registers.
pub(crate) trait Epilogue<E> {
    /// Is told of a row's sums before they are computed, so that what they will meet can come into the cache meanwhile.
    fn prefetch(&self, row: usize, column: usize);

    /// Takes the sums of row `row` from column `column` on: no more columns than a panel has, all of one panel.
    fn apply<A: Arithmetic<Element = E>>(
        &mut self,
        arithmetic: A,
        row: usize,
        column: usize,
        sums: &[f32],
    );
}

/// Writes the sums.
pub(crate) struct Put<'a> {
    pub(crate) out: MatrixMut<'a>,
    /// Added to every row; empty for none.
    pub(crate) bias: &'a [f32],
}

impl<E> Epilogue<E> for Put<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, row: usize, column: usize, sums: &[f32]) {
        if self.bias.is_empty() {
            self.out.put(row, column, sums);
        } else {
            let mut values = [0.0; WIDTH];
            let values = biased(&mut values, sums, self.bias, column);
            self.out.put(row, column, values);
        }
    }
}

/// Some columns of a bias; of an empty one nothing.
pub(crate) fn part_of(bias: &[f32], columns: Range<usize>) -> &[f32] {
    if bias.is_empty() { bias } else { &bias[columns] }
}

/// Sums and bias; an empty bias is none.
#[inline(always)]
pub(crate) fn biased<'a>(
    out: &'a mut [f32; WIDTH],
    sums: &[f32],
    bias: &[f32],
    column: usize,
) -> &'a mut [f32] {
    let values = &mut out[..sums.len()];
    values.copy_from_slice(sums);
    if !bias.is_empty() {
        for (value, bias) in values.iter_mut().zip(&bias[column..]) {
            *value += bias;
        }
    }
    values
}

/// Adds the sums and the bias to what is there.
pub(crate) struct Add<'a> {
    pub(crate) out: MatrixMut<'a>,
    /// Added to every row; empty for none.
    pub(crate) bias: &'a [f32],
}

impl<E> Epilogue<E> for Add<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, row: usize, column: usize, sums: &[f32]) {
        if self.bias.is_empty() {
            self.out.add(row, column, sums);
        } else {
            let mut values = [0.0; WIDTH];
            let values = biased(&mut values, sums, self.bias, column);
            self.out.add(row, column, values);
        }
    }
}

/// Blends the sums with what is there.
pub(crate) struct Blend<'a> {
    pub(crate) out: MatrixMut<'a>,
    /// What both are multiplied with: what is there, and the sums.
    pub(crate) shares: [f32; 2],
}

impl<E> Epilogue<E> for Blend<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, row: usize, column: usize, sums: &[f32]) {
        let [kept, added] = self.shares;
        let out = &mut self.out.row(row)[column..][..sums.len()];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = kept * *out + added * sum;
        }
    }
}

/// Writes sums and bias to panels.
pub(crate) struct Biased<'a> {
    pub(crate) out: PackedMut<'a>,
    pub(crate) bias: &'a [f32],
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
pub(crate) struct Activate<'a, E> {
    pub(crate) activation: ActivationKind,
    pub(crate) bias: &'a [f32],
    /// What comes of it.
    pub(crate) active: PackedMut<'a, E>,
    /// The derivative, and the gate, which is replaced by its derivative; where they are not to be kept, or not
    /// there, of no numbers.
    pub(crate) derivatives: [PackedMut<'a>; 2],
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
            ActivationKind::Swiglu => gate.get(row, column, sums.len()),
            ActivationKind::Gelu | ActivationKind::ReluSquared => &mut [],
        };
        let out = self.activation.forward::<A::Simd>(values, gate, out);
        self.active.put_elements(arithmetic, row, column, out);
        if !slope.is_empty() {
            slope.put(row, column, values);
        }
    }
}

/// Writes to panels the sums times the derivatives of the activation.
pub(crate) struct Slopes<'a, E> {
    /// By what went into it, and by the gate.
    pub(crate) slopes: [Option<PackedRef<'a>>; 2],
    pub(crate) outs: [PackedMut<'a, E>; 2],
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
