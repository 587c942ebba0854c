//! The activation functions of the feed-forward layer.

#![allow(unsafe_code, reason = "each block says why it is sound")]

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Tensor, activation};
use pulp::{Simd, WithSimd};

use crate::elementary::{fma, phi, phi_by_tanh, sigmoid};
use crate::flex::{self, from_vec, values, values_mut};
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::{CHUNK, assume_init, each, run, uninit};

/// The Gaussian error linear unit in its exact form, `x * Phi(x)`.
///
/// Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    // Composed of basic operations: the `gelu` of burn 0.22 computes the exact function, but its backward pass
    // differentiates the tanh approximation, so gradients are off by up to 7e-4 of the largest.
    x.clone() * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5
}

/// The Gaussian error linear unit as in GPT-2, `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
///
/// Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2.
pub fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let root = std::f64::consts::FRAC_2_PI.sqrt();
    let cube = x.clone() * x.clone() * x.clone();
    x.clone() * (((x + cube * 0.044_715) * root).tanh() + 1.0) * 0.5
}

/// The squared rectifier, `max(x, 0)^2`.
///
/// Source: So et al. 2021, "Primer: Searching for Efficient Transformers", section 4.
pub fn relu_squared<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let positive = activation::relu(x);
    positive.clone() * positive
}

/// The activation between the projections of a feed-forward layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[allow(clippy::unsafe_derive_deserialize, reason = "every value is valid, and its methods check their slices")]
pub enum Activation {
    /// `x Phi(x)`: exact GELU.
    #[default]
    Gelu,
    /// `x Phi(x)` with Phi approximated by a tanh, as in GPT-2: see [`gelu_tanh`].
    GeluTanh,
    /// `silu(gate) x`, with `silu(x) = x sigmoid(x)`, which takes three matrices instead of two.
    Swiglu,
    /// [`gelu_tanh`]`(gate) x`, which takes three matrices, too.
    Geglu,
    /// `max(x, 0)^2`
    ReluSquared,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gelu, Self::GeluTanh, Self::Swiglu, Self::Geglu, Self::ReluSquared];

    /// Whether every element of the input comes with a gate.
    pub fn is_gated(self) -> bool {
        matches!(self, Self::Swiglu | Self::Geglu)
    }

    /// Writes the activation of `x`, gated by `gate` if it is gated, to `out`. Overwrites both inputs with the
    /// derivatives with respect to them, which are all that the backward pass needs.
    #[inline(always)]
    pub(crate) fn forward<'a, S: Simd>(
        self,
        x: &mut [f32],
        gate: &mut [f32],
        out: &'a mut [MaybeUninit<f32>],
    ) -> &'a mut [f32] {
        assert!(x.len() == out.len() && (gate.len() == x.len() || !self.is_gated()));
        let pairs = out.iter_mut().zip(x);
        match self {
            Self::Gelu => {
                for (out, x) in pairs {
                    let (distribution, density) = phi::<S>(*x);
                    out.write(*x * distribution);
                    *x = fma::<S>(*x, density, distribution);
                }
            }
            Self::GeluTanh => {
                for (out, x) in pairs {
                    let (distribution, density) = phi_by_tanh::<S>(*x);
                    out.write(*x * distribution);
                    *x = fma::<S>(*x, density, distribution);
                }
            }
            Self::ReluSquared => {
                for (out, x) in pairs {
                    let positive = if *x < 0.0 { 0.0 } else { *x }; // `max` would hide NaN
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
            Self::Geglu => {
                for ((out, x), gate) in pairs.zip(gate) {
                    let (distribution, density) = phi_by_tanh::<S>(*gate);
                    let gelu = *gate * distribution;
                    out.write(gelu * *x);
                    *gate = *x * fma::<S>(*gate, density, distribution);
                    *x = gelu;
                }
            }
        }
        // SAFETY: all slices have the same length, and each element of `out` was written.
        unsafe { out.assume_init_mut() }
    }
}

/// The activation of `x`, gated by `gate` if it is gated, as a separate operation. [`crate::mlp()`] computes it along
/// with the projections.
///
/// # Shapes
/// `x, gate: [..]` -> `[..]`
///
/// # Panics
/// If a gated activation has no gate, or an activation without gates has one.
pub fn activate<const D: usize>(kind: Activation, x: Tensor<D>, gate: Option<Tensor<D>>) -> Tensor<D> {
    assert_eq!(gate.is_some(), kind.is_gated(), "a gate for {kind:?}");
    if flex::is_for(&x) {
        let inputs = std::iter::once(x).chain(gate).map(Tensor::into_dispatch).collect();
        return Tensor::from_dispatch(apply_on_flex(inputs, Activate(kind)));
    }
    composed(kind, x, gate)
}

pub(crate) fn composed<const D: usize>(kind: Activation, x: Tensor<D>, gate: Option<Tensor<D>>) -> Tensor<D> {
    match kind {
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::ReluSquared => relu_squared(x),
        Activation::Swiglu => activation::silu(gate.expect("SwiGLU has a gate")) * x,
        Activation::Geglu => gelu_tanh(gate.expect("GEGLU has a gate")) * x,
    }
}

/// Inputs: x, and the gate if there is one.
#[derive(Debug)]
struct Activate(Activation);

impl FlexOperation for Activate {
    /// Saves the derivatives with respect to the inputs, in place unless these are shared.
    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let shape = inputs[0].layout().shape().clone();
        let mut out = uninit(shape.num_elements());
        let (x, gate) = inputs.split_at_mut(1);
        let x = values_mut(&mut x[0]).chunks_mut(CHUNK);
        let gate = gate.first_mut().map_or(&mut [][..], values_mut);
        let mut gates = gate.chunks_mut(CHUNK);
        let chunks = x.zip(out.chunks_mut(CHUNK));
        let tasks = chunks.map(|(x, out)| Chunk { kind: self.0, x, gate: gates.next().unwrap_or_default(), out });
        run(shape.num_elements(), tasks);
        // SAFETY: the tasks have written every chunk.
        let out = unsafe { assume_init(out) };
        (from_vec(out, shape), if wanted.any() { inputs } else { Vec::new() })
    }

    fn backward(&self, mut saved: Vec<FlexTensor>, gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let gradient = values(&gradient);
        for slopes in &mut saved {
            each(
                gradient.len(),
                values_mut(slopes).chunks_mut(CHUNK).zip(gradient.chunks(CHUNK)),
                #[inline(always)]
                move |(slopes, gradient)| {
                    for (slope, gradient) in slopes.iter_mut().zip(gradient) {
                        *slope *= gradient;
                    }
                },
            );
        }
        saved.into_iter().map(Some).collect()
    }
}

struct Chunk<'a> {
    kind: Activation,
    x: &'a mut [f32],
    gate: &'a mut [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Chunk<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.kind.forward::<S>(self.x, self.gate, self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_keep_nan() {
        for activation in Activation::ALL {
            let (mut x, mut gate) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
            let mut out = [MaybeUninit::uninit(); 2];
            let out = activation.forward::<pulp::Scalar>(&mut x, &mut gate, &mut out);
            assert!(out[0].is_nan() && out[1].is_nan() == activation.is_gated());
        }
    }
}
