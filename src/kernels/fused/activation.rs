//! The activations of a feed-forward layer, number by number, and their derivatives.

use crate::kernels::elementary::{phi, sigmoid};

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
