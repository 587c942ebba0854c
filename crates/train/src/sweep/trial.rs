//! One run of a sweep.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use super::SweepError;
use crate::config::Config;
use crate::run::RunDir;
use crate::run::layout::METRICS;
use crate::run::log::{MetricsLine, read_lines};
use crate::train::{self, Event, Interrupter, Job, Observer, Start, TrainError};
use tinderbox_model::device::OpenDevice;
use tinderbox_model::format::first_line;

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

/// Trains the run at `root` to its end, continuing from its last checkpoint, and returns its validation loss in bits per
/// byte, of preferences in nats per pair. The inner error is the reason why the run ended without one: a non-finite loss, a panic, or settings that only
/// training rejects.
///
/// # Errors
/// If the disk or the device fails, or `interrupter` stops the sweep: none of these say anything about the run.
pub(super) fn train(
    root: &Path,
    config: Config,
    device: &OpenDevice,
    interrupter: &Interrupter,
) -> Result<Result<f64, String>, SweepError> {
    let max_steps = config.train.max_steps;
    if let Some(bits_per_byte) = final_loss(root, max_steps) {
        return Ok(Ok(bits_per_byte));
    }
    let start = match RunDir::open(root) {
        Ok(run) if run.last().is_ok() => Start::Resume,
        Ok(_) => Start::Overwrite,
        Err(_) => Start::New, // there may be a lock, of a process killed as it began
    };
    let job = Job { config, run_dir: root.to_owned(), start, from: None, device: device.clone() };
    let trained = panic::catch_unwind(AssertUnwindSafe(|| train::train(job, Box::new(Silent), interrupter)));
    if interrupter.should_stop() {
        return Err(SweepError::Interrupted);
    }
    match trained {
        Ok(Ok(_)) => Ok(Ok(final_loss(root, max_steps).expect("a run that ends logs its validation loss"))),
        Ok(Err(error @ (TrainError::Run(_) | TrainError::Device { .. } | TrainError::InterruptedEarly))) => {
            Err(error.into())
        }
        Ok(Err(error)) => Ok(Err(first_line(error))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Ok(Err(format!("panicked: {}", first_line(text))))
        }
    }
}

/// The loss that the run at `root` logged at its end, over the whole validation split.
fn final_loss(root: &Path, max_steps: usize) -> Option<f64> {
    let run = RunDir::open(root).ok()?;
    let lines = read_lines::<MetricsLine>(&run.join(METRICS)).ok()?.lines;
    lines.iter().filter(|line| line.step == max_steps as u64).find_map(|line| line.val_bits_per_byte.or(line.val_loss))
}
