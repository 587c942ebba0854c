//! AdamW: steps normalized by the size of each weight's gradients, with decoupled weight decay.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::gradients::Gradient;
use super::{State, StateError, put, take};
use crate::config::OptimizerConfig;
use tinderbox_kernels as kernels;

const EPSILON: f64 = 1e-8;

/// The prefixes for the names of the running means in a checkpoint.
const KEYS: [&str; 2] = ["first_moment.", "second_moment."];

/// The update rule with two running means per parameter. Weight decay applies to matrices only, not to norms and
/// biases.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
#[derive(Clone, Debug)]
pub(super) struct AdamW {
    betas: [f64; 2],
    weight_decay: f64,
    pub(super) moments: BTreeMap<String, Moments>,
}

/// The running means of a parameter's gradients and of their squares, each `[n]`.
pub(super) type Moments = [Tensor<1>; 2];

impl AdamW {
    pub(super) fn new(config: &OptimizerConfig) -> Self {
        let OptimizerConfig { betas, weight_decay, .. } = *config;
        Self { betas, weight_decay, moments: BTreeMap::new() }
    }

    /// The factors of step `step`, counted from 0, which are the same for all matrices.
    pub(super) fn rates(&self, learning_rate: f64, step: usize) -> kernels::AdamW {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX); // for larger steps the corrections are 1 anyway
        // Bias corrections, since the running means start at zero.
        let [first_correction, second_correction] = self.betas.map(|beta| 1.0 - beta.powi(t));
        kernels::AdamW {
            betas: self.betas,
            step_size: learning_rate / first_correction,
            second_scale: second_correction.sqrt().recip(),
            epsilon: EPSILON,
            decay: learning_rate * self.weight_decay,
        }
    }

    /// The new weights and running means of one parameter, from its gradient and the gradient's factor. `rates` are
    /// those of a matrix.
    ///
    /// # Shapes
    /// `weights, gradient: [n]`, factor `[1]` -> `[n]`
    pub(super) fn update(
        weights: Tensor<1>,
        (gradient, factor): Gradient,
        moments: Option<Moments>,
        is_matrix: bool,
        rates: kernels::AdamW,
    ) -> (Tensor<1>, Moments) {
        let rates = if is_matrix { rates } else { kernels::AdamW { decay: 0.0, ..rates } };
        kernels::adamw(weights, gradient, factor, moments, rates)
    }

    /// Adds the running means to `state`, as `first_moment.NAME` and `second_moment.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, moments) in &self.moments {
            for (key, moment) in KEYS.into_iter().zip(moments) {
                put(state, format!("{key}{name}"), moment);
            }
        }
    }

    /// Moves the running means of a parameter with `n` numbers out of `state`.
    pub(super) fn load(&mut self, name: &str, n: usize, state: &mut State, device: &Device) -> Result<(), StateError> {
        let [first, second] = KEYS.map(|key| take(state, format!("{key}{name}"), n, device));
        self.moments.insert(name.to_owned(), [first?, second?]);
        Ok(())
    }
}
