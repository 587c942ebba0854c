//! Updates weights from gradients, by the chosen optimizer and with a learning rate that is a pure function of the step.
//!
//! An optimizer is one file, which implements `UpdateRule` for its keys in `[optimizer]`, and a variant of
//! [`OptimizerKind`]. Everyone else asks [`OptimizerConfig`] and [`Optimizer`]. Parameters are identified by their path in the table of the
//! [model](tinderbox_model::Parameter).

mod adamw;
mod average;
mod config;
mod gradients;
mod muon;
mod rule;
pub mod schedule;
mod update;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

pub use adamw::AdamwConfig;
pub use config::{OptimizerConfig, OptimizerKind};
pub use gradients::{Gradients, Squares};
pub(crate) use gradients::{layer_of, place_of};
pub use muon::{MuonConfig, NewtonSchulz};
pub use schedule::{BatchSchedule, ScheduleConfig, ScheduleKind, learning_rate};

use average::Average;
use rule::UpdateRule;
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::{LazyTensor, Parameter, parameters};

impl OptimizerConfig {
    /// The optimizer that updates a parameter: the chosen one, or AdamW if that does not take it.
    fn rule_of(&self, parameter: &Parameter) -> &dyn UpdateRule {
        let chosen = self.chosen();
        if chosen.takes(parameter) { chosen } else { &self.adamw }
    }

    /// The names and lengths of the tensors that the optimizers keep for `parameters`.
    fn state_of<'a>(&self, parameters: impl IntoIterator<Item = &'a Parameter>) -> Vec<(String, usize)> {
        let trained = parameters.into_iter().filter(|parameter| parameter.is_trained);
        let of_parameter = |parameter: &'a Parameter| {
            let state = self.rule_of(parameter).state(parameter).into_iter();
            state.map(|(kind, n)| (format!("{kind}.{}", parameter.path), n))
        };
        trained.flat_map(of_parameter).collect()
    }

    /// The tensors of `optimizer.safetensors` for the parameters of a model, by name and shape.
    pub fn saved_tensors(&self, parameters: &[Parameter]) -> BTreeMap<String, Vec<usize>> {
        let state = self.state_of(parameters).into_iter().map(|(name, n)| (name, vec![n]));
        let averaged = parameters.iter().filter(|parameter| parameter.is_trained && self.ema_decay > 0.0);
        let trained =
            averaged.map(|parameter| (format!("{}{}", average::KEY, parameter.path), parameter.shape.clone()));
        state.chain(trained).collect()
    }

    /// The FLOPs of the matrix products in one update of all `parameters`.
    pub fn update_flops(&self, parameters: &[Parameter]) -> f64 {
        let trained = parameters.iter().filter(|parameter| parameter.is_trained);
        trained.fold(0.0, |sum, parameter| sum + self.rule_of(parameter).flops(parameter)) // a `sum` of none is -0.0
    }

    /// The temporary memory in bytes for the update of a parameter, besides its weights, gradient and state. `is_fused`
    /// says whether the update is one operation, as on a CPU, or composed of burn's operations.
    pub fn temporary_bytes(&self, parameter: &Parameter, is_fused: bool) -> f64 {
        self.rule_of(parameter).temporary_bytes(parameter, is_fused)
    }

    pub(crate) fn learning_rates(&self) -> &'static str {
        self.chosen().learning_rates()
    }
}

/// The optimizer of a run, including its state.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    precision: MatmulPrecision,
    /// By path.
    parameters: BTreeMap<String, Parameter>,
    /// The tensors of [`UpdateRule::state`] by parameter; none before the first step.
    state: BTreeMap<String, Vec<Tensor<1>>>,
    average: Option<Average>,
}

impl Optimizer {
    /// An optimizer before its first step. `precision` is that of its matrix products.
    pub fn new(
        config: &OptimizerConfig,
        parameters: impl IntoIterator<Item = Parameter>,
        precision: MatmulPrecision,
    ) -> Self {
        let average = (config.ema_decay > 0.0).then(|| Average::new(config.ema_decay));
        let parameters = parameters.into_iter().map(|parameter| (parameter.path.clone(), parameter)).collect();
        Self { config: config.clone(), precision, parameters, state: BTreeMap::new(), average }
    }

    /// `module`, which does not track gradients, with averaged weights if averaging is on and a step was made.
    pub fn averaged<M: Module>(&self, module: M) -> M {
        match &self.average {
            Some(average) => average.applied_to(module),
            None => module,
        }
    }

