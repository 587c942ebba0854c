//! The gradients of all parameters of a step, by name.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients as Backward, Tensor};

use crate::model::parameters::Path;
use tinderbox_kernels as kernels;

/// Gradients by parameter name, flattened, on the device without its autodiff.
#[derive(Clone, Debug, Default)]
pub struct Gradients(BTreeMap<String, Tensor<1>>);

impl Gradients {
    /// Takes the gradients of `module`'s parameters out of a backward pass.
    #[must_use]
    pub fn take<M: Module>(module: &M, backward: Backward) -> Self {
        struct Taker(Path, Backward, BTreeMap<String, Tensor<1>>);
        impl ModuleVisitor for Taker {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = param.val().grad_remove(&mut self.1) {
                    self.2.insert(self.0.join(), flatten(gradient));
                }
            }
            fn enter_module(&mut self, name: &str, _: &str) {
                self.0.enter(name);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.0.exit();
            }
        }
        let mut taker = Taker(Path::default(), backward, BTreeMap::new());
        module.visit(&mut taker);
        Self(taker.2)
    }

    /// Gradients that come from elsewhere, flattened.
    #[must_use]
    pub fn from_named(named: BTreeMap<String, Tensor<1>>) -> Self {
        Self(named)
    }

    /// The sum with the gradients of a further micro-batch.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, gradient) in other.0 {
            let sum = match self.0.remove(&name) {
                Some(so_far) => so_far + gradient,
                None => gradient,
            };
            self.0.insert(name, sum);
        }
        self
    }

    /// The Euclidean norm over all gradients together, `[1]`; not read back, so nothing waits for it.
    ///
    /// # Panics
    /// If there are no gradients at all.
    #[must_use]
    pub fn global_norm(&self) -> Tensor<1> {
        let squares = self.0.values().cloned().map(kernels::sum_of_squares); // in the order of names
        squares.reduce(|sum, square| sum + square).expect("a model has parameters").sqrt()
    }

    /// Scales all gradients down together so that their global norm is at most `max_norm`.
    ///
    /// Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", section
    /// 3.2; the small number keeps a norm of zero from dividing, as `PyTorch` does it.
    #[must_use]
    pub fn clip(self, norm: Tensor<1>, max_norm: f64) -> Clipped {
        let factor = ((norm + 1e-6).recip() * max_norm).clamp_max(1.0); // [1]
        Clipped { gradients: self, factor: Some(factor) }
    }

    /// The gradients by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<1>)> {
        self.0.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }
}

/// Gradients and what each of them is still to be multiplied with: whoever uses them does it along the way.
#[derive(Clone, Debug)]
pub struct Clipped {
    gradients: Gradients,
    factor: Option<Tensor<1>>,
}

impl Clipped {
    /// Takes out the gradient of one parameter.
    pub(super) fn remove(&mut self, name: &str) -> Option<Tensor<1>> {
        self.gradients.0.remove(name)
    }

    /// What all gradients are to be multiplied with, `[1]`; none is 1.
    pub(super) fn factor(&self) -> Option<Tensor<1>> {
        self.factor.clone()
    }
}

impl From<Gradients> for Clipped {
    fn from(gradients: Gradients) -> Self {
        Self { gradients, factor: None }
    }
}

/// `[..]` -> `[n]`
pub(crate) fn flatten<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let n = x.shape().num_elements();
    x.reshape([n])
}
