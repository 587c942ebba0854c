//! The activations of a feed-forward layer, number by number, and their derivatives.

use super::exp;

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
    /// What comes of `x`, and of the gates where the activation has them.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    pub(super) fn forward(self, x: &[f32], gate: &[f32], out: &mut [f32]) {
        let pairs = out.iter_mut().zip(x);
        match self {
            Self::Gelu => pairs.for_each(|(out, x)| *out = x * phi(*x).0),
            Self::ReluSquared => pairs.for_each(|(out, x)| {
                let positive = if *x < 0.0 { 0.0 } else { *x }; // not `max`, which would hide NaN
                *out = positive * positive;
            }),
            Self::Swiglu => {
                for ((out, x), gate) in pairs.zip(gate) {
                    *out = gate * sigmoid(*gate) * x;
                }
            }
        }
    }

    /// Computes the output again, turns its gradient into that of `x`, and writes that of the gates.
    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    pub(super) fn backward(
        self,
        x: &[f32],
        gate: &[f32],
        out: &mut [f32],
        gradient: &mut [f32],
        of_gate: &mut [f32],
    ) {
        let triples = out.iter_mut().zip(x).zip(gradient);
        match self {
            Self::Gelu => triples.for_each(|((out, x), gradient)| {
                let (distribution, density) = phi(*x);
                *out = x * distribution;
                *gradient *= distribution + x * density;
            }),
            Self::ReluSquared => triples.for_each(|((out, x), gradient)| {
                let positive = if *x < 0.0 { 0.0 } else { *x };
                *out = positive * positive;
                *gradient *= 2.0 * positive;
            }),
            Self::Swiglu => {
                for (((out, x), gradient), (gate, of_gate)) in triples.zip(gate.iter().zip(of_gate))
                {
                    let sigmoid = sigmoid(*gate);
                    let silu = gate * sigmoid;
                    *out = silu * x;
                    *of_gate = *gradient * x * (sigmoid + silu * (1.0 - sigmoid));
                    *gradient *= silu;
                }
            }
        }
    }
}

/// `1 / (1 + e^-x)`, within 3e-7.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
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
fn phi(x: f32) -> (f32, f32) {
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
    let t = 1.0 / (1.0 + P * z);
    let series = t * (A[0] + t * (A[1] + t * (A[2] + t * (A[3] + t * A[4]))));
    let exp = exp(-z * z);
    let tail = 0.5 * series * exp; // of the distribution, beyond |x|
    (if x > 0.0 { 1.0 - tail } else { tail }, INV_SQRT_TAU * exp)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let ((distribution, density), (want, want_density)) = (phi(x), reference(f64::from(x)));
            assert!(
                (f64::from(distribution) - want).abs() < 3e-7,
                "Phi({x}) = {distribution}, not {want}"
            );
            assert!((f64::from(density) - want_density).abs() < 1e-7, "at {x}");
        }
        for x in [50.0, 1e4, f32::MAX] {
            let (below, above) = (phi(-x).0, phi(x).0);
            assert!(
                (above - 1.0).abs() < 1e-7 && (below * x).abs() < 1e-30,
                "far out at {x}"
            );
        }
        assert!(phi(f32::NAN).0.is_nan());
    }

    #[test]
    fn the_sigmoid_is_within_a_few_roundings() {
        for i in -1000..=1000 {
            let x = i as f32 / 100.0;
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            let got = f64::from(sigmoid(x));
            assert!(
                (got - want).abs() < 3e-7,
                "sigmoid({x}) = {got}, not {want}"
            );
        }
        assert!(sigmoid(f32::NAN).is_nan());
        assert!(sigmoid(-1e4) < 2e-38 && sigmoid(1e4) > 1.0 - 1e-6);
    }
}
