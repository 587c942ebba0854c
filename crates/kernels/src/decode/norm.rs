//! Layer norm and RMS norm of rows in panels, and of single vectors.

use pulp::{Arch, Simd, WithSimd};

use super::{Row, WIDTH, n_panels, rows_of};
use crate::elementary::sum;

/// A norm with its learned numbers; the sources stand with [`crate::layer_norm`] and
/// [`crate::rms_norm`].
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Vec<Row>,
    bias: Option<Vec<Row>>,
    columns: usize,
    centred: bool,
    epsilon: f32,
}

impl Norm {
    /// A norm over as many numbers as it has weights; about their mean if it is `centred`, as a layer norm is.
    ///
    /// # Panics
    /// If there are not as many biases as weights.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "everything here is computed in f32")]
    pub fn new(weight: &[f32], bias: Option<&[f32]>, centred: bool, epsilon: f64) -> Self {
        assert!(bias.is_none_or(|bias| bias.len() == weight.len()), "a bias for each weight");
        Self {
            weight: rows_of(weight),
            bias: bias.map(rows_of),
            columns: weight.len(),
            centred,
            epsilon: epsilon as f32,
        }
    }

    /// Normalises every row of `x` to `out`, in panels of `n_rows` rows.
    ///
    /// # Panics
    /// If the sizes do not fit.
    pub fn apply(&self, x: &[Row], out: &mut [Row], n_rows: usize) {
        let n = n_panels(self.columns) * n_rows;
        assert!(x.len() == n && out.len() == n, "{n} rows of panels");
        Arch::new().dispatch(Normalise { norm: self, x, out, n_rows });
    }
}

struct Normalise<'a> {
    norm: &'a Norm,
    x: &'a [Row],
    out: &'a mut [Row],
    n_rows: usize,
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    fn with_simd<S: Simd>(self, _: S) {
        let Norm { weight, bias, columns, centred, epsilon } = self.norm;
        let share = 1.0 / *columns as f32;
        for row in 0..self.n_rows {
            let x = || self.x[row..].iter().step_by(self.n_rows);
            let mean = match centred {
                true => share * lanes_sum(x(), |x| x),
                false => 0.0,
            };
            // What fills the last panel up is no number of the row, and adds nothing where it is the mean.
            let n_panels = weight.len();
            let mut last = self.x[row + (n_panels - 1) * self.n_rows];
            last.0[columns - (n_panels - 1) * WIDTH..].fill(mean);
            let filled = (0..n_panels).map(|panel| match panel + 1 == n_panels {
                true => &last,
                false => &self.x[row + panel * self.n_rows],
            });
            let squares = lanes_sum(filled, |x| (x - mean) * (x - mean));
            let scale = 1.0 / (share * squares + epsilon).sqrt();
            let outs = self.out[row..].iter_mut().step_by(self.n_rows);
            for (i, (out, x)) in outs.zip(x()).enumerate() {
                for ((out, x), weight) in out.0.iter_mut().zip(x.0).zip(weight[i].0) {
                    *out = (x - mean) * scale * weight;
                }
                if let Some(bias) = bias {
                    out.0.iter_mut().zip(bias[i].0).for_each(|(x, bias)| *x += bias);
                }
            }
        }
    }
}

/// The sum of `f` over the numbers of some rows.
#[inline(always)]
fn lanes_sum<'a>(rows: impl Iterator<Item = &'a Row>, f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; WIDTH];
    for row in rows {
        for (lane, x) in lanes.iter_mut().zip(row.0) {
            *lane += f(x);
        }
    }
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// An RMS norm of one vector, in place.
#[inline(always)]
#[allow(clippy::cast_precision_loss, reason = "heads are far below 2^24 wide")]
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], epsilon: f32) {
    let mean_square = sum(x, x, |a, b| a * b) / x.len() as f32;
    let scale = 1.0 / (mean_square + epsilon).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{read_columns, write_columns};
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
                let mut rows = vec![Row::ZERO; n_panels(columns)];
                write_columns(&mut rows, 1, 0, 0, &vec![x; columns]);
                let mut out = rows.clone();
                Norm::new(&vec![1.0; columns], None, true, 1e-5).apply(&rows, &mut out, 1);
                let mut got = vec![0.0; n_panels(columns) * WIDTH];
                read_columns(&out, 1, 0, 0, &mut got);
                // The mean of equal numbers is rounded, and their deviation is that alone.
                assert!(got.iter().all(|y| y.abs() < 0.1), "{columns} of {x}: {got:?}");
            }
        }
    }

    #[test]
    fn every_row_is_normed_over_its_own_numbers() {
        for (columns, centred) in [(5, true), (32, true), (40, true), (40, false), (100, true)] {
            let n_rows = 3;
            let x = |row: usize| -> Vec<f32> {
                (0..columns).map(|i| ((i * 7 + row * 3) % 11) as f32 + 2.0).collect()
            };
            let weight: Vec<f32> = (0..columns).map(|i| 1.0 + i as f32 / 10.0).collect();
            let bias = vec![0.5; columns];
            let mut rows = vec![Row::ZERO; n_panels(columns) * n_rows];
            for row in 0..n_rows {
                write_columns(&mut rows, n_rows, row, 0, &x(row));
            }
            let mut out = vec![Row([f32::NAN; WIDTH]); rows.len()];
            Norm::new(&weight, Some(&bias), centred, 1e-5).apply(&rows, &mut out, n_rows);
            for row in 0..n_rows {
                let mut got = vec![0.0; n_panels(columns) * WIDTH];
                read_columns(&out, n_rows, row, 0, &mut got);
                for (i, want) in reference(&x(row), centred).into_iter().enumerate() {
                    let want = want * f64::from(weight[i]) + 0.5;
                    assert!((f64::from(got[i]) - want).abs() < 1e-5, "{} {want}", got[i]);
                }
                assert!(got[columns..].iter().all(|x| *x == 0.0), "filled with zeros");
            }
        }
    }
}
