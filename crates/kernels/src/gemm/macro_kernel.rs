//! A whole product in one thread, tile by tile.

use pulp::Simd;

use super::arithmetic::Arithmetic;
use super::epilogue::Epilogue;
use super::micro_kernel::Left;
use super::packed::{PackedRef, Row, WIDTH, n_panels};

/// Multiplies in this thread, and hands every sum on once.
#[inline(always)]
pub(crate) fn multiply<A: Arithmetic>(
    arithmetic: A,
    left: impl Left<Element = A::Element>,
    right: PackedRef<'_, A::Element>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    assert_eq!(left.depth(), right.n_rows(), "columns and rows");
    // As many rows at once as leave registers for a row of the right matrix.
    if A::Simd::F32_LANES == 8 {
        blocks::<A, _, 6, 4>(arithmetic, left, right, epilogue);
    } else {
        blocks::<A, _, 12, 8>(arithmetic, left, right, epilogue);
    }
}

/// With tiles of R rows, or of T if the left matrix is transposed.
#[inline(always)]
fn blocks<A: Arithmetic, L: Left<Element = A::Element>, const R: usize, const T: usize>(
    arithmetic: A,
    left: L,
    right: PackedRef<'_, A::Element>,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    for panel in 0..n_panels(right.n_columns()) {
        let rows = right.panel(panel);
        let columns = WIDTH.min(right.n_columns() - panel * WIDTH);
        for column in (0..columns).step_by(2 * A::Simd::F32_LANES) {
            let at = Place { rows, first_column: panel * WIDTH, column };
            let columns = columns - column;
            if L::TRANSPOSED {
                strip::<A, L, T>(arithmetic, left, at, columns, epilogue);
            } else {
                strip::<A, L, R>(arithmetic, left, at, columns, epilogue);
            }
        }
    }
}

/// Columns of the right matrix.
#[derive(Clone, Copy)]
struct Place<'a, E> {
    /// Of the panel.
    rows: &'a [Row<E>],
    /// Of all columns, its first.
    first_column: usize,
    /// Within the panel.
    column: usize,
}

/// All rows with two registers of columns, or with one where `columns` are no more.
#[inline(always)]
fn strip<A: Arithmetic, L: Left<Element = A::Element>, const R: usize>(
    arithmetic: A,
    left: L,
    at: Place<'_, A::Element>,
    columns: usize,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let n = left.n_rows();
    let mut row = 0;
    if columns <= A::Simd::F32_LANES {
        while n - row >= R {
            micro_kernel::<A, L, R, 1>(arithmetic, left, row, at, columns, epilogue);
            row += R;
        }
        while row < n {
            micro_kernel::<A, L, 1, 1>(arithmetic, left, row, at, columns, epilogue);
            row += 1;
        }
        return;
    }
    while n - row >= R {
        micro_kernel::<A, L, R, 2>(arithmetic, left, row, at, columns, epilogue);
        row += R;
    }
    while n - row >= 4 {
        micro_kernel::<A, L, 4, 2>(arithmetic, left, row, at, columns, epilogue);
        row += 4;
    }
    while row < n {
        micro_kernel::<A, L, 1, 2>(arithmetic, left, row, at, columns, epilogue);
        row += 1;
    }
}

#[inline(always)]
fn micro_kernel<A: Arithmetic, L: Left<Element = A::Element>, const R: usize, const V: usize>(
    arithmetic: A,
    left: L,
    row: usize,
    at: Place<'_, A::Element>,
    columns: usize,
    epilogue: &mut impl Epilogue<A::Element>,
) {
    let column = at.first_column + at.column;
    for i in 0..R {
        epilogue.prefetch(row + i, column);
    }
    let sums = left.micro_kernel::<A, R, V>(arithmetic, row, at.rows, at.column);
    for (i, sums) in sums.iter().enumerate() {
        let mut values = [0.0; WIDTH];
        let lanes = A::Simd::F32_LANES;
        for (sums, values) in sums.iter().zip(values.chunks_exact_mut(lanes)) {
            arithmetic.store(*sums, values);
        }
        let n = V * lanes;
        if columns >= n {
            epilogue.apply(arithmetic, row + i, column, &values[..n]); // of known length
        } else {
            epilogue.apply(arithmetic, row + i, column, &values[..columns]);
        }
    }
}
