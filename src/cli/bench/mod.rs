//! `tinderbox bench`: measures how fast this machine is.

mod generate;
mod train;

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::Map;

use super::config;
use super::print::{note, print_json};
use crate::config::Config;
use crate::device::DeviceSpec;
use crate::preset::Preset;

/// The preset whose config is measured by default.
const DEFAULT_PRESET: &str = "quickstart";

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  tinderbox bench
  tinderbox bench train shakespeare --json")]
pub(super) struct Args {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceSpec::Cpu)]
    device: DeviceSpec,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Measure how long the training steps of a config take
    Train(train::Args),
    /// Measure how fast a model reads a prompt and generates
    Generate(generate::Args),
}

/// The benchmarks of a short run, and their arguments.
const SHORT: [(&str, &[&str]); 2] = [("train", &["--rounds", "3", "--steps", "10"]), ("generate", &["--rounds", "3"])];

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.benchmark {
        Some(Benchmark::Train(args)) => train::run(args),
        Some(Benchmark::Generate(args)) => generate::run(args),
        None => run_all(args),
    }
}

/// Runs each benchmark in a separate process, so that the memory of one does not count for the next.
fn run_all(args: &Args) -> anyhow::Result<()> {
    let mut found = Map::new();
    for (at, (name, settings)) in SHORT.into_iter().enumerate() {
        let mut child = this_program()?;
        child.arg(name).args(settings);
        child.args(["--device", &args.device.to_string()]);
        if args.json {
            child.arg("--json").stdout(Stdio::piped());
        } else if at > 0 {
            writeln!(io::stdout())?;
        }
        let child = child.spawn().context("cannot start this program again")?;
        let done = child.wait_with_output()?;
        if !done.status.success() {
            bail!("`tinderbox bench {name}` failed: see above");
        }
        if args.json {
            found.insert(name.to_owned(), serde_json::from_slice(&done.stdout)?);
        }
    }
    if args.json { print_json(&found) } else { Ok(()) }
}

/// The command `tinderbox bench`, for another process.
fn this_program() -> anyhow::Result<Command> {
    let path = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(path);
    command.arg("bench").stdin(Stdio::null());
    Ok(command)
}

/// Loads the config at `path`, or the default config.
fn config(path: Option<&Path>, overrides: &[String]) -> anyhow::Result<Config> {
    let Some(path) = path else {
        let preset = Preset::named(DEFAULT_PRESET).expect("the preset is shipped");
        return Ok(Config::from_toml(preset.toml, Path::new(DEFAULT_PRESET), overrides)?);
    };
    config::load(path, overrides, None)
}

/// Prints to standard error what is being measured.
fn under_way(what: impl std::fmt::Display) {
    note(format!("measuring {what} ..."));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn short_run_arguments_parse() {
        for (name, settings) in SHORT {
            let words = ["tinderbox", "bench", name].into_iter().chain(settings.iter().copied());
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{name}: {}", parsed.unwrap_err());
        }
    }
}
