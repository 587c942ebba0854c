//! Cross-entropy straight from hidden states: the logits of a few rows at a time, never all of them.
//!
//! The gradient of a mean of losses is known but for one factor, which the backward pass brings: it is computed
//! here along with the loss, while the logits are at hand.

use std::marker::PhantomData;
use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Shape, Tensor};
use pulp::{Simd, WithSimd};

use super::linear::matrix;
use crate::MatmulPrecision;
use crate::flex::{from_vec, tensor, values};
use crate::gemm::{Bf16x2, Element, Matrix, MatrixMut, Mode, Packed, Plain, Role, Transposed, WIDTH, store};
use crate::loss::{MAX_LOSS_LOGITS, Output};
use crate::op::{FlexOperation, apply_on_flex};
use crate::rows::softmax;
use crate::tasks::{CHUNK, run};

/// How much is worked on at once.
#[derive(Clone, Copy, Debug)]
struct Most {
    /// Logits, and as many of their gradients in panels.
    logits: usize,
    /// Weights that are copied into panels.
    weights: usize,
}

impl Default for Most {
    fn default() -> Self {
        Self { logits: MAX_LOSS_LOGITS, weights: 1 << 22 }
    }
}

/// As [`crate::cross_entropy`], of f32 on flex.
pub(crate) fn cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
    precision: MatmulPrecision,
) -> Tensor<1> {
    in_parts(hidden, output, targets, precision, Most::default())
}

fn in_parts(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
    precision: MatmulPrecision,
    most: Most,
) -> Tensor<1> {
    match precision {
        MatmulPrecision::F32 => with::<f32>(hidden, output, targets, most),
        MatmulPrecision::Bf16 => with::<Bf16x2>(hidden, output, targets, most),
    }
}

fn with<E: Element>(hidden: Tensor<2>, output: Output, targets: Tensor<1, Int>, most: Most) -> Tensor<1> {
    let targets = targets.into_data();
    let targets = targets.iter::<i64>().map(|target| usize::try_from(target).expect("a token"));
    let operation = CrossEntropy::<E> {
        targets: targets.collect(),
        by_token: matches!(output, Output::Tied(_)),
        most,
        elements: PhantomData,
    };
    let (Output::Tied(weight) | Output::Own(weight)) = output;
    apply_on_flex([hidden.into_dispatch(), weight.into_dispatch()], operation)
}

/// Inputs: hidden states `[N, C]`, and weights `[V, C]` if `by_token`, else `[C, V]`.
///
/// Gradients are products of elements of `E`. Logits are always products of f32: nothing comes after them that would
/// even out what rounding does to them, and alone they move the loss more than all other products of a model.
#[derive(Debug)]
struct CrossEntropy<E> {
    targets: Vec<usize>,
    by_token: bool,
    most: Most,
    elements: PhantomData<E>,
}

impl<E: Element> FlexOperation for CrossEntropy<E> {
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
        let projection = Projection { weight: Matrix::new(weight, shape), by_token: self.by_token };
        let mut grad_hidden = vec![0.0; if keep { hidden.len() } else { 0 }];
        let mut grad_weight = vec![0.0; if keep { weight.len() } else { 0 }];
        let mut losses = vec![0.0; n];
        let rows = (self.most.logits / vocab_size).max(1);
        let mut logits = vec![0.0; rows.min(n) * vocab_size];
        for first in (0..n).step_by(rows) {
            let rows = rows.min(n - first);
            let logits = &mut logits[..rows * vocab_size];
            let hidden = Matrix::new(&hidden[first * c..][..rows * c], [rows, c]);
            let blocks = || self.most.blocks(vocab_size, c);
            {
                let [hidden] = Packed::<f32>::all([(hidden, Role::Left)]);
                for tokens in blocks() {
                    let [weights] = Packed::all([(projection.of(tokens.clone()), Role::Right)]);
                    let logits = MatrixMut::new(logits, [rows, vocab_size]);
                    let out = logits.columns(tokens);
                    store(Mode::Put, out, Plain(hidden.left()), weights.right(), &[]);
                }
            }
            let task_rows = (CHUNK / vocab_size).max(1);
            let tasks = logits
                .chunks_mut(task_rows * vocab_size)
                .zip(losses[first..first + rows].chunks_mut(task_rows))
                .zip(self.targets[first..first + rows].chunks(task_rows));
            run(
                rows * vocab_size,
                tasks.map(|((logits, losses), targets)| Rows { logits, losses, targets, share: share(n) }),
            );
            if !keep {
                continue;
            }
            // Again: for what follows it may be in pairs.
            let [hidden] = Packed::<E>::all([(hidden, Role::Right)]);
            let grad_logits = Matrix::new(logits, [rows, vocab_size]);
            let grad_hidden = &mut grad_hidden[first * c..][..rows * c];
            // Each chunk of rows and each block of tokens adds its part, in their order.
            for tokens in blocks() {
                let weights = projection.of(tokens.clone()).transposed();
                let [grad_logits, weights] =
                    Packed::all([(grad_logits.columns(tokens.clone()), Role::Both), (weights, Role::Right)]);
                let grad_hidden = MatrixMut::new(grad_hidden, [rows, c]);
                store(Mode::Add, grad_hidden, Plain(grad_logits.left()), weights.right(), &[]);
                let mut grad_weight = MatrixMut::new(&mut grad_weight, shape);
                if self.by_token {
                    let grad_weight = grad_weight.rows(tokens.start, tokens.len());
                    store(Mode::Add, grad_weight, Transposed(grad_logits.right()), hidden.right(), &[]);
                } else {
                    let grad_weight = grad_weight.columns(tokens);
                    store(Mode::Add, grad_weight, Transposed(hidden.right()), grad_logits.right(), &[]);
                }
            }
        }
        let loss = from_vec(vec![mean(&losses)], Shape::new([1]));
        let saved = match keep {
            true => vec![tensor(grad_hidden, &inputs[0]), tensor(grad_weight, &inputs[1])],
            false => Vec::new(),
        };
        (loss, saved)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let factor = values(&gradient.to_contiguous())[0];
        let scaled = saved.into_iter().map(|part| {
            let scale = |part: &mut [f32]| {
                let n = part.len();
                run(n, part.chunks_mut(CHUNK).map(|part| Scale { part, factor }));
            };
            // A loss that nothing was done to has the gradient 1.
            Some(if factor.to_bits() == 1.0_f32.to_bits() { part } else { crate::flex::map_in_place(part, scale) })
        });
        scaled.collect()
    }
}

