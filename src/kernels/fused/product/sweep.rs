//! A whole product in one thread, tile by tile.

use pulp::Simd;

use super::finish::Finish;
use super::panels::{Panels, Row, WIDTH, n_panels};
use super::tile::Left;

/// Multiplies in this thread, and hands every sum on once.
#[inline(always)]
pub(in crate::kernels::fused) fn multiply<S: Simd>(
    simd: S,
    left: impl Left,
    right: Panels<'_>,
    finish: &mut impl Finish,
) {
    assert_eq!(left.depth(), right.n_rows(), "columns and rows");
    // As many rows at once as leave registers for a row of the right matrix.
    if S::F32_LANES == 8 {
        tiles::<S, _, 6, 4>(simd, left, right, finish);
    } else {
        tiles::<S, _, 12, 8>(simd, left, right, finish);
    }
}

/// With tiles of R rows, or of T if the left matrix is turned.
#[inline(always)]
fn tiles<S: Simd, L: Left, const R: usize, const T: usize>(
    simd: S,
    left: L,
    right: Panels<'_>,
    finish: &mut impl Finish,
) {
    for panel in 0..n_panels(right.n_columns()) {
        let rows = right.panel(panel);
        let columns = WIDTH.min(right.n_columns() - panel * WIDTH);
        for column in (0..columns).step_by(2 * S::F32_LANES) {
            let at = Place {
                rows,
                first_column: panel * WIDTH,
                column,
            };
            let columns = columns - column;
            if L::TURNED {
                column_of_tiles::<S, L, T>(simd, left, at, columns, finish);
            } else {
                column_of_tiles::<S, L, R>(simd, left, at, columns, finish);
            }
        }
    }
}

/// Columns of the right matrix.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Of the panel.
    rows: &'a [Row],
    /// Of all columns, its first.
    first_column: usize,
    /// Within the panel.
    column: usize,
}

/// All rows with two registers of columns, or with one where `columns` are no more.
#[inline(always)]
fn column_of_tiles<S: Simd, L: Left, const R: usize>(
    simd: S,
    left: L,
    at: Place<'_>,
    columns: usize,
    finish: &mut impl Finish,
) {
    let n = left.n_rows();
    let mut row = 0;
    if columns <= S::F32_LANES {
        while n - row >= R {
            tile::<S, L, R, 1>(simd, left, row, at, columns, finish);
            row += R;
        }
        while row < n {
            tile::<S, L, 1, 1>(simd, left, row, at, columns, finish);
            row += 1;
        }
        return;
    }
    while n - row >= R {
        tile::<S, L, R, 2>(simd, left, row, at, columns, finish);
        row += R;
    }
    while n - row >= 4 {
        tile::<S, L, 4, 2>(simd, left, row, at, columns, finish);
        row += 4;
    }
    while row < n {
        tile::<S, L, 1, 2>(simd, left, row, at, columns, finish);
        row += 1;
    }
}

#[inline(always)]
fn tile<S: Simd, L: Left, const R: usize, const V: usize>(
    simd: S,
    left: L,
    row: usize,
    at: Place<'_>,
    columns: usize,
    finish: &mut impl Finish,
) {
    let column = at.first_column + at.column;
    for i in 0..R {
        finish.expect(row + i, column);
    }
    let sums = left.tile::<S, R, V>(simd, row, at.rows, at.column);
    for (i, sums) in sums.iter().enumerate() {
        let mut values = [0.0; WIDTH];
        let (registers, _) = S::as_mut_simd_f32s(&mut values);
        registers[..V].copy_from_slice(sums);
        let n = V * S::F32_LANES;
        if columns >= n {
            finish.finish(simd, row + i, column, &values[..n]); // of known length
        } else {
            finish.finish(simd, row + i, column, &values[..columns]);
        }
    }
}
