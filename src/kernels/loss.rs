//! The loss of next-token prediction.

use burn::tensor::{Int, Tensor, activation, assert_shape};

/// Mean cross-entropy between rows of logits and the tokens that came, in nats per token.
///
/// # Shapes
/// `logits: [N, V]`, `targets: [N]` with values in `0..V` -> `[1]`
///
/// # Panics
/// If there are not as many targets as rows.
#[must_use]
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [n, _] = logits.dims();
    assert_shape!(targets, [n]);
    let log_probabilities = activation::log_softmax(logits, 1); // [N, V]
    log_probabilities
        .gather(1, targets.reshape([n, 1]))
        .mean()
        .neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn equals_minus_the_mean_log_probability() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_data([[0.0, 2.0_f32.ln()], [1e4, 0.0]], &device);
        let targets = Tensor::<1, Int>::from_data([1, 0], &device);
        // Row 0: probability 2/3; row 1: a huge logit, probability 1 without overflow.
        let loss: f32 = cross_entropy(logits, targets).into_scalar();
        assert!((loss - 0.5 * 1.5_f32.ln()).abs() < 1e-6, "{loss}");
    }
}
