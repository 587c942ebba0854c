//! Low-rank adapters of a packed linear layer, for the rows of its output whose sequences use them.
//!
//! Source: Hu et al. 2021, "LoRA"; of several adapters in one batch: Chen et al. 2023, "Punica: Multi-Tenant LoRA
//! Serving".

use std::ops::Range;

use super::linear::{PackedLinear, Precision};
use super::packed_rows::{PackedRows, Rows};
use crate::gemm::StoreMode;

/// An adapter of some columns of a layer's weight `[K, N]`, which becomes `weight + scale a b` there.
#[derive(Clone, Debug)]
pub struct ColumnAdapter {
    /// The columns.
    pub columns: Range<usize>,
    /// `[K, R]`
    pub a: Vec<f32>,
    /// `[R, columns]`
    pub b: Vec<f32>,
    /// Multiplies the product.
    pub scale: f32,
    /// The lengths to which the changed columns are scaled (`DoRA`); `None` to leave them.
    pub lengths: Option<Vec<f32>>,
}

impl ColumnAdapter {
    fn rank(&self) -> usize {
        self.b.len() / self.columns.len()
    }

    /// The factors that give the changed columns their lengths.
    #[allow(clippy::cast_possible_truncation, reason = "factors are f32")]
    fn factors(&self, lengths: &[f32], weights: &[f32], n_columns: usize) -> Vec<f32> {
        let mut squares = vec![0.0_f64; self.columns.len()];
        let mut changed = vec![0.0; self.columns.len()];
        for (weights, a) in weights.chunks_exact(n_columns).zip(self.a.chunks_exact(self.rank())) {
            changed.copy_from_slice(&weights[self.columns.clone()]);
            for (a, b) in a.iter().zip(self.b.chunks_exact(changed.len())) {
                changed.iter_mut().zip(b).for_each(|(x, b)| *x += a * self.scale * b);
            }
            squares.iter_mut().zip(&changed).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
        }
        squares.iter().zip(lengths).map(|(square, length)| (f64::from(*length) / square.sqrt()) as f32).collect()
    }
}

/// The adapters of a layer side by side, in f32: `x weights + bias` becomes `(x weights + (x a) b) factors + bias`.
/// Without `DoRA` the factors of the columns are 1.
#[derive(Debug)]
pub struct LowRank {
    /// `[K, R]`, with the ranks of all of them together.
    a: PackedLinear,
    /// `[R, N]`, times scale and factors; zero where an adapter does not change a column.
    b: PackedLinear,
    /// With `DoRA`, the factors, and what they take from the bias.
    factors: Option<[Vec<f32>; 2]>,
}

impl LowRank {
    /// The adapters of `layer`, each for different columns.
    ///
    /// # Panics
    /// If a size does not match the layer.
    pub fn new(layer: &PackedLinear, adapters: &[ColumnAdapter]) -> Self {
        let [inputs, outputs] = layer.shape();
        let rank = adapters.iter().map(ColumnAdapter::rank).sum();
        let (mut all_a, mut all_b) = (vec![0.0; inputs * rank], vec![0.0; rank * outputs]);
        let has_lengths = adapters.iter().any(|adapter| adapter.lengths.is_some());
        let weights = if has_lengths { layer.widened() } else { Vec::new() };
        let mut all_factors = vec![1.0; outputs];
        let mut first = 0;
        for adapter in adapters {
            let ColumnAdapter { columns, a, b, scale, lengths } = adapter;
            let own = adapter.rank();
            assert!(columns.end <= outputs && a.len() == inputs * own, "columns {columns:?} of {outputs}");
            let factors = &mut all_factors[columns.clone()];
            if let Some(lengths) = lengths {
                factors.copy_from_slice(&adapter.factors(lengths, &weights, outputs));
            }
            for (all, a) in all_a.chunks_exact_mut(rank).zip(a.chunks_exact(own)) {
                all[first..first + own].copy_from_slice(a);
            }
            for (all, b) in all_b.chunks_exact_mut(outputs).skip(first).zip(b.chunks_exact(columns.len())) {
                let all = all[columns.clone()].iter_mut();
                all.zip(b).zip(&*factors).for_each(|((all, b), factor)| *all = scale * b * factor);
            }
            first += own;
        }
        let pack = |shape: [usize; 2], values: &[f32]| {
            PackedLinear::pack(Precision::F32, shape, |row, column| values[row * shape[1] + column], None)
        };
        let factors = has_lengths.then(|| {
            let lost = match layer.bias() {
                [] => vec![0.0; outputs],
                bias => bias.iter().zip(&all_factors).map(|(bias, factor)| bias * (1.0 - factor)).collect(),
            };
            [all_factors, lost]
        });
        Self { a: pack([inputs, rank], &all_a), b: pack([rank, outputs], &all_b), factors }
    }

