//! The loss of next-token prediction.

mod fused;

use burn::tensor::{Device, Int, Tensor, activation, assert_shape};

use crate::memory::bytes;
use crate::{MatmulPrecision, Operations, TrainingMemory, flex};

/// The maximum number of logits that the fused [`cross_entropy`] holds at once.
const MAX_LOSS_LOGITS: usize = 1 << 22;

/// The ignored target: its row adds nothing to the loss, nor to any gradient (`ignore_index` in PyTorch).
pub const IGNORE_INDEX: i32 = -1;

/// The token for each row to predict, or [`IGNORE_INDEX`].
#[derive(Clone, Debug)]
pub struct Targets {
    /// The tokens, `[N]`.
    pub tokens: Tensor<1, Int>,
    /// The rows that count, if others are known to be ignored.
    counted: Option<Tensor<1, Int>>,
}

impl Targets {
    /// Copies targets to a device, with a list of the rows that count.
    pub fn new(tokens: Vec<i32>, device: &Device) -> Self {
        let counted = (0..).zip(&tokens).filter(|(_, token)| **token != IGNORE_INDEX);
        let mut counted: Vec<i32> = counted.map(|(row, _)| row).collect();
        let has_ignored = counted.len() < tokens.len();
        if counted.is_empty() {
            counted.push(0); // not every backend has empty tensors, and an ignored row adds nothing
        }
        let on_device = |scalars: Vec<i32>| Tensor::from_data(&scalars[..], device);
        Self { tokens: on_device(tokens), counted: has_ignored.then(|| on_device(counted)) }
    }
}

impl<const D: usize> From<Tensor<D, Int>> for Targets {
    /// Targets of any shape, flattened. The operations find the ignored ones.
    fn from(tokens: Tensor<D, Int>) -> Self {
        let n = tokens.shape().num_elements();
        Self { tokens: tokens.reshape([n]), counted: None }
    }
}

/// The weights of the output layer.
#[derive(Clone, Debug)]
pub enum Output {
    /// The weights of the token embedding (tied), `[V, C]`.
    Tied(Tensor<2>),
    /// Separate weights, `[C, V]`.
    Own(Tensor<2>),
}

/// The mean cross-entropy of the targets under the logits of the hidden states, in nats per token. Gradients are
/// computed in the given precision, logits always in f32. With a `cap`, the logits are soft-capped: see [`softcap`].
///
/// The mean is over the targets that are not [`IGNORE_INDEX`], and 0 if there are none, so that the mean times the
/// number of targets is always their sum. The fused form computes no logits of ignored rows; the composed form only
/// skips rows that `targets` lists as ignored.
///
/// # Shapes
/// `hidden: [N, C]`, `targets: [N]` with values in `0..V` or [`IGNORE_INDEX`] -> `[1]`
///
/// # Panics
/// If the number of targets differs from the number of rows.
pub fn cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: impl Into<Targets>,
    cap: Option<f64>,
    precision: MatmulPrecision,
) -> Tensor<1> {
    let targets = targets.into();
    let [n, _] = hidden.dims();
    assert_shape!(targets.tokens, [n]);
    if flex::is_for(&hidden) {
        return fused::cross_entropy(hidden, output, targets.tokens, cap, precision, fused::LIMITS);
    }
    composed_cross_entropy(hidden, output, targets, cap)
}

/// The memory of [`cross_entropy`] in training. `temporary` is at its peak: in the forward pass, or at the start of the
/// backward pass. The fused form computes the gradients in the forward pass; those are not counted as saved.
///
/// # Shapes
/// `[N, C, V]`
pub fn training_memory(operations: Operations, [n, c, vocab_size]: [usize; 3], is_capped: bool) -> TrainingMemory {
    let logits = bytes([n, vocab_size]);
    match operations {
        Operations::Fused => {
            TrainingMemory { saved: 0.0, temporary: bytes([n, c]) + logits.min(bytes([MAX_LOSS_LOGITS])) }
        }
        // Capping saves its output too.
        Operations::Composed => {
            TrainingMemory { saved: if is_capped { 2.0 * logits } else { logits }, temporary: 2.0 * logits }
        }
    }
}

/// The bytes that the output layer of the composed [`cross_entropy`] holds in its backward pass: the gradients of the
/// logits, of `hidden` and of the weight, for `rows` `[B, T]` and a weight `[C, V]`.
pub fn composed_output_bytes([b, t]: [usize; 2], [c, vocab_size]: [usize; 2]) -> f64 {
    bytes([b, t, vocab_size]) + bytes([b, t, c]) + bytes([c, vocab_size])
}

