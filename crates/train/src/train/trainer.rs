//! One training step: batch, forward and backward pass, gradient clipping, and optimizer update.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use burn::module::Module;
use burn::tensor::Tensor;

use super::TrainError;
use super::outer::Outer;
use super::parallel::DataParallel;
use super::preference::Preference;
use super::skip::{NormsByLayer, Skipped, StepGuard};
use crate::config::Config;
use crate::data::{BatchSource, Draw};
use crate::distributed::Ranks;
use crate::optimizer::{BatchSchedule, Gradients, Optimizer, Squares, learning_rate};
use crate::run::{Checkpoint, TrainState};
use tinderbox_kernels::{DropoutKey, MatmulPrecision};
use tinderbox_model::device;
use tinderbox_model::{Gpt, parameters};

/// A model in training: the weights, the optimizer state, and the number of steps made.
#[derive(Debug)]
pub struct Trainer {
    model: Option<Gpt>,
    optimizer: Optimizer,
    precision: MatmulPrecision,
    config: Config,
    data: Box<dyn BatchSource>,
    /// The loss, if the data are preferences.
    preference: Option<Preference>,
    step: usize,
    guard: StepGuard,
    parallel: DataParallel,
    /// The outer momentum saved by an earlier process, by parameter name.
    outer_momentum: BTreeMap<String, Vec<f32>>,
}

/// The measurements of a step, still on the device; reading them waits until the step is done.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// Mean loss of the step's targets before the update, in nats per token, `[1]`.
    pub loss: Tensor<1>,
    /// Global gradient norm (of all gradients together), before clipping, `[1]`.
    pub gradient_norm: Tensor<1>,
    /// The squares of each gradient, before clipping; empty if the step was skipped.
    pub(super) squares: Squares,
    /// The reason why the step did not change the weights; `None` if it did change them.
    pub(super) skipped: Option<Box<Skipped>>,
}

impl StepResult {
    /// Waits until the step is done.
    ///
    /// # Errors
    /// The device's message, if the device fails.
    pub fn wait(self) -> Result<(), String> {
        self.read().map(|_| ())
    }

    /// Waits until the step is done, and returns its loss and gradient norm.
    pub(super) fn read(self) -> Result<[f32; 2], String> {
        let read = Tensor::cat(vec![self.loss, self.gradient_norm], 0).try_into_vec_as::<f32>();
        let read = read.map_err(|error| error.to_string())?;
        Ok([read[0], read[1]])
    }
}

/// Rows of a micro-batch of a step; steps and micro-batches count from 0, and rows from the first of the micro-batch.
pub(crate) fn draw(config: &Config, step: usize, micro_step: usize, rows: Range<usize>) -> Draw {
    let batches = BatchSchedule::new(config);
    let [batch_size, context_length] = batches.at(step);
    let first = micro_step * batch_size;
    Draw {
        seed: config.train.seed,
        step: step as u64,
        rows: first + rows.start..first + rows.end,
        n_earlier_rows: batches.tokens_before(step) / context_length as u64,
        context_length,
        with_replacement: config.train.with_replacement,
    }
}

impl Trainer {
    /// A trainer before its first step. The model must be on an autodiff device.
    ///
    /// Only flex can train in bf16: [check](super::precision::check) the config first.
    pub fn new(model: Gpt, config: &Config, data: impl BatchSource + 'static) -> Self {
        let precision = config.train.matmul_precision.on(&model.device().inner());
        let optimizer = Optimizer::new(&config.optimizer, model.parameters(), precision);
        let guard = StepGuard::new(&config.train, device::is_cpu(&model.device()));
        Self {
            model: Some(model),
            optimizer,
            precision,
            config: config.clone(),
            preference: data.are_preferences().then(|| Preference::new(&config.finetune)),
            data: Box::new(data),
            step: 0,
            guard,
            parallel: DataParallel::alone(),
            outer_momentum: BTreeMap::new(),
        }
    }

