//! Shared by the worked examples: matrices from numbers, and numbers as text.

#![allow(dead_code, reason = "no example needs all of it")]

use std::io::{self, Write};

use burn::tensor::{Device, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// A matrix of the numbers as they stand.
pub fn matrix<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> Tensor<2> {
    Tensor::from_floats(rows, &Device::flex())
}

/// Numbers of mean 0 and standard deviation 1: the same for the same seed, on any machine.
pub fn normal<const N: usize>(shape: [usize; N], seed: u64) -> Tensor<N> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let n = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|_| StandardNormal.sample(&mut rng)).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The numbers of a tensor, row by row.
pub fn values<const N: usize>(x: Tensor<N>) -> Vec<f32> {
    x.into_data().try_to_vec().expect("numbers are f32")
}

/// Numbers side by side, in brackets.
pub fn list(values: &[f32], decimals: usize) -> String {
    let texts: Vec<String> = values.iter().map(|x| format!("{x:.decimals$}")).collect();
    format!("[{}]", texts.join(", "))
}

/// A line for each row, which begins with its name, below the names of the columns, where there are any.
pub fn table(
    out: &mut impl Write,
    names: &[&str],
    columns: &[&str],
    matrix: Tensor<2>,
    decimals: usize,
) -> io::Result<()> {
    let [_, n_columns] = matrix.dims();
    let texts: Vec<String> = values(matrix).iter().map(|x| format!("{x:.decimals$}")).collect();
    let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let name_width = longest(&mut names.iter().map(|name| name.len()));
    let lengths = texts.iter().map(String::len);
    let width = longest(&mut lengths.chain(columns.iter().map(|column| column.len())));
    if !columns.is_empty() {
        let columns: Vec<String> = columns.iter().map(|text| format!("{text:>width$}")).collect();
        writeln!(out, "  {:name_width$}   {}", "", columns.join("  "))?;
    }
    for (name, row) in names.iter().zip(texts.chunks(n_columns)) {
        let row: Vec<String> = row.iter().map(|text| format!("{text:>width$}")).collect();
        writeln!(out, "  {name:name_width$}  [{}]", row.join("  "))?;
    }
    Ok(())
}
