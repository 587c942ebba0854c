//! `tinderbox bench`: measures how fast this machine is.

mod generate;
mod train;

use std::path::Path;

use clap::Subcommand;

use super::config;
use super::print::note;
use crate::config::Config;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench train shakespeare --json
  tinderbox bench generate runs/quickstart")]
pub(super) struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Measure how long the training steps of a config take
    Train(train::Args),
    /// Measure how fast a model reads a prompt and generates
    Generate(generate::Args),
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.benchmark {
        Benchmark::Train(args) => train::run(args),
        Benchmark::Generate(args) => generate::run(args),
    }
}

/// Loads the config at `path`, or that of the quick start.
fn config(path: Option<&Path>, overrides: &[String]) -> anyhow::Result<Config> {
    config::load(path.unwrap_or(Path::new("quickstart")), overrides, None)
}

/// Prints to standard error what is being measured.
fn under_way(what: impl std::fmt::Display) {
    note(format!("measuring {what} ..."));
}
