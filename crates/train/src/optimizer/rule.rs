//! The interface of an optimizer.

use std::fmt::Debug;

use burn::tensor::Tensor;
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::Parameter;
use tinderbox_model::section::Problems;

use super::OptimizerConfig;
use super::gradients::Gradient;

/// An optimizer, implemented by the struct of its keys in `[optimizer]`: it updates parameters of the
/// [table](Parameter).
pub(super) trait UpdateRule: Debug {
    fn check_into(&self, problems: &mut Problems);

    /// The keys that a resumed run must keep, because its state depends on them.
    fn fixed_keys(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its keys, with those that do not affect step time at their defaults.
    fn for_timing(&self) -> Self
    where
        Self: Sized + Default,
    {
        Self::default()
    }

    /// The keys to lower if a run diverges.
    fn learning_rates(&self) -> &'static str {
        "optimizer.learning_rate"
    }

    /// Whether it updates a parameter; AdamW updates all others.
    fn takes(&self, _: &Parameter) -> bool {
        true
    }

    /// The tensors that it keeps for a parameter: each with its kind, which comes before the parameter's path in the
    /// tensor's name in a checkpoint, and its length.
    fn state(&self, parameter: &Parameter) -> Vec<(&'static str, usize)>;

    fn flops(&self, _: &Parameter) -> f64 {
        0.0
    }

    /// The temporary memory in bytes for the update of a parameter, besides its weights, gradient and state. `is_fused`
    /// says whether the update is one operation, as on a CPU, or composed of burn's operations.
    fn temporary_bytes(&self, parameter: &Parameter, is_fused: bool) -> f64;

    /// The new weights and state of a parameter, from its gradient. Before the first step `state` is empty; afterwards
    /// it has the tensors of [`UpdateRule::state`], in their order.
    ///
    /// # Shapes
    /// `weights, gradient: [n]`, row by row, factor of the gradient `[1]` -> `[n]`
    fn update(
        &self,
        step: &Step<'_>,
        parameter: &Parameter,
        weights: Tensor<1>,
        gradient: Gradient,
        state: Vec<Tensor<1>>,
    ) -> (Tensor<1>, Vec<Tensor<1>>);
}

/// The values of a step that all parameters share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) config: &'a OptimizerConfig,
    /// The schedule's learning rate, from 0 to `optimizer.learning_rate`.
    pub(super) learning_rate: f64,
    /// The number of steps before this one.
    pub(super) index: usize,
    pub(super) precision: MatmulPrecision,
}
