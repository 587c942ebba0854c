//! `tinderbox generate`: a trained model writes on.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;

use super::open_model;
use crate::config::GenerateConfig;
use crate::device::DeviceSpec;
use crate::generate::Writer;

/// Write text with a trained model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox generate runs/quickstart --prompt \"The bank of\" --temperature 0.5
  tinderbox generate runs/quickstart/last --num-samples 3 --max-new-tokens 200 --seed 7")]
pub(super) struct Args {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    run: PathBuf,
    /// What the text begins with [default: the run's train.sample_prompt]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "prompt_file"
    )]
    prompt: Option<String>,
    /// A file with what the text begins with [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// The most tokens to write after the prompt [default: the run's
    /// generate.max_new_tokens]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_new_tokens: Option<usize>,
    /// How many texts to write, separated by a line `---` [default: the run's generate.num_samples]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    num_samples: Option<usize>,
    /// A factor: below 1 is safer, above 1 wilder, 0 always takes the likeliest token [default: the run's
    /// generate.temperature]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw only from the N likeliest tokens; 0: from all [default: the run's generate.top_k]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Draw only from the likeliest tokens that together have this probability, in (0, 1] [default:
    /// the run's generate.top_p]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Draw only tokens with at least this share of the likeliest one's probability, in [0, 1] [default:
    /// the run's generate.min_p]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// A factor: above 1, tokens that were used already become less likely [default: the run's
    /// generate.repetition_penalty]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// End before this text would come; may be repeated [default: the run's generate.stop]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// The same seed writes the same text [default: the run's generate.seed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// What to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

/// Writes each piece of text as soon as it is there.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let opened = open_model(&args.run, args.device.as_ref())?;
    let settings = args.settings(&opened.config.generate);
    settings.check()?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(path)) => fs::read_to_string(path)
            .with_context(|| format!("cannot read the prompt `{}`", path.display()))?,
        (None, None) => opened.config.train.sample_prompt.clone(),
    };
    let mut stdout = io::stdout().lock();
    for sample_idx in 0..settings.num_samples {
        let writer = Writer::new(
            &opened.model,
            &opened.tokenizer,
            &settings,
            &prompt,
            sample_idx as u64,
        )?;
        if sample_idx > 0 {
            stdout.write_all(b"---\n")?;
        }
        stdout.write_all(prompt.as_bytes())?;
        stdout.flush()?;
        for piece in writer {
            stdout.write_all(piece?.as_bytes())?;
            stdout.flush()?; // a reader sees every token as it is made
        }
        stdout.write_all(b"\n")?;
    }
    Ok(())
}

impl Args {
    /// The run's own settings with what the arguments say instead.
    fn settings(&self, run: &GenerateConfig) -> GenerateConfig {
        GenerateConfig {
            max_new_tokens: self.max_new_tokens.unwrap_or(run.max_new_tokens),
            num_samples: self.num_samples.unwrap_or(run.num_samples),
            temperature: self.temperature.unwrap_or(run.temperature),
            top_k: self.top_k.unwrap_or(run.top_k),
            top_p: self.top_p.unwrap_or(run.top_p),
            min_p: self.min_p.unwrap_or(run.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(run.repetition_penalty),
            stop: if self.stop.is_empty() {
                run.stop.clone()
            } else {
                self.stop.clone()
            },
            seed: self.seed.unwrap_or(run.seed),
        }
    }
}
