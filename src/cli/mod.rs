//! The command line. Each subcommand has one file, which parses the arguments, calls the library and prints the result.
//!
//! Results go to standard output; progress and logs go to standard error.

#![allow(
    clippy::doc_markdown,
    reason = "the documentation of an argument is its help, which shows backticks as they are"
)]

mod args;
mod bench;
mod cache;
mod chat;
mod compared;
mod completions;
mod config;
mod dashboard;
mod data;
mod devices;
mod drawn;
mod eval;
mod exit;
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
mod next;
mod numbers;
mod output;
mod paint;
mod plan;
mod print;
mod progress;
mod question;
mod removed;
mod report;
mod runs;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod sweep;
mod tokenizer;
mod train;
mod verify;
mod weights;

use std::env;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tinderbox_kernels::SimdLevel;

use exit::{
    DONE, FAILED, MISUSE, catching_panics, describe, is_broken_pipe, is_misuse, print_only_other_panics, this_program,
};
use print::note;

use crate::tokenizer::{WITHIN_LIMITS, set_program, work_within_limits};

const FIRST_COMMANDS: &str = "\
From a text to a model that generates more of it:
  tinderbox init --from-text my.txt > my.toml
  tinderbox train my.toml
  tinderbox generate runs/my --prompt \"...\"";

/// For a user who starts the program without a command.
const WELCOME: &str = "\
Without a text, `tinderbox train quickstart` trains on stories that come with the program.
`tinderbox --help` lists all commands, and `tinderbox train --help` explains one.";

/// For a user who gives no config or run.
const FIRST_ARGUMENTS: [(&str, &str); 2] = [
    ("\n  <CONFIG>", "  hint: `quickstart` comes with the program; `tinderbox init` makes a config for your text"),
    ("\n  <RUN>", "  hint: `tinderbox runs` lists the runs here; `tinderbox train quickstart` trains the first one"),
];

#[derive(Debug, Parser)]
#[command(
    version,
    about,
    max_term_width = 100,
    after_help = FIRST_COMMANDS
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a commented config: a shipped one, or one made for your text
    Init(init::Args),
    /// Estimate the time, memory and size of a run before it starts
    Plan(plan::Args),
    /// Train a model from a config file
    Train(train::Args),
    /// Fine-tune a trained model on your own records, such as conversations
    Finetune(finetune::Args),
    /// Search for good settings by training many short runs
    Sweep(sweep::Args),
    /// Generate text with a trained model
    Generate(generate::Args),
    /// Chat with a trained model
    Chat(chat::Args),
    /// Serve trained models over an HTTP API compatible with OpenAI's
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Render chat templates and try tokenizers, in a process that other commands start
    #[command(name = WITHIN_LIMITS, hide = true)]
    WithinLimits,
    /// Measure a trained model's loss on a text
    Eval(eval::Args),
    /// Look inside a trained model
    Inspect(inspect::Args),
    /// Import a model from another project as a run
    Import(import::Args),
    /// Export a run's model for other projects
    Export(export::Args),
    /// Merge the adapters of a fine-tuned run into its base, as a new run
    Merge(merge::Args),
    /// Compare a run with a model of another project, tensor by tensor
    Verify(verify::Args),
    /// List runs, or compare several
    Runs(runs::Args),
    /// Print the curves of a run: losses, learning rate, speed
    Metrics(metrics::Args),
    /// Write an HTML page with a run's curves, samples, heads and config
    Report(report::Args),
    /// Preview records for fine-tuning as a model reads them
    Data(data::Args),
    /// Encode, decode and describe text with a tokenizer
    Tokenizer(tokenizer::Args),
    /// Measure the speed and memory of training and generation on this machine
    Bench(bench::Args),
    /// Show or clear the cache of encoded texts
    Cache(cache::Args),
    /// List the devices that this binary can use here
    Devices(devices::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page, or write one page per command to a folder
    Man(man::Args),
}

impl Command {
    /// Whether the command makes training steps.
    fn trains(&self) -> bool {
        matches!(self, Self::Train(_) | Self::Finetune(_) | Self::Sweep(_) | Self::Bench(_) | Self::Plan(_))
    }
}

/// Runs the program with the arguments of the process, prints any error, and returns the exit code.
///
/// Calls `keep_freed_memory` first if the command trains; it is a parameter because the binary defines the allocator.
pub fn main(keep_freed_memory: fn()) -> ExitCode {
    if env::args_os().len() == 1 {
        note(format!("{FIRST_COMMANDS}\n\n{WELCOME}"));
        return ExitCode::from(MISUSE);
    }
    let parsed = numbers::with_negative_numbers(Cli::command()).try_get_matches();
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli.command,
        Err(error) => {
            let args: Vec<String> = env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
            if let Some(replacement) = removed::replacement(&args).filter(|_| error.use_stderr()) {
                note(replacement);
                return ExitCode::from(MISUSE);
            }
            let is_missing = error.kind() == ErrorKind::MissingRequiredArgument;
            let hint = FIRST_ARGUMENTS.iter().find(|(argument, _)| is_missing && error.to_string().contains(argument));
            let Some((_, hint)) = hint else { error.exit() };
            _ = error.print();
            note(hint);
            return ExitCode::from(MISUSE);
        }
    };
    if command.trains() {
        keep_freed_memory();
    }
    print_only_other_panics();
    ExitCode::from(catching_panics(|| run(command)).unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return DONE; // the reader has closed the output
        }
        note(describe(&error));
        if is_misuse(&error) { MISUSE } else { FAILED }
    }))
}

fn run(command: Command) -> anyhow::Result<u8> {
    set_program(this_program()?);
    SimdLevel::current()?; // a wrong TINDERBOX_SIMD is reported before anything starts
    match command {
        Command::Init(args) => init::run(&args).map(|()| DONE),
        Command::Plan(args) => plan::run(&args).map(|()| DONE),
        Command::Train(args) => train::run(&args),
        Command::Finetune(args) => finetune::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Generate(args) => generate::run(&args).map(|()| DONE),
        Command::Chat(args) => chat::run(&args).map(|()| DONE),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args).map(|()| DONE),
        Command::WithinLimits => Ok(work_within_limits()),
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
