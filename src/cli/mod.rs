//! The command line: one file per subcommand, which parses the arguments, calls the library and prints the result.
//!
//! Results go to standard output; progress and logs go to standard error.

#![allow(
    clippy::doc_markdown,
    reason = "the documentation of an argument is its help, which shows backticks as they are"
)]

mod bench;
mod cache;
mod chat;
mod completions;
mod config;
mod dashboard;
mod data;
mod devices;
mod eval;
mod export;
mod finetune;
mod generate;
#[cfg(test)]
mod help_lines;
mod import;
mod init;
mod inspect;
mod man;
mod merge;
mod metrics;
mod numbers;
mod output;
mod paint;
mod plan;
mod progress;
mod removed;
mod report;
mod runs;
#[cfg(feature = "serve")]
mod serve;
mod sweep;
mod tokenizer;
mod train;
mod verify;
mod weights;

use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;
use tinderbox_kernels::SimdLevel;

use crate::config::ConfigError;
use crate::device::{self, DeviceSpec, OpenDevice};
use crate::format::{cut_in_the_middle, shell_word, without_control};
use crate::interop::open_adapters;
use crate::run::Trained;
use crate::run::log::ERROR;
use crate::view;

/// Success.
const DONE: u8 = 0;
/// A failure that was reported on standard error.
const FAILED: u8 = 1;
/// Wrong arguments. The exit code is the same as clap's.
const MISUSE: u8 = 2;
/// Stopped by Ctrl-C after saving: 128 plus the number of the signal, as in shells.
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
    /// Adapt a trained model to your own records, such as conversations
    Finetune(finetune::Args),
    /// Search the settings that suit a text, by training many short runs
    Sweep(sweep::Args),
    /// Write text with a trained model
    Generate(generate::Args),
    /// Talk with a trained model
    Chat(chat::Args),
    /// Answer over HTTP with trained models, as OpenAI's API does
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Render chat templates, as a process of `serve`
    #[cfg(feature = "serve")]
    #[command(name = crate::serve::RENDER_CHATS, hide = true)]
    RenderChats,
    /// Measure a trained model's loss on a text
    Eval(eval::Args),
    /// Look inside a trained model
    Inspect(inspect::Args),
    /// Turn a model of another project into a run
    Import(import::Args),
    /// Write a run's model for other projects
    Export(export::Args),
    /// Merge the adapters of a fine-tuned run with its base, as a run of its own
    Merge(merge::Args),
    /// Compare a run with the model of another project, tensor by tensor
    Verify(verify::Args),
    /// List runs, or compare some of them
    Runs(runs::Args),
    /// Print the curves of a run: losses, learning rate, speed
    Metrics(metrics::Args),
    /// Write a page with a run's curves, samples, heads and config
    Report(report::Args),
    /// Show records or texts as a model reads them
    Data(data::Args),
    /// Show how a tokenizer splits text
    Tokenizer(tokenizer::Args),
    /// Measure the speed and memory of training, generation and attention on this machine
    Bench(bench::Args),
    /// Show or clear the folder of encoded texts
    Cache(cache::Args),
    /// List the devices that this binary can use on this machine
    Devices(devices::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page, or write a page for each command to a folder
    Man(man::Args),
}

/// The error for arguments that clap accepts but that are wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// A trained model.
#[derive(Debug, clap::Args)]
struct Subject {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    run: PathBuf,
    /// Adapters to put beside the run's weights: a run that was fine-tuned from it, or a folder of PEFT or mlx-lm
    /// [default: none]
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

impl Subject {
    fn open(&self) -> anyhow::Result<Trained> {
        let adapters = self.adapter.as_ref().map(|path| open_adapters(path, &self.run)).transpose()?;
        let opened = Trained::open_adapted(&self.run, self.device.as_ref(), adapters)?;
        warn_if_slow(&opened.device);
        Ok(opened)
    }
}

/// Runs the program with the arguments of the process, prints any error, and returns the exit code.
///
/// Calls `keep_freed_memory` first if the command trains; it is a parameter because the binary defines the allocator.
#[must_use]
pub fn main(keep_freed_memory: fn()) -> ExitCode {
    let parsed = numbers::with_negative_numbers(Cli::command()).try_get_matches();
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => {
            let args: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
            let Some(replacement) = removed::replacement(&args).filter(|_| error.use_stderr()) else { error.exit() };
            note(replacement);
            return ExitCode::from(MISUSE);
        }
    };
    let searches = matches!(&command, Command::Init(args) if args.trains());
    if searches
        || matches!(
            command,
            Command::Train(_) | Command::Finetune(_) | Command::Sweep(_) | Command::Bench(_) | Command::Plan(_)
        )
    {
        keep_freed_memory();
    }
    ExitCode::from(catching_panics(|| run(command)).unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return DONE; // the reader has closed the output
        }
        note(describe(&error));
        if is_misuse(&error) { MISUSE } else { FAILED }
    }))
}

