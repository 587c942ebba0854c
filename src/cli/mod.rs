//! The command line: one file per subcommand, which reads arguments, calls the library and prints.
//!
//! Results go to standard output, progress and logs to standard error.

#![allow(
    clippy::doc_markdown,
    reason = "the documentation of an argument is its help, which shows backticks as they are"
)]

mod bench;
mod completions;
mod dashboard;
mod devices;
mod eval;
mod export;
mod generate;
#[cfg(test)]
mod help_lines;
mod import;
mod init;
mod inspect;
mod man;
mod metrics;
mod output;
mod plan;
mod progress;
mod report;
mod runs;
mod tokenizer;
mod train;
mod verify;
mod weights;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use serde::Serialize;

use crate::config::{Base, Config};
use crate::device::DeviceSpec;
use crate::format::shell_word;
use crate::run::log::ERROR;
use crate::run::{self, OpenError, Trained};

/// Everything was done.
const DONE: u8 = 0;
/// Something failed, and was said on standard error. Misuse of the arguments is clap's 2.
const FAILED: u8 = 1;
/// Stopped by Ctrl-C, after saving: 128 and the number of the signal, as shells count.
const INTERRUPTED: u8 = 130;

#[derive(Debug, Parser)]
#[command(
    version,
    about,
    max_term_width = 100,
    after_help = "\
From a text to a model that writes:
  tinderbox init --from-text my.txt > my.toml
  tinderbox train my.toml
  tinderbox generate runs/my --prompt \"...\""
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a commented config: a shipped one, or one made for your text
    Init(init::Args),
    /// Estimate the cost of a run before it starts
    Plan(plan::Args),
    /// Train a model from a config file
    Train(train::Args),
    /// Write text with a trained model
    Generate(generate::Args),
    /// Measure a trained model's loss on a text
    Eval(eval::Args),
    /// Look inside a trained model
    Inspect(inspect::Args),
    /// Make a run of a model from elsewhere
    Import(import::Args),
    /// Write a run's model for other projects
    Export(export::Args),
    /// Compare a run with the model of another project, tensor by tensor
    Verify(verify::Args),
    /// List runs, or compare some of them
    Runs(runs::Args),
    /// Print the curves of a run: losses, learning rate, speed
    Metrics(metrics::Args),
    /// Write a page with a run's curves, samples, heads and config
    Report(report::Args),
    /// Show how a tokenizer splits text
    Tokenizer(tokenizer::Args),
    /// Measure the speed and memory of training, generation and attention on this machine
    Bench(bench::Args),
    /// List the devices that this binary can use on this machine
    Devices(devices::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page, or write a page for each command to a folder
    Man(man::Args),
}

/// A trained model.
#[derive(Debug, clap::Args)]
struct Subject {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    run: PathBuf,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

impl Subject {
    fn open(&self) -> Result<Trained, OpenError> {
        Trained::open(&self.run, self.device.as_ref())
    }
}

/// Runs the program with the process's arguments, prints any error, and returns the exit code.
///
/// `keep_freed_memory` is called first if the command trains: the allocator belongs to the binary.
#[must_use]
pub fn main(keep_freed_memory: fn()) -> ExitCode {
    let command = Cli::parse().command;
    if matches!(command, Command::Train(_) | Command::Bench(_) | Command::Plan(_)) {
        keep_freed_memory();
    }
    let result = match command {
        Command::Init(args) => init::run(&args).map(|()| DONE),
        Command::Plan(args) => plan::run(&args).map(|()| DONE),
        Command::Train(args) => train::run(&args),
        Command::Generate(args) => generate::run(&args).map(|()| DONE),
        Command::Eval(args) => eval::run(&args).map(|()| DONE),
        Command::Inspect(args) => inspect::run(&args).map(|()| DONE),
        Command::Import(args) => import::run(&args).map(|()| DONE),
        Command::Export(args) => export::run(&args).map(|()| DONE),
        Command::Verify(args) => verify::run(&args).map(|()| DONE),
        Command::Runs(args) => runs::run(&args).map(|()| DONE),
        Command::Metrics(args) => metrics::run(&args).map(|()| DONE),
        Command::Report(args) => report::run(&args).map(|()| DONE),
        Command::Tokenizer(args) => tokenizer::run(&args).map(|()| DONE),
        Command::Bench(args) => bench::run(&args).map(|()| DONE),
        Command::Devices(args) => devices::run(&args).map(|()| DONE),
        Command::Completions(args) => completions::run(&args, Cli::command()).map(|()| DONE),
        Command::Man(args) => man::run(&args, Cli::command()).map(|()| DONE),
    };
    ExitCode::from(result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return DONE; // whoever read the output had enough of it
        }
        note(describe(&error));
        FAILED
    }))
}

/// Writes a line to standard error. That nobody reads there any more is no reason to stop what is done.
fn note(line: impl Display) {
    writeln!(io::stderr(), "{line}").ok();
}

/// Prints a result.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Prints a result as one line of JSON.
fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}

/// The error and its causes, each once: some messages quote their cause themselves.
fn describe(error: &anyhow::Error) -> String {
    let mut text = format!("{ERROR}{error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            // What follows a hint would read as a part of it.
            let link = if text.contains('\n') { "\n  cause: " } else { ": " };
            text.push_str(link);
            text.push_str(&cause);
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// How this program was called, for commands that a user can paste.
fn program() -> String {
    std::env::args_os().next().map_or_else(|| "tinderbox".to_owned(), shell_word)
}

/// The config of a new run, which may leave out what is known of the model where it starts `from` the weights of
/// another.
fn load_config(path: &Path, overrides: &[String], from: Option<&Path>) -> anyhow::Result<Config> {
    let base = from.map(|from| run::locate(from)?.run.config()).transpose()?;
    Ok(Config::load_inheriting(path, overrides, base.as_ref().map(Base::Weights))?)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_said_once_and_not_within_a_hint() {
        let cause = || io::Error::other("no luck");
        let plain = anyhow::Error::from(cause()).context("cannot read `a`");
        assert_eq!(describe(&plain), "error: cannot read `a`: no luck");
        let quoting = anyhow::Error::from(cause()).context("cannot read `a`: no luck\n  hint: try");
        assert_eq!(describe(&quoting), "error: cannot read `a`: no luck\n  hint: try");
        let hinting = anyhow::Error::from(cause()).context("cannot read `a`\n  hint: try");
        assert_eq!(describe(&hinting), "error: cannot read `a`\n  hint: try\n  cause: no luck");
        assert_eq!(describe(&anyhow!("a line of its own\n")), "error: a line of its own");
    }
}
