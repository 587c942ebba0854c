//! What becomes of the sums of a product.

use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::matrix::MatrixMut;
use super::packed::WIDTH;

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

/// Adds the sums to what is there.
pub(crate) struct Add<'a> {
    pub(crate) out: MatrixMut<'a>,
}

impl<E> Epilogue<E> for Add<'_> {
    #[inline(always)]
    fn prefetch(&self, row: usize, column: usize) {
        self.out.prefetch(row, column);
    }

    #[inline(always)]
    fn apply<A: Arithmetic<Element = E>>(&mut self, _: A, row: usize, column: usize, sums: &[f32]) {
        self.out.add(row, column, sums);
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
