//! An exponential moving average (EMA) of the weights, which is evaluated and saved instead of the trained weights.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

use super::gradients::flatten;
use super::{StateError, take};
use tinderbox_kernels as kernels;
use tinderbox_model::{LazyTensor, Parameter, follow_path};

/// The prefix for the names of the trained weights in a checkpoint whose model is the average.
pub(super) const KEY: &str = "weights.";

/// The average, which starts with the weights after the first step.
///
/// Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging"; like
/// `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`.
#[derive(Clone, Debug)]
pub(super) struct Average {
    decay: f64,
    /// The averages of trained parameters by name, flattened; empty before the first step.
    pub(super) means: BTreeMap<String, Tensor<1>>,
}

impl Average {
    pub(super) fn new(decay: f64) -> Self {
        Self { decay, means: BTreeMap::new() }
    }

    /// The new average of a parameter's weights after a step, `[n]`. `mean` is the previous average, `None` in the
    /// first step.
    pub(super) fn update(&self, mean: Option<Tensor<1>>, weights: Tensor<1>) -> Tensor<1> {
        match mean {
            Some(mean) => kernels::lerp(mean, weights, 1.0 - self.decay),
            None => weights,
        }
    }

    /// Replaces each parameter of `module`, which does not track gradients, with its average, if there is one.
    pub(super) fn applied_to<M: Module>(&self, module: M) -> M {
        struct Averager<'a>(Vec<String>, &'a BTreeMap<String, Tensor<1>>);
        impl ModuleMapper for Averager<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                match self.1.get(&self.0.join(".")) {
                    Some(mean) => param.map(|old| mean.clone().reshape(old.shape())),
                    None => param,
                }
            }
            follow_path!(0);
        }
        module.map(&mut Averager(Vec::new(), &self.means))
    }

    /// Restores the averages of the trained `parameters` from the weights of `module`, and replaces these with the trained
    /// weights, which are moved out of `state`. Frozen parameters stay as they are.
    pub(super) fn restore<M: Module>(
        &mut self,
        module: M,
        parameters: &BTreeMap<String, Parameter>,
        state: &mut BTreeMap<String, LazyTensor>,
        device: &Device,
    ) -> Result<M, StateError> {
        struct Restorer<'a> {
            path: Vec<String>,
            means: &'a mut BTreeMap<String, Tensor<1>>,
            parameters: &'a BTreeMap<String, Parameter>,
            state: &'a mut BTreeMap<String, LazyTensor>,
            device: &'a Device,
            error: Option<StateError>,
        }
        impl ModuleMapper for Restorer<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let name = self.path.join(".");
                let key = format!("{KEY}{name}");
                if !self.parameters[&name].is_trained {
                    self.state.remove(&key); // earlier versions saved it
                    return param;
                }
                let mean = flatten(param.val().inner());
                let taken = take(self.state, key, mean.dims()[0], self.device);
                self.means.insert(name, mean);
                match taken {
                    Ok(weights) => param.map(|old| {
                        let is_learning = old.is_require_grad();
                        Tensor::from_inner(weights.reshape(old.shape())).set_require_grad(is_learning)
                    }),
                    Err(error) => {
                        self.error.get_or_insert(error);
                        param
                    }
                }
            }
            follow_path!(path);
        }
        self.means.clear();
        let means = &mut self.means;
        let mut restorer = Restorer { path: Vec::new(), means, parameters, state, device, error: None };
        let module = module.map(&mut restorer);
        restorer.error.map_or(Ok(module), Err)
    }
}
