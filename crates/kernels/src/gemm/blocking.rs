//! How the output of a product is shared out among tasks.

use std::ops::Range;

use super::micro_kernel::Left;
use super::packed::{PackedRef, WIDTH};

/// Blocks of rows and columns, one row of blocks after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    shape: [usize; 2],
    block: [usize; 2],
}

/// Multiplications of elements of a block at least: some tens of microseconds.
const PRODUCTS: usize = 1 << 19;

/// Elements of the left matrix that a block reads again for each of its panels: they fit the second cache.
const LEFT: usize = 1 << 16;

impl Blocking {
    /// The blocks of a product: a function of its sizes alone.
    pub(super) fn new<L: Left>(left: L, right: PackedRef<'_, L::Element>) -> Self {
        let [rows, columns] = [left.n_rows(), right.n_columns()];
        let depth = left.depth().max(1);
        let units = rows.div_ceil(L::UNIT).max(1);
        // Blocks of about as many rows each.
        let blocks = units.div_ceil((LEFT / (depth * L::UNIT)).max(1));
        let block_rows = units.div_ceil(blocks) * L::UNIT;
        let panels = PRODUCTS.div_ceil(block_rows.min(rows.max(1)) * depth * WIDTH);
        Self { shape: [rows, columns], block: [block_rows, panels * WIDTH] }
    }

    /// Rows and columns of each block.
    pub(super) fn blocks(self) -> impl Iterator<Item = [Range<usize>; 2]> {
        let [rows, columns] = self.shape;
        let [block_rows, block_columns] = self.block;
        let part = |first: usize, n: usize, end: usize| first..end.min(first + n);
        (0..rows).step_by(block_rows).flat_map(move |row| {
            (0..columns).step_by(block_columns).map(move |column| {
                [part(row, block_rows, rows), part(column, block_columns, columns)]
            })
        })
    }
}