pub(crate) fn composed_cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: Targets,
    cap: Option<f64>,
) -> Tensor<1> {
    let Targets { tokens, counted } = targets;
    let (hidden, tokens) = match counted {
        Some(rows) => (hidden.select(0, rows.clone()), tokens.select(0, rows)),
        None => (hidden, tokens),
    };
    let logits = match output {
        Output::Tied(weight) => hidden.matmul(weight.transpose()),
        Output::Own(weight) => hidden.matmul(weight),
    }; // [N, V]
    cross_entropy_of_logits(capped(logits, cap), tokens)
}

/// `cap tanh(logits / cap)`: small logits hardly change, and no logit exceeds the cap.
///
/// Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2, "Logit
/// soft-capping"; Bello et al. 2017, "Neural Combinatorial Optimization with Reinforcement Learning", appendix A.1.
///
/// # Shapes
/// `logits: [.., V]` -> `[.., V]`
pub fn softcap<const D: usize>(logits: Tensor<D>, cap: f64) -> Tensor<D> {
    (logits / cap).tanh() * cap
}

/// [`softcap`] if there is a cap.
pub(crate) fn capped<const D: usize>(logits: Tensor<D>, cap: Option<f64>) -> Tensor<D> {
    match cap {
        Some(cap) => softcap(logits, cap),
        None => logits,
    }
}

/// The mean cross-entropy of the targets under the logits, in nats per token, as in [`cross_entropy`].
///
/// # Shapes
/// `logits: [N, V]`, `targets: [N]` with values in `0..V` or [`IGNORE_INDEX`] -> `[1]`
///
/// # Panics
/// If the number of targets differs from the number of rows.
pub fn cross_entropy_of_logits(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [n, _] = logits.dims();
    assert_shape!(targets, [n]);
    let log_probabilities = activation::log_softmax(logits, 1); // [N, V]
    let ignored = targets.clone().equal_elem(IGNORE_INDEX); // [N]
    let n_targets = ignored.clone().bool_not().float().sum().clamp_min(1.0); // [1]
    let targets = targets.clamp_min(0).reshape([n, 1]);
    let of_targets = log_probabilities.gather(1, targets).reshape([n]); // [N]
    of_targets.mask_fill(ignored, 0.0).sum().neg() / n_targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn cross_entropy_takes_worked_values() {
        let device = Device::flex();
        // The output weights are the identity, so the hidden states are the logits.
        let hidden = Tensor::<2>::from_data([[0.0, 2.0_f32.ln()], [1e4, 0.0]], &device);
        let targets = Targets::new(vec![1, 0], &device);
        // Row 0: probability 2/3; row 1: a huge logit, probability 1 without overflow.
        for output in [Output::Tied, Output::Own] {
            let output = output(Tensor::eye(2, &device));
            let exact = |hidden, output, targets: Targets, cap| {
                cross_entropy(hidden, output, targets, cap, MatmulPrecision::F32)
            };
            for f in [exact, composed_cross_entropy] {
                let loss = |cap| f(hidden.clone(), output.clone(), targets.clone(), cap).into_scalar::<f32>();
                let (plain, capped) = (loss(None), loss(Some(2.0)));
                assert!((plain - 0.5 * 1.5_f32.ln()).abs() < 1e-6, "{plain}");
                // The capped logits are 0 and 2 tanh(ln(2) / 2) = 2/3 in row 0, and 2 and 0 in row 1.
                let expected = 0.5 * ((-2.0_f32 / 3.0).exp().ln_1p() + (-2.0_f32).exp().ln_1p());
                assert!((capped - expected).abs() < 1e-6, "{capped}, not {expected}");
            }
        }
    }

    #[test]
    fn composed_loss_skips_rows_known_to_be_ignored() {
        let device = Device::flex().autodiff();
        let hidden = Tensor::<2>::from_data([[f32::NAN, 0.0], [0.0, 2.0_f32.ln()]], &device);
        let weight = Tensor::<2>::eye(2, &device).require_grad();
        let targets = Targets::new(vec![IGNORE_INDEX, 1], &device);
        let loss = composed_cross_entropy(hidden, Output::Own(weight.clone()), targets, None);
        let gradient = weight.grad(&loss.backward()).expect("the weight has a gradient");
        assert!((loss.into_scalar::<f32>() - 1.5_f32.ln()).abs() < 1e-6);
        assert!(gradient.into_data().iter::<f32>().all(f32::is_finite));
    }
}
