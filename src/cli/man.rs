//! `tinderbox man`: prints or writes manual pages, generated from the definitions of the commands.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap_mangen::Man;

use super::output;
use super::print::note;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox man | man -l -
  tinderbox man --output ~/.local/share/man/man1")]
pub(super) struct Args {
    /// Folder for one page per command; replaces earlier ones [default: one page on standard output]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Adds the pages of a command and its subcommands, with the names of their files.
fn render_all(command: clap::Command, pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((man.get_filename(), String::from_utf8(page).context("a manual page is text")?));
    let mut command = command;
    command.build();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    subcommands.cloned().try_for_each(|subcommand| render_all(subcommand, pages))
}

pub(super) fn run(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let Some(folder) = &args.output else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return Ok(io::stdout().lock().write_all(&page)?);
    };
    let cannot = || format!("cannot write manual pages to `{}`", folder.display());
    if folder.exists() && !folder.is_dir() {
        bail!("cannot write to `{}`: it is not a folder\n  hint: give the path of a folder", folder.display());
    }
    fs::create_dir_all(folder).with_context(cannot)?;
    let mut pages = Vec::new();
    render_all(command.disable_help_subcommand(true), &mut pages)?;
    let paths: Vec<PathBuf> = pages.iter().map(|(name, _)| folder.join(name)).collect();
    for path in &paths {
        output::check_replaced(path, "a manual page of Tinderbox", |page| page.contains("\n.TH tinderbox"))?;
    }
    for (path, (_, page)) in paths.iter().zip(&pages) {
        output::write(path, page)?;
    }
    note(format!("wrote the pages to `{}`", folder.display()));
    Ok(())
}
