//! `tinderbox report`: writes the report of a run, or a page that compares several runs.

use std::path::{Path, PathBuf};

use super::exit::Misuse;
use super::output;
use super::print::{note, note_each};
use crate::device::{self, DeviceSpec};
use crate::format::{first_line, shell_word};
use crate::run::log::{NO_REPORT, REPORT};
use crate::run::{self, RunDir};
use crate::train::Interrupter;
use crate::view::report::{Comparison, PAGE, Report};

/// The default file name of a page about several runs, in the working directory.
const COMPARISON: &str = "comparison.html";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox report runs/quickstart
  tinderbox report runs/quickstart --output quickstart.html
  tinderbox report runs/quickstart runs/deeper --output both.html")]
pub(super) struct Args {
    /// Run directory; the run may be in progress. Several runs share their charts
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Output page; an existing file is replaced only if it is such a page [default: report.html in the run, with the
    /// curves as SVG beside it; for several runs, comparison.html]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Device to measure the heads on: auto, cpu, or a name from `tinderbox devices` [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        output::check_page(path)?;
    }
    let run = match &args.runs[..] {
        [run] => run::open_or_locate(run)?,
        _ if args.device.is_some() => {
            let hint = "hint: leave out --device, or make the report of one run";
            return Err(Misuse(format!("--device is for one run: a comparison measures none\n  {hint}")).into());
        }
        runs => return compare(runs, args.output.as_deref().unwrap_or(Path::new(COMPARISON))),
    };
    let report = gather(&run, args.device.as_ref(), &|| true)?;
    note_each("note", report.notes());
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

fn compare(runs: &[PathBuf], page: &Path) -> anyhow::Result<()> {
    output::check_page(page)?;
    let runs = runs.iter().map(|run| run::open_or_locate(run)).collect::<Result<Vec<_>, _>>()?;
    let comparison = Comparison::read(&runs)?;
    note_each("note", comparison.notes());
    output::write(page, &comparison.html())?;
    note(format!("wrote `{}`", page.display()));
    Ok(())
}

/// Writes the report of a run that has just ended, and returns a line with its path or the error. A missing report is
/// not a failure, since everything else is saved. Once it is interrupted, the model is not measured any more: with a large
/// one that takes minutes.
pub(super) fn at_end(run_dir: &Path, interrupter: &Interrupter) -> String {
    let goes_on = || !interrupter.should_stop();
    let write = || -> anyhow::Result<()> {
        let run = RunDir::open(run_dir)?;
        let report = if goes_on() { gather(&run, None, &goes_on)? } else { Report::read(&run)? };
        Ok(report.write(&run)?)
    };
    match write() {
        Ok(()) => format!("{REPORT}`{}`", run_dir.join(PAGE).display()),
        Err(error) => {
            let (program, reason) = (super::args::program(), first_line(&error));
            let run = shell_word(run_dir);
            format!("{NO_REPORT}{reason}\n  hint: run `{program} report {run}`")
        }
    }
}

/// The report of a run, measured on `device`, or on the run's device if that can be opened, while `goes_on` says yes.
fn gather(run: &RunDir, device: Option<&DeviceSpec>, goes_on: &dyn Fn() -> bool) -> anyhow::Result<Report> {
    let mut report = Report::read(run)?;
    let of_run = || -> anyhow::Result<_> { Ok(device::open(&run.config()?.train.device.parse()?)?) };
    match device.map_or_else(of_run, |device| Ok(device::open(device)?)) {
        Ok(opened) => report.measure(run, &opened.device, goes_on),
        Err(error) if device.is_some() => return Err(error),
        Err(error) => report.note(first_line(&error)),
    }
    Ok(report)
}
