//! `tinderbox bench train`: how long training steps take.

use std::io::{self, Write};
use std::path::PathBuf;

use super::{at_least_one, config, figures, note, on, or_dash, print_json, spread, under_way};
use crate::bench::train::{self, Rounds, Speed, Text};
use crate::config::precision_remark;
use crate::device::{self, DeviceSpec};
use crate::format::grouped;
use crate::train::precision;

/// Measure how long the training steps of a config take
///
/// Steps are those of `train`, from making the batch to the updated weights; evaluations, samples and checkpoints are
/// left out, and nothing is saved.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench train configs/shakespeare-nanogpt.toml
  tinderbox bench train my.toml --set train.batch_size=4 --own-text --rounds 9 --json")]
pub(super) struct Args {
    /// The config, such as configs/shakespeare-nanogpt.toml [default: the quick start's]
    config: Option<PathBuf>,
    /// Use another value for a key of the config, such as train.batch_size=4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Train on the config's own text rather than on made-up tokens
    #[arg(long)]
    own_text: bool,
    /// How many rounds there are; each has the median of its steps, and their median is the result
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one())]
    rounds: usize,
    /// How many steps a round has
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one())]
    steps: usize,
    /// How many steps are made before the first round
    #[arg(long, value_name = "N", default_value_t = 5)]
    warm_up: usize,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: train.device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let config = config(args.config.as_deref(), &args.overrides)?;
    let device = match &args.device {
        Some(spec) => device::open(spec),
        None => device::open(&config.train.device.parse()?),
    }?;
    let text = match args.own_text {
        true => Text::Own,
        false => Text::MadeUp,
    };
    let rounds = Rounds { warm_up_steps: args.warm_up, rounds: args.rounds, steps: args.steps };
    if let Some(warning) = precision::advice(config.train.matmul_precision, &device)? {
        note(format!("warning: {warning}"));
    }
    under_way(format!("{} training steps", rounds.warm_up_steps + rounds.rounds * rounds.steps));
    let speed = train::measure(&config, text, &device, rounds)?;
    if args.json {
        return print_json(&speed);
    }
    let place = on(&speed.device, device.backend.is_cpu());
    Ok(write!(io::stdout(), "{}", page(&speed, &place))?)
}

fn page(speed: &Speed, place: &str) -> String {
    let Rounds { warm_up_steps, rounds, steps } = speed.measured;
    let rounds_ms: Vec<_> = speed.rounds_ms.iter().map(|ms| figures(*ms)).collect();
    let lines = [
        ("ms per step", figures(speed.step.median_ms)),
        ("tokens/s", figures(speed.tokens_per_s)),
        ("GFLOP/s", figures(speed.flops_per_s / 1e9)),
        ("peak memory, MiB", or_dash(speed.peak_rss_mib.map(figures))),
        ("spread of rounds", spread(&speed.step)),
        ("rounds, ms per step", rounds_ms.join("  ")),
    ];
    let title = format!(
        "training of {} parameters, {} tokens a step, on {place}{}\n",
        grouped(speed.parameters as u64),
        grouped(speed.tokens_per_step as u64),
        precision_remark(speed.matmul_precision),
    );
    let lines = lines.map(|(name, value)| format!("  {name:<22}{value}\n"));
    format!(
        "{title}{}{rounds} rounds of {steps} steps each after {warm_up_steps} to warm up; medians\n",
        lines.concat()
    )
}
