//! Divides a product into blocks of rows and columns, one task each, and a block into tiles of a few rows and two
//! registers.

use std::ops::Range;

use pulp::Simd;
use pulp::bytemuck::cast_slice;

#[cfg(target_arch = "x86_64")]
use super::amx::MatrixUnit;
use super::arithmetic::Arithmetic;
use super::element::{Row, WIDTH, Word, n_panels};
use super::epilogue::Epilogue;
use super::micro_kernel::LeftMatrix;
use super::packed::PackedRef;
use super::right::RightMatrix;
use super::scratch::Scratch;
use crate::SimdLevel;

/// Divides a product's output into tasks, one row of blocks after another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    shape: [usize; 2],
    block: [usize; 2],
}

/// The fewest multiply-adds in a block: some tens of microseconds.
const MIN_BLOCK_MACS: usize = 1 << 19;

/// [`MIN_BLOCK_MACS`] for a matrix unit, and the fewest panels in a block for which it copies a transposed left matrix.
const UNIT_MIN_BLOCK_MACS: usize = 8 * MIN_BLOCK_MACS;
const UNIT_PANELS: usize = 8;

/// Reading the right matrix from memory takes as long as multiplying this many rows.
const READ_ROWS: usize = 15;

/// The most elements of the left matrix in a block (`m_c k_c` in BLIS), which reads them for each of its panels: they
/// fit the L2 cache.
const MC_ELEMENTS: usize = 1 << 16;

/// The most of the depth that counts for [`MC_ELEMENTS`]. In deeper products a block has more rows than the cache
/// holds, because with few of them the right matrix, too, would be read from memory for a few tiles at a time.
const MC_DEPTH: usize = 320;

/// The most rows of a block whose task packs the right matrix: with more, the left one would not fit the L2 cache
/// beside it, and with fewer, it would be packed too often.
const PACKING_ROWS: usize = 384;

/// The most panels in such a block, which are read side by side from the rows of a matrix, and the number of blocks
/// from which on it has fewer.
const PACKING_PANELS: usize = 4;
const PACKING_BLOCKS: usize = 12;

/// The steps of the depth that are multiplied at once (`k_c` in BLIS): 16 KiB of a panel in f32 stay in the L1 cache.
/// With AVX-512 each scalar is multiplied so often that it may come from the L2 cache, which limits what a task packs.
fn kc_steps(lanes: usize, is_packed: bool) -> usize {
    match (lanes, is_packed) {
        (8, _) => 4,
        (_, true) => usize::MAX,
        (_, false) => 8,
    }
}

impl Blocks {
    /// The blocks depend on the sizes alone. If the right matrix is to be `read_once`, because it comes from memory,
    /// each block has all rows.
    pub(super) fn new<L: LeftMatrix>(left: L, right: RightMatrix<'_, L::RightElement>, read_once: bool) -> Self {
        let [rows, columns] = [left.n_rows(), right.n_columns()];
        let depth = left.depth().max(1);
        #[cfg(target_arch = "x86_64")]
        let has_matrix_unit = MatrixUnit::of::<L::Element>().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        let has_matrix_unit = false;
        let (unit, min_macs) = if has_matrix_unit { (WIDTH, UNIT_MIN_BLOCK_MACS) } else { (L::UNIT, MIN_BLOCK_MACS) };
        let units = rows.div_ceil(unit).max(1);
        let most = match right.is_packed() {
            true if read_once => units,
            true => MC_ELEMENTS / (depth.min(MC_DEPTH) * unit),
            false => PACKING_ROWS / unit,
        };
        // Blocks with about the same number of rows.
        let blocks = units.div_ceil(most.max(1));
        let block_rows = units.div_ceil(blocks) * unit;
        let mut panels = min_macs.div_ceil((block_rows.min(rows) + READ_ROWS) * depth * WIDTH);
        if !right.is_packed() {
            panels = panels.max((n_panels(columns) * blocks / PACKING_BLOCKS).min(PACKING_PANELS));
        }
        if L::IN_PANELS && has_matrix_unit {
            panels = panels.max(UNIT_PANELS);
        }
        panels = panels.next_multiple_of(2); // tiles may have columns of two
        Self { shape: [rows, columns], block: [block_rows, panels * WIDTH] }
    }

