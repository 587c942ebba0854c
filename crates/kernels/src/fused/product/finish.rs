//! What becomes of the sums of a product.

use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::matrix::MatrixMut;
use super::panels::WIDTH;

/// What is done with the sums of a product of elements as they come out of the registers.
pub(in crate::fused) trait Finish<E> {
    /// Is told of a row's sums before they are computed, so that what they will meet can come into the cache meanwhile.
    fn expect(&self, row: usize, column: usize);

    /// Takes the sums of row `row` from column `column` on: no more columns than a panel has, all of one panel.
    fn finish<A: Arithmetic<Element = E>>(
        &mut self,
        arithmetic: A,
        row: usize,
        column: usize,
        sums: &[f32],
    );
}

/// Writes the sums.
pub(in crate::fused) struct Put<'a> {
    pub(in crate::fused) out: MatrixMut<'a>,
    /// Added to every row; empty for none.
    pub(in crate::fused) bias: &'a [f32],
}

impl<E> Finish<E> for Put<'_> {
    #[inline(always)]
    fn expect(&self, row: usize, column: usize) {
        self.out.fetch(row, column);
    }

    #[inline(always)]
    fn finish<A: Arithmetic<Element = E>>(
        &mut self,
        _: A,
        row: usize,
        column: usize,
        sums: &[f32],
    ) {
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
pub(in crate::fused) fn part_of(bias: &[f32], columns: Range<usize>) -> &[f32] {
    if bias.is_empty() { bias } else { &bias[columns] }
}

/// Sums and bias; an empty bias is none.
#[inline(always)]
pub(in crate::fused) fn biased<'a>(
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
pub(in crate::fused) struct Add<'a> {
    pub(in crate::fused) out: MatrixMut<'a>,
}

impl<E> Finish<E> for Add<'_> {
    #[inline(always)]
    fn expect(&self, row: usize, column: usize) {
        self.out.fetch(row, column);
    }

    #[inline(always)]
    fn finish<A: Arithmetic<Element = E>>(
        &mut self,
        _: A,
        row: usize,
        column: usize,
        sums: &[f32],
    ) {
        self.out.add(row, column, sums);
    }
}

/// Blends the sums with what is there.
pub(in crate::fused) struct Blend<'a> {
    pub(in crate::fused) out: MatrixMut<'a>,
    /// What both are multiplied with: what is there, and the sums.
    pub(in crate::fused) shares: [f32; 2],
}

impl<E> Finish<E> for Blend<'_> {
    #[inline(always)]
    fn expect(&self, row: usize, column: usize) {
        self.out.fetch(row, column);
    }

    #[inline(always)]
    fn finish<A: Arithmetic<Element = E>>(
        &mut self,
        _: A,
        row: usize,
        column: usize,
        sums: &[f32],
    ) {
        let [kept, added] = self.shares;
        let out = &mut self.out.row(row)[column..][..sums.len()];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = kept * *out + added * sum;
        }
    }
}
