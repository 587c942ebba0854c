//! How gradients become new weights: clipped together, moved by AdamW or Muon, at a learning rate that is
//! a pure function of the step.
//!
//! This part knows parameters by their names, and nothing of what they do in a model: which of them are a
//! block's matrices it is told.

mod adamw;
mod gradients;
mod muon;
mod newton_schulz;
pub mod schedule;
mod state;

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

pub use gradients::{Clipped, Gradients};
pub(crate) use newton_schulz::N_ITERATIONS as NEWTON_SCHULZ_ITERATIONS;
pub use schedule::learning_rate;
pub use state::StateError;

use crate::config::{OptimizerConfig, OptimizerKind};
use crate::model::LazyTensor;
use crate::model::parameters::Path;
use adamw::AdamW;
use gradients::flatten;
use muon::Muon;
use tinderbox_kernels::MatmulPrecision;

/// The optimiser of a run, and what it remembers of the gradients so far.
///
/// With [`OptimizerKind::Muon`] it moves the blocks' matrices by Muon; everything else, embeddings, output
/// layer, norms and biases, and with [`OptimizerKind::Adamw`] every parameter, by `AdamW`.
#[derive(Clone, Debug)]
pub struct Optimizer {
    peak_learning_rate: f64,
    adamw: AdamW,
    muon: Option<Muon>,
}

impl Optimizer {
    /// An optimiser that has not seen a gradient yet. `hidden` are the matrices that Muon moves where it is
    /// configured, as [`hidden_matrices`](crate::model::parameters::hidden_matrices) gives them.
    #[must_use]
    pub fn new(config: &OptimizerConfig, hidden: BTreeMap<String, Vec<usize>>) -> Self {
        let muon = match config.kind {
            OptimizerKind::Adamw => None,
            OptimizerKind::Muon => Some(Muon::new(config, hidden)),
        };
        Self { peak_learning_rate: config.learning_rate, adamw: AdamW::new(config), muon }
    }

    /// The optimiser with another precision of the products that make Muon's steps orthogonal: f32 otherwise.
    #[must_use]
    pub fn with_matmul_precision(mut self, precision: MatmulPrecision) -> Self {
        if let Some(muon) = &mut self.muon {
            muon.precision = precision;
        }
        self
    }

    /// Moves every parameter of `module` that has a gradient, at the schedule's `learning_rate` of `step`,
    /// which counts from 0. Muon's learning rate is at the same share of its highest.
    #[must_use]
    pub fn step<M: Module>(
        &mut self,
        module: M,
        gradients: impl Into<Clipped>,
        learning_rate: f64,
        step: usize,
    ) -> M {
        let gradients = gradients.into();
        module.map(&mut Update {
            rates: self.adamw.rates(learning_rate, step),
            factor: gradients.factor(),
            share: learning_rate / self.peak_learning_rate,
            optimizer: self,
            gradients,
            path: Path::default(),
        })
    }

    /// All running means, by what they are and the parameter they belong to, for a checkpoint: as they are now,
    /// where they are. To keep them beyond the next step costs a copy.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, LazyTensor> {
        let mut state = BTreeMap::new();
        self.adamw.save(&mut state);
        if let Some(muon) = &self.muon {
            muon.save(&mut state);
        }
        state
    }

    /// Puts back what [`Optimizer::state`] gave, for parameters of these shapes.
    ///
    /// # Errors
    /// If another kind of optimiser wrote it, or a running mean is missing, of another size, of no
    /// parameter, or cannot be read. Before the first step there are none, which is no error.
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

/// Which kind of optimiser wrote a state that is not empty.
fn kind_of(state: &BTreeMap<String, LazyTensor>) -> OptimizerKind {
    match state.keys().any(|key| muon::is_key(key)) {
        true => OptimizerKind::Muon,
        false => OptimizerKind::Adamw,
    }
}

/// One step's walk over a module.
struct Update<'a> {
    optimizer: &'a mut Optimizer,
    gradients: Clipped,
    /// What gradients are multiplied with.
    factor: Option<Tensor<1>>,
    rates: adamw::Rates,
    /// The learning rate as a share of its highest.
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
            let gradient = (gradient, self.factor.clone());
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
