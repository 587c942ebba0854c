//! The elementwise operations of an optimizer (the updates of weights and running means), and sums of squares.

use burn::backend::Flex;
use burn::tensor::Tensor;

use crate::elementary::sum;
use crate::flex::{self, from_vec, in_f32, primitive, values, values_mut};
use crate::tasks::each;

/// The hyperparameters of one AdamW update, with the bias corrections of its step.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// The decay rates of the running mean of the gradients (first) and of their squares (second).
    pub betas: [f64; 2],
    /// The learning rate divided by the bias correction of the first mean.
    pub step_size: f64,
    /// One over the square root of the bias correction of the second mean.
    pub second_scale: f64,
    /// Added to the bias-corrected root of the second mean.
    pub epsilon: f64,
    /// The fraction of the weights subtracted from them: learning rate times weight decay.
    pub decay: f64,
}

/// A pair of running means or directions, each `[n]`.
type Means = [Tensor<1>; 2];

/// Returns the new weights and running means after one AdamW update. The gradient is first multiplied by `factor`;
/// without `means` the update starts from zeros.
///
/// With the gradient `g`: `m = beta_1 m + (1 - beta_1) g`, `v = beta_2 v + (1 - beta_2) g^2`, and
/// `w = (1 - decay) w - step_size m / (second_scale sqrt(v) + epsilon)`.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
///
/// # Shapes
/// `weights, gradient: [n]`, `factor: [1]`, `means`: two `[n]` -> `[n]` and two `[n]`
pub fn adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<Means>,
    update: AdamW,
) -> (Tensor<1>, Means) {
    if !flex::is_for(&weights) {
        return composed_adamw(weights, gradient, factor, means, update);
    }
    // In place, unless the weights or means are shared.
    let gradient = primitive(gradient).to_contiguous();
    let (gradient, factor) = (values(&gradient), scalar_or_one(factor));
    let n = gradient.len();
    let mut weights = primitive(weights);
    let [mut first, mut second] = match means {
        Some(means) => means.map(primitive),
        None => [(); 2].map(|()| from_vec(vec![0.0; n], [n])),
    };
    let scalars = [&mut weights, &mut first, &mut second].map(values_mut);
    assert!(scalars.iter().all(|scalars| scalars.len() == n), "all tensors have the same length");
    let [weight_chunks, first_chunks, second_chunks] = scalars.map(|scalars| scalars.chunks_mut(CHUNK));
    let AdamW { betas, step_size, second_scale, epsilon, decay } = update;
    let news = betas.map(|beta| in_f32(1.0 - beta));
    let betas = betas.map(in_f32);
    let [step_size, second_scale, epsilon, kept] = [step_size, second_scale, epsilon, 1.0 - decay].map(in_f32);
    each(
        n,
        weight_chunks.zip(gradient.chunks(CHUNK)).zip(first_chunks.zip(second_chunks)),
        #[inline(always)]
        move |((weights, gradient), (first, second))| {
            let scalars = weights.iter_mut().zip(gradient).zip(first.iter_mut().zip(second));
            for ((weight, gradient), (first, second)) in scalars {
                let gradient = gradient * factor;
                *first = *first * betas[0] + gradient * news[0];
                *second = *second * betas[1] + gradient * gradient * news[1];
                let size = second.sqrt() * second_scale + epsilon;
                *weight = *weight * kept - *first / size * step_size;
            }
        },
    );
    let tensor = Tensor::from_primitive::<Flex>;
    (tensor(weights), [first, second].map(tensor))
}

