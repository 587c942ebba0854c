//! Packs lists of numbers into base64 text for a page: exact, or rounded if there are many. `data.js` reads them.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

/// The encoding of the lists of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Packing {
    /// 32-bit floats, little endian.
    Exact,
    /// 8 bits each: square roots of weights in steps of 1/255, so that small ones, which are the most common, are finer
    /// than large ones; cosines in steps of 1/127; no vectors.
    Coarse,
}

impl Packing {
    /// Encodes weights in [0, 1].
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 255")]
    pub fn weights<'a>(self, weights: impl Iterator<Item = &'a f32>) -> String {
        let coarse = |weight: &f32| (weight.clamp(0.0, 1.0).sqrt() * 255.0).round() as u8;
        self.packed(weights, coarse)
    }

    /// Encodes cosines in [-1, 1].
    #[allow(clippy::cast_possible_truncation, reason = "from -127 to 127")]
    pub fn cosines<'a>(self, cosines: impl Iterator<Item = &'a f32>) -> String {
        let coarse = |cosine: &f32| ((cosine.clamp(-1.0, 1.0) * 127.0).round() as i8).cast_unsigned();
        self.packed(cosines, coarse)
    }

    fn packed<'a>(self, numbers: impl Iterator<Item = &'a f32>, coarse: impl Fn(&f32) -> u8) -> String {
        match self {
            Self::Exact => floats(numbers),
            Self::Coarse => BASE64_STANDARD.encode(numbers.map(coarse).collect::<Vec<u8>>()),
        }
    }
}

pub(crate) fn floats<'a>(numbers: impl Iterator<Item = &'a f32>) -> String {
    BASE64_STANDARD.encode(numbers.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: String) -> Vec<u8> {
        BASE64_STANDARD.decode(text).expect("packed lists are base 64")
    }

    #[test]
    fn coarse_numbers_take_one_byte() {
        let weights: Vec<f32> = (0..=1000_u16).map(|i| f32::from(i) / 1000.0).collect();
        for (weight, byte) in weights.iter().zip(decoded(Packing::Coarse.weights(weights.iter()))) {
            let read = (f32::from(byte) / 255.0).powi(2);
            assert!((read - weight).abs() <= 1.0 / 255.0, "{weight} {read}");
        }
        assert_eq!(decoded(Packing::Coarse.cosines([-1.0, 0.0, 0.5].iter())), [0x81, 0, 64]);
    }

    #[test]
    fn exact_packing_keeps_floats() {
        let numbers = [0.1_f32, -0.7];
        let expected = numbers.map(f32::to_le_bytes).concat();
        for packed in [Packing::Exact.weights(numbers.iter()), Packing::Exact.cosines(numbers.iter())] {
            assert_eq!(decoded(packed), expected);
        }
    }
}
