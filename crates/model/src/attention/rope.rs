//! Rotary position embedding (`RoPE`): queries and keys are rotated by angles proportional to their positions.

use std::f64::consts::TAU;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::{ModelConfig, RopeScaling};
use tinderbox_kernels as kernels;

/// The rotation for a range of positions. The dot product of a rotated query and a rotated key depends on their
/// positions only through the distance between them.
///
/// Of the first R dimensions of a head, dimension `i` is paired with dimension `i + R / 2` (halves, as in Llama and
/// Qwen checkpoints; the paper pairs adjacent dimensions, which is the same up to a fixed permutation). R is D, or
/// smaller than D with partial rotation, as in GPT-NeoX.
///
/// Source: Su et al. 2021, "RoFormer", eq. 34; Black et al. 2022, "GPT-NeoX-20B", section 2.1.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: Tensor<4>, // [1, 1, T, R / 2]
    sin: Tensor<4>, // [1, 1, T, R / 2]
}

impl Rotation {
    /// The rotation for `positions` in a model with this `config`, in layers [with wavelengths of their
    /// own](ModelConfig::has_local_rope) or in all others.
    ///
    /// # Panics
    /// If the number of rotated dimensions is odd.
    pub fn new(positions: Range<usize>, config: &ModelConfig, is_local: bool, device: &Device) -> Self {
        let shape = [1, 1, positions.len(), config.rotary_dim() / 2];
        let table = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), device);
        let [cos, sin] = Self::tables(positions, config, is_local).map(table);
        Self { cos, sin }
    }

    /// Cosines and sines of the angles of `positions`, each `[T, R / 2]`, on the host, times the factor of
    /// [`RopeScaling::attention_factor`].
    ///
    /// # Panics
    /// If the number of rotated dimensions is odd.
    pub fn tables(positions: Range<usize>, config: &ModelConfig, is_local: bool) -> [Vec<f32>; 2] {
        let (theta, scaling) = config.wavelengths(is_local);
        let frequencies = frequencies(config, theta, scaling);
        let scale = scaling.map_or(1.0, |scaling| scaling.attention_factor(config.context_length));
        let angles: Vec<f64> = positions
            .flat_map(|position| frequencies.iter().map(move |frequency| position as f64 * frequency))
            .collect();
        #[allow(clippy::cast_possible_truncation, reason = "everything is computed in f32")]
        let table = |f: fn(f64) -> f64| angles.iter().map(|angle| (scale * f(*angle)) as f32).collect();
        [table(libm::cos), table(libm::sin)]
    }

    /// Rotates each head's vector by the angles of its position.
    ///
    /// # Shapes
    /// `x: [B, H, T, D]` -> `[B, H, T, D]`
    ///
    /// # Panics
    /// If T or D differs from that of the rotation.
    pub fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        kernels::rotate(x, self.cos.clone(), self.sin.clone())
    }

    /// Cosines and sines of the angles, each `[1, 1, T, R / 2]`.
    pub fn angles(&self) -> [Tensor<4>; 2] {
        [self.cos.clone(), self.sin.clone()]
    }
}

/// For each pair of R dimensions, the angle in radians between adjacent positions: `[R / 2]`.
fn frequencies(config: &ModelConfig, theta: f64, scaling: Option<&RopeScaling>) -> Vec<f64> {
    let rotary_dim = config.rotary_dim();
    assert!(rotary_dim.is_multiple_of(2), "pairs are rotated, not {rotary_dim} dimensions");
    let of_pair = |i: usize| {
        let frequency = libm::pow(theta, -2.0 * i as f64 / rotary_dim as f64);
        let by = |factor: f64, kept: f64| (1.0 - kept) * frequency / factor + kept * frequency;
        match scaling {
            None => frequency,
            Some(&RopeScaling::Linear { factor }) => by(factor, 0.0),
            Some(scaling @ &(RopeScaling::Llama3 { factor, .. } | RopeScaling::Yarn { factor, .. })) => {
                by(factor, share_kept(scaling, (i, frequency), rotary_dim, theta))
            }
            Some(RopeScaling::Longrope { short_factors, long_factors, original_context_length, .. }) => {
                let is_long = config.context_length > *original_context_length;
                frequency / if is_long { long_factors[i] } else { short_factors[i] }
            }
        }
    };
    (0..rotary_dim / 2).map(of_pair).collect()
}

