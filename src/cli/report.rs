//! `tinderbox report`: the report of a run, made again.

use std::path::{Path, PathBuf};

use super::{note, output};
use crate::device::{self, DeviceSpec};
use crate::format::shell_word;
use crate::report::{PAGE, Report, ReportError};
use crate::run::{RunDir, RunsError};

/// Write a page with a run's curves, texts, heads and config
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox report runs/quickstart
  tinderbox report runs/quickstart --output quickstart.html")]
pub(super) struct Args {
    /// A run directory; a run in progress is fine
    run: PathBuf,
    /// The page to write; one that is there is replaced [default: report.html in the run, with the curves as
    /// SVG beside it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to measure the heads on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

/// Reads the run, looks inside its best checkpoint, and writes the page.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        output::check_file(path)?;
    }
    let run = super::metrics::open(&args.run)?;
    let mut report = Report::read(&run)?;
    let device = match &args.device {
        Some(spec) => Some(device::open(spec)?),
        None => opened(&run).map_err(|reason| report.note(reason)).ok(),
    };
    if let Some(device) = device {
        report.look_inside(&run, &device.device);
    }
    for line in report.notes() {
        note(format!("note: {line}"));
    }
    let path = if let Some(path) = &args.output {
        output::write(path, &report.html())?;
        path.clone()
    } else {
        report.write(&run)?;
        run.join(PAGE)
    };
    note(format!("wrote `{}`", path.display()));
    Ok(())
}

/// The device of a run, or why there is none here.
fn opened(run: &RunDir) -> Result<device::OpenDevice, String> {
    let spec = run.config().map_err(|error| first_line(&error))?.train.device;
    let spec = spec.parse().map_err(|error| first_line(&error))?;
    device::open(&spec).map_err(|error| first_line(&error))
}

fn first_line(error: &impl std::fmt::Display) -> String {
    let error = error.to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

/// Writes the report of a run that has just ended, in whichever way, and says where it is or why there is
/// none. What matters was saved before.
pub(super) fn at_end(run_dir: &Path) -> String {
    match write_at_end(run_dir) {
        Ok(()) => format!("report: `{}`", run_dir.join(PAGE).display()),
        Err(error) => {
            let (program, reason) = (super::program(), first_line(&error));
            let run = shell_word(&run_dir.to_string_lossy());
            format!(
                "warning: no report: {reason}\n  hint: make it again with `{program} report {run}`"
            )
        }
    }
}

fn write_at_end(run_dir: &Path) -> Result<(), ReportError> {
    let run = RunDir::open(run_dir).map_err(RunsError::from)?;
    let mut report = Report::read(&run)?;
    match opened(&run) {
        Ok(device) => report.look_inside(&run, &device.device),
        Err(reason) => report.note(reason),
    }
    report.write(&run)
}
