//! Dropout whose choices depend on the run's seed, the step and the place alone.

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::device;

/// What the choices of one forward pass hang on, beside the place where they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// The optimiser step, counted from 0.
    pub step: u64,
    /// Which of the step's micro-batches this pass is for, counted from 0.
    pub micro_step: u64,
}

/// The dropout of one place in one forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Of a number to be dropped, in (0, 1).
    pub probability: f64,
    /// What the choices hang on.
    pub key: DropoutKey,
    /// The place.
    pub site: u64,
}

/// Sets each number to zero with `probability` and scales the others up by `1 / (1 - probability)`.
///
/// The choice is a pure function of key, site and the shape, so that a resumed run repeats it. On
/// a CPU it is drawn here and so the same on every CPU backend. On a GPU, where masks are too large to send
/// to, it comes from the device's own generator, which [`begin_dropout`] seeds for each pass: seeding it at
/// each site would wait for the device each time.
///
/// Source: Srivastava et al. 2014, "Dropout", section 4, in the inverted form.
#[must_use]
pub fn dropout<const D: usize>(x: Tensor<D>, dropout: Dropout) -> Tensor<D> {
    let mask = keep_mask(x.dims(), dropout, &x.device());
    x * mask
}

/// Prepares `device` for the dropout of one forward pass.
pub fn begin_dropout(key: DropoutKey, device: &Device) {
    if !device::is_cpu(device) {
        device.seed(generator(key, 0).next_u64());
    }
}

/// `1 / (1 - probability)` where a number is kept, 0 where it is dropped.
fn keep_mask<const D: usize>(shape: [usize; D], dropout: Dropout, device: &Device) -> Tensor<D> {
    if !device::is_cpu(device) {
        let kept = 1.0 - dropout.probability;
        return Tensor::<D>::random(shape, Distribution::Bernoulli(kept), device) / kept;
    }
    let n: usize = shape.iter().product();
    let mut mask = vec![1.0; n];
    dropout.apply(&mut mask, 0);
    Tensor::from_data(TensorData::new(mask, shape), device)
}

impl Dropout {
    /// Drops or scales up numbers of which the first stands at `start` of all those at this place.
    ///
    /// Sixteen random bits decide a number: the probability is met to within 2^-17.
    pub(super) fn apply(&self, numbers: &mut [f32], start: usize) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in 0..65536"
        )]
        let dropped_below = (self.probability * 65_536.0).round().min(65_535.0) as u16;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "f32 is what the tensor holds"
        )]
        let scale = (1.0 / (1.0 - self.probability)) as f32;
        let mut generator = generator(self.key, self.site);
        generator.set_word_pos(start as u128 / 2); // two numbers share a word of the generator
        let skipped = start % 2;
        let mut bits = vec![0_u8; 2 * (skipped + numbers.len())];
        generator.fill_bytes(&mut bits);
        let bits = bits.as_chunks::<2>().0[skipped..].iter();
        for (number, bits) in numbers.iter_mut().zip(bits) {
            *number *= match u16::from_le_bytes(*bits) < dropped_below {
                true => 0.0,
                false => scale,
            };
        }
    }
}

fn generator(key: DropoutKey, site: u64) -> ChaCha8Rng {
    let DropoutKey {
        seed,
        step,
        micro_step,
    } = key;
    let mut bytes = [0; 32];
    for (chunk, word) in bytes
        .chunks_exact_mut(8)
        .zip([seed, step, micro_step, site])
    {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: DropoutKey = DropoutKey {
        seed: 1,
        step: 2,
        micro_step: 0,
    };

    fn kept(key: DropoutKey, site: u64) -> Vec<f32> {
        let ones = Tensor::<2>::ones([100, 200], &Device::flex());
        let dropped = Dropout {
            probability: 0.2,
            key,
            site,
        };
        dropout(ones, dropped)
            .into_data()
            .try_to_vec()
            .expect("f32")
    }

    #[test]
    fn keeps_the_share_it_is_asked_to_and_the_mean() {
        let kept = kept(KEY, 7);
        let share = kept.iter().filter(|x| **x > 0.0).count() as f64 / kept.len() as f64;
        assert!((share - 0.8).abs() < 0.01, "{share}");
        assert!(kept.iter().all(|x| *x == 0.0 || (*x - 1.25).abs() < 1e-6));
    }

    #[test]
    fn a_part_is_dropped_as_in_the_whole() {
        let dropout = Dropout {
            probability: 0.5,
            key: KEY,
            site: 3,
        };
        let mut whole = vec![1.0; 300];
        dropout.apply(&mut whole, 0);
        for (start, n) in [(0, 1), (1, 2), (63, 70), (128, 172)] {
            let mut part = vec![1.0; n];
            dropout.apply(&mut part, start);
            assert_eq!(part, whole[start..start + n]);
        }
    }

    #[test]
    fn is_a_function_of_seed_step_micro_step_and_site() {
        assert_eq!(kept(KEY, 7), kept(KEY, 7));
        for other in [
            kept(KEY, 8),
            kept(DropoutKey { seed: 2, ..KEY }, 7),
            kept(DropoutKey { step: 3, ..KEY }, 7),
            kept(
                DropoutKey {
                    micro_step: 1,
                    ..KEY
                },
                7,
            ),
        ] {
            assert_ne!(kept(KEY, 7), other);
        }
    }
}
