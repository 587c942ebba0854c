//! The tensor types of a GGUF file, one row each; `blocks` decodes the quantised ones.
//!
//! Source: ggml, `ggml.h` for the codes, `ggml-quants.c`, the function `quantize_row_q8_0_ref`.

use half::f16;

use super::blocks;
use tinderbox_model::Dtype;

/// The number of values in the smaller blocks, which share a scale.
const BLOCK: usize = 32;
/// The number of values in the larger blocks, whose parts have scales of their own.
const SUPER_BLOCK: usize = 256;

struct Properties {
    /// The code in a file.
    code: u32,
    /// The `general.file_type` of a file whose matrices are mostly of this type.
    file_type: u32,
    /// The name in ggml.
    name: &'static str,
    /// The number of values that are encoded together, and the number of bytes that they take.
    block: (usize, usize),
    codec: Codec,
    /// The largest distance of a number from its rounded value, relative to the largest number of its block.
    relative_error: f32,
}

enum Codec {
    /// A block is a single number.
    Plain(Dtype),
    /// The first function appends the numbers of a block, the second the bytes of whole blocks; it is `None` for a type
    /// that is only read.
    Blocks(Decode, Option<Encode>),
}

type Decode = fn(&[u8], &mut Vec<f32>);
type Encode = fn(&[f32], &mut Vec<u8>);

/// Makes [`TensorType`] from rows: variant, code, file type, name, block, codec, relative error.
macro_rules! tensor_types {
    ($($kind:ident: $code:literal, $file_type:literal, $name:literal, $block:expr, $codec:expr, $error:expr;)*) => {
        /// The number type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "`docs/gguf.md` has the formulas of all of them")]
        pub enum TensorType {
            $($kind),*
        }

        impl TensorType {
            pub(super) const ALL: &[Self] = &[$(Self::$kind),*];

            fn properties(self) -> &'static Properties {
                const ROWS: &[Properties] = &[$(Properties {
                    code: $code,
                    file_type: $file_type,
                    name: $name,
                    block: $block,
                    codec: $codec,
                    relative_error: $error,
                }),*];
                &ROWS[self as usize]
            }
        }
    };
}

tensor_types! {
    F32: 0, 0, "F32", (1, 4), Codec::Plain(Dtype::F32), 0.0;
    F16: 1, 1, "F16", (1, 2), Codec::Plain(Dtype::F16), 1.0 / 2048.0;
    Bf16: 30, 32, "BF16", (1, 2), Codec::Plain(Dtype::Bf16), 1.0 / 256.0;
    // Half a quantization step, plus up to 127 times the rounding of the scale itself to an f16.
    Q8_0: 8, 7, "Q8_0", (BLOCK, 34), Codec::Blocks(blocks::q8_0, Some(encode_q8_0)), (0.5 + 127.0 / 2048.0) / 127.0;
    // A step, since the end of the range opposite to the largest number lacks one, plus the rounding of the scale.
    Q4_0: 2, 2, "Q4_0", (BLOCK, 18), Codec::Blocks(blocks::q4_0, None), (1.0 + 8.0 / 2048.0) / 8.0;
    // Half a step of up to 2/15, plus the rounding of scale and offset.
    Q4_1: 3, 3, "Q4_1", (BLOCK, 20), Codec::Blocks(blocks::q4_1, None), 1.0 / 15.0 + 3.0 / 2048.0;
    Q5_0: 6, 8, "Q5_0", (BLOCK, 22), Codec::Blocks(blocks::q5_0, None), (1.0 + 16.0 / 2048.0) / 16.0; // as Q4_0
    Q5_1: 7, 9, "Q5_1", (BLOCK, 24), Codec::Blocks(blocks::q5_1, None), 1.0 / 31.0 + 3.0 / 2048.0; // as Q4_1
    // The scales of the following types are fitted to the numbers, and cut off the largest ones: a whole step of the
    // part of the block with the widest steps, and as much again for the rounding of its scales.
    Q2K: 10, 10, "Q2_K", (SUPER_BLOCK, 84), Codec::Blocks(blocks::q2_k, None), 4.0 / 3.0;
    Q3K: 11, 12, "Q3_K", (SUPER_BLOCK, 110), Codec::Blocks(blocks::q3_k, None), 2.0 / 4.0;
    Q4K: 12, 15, "Q4_K", (SUPER_BLOCK, 144), Codec::Blocks(blocks::q4_k, None), 4.0 / 15.0;
    Q5K: 13, 17, "Q5_K", (SUPER_BLOCK, 176), Codec::Blocks(blocks::q5_k, None), 4.0 / 31.0;
    Q6K: 14, 18, "Q6_K", (SUPER_BLOCK, 210), Codec::Blocks(blocks::q6_k, None), 2.0 / 32.0;
    Iq4Nl: 20, 25, "IQ4_NL", (BLOCK, 18), Codec::Blocks(blocks::iq4_nl, None), 2.0 * 24.0 / 127.0;
    Iq4Xs: 23, 30, "IQ4_XS", (SUPER_BLOCK, 136), Codec::Blocks(blocks::iq4_xs, None), 2.0 * 24.0 / 127.0;
    // The largest number is 4 or 6 in steps of up to 2, and one that would be 7.99 is 6.
    Mxfp4: 39, 38, "MXFP4", (BLOCK, 17), Codec::Blocks(blocks::mxfp4, None), 1.0 / 4.0;
}

