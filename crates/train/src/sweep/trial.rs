//! One run of a sweep, trained up to a rung. A rung is an interruption: the run has the length and the schedule of a
//! full run, stops after the evaluation of the rung's last step as with Ctrl-C, and resumes if promoted.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use super::SweepError;
use crate::config::Config;
use crate::run::layout::METRICS;
use crate::run::log::{MetricsLine, read_lines};
use crate::run::{Checkpoint, RunDir, RunError};
use crate::train::{self, Event, Interrupter, Job, Observer, Start, TrainError};
use tinderbox_model::device::OpenDevice;
use tinderbox_model::format::first_line;

/// The point at which a run stopped.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reached {
    /// It reached the rung, with this validation loss.
    Rung { bits_per_byte: f64 },
    /// It ended, for this reason.
    End(String),
}

/// Stops a run at a step, or when the sweep is stopped.
struct StopAt {
    step: usize,
    run: Interrupter,
    sweep: Interrupter,
}

impl Observer for StopAt {
    fn observe(&mut self, event: &Event<'_>) {
        if self.sweep.should_stop() || matches!(event, Event::Evaluated(it) if it.step == self.step) {
            self.run.stop();
        }
    }
}

/// Trains the run at `root` up to `step` steps, continuing from where it is; if it is already there, reads its result.
/// A non-finite loss, a panic, or settings that only training rejects end the run.
///
/// # Errors
/// If the disk or the device fails, or `interrupter` stops the sweep: none of these say anything about the run.
pub(super) fn train_to(
    step: usize,
    root: &Path,
    config: Config,
    device: &OpenDevice,
    interrupter: &Interrupter,
) -> Result<Reached, SweepError> {
    if let Some(bits_per_byte) = reached(root, step, &config) {
        return Ok(Reached::Rung { bits_per_byte });
    }
    let start = match RunDir::open(root) {
        Ok(run) if run.last().is_ok() => Start::Resume,
        Ok(_) => Start::Overwrite,
        Err(_) => Start::New, // there may be a lock, of a process killed as it began
    };
    let own = Interrupter::new();
    let is_last = step == config.train.max_steps;
    let stop_at =
        StopAt { step: if is_last { usize::MAX } else { step }, run: own.clone(), sweep: interrupter.clone() };
    let job = Job { config: config.clone(), run_dir: root.to_owned(), start, from: None, device: device.clone() };
    let trained = panic::catch_unwind(AssertUnwindSafe(|| train::train(job, Box::new(stop_at), &own)));
    if interrupter.should_stop() {
        return Err(SweepError::Interrupted);
    }
    match trained {
        Ok(Ok(_)) => {
            let bits_per_byte = reached(root, step, &config).expect("the run was evaluated and saved at its rung");
            Ok(Reached::Rung { bits_per_byte })
        }
        Ok(Err(error @ (TrainError::Run(_) | TrainError::Device { .. } | TrainError::InterruptedEarly))) => {
            Err(error.into())
        }
        Ok(Err(error)) => Ok(Reached::End(first_line(error))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Ok(Reached::End(format!("panicked: {}", first_line(text))))
        }
    }
}

/// The validation loss of the run at `root` after `step` steps, if it was evaluated and saved there: an estimate, or
/// over the whole split at its end.
fn reached(root: &Path, step: usize, config: &Config) -> Option<f64> {
    let run = RunDir::open(root).ok()?;
    let state = Checkpoint::read_state(&run.last().ok()?).ok()?;
    let lines = read_lines::<MetricsLine>(&run.join(METRICS)).ok()?.lines;
    let mut lines = lines.iter().filter(|line| line.step == step as u64 && state.step >= step);
    lines.find_map(|line| match step == config.train.max_steps {
        true => line.val_bits_per_byte,
        false => line.val_bits_per_byte_estimate,
    })
}

/// Removes the checkpoints of a run that is not promoted; its logs stay.
pub(super) fn forget(root: &Path) -> Result<(), RunError> {
    match RunDir::open(root) {
        Ok(run) => run.remove_checkpoints(),
        Err(_) => Ok(()),
    }
}