    pub(super) fn len(self) -> usize {
        self.n_in_row() * self.shape[0].div_ceil(self.block[0])
    }

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
pub(crate) fn multiply<'a, A: Arithmetic, L: LeftMatrix<Element = A::Element>>(
    arithmetic: A,
    left: L,
    right: impl Into<RightMatrix<'a, L::RightElement>>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let right = right.into();
    let (depth, n_panels) = (right.n_rows(), n_panels(right.n_columns()));
    assert_eq!(left.depth(), depth, "columns and rows");
    let (n_rows, n_steps) = (left.n_rows(), depth.div_ceil(L::STEP).max(1));
    // A constant condition first, so that this is compiled only for instructions that a matrix unit comes with.
    #[cfg(target_arch = "x86_64")]
    if const { A::Element::SCALARS == 2 && A::Simd::F32_LANES == 16 }
        && n_rows > 0
        && let Some(unit) = MatrixUnit::of::<A::Element>()
    {
        let n_packed = if right.is_packed() { 0 } else { depth };
        let (mut rows, mut packed) = (Scratch::new(0), Scratch::new(n_panels * n_packed));
        let left = left.by_rows(arithmetic.simd(), &mut rows);
        let right = right.packed_rows(0..depth, &mut packed);
        return unit.multiply(arithmetic, (left, n_rows), right, epilogue);
    }
    // If only a few tiles read a panel, sequential reads are fastest.
    let most = if n_rows > READ_WHOLE { kc_steps(A::Simd::F32_LANES, right.is_packed()) } else { n_steps };
    let steps = n_steps.div_ceil(n_steps.div_ceil(most));
    let mut waiting = Scratch::new(if n_steps > steps { n_panels * n_rows } else { 0 });
    let n_packed = if right.is_packed() { 0 } else { depth.min(steps * L::STEP) };
    let mut packed = Scratch::new(n_panels * n_packed);
    for first in (0..n_steps).step_by(steps) {
        let last = n_steps.min(first + steps);
        let right = right.packed_rows(first * L::STEP..depth.min(last * L::STEP), &mut packed);
        let left = left.steps(first..last);
        let part = DepthPart { is_first: first == 0, is_last: last == n_steps, sums: &mut waiting, n_rows };
        // As many rows at a time as leave registers for a row of the right matrix. Constant conditions, so that only
        // the called functions are compiled.
        if const { A::Simd::F32_LANES == 8 } {
            if const { L::FEW_ROWS && !L::IN_PANELS } {
                panels::<A, L, _, 4, 2>(arithmetic, left, right, part, epilogue);
            } else if const { A::Element::SCALARS == 1 } {
                panels::<A, L, _, 3, 4>(arithmetic, left, right, part, epilogue);
            } else {
                panels::<A, L, _, 6, 2>(arithmetic, left, right, part, epilogue);
            }
        } else if const { L::FEW_ROWS } {
            panels::<A, L, _, 8, 2>(arithmetic, left, right, part, epilogue);
        } else {
            panels::<A, L, _, 12, 2>(arithmetic, left, right, part, epilogue);
        }
    }
}

/// The number of sums per panel of columns that wait in memory in a task of a product with these rows, this depth and a
/// packed right matrix, at the SIMD level of this process.
pub(crate) fn n_waiting(n_rows: usize, depth: usize) -> usize {
    let lanes = if matches!(SimdLevel::current(), Ok(SimdLevel::Avx2)) { 8 } else { 16 };
    let has_parts = n_rows > READ_WHOLE && depth.div_ceil(WIDTH) > kc_steps(lanes, true);
    if has_parts { n_rows * WIDTH } else { 0 }
}

/// A part of the depth (a pass of the loop over `k_c` in BLIS). Sums wait in memory for the next part.
struct DepthPart<'a> {
    is_first: bool,
    is_last: bool,
    /// The sums of each row and panel; empty if there is only one part.
    sums: &'a mut [Row],
    n_rows: usize,
}