pub(crate) fn composed_adamw(
    weights: Tensor<1>,
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    means: Option<Means>,
    update: AdamW,
) -> (Tensor<1>, Means) {
    let AdamW { betas: [beta_1, beta_2], step_size, second_scale, epsilon, decay } = update;
    let gradient = scaled(gradient, factor);
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

/// Returns the Nesterov update, and the running mean of the gradients including this one. The update is the running
/// mean as if the same gradient came a second time. The gradient is first multiplied by `factor`; without a `mean` the
/// running mean starts from zeros.
///
/// Source: Nesterov 1983, as in <https://github.com/KellerJordan/Muon>, `muon_update`.
///
/// # Shapes
/// `gradient, mean: [n]`, `factor: [1]` -> `[n]` each
pub fn nesterov(gradient: Tensor<1>, factor: Option<Tensor<1>>, mean: Option<Tensor<1>>, momentum: f64) -> Means {
    if !flex::is_for(&gradient) {
        return composed_nesterov(gradient, factor, mean, momentum);
    }
    // In place, unless the gradient or the mean is shared.
    let factor = scalar_or_one(factor);
    let mut update = primitive(gradient);
    let n = update.layout().num_elements();
    let mut mean = mean.map_or_else(|| from_vec(vec![0.0; n], [n]), primitive);
    let scalars = [&mut update, &mut mean].map(values_mut);
    assert!(scalars.iter().all(|scalars| scalars.len() == n), "all tensors have the same length");
    let [update_chunks, mean_chunks] = scalars.map(|scalars| scalars.chunks_mut(CHUNK));
    let (share, momentum) = (in_f32(1.0 - momentum), in_f32(momentum));
    each(
        n,
        update_chunks.zip(mean_chunks),
        #[inline(always)]
        move |(gradient, mean)| {
            for (gradient, mean) in gradient.iter_mut().zip(mean) {
                let new = *gradient * factor * share;
                *mean = *mean * momentum + new;
                *gradient = *mean * momentum + new;
            }
        },
    );
    [update, mean].map(Tensor::from_primitive::<Flex>)
}

pub(crate) fn composed_nesterov(
    gradient: Tensor<1>,
    factor: Option<Tensor<1>>,
    mean: Option<Tensor<1>>,
    momentum: f64,
) -> Means {
    let new = scaled(gradient, factor) * (1.0 - momentum);
    let mean = match mean {
        Some(old) => old * momentum + new.clone(),
        None => new.clone(),
    };
    [mean.clone() * momentum + new, mean]
}

fn scalar_or_one(factor: Option<Tensor<1>>) -> f32 {
    factor.map_or(1.0, |factor| values(&primitive(factor).to_contiguous())[0])
}

fn scaled(gradient: Tensor<1>, factor: Option<Tensor<1>>) -> Tensor<1> {
    match factor {
        Some(factor) => gradient * factor,
        None => gradient,
    }
}

/// `(1 - decay) weights - step_size direction`.
///
/// # Shapes
/// `weights, direction: [n]` -> `[n]`
pub fn descend(weights: Tensor<1>, direction: Tensor<1>, step_size: f64, decay: f64) -> Tensor<1> {
    if !flex::is_for(&weights) {
        return composed_descend(weights, direction, step_size, decay);
    }
    let [kept, step_size] = [1.0 - decay, step_size].map(in_f32);
    in_place(
        weights,
        direction,
        #[inline(always)]
        move |(weights, direction)| {
            for (weight, direction) in weights.iter_mut().zip(direction) {
                *weight = *weight * kept - direction * step_size;
            }
        },
    )
}

pub(crate) fn composed_descend(weights: Tensor<1>, direction: Tensor<1>, step_size: f64, decay: f64) -> Tensor<1> {
    weights * (1.0 - decay) - direction * step_size
}

/// `mean + share (x - mean)`: the update of a running mean.
///
/// # Shapes
/// `mean, x: [n]` -> `[n]`
pub fn lerp(mean: Tensor<1>, x: Tensor<1>, share: f64) -> Tensor<1> {
    if !flex::is_for(&mean) {
        return composed_lerp(mean, x, share);
    }
    let share = in_f32(share);
    in_place(
        mean,
        x,
        #[inline(always)]
        move |(mean, x)| {
            for (mean, x) in mean.iter_mut().zip(x) {
                *mean += (x - *mean) * share;
            }
        },
    )
}

/// Updates chunks of `x` by those of `y`: in place, unless `x` is shared.
fn in_place(x: Tensor<1>, y: Tensor<1>, update: impl Fn((&mut [f32], &[f32])) + Copy + Send) -> Tensor<1> {
    let y = primitive(y).to_contiguous();
    let y = values(&y);
    let mut x = primitive(x);
    let scalars = values_mut(&mut x);
    assert_eq!(scalars.len(), y.len(), "both tensors have the same length");
    each(y.len(), scalars.chunks_mut(CHUNK).zip(y.chunks(CHUNK)), update);
    Tensor::from_primitive::<Flex>(x)
}

pub(crate) fn composed_lerp(mean: Tensor<1>, x: Tensor<1>, share: f64) -> Tensor<1> {
    mean.clone() + (x - mean) * share
}

/// The largest number of elements that burn sums in a fixed order. Flex divides a longer sum among threads dynamically,
/// so its last bits would differ between runs.
const MOST_SUMMED: usize = 1 << 20;

/// The sum of all squares, in an order that does not depend on the number of threads.
///
/// # Shapes
/// `[n]` -> `[1]`
///
/// # Panics
/// If `x` is empty.
pub fn sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    if !flex::is_for(&x) {
        return composed_sum_of_squares(x);
    }
    // Each chunk is summed in f32, and the sums of the chunks in f64, so the norm of many parameters stays accurate.
    let x = primitive(x).to_contiguous();
    let x = values(&x);
    assert!(!x.is_empty(), "parameters are not empty");
    let mut sums = vec![0.0; x.len().div_ceil(CHUNK)];
    each(
        x.len(),
        sums.iter_mut().zip(x.chunks(CHUNK)),
        #[inline(always)]
        move |(squares, x)| *squares = sum(x, x, |a, b| a * b),
    );
    let total: f64 = sums.into_iter().map(f64::from).sum();
    Tensor::from_primitive::<Flex>(from_vec(vec![in_f32(total)], [1]))
}

