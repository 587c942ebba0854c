//! `tinderbox sweep`: searches settings for a text by training many short runs.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::args::overrides;
use super::config;
use super::dashboard::stop_or_exit;
use super::exit::{DONE, INTERRUPTED, on_ctrl_c};
use super::numbers::{at_least_one, within};
use super::paint::n_columns;
use super::print::{note, print_json, print_table};
use crate::config::Config;
use crate::device::DeviceSpec;
use crate::distributed::refuse_launcher;
use crate::format::{duration, grouped, milliseconds};
use crate::sweep::{self, Entry, Method, Outcome, Request, SweepError};
use crate::train::Interrupter;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox sweep my.toml --space \"optimizer.learning_rate=log(1e-4..1e-2)\" --budget 30m
  tinderbox sweep my.toml --space model.mlp=gelu,swiglu --space model.dropout=0..0.3 --budget 2h --seeds 3
  tinderbox sweep my.toml --space model.n_layers=2,4,6 --budget 1h --method grid --json")]
pub(super) struct Args {
    /// Base config, a file or a preset; each setting trains for as long as the run of this config
    config: PathBuf,
    /// Key and values to try: a list, a range LOW..HIGH, or log(LOW..HIGH) for magnitudes; may be repeated
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    space: Vec<String>,
    /// Time for all training steps together, such as 90s, 30m or 2h
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    budget: f64,
    /// Runs per setting, each with another seed; their mean ranks it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |typed: &str| within(typed, 1..=100))]
    seeds: usize,
    /// Choice of settings: random draws them, grid tries every combination of lists
    #[arg(long, value_enum, default_value_t = Method::Random)]
    method: Method,
    /// Maximum number of parameters of a model [default: as many as fit in memory]
    #[arg(long, value_name = "NUMBER", value_parser = |typed: &str| at_least_one(typed).map(|n| n as u64))]
    max_parameters: Option<u64>,
    /// Override a key of the base config for all runs; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: train.device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Folder of the sweep; the same command continues a stopped sweep [default: sweeps/ and the config's name]
    #[arg(long, value_name = "DIR")]
    sweep_dir: Option<PathBuf>,
    /// Replace another sweep in the same folder
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the sweep or continues a stopped one, and returns the exit code.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    refuse_launcher("search all by itself")?;
    config::provide_stories(&config::load(&args.config, &overrides(&args.overrides, args.device), None)?)?;
    let text = config::read(&args.config)?;
    // With the keys of the model that it starts from.
    let is_finetuning = Config::finetune_base(&text, &args.overrides).is_some();
    let text = if is_finetuning { config::load(&args.config, &args.overrides, None)?.to_toml() } else { text };
    let request = Request {
        config: text,
        config_name: args.config.clone(),
        overrides: overrides(&args.overrides, args.device),
        space: args.space.clone(),
        method: args.method,
        budget_s: args.budget,
        n_seeds: args.seeds,
        max_parameters: args.max_parameters,
    };
    let root = args.sweep_dir.clone().unwrap_or_else(|| default_dir(&args.config));
    let interrupter = Interrupter::new();
    let handler = interrupter.clone();
    on_ctrl_c(move || stop_or_exit(&handler))?;
    let outcome = match sweep::run(&request, &root, args.overwrite, &|entry: &Entry| note(line(entry)), &interrupter) {
        Ok(outcome) => outcome,
        Err(error @ SweepError::Interrupted) => {
            note(error);
            return Ok(INTERRUPTED);
        }
        Err(error) => return Err(error.into()),
    };
    Outcome::write_page(&root, &view::sweep_page(&outcome, &outcome.curves(&root)))?;
    match args.json {
        true => print_json(&outcome)?,
        false => print_table(&view::sweep_table(&outcome, n_columns()))?,
    }
    note(format!("page: `{}`", root.join(sweep::PAGE).display()));
    if outcome.best_toml.is_some() {
        note(format!("best config: `{}`", root.join(sweep::BEST).display()));
    }
    Ok(DONE)
}

/// The default folder of a sweep, `sweeps/NAME`, where NAME is the config's file name without its extension.
fn default_dir(config: &Path) -> PathBuf {
    Path::new("sweeps").join(config.file_stem().unwrap_or(config.as_os_str()))
}

/// A line of text that describes an event of a sweep.
fn line(entry: &Entry) -> String {
    match entry {
        Entry::Planned(plan) => {
            let beside = if plan.jobs == 1 { "" } else { ", two runs side by side, which is faster here" };
            format!("up to {} settings, compared after {}{beside}", plan.n_settings, duration(plan.full_s))
        }
        Entry::Prepared { trial, parameters, step_ms, max_steps } => format!(
            "trial {trial}: {} parameters, {} a step, {} steps in all",
            grouped(*parameters),
            milliseconds(*step_ms),
            grouped(*max_steps as u64)
        ),
        Entry::LeftOut { trial, reason } => format!("trial {trial} is left out: {reason}"),
        Entry::Reached { trial, step, bits_per_byte, .. } => {
            format!("trial {trial}: validation loss {bits_per_byte:.4} after {step} steps")
        }
        Entry::Failed { trial, reason, .. } => format!("trial {trial} ended: {reason}"),
    }
}

/// Parses a time such as `90s`, `30m` or `2h`.
fn seconds(typed: &str) -> anyhow::Result<f64> {
    let hint = "write a time above 0 with its unit, such as 90s, 30m or 2h";
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    let found = units.iter().find_map(|(unit, seconds)| Some((typed.trim().strip_suffix(*unit)?, seconds)));
    let (number, unit) = found.context(hint)?;
    let number: f64 = number.trim().parse().context(hint)?;
    anyhow::ensure!(number > 0.0 && number.is_finite(), hint);
    Ok(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_requires_unit() {
        for (typed, expected) in [("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("30 m", 1800.0)] {
            assert!((seconds(typed).unwrap() - expected).abs() < 1e-9, "{typed}");
        }
        for typed in ["", "30", "m", "-1m", "0s", "NaNs", "infh", "30d"] {
            assert!(seconds(typed).is_err(), "{typed}");
        }
    }
}
