//! The parts of an optimiser that touch every number: sums of squares, and the update of `AdamW`.

use burn::backend::Flex;
use burn::tensor::{Shape, Tensor};
use pulp::{Simd, WithSimd};

use crate::elementary::sum;
use crate::flex::{self, from_vec, in_f32, map_in_place, primitive, values};
use crate::tasks::run;

/// What one update of a parameter multiplies with and adds.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// What is kept of the running means of gradients and of their squares.
    pub betas: [f64; 2],
    /// The learning rate, over what the first mean's start at zero left of it.
    pub step_size: f64,
    /// One over the square root of what the second mean's start at zero left of it.
    pub second_scale: f64,
    /// What is added to the root of the second mean.
    pub epsilon: f64,
    /// The share of the weights that is taken away.
    pub decay: f64,
}

/// New weights and running means from a gradient, which is multiplied with `factor` first. No `means` are zeros.
///
/// With `g` the gradient: `m = beta_1 m + (1 - beta_1) g`, `v = beta_2 v + (1 - beta_2) g^2`, and
/// `w = (1 - decay) w - step_size m / (second_scale sqrt(v) + epsilon)`.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
///
/// # Shapes
/// `weights, gradient: [n]`, `factor: [1]`, means each `[n]` -> `[n]`, and each `[n]`
#[must_use]
pub fn adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<[Tensor<1>; 2]>,
    update: AdamW,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    if flex::is_for(&weights) {
        return fused_adamw(weights, gradient, factor, means, update);
    }
    composed_adamw(weights, gradient, factor, means, update)
}

/// [`adamw`] by burn's own operations.
fn composed_adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<[Tensor<1>; 2]>,
    update: AdamW,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let AdamW { betas: [beta_1, beta_2], step_size, second_scale, epsilon, decay } = update;
    let gradient = match factor {
        Some(factor) => gradient * factor,
        None => gradient,
    };
    let first = gradient.clone() * (1.0 - beta_1);
    let second = gradient.clone() * gradient * (1.0 - beta_2);
    let (first, second) = match means {
        Some([old_first, old_second]) => (old_first * beta_1 + first, old_second * beta_2 + second),
        None => (first, second),
    };
    let size = second.clone().sqrt() * second_scale + epsilon;
    let change = first.clone() / size * step_size;
    (weights * (1.0 - decay) - change, [first, second])
}

/// Numbers that burn sums in one go: more than these flex shares out among threads as they come, and the sum of
/// a run would differ from that of the next in its last bits.
const MOST_SUMMED: usize = 1 << 20;

/// The sum of all squares, in an order that does not depend on threads.
///
/// # Shapes
/// `[n]` -> `[1]`
///
/// # Panics
/// If there are no numbers.
#[must_use]
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    if flex::is_for(&x) {
        return fused_sum_of_squares(x);
    }
    composed_sum_of_squares(x)
}

/// [`sum_of_squares`] by burn's own operations.
fn composed_sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    let parts = x.split(MOST_SUMMED, 0).into_iter();
    let squares = parts.map(|part| (part.clone() * part).sum());
    squares.reduce(|sum, square| sum + square).expect("a parameter has numbers")
}

/// Numbers that one task takes.
const CHUNK: usize = 16 * 1024;

/// [`sum_of_squares`] of f32 on flex.
///
/// Sums of chunks are f32, and the sum of them is f64: a norm of many parameters loses nothing by their number.
fn fused_sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    let x = primitive(x).to_contiguous();
    let x = values(&x);
    assert!(!x.is_empty(), "a parameter has numbers");
    let mut sums = vec![0.0; x.len().div_ceil(CHUNK)];
    let tasks = sums.iter_mut().zip(x.chunks(CHUNK));
    run(x.len(), tasks.map(|(sum, x)| Squares { x, sum }));
    let total: f64 = sums.into_iter().map(f64::from).sum();
    let total = vec![in_f32(total)];
    Tensor::from_primitive::<Flex>(from_vec(total, Shape::new([1])))
}

struct Squares<'a> {
    x: &'a [f32],
    sum: &'a mut f32,
}

impl WithSimd for Squares<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        *self.sum = sum(self.x, self.x, |a, b| a * b);
    }
}

