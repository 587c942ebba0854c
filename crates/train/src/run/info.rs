//! A summary of a run, from its files alone.

use std::path::PathBuf;

use serde::Serialize;
use toml::Table;

use super::layout::{CONFIG, METRICS, TIMINGS};
use super::log::{MetricsLine, Process, TimingsLine, processes_of, read_lines};
use super::{Checkpoint, RunDir, RunError, TrainState};
use crate::config::Config;

/// Whether a run is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It made all of its steps, or stopped early.
    Done,
    /// A process is training it.
    Running,
    /// It ended before its last step; `--resume` continues it if there is a checkpoint.
    #[default]
    Stopped,
    /// Its model was imported from another project, and was not trained here.
    Imported,
}

/// A summary of a run. A value is `None` if the run did not get that far, or an older version did not log it.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct RunInfo {
    #[serde(serialize_with = "tinderbox_model::format::serialize_path")]
    pub run: PathBuf,
    pub status: Status,
    /// Updates made; for a stopped run, those of its last checkpoint, and 0 without one.
    pub step: u64,
    /// Updates in all.
    pub max_steps: Option<u64>,
    pub parameters: Option<u64>,
    /// Those that the steps change: all, or only adapters.
    pub trained_parameters: Option<u64>,
    /// Tokens trained on, with repetition.
    pub tokens: Option<u64>,
    /// The time of all steps in seconds, including those before a resume.
    pub train_s: Option<f64>,
    /// The total wall-clock time in seconds, including that before a resume.
    pub wall_s: Option<f64>,
    /// The best validation loss, nats per token.
    pub val_loss: Option<f64>,
    /// Whether `val_loss` is an estimate rather than over the whole validation split.
    pub is_estimate: bool,
    /// The same in bits per byte of text: comparable between tokenizers.
    pub val_bits_per_byte: Option<f64>,
    /// Of preferences, the share of validation pairs whose better answer is preferred, at the best step. The loss is that
    /// of the preference, in nats per pair.
    pub val_accuracy: Option<f64>,
    /// How much more it is preferred on average.
    pub val_margin: Option<f64>,
    pub best_step: Option<u64>,
    pub device: Option<String>,
    /// The start time of the run, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    /// The checkpoint of another run that the initial weights came from.
    pub started_from: Option<String>,
    /// Files and lines that could not be read.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl RunInfo {
    /// What the losses are in.
    pub fn loss_unit(&self) -> &'static str {
        if self.val_accuracy.is_some() { "nats per pair" } else { "nats per token" }
    }

    /// Reads the summary of a run, as far as its files allow.
    pub fn read(run: &RunDir) -> Result<Self, RunError> {
        let config = config_table(run)?;
        let metrics = read_lines::<MetricsLine>(&run.join(METRICS))?;
        let timings = read_lines::<TimingsLine>(&run.join(TIMINGS))?;
        let mut notes = Vec::new();
        let broken = metrics.broken + timings.broken;
        if broken > 0 {
            notes.push(format!("`{}` has broken lines in its logs: {broken}", run.root().display()));
        }
        let (metrics, timings) = (metrics.lines, timings.lines);
        let processes = processes_of(&timings);
        let last_process = processes.last();
        let logged = metrics.last().map_or(0, |line| line.step);
        let end = metrics.iter().rfind(|line| line.val_loss.is_some());
        let is_complete = end.is_some_and(|end| end.step == logged);
        let is_busy = run.is_busy();
        let saved = if is_busy || is_complete { None } else { saved_state(run, &mut notes) };
        let imported = saved.as_ref().filter(|state| state.is_imported());
        let status = match (is_busy, is_complete) {
            (true, _) => Status::Running,
            (false, true) => Status::Done,
            (false, false) if imported.is_some() => Status::Imported,
            (false, false) => Status::Stopped,
        };
        let is_going_or_gone = is_busy || is_complete;
        // For a stopped run, the step that it can resume from.
        let step = saved.as_ref().map_or(if is_going_or_gone { logged } else { 0 }, |state| state.step as u64);
        let started_from = last_process.and_then(|process| process.from.clone());
        let max_steps = config["train"].get("max_steps").and_then(|steps| steps.as_integer()?.try_into().ok());
        let best = match end.filter(|_| is_complete) {
            Some(end) => best_at_end(end),
            None => best_estimate(&metrics, step),
        };
        let (val_loss, best_step) = best.unzip();
        let mut of_best = metrics.iter().rev().filter(|line| Some(line.step) == best_step);
        let preferred = of_best.find_map(|line| {
            let whole = line.val_accuracy.zip(line.val_margin);
            whole.or_else(|| line.val_accuracy_estimate.zip(line.val_margin_estimate))
        });
        let (val_accuracy, val_margin) = preferred.unzip();
        Ok(Self {
            run: run.root().to_owned(),
            status,
            step,
            max_steps: max_steps.filter(|_| imported.is_none()),
            parameters: match imported {
                None => last_process.and_then(|process| process.parameters),
                Some(_) => run.last().ok().and_then(|last| Checkpoint::n_parameters(&last).ok()),
            },
            trained_parameters: last_process.and_then(|process| process.trained_parameters),
            tokens: metrics.iter().rfind(|line| line.step <= step).and_then(|line| line.tokens),
            train_s: timings.iter().rev().find_map(|line| line.train_s),
            wall_s: timings.iter().rev().find_map(|line| line.wall_s),
            val_loss,
            is_estimate: val_loss.is_some() && !is_complete,
            val_bits_per_byte: val_loss
                .filter(|_| val_accuracy.is_none())
                .and_then(|loss| Some(loss * bits_per_byte_of_a_nat(last_process, &metrics)?)),
            val_accuracy,
            val_margin,
            best_step,
            device: last_process.and_then(|process| process.device.clone()),
            began_unix_s: processes.first().and_then(|first| first.began_unix_s),
            started_from: started_from.or_else(|| imported?.started_from.clone()),
            notes,
        })
    }
}

