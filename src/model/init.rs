//! The weights that training starts from, drawn on the host.
//!
//! Every parameter has a generator of its own, keyed by the run's seed and the parameter's path: the weights do not
//! depend on the device, on other parameters, or on the order in which the model is built.
//!
//! Source: Radford et al. 2019 (GPT-2), section 2.3: normal with standard deviation 0.02, the
//! projections that write to the residual stream divided by the square root of their number.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

use super::Gpt;
use super::parameters::{self, HostTensor};

const STANDARD_DEVIATION: f64 = 0.02;

/// The model with all its weights drawn from `seed`.
pub fn initialize(model: Gpt, seed: u64) -> Gpt {
    let n_residual_writes = 2 * model.blocks.len();
    parameters::assign(model, |path, shape| {
        let values = draw(path, shape, n_residual_writes, seed);
        Some(HostTensor { shape: shape.to_vec(), values })
    })
    .expect("every parameter is drawn with its own shape")
}

fn draw(path: &str, shape: &[usize], n_residual_writes: usize, seed: u64) -> Vec<f32> {
    let n = shape.iter().product();
    if shape.len() == 1 {
        let is_scale = path.ends_with("norm.weight");
        return vec![if is_scale { 1.0 } else { 0.0 }; n];
    }
    let writes_to_residual = path.ends_with("attention.output.weight") || path.ends_with("mlp.contract.weight");
    let std = match writes_to_residual {
        true => STANDARD_DEVIATION / (n_residual_writes as f64).sqrt(),
        false => STANDARD_DEVIATION,
    };
    let normal = StandardNormal.sample_iter(generator(path, seed));
    #[allow(clippy::cast_possible_truncation, reason = "f32 is what a parameter holds")]
    normal.take(n).map(|x: f64| (x * std) as f32).collect()
}

fn generator(path: &str, seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&name_id(path).to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// The FNV-1a hash of a name: the same number in every build, on every machine.
///
/// Source: Fowler, Noll and Vo, "The FNV Non-Cryptographic Hash Algorithm", 64 bits.
pub(crate) fn name_id(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hash_to_their_published_values() {
        assert_eq!(name_id(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(name_id("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn draws_have_the_standard_deviation_of_their_kind() {
        let std = |path: &str| {
            let x = draw(path, &[100, 200], 8, 1);
            (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 20_000.0).sqrt()
        };
        assert!((std("blocks.0.attention.qkv.weight") - 0.02).abs() < 5e-4);
        assert!((std("blocks.0.mlp.contract.weight") - 0.02 / 8.0_f64.sqrt()).abs() < 2e-4);
        assert_eq!(draw("blocks.0.mlp_norm.weight", &[3], 8, 1), [1.0; 3]);
        assert_eq!(draw("blocks.0.mlp_norm.bias", &[3], 8, 1), [0.0; 3]);
    }

    #[test]
    fn a_draw_depends_on_seed_and_path() {
        let draw = |path, seed| draw(path, &[4, 4], 8, seed);
        assert_eq!(draw("a.weight", 1), draw("a.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("b.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("a.weight", 2));
    }
}
