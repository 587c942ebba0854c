//! `tinderbox export`: a run becomes a model for other projects.

use std::path::PathBuf;

use clap::ValueEnum;

use super::note;
use crate::format::shell_word;
use crate::interop::{Outgoing, hf};
use crate::model::Dtype;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox export runs/quickstart --to hf
  tinderbox export runs/quickstart/last --to hf --dtype bf16 --output my-model")]
pub(super) struct Args {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    run: PathBuf,
    /// Who is to open it
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// The type of the numbers
    #[arg(long, value_enum, default_value_t = Numbers::F32)]
    dtype: Numbers,
    /// Where to write it [default: a folder `hf` in the run]
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace what is there
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A folder for transformers and everything that reads its files
    Hf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Numbers {
    /// 32 bits, exactly as trained
    F32,
    /// 16 bits, with 10 bits behind the point
    F16,
    /// 16 bits, the upper half of 32
    Bf16,
}

/// Exports, and says where to.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let model = Outgoing::open(&args.run)?;
    let dtype = match args.dtype {
        Numbers::F32 => Dtype::F32,
        Numbers::F16 => Dtype::F16,
        Numbers::Bf16 => Dtype::Bf16,
    };
    let output = match args.to {
        Format::Hf => {
            let output = args.output.clone().unwrap_or_else(|| model.run.join("hf"));
            hf::export(&model, dtype, &output, args.overwrite)?;
            output
        }
    };
    note(format!("exported {} to {}", model.family, shell_word(output)));
    Ok(())
}
