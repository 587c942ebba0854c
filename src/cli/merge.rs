//! `tinderbox merge`: makes a plain run of a base and its adapters.

use std::path::PathBuf;

use super::note;
use crate::format::shell_word;
use crate::interop::open_adapters;
use crate::run;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox merge runs/smol-my --run-dir runs/smol-merged
  tinderbox merge runs/smol --adapter my-adapter --run-dir runs/smol-merged

The new run needs its base no more. Exports merge, too: tinderbox export RUN --to gguf.")]
pub(super) struct Args {
    /// A fine-tuned run (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N; or any run, with
    /// --adapter
    run: PathBuf,
    /// The adapters: a run that was fine-tuned from RUN, or a folder of PEFT or mlx-lm [default: the run's own]
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    /// The run directory to make
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
}

/// Writes the merged run.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let located = run::locate(&args.run)?;
    let adapters = args.adapter.as_ref().map(|path| open_adapters(path, &args.run)).transpose()?;
    run::merge(&located, adapters, &args.run_dir, args.overwrite)?;
    note(format!("merged {} into {}", shell_word(&args.run), shell_word(&args.run_dir)));
    Ok(())
}
