//! Rows of activations, packed to be multiplied with weights, and the norms that write them.

use pulp::{Arch, Simd, WithSimd};

use super::pages::Pages;
use crate::gemm::{MatrixMut, PackedRef, WIDTH, n_panels};
use crate::rows::Norm;

/// Some rows of numbers, packed as the left matrix of products, in memory that is allocated once.
#[derive(Debug)]
pub struct PackedRows {
    rows: Pages,
    n_rows: usize,
    n_columns: usize,
}

impl PackedRows {
    /// Memory for up to `max_rows` rows of `n_columns` numbers.
    #[must_use]
    pub fn new(max_rows: usize, n_columns: usize) -> Self {
        Self { rows: Pages::zeros(max_rows * n_panels(n_columns)), n_rows: 0, n_columns }
    }

    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(super) fn n_columns(&self) -> usize {
        self.n_columns
    }

    pub(super) fn view(&self) -> PackedRef<'_> {
        PackedRef::new(&self.rows, [self.n_rows, self.n_columns])
    }

    /// `n_rows` rows to be written.
    pub(super) fn resize(&mut self, n_rows: usize) -> MatrixMut<'_> {
        self.n_rows = n_rows;
        let rows = &mut self.rows[..n_rows * n_panels(self.n_columns)];
        // Weights behind the last column are zero, and must meet numbers.
        let behind = self.n_columns % WIDTH;
        if behind > 0 {
            let last = rows.len() - n_rows;
            rows[last..].iter_mut().for_each(|row| row[behind..].fill(0.0));
        }
        MatrixMut::packed(rows, [n_rows, self.n_columns])
    }
}

/// A norm of rows with its learned numbers: see [`crate::layer_norm`] and [`crate::rms_norm`].
#[derive(Clone, Debug)]
pub struct RowNorm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    norm: Norm,
}

impl RowNorm {
    /// A norm over as many numbers as it has weights; about their mean if it is `centred`, as a layer norm is.
    ///
    /// # Panics
    /// If there are not as many biases as weights.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "everything here is computed in f32")]
    pub fn new(weight: Vec<f32>, bias: Option<Vec<f32>>, centred: bool, epsilon: f64) -> Self {
        assert!(
            bias.as_ref().is_none_or(|bias| bias.len() == weight.len()),
            "a bias for each weight"
        );
        Self { weight, bias, norm: Norm { centred, epsilon: epsilon as f32 } }
    }

    /// Normalises every row of `x: [n, C]`.
    ///
    /// # Panics
    /// If `x` has no such rows, or more than `out` has memory for.
    pub fn apply(&self, x: &[f32], out: &mut PackedRows) {
        let c = self.weight.len();
        assert!(x.len().is_multiple_of(c) && out.n_columns == c, "rows of {c} numbers");
        Arch::new().dispatch(Normalise { norm: self, x, out: out.resize(x.len() / c) });
    }
}

struct Normalise<'a> {
    norm: &'a RowNorm,
    x: &'a [f32],
    out: MatrixMut<'a>,
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let RowNorm { weight, bias, norm } = self.norm;
        for (row, x) in self.x.chunks_exact(weight.len()).enumerate() {
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

    /// In double precision.
    fn reference(x: &[f32], centred: bool) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = if centred { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let scale = (variance + 1e-5).sqrt().recip();
        x.iter().map(|x| (f64::from(*x) - mean) * scale).collect()
    }

    #[test]
    fn rows_far_from_zero_are_normed_like_others() {
        for columns in [1, 3, 12, 33] {
            for x in [2.3, 17.1, 1000.3] {
                let mut out = PackedRows::new(1, columns);
                RowNorm::new(vec![1.0; columns], None, true, 1e-5)
                    .apply(&vec![x; columns], &mut out);
                // The mean of equal numbers is rounded, and their deviation is that alone.
                let got = out.rows.as_flattened();
                assert!(got.iter().all(|y| y.abs() < 0.1), "{columns} of {x}: {got:?}");
            }
        }
    }

    #[test]
    fn every_row_is_normed_over_its_own_numbers() {
        for (columns, centred) in [(5, true), (32, true), (40, true), (40, false), (100, true)] {
            let x = |row: usize| -> Vec<f32> {
                (0..columns).map(|i| ((i * 7 + row * 3) % 11) as f32 + 2.0).collect()
            };
            let weight: Vec<f32> = (0..columns).map(|i| 1.0 + i as f32 / 10.0).collect();
            let mut out = PackedRows::new(4, columns);
            out.rows.as_flattened_mut().fill(f32::NAN); // of more rows before
            let norm = RowNorm::new(weight.clone(), Some(vec![0.5; columns]), centred, 1e-5);
            norm.apply(&(0..3).flat_map(x).collect::<Vec<_>>(), &mut out);
            for row in 0..3 {
                let got: Vec<f32> = out.rows[row..]
                    .iter()
                    .step_by(3)
                    .take(n_panels(columns))
                    .flatten()
                    .copied()
                    .collect();
                for (i, want) in reference(&x(row), centred).into_iter().enumerate() {
                    let want = want * f64::from(weight[i]) + 0.5;
                    assert!((f64::from(got[i]) - want).abs() < 1e-5, "{} {want}", got[i]);
                }
                assert!(got[columns..].iter().all(|x| *x == 0.0), "zeros behind");
            }
        }
    }
}
