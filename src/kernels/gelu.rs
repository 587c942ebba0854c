//! The exact GELU on burn's CPU backend: forward and backward in one pass each, on all cores.
//!
//! Burn computes it number by number through a scalar `erf`, on one core: a third of a small model's
//! training step. Here `erf` is a short formula that compilers turn into SIMD instructions, chosen at run time.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::flex::{CHUNK, exp, rewrite, run, tensor, values};

/// `x * Phi(x)` of a tensor of f32 on flex, with or without gradients.
pub(super) fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as GeluBackend>::exact_gelu(x.into_dispatch()))
}

/// The operation, for the backends that have it.
#[backend_extension(Flex, Autodiff)]
pub(super) trait GeluBackend: Backend {
    fn exact_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;
    fn exact_gelu_backward(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl GeluBackend for Flex {
    fn exact_gelu(x: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        let mut out = vec![0.0; x.layout().num_elements()];
        let n = out.len();
        let chunks = out.chunks_mut(CHUNK).zip(values(&x).chunks(CHUNK));
        run(n, chunks.map(|(out, x)| Forward { x, out }));
        tensor(out, &x)
    }

    fn exact_gelu_backward(x: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        rewrite(gradient, |gradient| {
            let n = gradient.len();
            let chunks = gradient.chunks_mut(CHUNK).zip(values(&x).chunks(CHUNK));
            run(n, chunks.map(|(gradient, x)| BackwardPass { x, gradient }));
        })
    }
}

struct Forward<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = x * phi(*x).0;
        }
    }
}

struct BackwardPass<'a> {
    x: &'a [f32],
    gradient: &'a mut [f32],
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        for (gradient, x) in self.gradient.iter_mut().zip(self.x) {
            let (distribution, density) = phi(*x);
            *gradient *= distribution + x * density;
        }
    }
}

impl<B: Backend + GeluBackend, C: CheckpointStrategy> GeluBackend for Autodiff<B, C> {
    fn exact_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Gelu;

        impl<B: Backend + GeluBackend> Backward<B, 1> for Gelu {
            type State = FloatTensor<B>;

            fn backward(
                self,
                ops: Ops<Self::State, 1>,
                gradients: &mut Gradients,
                _: &mut Checkpointer,
            ) {
                unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
                    B::exact_gelu_backward(ops.state, gradient)
                });
            }
        }

        match Gelu.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let x = x.primitive().clone();
                prep.finish(x.clone(), B::exact_gelu(x))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::exact_gelu(x.into_primitive())),
        }
    }

    fn exact_gelu_backward(_: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
        unimplemented!("training needs no second derivative")
    }
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
    use burn::tensor::Device;

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
    fn gradients_are_those_of_the_composed_operation() {
        let device = Device::flex().autodiff();
        let data: Vec<f32> = (0..40_000)
            .map(|i| (i as f32 / 40_000.0 - 0.5) * 16.0)
            .collect();
        let run = |f: fn(Tensor<2>) -> Tensor<2>| {
            let x = Tensor::<1>::from_floats(data.as_slice(), &device).require_grad();
            // A transposed input: its numbers do not lie in a row.
            let y = f(x.clone().reshape([200, 200]).transpose());
            let weights = Tensor::<1>::from_floats(data.as_slice(), &device).reshape([200, 200]);
            let gradients = (y.clone() * weights).sum().backward();
            let gradient = x.grad(&gradients).expect("it has one");
            (y.into_data(), gradient.into_data())
        };
        let composed =
            |x: Tensor<2>| x.clone() * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
        let ((y, gradient), (want_y, want_gradient)) = (run(gelu), run(composed));
        let tolerance = burn::tensor::Tolerance::<f32>::absolute(4e-6);
        y.assert_approx_eq(&want_y, tolerance);
        gradient.assert_approx_eq(&want_gradient, tolerance);
    }
}
