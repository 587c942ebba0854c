//! Pairs of bfloat16 as elements of products: multiplied natively if the CPU can, otherwise widened.

use pulp::Simd;

use super::arithmetic::{Element, Widened, WithArithmetic};
#[cfg(target_arch = "x86_64")]
use super::avx512_bf16;
use super::element::{Bf16x2, Row, WIDTH, n_panels};
use super::packed::PackedRef;
use super::scratch::Scratch;
use super::transpose::SIDE;
use crate::tasks::each;

impl Element for Bf16x2 {
    const STRIP: usize = 4 * SIDE;

    fn first(scalars: &[f32]) -> Self {
        Self::new(scalars[0], scalars.get(1).copied().unwrap_or_default())
    }

    #[inline(always)]
    fn run<S: Simd>(simd: S, operation: impl WithArithmetic<Element = Self>) {
        #[cfg(target_arch = "x86_64")]
        let Some(operation) = avx512_bf16::run(simd, operation) else { return };
        operation.with(Widened(simd));
    }

    /// Regroups pairs of columns to pairs of rows; an odd last row is padded with zeros.
    fn left_as_right(left: PackedRef<'_, Self>, n_columns: usize) -> Option<Scratch<Self>> {
        let n_pairs = left.n_rows().div_ceil(2);
        let mut out = Scratch::new(n_pairs * n_panels(n_columns));
        each(
            left.n_rows() * n_columns,
            out.chunks_exact_mut(n_pairs.max(1)).enumerate(),
            #[inline(always)]
            move |(panel, out)| {
                const HALF: usize = WIDTH / 2;
                let first = panel % 2 * HALF;
                let (pairs, rest) = left.panel(panel / 2).as_chunks::<2>();
                let last = rest.first().map(|last| [*last, [Bf16x2::default(); WIDTH]]);
                for ([above, below], out) in pairs.iter().chain(&last).zip(out) {
                    let above: &[Bf16x2; HALF] = above[first..].first_chunk().expect("a row has two halves");
                    let below: &[Bf16x2; HALF] = below[first..].first_chunk().expect("a row has two halves");
                    let (out, _) = out.as_chunks_mut::<2>();
                    for ((out, above), below) in out.iter_mut().zip(above).zip(below) {
                        *out = above.crossed(*below);
                    }
                }
            },
        );
        Some(out)
    }

    #[inline(always)]
    fn add_to(row: &Row<Self>, sums: &mut Row) {
        for (sum, pair) in sums.iter_mut().zip(row) {
            let [first, second] = pair.widened();
            *sum += first;
            *sum += second;
        }
    }
}