/// Turns a panic, whose message has already been printed, into an error, so that the program ends as after any failure.
fn catching_panics(run: impl FnOnce() -> anyhow::Result<u8>) -> anyhow::Result<u8> {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        bail!("this is a bug in tinderbox\n  hint: please report what stands above, and how it came to it")
    })
}

fn run(command: Command) -> anyhow::Result<u8> {
    SimdLevel::current()?; // a wrong TINDERBOX_SIMD is reported before anything starts
    match command {
        Command::Init(args) => init::run(&args),
        Command::Plan(args) => plan::run(&args).map(|()| DONE),
        Command::Train(args) => train::run(&args),
        Command::Finetune(args) => finetune::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Generate(args) => generate::run(&args).map(|()| DONE),
        Command::Chat(args) => chat::run(&args).map(|()| DONE),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args).map(|()| DONE),
        #[cfg(feature = "serve")]
        Command::RenderChats => Ok(crate::serve::render_chats()),
        Command::Eval(args) => eval::run(&args).map(|()| DONE),
        Command::Inspect(args) => inspect::run(&args).map(|()| DONE),
        Command::Import(args) => import::run(&args).map(|()| DONE),
        Command::Export(args) => export::run(&args).map(|()| DONE),
        Command::Merge(args) => merge::run(&args).map(|()| DONE),
        Command::Verify(args) => verify::run(&args).map(|()| DONE),
        Command::Runs(args) => runs::run(&args).map(|()| DONE),
        Command::Metrics(args) => metrics::run(&args).map(|()| DONE),
        Command::Report(args) => report::run(&args).map(|()| DONE),
        Command::Data(args) => data::run(&args).map(|()| DONE),
        Command::Tokenizer(args) => tokenizer::run(&args).map(|()| DONE),
        Command::Bench(args) => bench::run(&args).map(|()| DONE),
        Command::Cache(args) => cache::run(&args).map(|()| DONE),
        Command::Devices(args) => devices::run(&args).map(|()| DONE),
        Command::Completions(args) => completions::run(&args, Cli::command()).map(|()| DONE),
        Command::Man(args) => man::run(&args, Cli::command()).map(|()| DONE),
    }
}

/// Writes a line to standard error; on a terminal without control characters, and remarks wrapped between words. A closed
/// standard error does not stop the program.
fn note(line: impl Display) {
    let mut line = line.to_string();
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() && ["note: ", "warning: "].iter().any(|kind| line.starts_with(kind)) {
        line = view::folded(&line, paint::n_columns());
    }
    let written = match stderr.is_terminal() {
        true if paint::has_colors(&stderr) => writeln!(stderr, "{}", paint::message(&without_control(&line))),
        true => writeln!(stderr, "{}", without_control(&line)),
        false => writeln!(stderr, "{line}"),
    };
    written.ok();
}

/// Prints a result, without control characters if standard output is a terminal, since names and texts in it may come
/// from untrusted files.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().is_terminal() {
        true => print_styled(&without_control(text)),
        false => print_styled(text),
    }
}

/// Prints a text for people, whose long lines are wrapped between words if the width is known.
fn print_folded(text: &str) -> anyhow::Result<()> {
    match paint::given_columns() {
        Some(n_columns) => print(&view::folded(text, n_columns)),
        None => print(text),
    }
}

/// Prints a table, with colours if standard output shows them; long lines as [`print_folded`].
fn print_table(text: &str) -> anyhow::Result<()> {
    match paint::has_colors(&io::stdout()) {
        true => print_styled(&paint::table(&view::folded(&without_control(text), paint::n_columns()))),
        false => print_folded(text),
    }
}

/// Prints a result with its colours; the caller has removed control characters from other texts in it.
fn print_styled(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Prints a result as one line of JSON.
fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}

/// The longest line of an error message, in characters: a line quoted from a file may be very long.
const MAX_LINE: usize = 1000;
/// The most lines of an error message: mostly its first lines, and the last [`LAST_LINES`].
const MAX_LINES: usize = 60;
const LAST_LINES: usize = 10;