/// The share of a pair's frequency that is not divided by the factor of a longer context, in `[0, 1]`.
fn share_kept(scaling: &RopeScaling, (pair, frequency): (usize, f64), rotary_dim: usize, theta: f64) -> f64 {
    match *scaling {
        RopeScaling::Linear { .. } | RopeScaling::Longrope { .. } => 0.0,
        RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_context_length, .. } => {
            // The number of full turns over the original context. A frequency with few turns is scaled; one with many
            // stays.
            let n_turns = original_context_length as f64 * frequency / TAU;
            ((n_turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
        }
        RopeScaling::Yarn { original_context_length, beta_fast, beta_slow, .. } => {
            // The (fractional) index of the pair that makes `n_turns` over the original context. As in transformers, the
            // transition is linear in the index, between whole indices.
            let n = rotary_dim as f64;
            let turns = |n_turns: f64| {
                n * libm::log(original_context_length as f64 / (n_turns * TAU)) / (2.0 * libm::log(theta))
            };
            let (first, last) = (turns(beta_fast).floor().max(0.0), turns(beta_slow).ceil().min(n - 1.0));
            1.0 - ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PositionKind;

    #[test]
    fn frequencies_fall_from_one_towards_one_over_theta() {
        let config = ModelConfig { position: PositionKind::Rope, head_dim: 8, ..ModelConfig::default() };
        let close = |config: &ModelConfig, want: &[f64]| {
            let got = frequencies(config, config.rope_theta, config.rope_scaling.as_ref());
            let is_close = got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9 * want);
            assert!(got.len() == want.len() && is_close, "{got:?} is not {want:?}");
        };
        close(&config, &[1.0, 0.1, 0.01, 0.001]);
        close(&ModelConfig { rope_theta: 81.0, ..config.clone() }, &[1.0, 1.0 / 3.0, 1.0 / 9.0, 1.0 / 27.0]);
        close(&ModelConfig { rotary_fraction: 0.5, ..config.clone() }, &[1.0, 0.01]);
        let linear = Some(RopeScaling::Linear { factor: 4.0 });
        close(&ModelConfig { rope_scaling: linear, ..config.clone() }, &[0.25, 0.025, 0.0025, 0.000_25]);
        let longrope = |context_length| {
            let rope_scaling = Some(RopeScaling::Longrope {
                short_factors: vec![1.0, 1.0, 2.0, 2.0],
                long_factors: vec![1.0, 2.0, 4.0, 8.0],
                original_context_length: 64,
                attention_factor: None,
            });
            ModelConfig { context_length, rope_scaling, ..config.clone() }
        };
        close(&longrope(64), &[1.0, 0.1, 0.005, 0.000_5]);
        close(&longrope(65), &[1.0, 0.05, 0.002_5, 0.000_125]);
    }

    /// The expected values come from transformers 5.23, `_compute_yarn_parameters` for a head of 16 dimensions, theta 10,000,
    /// factor 4 and 256 original positions.
    #[test]
    fn yarn_equals_transformers() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context_length: 256,
            beta_fast: RopeScaling::beta_fast(),
            beta_slow: RopeScaling::beta_slow(),
            attention_factor: None,
        };
        let config = ModelConfig {
            position: PositionKind::Rope,
            head_dim: 16,
            rope_scaling: Some(scaling),
            ..ModelConfig::default()
        };
        let want = [1.0, 0.256_935_06, 0.062_5, 0.013_834_965, 0.002_5, 0.000_790_569_47, 0.000_25, 0.000_079_056_947];
        let got = frequencies(&config, config.rope_theta, config.rope_scaling.as_ref());
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-6 * want, "{got} is not {want}");
        }
        let [cos, sin] = Rotation::tables(0..2, &config, false);
        assert!((cos[0] - 1.138_629_4).abs() < 1e-6, "{}", cos[0]);
        let length = (cos[8].powi(2) + sin[8].powi(2)).sqrt();
        assert!((length - 1.138_629_4).abs() < 1e-6, "{length}");
    }

    #[test]
    fn llama3_scaling_stretches_long_wavelengths_only() {
        let llama3 = |frequency: f64| {
            let scaling = RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context_length: 8192,
            };
            let kept = share_kept(&scaling, (0, frequency), 64, 10_000.0);
            kept + (1.0 - kept) / 8.0
        };
        let fits = |n: f64| n * TAU / 8192.0;
        for (n_turns, want) in [(100.0, 1.0), (4.0, 1.0), (2.5, 0.5 + 0.5 / 8.0), (1.0, 0.125), (0.1, 0.125)] {
            let got = llama3(fits(n_turns));
            assert!((got - want).abs() < 1e-9, "{n_turns}: {got} is not {want}");
        }
    }
}
