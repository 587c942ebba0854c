//! `tinderbox import`: a model of another project becomes a run directory.

use std::path::PathBuf;

use super::{note, program};
use crate::format::{grouped, shell_word};
use crate::interop::{self, Source};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox import ~/models/SmolLM2-135M --run-dir runs/smollm2
  tinderbox import gpt2-folder --run-dir runs/gpt2 --overwrite
  tinderbox import SmolLM2-135M-Instruct.Q8_0.gguf --run-dir runs/smollm2

It takes models of the families gpt2, llama, mistral, qwen2, qwen3, arcee, gpt_neox and gpt_neo.")]
pub(super) struct Args {
    /// A folder as transformers writes it (config.json, safetensors files, tokenizer.json), or a .gguf file
    model: PathBuf,
    /// The run directory to make
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
}

/// Imports, and says what was made and what to do with it.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let source = Source::open(&args.model)?;
    let origin = args.model.display().to_string();
    let imported = interop::import(&source, &origin, &args.run_dir, args.overwrite)?;
    let [parameters, vocabulary, context] =
        [imported.n_parameters, imported.vocab_size, imported.config.model.context_length].map(|n| grouped(n as u64));
    note(format!(
        "imported a model of the family {}: {parameters} parameters, a vocabulary of {vocabulary} tokens, a context of \
         {context}",
        imported.family
    ));
    let (program, run) = (program(), shell_word(&args.run_dir));
    note(format!(
        "\nNext:\n    {program} generate {run} --prompt \"...\"\n    {program} eval {run} --text FILE\n    {program} \
         inspect explain {run} --prompt \"...\"\n    {program} train CONFIG --from {run}"
    ));
    Ok(())
}
