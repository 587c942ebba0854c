//! The cost of a fine-tuning, which depends on the lengths of its records: measured in real steps on the largest batch.

use std::time::Duration;

use serde::Serialize;

use super::{PlanError, SlotMemory};
use crate::config::{Config, FinetuneMethod};
use crate::data::{Batch, BatchSource, DataError, Draw, Records};
use crate::optimizer::BatchSchedule;
use crate::train::{Trainer, draw, dry_run};
use tinderbox_model::Parameter;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::measure::{Machine, Trial, peak_rss_mib};

/// The measured steps. An optimizer's first step does less than the others.
const TRIAL: Trial = Trial { warm_up: 2, rounds: 1..=10, enough: Duration::from_secs(6) };

/// The time of a batch without a backward pass, as a fraction of that of a step on it.
const EVALUATION: f64 = 1.0 / 3.0;

/// The passes over the records whose batches are looked at.
const PASSES: usize = 3;

/// The cost of a fine-tuning.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct FinetunePlan {
    pub device: String,
    /// The trained parameters.
    pub method: FinetuneMethod,
    pub records: Records,
    /// The records of each pass, and those that are held out.
    pub train_records: usize,
    pub val_records: usize,
    pub parameters: u64,
    pub trained_parameters: u64,
    pub steps: usize,
    pub passes: f64,
    /// The mean number of tokens that a step computes, padding included.
    pub tokens_per_step: f64,
    /// The number of tokens of the largest micro-batch, padding included.
    pub largest_batch: usize,
    pub checkpoint_bytes: u64,
    pub slot: SlotMemory,
    /// The steps that were measured; `None` if none were.
    pub measured: Option<FinetuneCost>,
    /// The machine's memory; `None` if unknown, as on a GPU.
    pub machine: Option<Machine>,
}

/// The measured cost of a few real steps.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct FinetuneCost {
    /// The peak memory of the process, in bytes; `None` if the system does not report it.
    pub peak: Option<u64>,
    /// A step with the largest batch, in milliseconds.
    pub largest_step_ms: f64,
    /// A step on average, in milliseconds.
    pub step_ms: f64,
    /// Tokens of training per second, padding included.
    pub tokens_per_s: f64,
    pub steps_s: f64,
    pub evaluations_s: f64,
}

/// Plans the fine-tuning of `config` on `device`. With `measure`, makes a few real steps. Leaves nothing behind.
pub fn plan_finetune(config: &Config, device: &OpenDevice, measure: bool) -> Result<FinetunePlan, PlanError> {
    let (config, corpus, model) = dry_run(config.clone(), device).map_err(Box::new)?;
    let records = corpus.records.as_ref().expect("a fine-tuning has records");
    let source = corpus.train_batches();
    let train = &config.train;
    let n_batches = train.max_steps * train.grad_accumulation_steps;
    let batch = |idx: usize| {
        let (step, micro_step) = (idx / train.grad_accumulation_steps, idx % train.grad_accumulation_steps);
        let [n_rows, _] = BatchSchedule::new(&config).at(step);
        source.draw(draw(&config, step, micro_step, 0..n_rows))
    };
    // Later passes have the same records in another order.
    let of_some_passes = PASSES * records.train.n_rows() / train.batch_size;
    let sizes: Vec<usize> = (0..n_batches.min(of_some_passes)).map(|idx| batch(idx).inputs.len()).collect();
    let largest = (0..sizes.len()).max_by_key(|idx| sizes[*idx]).expect("a run has at least one step");
    let all = sizes.iter().sum::<usize>() as f64 * n_batches as f64 / sizes.len() as f64;
    let table: Vec<Parameter> = model.parameters().collect();
    let learned: Vec<Parameter> = table.iter().filter(|row| row.is_trained).cloned().collect();
    let trained_parameters = learned.iter().map(Parameter::n_numbers).sum::<u64>();
    let adapters: u64 = match config.finetune.lora() {
        Some(lora) => lora.parameters(&table).iter().map(Parameter::n_numbers).sum(),
        None => 0,
    };
    let state = config.optimizer.saved_tensors(&learned).into_values();
    let state: u64 = state.map(|shape| shape.iter().product::<usize>() as u64).sum();
    let mut plan = FinetunePlan {
        device: device.name.clone(),
        method: config.finetune.method,
        records: records.summary.clone(),
        train_records: records.train.n_records(),
        val_records: records.val.n_records(),
        parameters: table.iter().map(Parameter::n_numbers).sum::<u64>() - adapters,
        trained_parameters,
        steps: train.max_steps,
        passes: (n_batches * train.batch_size) as f64 / records.train.n_rows() as f64,
        tokens_per_step: all / train.max_steps as f64,
        largest_batch: sizes[largest],
        checkpoint_bytes: 4 * (trained_parameters + state),
        slot: SlotMemory::new(&config.model),
        measured: None,
        machine: device.backend.is_cpu().then(Machine::here).flatten(),
    };
    if measure {
        let only = Only { batch: batch(largest), are_preferences: source.are_preferences() };
        let one = Config { schedule: config.schedule.without_ramp(), ..config.clone() };
        let mut trainer = Trainer::new(model, &one, only);
        let times = TRIAL.time(|| trainer.step().wait()).map_err(PlanError::Device)?;
        // A step has as many micro-batches as are accumulated, all of them the largest here.
        let tokens = (plan.largest_batch * train.grad_accumulation_steps) as f64;
        let tokens_per_s = times.per_s(tokens);
        let evaluated = |n_batches: usize| -> usize {
            let batches = corpus.val_batches().spread(config.model.context_length, train.batch_size, n_batches);
            batches.map(|batch| batch.inputs.len()).sum()
        };
        let n_evaluations = train.max_steps.checked_div(train.eval_interval).unwrap_or(0);
        let tokens = n_evaluations * evaluated(train.eval_batches) + evaluated(usize::MAX);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
        let peak = peak_rss_mib().map(|mib| (mib * 1_048_576.0) as u64);
        plan.measured = Some(FinetuneCost {
            peak,
            largest_step_ms: times.median_ms,
            step_ms: 1e3 * plan.tokens_per_step / tokens_per_s,
            tokens_per_s,
            steps_s: all / tokens_per_s,
            evaluations_s: EVALUATION * tokens as f64 / tokens_per_s,
        });
    }
    Ok(plan)
}

/// The same batch in every step.
#[derive(Debug)]
struct Only {
    batch: Batch,
    are_preferences: bool,
}

impl BatchSource for Only {
    fn draw(&self, _: Draw) -> Batch {
        self.batch.clone()
    }

    fn n_targets(&self, _: Draw) -> usize {
        if self.are_preferences { self.batch.batch_size / 2 } else { self.batch.n_targets() }
    }

    fn are_preferences(&self) -> bool {
        self.are_preferences
    }

    fn spread(&self, _: usize, _: usize, _: usize) -> Box<dyn Iterator<Item = Batch>> {
        Box::new(std::iter::once(self.batch.clone()))
    }

    fn check(&self) -> Result<(), DataError> {
        Ok(())
    }
}
