//! The weights of a projection, packed once to be multiplied many times.

use std::fmt;

use rayon::prelude::*;

use super::block::{Bf16, Block, Int8, Whole};
use super::pages::Pages;
use super::{Row, WIDTH, n_panels};

/// How the numbers of a weight are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As they were trained, 4 bytes each.
    #[default]
    F32,
    /// With 8 bits of precision instead of 24 over the same range, 2 bytes each.
    Bf16,
    /// As whole numbers from -127 to 127 and a scale for each 32 of them, 1.125 bytes each.
    Int8,
}

impl Precision {
    /// All of them, the most exact first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// As one writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A matrix `[K, N]` that vectors of K numbers are multiplied with, in panels of its columns.
#[derive(Debug)]
pub struct Weights {
    pub(super) blocks: Blocks,
    inputs: usize,
    outputs: usize,
}

/// The panels, one after another, each of [`n_panels`] blocks for the K rows.
#[derive(Debug)]
pub(super) enum Blocks {
    F32(Pages<Whole>),
    Bf16(Pages<Bf16>),
    Int8(Pages<Int8>),
}

impl Weights {
    /// Packs a matrix of `[inputs, outputs]`, whose numbers `at(input, output)` tells.
    #[must_use]
    pub fn pack(
        precision: Precision,
        [inputs, outputs]: [usize; 2],
        at: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Self {
        let shape = [inputs, outputs];
        let blocks = match precision {
            Precision::F32 => Blocks::F32(pack(shape, at)),
            Precision::Bf16 => Blocks::Bf16(pack(shape, at)),
            Precision::Int8 => Blocks::Int8(pack(shape, at)),
        };
        Self { blocks, inputs, outputs }
    }

    /// K, the length of the vectors that are multiplied with it.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// N, the length of what comes of it.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// How the numbers are kept.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self.blocks {
            Blocks::F32(_) => Precision::F32,
            Blocks::Bf16(_) => Precision::Bf16,
            Blocks::Int8(_) => Precision::Int8,
        }
    }

    /// Bytes that a product reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.blocks {
            Blocks::F32(blocks) => size_of_val(&blocks[..]),
            Blocks::Bf16(blocks) => size_of_val(&blocks[..]),
            Blocks::Int8(blocks) => size_of_val(&blocks[..]),
        }
    }

    /// The number that input `input` is multiplied with for output `output`.
    #[must_use]
    pub fn value(&self, input: usize, output: usize) -> f32 {
        assert!(
            input < self.inputs && output < self.outputs,
            "[{input}, {output}] of [{}, {}]",
            self.inputs,
            self.outputs
        );
        let block = output / WIDTH * n_panels(self.inputs) + input / WIDTH;
        let (row, column) = (input % WIDTH, output % WIDTH);
        match &self.blocks {
            Blocks::F32(blocks) => blocks[block].value(row, column),
            Blocks::Bf16(blocks) => blocks[block].value(row, column),
            Blocks::Int8(blocks) => blocks[block].value(row, column),
        }
    }
}

fn pack<B: Block>(
    [inputs, outputs]: [usize; 2],
    at: impl Fn(usize, usize) -> f32 + Sync,
) -> Pages<B> {
    let n_blocks = n_panels(inputs);
    let number = |input: usize, output: usize| match input < inputs && output < outputs {
        true => at(input, output),
        false => 0.0,
    };
    let block = |i: usize| {
        let (panel, block) = (i / n_blocks * WIDTH, i % n_blocks * WIDTH);
        let rows: [Row; WIDTH] = std::array::from_fn(|row| {
            Row(std::array::from_fn(|column| number(block + row, panel + column)))
        });
        B::pack(&rows)
    };
    let mut blocks = Pages::zeros(n_panels(outputs) * n_blocks);
    let numbered = blocks.par_iter_mut().enumerate();
    numbered.for_each(|(i, out)| *out = block(i));
    blocks
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "numbers are copied here, not computed")]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_where_they_were_packed_and_the_rest_is_zero() {
        let at = |input: usize, output: usize| (input * 100 + output) as f32;
        let weights = Weights::pack(Precision::F32, [40, 70], at);
        assert_eq!(weights.value(39, 69), 3969.0);
        assert_eq!(weights.value(0, 32), 32.0);
        assert_eq!(weights.bytes(), 2 * 3 * 32 * 32 * 4);
        let Blocks::F32(blocks) = &weights.blocks else { panic!("f32") };
        assert_eq!(blocks[1].value(8, 0), 0.0, "below the last row");
        assert_eq!(blocks[4].value(0, 6), 0.0, "behind the last column");
    }
}
