//! Elementary functions, sums and softmax, in a form that compilers vectorize.
//!
//! A sum has a fixed number of lanes, added in a fixed order, since Rust never reorders floating-point arithmetic.

use pulp::{Simd, WithSimd};

use crate::simd;

/// The number of lanes (running sums) of a sum: one register of AVX-512, two of AVX2, four of NEON.
pub(super) const LANES: usize = 16;

/// The sum of `f(a[i], b[i])` over two slices of equal length.
#[inline(always)]
pub(super) fn sum(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    sum_in_lanes::<LANES>(a, b, f)
}

/// Like [`sum`], with L lanes.
#[inline(always)]
pub(super) fn sum_in_lanes<const L: usize>(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; L];
    let (a, a_rest) = a.as_chunks::<L>();
    let (b, b_rest) = b.as_chunks::<L>();
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(*a, *b);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += f(*a, *b);
    }
    total(lanes)
}

#[inline(always)]
pub(super) fn total<const L: usize>(lanes: [f32; L]) -> f32 {
    by_halves(lanes, |a, b| a + b)
}

/// Reduces the lanes to one scalar with `f`, combining two halves until a single lane is left.
#[inline(always)]
pub(super) fn by_halves<const L: usize>(mut lanes: [f32; L], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = L / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub(super) fn add_to(sums: &mut [f32], x: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum += x;
    }
}

/// `a b + c`: one fused multiply-add (rounded once, twice as fast) if the CPU has it, otherwise two operations.
#[inline(always)]
pub(super) fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::IS_SCALAR { a * b + c } else { fused::<S>(a, b, c) }
}

/// `a b + c`, rounded once: by an instruction if the CPU has it.
#[inline(always)]
#[allow(clippy::disallowed_methods, reason = "the instruction")]
pub(super) fn fused<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::IS_SCALAR { libm::fmaf(a, b, c) } else { a.mul_add(b, c) }
}

/// `c[0] + c[1] x + c[2] x^2 + ..`
#[inline(always)]
pub(super) fn polynomial<S: Simd, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    // A plain loop: a compiler unrolls an uncommon iterator only after trying to vectorize the loop around it.
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma::<S>(sum, x, c[i]);
    }
    sum
}

/// `e^x` for x <= 0, with a relative error below 2e-7. For x below -87 the result stays at `e^-87`, close to the
/// smallest normal f32.
///
/// `e^x = 2^n e^r` with an integer n and `|r| <= ln(2) / 2`; `e^r` is computed by its Taylor series.
#[inline(always)]
pub(super) fn exp<S: Simd>(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer: f32 has no bits left for a fraction.
    const ROUND: f32 = 12_582_912.0;
    // ln(2) in two parts: the first has so few bits that its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const SERIES: [f32; 7] = [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0];
    // `max` would drop NaN and hide that a run has diverged.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = fma::<S>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<S>(n, -LN_2_LOW, fma::<S>(n, -LN_2_HIGH, x));
    // The low bits of `shifted` are n: add the exponent bias and shift the sum into the exponent of an f32.
    polynomial::<S, _>(r, SERIES) * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// `1 / (1 + e^-x)`, to within 3e-7.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(x: f32) -> f32 {
    sigmoid_and_slope::<S>(x).0
}

#[inline(always)]
fn sigmoid_and_slope<S: Simd>(x: f32) -> (f32, f32) {
    let small = exp::<S>(-x.abs());
    let share = 1.0 / (1.0 + small);
    let tail = small * share; // the sigmoid of -|x|
    (if x < 0.0 { tail } else { share }, tail * share)
}

/// The normal distribution function and its density at `x`, both to within 2e-7.
///
/// Source: Abramowitz and Stegun 1964, "Handbook of Mathematical Functions", 7.1.26: for z >= 0,
/// `erf(z) = 1 - (a1 t + .. + a5 t^5) exp(-z^2)` with `t = 1 / (1 + p z)`, to within 1.5e-7. The density is the same
/// `exp(-z^2)` up to a constant factor.
#[inline(always)]
pub(super) fn phi<S: Simd>(x: f32) -> (f32, f32) {
    const P: f32 = 0.327_591_1;
    const A: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / fma::<S>(P, z, 1.0);
    let series = t * polynomial::<S, _>(t, A);
    let exp = exp::<S>(-z * z);
    let tail = 0.5 * series * exp; // the probability beyond |x|
    (if x > 0.0 { 1.0 - tail } else { tail }, INV_SQRT_TAU * exp)
}