pub(crate) fn composed_sum_of_squares(x: Tensor<1>) -> Tensor<1> {
    if !flex::is_host(&x.device()) {
        return sum_of_squares_by_rows(x);
    }
    let parts = x.split(MOST_SUMMED, 0).into_iter();
    let squares = parts.map(|part| (part.clone() * part).sum());
    squares.reduce(|sum, square| sum + square).expect("parameters are not empty")
}

/// The elements that a GPU sums as one row.
const ROW: usize = 1 << 14;

/// The sum of all squares in at most two kernels: burn fuses the products with the sums of rows, but not with the sum of
/// a whole tensor, which also adds the parts of some GPUs in any order.
fn sum_of_squares_by_rows(x: Tensor<1>) -> Tensor<1> {
    let [n] = x.dims();
    let n_rows = if n > ROW { 1 << n.trailing_zeros().min(10) } else { 1 };
    let x = x.reshape([n_rows, n / n_rows]);
    let sums = (x.clone() * x).sum_dim(1); // [n_rows, 1]
    let sum = if n_rows > 1 { sums.sum_dim(0) } else { sums };
    sum.reshape([1])
}

/// The mean square of each column, summed in an order that does not depend on the number of threads.
///
/// # Shapes
/// `x: [m, n]` -> `[n]`
pub fn mean_squares_of_columns(x: Tensor<2>) -> Tensor<1> {
    if !flex::is_for(&x) {
        return composed_mean_squares(x);
    }
    let [m, n] = x.dims();
    let x = primitive(x).to_contiguous();
    let x = values(&x);
    let mut means = vec![0.0_f32; n];
    each(
        m * n,
        means.chunks_mut(COLUMNS).enumerate(),
        #[inline(always)]
        move |(i, means)| {
            for row in x.chunks_exact(n) {
                for (sum, x) in means.iter_mut().zip(&row[i * COLUMNS..]) {
                    *sum += x * x;
                }
            }
        },
    );
    let means = means.into_iter().map(|sum| sum / in_f32(m as f64)).collect();
    Tensor::from_primitive::<Flex>(from_vec(means, [n]))
}

pub(crate) fn composed_mean_squares(x: Tensor<2>) -> Tensor<1> {
    let [_, n] = x.dims();
    (x.clone() * x).mean_dim(0).reshape([n])
}

/// The columns per task, several cache lines wide.
const COLUMNS: usize = 64;

/// The elements per task.
const CHUNK: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{constant, scalars};

    const UPDATE: AdamW = AdamW { betas: [0.9, 0.99], step_size: 0.02, second_scale: 3.0, epsilon: 1e-8, decay: 0.01 };

    #[test]
    fn sum_by_rows_equals_sum_of_squares() {
        for n in [1, 3, ROW, ROW + 1, 2 * ROW, 3 * ROW + 96] {
            let x = constant::<1>([n], 1).inner();
            let [got, want] = [sum_of_squares_by_rows(x.clone()), sum_of_squares(x)].map(|x| x.into_scalar::<f32>());
            assert!((got - want).abs() < 1e-5 * want, "{n}: {got}, not {want}");
        }
    }

    #[test]
    fn updates_keep_shared_tensors() {
        let constant = |seed| constant::<1>([100], seed).inner();
        let (weights, gradient) = (constant(1), constant(2));
        let before = scalars(weights.clone());
        let (new, _) = adamw(weights.clone(), gradient, None, None, UPDATE);
        assert_eq!(scalars(weights.clone()), before);
        assert_ne!(scalars(new), before);
        let gradient = constant(2);
        let _ = nesterov(gradient.clone(), None, Some(weights.clone()), 0.5);
        assert_eq!(scalars(gradient), scalars(constant(2)));
        let new = descend(weights.clone(), constant(3), 0.5, 0.0);
        assert_eq!(scalars(weights.clone()), before);
        assert_ne!(scalars(new), before);
        let new = lerp(weights.clone(), constant(3), 0.5);
        assert_eq!(scalars(weights), before);
        assert_ne!(scalars(new), before);
    }
}
