//! `tinderbox merge`: merges a base and its adapters into a run without adapters.

use std::path::PathBuf;

use super::next::{export, next, talk};
use super::print::note;
use crate::format::shell_word;
use crate::interop::open_adapters;
use crate::run;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox merge runs/smol-my --run-dir runs/smol-merged
  tinderbox merge runs/smol --adapter my-adapter --run-dir runs/smol-merged

The new run no longer needs its base. Exports merge, too: tinderbox export RUN --to gguf.")]
pub(super) struct Args {
    /// Fine-tuned run (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N; with --adapter, any run
    run: PathBuf,
    /// Adapters: a run fine-tuned from RUN, a folder from PEFT or mlx-lm, or a GGUF file [default: the run's own]
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    /// Run directory to create
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let located = run::locate(&args.run)?;
    let adapters = args.adapter.as_ref().map(|path| open_adapters(path, &args.run)).transpose()?;
    run::merge(&located, adapters, &args.run_dir, args.overwrite)?;
    note(format!("merged {} into {}", shell_word(&args.run), shell_word(&args.run_dir)));
    next(&[talk(&args.run_dir).1, export(&args.run_dir)]);
    Ok(())
}
