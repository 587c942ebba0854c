//! Packs lists of numbers into base64 text for a page: exact, or rounded if there are many. `data.js` reads them.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

/// The encoding of the lists of a page.
///
/// Weights are rounded in steps of their square root, like the colour scale: small ones, which are the most common, are
/// then finer than large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Packing {
    /// 32-bit floats, little endian.
    Exact,
    /// 16 bits each: square roots of weights in steps of 1/65535; cosines in steps of 1/32767, vectors in steps of that
    /// fraction of their largest number.
    Fine,
    /// 8 bits each: square roots of weights in steps of 1/255, cosines in steps of 1/127; no vectors.
    Coarse,
}

impl Packing {
    /// The bytes per weight or cosine, before base64.
    pub fn number_bytes(self) -> usize {
        match self {
            Self::Exact => 4,
            Self::Fine => 2,
            Self::Coarse => 1,
        }
    }

    /// The bytes per vector, before base64.
    pub fn vector_bytes(self, length: usize) -> usize {
        match self {
            Self::Exact => 4 * length,
            Self::Fine => 4 + 2 * length,
            Self::Coarse => 0,
        }
    }

    /// Whether vectors are included.
    pub fn has_vectors(self) -> bool {
        self != Self::Coarse
    }

    /// Encodes weights in [0, 1].
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the number of steps")]
    pub fn weights<'a>(self, weights: impl IntoIterator<Item = &'a f32>) -> String {
        let steps = |weight: &f32, n: f32| (weight.clamp(0.0, 1.0).sqrt() * n).round();
        let weights = weights.into_iter();
        let bytes: Vec<u8> = match self {
            Self::Exact => return floats(weights),
            Self::Fine => weights.flat_map(|weight| (steps(weight, 65535.0) as u16).to_le_bytes()).collect(),
            Self::Coarse => weights.map(|weight| steps(weight, 255.0) as u8).collect(),
        };
        BASE64_STANDARD.encode(bytes)
    }

    /// Encodes cosines in [-1, 1].
    #[allow(clippy::cast_possible_truncation, reason = "from -127 to 127")]
    pub fn cosines<'a>(self, cosines: impl IntoIterator<Item = &'a f32>) -> String {
        let cosines = cosines.into_iter();
        let bytes: Vec<u8> = match self {
            Self::Exact => return floats(cosines),
            Self::Fine => cosines.flat_map(|cosine| steps(*cosine)).collect(),
            Self::Coarse => {
                cosines.map(|cosine| ((cosine.clamp(-1.0, 1.0) * 127.0).round() as i8).cast_unsigned()).collect()
            }
        };
        BASE64_STANDARD.encode(bytes)
    }

    /// Encodes vectors of any length.
    ///
    /// # Panics
    /// If this packing has no vectors.
    pub fn vectors<'a>(self, vectors: impl IntoIterator<Item = &'a [f32]>) -> String {
        assert!(self.has_vectors(), "a form with vectors");
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

/// A number in [-1, 1], in steps of 1/32767.
#[allow(clippy::cast_possible_truncation, reason = "from -32767 to 32767")]
fn steps(x: f32) -> [u8; 2] {
    ((x.clamp(-1.0, 1.0) * 32767.0).round() as i16).to_le_bytes()
}

/// Encodes any numbers exactly.
fn floats<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> String {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_rounded_by_root() {
        let decode = |text| BASE64_STANDARD.decode(text).expect("packed lists are base 64");
        assert_eq!(decode(Packing::Fine.weights(&[0.0, 0.25, 1.0])), [0, 0, 0x00, 0x80, 0xff, 0xff]);
        assert_eq!(decode(Packing::Coarse.weights(&[0.0, 0.25, 1.0])), [0, 128, 255]);
        for i in 0..=1000_u16 {
            let weight = f32::from(i) / 1000.0;
            let fine = decode(Packing::Fine.weights(&[weight]));
            let fine = (f32::from(u16::from_le_bytes([fine[0], fine[1]])) / 65535.0).powi(2);
            let coarse = (f32::from(decode(Packing::Coarse.weights(&[weight]))[0]) / 255.0).powi(2);
            assert!((fine - weight).abs() <= 1.0 / 65535.0, "{weight} {fine}");
            assert!((coarse - weight).abs() <= 1.0 / 255.0, "{weight} {coarse}");
        }
    }

    #[test]
    fn cosines_take_two_bytes_or_one() {
        let decode = |text| BASE64_STANDARD.decode(text).expect("packed lists are base 64");
        assert_eq!(decode(Packing::Fine.cosines(&[-1.0, 0.0, 0.5])), [0x01, 0x80, 0, 0, 0, 0x40]);
        assert_eq!(decode(Packing::Coarse.cosines(&[-1.0, 0.0, 0.5])), [0x81, 0, 64]);
    }

    #[test]
    fn vectors_have_scales() {
        let packed = Packing::Fine.vectors([&[0.0, 0.0][..], &[-4.0, 2.0]]);
        let bytes = BASE64_STANDARD.decode(packed).expect("packed lists are base 64");
        assert_eq!(bytes[4..8], 4.0_f32.to_le_bytes());
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0x01, 0x80, 0, 0x40]);
    }

    #[test]
    fn exact_packing_keeps_floats() {
        let numbers = [0.1, -0.7];
        let it = Packing::Exact;
        for packed in [it.weights(&numbers), it.cosines(&numbers), it.vectors([&numbers[..1], &numbers[1..]])] {
            assert_eq!(
                BASE64_STANDARD.decode(packed).expect("packed lists are base 64"),
                numbers.map(f32::to_le_bytes).concat()
            );
        }
    }
}
