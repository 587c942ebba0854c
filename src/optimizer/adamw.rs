//! `AdamW`: a step per weight in units of its gradient's size, and decoupled decay.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::{State, StateError, put, take};
use crate::config::OptimizerConfig;
use tinderbox_kernels as kernels;

const EPSILON: f64 = 1e-8;

/// The rule with its two running means per parameter. Weight decay shrinks matrices only, not norms and biases.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
#[derive(Clone, Debug)]
pub(super) struct AdamW {
    betas: [f64; 2],
    weight_decay: f64,
    moments: BTreeMap<String, Moments>,
}

/// Running means of one parameter's gradients and of their squares, flattened.
#[derive(Clone, Debug)]
struct Moments {
    first: Tensor<1>,
    second: Tensor<1>,
}

/// The numbers that all updates of a step share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    learning_rate: f64,
    /// Corrects for a running mean that starts at zero.
    first_correction: f64,
    second_correction: f64,
}

impl AdamW {
    pub(super) fn new(config: &OptimizerConfig) -> Self {
        let OptimizerConfig { betas, weight_decay, .. } = *config;
        Self { betas, weight_decay, moments: BTreeMap::new() }
    }

    /// The rates of step `step`, counted from 0.
    pub(super) fn rates(&self, learning_rate: f64, step: usize) -> Rates {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX); // by then the corrections are 1
        Rates {
            learning_rate,
            first_correction: 1.0 - self.betas[0].powi(t),
            second_correction: 1.0 - self.betas[1].powi(t),
        }
    }

    /// The new weights of one parameter, from its gradient and a factor for it.
    ///
    /// # Shapes
    /// `weights, gradient: [n]`, factor `[1]` -> `[n]`
    pub(super) fn update(
        &mut self,
        name: String,
        weights: Tensor<1>,
        (gradient, factor): (Tensor<1>, Option<Tensor<1>>),
        is_matrix: bool,
        rates: Rates,
    ) -> Tensor<1> {
        let decay = if is_matrix { rates.learning_rate * self.weight_decay } else { 0.0 };
        let update = kernels::AdamW {
            betas: self.betas,
            step_size: rates.learning_rate / rates.first_correction,
            second_scale: rates.second_correction.sqrt().recip(),
            epsilon: EPSILON,
            decay,
        };
        let means = self.moments.remove(&name);
        let means = means.map(|Moments { first, second }| [first, second]);
        let (weights, [first, second]) = kernels::adamw(weights, gradient, factor, means, update);
        self.moments.insert(name, Moments { first, second });
        weights
    }

    /// Adds the running means to `state`, as `first_moment.NAME` and `second_moment.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, Moments { first, second }) in &self.moments {
            put(state, format!("first_moment.{name}"), first);
            put(state, format!("second_moment.{name}"), second);
        }
    }

    /// Moves the running means of a parameter of `n` numbers out of `state`.
    pub(super) fn load(&mut self, name: &str, n: usize, state: &mut State, device: &Device) -> Result<(), StateError> {
        let moments = Moments {
            first: take(state, format!("first_moment.{name}"), n, device)?,
            second: take(state, format!("second_moment.{name}"), n, device)?,
        };
        self.moments.insert(name.to_owned(), moments);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.moments.clear();
    }
}