/// [`adamw`] of f32 on flex: in place, unless somebody else holds the weights or means.
fn fused_adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<[Tensor<1>; 2]>,
    update: AdamW,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let gradient = primitive(gradient).to_contiguous();
    let gradient = values(&gradient);
    let factor = factor.map_or(1.0, |factor| values(&primitive(factor).to_contiguous())[0]);
    let [first, second] = match means {
        Some(means) => means.map(primitive),
        None => [(); 2].map(|()| from_vec(vec![0.0; gradient.len()], Shape::new([gradient.len()]))),
    };
    let rates = Rates::new(update, factor);
    let (mut new_first, mut new_second) = (None, None);
    let weights = map_in_place(primitive(weights), |weights| {
        new_first = Some(map_in_place(first, |first| {
            new_second = Some(map_in_place(second, |second| {
                assert!([weights.len(), first.len(), second.len()] == [gradient.len(); 3], "as many numbers of each");
                let tasks = weights
                    .chunks_mut(CHUNK)
                    .zip(gradient.chunks(CHUNK))
                    .zip(first.chunks_mut(CHUNK).zip(second.chunks_mut(CHUNK)));
                run(
                    gradient.len(),
                    tasks.map(|((weights, gradient), (first, second))| Update {
                        weights,
                        gradient,
                        first,
                        second,
                        rates,
                    }),
                );
            }));
        }));
    });
    let means = [new_first, new_second].map(|mean| mean.expect("it was written"));
    let tensor = Tensor::from_primitive::<Flex>;
    (tensor(weights), means.map(tensor))
}

/// [`AdamW`] in the precision that it computes in.
#[derive(Clone, Copy, Debug)]
struct Rates {
    factor: f32,
    betas: [f32; 2],
    /// One minus each beta.
    news: [f32; 2],
    step_size: f32,
    second_scale: f32,
    epsilon: f32,
    kept: f32,
}

impl Rates {
    fn new(update: AdamW, factor: f32) -> Self {
        Self {
            factor,
            betas: update.betas.map(in_f32),
            news: update.betas.map(|beta| in_f32(1.0 - beta)),
            step_size: in_f32(update.step_size),
            second_scale: in_f32(update.second_scale),
            epsilon: in_f32(update.epsilon),
            kept: in_f32(1.0 - update.decay),
        }
    }
}

struct Update<'a> {
    weights: &'a mut [f32],
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    rates: Rates,
}

impl WithSimd for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rates { factor, betas, news, step_size, second_scale, epsilon, kept } = self.rates;
        let means = self.first.iter_mut().zip(self.second);
        let numbers = self.weights.iter_mut().zip(self.gradient).zip(means);
        for ((weight, gradient), (first, second)) in numbers {
            let gradient = gradient * factor;
            *first = *first * betas[0] + gradient * news[0];
            *second = *second * betas[1] + gradient * gradient * news[1];
            let size = second.sqrt() * second_scale + epsilon;
            *weight = *weight * kept - *first / size * step_size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flex::testing::{assert_close, noise, numbers, with_threads};
    use burn::tensor::Device;

    fn constant(n: usize, seed: u32) -> Tensor<1> {
        Tensor::from_floats(noise(n, seed).as_slice(), &Device::flex())
    }

    const SIZES: [usize; 5] = [1, 7, 1000, CHUNK + 1, 5 * CHUNK - 3];

    const UPDATE: AdamW = AdamW { betas: [0.9, 0.99], step_size: 0.02, second_scale: 3.0, epsilon: 1e-8, decay: 0.01 };

    type Operation =
        fn(Tensor<1>, Tensor<1>, Option<Tensor<1>>, Option<[Tensor<1>; 2]>, AdamW) -> (Tensor<1>, [Tensor<1>; 2]);

    /// Weights and means after two steps, of which the second is clipped.
    fn two_steps(f: Operation, n: usize) -> Vec<Vec<f32>> {
        let (weights, means) = f(constant(n, 1), constant(n, 2), None, None, UPDATE);
        let factor = Tensor::from_floats([0.25], &Device::flex());
        let (weights, [first, second]) = f(weights, constant(n, 3), Some(factor), Some(means), UPDATE);
        [weights, first, second].map(numbers).into()
    }

    #[test]
    fn updates_are_those_of_the_composed_operations() {
        for n in SIZES {
            let [got, want] = [fused_adamw, composed_adamw].map(|f: Operation| two_steps(f, n));
            assert_close(&got, &want, &format!("{n} numbers"));
        }
    }

    #[test]
    fn an_update_leaves_others_what_they_hold() {
        let (weights, gradient) = (constant(100, 1), constant(100, 2));
        let before = numbers(weights.clone());
        let (new, _) = adamw(weights.clone(), gradient, None, None, UPDATE);
        assert_eq!(numbers(weights), before);
        assert_ne!(numbers(new), before);
    }

    #[test]
    fn sums_of_squares_are_those_of_the_composed_operations() {
        for n in SIZES {
            let [got, want] = [fused_sum_of_squares, composed_sum_of_squares]
                .map(|f: fn(Tensor<1>) -> Tensor<1>| vec![numbers(f(constant(n, 1)))]);
            assert_close(&got, &want, &format!("{n} numbers"));
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        let bytes = |threads| {
            let got = with_threads(threads, || {
                let squares = numbers(sum_of_squares(constant(9 * CHUNK, 1)));
                [two_steps(fused_adamw, 3 * CHUNK + 5), vec![squares]].concat()
            });
            got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bytes(1), bytes(2));
    }
}
