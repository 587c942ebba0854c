//! Dropout whose mask depends only on the run's seed, the step and the position in the tensor.

use std::ops::Range;

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::TrainingMemory;
use crate::flex::{self, in_f32};
use crate::memory::bytes;
use crate::positions::positions;

/// The key of all dropout masks of one forward pass. A mask also depends on its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step, counted from 0.
    pub step: u64,
    /// The micro-batch of this pass within the step, counted from 0.
    pub micro_step: u64,
    /// The index of this pass's first row in the micro-batch: not 0 if its rows are divided among processes.
    pub first_row: usize,
}

/// The dropout at one site of one forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability of dropping an element, in (0, 1).
    pub probability: f64,
    /// The key of the pass.
    pub key: DropoutKey,
    /// The number of the site: the place in the model where dropout is applied.
    pub site: u64,
}

/// Sets each element to zero with `probability` and multiplies the others by `1 / (1 - probability)`.
///
/// The mask is a pure function of key, site, shape and position, so a resumed run repeats it, and so does a backward
/// pass that recomputes the attention weights. The first dimension is the rows of the batch. On a CPU the mask is drawn
/// on the host and is the same on every CPU backend. Masks would be too large to send to a GPU; there the mask is
/// computed on the device, from a hash of each element's position.
///
/// Source: Srivastava et al. 2014, "Dropout", section 4, in the inverted form.
pub fn dropout<const D: usize>(x: Tensor<D>, dropout: Dropout) -> Tensor<D> {
    let (whole, device) = (x.dims(), x.device());
    let all = whole.map(|n| 0..n);
    dropout.mask(whole, all, &device).apply(x)
}

/// The memory of [`dropout`] of `[B, T, C]` in training: the mask, and the gradient of the input.
pub fn training_memory(shape: [usize; 3]) -> TrainingMemory {
    TrainingMemory { saved: bytes(shape), temporary: bytes(shape) }
}

#[derive(Clone, Debug)]
pub(super) enum Mask<const D: usize> {
    /// `1 / (1 - probability)` where an element is kept, 0 where it is dropped.
    Factors(Tensor<D>),
    /// True where an element is dropped, and the probability.
    Dropped(Tensor<D, Bool>, f64),
}

impl<const D: usize> Mask<D> {
    pub(super) fn apply(&self, x: Tensor<D>) -> Tensor<D> {
        match self.clone() {
            Self::Factors(factors) => x * factors,
            Self::Dropped(dropped, probability) => (x / (1.0 - probability)).mask_fill(dropped, 0.0),
        }
    }
}

impl Dropout {
    /// The mask of a `part` of a tensor, one range per dimension: that part of the mask of the `whole` tensor.
    pub(super) fn mask<const D: usize>(&self, whole: [usize; D], part: [Range<usize>; D], device: &Device) -> Mask<D> {
        if flex::is_host(device) {
            Mask::Factors(self.factors(whole, part, device))
        } else {
            Mask::Dropped(self.dropped(whole, part, device), self.probability)
        }
    }

    /// The factor of each element of a part, drawn on the host.
    fn factors<const D: usize>(&self, whole: [usize; D], part: [Range<usize>; D], device: &Device) -> Tensor<D> {
        let sizes = part.each_ref().map(ExactSizeIterator::len);
        let mut factors = vec![1.0; sizes.iter().product()];
        // A whole tensor is one contiguous stretch; in a part of one, only each row is contiguous.
        let stretch = if sizes == whole { factors.len() } else { sizes[D - 1] };
        let rows_before = self.key.first_row * whole[1..].iter().product::<usize>();
        for (i, factors) in factors.chunks_mut(stretch.max(1)).enumerate() {
            let (mut rest, mut stride, mut start) = (i, whole[D - 1], part[D - 1].start);
            for dim in (0..D - 1).rev() {
                start += (part[dim].start + rest % sizes[dim]) * stride;
                rest /= sizes[dim];
                stride *= whole[dim];
            }
            self.apply(factors, rows_before + start);
        }
        Tensor::from_data(TensorData::new(factors, sizes), device)
    }