impl DepthPart<'_> {
    #[inline(always)]
    fn waiting(&mut self, row: usize, panel: usize) -> &mut Row {
        &mut self.sums[panel * self.n_rows + row]
    }
}

/// With at most this many rows of the left matrix, memory is the bottleneck, not arithmetic.
const READ_WHOLE: usize = 16;

/// Panel after panel, in tiles of R rows by V registers.
#[inline(always)]
fn panels<
    A: Arithmetic,
    L: LeftMatrix<Element = A::Element>,
    F: Epilogue<A::Element>,
    const R: usize,
    const V: usize,
>(
    arithmetic: A,
    left: L,
    right: PackedRef<'_, L::RightElement>,
    mut part: DepthPart<'_>,
    epilogue: &mut F,
) {
    let mut done = 0;
    if const { A::Simd::F32_LANES == 16 && A::Element::SCALARS == 1 && L::IS_WIDE } && left.n_rows() >= WIDE_ROWS {
        for first in (0..right.n_columns() / WIDTH / 2).map(|pair| 2 * pair) {
            let rows = [first, first + 1].map(|panel| right.panel(panel));
            wide_tiles(arithmetic, left, first, rows, &mut part, epilogue);
            done = first + 2;
        }
    }
    for panel in done..n_panels(right.n_columns()) {
        let rows = right.panel(panel);
        // Widening leaves registers for only one row of a whole panel, which is read sequentially.
        if const { F::READS_ONCE && F::WHOLE_PANELS && A::Simd::F32_LANES == 8 && V < 4 } && left.n_rows() == 1 {
            let at = PanelColumns { rows, first_column: panel * WIDTH, column: 0, n_columns: WIDTH };
            tile::<A, L, 1, 4>(arithmetic, left, 0, at, &mut part, epilogue);
            continue;
        }
        let n_columns = if F::WHOLE_PANELS { WIDTH } else { WIDTH.min(right.n_columns() - panel * WIDTH) };
        for column in (0..n_columns).step_by(V * A::Simd::F32_LANES) {
            let n_columns = n_columns - column;
            let at = PanelColumns { rows, first_column: panel * WIDTH, column, n_columns };
            if n_columns > A::Simd::F32_LANES {
                column_of_tiles::<A, L, R, V>(arithmetic, left, at, &mut part, epilogue);
            } else {
                column_of_tiles::<A, L, R, 1>(arithmetic, left, at, &mut part, epilogue);
            }
        }
    }
}

/// The number of rows of a tile with four registers of columns, those of two panels.
const WIDE_ROWS: usize = 6;

/// All rows with the columns of two panels, from the panel `first` on.
#[inline(always)]
fn wide_tiles<A: Arithmetic, L: LeftMatrix<Element = A::Element>>(
    arithmetic: A,
    left: L,
    first: usize,
    rows: [&[Row<L::RightElement>]; 2],
    part: &mut DepthPart<'_>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let n = left.n_rows();
    let mut row = 0;
    while row < n {
        let end = if L::IN_PANELS { n.min(row + WIDTH) } else { n };
        while end - row >= WIDE_ROWS {
            wide_tile::<A, L, WIDE_ROWS>(arithmetic, left, row, first, rows, part, epilogue);
            row += WIDE_ROWS;
        }
        while end - row >= 2 {
            wide_tile::<A, L, 2>(arithmetic, left, row, first, rows, part, epilogue);
            row += 2;
        }
        if row < end {
            for (panel, rows) in (first..).zip(rows) {
                let at = PanelColumns { rows, first_column: panel * WIDTH, column: 0, n_columns: WIDTH };
                tile::<A, L, 1, 2>(arithmetic, left, row, at, part, epilogue);
            }
            row += 1;
        }
    }
}

