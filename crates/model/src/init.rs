//! Weight initialization, drawn on the host.
//!
//! Every parameter has a separate random generator, keyed by the run's seed and the parameter's path, so that the
//! weights do not depend on the device, on other parameters, or on the order in which the model is built.
//!
//! Source: Radford et al. 2019 (GPT-2), section 2.3: normal with standard deviation 0.02. The projections that write to
//! the residual stream are divided by the square root of their number, or are all zeros.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

use super::Gpt;
use super::parameters::{self, HostTensor};

const STANDARD_DEVIATION: f64 = 0.02;

/// Replaces all weights of the model with initial values drawn from `seed`.
pub fn initialize(model: Gpt, seed: u64) -> Gpt {
    let std_of_writes = match model.config().zero_init_projections {
        true => 0.0,
        false => STANDARD_DEVIATION / (2.0 * model.blocks.len() as f64).sqrt(),
    };
    parameters::assign(model, |path, shape| {
        let values = draw(path, shape, std_of_writes, seed);
        Some(HostTensor { shape: shape.to_vec(), values })
    })
    .expect("every parameter is drawn with its own shape")
}

/// Draws the initial values of the parameter at `path`. `std_of_writes` is the standard deviation for the projections
/// that write to the residual stream.
fn draw(path: &str, shape: &[usize], std_of_writes: f64, seed: u64) -> Vec<f32> {
    let n = shape.iter().product();
    if shape.len() == 1 {
        if path.ends_with("attention.value_factors") {
            return vec![0.5; n];
        }
        if path.ends_with("skip_factors") {
            return vec![1.0, 0.0];
        }
        let is_scale = path.ends_with("norm.weight");
        return vec![if is_scale { 1.0 } else { 0.0 }; n];
    }
    let writes_to_residual = path.ends_with("attention.output.weight") || path.ends_with("mlp.contract.weight");
    let std = if writes_to_residual { std_of_writes } else { STANDARD_DEVIATION };
    if std == 0.0 {
        return vec![0.0; n];
    }
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

/// The FNV-1a hash of a name, the same number in every build and on every machine.
///
/// Source: Fowler, Noll and Vo, "The FNV Non-Cryptographic Hash Algorithm", 64 bits.
pub(crate) fn name_id(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::ModelConfig;

    #[test]
    fn names_hash_to_their_published_values() {
        assert_eq!(name_id(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(name_id("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn draws_have_the_standard_deviation_of_their_kind() {
        let std = |path: &str| {
            let x = draw(path, &[100, 200], 0.007, 1);
            (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 20_000.0).sqrt()
        };
        assert!((std("blocks.0.attention.qkv.weight") - 0.02).abs() < 5e-4);
        assert!((std("blocks.0.mlp.contract.weight") - 0.007).abs() < 2e-4);
        assert_eq!(draw("blocks.0.mlp_norm.weight", &[3], 0.007, 1), [1.0; 3]);
        assert_eq!(draw("blocks.0.mlp_norm.bias", &[3], 0.007, 1), [0.0; 3]);
    }

    #[test]
    fn projections_that_write_to_the_residual_stream_start_small_or_at_zero_and_others_as_always() {
        let config = ModelConfig { n_layers: 8, bias: true, ..ModelConfig::default() }.with_derived();
        let zeroed = ModelConfig { zero_init_projections: true, ..config.clone() };
        let [small, zeroed] =
            [config, zeroed].map(|config| parameters::read(&Gpt::new(&config, 5, 1, &Device::flex())));
        for (path, small) in small {
            let zeroed = &zeroed[&path].values;
            if path.ends_with("attention.output.weight") || path.ends_with("mlp.contract.weight") {
                let squares = small.values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                let mean_square = squares / small.values.len() as f64;
                assert!((mean_square.sqrt() - 0.02 / 16.0_f64.sqrt()).abs() < 2e-4, "{path}");
                assert!(zeroed.iter().all(|x| x.to_bits() == 0), "{path}");
            } else {
                assert_eq!(*zeroed, small.values, "{path}");
            }
        }
    }

    #[test]
    fn a_draw_depends_on_seed_and_path() {
        let draw = |path, seed| draw(path, &[4, 4], 0.007, seed);
        assert_eq!(draw("a.weight", 1), draw("a.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("b.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("a.weight", 2));
    }
}
