//! Copies of matrices in panels.

use pulp::{Simd, WithSimd};

use super::super::{run, scratch::Scratch};
use super::matrix::Matrix;
use super::panels::{Panels, Row, WIDTH, n_panels};
use super::square::{self, SIDE};

/// A copy of a matrix in panels.
#[derive(Debug)]
pub(in crate::kernels::fused) struct Packed {
    rows: Scratch,
    shape: [usize; 2],
}

impl Packed {
    /// Copies a matrix, in this thread.
    #[inline(always)]
    pub(in crate::kernels::fused) fn here<S: Simd>(simd: S, matrix: Matrix<'_>) -> Self {
        let shape = [matrix.n_rows(), matrix.n_columns()];
        let mut rows = Scratch::new(shape[0] * n_panels(shape[1]));
        pack(simd, matrix, &mut rows);
        Self { rows, shape }
    }

    /// Copies some matrices, on all cores.
    pub(in crate::kernels::fused) fn all<const N: usize>(matrices: [Matrix<'_>; N]) -> [Self; N] {
        let packed = Self::all_of(&matrices);
        packed.try_into().expect("as many as there are matrices")
    }

    /// As [`Packed::all`].
    pub(in crate::kernels::fused) fn all_of(matrices: &[Matrix<'_>]) -> Vec<Self> {
        let shapes = matrices.iter().map(|x| [x.n_rows(), x.n_columns()]);
        let mut packed: Vec<_> = shapes
            .map(|shape| Self {
                rows: Scratch::new(shape[0] * n_panels(shape[1])),
                shape,
            })
            .collect();
        let numbers = packed.iter().map(|x| x.rows.len() * WIDTH).sum();
        let tasks = matrices.iter().zip(&mut packed);
        run(
            numbers,
            tasks.flat_map(|(matrix, packed)| Pack::tasks(*matrix, &mut packed.rows)),
        );
        packed
    }

    pub(in crate::kernels::fused) fn panels(&self) -> Panels<'_> {
        Panels::new(&self.rows, self.shape)
    }
}

/// Copies some panels of a matrix.
struct Pack<'a> {
    matrix: Matrix<'a>,
    out: &'a mut [Row],
}

impl<'a> Pack<'a> {
    /// The tasks that copy a whole matrix.
    fn tasks(matrix: Matrix<'a>, out: &'a mut [Row]) -> impl Iterator<Item = Self> {
        let n_rows = matrix.n_rows().max(1);
        let panels = (NUMBERS / (n_rows * WIDTH)).max(n_panels(matrix.n_columns()).div_ceil(TASKS));
        let panels = panels.max(1);
        out.chunks_mut(panels * n_rows)
            .enumerate()
            .map(move |(i, out)| {
                let first = i * panels * WIDTH;
                let n = (panels * WIDTH).min(matrix.n_columns() - first);
                let matrix = matrix.columns(first..first + n);
                Self { matrix, out }
            })
    }
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        pack(simd, self.matrix, self.out);
    }
}

/// Numbers that one task copies at least.
const NUMBERS: usize = 1 << 15;

/// Tasks of one matrix at most: the wider its part, the longer the stretches that a task reads.
const TASKS: usize = 8;

/// Rows that are copied side by side.
const ROWS: usize = 8;

/// Copies a matrix into panels that follow one another.
#[inline(always)]
fn pack<S: Simd>(simd: S, matrix: Matrix<'_>, out: &mut [Row]) {
    let [n_rows, n_columns] = [matrix.n_rows(), matrix.n_columns()];
    if n_rows == 0 {
        return;
    }
    assert_eq!(
        out.len(),
        n_rows * n_panels(n_columns),
        "[{n_rows}, {n_columns}]"
    );
    if !matrix.has_rows() {
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            turn(simd, matrix.transposed(), panel * WIDTH, out);
        }
        return;
    }
    for first in (0..n_rows).step_by(ROWS) {
        let rows = first..n_rows.min(first + ROWS);
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            for row in rows.clone() {
                let x = &matrix.row(row)[panel * WIDTH..];
                // A whole panel apart: a copy of known length is made of registers.
                match x.first_chunk::<WIDTH>() {
                    Some(x) => out[row] = *x,
                    None => out[row][..x.len()].copy_from_slice(x),
                }
            }
        }
    }
}

/// Copies rows of `matrix`, from `first` on, into the columns of a panel.
#[inline(always)]
fn turn<S: Simd>(simd: S, matrix: Matrix<'_>, first: usize, out: &mut [Row]) {
    let n_columns = WIDTH.min(matrix.n_rows() - first);
    let (blocks, rest) = out.as_chunks_mut::<SIDE>();
    let whole = if n_columns == WIDTH { blocks.len() } else { 0 };
    for (block, out) in blocks[..whole].iter_mut().enumerate() {
        for column in (0..WIDTH).step_by(SIDE) {
            let mut x = [[0.0; SIDE]; SIDE];
            for (i, x) in x.iter_mut().enumerate() {
                let row = &matrix.row(first + column + i)[block * SIDE..];
                *x = *row.first_chunk().expect("the row goes on");
            }
            for (out, x) in out.iter_mut().zip(square::transposed(simd, x)) {
                out[column..column + SIDE].copy_from_slice(&x);
            }
        }
    }
    let rest = blocks[whole..].as_flattened_mut().iter_mut().chain(rest);
    for (row, out) in (whole * SIDE..).zip(rest) {
        for (column, out) in out[..n_columns].iter_mut().enumerate() {
            *out = matrix.row(first + column)[row];
        }
    }
}
