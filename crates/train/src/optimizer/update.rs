//! One optimizer step for all parameters. On a CPU they are updated in one parallel region, since most parameters are
//! too small to keep all cores busy.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Shape, Tensor};
use rayon::prelude::*;

use super::gradients::{Gradient, flatten};
use super::rule::Step;
use super::{Gradients, Optimizer};
use tinderbox_model::{Parameter, device, follow_path};

impl Optimizer {
    /// Updates every parameter of `module` that has a gradient. `learning_rate` is the schedule's learning rate for
    /// step `index`, which is counted from 0. Another learning rate of an optimizer is the same fraction of its peak.
    ///
    /// # Panics
    /// If a parameter with a gradient is not one of [`Optimizer::new`], or is frozen.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, learning_rate: f64, index: usize) -> M {
        let mut walk = TakeParameters { optimizer: self, gradients, taken: Vec::new(), path: Vec::new() };
        let module = module.map(&mut walk);
        let taken = walk.taken;
        let on_cpu = taken.first().is_some_and(|(parameter, _)| device::is_cpu(&parameter.weights.device()));
        let step = Step { config: &self.config, learning_rate, index, precision: self.precision };
        let step = |(parameter, gradient): (TakenParameter, Gradient)| parameter.step(gradient, self, step);
        let updated: Vec<_> = match on_cpu {
            // Tasks of one parameter each, so that idle cores can take over further parameters.
            true => taken.into_par_iter().with_max_len(1).map(step).collect(),
            false => taken.into_iter().map(step).collect(),
        };
        let mut weights = BTreeMap::new();
        for TakenParameter { name, weights: new, state, average } in updated {
            self.state.insert(name.clone(), state);
            if let Some(of_all) = &mut self.average {
                of_all.means.extend(average.map(|average| (name.clone(), average)));
            }
            weights.insert(name, new);
        }
        module.map(&mut PutParameters { weights, parameters: &self.parameters, path: Vec::new() })
    }
}

/// A parameter during a step, flattened. There is no other reference to the weights, so they are changed in place.
struct TakenParameter {
    name: String,
    weights: Tensor<1>,
    /// Empty before the first step.
    state: Vec<Tensor<1>>,
    /// The average of the parameter's weights, if averaging is on.
    average: Option<Tensor<1>>,
}

impl TakenParameter {
    fn step(self, gradient: Gradient, optimizer: &Optimizer, step: Step<'_>) -> Self {
        let Self { name, weights, state, average } = self;
        let parameter = &optimizer.parameters[&name];
        let rule = optimizer.config.rule_of(parameter);
        let (weights, state) = rule.update(&step, parameter, weights, gradient, state);
        let average = optimizer.average.as_ref().map(|of_all| of_all.update(average, weights.clone()));
        Self { name, weights, state, average }
    }
}

/// Takes the parameters that have gradients out of a module, with their optimizer state.
struct TakeParameters<'a> {
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    taken: Vec<(TakenParameter, Gradient)>,
    path: Vec<String>,
}

impl ModuleMapper for TakeParameters<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let Some(gradient) = self.gradients.remove(&name) else { return param };
        let Optimizer { parameters, state, average, .. } = &mut *self.optimizer;
        assert!(parameters[&name].is_trained, "`{name}` is frozen");
        let state = state.remove(&name).unwrap_or_default();
        let average = average.as_mut().and_then(|average| average.means.remove(&name));
        param.map(|old| {
            let nothing = Tensor::empty([1; D], &old.device());
            self.taken.push((TakenParameter { name, weights: flatten(old.inner()), state, average }, gradient));
            nothing
        })
    }

    follow_path!(path);
}

struct PutParameters<'a> {
    weights: BTreeMap<String, Tensor<1>>,
    parameters: &'a BTreeMap<String, Parameter>,
    path: Vec<String>,
}

impl ModuleMapper for PutParameters<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let Some(weights) = self.weights.remove(&name) else { return param };
        let weights: Tensor<D> = weights.reshape(Shape::from(&self.parameters[&name].shape));
        param.map(|_| Tensor::from_inner(weights).require_grad())
    }

    follow_path!(path);
}
