//! Fused cross-entropy from hidden states, which holds the logits of only a few rows at a time.
//!
//! The gradients of the mean loss are known up to one factor, which the backward pass provides. The forward pass
//! therefore computes them together with the loss, while the logits are available.

use std::marker::PhantomData;
use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor};
use pulp::{Simd, WithSimd};

use super::{IGNORE_INDEX, MAX_LOSS_LOGITS, Output};
use crate::MatmulPrecision;
use crate::elementary::{softmax, tanh};
use crate::flex::{from_vec, in_f32, matrix, tensor, values, values_mut};
use crate::gemm::{Bf16x2, Element, Matrix, MatrixMut, Packed, Role, RowMajor, StoreMode, Transposed, WIDTH, store};
use crate::op::{FlexOperation, Wanted, apply_on_flex};
use crate::tasks::{CHUNK, each, run};

/// The sizes of the chunks in which the loss is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of logits in a chunk of rows, unless a single row has more.
    logits: usize,
    /// The weights in a block of tokens.
    weights: usize,
}

/// The limits, unless a test sets smaller ones.
pub(super) const LIMITS: Limits = Limits { logits: MAX_LOSS_LOGITS, weights: 1 << 22 };

impl Limits {
    /// The blocks of the vocabulary whose gradients of logits are packed together.
    fn blocks(self, vocab_size: usize, c: usize) -> impl Iterator<Item = Range<usize>> {
        let block = (self.weights / c).next_multiple_of(WIDTH).max(WIDTH);
        (0..vocab_size).step_by(block).map(move |first| first..vocab_size.min(first + block))
    }
}

/// [`crate::cross_entropy`] for f32 on flex.
pub(super) fn cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
    cap: Option<f64>,
    precision: MatmulPrecision,
    limits: Limits,
) -> Tensor<1> {
    let (targets, by_token, cap) = (Counted::new(targets), matches!(output, Output::Tied(_)), cap.map(in_f32));
    let (Output::Tied(weight) | Output::Own(weight)) = output;
    let inputs = vec![hidden.into_dispatch(), weight.into_dispatch()];
    Tensor::from_dispatch(match precision {
        MatmulPrecision::F32 => {
            apply_on_flex(inputs, CrossEntropy::<f32> { targets, by_token, cap, limits, elements: PhantomData })
        }
        MatmulPrecision::Bf16 => {
            apply_on_flex(inputs, CrossEntropy::<Bf16x2> { targets, by_token, cap, limits, elements: PhantomData })
        }
    })
}

#[derive(Clone, Debug)]
struct Counted {
    /// The number of rows, including ignored ones.
    n_rows: usize,
    rows: Vec<usize>,
    tokens: Vec<usize>,
}

impl Counted {
    fn new(targets: Tensor<1, Int>) -> Self {
        let [n_rows] = targets.dims();
        let targets = targets.into_data();
        let targets = targets.iter::<i64>().enumerate().filter(|(_, target)| *target != i64::from(IGNORE_INDEX));
        let (rows, tokens) =
            targets.map(|(row, target)| (row, usize::try_from(target).expect("targets are not negative"))).unzip();
        Self { n_rows, rows, tokens }
    }

    /// Their rows of `hidden`; `None` if all rows count.
    fn selected(&self, hidden: Matrix<'_>) -> Option<Vec<f32>> {
        let is_part = self.rows.len() < self.n_rows;
        is_part.then(|| self.rows.iter().flat_map(|row| hidden.row(*row)).copied().collect())
    }

    /// Gradients of all rows `[N, C]`, which are zero for ignored rows, from those of [`Counted::selected`] rows.
    fn scattered(&self, selected: &[f32], c: usize) -> Vec<f32> {
        let mut all = vec![0.0; self.n_rows * c];
        for (row, gradient) in self.rows.iter().zip(selected.chunks_exact(c)) {
            all[row * c..][..c].copy_from_slice(gradient);
        }
        all
    }
}

/// Inputs: hidden states `[N, C]`, and weights `[V, C]` if `by_token`, else `[C, V]`.
///
/// `E` is the element type of the products for gradients. Logits are always in f32: no later operation would even out
/// their rounding errors, which would change the loss more than those of all other products of a model together.
#[derive(Debug)]
struct CrossEntropy<E> {
    targets: Counted,
    by_token: bool,
    cap: Option<f32>,
    limits: Limits,
    elements: PhantomData<E>,
}

