//! Cross-entropy straight from hidden states: the logits of a few rows at a time, never all of them.
//!
//! The gradient of a mean of losses is known but for one factor, which the backward pass brings: it is computed
//! here along with the loss, while the logits are at hand.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Shape, Tensor};
use pulp::{Simd, WithSimd};

use super::linear::matrix;
use super::operation::{Operation, apply};
use super::product::{Matrix, MatrixMut, Packed, Plain, Turned, WIDTH, add, put};
use super::rows::softmax;
use super::{CHUNK, run, shaped, tensor, values};
use crate::kernels::loss::Output;

/// Logits that are held at once, and as many of their gradients in panels.
const MOST_LOGITS: usize = 1 << 22;

/// Weights that are copied into panels at once.
const MOST_WEIGHTS: usize = 1 << 22;

/// As [`crate::kernels::cross_entropy`], of f32 on flex.
pub(in crate::kernels) fn cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
) -> Tensor<1> {
    in_chunks(hidden, output, targets, MOST_LOGITS)
}

fn in_chunks(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
    most_logits: usize,
) -> Tensor<1> {
    let targets = targets.into_data();
    let targets = targets
        .iter::<i64>()
        .map(|target| usize::try_from(target).expect("a token"));
    let operation = CrossEntropy {
        targets: targets.collect(),
        by_token: matches!(output, Output::Tied(_)),
        most_logits,
    };
    let (Output::Tied(weight) | Output::Own(weight)) = output;
    apply([hidden.into_dispatch(), weight.into_dispatch()], operation)
}

/// Inputs: hidden states `[N, C]`, and weights `[V, C]` if `by_token`, else `[C, V]`.
#[derive(Debug)]
struct CrossEntropy {
    targets: Vec<usize>,
    by_token: bool,
    /// Logits that are held at once.
    most_logits: usize,
}

impl Operation for CrossEntropy {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [n, c] = matrix(&inputs[0]);
        let shape = matrix(&inputs[1]);
        let vocab_size = if self.by_token { shape[0] } else { shape[1] };
        assert!(
            self.targets.len() == n && self.targets.iter().all(|target| *target < vocab_size),
            "{n} targets below {vocab_size}"
        );
        let (hidden, weight) = (values(&inputs[0]), values(&inputs[1]));
        let projection = Projection {
            weight: Matrix::new(weight, shape),
            by_token: self.by_token,
        };
        let mut of_hidden = vec![0.0; if keep { hidden.len() } else { 0 }];
        let mut of_weight = vec![0.0; if keep { weight.len() } else { 0 }];
        let mut losses = vec![0.0; n];
        let rows = (self.most_logits / vocab_size).max(1);
        let mut logits = vec![0.0; rows.min(n) * vocab_size];
        for first in (0..n).step_by(rows) {
            let rows = rows.min(n - first);
            let logits = &mut logits[..rows * vocab_size];
            let hidden = Matrix::new(&hidden[first * c..][..rows * c], [rows, c]);
            let [hidden] = Packed::all([hidden]);
            let hidden = hidden.panels();
            for tokens in blocks(vocab_size, c) {
                let [weights] = Packed::all([projection.of(tokens.clone())]);
                let logits = MatrixMut::new(logits, [rows, vocab_size]);
                let out = logits.columns(tokens);
                put(out, Plain(hidden), weights.panels(), &[]);
            }
            let task_rows = (CHUNK / vocab_size).max(1);
            let tasks = logits
                .chunks_mut(task_rows * vocab_size)
                .zip(losses[first..first + rows].chunks_mut(task_rows))
                .zip(self.targets[first..first + rows].chunks(task_rows));
            run(
                rows * vocab_size,
                tasks.map(|((logits, losses), targets)| Rows {
                    logits,
                    losses,
                    targets,
                    share: share(n),
                }),
            );
            if !keep {
                continue;
            }
            let of_logits = Matrix::new(logits, [rows, vocab_size]);
            let of_hidden = &mut of_hidden[first * c..][..rows * c];
            // Each chunk of rows and each block of tokens adds its part, in their order.
            for tokens in blocks(vocab_size, c) {
                let [of_logits, weights] = Packed::all([
                    of_logits.columns(tokens.clone()),
                    projection.of(tokens.clone()).transposed(),
                ]);
                let of_logits = of_logits.panels();
                let of_hidden = MatrixMut::new(of_hidden, [rows, c]);
                add(of_hidden, Plain(of_logits), weights.panels());
                let mut of_weight = MatrixMut::new(&mut of_weight, shape);
                if self.by_token {
                    let of_weight = of_weight.rows(tokens.start, tokens.len());
                    add(of_weight, Turned(of_logits), hidden);
                } else {
                    add(of_weight.columns(tokens), Turned(hidden), of_logits);
                }
            }
        }
        let loss = shaped(vec![mean(&losses)], Shape::new([1]));
        let kept = match keep {
            true => vec![tensor(of_hidden, &inputs[0]), tensor(of_weight, &inputs[1])],
            false => Vec::new(),
        };
        (loss, kept)
    }

    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let factor = values(&gradient.to_contiguous())[0];
        let scaled = kept.into_iter().map(|part| {
            let scale = |part: &mut [f32]| {
                let n = part.len();
                run(n, part.chunks_mut(CHUNK).map(|part| Scale { part, factor }));
            };
            // A loss that nothing was done to has the gradient 1.
            Some(if factor.to_bits() == 1.0_f32.to_bits() {
                part
            } else {
                super::rewrite(part, scale)
            })
        });
        scaled.collect()
    }
}

