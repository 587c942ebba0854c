//! Rows of activations, plain or packed for products with weights; norms that read plain rows and write packed ones.

use std::mem::MaybeUninit;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::pages::Pages;
use crate::activation::Activation;
use crate::elementary::add_to;
use crate::flex::in_f32;
use crate::gemm::{MatrixMut, PackedRef, Row, WIDTH, n_panels};
use crate::norm::Norm;
use crate::simd;

/// Plain rows, each padded to whole panels plus one cache line: rows a power of two apart would evict each other from
/// the cache.
#[derive(Debug)]
pub struct Rows {
    values: Vec<f32>,
    pub(crate) row_step: usize,
    pub(crate) n_columns: usize,
}

impl Rows {
    /// Allocates `n_rows` rows of `n_columns` elements.
    pub fn new(n_rows: usize, n_columns: usize) -> Self {
        let row_step = n_panels(n_columns) * WIDTH + WIDTH / 2;
        Self { values: vec![0.0; n_rows * row_step], row_step, n_columns }
    }

    /// A row, without its padding.
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

    /// Adds the first `n_rows` rows of `other` to these.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn add(&mut self, other: &Self, n_rows: usize) {
        for row in 0..n_rows {
            self.row_mut(row).iter_mut().zip(other.row(row)).for_each(|(x, other)| *x += other);
        }
    }

    /// All rows from `first` on, including their padding.
    pub(crate) fn from(&self, first: usize) -> &[f32] {
        &self.values[first * self.row_step..]
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
    pub(crate) n_rows: usize,
    pub(crate) n_columns: usize,
}

impl PackedRows {
    /// Allocates up to `max_rows` rows of `n_columns` elements.
    pub fn new(max_rows: usize, n_columns: usize) -> Self {
        Self { rows: Pages::zeros(max_rows * n_panels(n_columns)), n_rows: 0, n_columns }
    }

    /// Packs the first `n_rows` rows of `rows`.
    ///
    /// # Panics
    /// If the sizes do not match.
    pub fn pack(&mut self, rows: &Rows, n_rows: usize) {
        assert_eq!(rows.n_columns, self.n_columns, "columns");
        let mut out = self.resize(n_rows);
        (0..n_rows).for_each(|row| out.put_across(row, 0, rows.row(row)));
    }

    /// Packs the activation of the first `n_rows` rows of `x`, with the same bytes as
    /// [`super::PackedLinear::activate`]. If it is gated, `gate` holds a gate for each scalar and is overwritten.
    ///
    /// # Panics
    /// If the sizes do not match.
    pub fn activate(&mut self, x: &Rows, n_rows: usize, activation: Activation, gate: &mut Self) {
        assert_eq!(x.n_columns, self.n_columns, "columns");
        self.resize(n_rows);
        let panel_rows = n_rows.max(1); // chunks must not be empty
        let n = n_rows * n_panels(self.n_columns);
        let panels = self.rows[..n].par_chunks_mut(panel_rows).enumerate();
        if activation.is_gated() {
            assert!(gate.n_rows == n_rows && gate.n_columns == self.n_columns, "the gate has the shape of `x`");
            let gates = gate.rows[..n].par_chunks_mut(panel_rows);
            panels
                .zip(gates)
                .for_each(|((panel, out), gate)| simd::dispatch(ActivatePanel { activation, x, panel, gate, out }));
        } else {
            panels.for_each(|(panel, out)| simd::dispatch(ActivatePanel { activation, x, panel, gate: &mut [], out }));
        }
    }

    /// The product of a row with a vector.
    ///
    /// # Panics
    /// If there is no such row, or the vector has another length.
    pub fn dot(&self, row: usize, vector: &[f32]) -> f32 {
        assert_eq!(vector.len(), self.n_columns, "columns");
        let view = self.view();
        let panels = vector.chunks(WIDTH).enumerate().map(|(panel, vector)| (&view.panel(panel)[row], vector));
        let products = panels.flat_map(|(x, vector)| x.iter().zip(vector).map(|(x, y)| f64::from(*x) * f64::from(*y)));
        #[allow(clippy::cast_possible_truncation, reason = "everything else is f32")]
        let sum = products.sum::<f64>() as f32;
        sum
    }

    pub(crate) fn view(&self) -> PackedRef<'_> {
        PackedRef::new(&self.rows, [self.n_rows, self.n_columns])
    }

    /// Like [`PackedRows::resize`], with another number of columns.
    pub(crate) fn reshape(&mut self, [n_rows, n_columns]: [usize; 2]) -> MatrixMut<'_> {
        self.n_columns = n_columns;
        self.resize(n_rows)
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

struct ActivatePanel<'a> {
    activation: Activation,
    x: &'a Rows,
    panel: usize,
    gate: &'a mut [Row],
    out: &'a mut [Row],
}

