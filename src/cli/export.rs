//! `tinderbox export`: converts a run's model to a format of other projects.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;

use super::print::note;
use crate::format::shell_word;
use crate::interop::gguf::{self, TensorType};
use crate::interop::{Outgoing, hf};
use crate::model::Dtype;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox export runs/quickstart --to hf
  tinderbox export runs/quickstart/last --to hf --dtype bf16 --output my-model
  tinderbox export runs/quickstart --to gguf --dtype q8_0
  tinderbox export runs/smol-my --adapter --to hf --output my-adapter
  tinderbox export runs/smol-my --adapter --to gguf

A GGUF file comes with a Modelfile: ollama create NAME -f FOLDER/Modelfile.")]
pub(super) struct Args {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N
    run: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// Export only the adapters of a fine-tuned run, for PEFT or llama.cpp, instead of merging them into the weights
    #[arg(long)]
    adapter: bool,
    /// Type of the weights
    #[arg(long, value_enum, default_value_t = Numbers::F32)]
    dtype: Numbers,
    /// Output folder, or .gguf file [default: the folder `hf` or `gguf` in the run]
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace an earlier export
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A folder for transformers and compatible programs
    Hf,
    /// A file for llama.cpp, ollama, LM Studio and compatible programs
    Gguf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Numbers {
    /// 32 bits, exactly as trained
    F32,
    /// 16 bits, 10 of them for the fraction
    F16,
    /// 16 bits, the upper half of 32
    Bf16,
    /// 8 bits, with one scale per 32 weights; only in GGUF files
    #[value(name = "q8_0")]
    Q8_0,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let model = Outgoing::open(&args.run)?;
    let folder = match args.to {
        Format::Hf if args.adapter => "adapter",
        Format::Hf => "hf",
        Format::Gguf => "gguf",
    };
    let mut output = args.output.clone().unwrap_or_else(|| model.run.join(folder));
    match args.to {
        Format::Hf => {
            let export = if args.adapter { hf::export_adapter } else { hf::export };
            export(&model, args.dtype.in_folder()?, &output, args.overwrite)?;
        }
        Format::Gguf => {
            let export = if args.adapter { gguf::export_adapter } else { gguf::export };
            output = export(&model, args.dtype.in_file(), &output, args.overwrite)?;
        }
    }
    let what = if args.adapter { "the adapters" } else { model.family.name() };
    note(format!("exported {what} to {}", shell_word(output)));
    Ok(())
}

impl Numbers {
    fn in_folder(self) -> anyhow::Result<Dtype> {
        match self {
            Self::F32 => Ok(Dtype::F32),
            Self::F16 => Ok(Dtype::F16),
            Self::Bf16 => Ok(Dtype::Bf16),
            Self::Q8_0 => bail!("--dtype q8_0 is a type of GGUF files\n  hint: add --to gguf, or choose bf16"),
        }
    }

    fn in_file(self) -> TensorType {
        match self {
            Self::F32 => TensorType::F32,
            Self::F16 => TensorType::F16,
            Self::Bf16 => TensorType::Bf16,
            Self::Q8_0 => TensorType::Q8_0,
        }
    }
}
