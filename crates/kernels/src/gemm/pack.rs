//! Packing: copies of matrices in panels.

use pulp::{Simd, WithSimd};

use super::arithmetic::{Arithmetic, Element, WithArithmetic};
use super::element::{Row, WIDTH, Word, n_panels};
use super::matrix::Matrix;
use super::packed::PackedRef;
use super::scratch::Scratch;
use super::transpose::{self, SIDE};
use crate::simd;
use crate::tasks::run;

/// The sides of products that a packed matrix is used on. In f32 one copy serves both.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Left,
    /// The right matrix of products, or the left one, transposed.
    Right,
    Both,
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// The left matrix: an element has adjacent columns.
    Left,
    /// The right matrix, or the left one, transposed: an element has adjacent rows.
    Right,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// The copy that serves the right side: in f32 that for the left.
    fn right<E: Element>() -> Self {
        if E::LEFT_IS_RIGHT { Self::Left } else { Self::Right }
    }

    /// The shape in elements, given the shape in scalars.
    fn shape<E: Word>(self, [n_rows, n_columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Left => [n_rows, E::count(n_columns)],
            Self::Right => [E::count(n_rows), n_columns],
        }
    }
}

/// A packed matrix: a copy in panels for each side of products that needs one.
#[derive(Debug)]
pub(crate) struct Packed<E = f32> {
    copies: [Option<Scratch<E>>; 2],
    shape: [usize; 2],
}

impl Packed {
    /// Packs a matrix of f32 in this thread.
    #[inline(always)]
    pub(crate) fn here<S: Simd>(simd: S, matrix: Matrix<'_>) -> Self {
        Self::by(simd, matrix, Role::Both)
    }

    /// The copy, which serves both sides.
    pub(crate) fn view(&self) -> PackedRef<'_> {
        self.left()
    }
}

impl<E: Element> Packed<E> {
    /// Uninitialized copies.
    fn new(matrix: Matrix<'_>, role: Role) -> Self {
        let shape = [matrix.n_rows(), matrix.n_columns()];
        let sides = match role {
            Role::Left => [Side::Left; 2],
            Role::Right => [Side::right::<E>(); 2],
            Role::Both => [Side::Left, Side::right::<E>()],
        };
        let copies = Side::BOTH.map(|side| {
            let [n_rows, n_columns] = side.shape::<E>(shape);
            sides.contains(&side).then(|| Scratch::new(n_rows * n_panels(n_columns)))
        });
        Self { copies, shape }
    }

    fn tasks<'a>(&'a mut self, matrix: Matrix<'a>) -> impl Iterator<Item = Pack<'a, E>> {
        let copies = Side::BOTH.into_iter().zip(&mut self.copies);
        copies.flat_map(move |(side, out)| out.iter_mut().flat_map(move |out| Pack::tasks(matrix, out, side)))
    }

    /// Packs a matrix in this thread with the instructions of a SIMD level.
    #[inline(always)]
    pub(super) fn by<S: Simd>(simd: S, matrix: Matrix<'_>, role: Role) -> Self {
        let mut packed = Self::new(matrix, role);
        for task in packed.tasks(matrix) {
            task.with_simd(simd);
        }
        packed
    }

