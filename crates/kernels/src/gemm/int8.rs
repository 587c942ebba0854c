//! Products of rows rounded to int8 with weights in int8.

use std::ops::Range;

use pulp::Simd;
use pulp::bytemuck::cast_slice_mut;

use super::arithmetic::{Arithmetic, SumRegister};
use super::element::Row;
#[cfg(target_arch = "x86_64")]
use super::int8_x86;
use super::micro_kernel::LeftMatrix;
use super::quantized::{Int8Product, Quantized};
use super::weight::{Int8x4, Weight};

/// Rounded rows, to be multiplied with weights in int8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers<'a> {
    /// Row `row` of block `block` is at `block * step + row`.
    rows: &'a [Quantized],
    step: usize,
    n_rows: usize,
    n_blocks: usize,
    #[cfg(target_arch = "x86_64")]
    instructions: int8_x86::Instructions,
}

impl<'a> Integers<'a> {
    pub(crate) fn new(rows: &'a [Quantized], n_rows: usize) -> Self {
        Self {
            rows,
            step: n_rows,
            n_rows,
            n_blocks: rows.len() / n_rows.max(1),
            #[cfg(target_arch = "x86_64")]
            instructions: int8_x86::Instructions::of_this_cpu(),
        }
    }
}

impl LeftMatrix for Integers<'_> {
    type Element = f32;
    type RightElement = Int8x4;

    const FEW_ROWS: bool = true;
    const UNIT: usize = 8;
    const STEP: usize = Int8x4::ROWS;

    fn n_rows(self) -> usize {
        self.n_rows
    }

    fn depth(self) -> usize {
        self.n_blocks * Int8x4::ROWS
    }

    fn part(self, rows: Range<usize>) -> Self {
        Self { rows: &self.rows[rows.start.min(self.rows.len())..], n_rows: rows.len(), ..self }
    }

    fn steps(self, steps: Range<usize>) -> Self {
        Self { rows: &self.rows[steps.start * self.step..], n_blocks: steps.len(), ..self }
    }

    #[inline(always)]
    fn micro_kernel<A: Arithmetic<Element = f32>, const R: usize, const V: usize>(
        self,
        _: A,
        row: usize,
        right: &[Row<Int8x4>],
        column: usize,
        mut sums: [[SumRegister<A>; V]; R],
    ) -> [[SumRegister<A>; V]; R] {
        let product = Int8Product {
            rows: &self.rows[row..],
            step: self.step,
            blocks: &right.as_chunks().0[..self.n_blocks],
            column,
        };
        let values = cast_slice_mut(sums.as_flattened_mut());
        #[cfg(target_arch = "x86_64")]
        if const { A::Simd::F32_LANES >= 8 } {
            // SAFETY: the CPU has the instructions of the arithmetic.
            unsafe {
                int8_x86::add::<A, R, V>(self.instructions, product, values);
            }
            return sums;
        }
        product.add::<A::Simd, R>(V * A::Simd::F32_LANES, values);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::element::WIDTH;
    use crate::gemm::packed::PackedRef;
    use crate::gemm::quantized::quantize;
    use crate::gemm::{MatrixMut, Store, StoreMode, multiply_all};
    use crate::testing::noise;

    /// Every instruction set gives the bytes of plain Rust.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instruction_sets_add_alike() {
        let [m, k, n] = [21, 3 * WIDTH, 2 * WIDTH];
        let (x, scalars) = (noise(m * k, 1), noise(k * n, 2));
        let rows: Vec<Row> = (0..k / WIDTH)
            .flat_map(|i| (0..m).map(move |row| (row, i)))
            .map(|(row, i)| *x[row * k + i * WIDTH..].first_chunk().unwrap())
            .collect();
        let mut left = Vec::new();
        quantize(PackedRef::new(&rows, [m, k]), &mut left);
        let mut weights = vec![[Int8x4::default(); WIDTH]; 2 * 3 * Int8x4::ROWS];
        for (i, block) in weights.chunks_exact_mut(Int8x4::ROWS).enumerate() {
            let at = |row: usize, column: usize| scalars[(i % 3 * WIDTH + row) * n + i / 3 * WIDTH + column];
            Int8x4::pack(&std::array::from_fn(|row| std::array::from_fn(|column| at(row, column))), block);
        }
        let right = PackedRef::new(&weights, [3 * Int8x4::ROWS, n]);
        let all = int8_x86::Instructions::of_this_cpu();
        let results = all.subsets().map(|instructions| {
            let mut out = vec![f32::NAN; m * n];
            let left = Integers { instructions, ..Integers::new(&left, m) };
            multiply_all(
                left,
                right,
                Store { mode: StoreMode::Overwrite, out: MatrixMut::new(&mut out, [m, n]), bias: &[] },
            );
            out
        });
        let mut plain = vec![0.0; m * n];
        for (i, sums) in plain.chunks_exact_mut(WIDTH).enumerate() {
            let (row, panel) = (i / 2, i % 2);
            let blocks = right.panel(panel).as_chunks().0;
            Int8Product { rows: &left[row..], step: m, blocks, column: 0 }.add::<pulp::Scalar, 1>(WIDTH, sums);
        }
        assert!(results.iter().all(|out| *out == plain), "instruction sets differ");
    }
}