impl WithSimd for ActivatePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { activation, x, panel, gate, out } = self;
        for (row, out) in out.iter_mut().enumerate() {
            let x = &x.row(row)[panel * WIDTH..];
            let n = x.len().min(WIDTH);
            let mut values = [0.0; WIDTH];
            values[..n].copy_from_slice(&x[..n]);
            let mut active = [const { MaybeUninit::uninit() }; WIDTH];
            let gate = gate.get_mut(row).map_or(&mut [][..], |gate| &mut gate[..n]);
            let active = activation.forward::<S>(&mut values[..n], gate, &mut active[..n]);
            out[..n].copy_from_slice(active);
        }
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
    /// A norm over rows of `weight.len()` scalars. If it is `centred`, it subtracts the mean, as layer norm does.
    ///
    /// # Panics
    /// If `bias` and `weight` differ in length.
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
        assert!(x.n_columns == c && out.n_columns == c, "rows have {c} scalars");
        let Self { weight, bias, norm } = self;
        let mut out = out.resize(rows.len());
        simd::dispatch(
            #[inline(always)]
            move || {
                for (i, row) in rows.enumerate() {
                    let x = x.row(row);
                    let (mean, scale) = norm.mean_and_scale::<WIDTH>(x);
                    for (panel, (x, weight)) in x.chunks(WIDTH).zip(weight.chunks(WIDTH)).enumerate() {
                        let mut values = [0.0; WIDTH];
                        for ((value, x), weight) in values.iter_mut().zip(x).zip(weight) {
                            *value = (x - mean) * scale * weight;
                        }
                        if let Some(bias) = bias {
                            add_to(&mut values, &bias[panel * WIDTH..]);
                        }
                        out.put(i, panel * WIDTH, &values[..x.len()]);
                    }
                }
            },
        );
    }

    /// Adds the normalized first `n_rows` rows of `x` to those of `out`.
    ///
    /// # Panics
    /// If the sizes do not match.
    pub fn add(&self, x: &Rows, n_rows: usize, out: &mut Rows) {
        let c = self.weight.len();
        assert!(x.n_columns == c && out.n_columns == c, "rows have {c} scalars");
        let Self { weight, bias, norm } = self;
        simd::dispatch(
            #[inline(always)]
            move || {
                for row in 0..n_rows {
                    let (x, out) = (x.row(row), out.row_mut(row));
                    let (mean, scale) = norm.mean_and_scale::<WIDTH>(x);
                    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                        *out += (x - mean) * scale * weight;
                    }
                    if let Some(bias) = bias {
                        add_to(out, bias);
                    }
                }
            },
        );
    }
}

/// An RMS norm of some columns of plain rows, in place.
#[derive(Clone, Debug)]
pub struct ColumnNorm {
    columns: Range<usize>,
    weight: Vec<f32>,
    norm: Norm,
}

impl ColumnNorm {
    /// A norm over `weight.len()` columns from `first` on.
    pub fn new(first: usize, weight: Vec<f32>, epsilon: f64) -> Self {
        let norm = Norm { centred: false, epsilon: in_f32(epsilon) };
        Self { columns: first..first + weight.len(), weight, norm }
    }

    /// Normalizes the columns of the first `n_rows` rows.
    ///
    /// # Panics
    /// If the rows are shorter.
    pub fn apply(&self, rows: &mut Rows, n_rows: usize) {
        let Self { columns, weight, norm } = self;
        simd::dispatch(
            #[inline(always)]
            move || {
                for row in 0..n_rows {
                    let x = &mut rows.row_mut(row)[columns.clone()];
                    let (_, scale) = norm.mean_and_scale::<WIDTH>(x);
                    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn row_norm_centres_rows_far_from_zero() {
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
    fn column_norm_keeps_other_columns_and_rows() {
        let x: Vec<f32> = (0..70).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
        let mut rows = rows(&[x.clone(), x.iter().rev().copied().collect(), vec![1.0; 70]]);
        ColumnNorm::new(10, vec![2.0; 40], 1e-5).apply(&mut rows, 2);
        for (row, x) in [x.clone(), x.iter().rev().copied().collect::<Vec<_>>()].iter().enumerate() {
            let got = rows.row(row);
            for (got, want) in got[10..50].iter().zip(reference(&x[10..50], false)) {
                assert!((f64::from(*got) - 2.0 * want).abs() < 1e-5, "{got} {want}");
            }
            assert_eq!((&got[..10], &got[50..]), (&x[..10], &x[50..]), "the other columns");
        }
        assert_eq!(rows.row(2), [1.0; 70], "the other rows");
    }

    #[test]
    fn row_norm_equals_reference() {
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
                assert!(got[columns..].iter().all(|x| *x == 0.0), "the padding is zero");
            }
        }
    }
}
