//! Turns gradients into new weights: by AdamW or Muon, at a learning rate that is a pure function of the step.
//! Parameters are known by name only.

mod adamw;
mod gradients;
mod muon;
pub mod schedule;

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};

pub use gradients::Gradients;
pub(crate) use muon::N_ITERATIONS as NEWTON_SCHULZ_ITERATIONS;
pub use schedule::learning_rate;

use crate::config::{OptimizerConfig, OptimizerKind};
use crate::model::LazyTensor;
use crate::model::parameters::Path;
use adamw::AdamW;
use gradients::flatten;
use muon::Muon;
use tinderbox_kernels::MatmulPrecision;

/// The optimizer of a run with its running means.
///
/// [`OptimizerKind::Muon`] moves the matrices of the blocks by Muon and all other parameters by `AdamW`;
/// [`OptimizerKind::Adamw`] moves every parameter by `AdamW`.
#[derive(Clone, Debug)]
pub struct Optimizer {
    peak_learning_rate: f64,
    adamw: AdamW,
    muon: Option<Muon>,
}

impl Optimizer {
    /// An optimizer before its first step. `hidden` are the matrices for Muon, from
    /// [`hidden_matrices`](crate::model::parameters::hidden_matrices).
    #[must_use]
    pub fn new(config: &OptimizerConfig, hidden: BTreeMap<String, Vec<usize>>) -> Self {
        let muon = match config.kind {
            OptimizerKind::Adamw => None,
            OptimizerKind::Muon => Some(Muon::new(config, hidden)),
        };
        Self { peak_learning_rate: config.learning_rate, adamw: AdamW::new(config), muon }
    }

    /// Sets the precision of the products that make Muon's steps orthogonal; f32 by default.
    #[must_use]
    pub fn with_matmul_precision(mut self, precision: MatmulPrecision) -> Self {
        if let Some(muon) = &mut self.muon {
            muon.precision = precision;
        }
        self
    }

    /// Moves every parameter of `module` that has a gradient, at the schedule's `learning_rate` of `step`,
    /// which counts from 0. Muon's learning rate is the same share of its peak.
    #[must_use]
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, learning_rate: f64, step: usize) -> M {
        module.map(&mut Update {
            rates: self.adamw.rates(learning_rate, step),
            share: learning_rate / self.peak_learning_rate,
            optimizer: self,
            gradients,
            path: Path::default(),
        })
    }

    /// All running means by kind and parameter, for a checkpoint, still on the device. Keeping them beyond the next
    /// step costs a copy.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, LazyTensor> {
        let mut state = BTreeMap::new();
        self.adamw.save(&mut state);
        if let Some(muon) = &self.muon {
            muon.save(&mut state);
        }
        state
    }

    /// Restores the result of [`Optimizer::state`], for parameters of these shapes. Before the first step it is empty.
    ///
    /// # Errors
    /// If another kind of optimizer wrote it, or a running mean is missing, of another size, of no
    /// parameter, or cannot be read.
    pub fn restore(
        &mut self,
        mut state: BTreeMap<String, LazyTensor>,
        shapes: &BTreeMap<String, Vec<usize>>,
        device: &Device,
    ) -> Result<(), StateError> {
        self.adamw.clear();
        if let Some(muon) = &mut self.muon {
            muon.clear();
        }
        if state.is_empty() {
            return Ok(());
        }
        let (written, configured) = (kind_of(&state), self.kind());
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

    fn kind(&self) -> OptimizerKind {
        match self.muon {
            Some(_) => OptimizerKind::Muon,
            None => OptimizerKind::Adamw,
        }
    }
}

/// The kind of optimizer that wrote a state that is not empty.
fn kind_of(state: &State) -> OptimizerKind {
    match state.keys().any(|key| muon::is_key(key)) {
        true => OptimizerKind::Muon,
        false => OptimizerKind::Adamw,
    }
}

/// One step's walk over a module.
struct Update<'a> {
    optimizer: &'a mut Optimizer,
    gradients: Gradients,
    rates: adamw::Rates,
    /// The learning rate as a share of its peak.
    share: f64,
    path: Path,
}

impl ModuleMapper for Update<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join();
        let Some(gradient) = self.gradients.remove(&name) else {
            return param;
        };
        let Optimizer { adamw, muon, .. } = &mut *self.optimizer;
        param.map(|old| {
            let shape = old.shape();
            let weights = flatten(old.inner());
            let new = match muon.as_mut().filter(|muon| muon.moves(&name)) {
                Some(muon) => muon.update(name, weights, gradient, self.share),
                None => adamw.update(name, weights, gradient, D == 2, self.rates),
            };
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

/// Why the state in a checkpoint cannot be restored.
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

/// The kind as a config names it.
fn key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::Adamw => "\"adamw\"",
        OptimizerKind::Muon => "\"muon\"",
    }
}

/// Running means by kind and parameter, such as `first_moment.NAME`.
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
