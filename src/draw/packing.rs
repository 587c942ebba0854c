//! Lists of numbers as text for a page, in base 64: exact, or rounded where they are many. `data.js` reads them.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

/// The form of a page's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Packing {
    /// 32-bit floats, little endian.
    Exact,
    /// Weights in steps of 1/65535, each a LEB128 number of mostly one byte; cosines in steps of 1/32767, vectors in
    /// such of their largest number, 16 bits each.
    Rounded,
}

impl Packing {
    /// About the most bytes that a weight takes, before base 64.
    pub fn weight_bytes(self) -> usize {
        match self {
            Self::Exact => 4,
            Self::Rounded => 2, // three in the few that are above a quarter, one in most of a long row
        }
    }

    /// The bytes that a cosine takes, before base 64.
    pub fn cosine_bytes(self) -> usize {
        match self {
            Self::Exact => 4,
            Self::Rounded => 2,
        }
    }

    /// The bytes that a vector takes, before base 64.
    pub fn vector_bytes(self, length: usize) -> usize {
        match self {
            Self::Exact => 4 * length,
            Self::Rounded => 4 + 2 * length,
        }
    }

    /// Weights, from 0 to 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 65535")]
    pub fn weights<'a>(self, weights: impl IntoIterator<Item = &'a f32>) -> String {
        if self == Self::Exact {
            return floats(weights);
        }
        let mut bytes = Vec::new();
        for weight in weights {
            let mut steps = (weight.clamp(0.0, 1.0) * 65535.0).round() as u16;
            while steps >= 0x80 {
                bytes.push(0x80 | (steps & 0x7f) as u8);
                steps >>= 7;
            }
            bytes.push(steps as u8);
        }
        BASE64_STANDARD.encode(bytes)
    }

    /// Cosines, from -1 to 1.
    pub fn cosines<'a>(self, cosines: impl IntoIterator<Item = &'a f32>) -> String {
        if self == Self::Exact {
            return floats(cosines);
        }
        BASE64_STANDARD.encode(cosines.into_iter().flat_map(|cosine| steps(*cosine)).collect::<Vec<u8>>())
    }

    /// Vectors, of any length.
    pub fn vectors<'a>(self, vectors: impl IntoIterator<Item = &'a [f32]>) -> String {
        let vectors = vectors.into_iter();
        if self == Self::Exact {
            return floats(vectors.flatten());
        }
        let (mut scales, mut bytes) = (Vec::new(), Vec::new());
        for vector in vectors {
            let largest = vector.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
            scales.extend(largest.to_le_bytes());
            bytes.extend(vector.iter().flat_map(|x| steps(x / largest)));
        }
        scales.extend(bytes);
        BASE64_STANDARD.encode(scales)
    }
}

/// A number from -1 to 1 in steps of 1/32767.
#[allow(clippy::cast_possible_truncation, reason = "from -32767 to 32767")]
fn steps(x: f32) -> [u8; 2] {
    ((x.clamp(-1.0, 1.0) * 32767.0).round() as i16).to_le_bytes()
}

/// Any numbers, exact.
fn floats<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> String {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_takes_one_to_three_bytes() {
        let packed = Packing::Rounded.weights(&[0.0, 127.0 / 65535.0, 128.0 / 65535.0, 1.0]);
        let bytes = BASE64_STANDARD.decode(packed).expect("base 64");
        assert_eq!(bytes, [0, 127, 0x80, 1, 0xff, 0xff, 3]);
    }

    #[test]
    fn a_cosine_takes_two_bytes() {
        let bytes = BASE64_STANDARD.decode(Packing::Rounded.cosines(&[-1.0, 0.0, 0.5])).expect("base 64");
        assert_eq!(bytes, [0x01, 0x80, 0, 0, 0, 0x40]);
    }

    #[test]
    fn a_vector_has_its_own_scale() {
        let packed = Packing::Rounded.vectors([&[0.0, 0.0][..], &[-4.0, 2.0]]);
        let bytes = BASE64_STANDARD.decode(packed).expect("base 64");
        assert_eq!(bytes[4..8], 4.0_f32.to_le_bytes());
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0x01, 0x80, 0, 0x40]);
    }

    #[test]
    fn exact_numbers_are_floats() {
        let numbers = [0.1, -0.7];
        let it = Packing::Exact;
        for packed in [it.weights(&numbers), it.cosines(&numbers), it.vectors([&numbers[..1], &numbers[1..]])] {
            assert_eq!(BASE64_STANDARD.decode(packed).expect("base 64"), numbers.map(f32::to_le_bytes).concat());
        }
    }
}