/// The tanh approximation of the normal distribution function, and its derivative, at `x`, both to within 3e-7.
///
/// Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2:
/// `0.5 (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is the sigmoid of `2 u`.
#[inline(always)]
pub(super) fn phi_by_tanh<S: Simd>(x: f32) -> (f32, f32) {
    const TWICE_ROOT: f32 = 1.595_769; // 2 sqrt(2 / pi)
    const CUBIC: f32 = TWICE_ROOT * 0.044_715;
    let x = x.clamp(-10.0, 10.0); // beyond that the result is constant, but the cube would overflow
    let square = x * x;
    let (distribution, slope) = sigmoid_and_slope::<S>(x * fma::<S>(CUBIC, square, TWICE_ROOT));
    (distribution, slope * fma::<S>(3.0 * CUBIC, square, TWICE_ROOT))
}

/// `tanh(x)`, with a relative error below 1e-6.
///
/// Near 0 it is computed by its Taylor series: the quotient of exponentials would suffer from cancellation there.
#[inline(always)]
pub(super) fn tanh<S: Simd>(x: f32) -> f32 {
    const SERIES: [f32; 5] = [1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0];
    let small = exp::<S>(-2.0 * x.abs());
    let far = (1.0 - small) / (1.0 + small);
    let near = x * polynomial::<S, _>(x * x, SERIES);
    if x.abs() < 0.3 { near } else { far.copysign(x) }
}

/// Turns logits into `cap tanh(logit / cap)`: see [`crate::softcap`].
pub fn softcap_row(logits: &mut [f32], cap: f32) {
    simd::dispatch(Softcap(logits, cap));
}

struct Softcap<'a>(&'a mut [f32], f32);

impl WithSimd for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(logits, cap) = self;
        for logit in logits {
            *logit = cap * tanh::<S>(*logit / cap);
        }
    }
}

/// Replaces `x` by its softmax and returns its log-sum-exp, `ln(sum(e^x))`.
pub fn log_sum_exp(x: &mut [f32]) -> f32 {
    simd::dispatch(LogSumExp(x))
}

struct LogSumExp<'a>(&'a mut [f32]);

impl WithSimd for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        softmax::<S>(self.0)
    }
}

#[inline(always)]
pub(super) fn softmax<S: Simd>(row: &mut [f32]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = row.as_chunks_mut::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for block in blocks.iter() {
        larger(&mut largest, block);
    }
    larger(&mut largest, &last);
    let max = max(largest);
    let mut sums = [0.0; LANES];
    for block in blocks {
        exps::<S, LANES>(block, max, 1.0, &mut sums);
    }
    if !rest.is_empty() {
        // Padded to a whole block to fill the registers; the exponentials of the padding are too small to change the
        // sum.
        exps::<S, LANES>(&mut last, max, 1.0, &mut sums);
        rest.copy_from_slice(&last[..rest.len()]);
    }
    let sum = total(sums);
    let share = 1.0 / sum;
    for x in row {
        *x *= share;
    }
    max + libm::logf(sum)
}

/// Replaces scores by unnormalized softmax weights, `e^(scale (x - max))`, and adds these to `sums`.
#[inline(always)]
pub(super) fn exps<S: Simd, const L: usize>(block: &mut [f32; L], max: f32, scale: f32, sums: &mut [f32; L]) {
    for (x, sum) in block.iter_mut().zip(sums) {
        *x = exp::<S>((*x - max) * scale);
        *sum += *x;
    }
}

/// Raises `lanes` to their maximum with `block`, lane by lane.
#[inline(always)]
pub(super) fn larger<const L: usize>(lanes: &mut [f32; L], block: &[f32; L]) {
    for (lane, x) in lanes.iter_mut().zip(block) {
        *lane = if *x > *lane { *x } else { *lane };
    }
}

