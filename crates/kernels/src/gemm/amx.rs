//! AMX: products of pairs of bfloat16 by the matrix unit of a Xeon. One instruction adds the product of 16 rows of 32
//! scalars and 32 rows of 16 scalars to 16 by 16 sums. It treats subnormal numbers (below 2^-126) as zero.
//!
//! A tile register holds 16 rows of 64 bytes. Panels need no other layout: half a row of a panel is a row of a tile, in
//! a left matrix 16 pairs of columns, in a right one 16 columns of pairs of rows.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use std::arch::asm;

use super::arithmetic::Arithmetic;
use super::element::{Row, WIDTH, Word, n_panels};
use super::epilogue::Epilogue;
use super::packed::PackedRef;
use super::scratch::Scratch;
use crate::SimdLevel;

/// The matrix unit. Having one proves that the CPU and the system let this process use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixUnit(());

/// The rows multiplied with a panel at a time: two tiles of rows by two of columns.
pub(super) const ROWS: usize = 2 * TILE;

/// The rows of a tile, and the words in each.
pub(super) const TILE: usize = 16;

impl MatrixUnit {
    /// The matrix unit if it multiplies these elements and the SIMD level uses it.
    pub(super) fn of<E: Word>() -> Option<Self> {
        (E::SCALARS == 2 && matches!(SimdLevel::current(), Ok(SimdLevel::Amx))).then_some(Self(()))
    }

    /// Multiplies in this thread, and passes each sum to the epilogue once. `left` has `n_rows` rows and the padding of
    /// [`LeftMatrix::by_rows`](super::micro_kernel::LeftMatrix::by_rows). The epilogue must not multiply by AMX itself,
    /// which would release the tiles.
    ///
    /// # Panics
    /// If the left matrix does not have the rows and the depth of whole tiles.
    #[inline(always)]
    pub(super) fn multiply<A: Arithmetic, W: Word, F: Epilogue<A::Element>>(
        self,
        arithmetic: A,
        (left, n_rows): (PackedRef<'_, A::Element>, usize),
        right: PackedRef<'_, W>,
        epilogue: &mut F,
    ) {
        let depth = right.n_rows().next_multiple_of(TILE);
        assert!(left.n_rows() >= n_rows.next_multiple_of(ROWS) && left.n_columns() == depth, "whole tiles");
        let _configured = Configured::new(self);
        let mut padded = Scratch::new(if depth > right.n_rows() { depth } else { 0 });
        let mut sums = Scratch::<f32>::new(ROWS);
        for panel in 0..n_panels(right.n_columns()) {
            let mut columns = right.panel(panel);
            if !padded.is_empty() {
                let (rows, rest) = padded.split_at_mut(columns.len());
                rows.copy_from_slice(columns);
                rest.fill([W::default(); WIDTH]);
                columns = &padded;
            }
            let n_columns = if F::WHOLE_PANELS { WIDTH } else { WIDTH.min(right.n_columns() - panel * WIDTH) };
            for row in (0..n_rows).step_by(ROWS) {
                let n = ROWS.min(n_rows - row);
                for i in 0..n {
                    epilogue.prefetch(row + i, panel * WIDTH);
                }
                // SAFETY: the tiles are configured, and both matrices have the depth and the rows of whole tiles.
                unsafe { tiles(left, row, columns, &mut sums) };
                for (i, sums) in sums[..n].iter().enumerate() {
                    // Whole rows are handled separately: loops of constant length stay in registers.
                    match n_columns {
                        WIDTH => epilogue.apply(arithmetic, [row + i, panel * WIDTH], sums),
                        n => epilogue.apply(arithmetic, [row + i, panel * WIDTH], &sums[..n]),
                    }
                }
            }
        }
    }
}

/// The configuration of a thread's tiles, which are released at the end: the system would otherwise save 8 KiB whenever
/// it interrupts the thread.
struct Configured(());

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// The bytes in a row of each tile.
    columns: [u16; 16],
    rows: [u8; 16],
}

impl Configured {
    /// Eight tiles of 16 rows of 64 bytes.
    #[inline(always)]
    fn new(_: MatrixUnit) -> Self {
        let mut whole = Configuration { palette: 1, start_row: 0, reserved: [0; 14], columns: [0; 16], rows: [0; 16] };
        whole.columns[..8].fill(64);
        whole.rows[..8].fill(16);
        // SAFETY: the process may use the matrix unit, and the configuration is a valid one.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const whole, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Configured {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the tiles were configured.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The products of [`ROWS`] rows with a panel.
///
/// # Safety
/// The tiles are configured. The left matrix has this many rows from `row` on, and as many columns as the panel has
/// rows, a multiple of [`TILE`].
#[inline(always)]
unsafe fn tiles<E: Word, W: Word>(left: PackedRef<'_, E>, row: usize, right: &[Row<W>], sums: &mut [Row]) {
    assert_eq!(sums.len(), ROWS);
    if right.is_empty() {
        return sums.fill([0.0; WIDTH]);
    }
    // The bytes from half of a panel's row to the other half, and from there to the row of the next panel.
    let next = size_of::<Row<E>>() / 2;
    let after = (left.step() * size_of::<Row<E>>()).wrapping_sub(next);
    // SAFETY: the caller's. Each load and store has 16 rows of 64 bytes, 128 bytes apart; 2048 bytes are 16 rows.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{left} + {row}]",
            "tileloadd tmm6, [{right} + {row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{left} + {row} + 2048]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, {next}",
            "xchg {next}, {after}",
            "add {right}, 2048",
            "dec {n}",
            "jnz 2b",
            "tilestored [{sums} + {row}], tmm0",
            "tilestored [{sums} + {row} + 64], tmm1",
            "tilestored [{sums} + {row} + 2048], tmm2",
            "tilestored [{sums} + {row} + 2112], tmm3",
            left = inout(reg) left.as_ptr().add(row) => _,
            right = inout(reg) right.as_ptr() => _,
            next = inout(reg) next => _,
            after = inout(reg) after => _,
            n = inout(reg) right.len() / TILE => _,
            sums = in(reg) sums.as_mut_ptr(),
            row = in(reg) size_of::<Row<E>>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_matrix_unit_is_used() {
        let is_required = std::env::var_os("TINDERBOX_REQUIRE_AMX").is_some();
        let is_best = std::env::var_os("TINDERBOX_SIMD").is_none();
        assert!(
            !(is_required && is_best) || MatrixUnit::of::<crate::gemm::Bf16x2>().is_some(),
            "this process cannot use AMX"
        );
    }
}
