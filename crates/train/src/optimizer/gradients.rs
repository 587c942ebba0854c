//! The gradients of all parameters in a step, by parameter name.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients as Backward, Tensor};
use rayon::prelude::*;

use tinderbox_kernels as kernels;
use tinderbox_model::device;
use tinderbox_model::follow_path;

/// The gradient of a parameter, `[n]`, and the factor to multiply it by, `[1]`.
pub(super) type Gradient = (Tensor<1>, Option<Tensor<1>>);

/// Gradients by parameter name, as flattened tensors on the device without autodiff.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    by_name: BTreeMap<String, Tensor<1>>,
    /// The factor from clipping, `[1]`, by which the update rules multiply each gradient; `None` means 1.
    factor: Option<Tensor<1>>,
}

impl Gradients {
    /// Takes the gradients of `module`'s parameters from a backward pass.
    pub fn take<M: Module>(module: &M, backward: Backward) -> Self {
        struct Taker(Vec<String>, Backward, BTreeMap<String, Tensor<1>>);
        impl ModuleVisitor for Taker {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = param.val().grad_remove(&mut self.1) {
                    self.2.insert(self.0.join("."), flatten(gradient));
                }
            }
            follow_path!(0);
        }
        let mut taker = Taker(Vec::new(), backward, BTreeMap::new());
        module.visit(&mut taker);
        Self::from_named(taker.2)
    }

    /// Creates gradients from flattened tensors by parameter name.
    pub fn from_named(by_name: BTreeMap<String, Tensor<1>>) -> Self {
        Self { by_name, factor: None }
    }

    /// The sum with the gradients of another micro-batch.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, gradient) in other.by_name {
            let sum = match self.by_name.remove(&name) {
                Some(so_far) => so_far + gradient,
                None => gradient,
            };
            self.by_name.insert(name, sum);
        }
        self
    }

    /// The Euclidean norm of all gradients together, `[1]`, on the device.
    ///
    /// # Panics
    /// If there are no gradients.
    pub fn global_norm(&self) -> Tensor<1> {
        let gradients: Vec<_> = self.by_name.values().collect();
        let on_cpu = gradients.first().is_some_and(|gradient| device::is_cpu(&gradient.device()));
        let square = |gradient: &Tensor<1>| kernels::sum_of_squares(gradient.clone());
        let squares: Vec<_> = match on_cpu {
            true => gradients.into_par_iter().map(square).collect(),
            false => gradients.into_iter().map(square).collect(),
        };
        // The sum is in the order of the names.
        squares.into_iter().reduce(|sum, square| sum + square).expect("a model has parameters").sqrt()
    }

    /// Clips by global norm: scales all gradients so that their common `norm` is at most `max_norm`.
    ///
    /// Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", section 3.2. The small
    /// number added to the norm prevents a division by zero, as in PyTorch's `clip_grad_norm_`.
    #[must_use]
    pub fn clip(mut self, norm: Tensor<1>, max_norm: f64) -> Self {
        self.factor = Some(((norm + 1e-6).recip() * max_norm).clamp_max(1.0));
        self
    }

    /// The gradients by name, before clipping.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<1>)> {
        self.by_name.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Removes the gradient of one parameter. Returns it with the factor to multiply it by.
    pub(super) fn remove(&mut self, name: &str) -> Option<Gradient> {
        Some((self.by_name.remove(name)?, self.factor.clone()))
    }
}

/// Flattens a tensor: `[..]` -> `[n]`.
pub(super) fn flatten<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let n = x.shape().num_elements();
    x.reshape([n])
}
