//! `tinderbox plan`: estimates the cost of a run and prints it.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::args::{open_device, overrides};
use super::config;
use super::drawn::{DrawnOutput, json_of};
use super::numbers::within;
use super::print::note_each;
use crate::config::Config;
use crate::device::{DeviceSpec, OpenDevice};
use crate::format::{grouped, size, without_control};
use crate::interop::Family;
use crate::plan::{self, Portable, Vocabulary};
use crate::run;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox plan quickstart
  tinderbox plan my.toml --set train.batch_size=16 --device cpu
  tinderbox plan my.toml --format html --output plan.html
  tinderbox plan my.toml --ranks 8
  tinderbox plan my.toml --no-measure --json")]
pub(super) struct Args {
    /// Config file, or a preset such as quickstart
    config: PathBuf,
    /// Override a config key, such as train.batch_size=4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: train.device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Plan a run that starts from the weights of RUN, as with `train --from` [default: random weights, drawn with
    /// train.seed]
    #[arg(long, value_name = "RUN")]
    from: Option<PathBuf>,
    /// Plan for N processes that train together under MPI, each on a machine like this one [default: one process]
    #[arg(long, value_name = "N", value_parser = |typed: &str| within(typed, 2..=usize::MAX))]
    ranks: Option<usize>,
    /// Skip the measured training steps, and with them the estimate of time
    #[arg(long)]
    no_measure: bool,
    /// Print one JSON object instead of text
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    output: DrawnOutput,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.file.check()?;
    let config = config::load(&args.config, &overrides(&args.overrides, args.device), args.from.as_deref())?;
    config::provide_stories(&config)?;
    let device = open_device(&config.train.device.parse()?)?;
    if config.finetune.base.is_some() {
        return finetune(args, &config, &device);
    }
    let known = args.from.as_deref().map(vocabulary_of).transpose()?;
    let mut plan = plan::plan(&config, known, &device, !args.no_measure)?;
    plan.portable = Some(match Family::for_config(&config.model) {
        Ok(family) => Portable { family: Some(family.name()), unsupported_keys: Vec::new() },
        Err(unsupported_keys) => Portable { family: None, unsupported_keys },
    });
    if let Some(ranks) = args.ranks {
        plan.distribute(ranks, &config, &device)?;
    }
    if args.json {
        args.output.file.write(&json_of(vec![serde_json::to_string(&plan)?]))?;
    } else {
        let about = format!("{} · {} parameters", args.config.display(), grouped(plan.parameters.total));
        let text = without_control(&view::plan_table(&plan, &config)).into_owned();
        let json = json_of(vec![serde_json::to_string(&plan)?]);
        args.output.write_sheets("A plan", &about, &text, &json, &[view::plan_sheet(&text, &plan, &config)])?;
        note_each("note", &plan.notes);
    }
    note_each("warning", &plan.warnings);
    Ok(())
}

/// Plans a fine-tuning, in numbers only.
fn finetune(args: &Args, config: &Config, device: &OpenDevice) -> anyhow::Result<()> {
    if args.ranks.is_some() {
        bail!("a fine-tuning can only be planned for one machine\n  hint: leave out --ranks");
    }
    if args.output.is_picture() {
        bail!("a plan of a fine-tuning has no pictures\n  hint: leave out --format, or use --json");
    }
    let plan = plan::plan_finetune(config, device, !args.no_measure)?;
    if args.json {
        args.output.file.write(&json_of(vec![serde_json::to_string(&plan)?]))?;
    } else {
        let (text, json) = (view::finetune_plan_table(&plan, config), json_of(vec![serde_json::to_string(&plan)?]));
        args.output.write_sheets("A plan", "", &without_control(&text), &json, &[])?;
    }
    let needed = plan.measured.and_then(|measured| measured.peak);
    if let (Some(needed), Some(machine)) = (needed, plan.machine)
        && needed > machine.total
    {
        note_each("warning", [format!("the run needs {}, and this machine has {}", size(needed), size(machine.total))]);
    }
    Ok(())
}

/// The vocabulary of a run whose weights a new run starts from.
fn vocabulary_of(run: &Path) -> anyhow::Result<Vocabulary> {
    let run = run::locate(run)?.run;
    Ok(Vocabulary {
        size: run.tokenizer()?.vocab_size(),
        source: format!("the tokenizer of `{}`", run.root().display()),
    })
}
