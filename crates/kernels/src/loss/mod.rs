//! The loss of next-token prediction.

mod fused;

use burn::tensor::{Int, Tensor, activation, assert_shape};

use crate::{MatmulPrecision, flex};

/// The most logits that the fused [`cross_entropy`] holds at once.
pub const MAX_LOSS_LOGITS: usize = 1 << 22;

/// The weights that turn hidden states into logits.
#[derive(Clone, Debug)]
pub enum Output {
    /// The token embedding's, `[V, C]`.
    Tied(Tensor<2>),
    /// Its own, `[C, V]`.
    Own(Tensor<2>),
}

/// Mean cross-entropy between what hidden states predict and the tokens that came, in nats per token. Its gradients are
/// products in a precision, logits are always of f32.
///
/// # Shapes
/// `hidden: [N, C]`, `targets: [N]` with values in `0..V` -> `[1]`
///
/// # Panics
/// If there are not as many targets as rows.
#[must_use]
pub fn cross_entropy(
    hidden: Tensor<2>,
    output: Output,
    targets: Tensor<1, Int>,
    precision: MatmulPrecision,
) -> Tensor<1> {
    let [n, _] = hidden.dims();
    assert_shape!(targets, [n]);
    if flex::is_for(&hidden) {
        return fused::cross_entropy(hidden, output, targets, precision, fused::Limits::default());
    }
    composed_cross_entropy(hidden, output, targets)
}

/// [`cross_entropy`] by burn's own operations.
fn composed_cross_entropy(hidden: Tensor<2>, output: Output, targets: Tensor<1, Int>) -> Tensor<1> {
    let logits = match output {
        Output::Tied(weight) => hidden.matmul(weight.transpose()),
        Output::Own(weight) => hidden.matmul(weight),
    }; // [N, V]
    cross_entropy_of_logits(logits, targets)
}

/// Mean cross-entropy between logits and the tokens that came, in nats per token.
///
/// # Shapes
/// `logits: [N, V]`, `targets: [N]` with values in `0..V` -> `[1]`
///
/// # Panics
/// If there are not as many targets as rows.
#[must_use]
pub fn cross_entropy_of_logits(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [n, _] = logits.dims();
    assert_shape!(targets, [n]);
    let log_probabilities = activation::log_softmax(logits, 1); // [N, V]
    log_probabilities.gather(1, targets.reshape([n, 1])).mean().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn equals_minus_the_mean_log_probability() {
        let device = Device::flex();
        // The hidden states are the logits.
        let hidden = Tensor::<2>::from_data([[0.0, 2.0_f32.ln()], [1e4, 0.0]], &device);
        let targets = Tensor::<1, Int>::from_data([1, 0], &device);
        // Row 0: probability 2/3; row 1: a huge logit, probability 1 without overflow.
        for output in [Output::Tied, Output::Own] {
            let output = output(Tensor::eye(2, &device));
            let exact = |hidden, output, targets| cross_entropy(hidden, output, targets, MatmulPrecision::F32);
            for f in [exact, composed_cross_entropy] {
                let loss: f32 = f(hidden.clone(), output.clone(), targets.clone()).into_scalar();
                assert!((loss - 0.5 * 1.5_f32.ln()).abs() < 1e-6, "{loss}");
            }
        }
    }
}
