//! One run of a sweep, trained up to a rung. A rung is a stop: the run has the length and the schedule of a whole run,
//! is interrupted after the evaluation of the rung's last step as Ctrl-C would interrupt it, and goes on from there if
//! it is promoted.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use super::SweepError;
use crate::config::Config;
use crate::device::OpenDevice;
use crate::format::first_line;
use crate::run::layout::METRICS;
use crate::run::log::{MetricsLine, read_lines};
use crate::run::{Checkpoint, RunDir, RunError};
use crate::train::{self, Event, Interrupter, Job, Observer, Start, TrainError};

/// How far a run came.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reached {
    /// The rung, with this validation loss.
    Rung { bits_per_byte: f64 },
    /// Its end, for this reason.
    End(String),
}

/// Stops a run at a step, or when the sweep is to stop.
struct StopAt {
    step: usize,
    run: Interrupter,
    sweep: Interrupter,
}

impl Observer for StopAt {
    fn observe(&mut self, event: &Event<'_>) {
        if self.sweep.should_stop() || matches!(event, Event::Evaluated(it) if it.step == self.step) {
            self.run.stop(None);
        }
    }
}

/// Trains the run at `root` until it has made `step` steps, from where it is; if it is there already, reads what it
/// reached. A loss that is not finite, a panic, or settings that only training refuses are an end of the run.
///
/// # Errors
/// If the disk or the device fails, or `interrupter` stops the sweep: all of which says nothing of the run.
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
        Err(_) => {
            // A process that was killed while it made the folder left something that is no run.
            fs::remove_dir_all(root).ok();
            Start::New
        }
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
/// at its end over the whole split.
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

/// Removes the checkpoints of a run that does not go on; its logs stay.
pub(super) fn forget(root: &Path) -> Result<(), RunError> {
    match RunDir::open(root) {
        Ok(run) => run.remove_checkpoints(),
        Err(_) => Ok(()),
    }
}
