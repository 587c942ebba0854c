//! Rows of activations, plain or packed for products with weights; norms that read plain rows and write packed ones.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::pages::Pages;
use crate::flex::in_f32;
use crate::gemm::{MatrixMut, PackedRef, WIDTH, n_panels};
use crate::norm::Norm;
use crate::simd;

/// Plain rows, each padded to whole panels plus one cache line: rows a power of two apart would evict each other from
/// the cache.
#[derive(Debug)]
pub struct Rows {
    values: Vec<f32>,
    row_step: usize,
    n_columns: usize,
}

impl Rows {
    /// Allocates `n_rows` rows of `n_columns` elements.
    #[must_use]
    pub fn new(n_rows: usize, n_columns: usize) -> Self {
        let row_step = n_panels(n_columns) * WIDTH + WIDTH / 2;
        Self { values: vec![0.0; n_rows * row_step], row_step, n_columns }
    }

    /// A row, without its padding.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.row_step..][..self.n_columns]
    }

    /// A row, without its padding, to be written.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.row_step..][..self.n_columns]
    }

    /// The first `n` rows, to be written in parallel.
    pub fn par_rows_mut(&mut self, n: usize) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        let n_columns = self.n_columns;
        let rows = self.values.par_chunks_exact_mut(self.row_step).take(n);
        rows.map(move |row| &mut row[..n_columns])
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// All rows from `first` on, including their padding.
    pub(crate) fn from(&self, first: usize) -> &[f32] {
        &self.values[first * self.row_step..]
    }

    pub(crate) fn row_step(&self) -> usize {
        self.row_step
    }

    /// The first `n_rows` rows, padded to whole panels.
    pub(crate) fn whole_panels(&mut self, n_rows: usize) -> MatrixMut<'_> {
        let n_columns = n_panels(self.n_columns) * WIDTH;
        MatrixMut::within(&mut self.values, [n_rows, n_columns], self.row_step)
    }
}

/// Rows packed as the left operand of a product, in memory that is allocated once.
#[derive(Debug)]
pub struct PackedRows {
    rows: Pages,
    n_rows: usize,
    n_columns: usize,
}

impl PackedRows {
    /// Allocates up to `max_rows` rows of `n_columns` elements.
    #[must_use]
    pub fn new(max_rows: usize, n_columns: usize) -> Self {
        Self { rows: Pages::zeros(max_rows * n_panels(n_columns)), n_rows: 0, n_columns }
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    pub(crate) fn view(&self) -> PackedRef<'_> {
        PackedRef::new(&self.rows, [self.n_rows, self.n_columns])
    }

    /// Sets the number of rows and returns them, padded to whole panels, to be written. The padding after the last
    /// column is multiplied by zero weights, so it must be finite: it is zeroed here, and stays zero unless written.
    pub(crate) fn resize(&mut self, n_rows: usize) -> MatrixMut<'_> {
        self.n_rows = n_rows;
        let n_panels = n_panels(self.n_columns);
        let rows = &mut self.rows[..n_rows * n_panels];
        let behind = self.n_columns % WIDTH;
        if behind > 0 {
            let last = rows.len() - n_rows;
            rows[last..].iter_mut().for_each(|row| row[behind..].fill(0.0));
        }
        MatrixMut::packed(rows, [n_rows, n_panels * WIDTH])
    }
}

/// A norm with its learned parameters: see [`crate::layer_norm`] and [`crate::rms_norm`].
#[derive(Clone, Debug)]
pub struct RowNorm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    norm: Norm,
}

impl RowNorm {
    /// A norm over rows as long as `weight`. If it is `centred`, it subtracts the mean, as layer norm does.
    ///
    /// # Panics
    /// If `bias` and `weight` differ in length.
    #[must_use]
    pub fn new(weight: Vec<f32>, bias: Option<Vec<f32>>, centred: bool, epsilon: f64) -> Self {
        assert!(bias.as_ref().is_none_or(|bias| bias.len() == weight.len()), "a bias for each weight");
        Self { weight, bias, norm: Norm { centred, epsilon: in_f32(epsilon) } }
    }