/// `1 / n`
#[allow(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^52 tokens")]
#[allow(clippy::cast_possible_truncation, reason = "f32 is what tensors hold")]
fn share(n: usize) -> f32 {
    (1.0 / n as f64) as f32
}

/// The mean of losses, one after another.
#[allow(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^52 tokens")]
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

impl Most {
    /// The vocabulary in blocks whose weights are copied at once.
    fn blocks(self, vocab_size: usize, c: usize) -> impl Iterator<Item = Range<usize>> {
        let block = (self.weights / c).next_multiple_of(WIDTH).max(WIDTH);
        (0..vocab_size).step_by(block).map(move |first| first..vocab_size.min(first + block))
    }
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
    use super::*;
    use crate::MatmulPrecision::{Bf16, F32};
    use crate::flex::testing::{assert_within, leaf, numbers, with_threads};
    use crate::loss::composed_cross_entropy;
    use burn::tensor::{Device, TensorData};

    type Operation = fn(Tensor<2>, Output, Tensor<1, Int>) -> Tensor<1>;

    fn exact(hidden: Tensor<2>, output: Output, targets: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(hidden, output, targets, F32)
    }

    fn rounded(hidden: Tensor<2>, output: Output, targets: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(hidden, output, targets, Bf16)
    }

    /// In f32, or else in bfloat16, so much at once.
    fn parts<const IS_EXACT: bool, const LOGITS: usize, const WEIGHTS: usize>(
        hidden: Tensor<2>,
        output: Output,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let most = Most { logits: LOGITS, weights: WEIGHTS };
        let precision = if IS_EXACT { F32 } else { Bf16 };
        in_parts(hidden, output, targets, precision, most)
    }

    /// Loss and gradients of a loss that something else is done to.
    fn run_with(f: Operation, [n, c, vocab_size]: [usize; 3], tied: bool, factor: f32) -> Vec<Vec<f32>> {
        let hidden = leaf([n, c], 1);
        let weight = leaf(if tied { [vocab_size, c] } else { [c, vocab_size] }, 2);
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

    /// Rows, width, vocabulary.
    const SHAPES: [[usize; 3]; 5] = [[1, 1, 1], [1, 8, 5], [70, 32, 65], [33, 7, 1000], [5, 3, 130]];

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in SHAPES {
            for tied in [false, true] {
                for factor in [1.0, 0.25] {
                    let [got, want] =
                        [exact, composed_cross_entropy].map(|f: Operation| run_with(f, shape, tied, factor));
                    assert_within(&got, &want, SHARE, &format!("{shape:?}, tied {tied}"));
                }
            }
        }
    }

    #[test]
    fn parts_are_the_whole() {
        // 4 rows at a time, and 1 at the end; then one by one; then 32 tokens at a time, and 6 at the end; then both.
        let few: [Operation; 4] = [
            parts::<true, { 4 * 70 + 69 }, 10_000>,
            parts::<true, 3, 10_000>,
            parts::<true, 10_000, 1>,
            parts::<true, { 4 * 70 }, { 12 * 32 }>,
        ];
        let few_rounded: [Operation; 2] = [parts::<false, { 3 * 70 }, 10_000>, parts::<false, { 4 * 70 }, { 12 * 32 }>];
        for tied in [false, true] {
            let want = run_with(exact, [9, 12, 70], tied, 1.0);
            for f in few {
                let got = run_with(f, [9, 12, 70], tied, 1.0);
                assert_within(&got, &want, SHARE, "parts");
            }
            let want = run_with(rounded, [9, 12, 70], tied, 1.0);
            for f in few_rounded {
                let got = run_with(f, [9, 12, 70], tied, 1.0);
                assert_within(&got, &want, SHARE, "parts, rounded");
            }
        }
    }

    #[test]
    fn in_bfloat16_gradients_are_nearly_the_same_and_the_loss_is() {
        for shape in SHAPES {
            for tied in [false, true] {
                let [got, want] = [rounded, exact].map(|f: Operation| run_with(f, shape, tied, 0.25));
                let what = format!("{shape:?}, tied {tied}");
                assert_eq!(got[0][0].to_bits(), want[0][0].to_bits(), "{what}");
                // A factor is off by 2^-9 of itself at most.
                assert_within(&got, &want, 1.0 / 128.0, &what);
                assert!(shape == [1, 1, 1] || got[1..] != want[1..], "{what}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for tied in [false, true] {
            for f in [exact, rounded] {
                let bytes = |threads| {
                    let got = with_threads(threads, || run_with(f, [91, 33, 300], tied, 0.5));
                    got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bytes(1), bytes(2));
            }
        }
    }
}