impl<E: Element> FlexOperation for CrossEntropy<E> {
    /// Saves the gradients, each empty if it is not wanted.
    fn forward(&self, inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let [of_hidden, of_weight] = [0, 1].map(|input| wanted.of(input));
        let (hidden, weight) = (matrix(&inputs[0]), matrix(&inputs[1]));
        let projection = if self.by_token { weight.transposed() } else { weight }; // [C, V]
        let [c, vocab_size] = [projection.n_rows(), projection.n_columns()];
        let targets = &self.targets.tokens;
        assert!(targets.iter().all(|target| *target < vocab_size), "targets below {vocab_size}");
        let n = targets.len();
        let selected = self.targets.selected(hidden);
        let hidden = selected.as_deref().map_or(hidden, |selected| Matrix::new(selected, [n, c]));
        let mut grad_hidden = vec![0.0; if of_hidden { n * c } else { 0 }];
        let mut grad_weight = vec![0.0; if of_weight { c * vocab_size } else { 0 }];
        let mut losses = vec![0.0; n];
        let share = in_f32(1.0 / n as f64);
        let rows = (self.limits.logits / vocab_size).max(1);
        let mut logits = vec![0.0; rows.min(n) * vocab_size];
        for first in (0..n).step_by(rows) {
            let rows = rows.min(n - first);
            let logits = &mut logits[..rows * vocab_size];
            let hidden = hidden.rows(first, rows);
            {
                let [hidden] = Packed::<f32>::all([(hidden, Role::Left)]);
                let logits = MatrixMut::new(logits, [rows, vocab_size]);
                store(StoreMode::Overwrite, logits, RowMajor(hidden.left()), &projection, &[]);
            }
            let task_rows = (CHUNK / vocab_size).max(1);
            let tasks = logits
                .chunks_mut(task_rows * vocab_size)
                .zip(losses[first..first + rows].chunks_mut(task_rows))
                .zip(targets[first..first + rows].chunks(task_rows));
            run(
                rows * vocab_size,
                tasks.map(|((logits, losses), targets)| RowLosses { logits, losses, targets, cap: self.cap, share }),
            );
            if !wanted.any() {
                continue;
            }
            // Packed again, because the products for gradients may use pairs of bfloat16.
            let [hidden] = Packed::<E>::all([(hidden, Role::Right)]);
            let grad_logits = Matrix::new(logits, [rows, vocab_size]);
            let grad_hidden = if of_hidden { &mut grad_hidden[first * c..][..rows * c] } else { &mut [] };
            // Each block of tokens adds its part to the gradients, and so does each chunk of rows, in order.
            for tokens in self.limits.blocks(vocab_size, c) {
                let [grad_logits] = Packed::all([(grad_logits.columns(tokens.clone()), Role::Both)]);
                if of_hidden {
                    let weights = projection.columns(tokens.clone()).transposed();
                    let grad_hidden = MatrixMut::new(grad_hidden, [rows, c]);
                    store(StoreMode::Accumulate, grad_hidden, RowMajor(grad_logits.left()), &weights, &[]);
                }
                if !of_weight {
                    continue;
                }
                let mut grad_weight = MatrixMut::new(&mut grad_weight, [weight.n_rows(), weight.n_columns()]);
                if self.by_token {
                    let grad_weight = grad_weight.rows(tokens.start, tokens.len());
                    store(StoreMode::Accumulate, grad_weight, Transposed(grad_logits.right()), hidden.right(), &[]);
                } else {
                    let grad_weight = grad_weight.columns(tokens);
                    store(StoreMode::Accumulate, grad_weight, Transposed(hidden.right()), grad_logits.right(), &[]);
                }
            }
        }
        if of_hidden && selected.is_some() {
            grad_hidden = self.targets.scattered(&grad_hidden, c);
        }
        let loss = from_vec(vec![mean(&losses)], [1]);
        let gradients = [grad_hidden, grad_weight].into_iter().zip(&inputs).zip([of_hidden, of_weight]);
        let saved = gradients.map(|((gradient, like), is_wanted)| match is_wanted {
            true => tensor(gradient, like),
            false => from_vec(Vec::new(), [0]),
        });
        (loss, saved.collect())
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>> {
        let factor = values(&gradient)[0];
        let scaled = saved.into_iter().enumerate().map(|(input, mut part)| {
            if !wanted.of(input) {
                return None;
            }
            // The gradient of the loss is 1 if the backward pass starts at it.
            if factor.to_bits() != 1.0_f32.to_bits() {
                let part = values_mut(&mut part);
                each(
                    part.len(),
                    part.chunks_mut(CHUNK),
                    #[inline(always)]
                    move |part| {
                        for x in part {
                            *x *= factor;
                        }
                    },
                );
            }
            Some(part)
        });
        scaled.collect()
    }
}

/// The mean of the losses, summed in order in f64; 0 if there are none.
fn mean(losses: &[f32]) -> f32 {
    let sum: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
    in_f32(sum / losses.len().max(1) as f64)
}

/// Replaces rows of logits by their gradients, and writes the losses.
struct RowLosses<'a> {
    /// `[n, V]`
    logits: &'a mut [f32],
    losses: &'a mut [f32],
    targets: &'a [usize],
    cap: Option<f32>,
    /// The weight of one loss in the mean.
    share: f32,
}

