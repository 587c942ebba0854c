//! Matrices cut into panels of 32 columns, and their products: what a model that writes is made of.
//!
//! A panel holds its columns row after row in one stretch of memory, so that a product streams through the
//! weights once, from the first number to the last, with its sums in registers; a new token costs little more
//! than reading the weights. What is beyond the last column is zero. Everything that is multiplied has this form:
//! weights, keys, values, and the vectors of the positions at hand.
//!
//! Every number of a product is one sum in the order of the inputs, whatever else is computed beside it: the
//! result is the same, byte for byte, for any number of threads and however many rows there are, so that a
//! sample gets the same text alone and among others. SIMD levels differ in the last digits, as some fuse
//! the product with the sum and others do not.

#![allow(
    clippy::inline_always,
    reason = "what is called in an inner loop must have the instructions of its caller's SIMD level"
)]

mod attention;
mod block;
mod cache;
mod norm;
mod pages;
mod product;
mod softmax;
mod weights;

pub use attention::{Heads, Room, Rotation, Stream, attend};
pub use cache::Cache;
pub use norm::Norm;
pub use product::{Then, product};
pub use softmax::log_sum_exp;
pub use weights::{Precision, Weights};

/// Columns of a panel: two registers of AVX-512, four of AVX2, eight of NEON.
pub const WIDTH: usize = 32;

/// A row of a panel.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Row(pub [f32; WIDTH]);

impl Row {
    /// Nothing but zeros.
    pub const ZERO: Self = Self([0.0; WIDTH]);
}

/// How many panels hold `columns` columns.
#[must_use]
pub const fn n_panels(columns: usize) -> usize {
    columns.div_ceil(WIDTH)
}

/// `values` as rows of a panel each, one after another: a matrix of one row.
#[must_use]
pub fn rows_of(values: &[f32]) -> Vec<Row> {
    let mut rows = vec![Row::ZERO; n_panels(values.len())];
    for (row, values) in rows.iter_mut().zip(values.chunks(WIDTH)) {
        row.0[..values.len()].copy_from_slice(values);
    }
    rows
}

/// Copies `out.len()` columns, from `first` on, out of row `row` of a matrix of `n_rows` rows.
#[inline(always)]
pub fn read_columns(matrix: &[Row], n_rows: usize, row: usize, first: usize, out: &mut [f32]) {
    let mut read = 0;
    while read < out.len() {
        let (panel, column) = ((first + read) / WIDTH, (first + read) % WIDTH);
        let n = (WIDTH - column).min(out.len() - read);
        let values = &matrix[panel * n_rows + row].0[column..column + n];
        out[read..read + n].copy_from_slice(values);
        read += n;
    }
}

/// Copies `values` into the columns from `first` on of row `row` of a matrix of `n_rows` rows.
#[inline(always)]
pub fn write_columns(matrix: &mut [Row], n_rows: usize, row: usize, first: usize, values: &[f32]) {
    let mut written = 0;
    while written < values.len() {
        let (panel, column) = ((first + written) / WIDTH, (first + written) % WIDTH);
        let n = (WIDTH - column).min(values.len() - written);
        let out = &mut matrix[panel * n_rows + row].0[column..column + n];
        out.copy_from_slice(&values[written..written + n]);
        written += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_where_they_were_written() {
        let n_rows = 3;
        let mut matrix = vec![Row::ZERO; n_panels(80) * n_rows];
        let values: Vec<f32> = (1..=50).map(|x| x as f32).collect();
        write_columns(&mut matrix, n_rows, 1, 20, &values);
        let mut all = vec![f32::NAN; 80];
        read_columns(&matrix, n_rows, 1, 0, &mut all);
        assert_eq!(all[20..70], values);
        assert!(all[..20].iter().chain(&all[70..]).all(|x| *x == 0.0));
        read_columns(&matrix, n_rows, 0, 0, &mut all);
        assert!(all.iter().all(|x| *x == 0.0), "another row was written");
        assert_eq!(rows_of(&values)[1].0[..18], values[32..]);
    }
}