    /// True where an element of a part is dropped, computed on the device.
    fn dropped<const D: usize>(&self, whole: [usize; D], part: [Range<usize>; D], device: &Device) -> Tensor<D, Bool> {
        // An element's position in the whole tensor is a sum of one term per dimension (index times stride), so the
        // positions are a broadcast sum of D small tensors.
        let (mut stride, mut first_place) = (1_u32, 0_u32);
        let mut place: Option<Tensor<D, Int>> = None;
        for dim in (0..D).rev() {
            let first = part[dim].start + if dim == 0 { self.key.first_row } else { 0 };
            first_place = first_place.wrapping_add(low_bits(first).wrapping_mul(stride));
            let n = part[dim].len();
            if n > 1 || (dim == 0 && place.is_none()) {
                let mut shape = [1; D];
                shape[dim] = n;
                let terms = positions(0..n, DType::U32, device).reshape(shape) * stride;
                place = Some(match place {
                    Some(place) => terms + place,
                    None => terms,
                });
            }
            stride = stride.wrapping_mul(low_bits(whole[dim]));
        }
        let place = place.expect("tensors have dimensions") + first_place;
        hash(place, self.hash_words()).lower_elem(self.hashes_below())
    }

    /// The salt of this site and pass.
    fn hash_words(&self) -> [u32; 2] {
        let mut generator = generator(self.key, self.site);
        [generator.next_u32(), generator.next_u32()]
    }

    /// An element is dropped if its hash is below this.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..2^32")]
    fn hashes_below(&self) -> u32 {
        (self.probability * 4_294_967_296.0) as u32
    }

    /// Applies the mask to consecutive elements, from the position `start` in the tensor on.
    ///
    /// Each element is decided by 16 random bits, so the probability is exact to within 2^-17.
    pub(super) fn apply(&self, scalars: &mut [f32], start: usize) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..65536")]
        let dropped_below = (self.probability * 65_536.0).round().min(65_535.0) as u16;
        let scale = in_f32(1.0 / (1.0 - self.probability));
        let mut generator = generator(self.key, self.site);
        generator.set_word_pos(start as u128 / 2); // each word of the generator decides two elements
        let skipped = start % 2;
        let mut bits = vec![0_u8; 2 * (skipped + scalars.len())];
        generator.fill_bytes(&mut bits);
        let bits = bits.as_chunks::<2>().0[skipped..].iter();
        for (scalar, bits) in scalars.iter_mut().zip(bits) {
            *scalar *= if u16::from_le_bytes(*bits) < dropped_below { 0.0 } else { scale };
        }
    }
}

const MULTIPLIERS: [u32; 2] = [0x7FEB_352D, 0x846C_A68B];

/// A 32-bit hash with good avalanche: flipping a bit of `x` flips each bit of the result about half of the time.
///
/// Source: Wellons 2018, "Prospecting for Hash Functions", `lowbias32`, with a word added before each multiplication.
fn hash<const D: usize>(x: Tensor<D, Int>, words: [u32; 2]) -> Tensor<D, Int> {
    let folded = |x: Tensor<D, Int>, n: u32| x.clone().bitwise_xor(x.bitwise_right_shift_scalar(n));
    let x = folded(x + words[0], 16) * MULTIPLIERS[0];
    let x = folded(x + words[1], 15) * MULTIPLIERS[1];
    folded(x, 16)
}

#[allow(clippy::cast_possible_truncation, reason = "places beyond 2^32 may share hashes")]
fn low_bits(n: usize) -> u32 {
    n as u32
}