    /// From the next step on, computes only this rank's rows of each batch, and updates the weights with the gradients of
    /// all `ranks`.
    pub(super) fn join(&mut self, ranks: &Ranks) {
        let model = self.trained().valid();
        self.parallel = DataParallel::new(ranks, &self.config.distributed, &model, self.step, &self.outer_momentum);
    }

    pub(super) fn ranks(&self) -> &Ranks {
        self.parallel.ranks()
    }

    /// Draws a batch, and updates the weights with the gradient of the loss.
    ///
    /// The weights stay unchanged if the loss or the gradient is not finite and this is known before the update (on a
    /// CPU, or if the config requires it), or if the loss is a spike as defined by the config.
    pub fn step(&mut self) -> StepResult {
        self.step_unless(|| false).expect("nothing stops this step")
    }

    /// Like [`Trainer::step`]; `None`, with nothing changed, if `is_stopped` returned true between two micro-batches.
    pub fn step_unless(&mut self, is_stopped: impl Fn() -> bool + Send) -> Option<StepResult> {
        let device = self.trained().device();
        let result = device::compute(&device, || self.update(is_stopped))?;
        if self.parallel.is_due(self.step) {
            self.average();
        }
        Some(result)
    }

    /// Averages the weights of ranks that make local steps. All ranks call this after the same step.
    pub(super) fn average(&mut self) {
        let model = self.model.take().expect("the model is here between steps");
        self.model = Some(self.parallel.average(model, self.step));
    }

    /// Averages the optimizers' running means of ranks that make local steps. All ranks continue with the averages, so
    /// that one checkpoint holds the whole state of all ranks. All ranks call this after the same step.
    pub(super) fn average_optimizer(&mut self) {
        if self.parallel.outer().is_none() {
            return;
        }
        if let Some(state) = self.parallel.average_state(&self.optimizer.state()) {
            let device = self.trained().device().inner();
            self.optimizer.restore(state, &device).expect("the averaged state fits the optimizer");
        }
    }

    fn update(&mut self, is_stopped: impl Fn() -> bool + Send) -> Option<StepResult> {
        let (gradients, loss) = self.backward(self.trained(), is_stopped)?;
        let squares = gradients.squares();
        let gradient_norm = squares.global_norm();
        if let Some((what, value, usual)) = self.guard.check(&loss, &gradient_norm) {
            let norms = match usual {
                Some(_) => NormsByLayer::default(), // all numbers of a spike are finite
                None => NormsByLayer::new(self.trained(), Some(&gradients)),
            };
            self.step += 1;
            let skipped = Some(Box::new(Skipped { what, value, usual, norms }));
            return Some(StepResult { loss, gradient_norm, squares: Squares::default(), skipped });
        }
        let model = self.model.take().expect("the model is here between steps");
        let gradients = match self.config.optimizer.grad_clip_norm {
            max_norm if max_norm > 0.0 => gradients.clip(gradient_norm.clone(), max_norm),
            _ => gradients,
        };
        let learning_rate = self.learning_rate_of(self.step);
        self.model = Some(self.optimizer.step(model, gradients, learning_rate, self.step));
        self.step += 1;
        Some(StepResult { loss, gradient_norm, squares, skipped: None })
    }

