//! Epilogues process the sums of a product before they are stored.

use std::ops::Range;

use super::arithmetic::Arithmetic;
use super::element::WIDTH;
use super::matrix::MatrixMut;

/// Receives the sums of a product from the registers.
pub(crate) trait Epilogue<E> {
    /// Whether it also receives the sums after the last column, and so always those of whole panels.
    const WHOLE_PANELS: bool = false;

    /// Whether the right matrix is read from memory, and should be read only once.
    const READS_ONCE: bool = false;

    /// Prefetches the data to be combined with the sums of a row, before these are computed.
    #[inline(always)]
    fn prefetch(&self, _row: usize, _column: usize) {}

    /// Receives the sums of row `at[0]` from column `at[1]` on, all from one panel.
    fn apply<A: Arithmetic<Element = E>>(&mut self, arithmetic: A, at: [usize; 2], sums: &[f32]);
}

/// The epilogue of a whole product, which is applied in blocks.
pub(crate) trait SplittableEpilogue<E>: Epilogue<E> + Sync {
    /// The epilogue of a block, with rows and columns counted from the block's first.
    ///
    /// # Safety
    /// Nothing else accesses the block's outputs during its lifetime.
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self;
}

/// Stores the sums, plus the bias.
pub(crate) struct Store<'a> {
    pub(crate) mode: StoreMode,
    pub(crate) out: MatrixMut<'a>,
    /// Added to every row; empty if there is none.
    pub(crate) bias: &'a [f32],
}

/// How sums are combined with the output's previous values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreMode {
    Overwrite,
    /// Adds the sums.
    Accumulate,
    /// `alpha sums + beta previous`, as in a BLAS GEMM.
    AlphaBeta {
        alpha: f32,
        beta: f32,
    },
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

impl<E> SplittableEpilogue<E> for Store<'_> {
    unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let bias = part_of(self.bias, columns.clone());
        // SAFETY: the caller's.
        Self { mode: self.mode, out: unsafe { self.out.block(rows, columns) }, bias }
    }
}

impl Store<'_> {
    #[inline(always)]
    fn store(&mut self, [row, column]: [usize; 2], sums: &[f32]) {
        if let StoreMode::Overwrite = self.mode {
            return self.out.put(row, column, sums);
        }
        let scalars = self.out.get(row, column, sums.len()).iter_mut().zip(sums);
        match self.mode {
            StoreMode::Overwrite => {}
            StoreMode::Accumulate => scalars.for_each(|(out, sum)| *out += sum),
            StoreMode::AlphaBeta { alpha, beta } => scalars.for_each(|(out, sum)| *out = beta * *out + alpha * sum),
        }
    }
}

/// A range of a bias; empty if the bias is.
pub(crate) fn part_of(bias: &[f32], columns: Range<usize>) -> &[f32] {
    if bias.is_empty() { bias } else { &bias[columns] }
}

/// Sums plus bias, which may be empty.
#[inline(always)]
pub(crate) fn biased<'a>(out: &'a mut [f32; WIDTH], sums: &[f32], bias: &[f32], column: usize) -> &'a mut [f32] {
    let values = &mut out[..sums.len()];
    values.copy_from_slice(sums);
    if !bias.is_empty() {
        for (value, bias) in values.iter_mut().zip(&bias[column..]) {
            *value += bias;
        }
    }
    values
}
