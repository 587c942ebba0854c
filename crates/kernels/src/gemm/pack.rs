//! Copies of matrices in panels.

use pulp::{Simd, WithSimd};

use super::arithmetic::{Arithmetic, WithArithmetic};
use super::element::Element;
use super::matrix::Matrix;
use super::packed::{PackedRef, Row, WIDTH, n_panels};
use super::scratch::Scratch;
use super::transpose::{self, SIDE};
use crate::tasks::run;

/// What a copy of a matrix is for: in panels of f32 one copy serves for all.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// The left matrix of products.
    Left,
    /// The right matrix of products, or the left one transposed.
    Right,
    /// Both.
    Both,
}

/// A copy of a matrix in panels.
#[derive(Debug)]
pub(crate) struct Packed<E = f32> {
    left: Option<Scratch<E>>,
    right: Option<Scratch<E>>,
    shape: [usize; 2],
}

impl Packed {
    /// Copies a matrix of f32, in this thread.
    #[inline(always)]
    pub(crate) fn here<S: Simd>(simd: S, matrix: Matrix<'_>) -> Self {
        Self::by(simd, matrix, Role::Both)
    }

    /// As the left or the right matrix of products.
    pub(crate) fn view(&self) -> PackedRef<'_> {
        self.left()
    }
}

impl<E: Element> Packed<E> {
    /// Room for a copy.
    fn new(matrix: Matrix<'_>, role: Role) -> Self {
        let shape @ [n_rows, n_columns] = [matrix.n_rows(), matrix.n_columns()];
        let is_left = role != Role::Right || E::LEFT_IS_RIGHT;
        let is_right = role != Role::Left && !E::LEFT_IS_RIGHT;
        Self {
            left: is_left.then(|| Scratch::new(n_rows * n_panels(E::count(n_columns)))),
            right: is_right.then(|| Scratch::new(E::count(n_rows) * n_panels(n_columns))),
            shape,
        }
    }

    /// The tasks that copy the matrix.
    fn tasks<'a>(&'a mut self, matrix: Matrix<'a>) -> impl Iterator<Item = Pack<'a, E>> {
        let left = self.left.iter_mut();
        let left = left.flat_map(move |out| Pack::tasks(matrix, out, Side::Left));
        let right = self.right.iter_mut();
        left.chain(right.flat_map(move |out| Pack::tasks(matrix, out, Side::Right)))
    }

    /// Copies a matrix by the instructions of a SIMD level, in this thread.
    #[inline(always)]
    pub(super) fn by<S: Simd>(simd: S, matrix: Matrix<'_>, role: Role) -> Self {
        let mut packed = Self::new(matrix, role);
        for task in packed.tasks(matrix) {
            task.with_simd(simd);
        }
        packed
    }

    /// Copies some matrices, on all cores.
    pub(crate) fn all<const N: usize>(matrices: [(Matrix<'_>, Role); N]) -> [Self; N] {
        let packed = Self::all_of(&matrices);
        packed.try_into().expect("as many as there are matrices")
    }

    /// As [`Packed::all`].
    pub(crate) fn all_of(matrices: &[(Matrix<'_>, Role)]) -> Vec<Self> {
        let matrices = matrices.iter();
        let mut packed: Vec<_> =
            matrices.clone().map(|(matrix, role)| Self::new(*matrix, *role)).collect();
        let size = |rows: &Option<Scratch<E>>| rows.as_ref().map_or(0, |rows| rows.len() * WIDTH);
        let numbers = packed.iter().map(|x| size(&x.left) + size(&x.right)).sum();
        let tasks = matrices.zip(&mut packed);
        let tasks = tasks.flat_map(|((matrix, _), packed)| packed.tasks(*matrix));
        run(numbers, tasks);
        packed
    }

    /// As the left matrix of products.
    ///
    /// # Panics
    /// If it was not copied for that.
    pub(crate) fn left(&self) -> PackedRef<'_, E> {
        let [n_rows, n_columns] = self.shape;
        let rows = self.left.as_ref().expect("a left matrix");
        PackedRef::new(rows, [n_rows, E::count(n_columns)])
    }

    /// As the right matrix of products, or as the left one transposed.
    ///
    /// # Panics
    /// If it was not copied for that.
    pub(crate) fn right(&self) -> PackedRef<'_, E> {
        if E::LEFT_IS_RIGHT {
            return self.left();
        }
        let [n_rows, n_columns] = self.shape;
        let rows = self.right.as_ref().expect("a right matrix");
        PackedRef::new(rows, [E::count(n_rows), n_columns])
    }
}

/// On which side of a product a copy stands.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// As the left matrix: an element is of columns that follow each other.
    Left,
    /// As the right matrix, or as the left one transposed: an element is of rows that follow each other.
    Right,
}

/// Copies some panels of a matrix.
struct Pack<'a, E> {
    matrix: Matrix<'a>,
    out: &'a mut [Row<E>],
    side: Side,
}

impl<'a, E: Element> Pack<'a, E> {
    /// The tasks that copy a whole matrix.
    fn tasks(matrix: Matrix<'a>, out: &'a mut [Row<E>], side: Side) -> impl Iterator<Item = Self> {
        // Rows and columns of a panel, the one in elements, the others in numbers.
        let (n_rows, width) = match side {
            Side::Left => (matrix.n_rows(), WIDTH * E::NUMBERS),
            Side::Right => (E::count(matrix.n_rows()), WIDTH),
        };
        let n_rows = n_rows.max(1);
        let panels = matrix.n_columns().div_ceil(width);
        let panels = (ELEMENTS / (n_rows * WIDTH)).max(panels.div_ceil(TASKS));
        let panels = panels.max(1);
        out.chunks_mut(panels * n_rows).enumerate().map(move |(i, out)| {
            let first = i * panels * width;
            let n = (panels * width).min(matrix.n_columns() - first);
            let matrix = matrix.columns(first..first + n);
            Self { matrix, out, side }
        })
    }
}

impl<E: Element> WithSimd for Pack<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.matrix.n_rows() == 0 {
            return;
        }
        E::run(simd, self);
    }
}

impl<E: Element> WithArithmetic for Pack<'_, E> {
    type Element = E;

    #[inline(always)]
    fn with(self, arithmetic: impl Arithmetic<Element = E>) {
        arithmetic.pack(self.matrix, self.side, self.out);
    }
}

/// Elements that one task copies at least.
const ELEMENTS: usize = 1 << 15;

/// Tasks of one matrix at most: the wider its part, the longer the stretches that a task reads.
const TASKS: usize = 8;

/// Rows that are copied side by side.
pub(super) const ROWS: usize = 8;

/// Copies a matrix into panels of numbers that follow one another.
#[inline(always)]
pub(super) fn pack<S: Simd>(simd: S, matrix: Matrix<'_>, out: &mut [Row]) {
    let [n_rows, n_columns] = [matrix.n_rows(), matrix.n_columns()];
    if n_rows == 0 {
        return;
    }
    assert_eq!(out.len(), n_rows * n_panels(n_columns), "[{n_rows}, {n_columns}]");
    if !matrix.has_rows() {
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            pack_transposed(simd, matrix.transposed(), panel * WIDTH, out);
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
fn pack_transposed<S: Simd>(simd: S, matrix: Matrix<'_>, first: usize, out: &mut [Row]) {
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
            for (out, x) in out.iter_mut().zip(transpose::transposed(simd, x)) {
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
