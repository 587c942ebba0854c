//! Weight initialization, drawn on the host.
//!
//! Every parameter has a separate random generator, keyed by the run's seed and the parameter's path, so that the
//! weights do not depend on the device, on other parameters, or on the order in which the model is built.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal, StandardUniform};

use super::parameters::{self, HostTensor};
use super::{Gpt, Initial, Parameter};

/// Replaces all weights of the model with initial values drawn from `seed`.
pub fn initialize(model: Gpt, seed: u64) -> Gpt {
    let table: BTreeMap<_, _> = model.parameters().map(|row| (row.path.clone(), row)).collect();
    parameters::assign(model, |path, _| {
        let row = table.get(path)?;
        Some(HostTensor { shape: row.shape.clone(), values: draw(row, seed) })
    })
    .expect("the table has every parameter with its shape")
}

pub(crate) fn draw(parameter: &Parameter, seed: u64) -> Vec<f32> {
    let n = parameter.shape.iter().product();
    match parameter.initial {
        Initial::Constant(value) => vec![value; n],
        Initial::Pair(values) => values.to_vec(),
        Initial::Uniform(bound) => {
            let uniform = StandardUniform.sample_iter(generator(&parameter.path, seed));
            #[allow(clippy::cast_possible_truncation, reason = "f32 is what a parameter holds")]
            uniform.take(n).map(|x: f64| ((2.0 * x - 1.0) * bound) as f32).collect()
        }
        Initial::Normal(0.0) => vec![0.0; n],
        Initial::Normal(std) => {
            let normal = StandardNormal.sample_iter(generator(&parameter.path, seed));
            #[allow(clippy::cast_possible_truncation, reason = "f32 is what a parameter holds")]
            normal.take(n).map(|x: f64| (x * std) as f32).collect()
        }
    }
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
    use crate::Role;
    use crate::config::ModelConfig;

    #[test]
    fn name_ids_equal_published_hashes() {
        assert_eq!(name_id(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(name_id("foobar"), 0x8594_4171_f739_67e8);
    }

    fn row(path: &str, shape: [usize; 2], std: f64) -> Parameter {
        let (path, shape, initial) = (path.to_owned(), shape.to_vec(), Initial::Normal(std));
        Parameter { path, shape, role: Role::Up, initial, is_trained: true }
    }

    #[test]
    fn draws_have_their_standard_deviation() {
        for std in [0.02, 0.007] {
            let x = draw(&row("a.weight", [100, 200], std), 1);
            let found = (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 20_000.0).sqrt();
            assert!((found - std).abs() < 5e-4 * std / 0.02, "{found} is not {std}");
        }
    }

    #[test]
    fn projections_to_residual_stream_start_small_or_at_zero() {
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
    fn draws_depend_on_seed_and_path() {
        let draw = |path, seed| draw(&row(path, [4, 4], 0.007), seed);
        assert_eq!(draw("a.weight", 1), draw("a.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("b.weight", 1));
        assert_ne!(draw("a.weight", 1), draw("a.weight", 2));
    }
}