/// The error and its causes, each only once, since some messages already quote their cause. Long messages are
/// shortened.
fn describe(error: &anyhow::Error) -> String {
    let mut text = format!("{ERROR}{error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            // A cause after a hint would read as part of the hint.
            let link = if text.contains('\n') { "\n  cause: " } else { ": " };
            text.push_str(link);
            text.push_str(&cause);
        }
    }
    let mut lines: Vec<String> = text.trim_end().lines().map(|line| cut_in_the_middle(line, MAX_LINE)).collect();
    if lines.len() > MAX_LINES {
        let left_out = MAX_LINES - LAST_LINES - 1..lines.len() - LAST_LINES;
        let line = format!("  ... and {} more lines", left_out.len());
        lines.splice(left_out, [line]);
    }
    lines.join("\n")
}

/// Whether an error concerns only the arguments.
fn is_misuse(error: &anyhow::Error) -> bool {
    let is_malformed = |problems: &Vec<String>| problems.iter().all(|problem| problem.starts_with("--set "));
    match error.downcast_ref() {
        Some(ConfigError::Invalid(_, problems)) => is_malformed(problems),
        _ => error.is::<Misuse>(),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_errors = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Calls `handler` at each Ctrl-C.
fn on_ctrl_c(handler: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    ctrlc::set_handler(handler).context("cannot install the Ctrl-C handler")
}

/// Notes that the model reads only the end of a prompt.
fn note_cut_prompt(n_read: usize, n_dropped: usize) {
    note(format!(
        "note: the prompt has {} tokens and the context of the model holds {n_read}: only the last {n_read} are read",
        n_read + n_dropped,
    ));
}

/// Notes these lines, each on its own.
fn note_each(kind: &str, lines: impl IntoIterator<Item = impl Display>) {
    lines.into_iter().for_each(|line| note(format!("{kind}: {line}")));
}

/// Opens a device, with a warning on standard error if it will be slow.
fn open_device(spec: &DeviceSpec) -> anyhow::Result<OpenDevice> {
    let device = device::open(spec)?;
    warn_if_slow(&device);
    Ok(device)
}

/// Warns on standard error if a device is slow.
fn warn_if_slow(device: &OpenDevice) {
    note_each("warning", device.caution());
}

/// The name by which this program was called, for commands that the user can paste.
fn program() -> String {
    env::args_os().next().map_or_else(|| "tinderbox".to_owned(), shell_word)
}

/// The arguments of `--set`, and `--device` as the key that it sets.
fn overrides(sets: &[String], device: Option<DeviceSpec>) -> Vec<String> {
    sets.iter().cloned().chain(device.map(|device| format!("train.device=\"{device}\""))).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn describe_prints_each_cause_once_outside_hints() {
        let cause = || io::Error::other("no luck");
        let plain = anyhow::Error::from(cause()).context("cannot read `a`");
        assert_eq!(describe(&plain), "error: cannot read `a`: no luck");
        let quoting = anyhow::Error::from(cause()).context("cannot read `a`: no luck\n  hint: try");
        assert_eq!(describe(&quoting), "error: cannot read `a`: no luck\n  hint: try");
        let hinting = anyhow::Error::from(cause()).context("cannot read `a`\n  hint: try");
        assert_eq!(describe(&hinting), "error: cannot read `a`\n  hint: try\n  cause: no luck");
        assert_eq!(describe(&anyhow!("a line of its own\n")), "error: a line of its own");
    }

    #[test]
    fn describe_shortens_long_errors() {
        let lines: Vec<String> = (1..=500).map(|n| format!("{n} {}", "x".repeat(5000))).collect();
        let text = describe(&anyhow!(lines.join("\n")));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[49]), (MAX_LINES, "  ... and 441 more lines"));
        assert!(
            lines[48].starts_with("49 xxx") && lines[50].starts_with("491 xxx") && lines[59].starts_with("500 xxx")
        );
        assert!(lines.iter().all(|line| line.chars().count() <= MAX_LINE));
    }

    #[test]
    fn panic_is_reported_as_error() {
        let error = catching_panics(|| panic!("out of bounds")).unwrap_err();
        assert!(describe(&error).starts_with("error: this is a bug in tinderbox\n  hint: "));
        assert_eq!(catching_panics(|| Ok(DONE)).unwrap(), DONE);
    }

    #[test]
    fn describe_fits_huge_error_on_a_screen() {
        let long = anyhow!("{}\n{}\n  hint: do", "x".repeat(1_000_000), "  - a problem\n".repeat(100_000));
        let text = describe(&long);
        assert!(text.lines().count() <= MAX_LINES && text.chars().count() < 2 * MAX_LINE + 1000, "{}", text.len());
        assert!(text.starts_with("error: xxx") && text.contains("x\u{2026}x") && text.ends_with("\n  hint: do"));
    }
}
