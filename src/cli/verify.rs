//! `tinderbox verify`: compares a run's model with a file of another project.

use std::path::PathBuf;

use anyhow::{Context, bail};

use super::paint::n_columns;
use super::print::{print, print_json};
use crate::interop::verify;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox verify runs/smollm2 --against SmolLM2-135M
  tinderbox verify runs/quickstart --against quickstart.gguf --prompt \"The bank of\"")]
pub(super) struct Args {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N
    run: PathBuf,
    /// Model to compare with: a folder in the format of transformers, or a .gguf file
    #[arg(long, value_name = "DIR|FILE.gguf")]
    against: PathBuf,
    /// Text for both models to read [default: a built-in one]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "text")]
    prompt: Option<String>,
    /// File with the text [default: --prompt]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let text = match &args.text {
        Some(path) => {
            Some(std::fs::read_to_string(path).with_context(|| format!("cannot read the text `{}`", path.display()))?)
        }
        None => args.prompt.clone(),
    };
    let found = verify::verify(&args.run, &args.against, text.as_deref())?;
    if args.json {
        print_json(&found)?;
    } else {
        print(&view::verification(&found, n_columns()))?;
    }
    if !found.same {
        bail!("`{}` is not the model in `{}`", args.run.display(), args.against.display());
    }
    Ok(())
}
