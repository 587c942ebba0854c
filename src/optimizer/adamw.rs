//! `AdamW`: a step for each weight in units of its own gradient's size, and decay apart from it.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::state::{State, StateError, put, take};
use crate::config::OptimizerConfig;

const EPSILON: f64 = 1e-8;

/// The rule, and the two running means it keeps for each parameter that it moves.
///
/// Weight decay shrinks matrices only: norms' scales and biases have no direction to be overfitted.
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

/// What one update needs beside the gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    learning_rate: f64,
    /// Makes up for the first mean's start at zero.
    first_correction: f64,
    second_correction: f64,
}

impl AdamW {
    /// The rule before its first gradient.
    pub(super) fn new(config: &OptimizerConfig) -> Self {
        let OptimizerConfig {
            betas,
            weight_decay,
            ..
        } = *config;
        Self {
            betas,
            weight_decay,
            moments: BTreeMap::new(),
        }
    }

    /// What all updates of step `step`, counted from 0, share.
    pub(super) fn rates(&self, learning_rate: f64, step: usize) -> Rates {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX); // by then the corrections are 1
        Rates {
            learning_rate,
            first_correction: 1.0 - self.betas[0].powi(t),
            second_correction: 1.0 - self.betas[1].powi(t),
        }
    }

    /// The new weights of one parameter.
    ///
    /// # Shapes
    /// `weights, gradient: [n]` -> `[n]`
    pub(super) fn update(
        &mut self,
        name: String,
        weights: Tensor<1>,
        gradient: Tensor<1>,
        is_matrix: bool,
        rates: Rates,
    ) -> Tensor<1> {
        let [beta_1, beta_2] = self.betas;
        let Rates {
            learning_rate,
            first_correction,
            second_correction,
        } = rates;
        let first = gradient.clone() * (1.0 - beta_1);
        let second = gradient.clone() * gradient * (1.0 - beta_2);
        // Means that started at zero and nothing to add to: the first step makes them.
        let (first, second) = match self.moments.remove(&name) {
            Some(old) => (old.first * beta_1 + first, old.second * beta_2 + second),
            None => (first, second),
        };
        let size = second.clone().sqrt() * second_correction.sqrt().recip() + EPSILON;
        let change = first.clone() / size * (learning_rate / first_correction);
        self.moments.insert(name, Moments { first, second });
        let decay = if is_matrix {
            learning_rate * self.weight_decay
        } else {
            0.0
        };
        weights * (1.0 - decay) - change
    }

    /// Adds the running means to `state`, as `first_moment.NAME` and `second_moment.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, Moments { first, second }) in &self.moments {
            put(state, format!("first_moment.{name}"), first);
            put(state, format!("second_moment.{name}"), second);
        }
    }

    /// Takes the running means of a parameter of `n` numbers out of `state`.
    pub(super) fn load(
        &mut self,
        name: &str,
        n: usize,
        state: &mut State,
        device: &Device,
    ) -> Result<(), StateError> {
        let moments = Moments {
            first: take(state, format!("first_moment.{name}"), n, device)?,
            second: take(state, format!("second_moment.{name}"), n, device)?,
        };
        self.moments.insert(name.to_owned(), moments);
        Ok(())
    }

    /// Forgets all gradients.
    pub(super) fn clear(&mut self) {
        self.moments.clear();
    }
}
