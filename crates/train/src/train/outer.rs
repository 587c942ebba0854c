//! DiLoCo: training with little communication. Each rank makes many local steps, then all weights are averaged.

use std::collections::BTreeMap;

use super::exchange::{lengths, sum_each, with_weights};
use crate::config::DistributedConfig;
use crate::distributed::{ExchangeDtype, Ranks};
use crate::optimizer::StateError;
use tinderbox_model::{Gpt, LazyTensor, parameters};

/// Prefix of the names of the outer momentum in a checkpoint.
const KEY: &str = "outer_momentum.";

/// The weights that all ranks last had in common, and the outer optimizer. The optimizer is SGD with Nesterov momentum,
/// and its gradient is the mean change of the weights since they were last averaged.
///
/// Source: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.
#[derive(Debug)]
pub(super) struct Outer {
    local_steps: usize,
    learning_rate: f32,
    momentum: f32,
    /// Weights and momentum (the running mean of outer gradients) of trained parameters, by name.
    state: BTreeMap<String, (Vec<f32>, Vec<f32>)>,
    /// The number of the step after which the weights were last averaged.
    averaged_step: usize,
}

impl Outer {
    #[allow(clippy::cast_possible_truncation, reason = "settings of f32 arithmetic")]
    pub(super) fn new(
        config: &DistributedConfig,
        model: &Gpt,
        step: usize,
        momentum: &BTreeMap<String, Vec<f32>>,
    ) -> Self {
        let trained: BTreeMap<_, _> = lengths(model).collect();
        let mut weights = parameters::lazy(model);
        weights.retain(|name, _| trained.contains_key(name));
        let weights = parameters::to_host(&weights).expect("the model's device works");
        let state = weights.into_iter().map(|(name, weight)| {
            let n = weight.values.len();
            let momentum = momentum.get(&name).filter(|momentum| momentum.len() == n).cloned();
            (name, (weight.values, momentum.unwrap_or_else(|| vec![0.0; n])))
        });
        Self {
            local_steps: config.local_steps,
            learning_rate: config.outer_learning_rate as f32,
            momentum: config.outer_momentum as f32,
            state: state.collect(),
            averaged_step: step,
        }
    }

    /// Whether the ranks have made as many local steps as the config allows.
    pub(super) fn is_due(&self, step: usize) -> bool {
        step.is_multiple_of(self.local_steps)
    }

    /// Averages the weights of all ranks after `step`, and makes an outer step.
    pub(super) fn average(&mut self, ranks: &Ranks, model: Gpt, step: usize) -> Gpt {
        if std::mem::replace(&mut self.averaged_step, step) == step {
            return model;
        }
        let own = parameters::lazy(&model);
        let (size, learning_rate, momentum) = (ranks.size() as f32, self.learning_rate, self.momentum);
        ranks.barrier();
        sum_each(ranks, ExchangeDtype::F32, &own, lengths(&model), |name, sums| {
            let (weights, running) = self.state.get_mut(&name).expect("the state holds every trained parameter");
            for ((weight, running), sum) in weights.iter_mut().zip(running).zip(sums) {
                let gradient = *weight - sum / size;
                *running = momentum * *running + gradient;
                *weight -= learning_rate * (gradient + momentum * *running);
            }
        });
        with_weights(model, |name| Some(self.state.get(name)?.0.clone()))
    }

    /// Adds the outer momentum to the optimizer state of a checkpoint.
    pub(super) fn save(&self, optimizer: &mut BTreeMap<String, LazyTensor>) {
        for (name, (_, momentum)) in &self.state {
            let values = momentum.clone();
            let tensor = LazyTensor::computed(vec![values.len()], move |sink| sink(&values));
            optimizer.insert(format!("{KEY}{name}"), tensor);
        }
    }

    /// Moves the outer momentum out of the optimizer state of a checkpoint, by parameter name; empty if there is none.
    pub(super) fn take(optimizer: &mut BTreeMap<String, LazyTensor>) -> Result<BTreeMap<String, Vec<f32>>, StateError> {
        let saved = optimizer.extract_if(.., |name, _| name.starts_with(KEY));
        let read = |(key, tensor): (String, LazyTensor)| match tensor.read() {
            Ok(read) => Ok((key[KEY.len()..].to_owned(), read.values)),
            Err(error) => Err(StateError::Unreadable { key, reason: error.to_string() }),
        };
        saved.map(read).collect()
    }
}