    /// The sum of the adapters' ranks, R.
    pub fn rank(&self) -> usize {
        self.a.shape()[1]
    }

    /// Changes some rows of `out`, the layer's output for the same rows of `x`. Rows do not depend on each other.
    /// `inner` is memory for `x a`.
    ///
    /// # Panics
    /// If the sizes do not match, or `inner` is too small.
    pub fn apply(&self, x: &PackedRows, rows: Range<usize>, inner: &mut PackedRows, out: &mut Rows) {
        assert_eq!(out.n_columns, self.b.shape()[1], "outputs");
        if let Some([factors, lost]) = &self.factors {
            for row in rows.clone() {
                let out = out.row_mut(row).iter_mut().zip(factors).zip(lost);
                out.for_each(|((out, factor), lost)| *out = *out * factor + lost);
            }
        }
        let n_rows = rows.len();
        self.a.multiply_to(StoreMode::Overwrite, x.view().rows(rows.clone()), inner.reshape([n_rows, self.rank()]));
        let mut out = out.whole_panels(rows.end);
        self.b.multiply_to(StoreMode::Accumulate, inner.view(), out.rows(rows.start, n_rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    const SHAPE: [usize; 2] = [40, 70];

    fn layer() -> PackedLinear {
        let weights = noise(40 * 70, 1);
        PackedLinear::pack(Precision::F32, SHAPE, |i, j| weights[i * 70 + j], Some(noise(70, 2)))
    }

    fn adapters(has_lengths: bool) -> Vec<ColumnAdapter> {
        let adapter = |columns: Range<usize>, rank: usize| ColumnAdapter {
            a: noise(40 * rank, 3),
            b: noise(rank * columns.len(), 4),
            scale: 0.5,
            lengths: has_lengths.then(|| noise(columns.len(), 5)),
            columns,
        };
        vec![adapter(3..20, 2), adapter(33..70, 5)]
    }

    /// The output of the layer with merged weights, in double precision.
    fn reference(x: &[f32], adapters: &[ColumnAdapter]) -> Vec<f64> {
        let [k, n] = SHAPE;
        let mut weights: Vec<f64> = layer().widened().into_iter().map(f64::from).collect();
        for adapter in adapters {
            let (rank, width) = (adapter.rank(), adapter.columns.len());
            for (column, at) in adapter.columns.clone().enumerate() {
                for row in 0..k {
                    let product = |i: usize| f64::from(adapter.a[row * rank + i] * adapter.b[i * width + column]);
                    weights[row * n + at] += f64::from(adapter.scale) * (0..rank).map(product).sum::<f64>();
                }
                if let Some(lengths) = &adapter.lengths {
                    let length = (0..k).map(|row| weights[row * n + at].powi(2)).sum::<f64>().sqrt();
                    (0..k).for_each(|row| weights[row * n + at] *= f64::from(lengths[column]) / length);
                }
            }
        }
        let bias = noise(n, 2);
        let out = |row: &[f32], j: usize| {
            let sum: f64 = row.iter().enumerate().map(|(i, x)| f64::from(*x) * weights[i * n + j]).sum();
            sum + f64::from(bias[j])
        };
        x.chunks(k).flat_map(|row| (0..n).map(move |j| out(row, j))).collect()
    }

    #[test]
    fn adapted_rows_equal_merged_weights_in_any_batch() {
        let (layer, n_rows) = (layer(), 30);
        let x = noise(n_rows * 40, 6);
        let mut plain = Rows::new(n_rows, 40);
        x.chunks(40).enumerate().for_each(|(i, x)| plain.row_mut(i).copy_from_slice(x));
        let mut packed = PackedRows::new(n_rows, 40);
        packed.pack(&plain, n_rows);
        let mut base = Rows::new(n_rows, 70);
        layer.store(&packed, &mut base);
        for has_lengths in [false, true] {
            let adapters = adapters(has_lengths);
            let low_rank = LowRank::new(&layer, &adapters);
            let mut inner = PackedRows::new(n_rows, low_rank.rank() + 9);
            let want = reference(&x, &adapters);
            let mut all = Rows::new(n_rows, 70);
            layer.store(&packed, &mut all);
            low_rank.apply(&packed, 0..n_rows, &mut inner, &mut all);
            for (row, want) in want.chunks(70).enumerate() {
                for (got, want) in all.row(row).iter().zip(want) {
                    assert!((f64::from(*got) - want).abs() < 1e-4, "{got}, not {want}");
                }
            }
            for rows in [0..1, 5..5, 7..20, 29..30] {
                let mut some = Rows::new(n_rows, 70);
                layer.store(&packed, &mut some);
                low_rank.apply(&packed, rows.clone(), &mut inner, &mut some);
                for row in 0..n_rows {
                    let want = if rows.contains(&row) { &all } else { &base };
                    assert_eq!(some.row(row), want.row(row), "{row} with {rows:?}");
                }
            }
        }
    }
}