/// `1 / n`
#[allow(
    clippy::cast_precision_loss,
    reason = "a batch has far fewer than 2^52 tokens"
)]
#[allow(clippy::cast_possible_truncation, reason = "f32 is what tensors hold")]
fn share(n: usize) -> f32 {
    (1.0 / n as f64) as f32
}

/// The mean of losses, one after another.
#[allow(
    clippy::cast_precision_loss,
    reason = "a batch has far fewer than 2^52 tokens"
)]
#[allow(clippy::cast_possible_truncation, reason = "f32 is what tensors hold")]
fn mean(losses: &[f32]) -> f32 {
    let sum: f64 = losses.iter().map(|loss| f64::from(*loss)).sum();
    (sum / losses.len() as f64) as f32
}

/// What makes logits of hidden states.
#[derive(Clone, Copy)]
struct Projection<'a> {
    weight: Matrix<'a>,
    by_token: bool,
}

impl<'a> Projection<'a> {
    /// The weights of some tokens, `[C, tokens]`.
    fn of(self, tokens: Range<usize>) -> Matrix<'a> {
        match self.by_token {
            true => self.weight.rows(tokens.start, tokens.len()).transposed(),
            false => self.weight.columns(tokens),
        }
    }
}

/// The vocabulary in blocks whose weights are copied at once.
fn blocks(vocab_size: usize, c: usize) -> impl Iterator<Item = Range<usize>> {
    let block = (MOST_WEIGHTS / c).next_multiple_of(WIDTH).max(WIDTH);
    (0..vocab_size)
        .step_by(block)
        .map(move |first| first..vocab_size.min(first + block))
}

/// Turns some rows of logits into their gradient, and writes the losses.
struct Rows<'a> {
    /// `[n, V]`
    logits: &'a mut [f32],
    losses: &'a mut [f32],
    targets: &'a [usize],
    /// What a loss counts for in the mean.
    share: f32,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let vocab_size = self.logits.len() / self.losses.len();
        let rows = self.logits.chunks_exact_mut(vocab_size);
        for ((logits, loss), target) in rows.zip(self.losses).zip(self.targets) {
            let logit = logits[*target];
            *loss = softmax::<S>(logits, 1.0) - logit;
            logits[*target] -= 1.0;
            for logit in logits {
                *logit *= self.share;
            }
        }
    }
}

struct Scale<'a> {
    part: &'a mut [f32],
    factor: f32,
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for x in self.part {
            *x *= self.factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_within, leaf, numbers, with_threads};
    use super::*;
    use crate::kernels::loss::composed_cross_entropy;
    use burn::tensor::{Device, TensorData};

    type Operation = fn(Tensor<2>, Output, Tensor<1, Int>) -> Tensor<1>;

    /// Loss and gradients of a loss that something else is done to.
    fn run_with(
        f: Operation,
        [n, c, vocab_size]: [usize; 3],
        tied: bool,
        factor: f32,
    ) -> Vec<Vec<f32>> {
        let hidden = leaf([n, c], 1);
        let weight = leaf(
            if tied {
                [vocab_size, c]
            } else {
                [c, vocab_size]
            },
            2,
        );
        let targets: Vec<u64> = (0..n).map(|i| ((i * 7 + 3) % vocab_size) as u64).collect();
        let device = Device::flex().autodiff();
        let targets = Tensor::from_data(TensorData::new(targets, [n]), &device);
        let output = match tied {
            true => Output::Tied(weight.clone()),
            false => Output::Own(weight.clone()),
        };
        let loss = f(hidden.clone(), output, targets);
        let gradients = (loss.clone() * factor).backward();
        vec![
            numbers(loss),
            numbers(hidden.grad(&gradients).expect("hidden states have one")),
            numbers(weight.grad(&gradients).expect("weights too")),
        ]
    }

    /// A loss is a small difference of large logits: it loses digits that its gradients keep.
    const SHARE: f32 = 1e-5;

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in [
            [1, 1, 1],
            [1, 8, 5],
            [70, 32, 65],
            [33, 7, 1000],
            [5, 3, 130],
        ] {
            for tied in [false, true] {
                for factor in [1.0, 0.25] {
                    let [got, want] = [cross_entropy, composed_cross_entropy]
                        .map(|f: Operation| run_with(f, shape, tied, factor));
                    assert_within(&got, &want, SHARE, &format!("{shape:?}, tied {tied}"));
                }
            }
        }
    }

    #[test]
    fn rows_in_chunks_are_the_whole() {
        // 4 rows at a time, and 1 at the end; then one by one.
        let few: [Operation; 2] = [
            |hidden, output, targets| in_chunks(hidden, output, targets, 4 * 70 + 69),
            |hidden, output, targets| in_chunks(hidden, output, targets, 3),
        ];
        for tied in [false, true] {
            let want = run_with(cross_entropy, [9, 12, 70], tied, 1.0);
            for f in few {
                let got = run_with(f, [9, 12, 70], tied, 1.0);
                assert_within(&got, &want, SHARE, "chunks");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for tied in [false, true] {
            let bytes = |threads| {
                let got = with_threads(threads, || {
                    run_with(cross_entropy, [90, 33, 300], tied, 0.5)
                });
                got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
