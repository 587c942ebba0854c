//! `tinderbox bench generate`: measures how fast a model reads a prompt and generates text.

use std::path::{Path, PathBuf};

use anyhow::bail;
use burn::module::Module;
use serde_json::json;

use super::{config, under_way};
use crate::bench::generate::{self, GenerateSizes};
use crate::bench::text;
use crate::cli::numbers::at_least_one;
use crate::cli::print::{print, print_json};
use crate::cli::weights::Formats;
use crate::device::{self, DeviceSpec, OpenDevice};
use crate::measure::peak_rss_mib;
use crate::model::Gpt;
use crate::plan;
use crate::preset::Preset;
use crate::run::{self, Trained};

/// The most new tokens by default.
const MOST_NEW_TOKENS: usize = 64;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox bench generate runs/quickstart
  tinderbox bench generate runs/quickstart --weights int8 --device cpu
  tinderbox bench generate gpt2 --device cpu --batch-size 1,16 --json")]
pub(super) struct Args {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, RUN/checkpoints/step-N, or a config: a .toml file, or a
    /// preset such as gpt2 [default: quickstart]
    #[arg(value_name = "RUN|CONFIG")]
    model: Option<PathBuf>,
    /// Override a config key, such as model.n_layers=2; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Number of sequences generated at once; several numbers, separated by commas, are measured in turn
    #[arg(long, value_name = "N", default_value = "1,16", value_delimiter = ',', value_parser = at_least_one)]
    batch_size: Vec<usize>,
    /// Number of tokens in a prompt [default: half the context]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    prompt_tokens: Option<usize>,
    /// Number of tokens generated after it [default: a quarter of the context, at most 64]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    new_tokens: Option<usize>,
    /// Number of rounds; each row shows their median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    #[command(flatten)]
    formats: Formats,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (device, model) = args.open()?;
    let (n_parameters, context_length) = (model.num_params(), model.config().context_length);
    let model = args.formats.convert(model, &device.name)?;
    let new_tokens = (context_length / 4).clamp(1, MOST_NEW_TOKENS);
    let mut speeds = Vec::new();
    for &batch_size in &args.batch_size {
        let sizes = GenerateSizes {
            batch_size,
            prompt_tokens: args.prompt_tokens.unwrap_or((context_length / 2).max(1)),
            new_tokens: args.new_tokens.unwrap_or(new_tokens),
        };
        under_way(format!("{batch_size} at once"));
        speeds.push(generate::measure(&model, sizes, args.rounds)?);
    }
    let [weights, activations] = args.formats.names();
    if args.json {
        return print_json(&json!({
            "device": device.name,
            "weights": weights,
            "activations": activations,
            "parameters": n_parameters,
            "context_length": context_length,
            "cases": speeds,
            "peak_rss_mib": peak_rss_mib(),
        }));
    }
    let mut place = text::device(&device);
    if weights != "f32" {
        place = format!("{place}, weights in {weights}, activations {activations}");
    }
    print(&text::generate(n_parameters, &speeds, &place))
}

impl Args {
    fn open(&self) -> anyhow::Result<(OpenDevice, Gpt)> {
        let is_preset = |path: &Path| !path.exists() && Preset::named(&path.to_string_lossy()).is_some();
        let is_config = |path: &&Path| path.extension().is_some_and(|end| end == "toml") || is_preset(path);
        let run = self.model.as_deref().filter(|path| !is_config(path));
        let config = match run {
            Some(run) if !self.overrides.is_empty() => {
                bail!(
                    "--set changes a config, and `{}` is not one\n  hint: name a .toml file or a preset",
                    run.display()
                )
            }
            Some(run) => run::locate(run)?.run.config()?,
            None => config(self.model.as_deref(), &self.overrides)?,
        };
        let spec = self.device.map_or_else(|| config.train.device.parse(), Ok)?;
        let device = device::open(&spec)?;
        if let Some(run) = run {
            return Ok((device, Trained::open(run, Some(&spec))?.model));
        }
        let vocab_size = plan::plan(&config, None, &device, false)?.vocabulary.size;
        let seed = config.train.seed;
        let model = Gpt::new(&config.model, vocab_size, seed, &device.device);
        Ok((device, model))
    }
}
