//! `tinderbox man`: prints or writes manual pages, generated from the definitions of the commands.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap_mangen::Man;

use super::note;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox man | man -l -
  tinderbox man --output ~/.local/share/man/man1")]
pub(super) struct Args {
    /// Write one page for each command to this folder, replacing existing ones [default: one page on standard output]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Prints or writes the manual pages of `command`, the definition of the whole program.
pub(super) fn run(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let Some(folder) = &args.output else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return Ok(io::stdout().lock().write_all(&page)?);
    };
    let cannot = || format!("cannot write manual pages to `{}`", folder.display());
    if folder.exists() && !folder.is_dir() {
        bail!("cannot write to `{}`: it is not a folder\n  hint: name a folder", folder.display());
    }
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(command, folder).with_context(cannot)?;
    note(format!("wrote the pages to `{}`", folder.display()));
    Ok(())
}