    /// All tensors of the state by kind and parameter path, such as `first_moment.PATH`, still on the device. Keeping
    /// them beyond the next step costs a copy.
    pub fn state(&self) -> BTreeMap<String, LazyTensor> {
        let of_parameter = |(path, tensors): (&String, &Vec<Tensor<1>>)| {
            let parameter = &self.parameters[path];
            let kinds = self.config.rule_of(parameter).state(parameter).into_iter();
            let named = kinds
                .zip(tensors)
                .map(|((kind, _), tensor)| (format!("{kind}.{path}"), LazyTensor::on_device(tensor.clone())));
            named.collect::<Vec<_>>()
        };
        self.state.iter().flat_map(of_parameter).collect()
    }

    /// The weights of `module` that learn, as `weights.NAME`, for a checkpoint whose model is the average of the weights.
    /// Empty without averaging.
    pub fn learning_weights<M: Module>(&self, module: &M) -> BTreeMap<String, LazyTensor> {
        let is_needed = self.average.as_ref().is_some_and(|average| !average.means.is_empty());
        let weights = if is_needed { parameters::lazy(module) } else { BTreeMap::new() };
        let trained = weights.into_iter().filter(|(name, _)| self.parameters[name].is_trained);
        trained.map(|(name, weight)| (format!("{}{name}", average::KEY), weight)).collect()
    }

    /// Restores the averages from `module`, the model of a checkpoint, and replaces its weights with the trained
    /// weights, which are moved out of `state`. Without averaging, or before the first step, the module stays
    /// unchanged.
    pub fn restore_average<M: Module>(
        &mut self,
        module: M,
        state: &mut BTreeMap<String, LazyTensor>,
        device: &Device,
    ) -> Result<M, StateError> {
        match &mut self.average {
            Some(average) if !state.is_empty() => average.restore(module, &self.parameters, state, device),
            _ => Ok(module),
        }
    }

    /// Restores the state from the result of [`Optimizer::state`]. Before the first step, `state` is empty.
    pub fn restore(&mut self, mut state: BTreeMap<String, LazyTensor>, device: &Device) -> Result<(), StateError> {
        self.state.clear();
        if state.is_empty() {
            return Ok(());
        }
        let configured = self.config.kind;
        let has_all = |kind: &OptimizerKind| {
            let names = OptimizerConfig { kind: *kind, ..self.config.clone() }.state_of(self.parameters.values());
            names.iter().all(|(name, _)| state.contains_key(name))
        };
        if !has_all(&configured)
            && let Some(&written) = OptimizerKind::ALL.iter().find(|kind| has_all(kind))
        {
            return Err(StateError::OtherKind { written, configured });
        }
        for (path, parameter) in self.parameters.iter().filter(|(_, parameter)| parameter.is_trained) {
            let kinds = self.config.rule_of(parameter).state(parameter).into_iter();
            let tensors = kinds.map(|(kind, n)| take(&mut state, format!("{kind}.{path}"), n, device));
            self.state.insert(path.clone(), tensors.collect::<Result<_, _>>()?);
        }
        match state.into_keys().next() {
            Some(left_over) => Err(StateError::Misfit(left_over)),
            None => Ok(()),
        }
    }
}

/// The reason why the optimizer state in a checkpoint cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum StateError {
    #[error("`{0}` is missing, of another size, or of no parameter")]
    Misfit(String),
    #[error("\"{written}\" wrote it, and optimizer.kind is \"{configured}\"")]
    OtherKind { written: OptimizerKind, configured: OptimizerKind },
    #[error("`{key}` cannot be read: {reason}")]
    Unreadable { key: String, reason: String },
}

/// Moves a tensor of `n` numbers from `state` to the device.
fn take(
    state: &mut BTreeMap<String, LazyTensor>,
    key: String,
    n: usize,
    device: &Device,
) -> Result<Tensor<1>, StateError> {
    let Some(tensor) = state.remove(&key).filter(|tensor| tensor.n_numbers() == n) else {
        return Err(StateError::Misfit(key));
    };
    match tensor.read() {
        Ok(host) => Ok(Tensor::from_data(TensorData::new(host.values, [n]), device)),
        Err(error) => Err(StateError::Unreadable { key, reason: error.to_string() }),
    }
}
