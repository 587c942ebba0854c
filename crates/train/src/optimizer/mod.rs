//! Updates weights from gradients with AdamW or Muon and a learning rate that is a pure function of the step.
//! Parameters are identified by name only.

mod adamw;
mod average;
mod gradients;
mod muon;
pub mod schedule;
mod update;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

pub use gradients::Gradients;
pub use schedule::{BatchSchedule, learning_rate};

use crate::config::{OptimizerConfig, OptimizerKind};
use adamw::AdamW;
use average::Average;
use muon::Muon;
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::LazyTensor;
use tinderbox_model::parameters;
use update::Rates;

/// The optimizer of a run, including the running means.
///
/// With [`OptimizerKind::Muon`], Muon updates the matrices of the blocks and AdamW all other parameters.
#[derive(Clone, Debug)]
pub struct Optimizer {
    peak_learning_rate: f64,
    adamw: AdamW,
    muon: Option<Muon>,
    average: Option<Average>,
}

impl Optimizer {
    /// An optimizer before its first step. `hidden` are the matrices for Muon, from
    /// [`hidden_matrices`](tinderbox_model::parameters::hidden_matrices), and `precision` is the precision of Muon's
    /// matrix products.
    pub fn new(config: &OptimizerConfig, hidden: BTreeMap<String, Vec<usize>>, precision: MatmulPrecision) -> Self {
        let muon = (config.kind == OptimizerKind::Muon).then(|| Muon::new(config, hidden, precision));
        let average = (config.ema_decay > 0.0).then(|| Average::new(config.ema_decay));
        Self { peak_learning_rate: config.learning_rate, adamw: AdamW::new(config), muon, average }
    }

    /// Updates every parameter of `module` that has a gradient. `learning_rate` is the schedule's learning rate for
    /// `step`, which is counted from 0. Muon's learning rate is the same fraction of its peak.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, learning_rate: f64, step: usize) -> M {
        let rates =
            Rates { adamw: self.adamw.rates(learning_rate, step), share: learning_rate / self.peak_learning_rate };
        update::update(self, module, gradients, rates)
    }

    /// `module`, which does not track gradients, with averaged weights if averaging is on and a step was made.
    pub fn averaged<M: Module>(&self, module: M) -> M {
        match &self.average {
            Some(average) => average.of(module),
            None => module,
        }
    }

    /// All running means by kind and parameter name, still on the device. Keeping them beyond the next step costs a
    /// copy.
    pub fn state(&self) -> BTreeMap<String, LazyTensor> {
        let mut state = BTreeMap::new();
        self.adamw.save(&mut state);
        if let Some(muon) = &self.muon {
            muon.save(&mut state);
        }
        state
    }

    /// The trained weights of `module`, as `weights.NAME`, for a checkpoint whose model is the average of the weights.
    /// Empty without averaging.
    pub fn learning_weights<M: Module>(&self, module: &M) -> BTreeMap<String, LazyTensor> {
        let is_needed = self.average.as_ref().is_some_and(Average::has_started);
        let weights = if is_needed { parameters::lazy(module) } else { BTreeMap::new() };
        weights.into_iter().map(|(name, weight)| (format!("{}{name}", average::KEY), weight)).collect()
    }

    /// Restores the averages from `module`, the model of a checkpoint, and replaces its weights with the trained
    /// weights, which are moved out of `state`. Without averaging, or before the first step, the module stays
    /// unchanged.
    ///
    /// # Errors
    /// If a weight is missing, has another size, or cannot be read.
    pub fn restore_average<M: Module>(
        &mut self,
        module: M,
        state: &mut BTreeMap<String, LazyTensor>,
        device: &Device,
    ) -> Result<M, StateError> {
        match &mut self.average {
            Some(average) if !state.is_empty() => average.restore(module, state, device),
            _ => Ok(module),
        }
    }

    /// Restores the running means from the result of [`Optimizer::state`], for parameters of these shapes. Before the
    /// first step, `state` is empty.
    ///
    /// # Errors
    /// If another kind of optimizer wrote the state, or if a running mean is missing, has another size, belongs to no
    /// parameter, or cannot be read.
    pub fn restore(
        &mut self,
        mut state: BTreeMap<String, LazyTensor>,
        shapes: &BTreeMap<String, Vec<usize>>,
        device: &Device,
    ) -> Result<(), StateError> {
        self.adamw.moments.clear();
        if let Some(muon) = &mut self.muon {
            muon.means.clear();
        }
        if state.is_empty() {
            return Ok(());
        }
        let kind = |has_muon| if has_muon { OptimizerKind::Muon } else { OptimizerKind::Adamw };
        let written = kind(state.keys().any(|key| muon::is_key(key)));
        let configured = kind(self.muon.is_some());
        if written != configured {
            return Err(StateError::OtherKind { written, configured });
        }
        for (name, shape) in shapes {
            let n = shape.iter().product();
            match self.muon.as_mut().filter(|muon| muon.moves(name)) {
                Some(muon) => muon.load(name, n, &mut state, device)?,
                None => self.adamw.load(name, n, &mut state, device)?,
            }
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
    #[error("{} wrote it, and optimizer.kind is {}", key(*.written), key(*.configured))]
    OtherKind { written: OptimizerKind, configured: OptimizerKind },
    #[error("`{key}` cannot be read: {reason}")]
    Unreadable { key: String, reason: String },
}

/// The name of the optimizer kind in a config, with quotes.
fn key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::Adamw => "\"adamw\"",
        OptimizerKind::Muon => "\"muon\"",
    }
}

/// Running means by kind and parameter name, such as `first_moment.NAME`.
type State = BTreeMap<String, LazyTensor>;

fn put(state: &mut State, key: String, x: &Tensor<1>) {
    state.insert(key, LazyTensor::on_device(x.clone()));
}

/// Moves a tensor of `n` numbers from `state` to the device.
fn take(state: &mut State, key: String, n: usize, device: &Device) -> Result<Tensor<1>, StateError> {
    let Some(tensor) = state.remove(&key).filter(|tensor| tensor.n_numbers() == n) else {
        return Err(StateError::Misfit(key));
    };
    match tensor.read() {
        Ok(host) => Ok(Tensor::from_data(TensorData::new(host.values, [n]), device)),
        Err(error) => Err(StateError::Unreadable { key, reason: error.to_string() }),
    }
}