#[inline(always)]
fn wide_tile<A: Arithmetic, L: LeftMatrix<Element = A::Element>, const R: usize>(
    arithmetic: A,
    left: L,
    row: usize,
    first: usize,
    rows: [&[Row<L::RightElement>]; 2],
    part: &mut DepthPart<'_>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let mut sums = [[arithmetic.simd().splat_f32s(0.0); 4]; R];
    if !part.is_first {
        for (i, sums) in sums.iter_mut().enumerate() {
            for (panel, sums) in (first..).zip(sums.chunks_exact_mut(2)) {
                sums.copy_from_slice(A::Simd::as_simd_f32s(part.waiting(row + i, panel)).0);
            }
        }
    }
    if part.is_last {
        for (i, panel) in (0..R).flat_map(|i| [(i, first), (i, first + 1)]) {
            epilogue.prefetch(row + i, panel * WIDTH);
        }
    }
    let sums = left.wide_kernel::<A, R>(arithmetic, row, rows, sums);
    for (i, sums) in sums.iter().enumerate() {
        for (panel, sums) in (first..).zip(sums.chunks_exact(2)) {
            let sums: &[f32; WIDTH] = cast_slice(sums).try_into().expect("a row of a panel");
            if part.is_last {
                epilogue.apply(arithmetic, [row + i, panel * WIDTH], sums);
            } else {
                *part.waiting(row + i, panel) = *sums;
            }
        }
    }
}

#[derive(Clone, Copy)]
struct PanelColumns<'a, W> {
    rows: &'a [Row<W>],
    /// The index of the panel's first column among all columns.
    first_column: usize,
    column: usize,
    /// The number of columns from there to the last one of the panel.
    n_columns: usize,
}

#[inline(always)]
fn column_of_tiles<A: Arithmetic, L: LeftMatrix<Element = A::Element>, const R: usize, const V: usize>(
    arithmetic: A,
    left: L,
    at: PanelColumns<'_, L::RightElement>,
    part: &mut DepthPart<'_>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let n = left.n_rows();
    let mut row = 0;
    while row < n {
        let end = if L::IN_PANELS { n.min(row + WIDTH) } else { n };
        while end - row >= R {
            tile::<A, L, R, V>(arithmetic, left, row, at, part, epilogue);
            row += R;
        }
        if const { V > 1 && R > 8 } && end - row >= 8 {
            tile::<A, L, 8, V>(arithmetic, left, row, at, part, epilogue);
            row += 8;
        }
        while const { V > 1 && R > 4 } && end - row >= 4 {
            tile::<A, L, 4, V>(arithmetic, left, row, at, part, epilogue);
            row += 4;
        }
        if const { V > 1 && R > 2 } && end - row >= 2 {
            tile::<A, L, 2, V>(arithmetic, left, row, at, part, epilogue);
            row += 2;
        }
        while row < end {
            tile::<A, L, 1, V>(arithmetic, left, row, at, part, epilogue);
            row += 1;
        }
    }
}

#[inline(always)]
fn tile<A: Arithmetic, L: LeftMatrix<Element = A::Element>, const R: usize, const V: usize>(
    arithmetic: A,
    left: L,
    row: usize,
    at: PanelColumns<'_, L::RightElement>,
    part: &mut DepthPart<'_>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    // A constant where possible, so that the inner loop does not check the index into a row.
    let first = if const { V * A::Simd::F32_LANES == WIDTH } { 0 } else { at.column };
    let column = at.first_column + first;
    let (panel, lanes) = (at.first_column / WIDTH, first..first + V * A::Simd::F32_LANES);
    let mut sums = [[arithmetic.simd().splat_f32s(0.0); V]; R];
    if !part.is_first {
        for (i, sums) in sums.iter_mut().enumerate() {
            let waiting = &part.waiting(row + i, panel)[lanes.clone()];
            *sums = A::Simd::as_simd_f32s(waiting).0.try_into().expect("V registers");
        }
    }
    if part.is_last {
        for i in 0..R {
            epilogue.prefetch(row + i, column);
        }
    }
    let sums = left.micro_kernel::<A, R, V>(arithmetic, row, at.rows, first, sums);
    if !part.is_last {
        for (i, sums) in sums.iter().enumerate() {
            part.waiting(row + i, panel)[lanes.clone()].copy_from_slice(cast_slice(sums));
        }
        return;
    }
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