    /// Normalizes a range of the rows of `x` into `out`.
    ///
    /// # Panics
    /// If the sizes do not match, or `out` is too small.
    pub fn apply(&self, x: &Rows, rows: Range<usize>, out: &mut PackedRows) {
        let c = self.weight.len();
        assert!(x.n_columns == c && out.n_columns == c, "rows of {c} numbers");
        let out = out.resize(rows.len());
        simd::dispatch(Normalise { norm: self, x, rows, out });
    }
}

struct Normalise<'a> {
    norm: &'a RowNorm,
    x: &'a Rows,
    rows: Range<usize>,
    out: MatrixMut<'a>,
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let RowNorm { weight, bias, norm } = self.norm;
        for (row, x) in self.rows.enumerate() {
            let x = self.x.row(x);
            let (mean, scale) = norm.mean_and_scale::<WIDTH>(x);
            for (panel, (x, weight)) in x.chunks(WIDTH).zip(weight.chunks(WIDTH)).enumerate() {
                let mut values = [0.0; WIDTH];
                for ((value, x), weight) in values.iter_mut().zip(x).zip(weight) {
                    *value = (x - mean) * scale * weight;
                }
                if let Some(bias) = bias {
                    values.iter_mut().zip(&bias[panel * WIDTH..]).for_each(|(x, bias)| *x += bias);
                }
                self.out.put(row, panel * WIDTH, &values[..x.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The norm in double precision.
    fn reference(x: &[f32], centred: bool) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = if centred { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let scale = (variance + 1e-5).sqrt().recip();
        x.iter().map(|x| (f64::from(*x) - mean) * scale).collect()
    }

    fn rows(x: &[Vec<f32>]) -> Rows {
        let mut rows = Rows::new(x.len(), x[0].len());
        x.iter().enumerate().for_each(|(i, x)| rows.row_mut(i).copy_from_slice(x));
        rows
    }

    #[test]
    fn rows_far_from_zero_are_normed_like_others() {
        for columns in [1, 3, 12, 33] {
            for x in [2.3, 17.1, 1000.3] {
                let mut out = PackedRows::new(1, columns);
                let norm = RowNorm::new(vec![1.0; columns], None, true, 1e-5);
                norm.apply(&rows(&[vec![x; columns]]), 0..1, &mut out);
                // The mean of equal numbers is rounded, and their deviation from it is only this rounding error.
                let got = out.rows.as_flattened();
                assert!(got.iter().all(|y| y.abs() < 0.1), "{columns} of {x}: {got:?}");
            }
        }
    }

    #[test]
    fn every_row_is_normed_over_its_own_numbers() {
        for (columns, centred) in [(5, true), (32, true), (40, true), (40, false), (100, true)] {
            let x = |row: usize| -> Vec<f32> { (0..columns).map(|i| ((i * 7 + row * 3) % 11) as f32 + 2.0).collect() };
            let weight: Vec<f32> = (0..columns).map(|i| 1.0 + i as f32 / 10.0).collect();
            let mut out = PackedRows::new(4, columns);
            out.rows.as_flattened_mut().fill(f32::NAN); // as if left by a pass with more rows
            let norm = RowNorm::new(weight.clone(), Some(vec![0.5; columns]), centred, 1e-5);
            norm.apply(&rows(&[x(9), x(0), x(1), x(2)]), 1..4, &mut out);
            for row in 0..3 {
                let got: Vec<f32> =
                    out.rows[row..].iter().step_by(3).take(n_panels(columns)).flatten().copied().collect();
                for (i, want) in reference(&x(row), centred).into_iter().enumerate() {
                    let want = want * f64::from(weight[i]) + 0.5;
                    assert!((f64::from(got[i]) - want).abs() < 1e-5, "{} {want}", got[i]);
                }
                assert!(got[columns..].iter().all(|x| *x == 0.0), "zeros behind");
            }
        }
    }
}
