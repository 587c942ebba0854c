//! The tensor types of a GGUF file, and the encoding of their numbers; `blocks` decodes those of quantised types.
//!
//! Source: ggml, `ggml.h` for the codes, `ggml-quants.c`, the function `quantize_row_q8_0_ref`.

use half::{bf16, f16};

use super::blocks;

/// The number of values of the smaller blocks, which share a scale.
const BLOCK: usize = 32;
/// The number of values of the larger blocks, whose parts have scales of their own.
const SUPER_BLOCK: usize = 256;

/// The number type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "`docs/gguf.md` has the formulas of all of them")]
pub enum TensorType {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8 bits: the smallest type that is written.
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// What a file says of a type.
struct Properties {
    code: u32,
    /// The `general.file_type` of a file whose matrices are mostly of this type.
    file_type: u32,
    name: &'static str,
    /// The number of values that are encoded together, and the number of bytes that they take.
    block: (usize, usize),
}

impl TensorType {
    /// Every type.
    pub(super) const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The type with a code in a file; `None` if unsupported.
    pub fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    fn properties(self) -> Properties {
        let (code, file_type, name, block) = match self {
            Self::F32 => (0, 0, "F32", (1, 4)),
            Self::F16 => (1, 1, "F16", (1, 2)),
            Self::Bf16 => (30, 32, "BF16", (1, 2)),
            Self::Q8_0 => (8, 7, "Q8_0", (BLOCK, 34)),
            Self::Q4_0 => (2, 2, "Q4_0", (BLOCK, 18)),
            Self::Q4_1 => (3, 3, "Q4_1", (BLOCK, 20)),
            Self::Q5_0 => (6, 8, "Q5_0", (BLOCK, 22)),
            Self::Q5_1 => (7, 9, "Q5_1", (BLOCK, 24)),
            Self::Q2K => (10, 10, "Q2_K", (SUPER_BLOCK, 84)),
            Self::Q3K => (11, 12, "Q3_K", (SUPER_BLOCK, 110)),
            Self::Q4K => (12, 15, "Q4_K", (SUPER_BLOCK, 144)),
            Self::Q5K => (13, 17, "Q5_K", (SUPER_BLOCK, 176)),
            Self::Q6K => (14, 18, "Q6_K", (SUPER_BLOCK, 210)),
            Self::Iq4Nl => (20, 25, "IQ4_NL", (BLOCK, 18)),
            Self::Iq4Xs => (23, 30, "IQ4_XS", (SUPER_BLOCK, 136)),
            Self::Mxfp4 => (39, 38, "MXFP4", (BLOCK, 17)),
        };
        Properties { code, file_type, name, block }
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

    /// Appends the numbers of whole blocks to `numbers`.
    pub fn decode(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        let decode = match self {
            Self::F32 => return numbers.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
            Self::F16 => return numbers.extend(halves(bytes).map(|bits| f16::from_bits(bits).to_f32())),
            Self::Bf16 => return numbers.extend(halves(bytes).map(|bits| bf16::from_bits(bits).to_f32())),
            Self::Q8_0 => blocks::q8_0,
            Self::Q4_0 => blocks::q4_0,
            Self::Q4_1 => blocks::q4_1,
            Self::Q5_0 => blocks::q5_0,
            Self::Q5_1 => blocks::q5_1,
            Self::Q2K => blocks::q2_k,
            Self::Q3K => blocks::q3_k,
            Self::Q4K => blocks::q4_k,
            Self::Q5K => blocks::q5_k,
            Self::Q6K => blocks::q6_k,
            Self::Iq4Nl => blocks::iq4_nl,
            Self::Iq4Xs => blocks::iq4_xs,
            Self::Mxfp4 => blocks::mxfp4,
        };
        bytes.chunks_exact(self.block_bytes()).for_each(|block| decode(block, numbers));
    }

    /// Appends the bytes of whole blocks to `bytes`.
    ///
    /// # Panics
    /// For read-only types.
    pub fn encode(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => put(numbers, bytes, f32::to_le_bytes),
            Self::F16 => put(numbers, bytes, |x| f16::from_f32(x).to_le_bytes()),
            Self::Bf16 => put(numbers, bytes, |x| bf16::from_f32(x).to_le_bytes()),
            Self::Q8_0 => numbers.chunks_exact(BLOCK).for_each(|block| encode_q8_0(block, bytes)),
            _ => panic!("{} is only read", self.name()),
        }
    }
}

fn put<const N: usize>(numbers: &[f32], bytes: &mut Vec<u8>, encode: impl Fn(f32) -> [u8; N]) {
    let start = bytes.len();
    bytes.resize(start + N * numbers.len(), 0);
    let (chunks, _) = bytes[start..].as_chunks_mut();
    chunks.iter_mut().zip(numbers).for_each(|(chunk, number)| *chunk = encode(*number));
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

fn encode_q8_0(block: &[f32], bytes: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    bytes.extend(f16::from_f32(d).to_le_bytes());
    #[allow(clippy::cast_possible_truncation, reason = "from -127 to 127")]
    bytes.extend(block.iter().map(|x| ((x * inverse).round() as i8).cast_unsigned()));
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
    fn a_block_of_8_bits_is_worked_out_by_hand() {
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

    #[test]
    fn blocks_of_4_bits_are_worked_out_by_hand() {
        let quants: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let q4_0 = [&0x3c00_u16.to_le_bytes(), &quants[..]].concat(); // 1
        let expected = (0..16_u8).chain((0..16).rev());
        assert_eq!(decoded(TensorType::Q4_0, &q4_0), expected.clone().map(|q| f32::from(q) - 8.0).collect::<Vec<_>>());
        let q4_1 = [&0x4000_u16.to_le_bytes(), &0xc200_u16.to_le_bytes(), &quants[..]].concat(); // 2, -3
        assert_eq!(decoded(TensorType::Q4_1, &q4_1), expected.map(|q| 2.0 * f32::from(q) - 3.0).collect::<Vec<_>>());
    }
}