    /// Packs matrices on all cores.
    pub(crate) fn all<const N: usize>(matrices: [(Matrix<'_>, Role); N]) -> [Self; N] {
        let packed = Self::all_of(&matrices);
        packed.try_into().expect("each matrix was packed")
    }

    pub(crate) fn all_of(matrices: &[(Matrix<'_>, Role)]) -> Vec<Self> {
        let matrices = matrices.iter();
        let mut packed: Vec<_> = matrices.clone().map(|(matrix, role)| Self::new(*matrix, *role)).collect();
        let copies = packed.iter().flat_map(|packed| packed.copies.iter().flatten());
        let scalars = copies.map(|rows| rows.len() * WIDTH).sum();
        let tasks = matrices.zip(&mut packed);
        let tasks = tasks.flat_map(|((matrix, _), packed)| packed.tasks(*matrix));
        run(scalars, tasks);
        packed
    }

    /// The copy for the left side of products.
    pub(crate) fn left(&self) -> PackedRef<'_, E> {
        self.copy(Side::Left)
    }

    /// The copy for the right side of products, or for the left, transposed.
    pub(crate) fn right(&self) -> PackedRef<'_, E> {
        self.copy(Side::right::<E>())
    }

    fn copy(&self, side: Side) -> PackedRef<'_, E> {
        let rows = self.copies[side as usize].as_ref().expect("the matrix was packed for this side");
        PackedRef::new(rows, side.shape::<E>(self.shape))
    }
}

/// A task that packs some panels of a matrix.
struct Pack<'a, E> {
    matrix: Matrix<'a>,
    out: &'a mut [Row<E>],
    side: Side,
}

impl<'a, E: Element> Pack<'a, E> {
    fn tasks(matrix: Matrix<'a>, out: &'a mut [Row<E>], side: Side) -> impl Iterator<Item = Self> {
        let [n_rows, _] = side.shape::<E>([matrix.n_rows(), matrix.n_columns()]).map(|n| n.max(1));
        // The scalars in a row of a panel.
        let width = match side {
            Side::Left => WIDTH * E::SCALARS,
            Side::Right => WIDTH,
        };
        let panels = matrix.n_columns().div_ceil(width).div_ceil(TASKS).max(ELEMENTS / (n_rows * WIDTH)).max(1);
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

const ELEMENTS: usize = 1 << 15;

/// The most tasks per matrix. Wide parts have long contiguous reads.
const TASKS: usize = 8;

const ROWS: usize = 8;

impl<E: Element> WithArithmetic for Pack<'_, E> {
    type Element = E;

    #[inline(always)]
    fn with(self, arithmetic: impl Arithmetic<Element = E>) {
        let Self { matrix, out, side } = self;
        match (side, matrix.has_rows()) {
            (_, false) if side == Side::right::<E>() => pack_transposed(arithmetic, matrix.transposed(), out),
            (Side::Left, _) => pack_rows(arithmetic, matrix, out),
            (Side::Right, _) => pack_stacks(arithmetic, matrix, out),
        }
    }
}

#[inline(always)]
fn pack_rows<A: Arithmetic>(arithmetic: A, matrix: Matrix<'_>, out: &mut [Row<A::Element>]) {
    let (n_rows, width) = (matrix.n_rows(), WIDTH * A::Element::SCALARS);
    for first in (0..n_rows).step_by(ROWS) {
        let n = ROWS.min(n_rows - first);
        let mut rows = [&[][..]; ROWS];
        for (i, row) in rows[..n].iter_mut().enumerate() {
            *row = matrix.row(first + i);
        }
        for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
            for (row, out) in rows.iter().zip(&mut out[first..first + n]) {
                // Whole panels are handled separately: a copy of constant length stays in registers.
                match row.get(panel * width..(panel + 1) * width) {
                    Some(scalars) => arithmetic.round(scalars, out),
                    None => arithmetic.round(&row[panel * width..], out),
                }
            }
        }
    }
}

/// Packs elements of two adjacent rows; an odd last row is padded with zeros.
#[inline(always)]
fn pack_stacks<A: Arithmetic>(arithmetic: A, matrix: Matrix<'_>, out: &mut [Row<A::Element>]) {
    let n_stacks = A::Element::count(matrix.n_rows());
    for first in (0..n_stacks).step_by(ROWS / 2) {
        let n = (ROWS / 2).min(n_stacks - first);
        let mut rows = [[&[][..]; 2]; ROWS / 2];
        for (i, rows) in rows[..n].iter_mut().enumerate() {
            let above = 2 * (first + i);
            rows[0] = matrix.row(above);
            if above + 1 < matrix.n_rows() {
                rows[1] = matrix.row(above + 1);
            }
        }
        for (panel, out) in out.chunks_exact_mut(n_stacks).enumerate() {
            let columns = panel * WIDTH..(panel + 1) * WIDTH;
            for ([above, below], out) in rows.iter().zip(&mut out[first..first + n]) {
                *out = match (above.get(columns.clone()), below.get(columns.clone())) {
                    (Some(above), Some(below)) => {
                        let whole = "the row holds a whole panel";
                        arithmetic.stack(above.try_into().expect(whole), below.try_into().expect(whole))
                    }
                    _ => arithmetic.stack(&padded(above, panel), &padded(below, panel)),
                };
            }
        }
    }
}