fn generator(key: DropoutKey, site: u64) -> ChaCha8Rng {
    let DropoutKey { seed, step, micro_step, first_row: _ } = key;
    let mut bytes = [0; 32];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip([seed, step, micro_step, site]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: DropoutKey = DropoutKey { seed: 1, step: 2, micro_step: 0, first_row: 0 };

    fn kept(key: DropoutKey, site: u64) -> Vec<f32> {
        let ones = Tensor::<2>::ones([100, 200], &Device::flex());
        let dropped = Dropout { probability: 0.2, key, site };
        dropout(ones, dropped).into_data().try_to_vec().expect("f32")
    }

    #[test]
    fn dropout_keeps_share_and_mean() {
        let kept = kept(KEY, 7);
        let share = kept.iter().filter(|x| **x > 0.0).count() as f64 / kept.len() as f64;
        assert!((share - 0.8).abs() < 0.01, "{share}");
        assert!(kept.iter().all(|x| *x == 0.0 || (*x - 1.25).abs() < 1e-6));
    }

    #[test]
    fn mask_depends_on_seed_step_micro_step_and_site() {
        assert_eq!(kept(KEY, 7), kept(KEY, 7));
        for other in [
            kept(KEY, 8),
            kept(DropoutKey { seed: 2, ..KEY }, 7),
            kept(DropoutKey { step: 3, ..KEY }, 7),
            kept(DropoutKey { micro_step: 1, ..KEY }, 7),
        ] {
            assert_ne!(kept(KEY, 7), other);
        }
    }

    const PART: Dropout = Dropout { probability: 0.3, key: KEY, site: 9 };

    #[test]
    fn mask_of_part_equals_part_of_mask() {
        let device = Device::flex();
        let whole = [2, 3, 7, 11];
        let all = whole.map(|n| 0..n);
        let parts = [all.clone(), [0..2, 0..3, 2..5, 0..9], [1..2, 0..3, 6..7, 10..11], [0..1, 2..3, 0..7, 4..11]];
        for part in parts {
            let [factors, want] = [part.clone(), all.clone()].map(|part| PART.factors(whole, part, &device));
            assert_eq!(factors.into_data(), want.slice(part.clone()).into_data());
            let [dropped, want] = [part.clone(), all.clone()].map(|part| PART.dropped(whole, part, &device));
            assert_eq!(dropped.into_data(), want.slice(part).into_data());
        }
    }

    #[test]
    fn mask_of_divided_rows_equals_whole_batch() {
        let device = Device::flex();
        let (whole, rows) = ([5, 3, 7], [2, 3, 7]);
        let of_rows = Dropout { key: DropoutKey { first_row: 3, ..KEY }, ..PART };
        let [all, part] = [whole, rows].map(|sizes| sizes.map(|n| 0..n));
        let want = PART.factors(whole, all.clone(), &device).slice(3..5);
        assert_eq!(of_rows.factors(rows, part.clone(), &device).into_data(), want.into_data());
        let want = PART.dropped(whole, all, &device).slice(3..5);
        assert_eq!(of_rows.dropped(rows, part, &device).into_data(), want.into_data());
    }

    #[test]
    fn hash_matches_source_and_drops_share() {
        let device = Device::flex();
        let places: Vec<u32> = (0..30_000).collect();
        let words = PART.hash_words();
        let expected = places.iter().map(|place| {
            let mut x = place.wrapping_add(words[0]);
            x ^= x >> 16;
            x = x.wrapping_mul(0x7FEB_352D).wrapping_add(words[1]);
            x ^= x >> 15;
            x = x.wrapping_mul(0x846C_A68B);
            x ^ (x >> 16)
        });
        let expected: Vec<u32> = expected.collect();
        let places = TensorData::new(places, [30_000]);
        let places = Tensor::<1, Int>::from_data(places, (&device, DType::U32));
        let hashes: Vec<u32> = hash(places, words).into_data().iter().collect();
        assert_eq!(hashes, expected);

        let dropped = PART.dropped([100, 300], [0..100, 0..300], &device);
        let dropped: Vec<bool> = dropped.into_data().iter().collect();
        let below = expected.iter().map(|hash| *hash < PART.hashes_below());
        assert!(below.eq(dropped.iter().copied()));
        let share = dropped.iter().filter(|dropped| **dropped).count() as f64 / 30_000.0;
        assert!((share - 0.3).abs() < 0.01, "{share}");
    }

    #[test]
    fn masks_of_rows_sites_and_steps_are_independent() {
        let device = Device::flex();
        let dropped = |dropout: Dropout| -> Vec<bool> {
            let all = dropout.dropped([200, 200], [0..200, 0..200], &device);
            all.into_data().iter().collect()
        };
        let this = dropped(PART);
        let next_step = DropoutKey { step: 3, ..KEY };
        let others = [
            dropped(Dropout { site: 10, ..PART }),
            dropped(Dropout { key: next_step, ..PART }),
            [&this[1..], &this[..1]].concat(),
            [&this[200..], &this[..200]].concat(),
        ];
        for other in others {
            let both = this.iter().zip(&other).filter(|(a, b)| **a && **b).count();
            let share = both as f64 / this.len() as f64;
            assert!((share - 0.09).abs() < 0.008, "{share}"); // 0.3 times 0.3
        }
        // The four corners of a rectangle are uncorrelated too.
        let corners = (0..199).flat_map(|row| (0..199).map(move |column| (row, column)));
        let mut n_even = 0;
        for (row, column) in corners {
            let at = |row: usize, column: usize| this[row * 200 + column];
            let odd = at(row, column) ^ at(row + 1, column) ^ at(row, column + 1) ^ at(row + 1, column + 1);
            n_even += usize::from(!odd);
        }
        let share = n_even as f64 / (199.0 * 199.0);
        let expected = f64::midpoint(1.0, 0.4_f64.powi(4)); // each corner counts as 1 or -1, with mean 0.4
        assert!((share - expected).abs() < 0.01, "{share}");
    }
}
