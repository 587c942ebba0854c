//! `tinderbox export`: converts a run's model to a format of other projects.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;

use super::next::next;
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
  tinderbox export runs/smol-my --adapter --to gguf")]
pub(super) struct Args {
    /// Run directory (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N
    run: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// Export only the adapters of a fine-tuned run, for PEFT or llama.cpp, instead of merging them into the weights
    #[arg(long)]
    adapter: bool,
    /// Type of the weights [default: that of the model that was imported, or f32; of adapters f32]
    #[arg(long, value_enum)]
    dtype: Option<Numbers>,
    /// Output folder, or .gguf file [default: the folder `hf` or `gguf` in the run]
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace an earlier export
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    let dtype = args.dtype.unwrap_or_else(|| args.default_dtype(&model));
    match args.to {
        Format::Hf => {
            let export = if args.adapter { hf::export_adapter } else { hf::export };
            export(&model, dtype.in_folder()?, &output, args.overwrite)?;
        }
        Format::Gguf => {
            let export = if args.adapter { gguf::export_adapter } else { gguf::export };
            output = export(&model, dtype.in_file(), &output, args.overwrite)?;
        }
    }
    let what = if args.adapter { "the adapters" } else { model.family.name() };
    let dtype = dtype.to_possible_value().expect("no type is hidden");
    let file = shell_word(&output);
    let with_modelfile = args.to == Format::Gguf && !args.adapter;
    let beside = if with_modelfile { ", with a Modelfile beside it" } else { "" };
    note(format!("exported {what} to {file}, in {}{beside}", dtype.get_name()));
    match (args.to, args.adapter) {
        (Format::Hf, _) => {}
        (Format::Gguf, true) => next(&[format!("llama-cli --model BASE.gguf --lora {file}")]),
        (Format::Gguf, false) => {
            let go = gguf::go_template(&model.tokenizer, &model.config.generate);
            if model.tokenizer.chat_template().is_some() && go.is_none() {
                note(
                    "note: the Modelfile has no TEMPLATE, since ollama's templates cannot express the chat template: only \
                     versions of ollama that render the one in the GGUF file can chat"
                        .to_owned(),
                );
            }
            let (name, beside) = (shell_word(model.name()), shell_word(output.with_file_name("Modelfile")));
            let ollama = format!("ollama create {name} -f {beside} && ollama run {name}");
            next(&[format!("llama-cli --model {file}"), ollama]);
        }
    }
    Ok(())
}

impl Args {
    /// The type that came in, as far as the format has it.
    fn default_dtype(&self, model: &Outgoing) -> Numbers {
        let came_in = model.state.dtype.as_deref().filter(|_| !self.adapter);
        let came_in = came_in.and_then(|name| Numbers::from_str(name, false).ok());
        came_in.filter(|dtype| self.to == Format::Gguf || dtype.in_folder().is_ok()).unwrap_or(Numbers::F32)
    }
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
