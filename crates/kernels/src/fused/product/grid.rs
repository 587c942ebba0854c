//! How the output of a product is shared out among tasks.

use std::ops::Range;

use super::panels::{Panels, WIDTH};
use super::tile::Left;

/// Cells of rows and columns, one row of cells after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    shape: [usize; 2],
    cell: [usize; 2],
}

/// Multiplications of elements of a cell at least: some tens of microseconds.
const PRODUCTS: usize = 1 << 19;

/// Elements of the left matrix that a cell reads again for each of its panels: they fit the second cache.
const LEFT: usize = 1 << 16;

impl Grid {
    /// The cells of a product: a function of its sizes alone.
    pub(super) fn new<L: Left>(left: L, right: Panels<'_, L::Element>) -> Self {
        let [rows, columns] = [left.n_rows(), right.n_columns()];
        let depth = left.depth().max(1);
        let units = rows.div_ceil(L::UNIT).max(1);
        // Cells of about as many rows each.
        let cells = units.div_ceil((LEFT / (depth * L::UNIT)).max(1));
        let cell_rows = units.div_ceil(cells) * L::UNIT;
        let panels = PRODUCTS.div_ceil(cell_rows.min(rows.max(1)) * depth * WIDTH);
        Self { shape: [rows, columns], cell: [cell_rows, panels * WIDTH] }
    }

    /// Rows and columns of each cell.
    pub(super) fn cells(self) -> impl Iterator<Item = [Range<usize>; 2]> {
        let [rows, columns] = self.shape;
        let [cell_rows, cell_columns] = self.cell;
        let part = |first: usize, n: usize, end: usize| first..end.min(first + n);
        (0..rows).step_by(cell_rows).flat_map(move |row| {
            (0..columns).step_by(cell_columns).map(move |column| {
                [part(row, cell_rows, rows), part(column, cell_columns, columns)]
            })
        })
    }
}