#[inline(always)]
pub(super) fn max<const L: usize>(lanes: [f32; L]) -> f32 {
    by_halves(lanes, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::Scalar;

    /// The normal distribution function, by Simpson's rule.
    fn normal(x: f64) -> f64 {
        let n = 2000;
        let h = x / f64::from(n);
        let part = |i| {
            let a = f64::from(i) * h;
            h / 6.0 * (density(a) + 4.0 * density(a + h / 2.0) + density(a + h))
        };
        0.5 + (0..n).map(part).sum::<f64>()
    }

    fn density(x: f64) -> f64 {
        (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    }

    const ROOT: f64 = 0.797_884_560_802_865_4; // sqrt(2 / pi)

    fn tanh_of_cubic(x: f64) -> f64 {
        (ROOT * (x + 0.044_715 * x.powi(3))).tanh()
    }

    fn slope_by_tanh(x: f64) -> f64 {
        0.5 * (1.0 - tanh_of_cubic(x).powi(2)) * ROOT * (1.0 + 3.0 * 0.044_715 * x * x)
    }

    #[test]
    fn functions_are_accurate_and_keep_nan() {
        type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
        /// Each with its absolute and its relative tolerance.
        const FUNCTIONS: [(Function, f64, f64); 6] = [
            (("phi", |x| phi::<Scalar>(x).0, normal), 3e-7, 0.0),
            (("density", |x| phi::<Scalar>(x).1, density), 1e-7, 0.0),
            (("phi by tanh", |x| phi_by_tanh::<Scalar>(x).0, |x| 0.5 * (1.0 + tanh_of_cubic(x))), 3e-7, 0.0),
            (("slope by tanh", |x| phi_by_tanh::<Scalar>(x).1, slope_by_tanh), 3e-7, 0.0),
            (("sigmoid", sigmoid::<Scalar>, |x| 1.0 / (1.0 + (-x).exp())), 3e-7, 0.0),
            (("tanh", tanh::<Scalar>, f64::tanh), 0.0, 1e-6),
        ];
        for ((name, f, reference), absolute, relative) in FUNCTIONS {
            for i in -2400..=2400 {
                let x = i as f32 / 200.0;
                let (got, want) = (f64::from(f(x)), reference(f64::from(x)));
                assert!((got - want).abs() <= absolute + relative * want.abs(), "{name} of {x}: {got}, not {want}");
            }
            assert!(f(f32::NAN).is_nan(), "{name}");
        }
    }

    #[test]
    fn functions_saturate() {
        for x in [50.0, 1e4, 1e30, f32::MAX] {
            let [below, above] = [-x, x].map(|x| phi::<Scalar>(x).0);
            assert!((above - 1.0).abs() < 1e-7 && (below * x).abs() < 1e-30, "phi of {x}");
            let [below, above] = [-x, x].map(tanh::<Scalar>);
            assert!((above - 1.0).abs() < 1e-7 && (below + 1.0).abs() < 1e-7, "tanh of {x}");
        }
        for x in [50.0, 1e4, 1e30] {
            let [below, above] = [-x, x].map(phi_by_tanh::<Scalar>);
            assert!((above.0 - 1.0).abs() < 1e-7 && (below.0 * x).abs() < 1e-7, "phi by tanh of {x}");
            assert!([below, above].iter().all(|(_, slope)| *slope * x < 1e-5), "slope by tanh of {x}");
        }
        assert!(sigmoid::<Scalar>(-1e4) < 2e-38 && sigmoid::<Scalar>(1e4) > 1.0 - 1e-6);
    }

    #[test]
    fn exp_is_accurate_and_keeps_nan() {
        struct Exp<'a>(&'a mut [f32]);
        impl WithSimd for Exp<'_> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) {
                self.0.iter_mut().for_each(|x| *x = exp::<S>(*x));
            }
        }
        let inputs: Vec<f32> = (0..=87_000).map(|i| i as f32 / -1000.0).collect();
        let small = [-88.0, -1e4, f32::MIN, f32::NEG_INFINITY];
        for level in crate::SimdLevel::available() {
            let mut outputs = inputs.clone();
            level.dispatch(Exp(&mut outputs));
            for (x, got) in inputs.iter().zip(outputs) {
                let want = f64::from(*x).exp();
                assert!((f64::from(got) / want - 1.0).abs() < 2.5e-7, "e^{x} = {got}, not {want}");
            }
            let mut outputs = small;
            level.dispatch(Exp(&mut outputs));
            assert!(outputs.iter().all(|y| (0.0..2e-38).contains(y)), "{outputs:?}");
            let mut nan = [f32::NAN];
            level.dispatch(Exp(&mut nan));
            assert!(nan[0].is_nan());
        }
    }
}