    /// The gradients and the loss of this step: the sum over the targets of all micro-batches and ranks, divided by
    /// their number. `None` if stopped between two micro-batches.
    ///
    /// # Panics
    /// If the step has no targets.
    fn backward(&self, model: &Gpt, is_stopped: impl Fn() -> bool + Send) -> Option<(Gradients, Tensor<1>)> {
        let train = &self.config.train;
        let (n_micro_steps, seed, step) = (train.grad_accumulation_steps, train.seed, self.step as u64);
        let draw = |micro_step: usize, rows: &Range<usize>| draw(&self.config, self.step, micro_step, rows.clone());
        let [batch_size, _] = BatchSchedule::new(&self.config).at(self.step);
        let (own, averaged) = (self.parallel.rows(batch_size), self.parallel.averaged_rows(batch_size));
        let n_targets: usize = (0..n_micro_steps).map(|idx| self.data.n_targets(draw(idx, &averaged))).sum();
        assert!(n_targets > 0, "step {step} has no targets");
        let device = model.device();
        let mut sum: Option<(Gradients, Tensor<1>)> = None;
        for micro_step in 0..n_micro_steps {
            if micro_step > 0 && is_stopped() {
                return None;
            }
            if own.is_empty() {
                continue; // fewer rows than ranks
            }
            let batch = self.data.draw(draw(micro_step, &own));
            if batch.n_targets() == 0 {
                continue; // the last rows of a pass over records may be other ranks'
            }
            let key = DropoutKey { seed, step, micro_step: micro_step as u64, first_row: own.start };
            let loss = if let Some(preference) = &self.preference {
                preference.loss(model, &batch, self.precision, Some(key)) / n_targets as f64
            } else {
                let n_parts = n_targets as f64 / batch.n_targets() as f64;
                let lengths = batch.lengths.clone();
                let (tokens, targets) = batch.to_device(&device);
                model.loss(tokens, lengths, targets, self.precision, Some(key)) / n_parts
            };
            let gradients = Gradients::take(model, loss.backward());
            let loss = loss.inner();
            sum = Some(match sum {
                Some((so_far, total)) => (so_far.plus(gradients), total + loss),
                None => (gradients, loss),
            });
        }
        Some(self.parallel.sum(model, sum))
    }

    /// The learning rate of step `step`, counted from 0.
    pub(super) fn learning_rate_of(&self, step: usize) -> f64 {
        let peak = self.config.optimizer.learning_rate;
        learning_rate(&self.config.schedule, peak, step, self.config.train.max_steps)
    }

    /// The current model for evaluation: without gradients or dropout, and with averaged weights if configured.
    pub fn evaluated(&self) -> Gpt {
        self.optimizer.averaged(self.trained().valid())
    }

    /// The number of steps made, including skipped ones and those of earlier processes.
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The contents of a checkpoint, still on the device, with the step and the recent losses of this trainer in `state`.
    /// Keeping them beyond the next step costs a copy.
    ///
    /// The checkpoint's model is the one returned by [`Trainer::evaluated`]. If its weights are averages, the trained
    /// weights are in the optimizer state.
    pub fn checkpoint(&self, state: TrainState) -> Checkpoint {
        let state = TrainState { step: self.step, recent_losses: self.guard.recent.clone(), ..state };
        let mut optimizer = self.optimizer.state();
        optimizer.extend(self.optimizer.learning_weights(self.trained()));
        if let Some(outer) = self.parallel.outer() {
            outer.save(&mut optimizer);
        }
        Checkpoint { model: parameters::lazy(&self.evaluated()), optimizer, state }
    }

    /// Continues from a checkpoint that was read from `dir`.
    pub fn restore(&mut self, mut checkpoint: Checkpoint, dir: &Path) -> Result<(), TrainError> {
        let model = self.model.take().expect("the model is here between steps");
        let device = model.device().inner();
        let mut state = std::mem::take(&mut checkpoint.optimizer);
        let misfit = |source| TrainError::OptimizerState { path: dir.to_owned(), source };
        self.outer_momentum = Outer::take(&mut state).map_err(misfit)?;
        self.step = checkpoint.state.step;
        if self.config.train.skip_loss_spikes > 0.0 {
            self.guard.recent.clone_from(&checkpoint.state.recent_losses);
        }
        let model = checkpoint.into_model(dir, model)?;
        let model = self.optimizer.restore_average(model, &mut state, &device).map_err(misfit)?;
        self.optimizer.restore(state, &device).map_err(misfit)?;
        self.model = Some(model);
        Ok(())
    }

    /// Replaces the model by another one with the same trained parameters.
    pub(super) fn change_model(&mut self, change: impl FnOnce(Gpt) -> Gpt) {
        self.model = self.model.take().map(change);
    }

    /// The loss, if the data are preferences.
    pub(super) fn preference(&self) -> Option<&Preference> {
        self.preference.as_ref()
    }