/// The scalars of a panel, padded with zeros.
#[inline(always)]
fn padded(row: &[f32], panel: usize) -> Row {
    let mut out = [0.0; WIDTH];
    let row = &row[(panel * WIDTH).min(row.len())..];
    let n = row.len().min(WIDTH);
    out[..n].copy_from_slice(&row[..n]);
    out
}

/// Packs the transpose: an element holds adjacent columns of `matrix`, and its rows lie side by side.
#[inline(always)]
fn pack_transposed<A: Arithmetic>(arithmetic: A, matrix: Matrix<'_>, out: &mut [Row<A::Element>]) {
    let (strip, scalars) = (A::Element::STRIP, A::Element::SCALARS);
    let n_rows = A::Element::count(matrix.n_columns());
    for (panel, out) in out.chunks_exact_mut(n_rows).enumerate() {
        let first = panel * WIDTH;
        let n_columns = WIDTH.min(matrix.n_rows() - first);
        let n_strips = if n_columns == WIDTH { matrix.n_columns() / strip } else { 0 };
        let (strips, rest) = out.split_at_mut(n_strips * strip / scalars);
        for (i, out) in strips.chunks_exact_mut(strip / scalars).enumerate() {
            for column in (0..WIDTH).step_by(SIDE) {
                let mut rows = [[A::Element::default(); WIDTH]; SIDE];
                for (j, row) in rows.iter_mut().enumerate() {
                    let x = matrix.row(first + column + j);
                    arithmetic.round(&x[i * strip..(i + 1) * strip], row);
                }
                for (square, out) in out.chunks_exact_mut(SIDE).enumerate() {
                    let mut x = [[A::Element::default(); SIDE]; SIDE];
                    for (x, row) in x.iter_mut().zip(&rows) {
                        x.copy_from_slice(&row[square * SIDE..(square + 1) * SIDE]);
                    }
                    for (out, x) in out.iter_mut().zip(transpose::transposed(arithmetic.simd(), x)) {
                        out[column..column + SIDE].copy_from_slice(&x);
                    }
                }
            }
        }
        for (row, out) in (n_strips * strip / scalars..).zip(rest) {
            for (column, out) in out[..n_columns].iter_mut().enumerate() {
                *out = A::Element::first(&matrix.row(first + column)[row * scalars..]);
            }
        }
    }
}

/// Packs a whole matrix as the right one of products, in this thread.
pub(super) fn pack_right<E: Element>(matrix: Matrix<'_>, out: &mut [Row<E>]) {
    simd::dispatch(Pack { matrix, out, side: Side::right::<E>() });
}

/// A matrix that was packed as the left one of products, repacked as the right one.
pub(crate) struct Operand<'a, E> {
    left: PackedRef<'a, E>,
    right: Option<Scratch<E>>,
    n_columns: usize,
}

impl<'a, E: Element> Operand<'a, E> {
    pub(crate) fn new(left: PackedRef<'a, E>, n_columns: usize) -> Self {
        let right = E::left_as_right(left, n_columns);
        Self { left, right, n_columns }
    }

    pub(crate) fn left(&self) -> PackedRef<'a, E> {
        self.left
    }

    pub(crate) fn right(&self) -> PackedRef<'_, E> {
        match &self.right {
            None => self.left,
            Some(rows) => PackedRef::new(rows, [E::count(self.left.n_rows()), self.n_columns]),
        }
    }
}