/// The best loss over the whole validation split, and its step.
fn best_at_end(end: &MetricsLine) -> Option<(f64, u64)> {
    match end.best_val_loss {
        Some(loss) => Some((loss, end.best_step.unwrap_or(end.step))),
        None => Some((end.val_loss?, end.step)), // older versions evaluated only the last weights
    }
}

/// The best estimate up to `step`, and its step. At step 0 the weights are another run's.
fn best_estimate(metrics: &[MetricsLine], step: u64) -> Option<(f64, u64)> {
    let of_this_run = metrics.iter().filter(|line| (1..=step).contains(&line.step));
    let estimates = of_this_run.filter_map(|line| Some((line.val_loss_estimate?, line.step)));
    estimates.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Bits per byte of the validation split for each nat per token: from the last line with both losses, since of records
/// only the tokens that count are measured, or from the sizes of the split.
fn bits_per_byte_of_a_nat(process: Option<&Process>, metrics: &[MetricsLine]) -> Option<f64> {
    let of_losses = metrics.iter().rev().find_map(|line| {
        let whole = line.val_bits_per_byte.zip(line.val_loss);
        let (bits, loss) = whole.or_else(|| line.val_bits_per_byte_estimate.zip(line.val_loss_estimate))?;
        (loss > 0.0).then_some(bits / loss)
    });
    of_losses.or_else(|| {
        let (tokens, bytes) = (process?.val_tokens?, process?.val_bytes?);
        (bytes > 0).then(|| tokens as f64 / bytes as f64 / std::f64::consts::LN_2)
    })
}

/// The training state in the last checkpoint.
fn saved_state(run: &RunDir, notes: &mut Vec<String>) -> Option<TrainState> {
    let last = run.last().ok()?;
    Checkpoint::read_state(&last).map_err(|error| notes.push(error.first_line())).ok()
}

/// The config of a run as a table with every section. Missing keys get their defaults, unless the config has keys that
/// this version does not know.
pub fn config_table(run: &RunDir) -> Result<Table, RunError> {
    let sections = ["data", "tokenizer", "model", "train", "optimizer", "schedule", "generate"];
    let mut table: Table = match run.config() {
        Ok(config) => toml::from_str(&config.to_toml()).expect("valid TOML"),
        Err(error) => {
            let text = Config::read(&run.join(CONFIG)).ok();
            text.and_then(|text| toml::from_str(&text).ok()).ok_or(error)?
        }
    };
    for name in sections {
        table.entry(name).or_insert_with(|| Table::new().into());
    }
    Ok(table)
}
