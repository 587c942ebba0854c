//! The activations of a feed-forward layer, number by number, and their derivatives.

use std::mem::MaybeUninit;

use pulp::Simd;

use crate::elementary::{fma, phi, sigmoid};

/// What a feed-forward layer does between its projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationKind {
    /// `x Phi(x)`
    Gelu,
    /// `max(x, 0)^2`
    ReluSquared,
    /// `silu(gate) x`
    Swiglu,
}

impl ActivationKind {
    /// What comes of `x`, and of the gates where the activation has them. Turns both into the derivatives by
    /// them: all that the backward pass will need.
    #[inline(always)]
    pub(crate) fn forward<'a, S: Simd>(
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
        // SAFETY: there are as many numbers of each, and of every one the output was written.
        unsafe { out.assume_init_mut() }
    }
}
