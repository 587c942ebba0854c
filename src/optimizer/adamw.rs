//! `AdamW`: a step for each weight in units of its own gradient's size, and decay apart from it.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::Gradients;
use super::gradients::flatten;
use crate::config::OptimizerConfig;
use crate::model::parameters::{HostTensor, Path};

const EPSILON: f64 = 1e-8;

/// The optimiser and the two running means it keeps for each parameter.
///
/// Weight decay shrinks matrices only: norms' scales and biases have no direction to be overfitted.
///
/// Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
#[derive(Clone, Debug)]
pub struct AdamW {
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
struct Rates {
    learning_rate: f64,
    /// Makes up for the first mean's start at zero.
    first_correction: f64,
    second_correction: f64,
}

impl AdamW {
    /// An optimiser that has not seen a gradient yet.
    #[must_use]
    pub fn new(config: &OptimizerConfig) -> Self {
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

    /// Moves every parameter of `module` that has a gradient. `step` counts from 0.
    #[must_use]
    pub fn step<M: Module>(
        &mut self,
        module: M,
        gradients: Gradients,
        learning_rate: f64,
        step: usize,
    ) -> M {
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX); // by then the corrections are 1
        let rates = Rates {
            learning_rate,
            first_correction: 1.0 - self.betas[0].powi(t),
            second_correction: 1.0 - self.betas[1].powi(t),
        };
        module.map(&mut Update {
            optimizer: self,
            gradients,
            rates,
            path: Path::default(),
        })
    }

    /// The two running means, by `first_moment.NAME` and `second_moment.NAME`, for a checkpoint.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, HostTensor> {
        let host = |x: &Tensor<1>| {
            let values = x.clone().into_data().convert::<f32>().try_to_vec();
            HostTensor {
                shape: x.dims().to_vec(),
                values: values.expect("converted to f32"),
            }
        };
        let parts = |(name, m): (&String, &Moments)| {
            [
                (format!("first_moment.{name}"), host(&m.first)),
                (format!("second_moment.{name}"), host(&m.second)),
            ]
        };
        self.moments.iter().flat_map(parts).collect()
    }

    /// Puts back what [`AdamW::state`] gave, for parameters of these shapes.
    ///
    /// # Errors
    /// The name of a running mean that is missing, of another size, or of no parameter. Before the first
    /// step there are none, which is no error.
    pub fn restore(
        &mut self,
        mut state: BTreeMap<String, HostTensor>,
        shapes: &BTreeMap<String, Vec<usize>>,
        device: &Device,
    ) -> Result<(), String> {
        self.moments.clear();
        if state.is_empty() {
            return Ok(());
        }
        for (name, shape) in shapes {
            let n: usize = shape.iter().product();
            let mut take = |key: String| match state.remove(&key) {
                Some(HostTensor { values, .. }) if values.len() == n => {
                    Ok(Tensor::<1>::from_data(TensorData::new(values, [n]), device))
                }
                _ => Err(key),
            };
            let first = take(format!("first_moment.{name}"))?;
            let second = take(format!("second_moment.{name}"))?;
            self.moments.insert(name.clone(), Moments { first, second });
        }
        state.into_keys().next().map_or(Ok(()), Err)
    }

    fn update(
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
}

struct Update<'a> {
    optimizer: &'a mut AdamW,
    gradients: Gradients,
    rates: Rates,
    path: Path,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join();
        let Some(gradient) = self.gradients.remove(&name) else {
            return param;
        };
        param.map(|old| {
            let shape = old.shape();
            let weights = flatten(old.inner());
            let new = self
                .optimizer
                .update(name, weights, gradient, D == 2, self.rates);
            Tensor::from_inner(new.reshape(shape)).require_grad()
        })
    }

    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }
}
