//! Divides a product into blocks of rows and columns, one task each, and a block into tiles of a few rows and two
//! registers.

use std::ops::Range;

use pulp::Simd;
use pulp::bytemuck::cast_slice;

use super::arithmetic::Arithmetic;
use super::element::{Row, WIDTH, n_panels};
use super::epilogue::Epilogue;
use super::micro_kernel::Left;
use super::packed::PackedRef;

/// The division of a product's output into tasks: one row of blocks after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    shape: [usize; 2],
    block: [usize; 2],
}

/// The fewest multiplications in a block: some tens of microseconds.
const PRODUCTS: usize = 1 << 19;

/// The number of rows that take as long to multiply as the right matrix to read from memory.
const READING: usize = 15;

/// The most elements of the left matrix in a block, which reads them for each of its panels: they fit the L2 cache.
const LEFT: usize = 1 << 16;

impl Blocks {
    /// The blocks of a product, a function of its sizes alone. If the right matrix is to be `read_once`, because it
    /// comes from memory, each block has all rows.
    pub(super) fn new<L: Left>(left: L, right: PackedRef<'_, L::Right>, read_once: bool) -> Self {
        let [rows, columns] = [left.n_rows(), right.n_columns()];
        let depth = left.depth().max(1);
        let units = rows.div_ceil(L::UNIT).max(1);
        // Blocks with about the same number of rows.
        let blocks = match read_once {
            true => 1,
            false => units.div_ceil((LEFT / (depth * L::UNIT)).max(1)),
        };
        let block_rows = units.div_ceil(blocks) * L::UNIT;
        let panels = PRODUCTS.div_ceil((block_rows.min(rows) + READING) * depth * WIDTH);
        Self { shape: [rows, columns], block: [block_rows, panels * WIDTH] }
    }

    /// The number of blocks.
    pub(super) fn len(self) -> usize {
        self.n_in_row() * self.shape[0].div_ceil(self.block[0])
    }

    /// Rows and columns of a block.
    pub(super) fn get(self, i: usize) -> [Range<usize>; 2] {
        let at = [i / self.n_in_row(), i % self.n_in_row()];
        std::array::from_fn(|axis| {
            let first = at[axis] * self.block[axis];
            first..self.shape[axis].min(first + self.block[axis])
        })
    }

    fn n_in_row(self) -> usize {
        self.shape[1].div_ceil(self.block[1])
    }
}

/// Multiplies in this thread, and passes each sum to the epilogue once.
#[inline(always)]
pub(crate) fn multiply<A: Arithmetic, L: Left<Element = A::Element>>(
    arithmetic: A,
    left: L,
    right: PackedRef<'_, L::Right>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    assert_eq!(left.depth(), right.n_rows(), "columns and rows");
    // As many rows at a time as leave registers for a row of the right matrix.
    match (A::Simd::F32_LANES == 8, L::FEW_ROWS) {
        (true, false) => panels::<A, L, _, 6>(arithmetic, left, right, epilogue),
        (true, true) => panels::<A, L, _, 4>(arithmetic, left, right, epilogue),
        (false, false) => panels::<A, L, _, 12>(arithmetic, left, right, epilogue),
        (false, true) => panels::<A, L, _, 8>(arithmetic, left, right, epilogue),
    }
}

/// With this many rows of the left matrix or fewer, memory is the bottleneck rather than arithmetic. On AVX2 two rows
/// of a whole panel take as many registers for sums as four rows of half a panel.
const READ_WHOLE: usize = 16;

/// Panel after panel, in tiles of R rows.
#[inline(always)]
fn panels<A: Arithmetic, L: Left<Element = A::Element>, F: Epilogue<A::Element>, const R: usize>(
    arithmetic: A,
    left: L,
    right: PackedRef<'_, L::Right>,
    epilogue: &mut F,
) {
    for panel in 0..n_panels(right.n_columns()) {
        let rows = right.panel(panel);
        // The columns of a whole panel fill the registers, and the panel is read sequentially.
        if F::READS_ONCE && F::WHOLE_PANELS && A::Simd::F32_LANES == 8 && left.n_rows() <= READ_WHOLE {
            let at = PanelColumns { rows, first_column: panel * WIDTH, column: 0, n_columns: WIDTH };
            for row in (0..left.n_rows()).step_by(2) {
                match left.n_rows() - row {
                    1 => tile::<A, L, 1, 4>(arithmetic, left, row, at, epilogue),
                    _ => tile::<A, L, 2, 4>(arithmetic, left, row, at, epilogue),
                }
            }
            continue;
        }
        let n_columns = match F::WHOLE_PANELS {
            true => WIDTH,
            false => WIDTH.min(right.n_columns() - panel * WIDTH),
        };
        for column in (0..n_columns).step_by(2 * A::Simd::F32_LANES) {
            let n_columns = n_columns - column;
            let at = PanelColumns { rows, first_column: panel * WIDTH, column, n_columns };
            if n_columns > A::Simd::F32_LANES {
                column_of_tiles::<A, L, R, 2>(arithmetic, left, at, epilogue);
            } else {
                column_of_tiles::<A, L, R, 1>(arithmetic, left, at, epilogue);
            }
        }
    }
}

/// Columns of the right matrix.
#[derive(Clone, Copy)]
struct PanelColumns<'a, W> {
    /// The index of the panel.
    rows: &'a [Row<W>],
    /// The index of the panel's first column among all columns.
    first_column: usize,
    /// The first column within the panel.
    column: usize,
    /// The number of columns from there to the last one of the panel.
    n_columns: usize,
}

/// All rows with V registers of columns.
#[inline(always)]
fn column_of_tiles<A: Arithmetic, L: Left<Element = A::Element>, const R: usize, const V: usize>(
    arithmetic: A,
    left: L,
    at: PanelColumns<'_, L::Right>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let n = left.n_rows();
    let mut row = 0;
    while n - row >= R {
        tile::<A, L, R, V>(arithmetic, left, row, at, epilogue);
        row += R;
    }
    if V > 1 && R > 8 && n - row >= 8 {
        tile::<A, L, 8, V>(arithmetic, left, row, at, epilogue);
        row += 8;
    }
    if V > 1 && n - row >= 4 {
        tile::<A, L, 4, V>(arithmetic, left, row, at, epilogue);
        row += 4;
    }
    if V > 1 && n - row >= 2 {
        tile::<A, L, 2, V>(arithmetic, left, row, at, epilogue);
        row += 2;
    }
    while row < n {
        tile::<A, L, 1, V>(arithmetic, left, row, at, epilogue);
        row += 1;
    }
}

/// R rows with V registers of columns.
#[inline(always)]
fn tile<A: Arithmetic, L: Left<Element = A::Element>, const R: usize, const V: usize>(
    arithmetic: A,
    left: L,
    row: usize,
    at: PanelColumns<'_, L::Right>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let column = at.first_column + at.column;
    for i in 0..R {
        epilogue.prefetch(row + i, column);
    }
    let sums = left.micro_kernel::<A, R, V>(arithmetic, row, at.rows, at.column);
    let n = at.n_columns.min(V * A::Simd::F32_LANES);
    for (i, sums) in sums.iter().enumerate() {
        let sums: &[f32] = cast_slice(sums);
        // Whole tiles are handled separately: loops of constant length stay in registers.
        if n == sums.len() {
            epilogue.apply(arithmetic, [row + i, column], sums);
        } else {
            epilogue.apply(arithmetic, [row + i, column], &sums[..n]);
        }
    }
}
