//! One optimizer step for all parameters. On a CPU they are updated in one parallel region, since most parameters are
//! too small to keep all cores busy.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use rayon::prelude::*;

use super::adamw::{AdamW, Moments};
use super::gradients::{Gradient, flatten};
use super::{Gradients, Optimizer, muon};
use tinderbox_kernels as kernels;
use tinderbox_model::device;
use tinderbox_model::follow_path;

/// The learning rates of a step.
#[derive(Clone, Copy)]
pub(super) struct Rates {
    pub(super) adamw: kernels::AdamW,
    /// Muon's learning rate as a share of its peak.
    pub(super) share: f64,
}

/// Updates every parameter of `module` that has a gradient.
pub(super) fn update<M: Module>(optimizer: &mut Optimizer, module: M, gradients: Gradients, rates: Rates) -> M {
    let mut walk = Taker { optimizer, gradients, taken: Vec::new(), path: Vec::new() };
    let module = module.map(&mut walk);
    let taken = walk.taken;
    let on_cpu = taken.first().is_some_and(|(parameter, _)| device::is_cpu(&parameter.weights.device()));
    let step = |(parameter, gradient): (Parameter, Gradient)| parameter.step(gradient, optimizer, rates);
    let moved: Vec<_> = match on_cpu {
        // Tasks of one parameter each, so that idle cores can take over further parameters.
        true => taken.into_par_iter().with_max_len(1).map(step).collect(),
        false => taken.into_iter().map(step).collect(),
    };
    let mut weights = BTreeMap::new();
    for Parameter { name, weights: new, shape, means, average } in moved {
        match means {
            Means::Adamw(means) => optimizer.adamw.moments.extend(means.map(|means| (name.clone(), means))),
            Means::Muon(means) => {
                optimizer.muon.as_mut().map(|muon| muon.means.insert(name.clone(), means));
            }
        }
        if let Some(of_all) = &mut optimizer.average {
            of_all.means.extend(average.map(|average| (name.clone(), average)));
        }
        weights.insert(name, (new, shape));
    }
    module.map(&mut Giver { weights, path: Vec::new() })
}

/// A parameter during a step, flattened. There is no other reference to the weights, so they are changed in place.
struct Parameter {
    name: String,
    weights: Tensor<1>,
    /// The shape in the module.
    shape: Vec<usize>,
    means: Means,
    /// The average of the parameter's weights, if averaging is on.
    average: Option<Tensor<1>>,
}

/// The running means of a parameter, according to its update rule.
enum Means {
    /// `None` before the first step.
    Adamw(Option<Moments>),
    Muon(muon::Means),
}

impl Parameter {
    fn step(self, gradient: Gradient, optimizer: &Optimizer, rates: Rates) -> Self {
        let Self { name, weights, shape, means, average } = self;
        let (weights, means) = match (means, &optimizer.muon) {
            (Means::Muon(means), Some(muon)) => {
                let (weights, means) = muon.update(&name, weights, gradient, means, rates.share);
                (weights, Means::Muon(means))
            }
            (Means::Adamw(means), _) => {
                let (weights, means) = AdamW::update(weights, gradient, means, shape.len() == 2, rates.adamw);
                (weights, Means::Adamw(Some(means)))
            }
            (Means::Muon(_), None) => unreachable!("only Muon has its means"),
        };
        let average = optimizer.average.as_ref().map(|of_all| of_all.update(average, weights.clone()));
        Self { name, weights, shape, means, average }
    }
}

/// Takes the parameters that have gradients out of a module, with their optimizer state.
struct Taker<'a> {
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    taken: Vec<(Parameter, Gradient)>,
    path: Vec<String>,
}

impl ModuleMapper for Taker<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let Some(gradient) = self.gradients.remove(&name) else { return param };
        let Optimizer { adamw, muon, average, .. } = &mut *self.optimizer;
        let means = match muon.as_mut().filter(|muon| muon.moves(&name)) {
            Some(muon) => Means::Muon(muon.means.remove(&name).unwrap_or_default()),
            None => Means::Adamw(adamw.moments.remove(&name)),
        };
        let average = average.as_mut().and_then(|average| average.means.remove(&name));
        param.map(|old| {
            let nothing = Tensor::empty([1; D], &old.device());
            let (shape, weights) = (old.dims().to_vec(), flatten(old.inner()));
            self.taken.push((Parameter { name, weights, shape, means, average }, gradient));
            nothing
        })
    }

    follow_path!(path);
}

/// Puts parameters back into the module.
struct Giver {
    weights: BTreeMap<String, (Tensor<1>, Vec<usize>)>,
    path: Vec<String>,
}

impl ModuleMapper for Giver {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.weights.remove(&self.path.join(".")) {
            Some((weights, shape)) => {
                let weights: Tensor<D> = weights.reshape(burn::tensor::Shape::from(shape));
                param.map(|_| Tensor::from_inner(weights).require_grad())
            }
            None => param,
        }
    }

    follow_path!(path);
}
