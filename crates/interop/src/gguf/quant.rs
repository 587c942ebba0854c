//! The tensor types of a GGUF file, and the encoding and decoding of their numbers.
//!
//! Quantised types split a row into blocks of 32 numbers that share a scale d, an f16 (formulas in `docs/gguf.md`).
//! Source: ggml, `ggml-quants.c`, the functions `quantize_row_q8_0_ref` and `dequantize_row_*`.

use half::{bf16, f16};

/// The number of values that share a scale.
const BLOCK: usize = 32;

/// The number type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 8 bits: d q, q from -127 to 127.
    Q8_0,
    /// 4 bits, read only: d (q - 8), q from 0 to 15.
    Q4_0,
    /// 4 bits, read only: d q + m, q from 0 to 15, m an f16 beside d.
    Q4_1,
}

impl TensorType {
    const ALL: [Self; 6] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Q4_1];

    /// The type with a code in a file; `None` if unsupported.
    pub fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Its code in a file, the `general.file_type` of a file whose matrices are mostly of this type, its name in ggml,
    /// and the number of values that are encoded together, with the number of bytes that they take.
    fn row(self) -> (u32, u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, 0, "F32", 1, 4),
            Self::F16 => (1, 1, "F16", 1, 2),
            Self::Bf16 => (30, 32, "BF16", 1, 2),
            Self::Q8_0 => (8, 7, "Q8_0", BLOCK, 2 + BLOCK),
            Self::Q4_0 => (2, 2, "Q4_0", BLOCK, 2 + BLOCK / 2),
            Self::Q4_1 => (3, 3, "Q4_1", BLOCK, 2 + 2 + BLOCK / 2),
        }
    }

    /// Its code in a file.
    pub fn code(self) -> u32 {
        self.row().0
    }

    /// The `general.file_type` code of a file whose matrices are mostly of this type.
    pub fn file_type(self) -> u32 {
        self.row().1
    }

    /// Its name in ggml.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// The number of values that are encoded together, which divides the row length.
    pub fn block_len(self) -> usize {
        self.row().3
    }

    /// The number of bytes that encode [`TensorType::block_len`] numbers.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Appends the numbers of whole blocks to `numbers`.
    pub fn decode(self, bytes: &[u8], numbers: &mut Vec<f32>) {
        let blocks = bytes.chunks_exact(self.block_bytes());
        match self {
            Self::F32 => numbers.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
            Self::F16 => numbers.extend(halves(bytes).map(|bits| f16::from_bits(bits).to_f32())),
            Self::Bf16 => numbers.extend(halves(bytes).map(|bits| bf16::from_bits(bits).to_f32())),
            Self::Q8_0 => {
                for block in blocks {
                    let (d, quants) = scale(block);
                    numbers.extend(quants.iter().map(|q| f32::from(q.cast_signed()) * d));
                }
            }
            Self::Q4_0 => {
                for block in blocks {
                    let (d, quants) = scale(block);
                    numbers.extend(nibbles(quants).map(|q| (f32::from(q) - 8.0) * d));
                }
            }
            Self::Q4_1 => {
                for block in blocks {
                    let (d, rest) = scale(block);
                    let (m, quants) = scale(rest);
                    numbers.extend(nibbles(quants).map(|q| f32::from(q) * d + m));
                }
            }
        }
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
            Self::Q4_0 | Self::Q4_1 => panic!("{} is only read", self.name()),
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

/// The f16 at the start of a block, and the bytes after it.
fn scale(block: &[u8]) -> (f32, &[u8]) {
    let (bytes, rest) = block.split_first_chunk().expect("a block begins with its scale");
    (f16::from_le_bytes(*bytes).to_f32(), rest)
}

/// The first half of a block is in the low nibbles of its bytes, the second half in the high ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
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
