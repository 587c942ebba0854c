//! `tinderbox import`: converts a model of another project to a run directory.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::args::program;
use super::next::{export, has_template, next, talk, template};
use super::print::note;
use crate::format::{grouped, shell_word};
use crate::interop::{self, Family, ForeignModel, Imported};

#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub(super) struct Args {
    /// Folder in the format of transformers (config.json, safetensors files, tokenizer.json), .gguf file, or
    /// hf:OWNER/NAME or hf:OWNER/NAME/FILE.gguf to download from the Hugging Face hub; @REVISION may follow NAME
    model: PathBuf,
    /// Base run, if MODEL is a folder of adapters from PEFT or mlx-lm, or a GGUF file of them [default: MODEL is a
    /// whole model]
    #[arg(long, value_name = "RUN")]
    base: Option<PathBuf>,
    /// Run directory to create
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
}

fn after_help() -> String {
    let families = Family::names();
    let (first, last) = families.rsplit_once(", ").expect("there are several families");
    format!(
        "\
Examples:
  tinderbox import ~/models/SmolLM2-135M --run-dir runs/smollm2
  tinderbox import SmolLM2-135M-Instruct.Q8_0.gguf --run-dir runs/smollm2
  tinderbox import hf:HuggingFaceTB/SmolLM2-135M --run-dir runs/smollm2
  tinderbox import hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf --run-dir runs/qwen3
  tinderbox import my-adapter --base runs/smollm2 --run-dir runs/smollm2-theirs

Supported families: {first} and {last}."
    )
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let origin = args.model.display().to_string();
    let path = match origin.strip_prefix("hf:") {
        Some(name) => download(name)?,
        None => args.model.clone(),
    };
    if let Some(base) = &args.base {
        return run_adapters(args, &path, base);
    }
    let source = ForeignModel::open(&path)?;
    let Imported { n_parameters, left_out } = interop::import(&source, &origin, &args.run_dir, args.overwrite)?;
    let [parameters, vocabulary, context] =
        [n_parameters, source.vocab_size(), source.config.context_length].map(|n| grouped(n as u64));
    note(format!(
        "imported a model of the family {}: {parameters} parameters, a vocabulary of {vocabulary} tokens, a context of \
         {context}",
        source.family
    ));
    if let Some(token) = left_out {
        note(format!("left out the token {token:?}: it fills batches in training, and the model has no row for it"));
    }
    let (program, run) = (program(), shell_word(&args.run_dir));
    let template = match has_template(&args.run_dir) {
        true => String::new(),
        false => format!(" --template {}", template(&args.run_dir)),
    };
    next(&[
        talk(&args.run_dir).1,
        format!("{program} finetune {run} --data FILE.jsonl{template}"),
        format!("{program} train CONFIG --from {run}"),
        format!("{program} eval {run} --text FILE"),
    ]);
    Ok(())
}

fn run_adapters(args: &Args, path: &Path, base: &Path) -> anyhow::Result<()> {
    let lora = interop::import_adapters(path, base, &args.run_dir, args.overwrite)
        .with_context(|| format!("cannot import `{}` as adapters of --base {}", path.display(), shell_word(base)))?;
    let targets: Vec<String> = lora.targets.iter().map(ToString::to_string).collect();
    note(format!("imported adapters of rank {} for {}", lora.rank, targets.join(", ")));
    next(&[talk(&args.run_dir).1, export(&args.run_dir)]);
    Ok(())
}

#[cfg(feature = "hub")]
fn download(name: &str) -> anyhow::Result<PathBuf> {
    let style = super::progress::style("{bar:30} {msg}  {bytes}/{total_bytes}  {bytes_per_sec}{left}");
    let bar = indicatif::ProgressBar::new(0).with_style(style); // hidden without a terminal
    let folder = interop::hub::download(name, &mut |file, done, all| {
        if bar.message() != file {
            bar.set_message(file.to_owned());
            bar.reset_eta();
        }
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(folder?)
}

#[cfg(not(feature = "hub"))]
fn download(name: &str) -> anyhow::Result<PathBuf> {
    anyhow::bail!(
        "cannot download `{name}`: this binary was built without the feature `hub`\n  hint: build it with --features hub, \
         or download the model's folder and import that"
    )
}
