//! `tinderbox bench train`: measures how long training steps take.

use std::path::PathBuf;

use super::{config, under_way};
use crate::bench::text;
use crate::bench::train::{self, Repetitions, TokenSource};
use crate::cli;
use crate::cli::numbers::{at_least_one, count};
use crate::cli::print::{note_each, print, print_json};
use crate::device::{self, DeviceSpec};
use crate::train::precision;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench train shakespeare
  tinderbox bench train my.toml --set train.batch_size=4 --own-text --rounds 9 --json")]
pub(super) struct Args {
    /// Config file, or a preset such as shakespeare [default: quickstart]
    config: Option<PathBuf>,
    /// Override a config key, such as train.batch_size=4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Train on the config's own text instead of synthetic tokens
    #[arg(long)]
    own_text: bool,
    /// Number of rounds; the result is the median of their median steps
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Number of steps in a round
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    steps: usize,
    /// Number of warm-up steps before the first round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    warm_up: usize,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: train.device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let config = config(args.config.as_deref(), &args.overrides)?;
    if args.own_text {
        cli::config::provide_stories(&config)?;
    }
    let device = device::open(&args.device.map_or_else(|| config.train.device.parse(), Ok)?)?;
    let text = if args.own_text { TokenSource::Own } else { TokenSource::MadeUp };
    let rounds = Repetitions { warm_up_steps: args.warm_up, rounds: args.rounds, steps: args.steps };
    let precision = precision::check(config.train.matmul_precision, &device)?;
    note_each("warning", precision::warning(precision));
    under_way(format!("{} training steps", rounds.warm_up_steps + rounds.rounds * rounds.steps));
    let speed = train::measure(&config, text, &device, rounds)?;
    if args.json {
        return print_json(&speed);
    }
    print(&text::train(&speed, &text::device(&device)))
}