    /// The number of parameters, and of those that the steps change.
    pub(super) fn n_parameters(&self) -> [u64; 2] {
        self.trained().parameters().fold([0, 0], |[all, trained], row| {
            let n = row.n_numbers();
            [all + n, if row.is_trained { trained + n } else { trained }]
        })
    }

    pub(super) fn weight_norms(&self) -> NormsByLayer {
        NormsByLayer::new(self.trained(), None)
    }

    fn trained(&self) -> &Gpt {
        self.model.as_ref().expect("the model is here between steps")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::tensor::Device;
    use tinderbox_kernels::IGNORE_INDEX;
    use tinderbox_model::device::DeviceSpec;

    use super::*;
    use crate::data::{Batch, DataError};

    /// Rows of 8 tokens; the list has the number of leading targets that count in each.
    #[derive(Debug)]
    struct Masked([usize; 4]);

    impl BatchSource for Masked {
        fn draw(&self, Draw { rows, .. }: Draw) -> Batch {
            let token = |row: usize, idx: usize| i32::try_from((row * 3 + idx * idx) % 7).expect("the token fits i32");
            let cells = || rows.clone().flat_map(|row| (0..8).map(move |idx| (row, idx)));
            let target = |(row, idx)| if idx < self.0[row] { token(row, idx + 1) } else { IGNORE_INDEX };
            let inputs = cells().map(|(row, idx)| token(row, idx)).collect();
            Batch { inputs, targets: cells().map(target).collect(), batch_size: rows.len(), seq_len: 8, lengths: None }
        }

        fn spread(&self, _: usize, _: usize, _: usize) -> Box<dyn Iterator<Item = Batch>> {
            unreachable!("training only draws")
        }

        fn check(&self) -> Result<(), DataError> {
            Ok(())
        }
    }

    /// The loss and the gradient of a step, as one of `n_ranks` computed them.
    fn loss_and_gradients([batch_size, n_micro_steps, n_ranks]: [usize; 3]) -> Vec<(f32, Vec<f32>)> {
        let sets = [
            "model.context_length=8".to_owned(),
            "model.dropout=0.0".to_owned(),
            "model.d_model=16".to_owned(),
            format!("train.batch_size={batch_size}"),
            format!("train.grad_accumulation_steps={n_micro_steps}"),
        ];
        let config = Config::from_toml("data = {path = \"a\"}", "c.toml".as_ref(), &sets).expect("the config is valid");
        let device = device::open(&DeviceSpec::Cpu).expect("the CPU works");
        let compute = |ranks: Ranks| {
            let model = Gpt::new(&config.model, 7, 1, &Device::flex().autodiff());
            let mut trainer = Trainer::new(model, &config, Masked([3, 8, 0, 1]));
            trainer.join(&ranks);
            let (gradients, loss) = trainer.backward(trainer.trained(), || false).expect("nothing stops this step");
            let numbers = |x: &Tensor<1>| x.clone().try_into_vec_as::<f32>().expect("the CPU works");
            (numbers(&loss)[0], gradients.iter().flat_map(|(_, gradient)| numbers(gradient)).collect())
        };
        let ranks = Ranks::of_devices(&vec![device; n_ranks]);
        thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|ranks| scope.spawn(|| compute(ranks))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        })
    }

    #[test]
    fn unequal_micro_batches_and_ranks_equal_one_batch() {
        let (loss, gradients) = loss_and_gradients([4, 1, 1]).remove(0);
        let largest = gradients.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        // Row 2 has no targets: alone in a micro-batch, or on a rank, it adds nothing.
        for shape in [[2, 2, 1], [1, 4, 1], [4, 1, 2], [4, 1, 4], [4, 1, 5], [2, 2, 2]] {
            for (found, parts) in loss_and_gradients(shape) {
                assert!((found - loss).abs() < 1e-5, "{shape:?}: {found} is not {loss}");
                assert!(parts.iter().zip(&gradients).all(|(a, b)| (a - b).abs() < 1e-5 * largest), "{shape:?}");
            }
        }
    }
}
