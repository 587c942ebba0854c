//! The weighted sum of two tensors with learned factors.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use crate::elementary::sum;
use crate::flex::{self, from_vec, values, values_mut};
use crate::memory::bytes;
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::{CHUNK, each};

/// `factors[0] x + factors[1] y` in the last D columns of `x`. Earlier columns are copied.
///
/// # Shapes
/// `x: [.., C]`, `y: [.., D]` with D at most C, `factors: [2]` -> `[.., C]`
pub fn mix<const N: usize>(x: Tensor<N>, y: Tensor<N>, factors: Tensor<1>) -> Tensor<N> {
    let (columns, mixed) = (x.dims()[N - 1], y.dims()[N - 1]);
    assert!(mixed <= columns && factors.dims() == [2], "{mixed} of {columns} columns");
    if !flex::is_for(&x) {
        return composed_mix(x, y, factors);
    }
    let inputs = vec![x.into_dispatch(), y.into_dispatch(), factors.into_dispatch()];
    Tensor::from_dispatch(apply_on_flex(inputs, Mix { columns, mixed }))
}

/// The bytes that [`mix`] saves in training: its inputs, since the factors have gradients. Inputs that are held anyway
/// are left out.
///
/// # Shapes
/// `x: [B, T, C]`, `y: [B, T, D]`
pub fn saved_bytes(x: [usize; 3], y: Option<[usize; 3]>) -> f64 {
    bytes(x) + y.map_or(0.0, bytes)
}

pub(crate) fn composed_mix<const N: usize>(x: Tensor<N>, y: Tensor<N>, factors: Tensor<1>) -> Tensor<N> {
    let (columns, mixed) = (x.dims()[N - 1], y.dims()[N - 1]);
    let [a, b] = [0, 1].map(|i| factors.clone().narrow(0, i, 1).unsqueeze::<N>()); // [1, ..]
    let before = columns - mixed;
    if before == 0 {
        return x * a + y * b;
    }
    let sums = x.clone().narrow(N - 1, before, mixed) * a + y * b;
    Tensor::cat(vec![x.narrow(N - 1, 0, before), sums], N - 1)
}

/// The number of columns of `x`, and how many of them are mixed with `y`.
#[derive(Clone, Copy, Debug)]
struct Mix {
    columns: usize,
    mixed: usize,
}

impl Mix {
    /// The rows per task. They depend on the shape alone, so results do not depend on the number of threads.
    fn rows(self) -> usize {
        (CHUNK / self.columns.max(1)).max(1)
    }
}

/// Inputs: x, y, factors.
impl FlexOperation for Mix {
    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let saved = if wanted.any() { inputs.clone() } else { Vec::new() };
        let [y, factors] = [1, 2].map(|i| inputs[i].clone());
        let mut out = inputs.swap_remove(0);
        let factors = [values(&factors)[0], values(&factors)[1]];
        let x = values_mut(&mut out);
        let Self { columns, mixed } = *self;
        each(
            x.len(),
            x.chunks_mut(self.rows() * columns).zip(values(&y).chunks(self.rows() * mixed)),
            #[inline(always)]
            move |(x, y)| {
                for (x, y) in x.chunks_exact_mut(columns).zip(y.chunks_exact(mixed)) {
                    for (x, y) in x[columns - mixed..].iter_mut().zip(y) {
                        *x = factors[0] * *x + factors[1] * y;
                    }
                }
            },
        );
        (out, saved)
    }

    fn backward(&self, saved: Vec<FlexTensor>, mut gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let [x, y, factors] = [0, 1, 2].map(|i| values(&saved[i]));
        let factors = [factors[0], factors[1]];
        let mut grad_y = vec![0.0; y.len()];
        let Self { columns, mixed } = *self;
        let (of_x, of_y) = (self.rows() * columns, self.rows() * mixed);
        // Each task sums the gradients of the factors over its rows; the sums of the tasks are then added in order.
        let mut sums = vec![[0.0_f32; 2]; x.len().div_ceil(of_x)];
        let inputs = x.chunks(of_x).zip(y.chunks(of_y));
        let outputs = values_mut(&mut gradient).chunks_mut(of_x).zip(grad_y.chunks_mut(of_y)).zip(&mut sums);
        each(
            x.len(),
            inputs.zip(outputs),
            // Overwrites the gradient of the output with that of x.
            #[inline(always)]
            move |((x, y), ((gradient, grad_y), sums))| {
                let inputs = x.chunks_exact(columns).zip(y.chunks_exact(mixed));
                let outputs = gradient.chunks_exact_mut(columns).zip(grad_y.chunks_exact_mut(mixed));
                for ((x, y), (gradient, grad_y)) in inputs.zip(outputs) {
                    let gradient = &mut gradient[columns - mixed..];
                    sums[0] += sum(gradient, &x[columns - mixed..], |gradient, x| gradient * x);
                    sums[1] += sum(gradient, y, |gradient, y| gradient * y);
                    for (gradient, grad_y) in gradient.iter_mut().zip(grad_y) {
                        *grad_y = factors[1] * *gradient;
                        *gradient *= factors[0];
                    }
                }
            },
        );
        let total = |i: usize| sums.iter().map(|sums| sums[i]).sum::<f32>();
        let grad_factors = from_vec(vec![total(0), total(1)], [2]);
        let grad_y = flex::tensor(grad_y, &saved[1]);
        vec![Some(gradient), Some(grad_y), Some(grad_factors)]
    }
}
