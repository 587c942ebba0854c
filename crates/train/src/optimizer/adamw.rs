//! AdamW: steps normalized by the size of each weight's gradients, with decoupled weight decay.

use burn::tensor::Tensor;
use tinderbox_kernels as kernels;
use tinderbox_model::Parameter;
use tinderbox_model::section::Problems;

use super::gradients::Gradient;
use super::rule::{Step, UpdateRule};

const EPSILON: f64 = 1e-8;

tinderbox_model::sections! {
    /// The keys of AdamW in `[optimizer]`.
    pub struct AdamwConfig {
        /// The decay rates of the running means of the gradient and its square. Each in [0, 1).
        pub betas: [f64; 2] = [0.9, 0.99],
    }
}

/// Two running means per parameter: of its gradients and of their squares. Weight decay applies to matrices only, not to
/// norms and biases.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
impl UpdateRule for AdamwConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self { betas } = self;
        let are_shares = betas.iter().all(|beta| (0.0..1.0).contains(beta));
        problems.must(are_shares, "optimizer.betas", format!("{betas:?}"), "each be at least 0 and below 1");
    }

    fn state(&self, parameter: &Parameter) -> Vec<(&'static str, usize)> {
        ["first_moment", "second_moment"].map(|kind| (kind, parameter.shape.iter().product())).into()
    }

    fn temporary_bytes(&self, parameter: &Parameter, is_fused: bool) -> f64 {
        match is_fused {
            true => 0.0,                                       // in place
            false => 2.0 * 4.0 * parameter.n_numbers() as f64, // the new means next to the old ones
        }
    }

    fn update(
        &self,
        step: &Step<'_>,
        parameter: &Parameter,
        weights: Tensor<1>,
        (gradient, factor): Gradient,
        state: Vec<Tensor<1>>,
    ) -> (Tensor<1>, Vec<Tensor<1>>) {
        let t = i32::try_from(step.index + 1).unwrap_or(i32::MAX); // for larger steps the corrections are 1 anyway
        // Bias corrections, since the running means start at zero.
        let [first_correction, second_correction] = self.betas.map(|beta| 1.0 - beta.powi(t));
        let is_matrix = parameter.shape.len() == 2;
        let update = kernels::AdamW {
            betas: self.betas,
            step_size: step.learning_rate / first_correction,
            second_scale: second_correction.sqrt().recip(),
            epsilon: EPSILON,
            decay: if is_matrix { step.learning_rate * step.config.weight_decay } else { 0.0 },
        };
        let (weights, moments) = kernels::adamw(weights, gradient, factor, state.try_into().ok(), update);
        (weights, moments.into())
    }
}