impl WithSimd for RowLosses<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let vocab_size = self.logits.len() / self.losses.len();
        let rows = self.logits.chunks_exact_mut(vocab_size);
        let mut slopes = vec![0.0; if self.cap.is_some() { vocab_size } else { 0 }]; // derivatives of the cap
        for ((logits, loss), target) in rows.zip(self.losses).zip(self.targets) {
            if let Some(cap) = self.cap {
                for (logit, slope) in logits.iter_mut().zip(&mut slopes) {
                    let share = tanh::<S>(*logit / cap);
                    (*logit, *slope) = (cap * share, 1.0 - share * share);
                }
            }
            let logit = logits[*target];
            *loss = softmax::<S>(logits) - logit;
            logits[*target] -= 1.0;
            for logit in logits.iter_mut() {
                *logit *= self.share;
            }
            for (logit, slope) in logits.iter_mut().zip(&slopes) {
                *logit *= slope;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Targets, composed_cross_entropy};
    use super::*;
    use crate::MatmulPrecision::{Bf16, F32};
    use crate::testing::{Leaves, assert_within, output_and_gradients_by};
    use burn::tensor::Device;

    /// A loss is a small difference of large numbers, and therefore less accurate than its gradients.
    const SHARE: f32 = 1e-5;

    /// The loss, and the gradients of the loss multiplied by a factor.
    fn run_with_targets(
        f: impl Fn(Tensor<2>, Output, Targets) -> Tensor<1>,
        targets: &[i32],
        [c, vocab_size]: [usize; 2],
        tied: bool,
        factor: f32,
    ) -> Vec<Vec<f32>> {
        let n = targets.len();
        let targets = Targets::new(targets.to_vec(), &Device::flex().autodiff());
        let loss = |leaves: &mut Leaves| {
            let hidden = leaves.next([n, c]);
            let output = match tied {
                true => Output::Tied(leaves.next([vocab_size, c])),
                false => Output::Own(leaves.next([c, vocab_size])),
            };
            f(hidden, output, targets)
        };
        output_and_gradients_by(loss, |loss| loss * factor)
    }

    #[test]
    fn ignored_targets_change_no_loss_and_get_no_gradient() {
        let shape = [6, 40];
        let exact = |hidden, output, targets| crate::cross_entropy(hidden, output, targets, None, F32);
        let composed = |hidden, output, targets| composed_cross_entropy(hidden, output, targets, None);
        let masked = |hidden, output, targets: Targets| composed(hidden, output, targets.tokens.into());
        for tied in [false, true] {
            // The leaves are rows of one sequence of scalars, so that the first rows of a larger matrix are a smaller
            // one.
            let [all, few] =
                [&[7, 3, 39, -1, -1][..], &[7, 3, 39]].map(|t| run_with_targets(exact, t, shape, tied, 0.5));
            assert_eq!((all[0][0].to_bits(), &all[2]), (few[0][0].to_bits(), &few[2]), "tied {tied}");
            assert_eq!(all[1], [&few[1][..], &[0.0; 12]].concat(), "tied {tied}");
            for targets in [&[-1, 7, -1, 3, 39][..], &[-1, -1]] {
                let found = run_with_targets(exact, targets, shape, tied, 0.5);
                let expected = run_with_targets(composed, targets, shape, tied, 0.5);
                let masked = run_with_targets(masked, targets, shape, tied, 0.5);
                for expected in [&expected, &masked] {
                    assert_within(&found, expected, SHARE, &format!("{targets:?}, tied {tied}"));
                }
                for gradients in [found, expected, masked] {
                    for (gradient, target) in gradients[1].chunks(6).zip(targets) {
                        assert_eq!(gradient.iter().all(|x| *x == 0.0), *target == -1, "{targets:?}, tied {tied}");
                    }
                }
            }
            let none = run_with_targets(exact, &[-1, -1], shape, tied, 1.0);
            assert!(none.concat().iter().all(|x| *x == 0.0), "{none:?}");
        }
    }

    #[test]
    fn chunks_and_blocks_change_nothing() {
        // Chunks of 4 rows, the last of 1; then of single rows; then blocks of 32 tokens, the last of 6; then chunks of
        // 4 rows with blocks of 32 tokens.
        let limits = [(4 * 70 + 69, 10_000), (3, 10_000), (10_000, 1), (4 * 70, 12 * 32)];
        for (tied, precision) in [(false, F32), (false, Bf16), (true, F32), (true, Bf16)] {
            let run = |limits: Limits| {
                let loss = |hidden, output, targets: Targets| {
                    cross_entropy(hidden, output, targets.tokens, Some(2.0), precision, limits)
                };
                let targets: Vec<_> = (0..9).map(|i| (i * 7 + 3) % 70).collect();
                run_with_targets(loss, &targets, [12, 70], tied, 1.0)
            };
            let want = run(LIMITS);
            for (logits, weights) in limits {
                let limits = Limits { logits, weights };
                assert_within(&run(limits), &want, SHARE, &format!("{limits:?}"));
            }
        }
    }

    #[test]
    fn bf16_changes_no_loss() {
        let [exact, rounded] = [F32, Bf16].map(|precision| {
            let loss = |hidden, output, targets| crate::cross_entropy(hidden, output, targets, Some(15.0), precision);
            run_with_targets(loss, &[7, 3, 39], [32, 65], true, 1.0)
        });
        assert_eq!(rounded[0][0].to_bits(), exact[0][0].to_bits());
        assert_ne!(rounded[1..], exact[1..]);
    }
}
