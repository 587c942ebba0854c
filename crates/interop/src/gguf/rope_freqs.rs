//! The divisors of `RoPE`'s frequencies in llama.cpp, one per pair of dimensions, as tensors:
//! `rope_freqs.weight`, which encodes Llama 3's scaling, and `LongRoPE`'s two lists.
//!
//! Source: llama.cpp, `generate_extra_tensors` in `conversion/llama.py` and `conversion/phi.py`.

use std::f64::consts::PI;

use tinderbox_model::config::RopeScaling;

/// The name of the tensor of Llama 3's scaling.
pub(super) const TENSOR: &str = "rope_freqs.weight";
/// The names of the tensors of `LongRoPE`, for contexts up to the original, and for longer ones.
pub(super) const LONGROPE: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The settings of Llama 3.1 and later besides the factor.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
const ORIGINAL_CONTEXT_LENGTH: usize = 8192;

/// The largest difference between computed and stored factors, relative to the larger: stored factors were computed in
/// single precision.
const TOLERANCE: f64 = 1e-4;

/// The tensors of a scaling, for a head with `rotary_dim` rotated dimensions.
pub(super) fn tensors(scaling: &RopeScaling, theta: f64, rotary_dim: usize) -> Vec<(&'static str, Vec<f32>)> {
    #[allow(clippy::cast_possible_truncation, reason = "to single precision")]
    let single = |factors: &[f64]| factors.iter().map(|factor| *factor as f32).collect();
    match scaling {
        RopeScaling::Longrope { short_factors, long_factors, .. } => {
            LONGROPE.into_iter().zip([single(short_factors), single(long_factors)]).collect()
        }
        _ => factors(scaling, theta, rotary_dim).map(|factors| (TENSOR, factors)).into_iter().collect(),
    }
}

/// The factors of Llama 3's scaling, for a head with `rotary_dim` rotated dimensions; `None` for another scaling.
fn factors(scaling: &RopeScaling, theta: f64, rotary_dim: usize) -> Option<Vec<f32>> {
    let &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } = scaling else {
        return None;
    };
    let original = original_context_length as f64;
    let of_pair = |pair: usize| {
        let wavelength = 2.0 * PI * libm::pow(theta, 2.0 * pair as f64 / rotary_dim as f64);
        if wavelength < original / high_freq_factor {
            1.0
        } else if wavelength > original / low_freq_factor {
            factor
        } else {
            let smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    #[allow(clippy::cast_possible_truncation, reason = "to single precision")]
    Some((0..rotary_dim / 2).map(|pair| of_pair(pair) as f32).collect())
}

/// The scaling with these factors: `given`, if it matches, or else Llama 3's with the largest of them. `None` if
/// neither matches.
pub(super) fn scaling(factors: &[f32], theta: f64, given: Option<RopeScaling>) -> Option<RopeScaling> {
    let largest = factors.iter().copied().fold(1.0_f32, f32::max);
    let as_llama_3 = RopeScaling::Llama3 {
        factor: largest.into(),
        low_freq_factor: LOW_FREQ_FACTOR,
        high_freq_factor: HIGH_FREQ_FACTOR,
        original_context_length: ORIGINAL_CONTEXT_LENGTH,
    };
    let is_it = |scaling: &RopeScaling| {
        let computed = self::factors(scaling, theta, 2 * factors.len()).unwrap_or_default();
        let is_close = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) <= TOLERANCE * f64::from(a.max(*b));
        computed.len() == factors.len() && computed.iter().zip(factors).all(is_close)
    };
    given.into_iter().chain([as_llama_3]).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.2 1B: 64 dimensions, theta 5e5, factor 32.
    fn llama_3_2() -> RopeScaling {
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context_length: 8192 }
    }

    #[test]
    fn factors_match_published_files() {
        let factors = factors(&llama_3_2(), 500_000.0, 64).expect("Llama 3's scaling has factors");
        // Factors computed by convert_hf_to_gguf, in float32 with numpy.
        assert_eq!(factors.len(), 32);
        assert_eq!(factors[..15], [1.0; 15]);
        assert_eq!(factors[18..], [32.0; 14]);
        for (factor, expected) in factors[15..18].iter().zip([1.651_329_3, 3.292_262_8, 9.666_731]) {
            assert!((factor - expected).abs() < 1e-4 * expected, "{factors:?}");
        }
        assert_eq!(scaling(&factors, 500_000.0, None), Some(llama_3_2()));
    }

    #[test]
    fn unusual_scalings_are_recognised_only_if_given() {
        let own = RopeScaling::Llama3 {
            factor: 4.0,
            low_freq_factor: 1.5,
            high_freq_factor: 3.0,
            original_context_length: 64,
        };
        let factors = factors(&own, 10_000.0, 16).expect("Llama 3's scaling has factors");
        assert_eq!(scaling(&factors, 10_000.0, Some(own.clone())), Some(own));
        assert_eq!(scaling(&factors, 10_000.0, None), None);
        assert_eq!(scaling(&factors, 10_000.0, Some(llama_3_2())), None);
        assert_eq!(super::factors(&RopeScaling::Linear { factor: 2.0 }, 1e4, 16), None);
    }
}