impl From<Dtype> for TensorType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 | Dtype::F64 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}

impl TensorType {
    /// The type with a code in a file; `None` if unsupported.
    pub fn of_code(code: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// Its code in a file.
    pub fn code(self) -> u32 {
        self.properties().code
    }

    /// The `general.file_type` code of a file whose matrices are mostly of this type.
    pub fn file_type(self) -> u32 {
        self.properties().file_type
    }

    /// Its name in ggml.
    pub fn name(self) -> &'static str {
        self.properties().name
    }

    /// The number of values that are encoded together, which divides the row length.
    pub fn block_len(self) -> usize {
        self.properties().block.0
    }

    /// The number of bytes that encode [`TensorType::block_len`] numbers.
    pub fn block_bytes(self) -> usize {
        self.properties().block.1
    }

    /// The largest distance of a number from its rounded value, relative to the largest number of its block.
    pub(crate) fn relative_error(self) -> f32 {
        self.properties().relative_error
    }

    /// Appends the numbers of whole blocks to `numbers`.
    pub fn decode(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        let Properties { block: (_, n_bytes), codec, .. } = self.properties();
        match codec {
            Codec::Plain(dtype) => dtype.decode(bytes, numbers),
            Codec::Blocks(decode, _) => bytes.chunks_exact(*n_bytes).for_each(|block| decode(block, numbers)),
        }
    }

    /// Appends the bytes of whole blocks to `bytes`.
    ///
    /// # Panics
    /// For read-only types.
    pub fn encode(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        match self.properties().codec {
            Codec::Plain(dtype) => dtype.encode(numbers, bytes),
            Codec::Blocks(_, Some(encode)) => encode(numbers, bytes),
            Codec::Blocks(_, None) => panic!("{} is only read", self.name()),
        }
    }
}

fn encode_q8_0(numbers: &[f32], bytes: &mut Vec<u8>) {
    for block in numbers.chunks_exact(BLOCK) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let d = largest / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        bytes.extend(f16::from_f32(d).to_le_bytes());
        #[allow(clippy::cast_possible_truncation, reason = "from -127 to 127")]
        bytes.extend(block.iter().map(|x| ((x * inverse).round() as i8).cast_unsigned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut numbers = Vec::new();
        kind.decode(bytes, &mut numbers);
        numbers
    }

    fn encoded(kind: TensorType, numbers: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        kind.encode(numbers, &mut bytes);
        assert_eq!(bytes.len(), numbers.len() / kind.block_len() * kind.block_bytes());
        bytes
    }

    #[test]
    fn q8_0_matches_blocks_worked_out_by_hand() {
        // The largest is 127 steps of 0.5.
        let mut numbers = [0.0_f32; 64];
        numbers[0] = 63.5;
        numbers[1] = -0.25; // half a step, rounded away from zero
        numbers[31] = 1.0;
        let bytes = encoded(TensorType::Q8_0, &numbers);
        assert_eq!(bytes[..2], 0x3800_u16.to_le_bytes()); // 0.5
        assert_eq!((bytes[2], bytes[3].cast_signed(), bytes[33]), (127, -1, 2));
        assert!(bytes[34..].iter().all(|byte| *byte == 0), "a block of zeros has the scale zero");
        let again = decoded(TensorType::Q8_0, &bytes);
        assert_eq!((again[0], again[1], again[31], again[32]), (63.5, -0.5, 1.0, 0.0));
    }
}
