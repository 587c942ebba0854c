//! The activations of a feed-forward layer, number by number, and their derivatives.

use std::mem::MaybeUninit;

use pulp::Simd;

use super::{exp, fma, polynomial};

/// What a feed-forward layer does between its projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Activation {
    /// `x Phi(x)`
    Gelu,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `silu(gate) x`
    Swiglu,
}

impl Activation {
    /// What comes of `x`, and of the gates where the activation has them. Turns both into the derivatives by
    /// them: all that the backward pass will need.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    pub(super) fn forward<'a, S: Simd>(
        self,
        x: &mut [f32],
        gate: &mut [f32],
        out: &'a mut [MaybeUninit<f32>],
    ) -> &'a mut [f32] {
        assert!(x.len() == out.len() && (gate.len() == x.len() || self != Self::Swiglu));
        let pairs = out.iter_mut().zip(x);
        match self {
            Self::Gelu => {
                for (out, x) in pairs {
                    let (distribution, density) = phi::<S>(*x);
                    out.write(*x * distribution);
                    *x = fma::<S>(*x, density, distribution);
                }
            }
            Self::ReluSquared => {
                for (out, x) in pairs {
                    let positive = if *x < 0.0 { 0.0 } else { *x }; // not `max`, which would hide NaN
                    out.write(positive * positive);
                    *x = 2.0 * positive;
                }
            }
            Self::Swiglu => {
                for ((out, x), gate) in pairs.zip(gate) {
                    let sigmoid = sigmoid::<S>(*gate);
                    let silu = *gate * sigmoid;
                    out.write(silu * *x);
                    *gate = *x * fma::<S>(silu, 1.0 - sigmoid, sigmoid);
                    *x = silu;
                }
            }
        }
        #[allow(unsafe_code)]
        // SAFETY: there are as many numbers of each, and of every one the output was written.
        unsafe {
            out.assume_init_mut()
        }
    }
}

/// `1 / (1 + e^-x)`, within 3e-7.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn sigmoid<S: Simd>(x: f32) -> f32 {
    let small = exp::<S>(-x.abs());
    let share = 1.0 / (1.0 + small);
    if x < 0.0 { small * share } else { share }
}

/// The normal distribution function and its density at `x`, both within 2e-7.
///
/// Source: Abramowitz and Stegun 1964, "Handbook of Mathematical Functions", 7.1.26: for z >= 0,
/// `erf(z) = 1 - (a1 t + .. + a5 t^5) exp(-z^2)` with `t = 1 / (1 + p z)`, within 1.5e-7. Their `exp(-z^2)`
/// is the density's too.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn phi<S: Simd>(x: f32) -> (f32, f32) {
    const P: f32 = 0.327_591_1;
    const A: [f32; 5] = [
        0.254_829_6,
        -0.284_496_74,
        1.421_413_7,
        -1.453_152,
        1.061_405_4,
    ];
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / fma::<S>(P, z, 1.0);
    let series = t * polynomial::<S, _>(t, A);
    let exp = exp::<S>(-z * z);
    let tail = 0.5 * series * exp; // of the distribution, beyond |x|
    (if x > 0.0 { 1.0 - tail } else { tail }, INV_SQRT_TAU * exp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::Scalar;

    /// The distribution and the density in double precision, by numerical integration.
    fn reference(x: f64) -> (f64, f64) {
        let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let n = 2000;
        let h = x / f64::from(n);
        let simpson: f64 = (0..n)
            .map(|i| {
                let a = f64::from(i) * h;
                h / 6.0 * (density(a) + 4.0 * density(a + h / 2.0) + density(a + h))
            })
            .sum();
        (0.5 + simpson, density(x))
    }

    #[test]
    fn distribution_and_density_are_within_a_few_roundings() {
        for i in -1000..=1000 {
            let x = i as f32 / 100.0;
            let ((distribution, density), (want, want_density)) =
                (phi::<Scalar>(x), reference(f64::from(x)));
            assert!(
                (f64::from(distribution) - want).abs() < 3e-7,
                "Phi({x}) = {distribution}, not {want}"
            );
            assert!((f64::from(density) - want_density).abs() < 1e-7, "at {x}");
        }
        for x in [50.0, 1e4, f32::MAX] {
            let (below, above) = (phi::<Scalar>(-x).0, phi::<Scalar>(x).0);
            assert!(
                (above - 1.0).abs() < 1e-7 && (below * x).abs() < 1e-30,
                "far out at {x}"
            );
        }
        assert!(phi::<Scalar>(f32::NAN).0.is_nan());
    }

    #[test]
    fn the_sigmoid_is_within_a_few_roundings() {
        for i in -1000..=1000 {
            let x = i as f32 / 100.0;
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            let got = f64::from(sigmoid::<Scalar>(x));
            assert!(
                (got - want).abs() < 3e-7,
                "sigmoid({x}) = {got}, not {want}"
            );
        }
        assert!(sigmoid::<Scalar>(f32::NAN).is_nan());
        assert!(sigmoid::<Scalar>(-1e4) < 2e-38 && sigmoid::<Scalar>(1e4) > 1.0 - 1e-6);
    }
}
