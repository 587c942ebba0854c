//! `tinderbox completions`: prints shell completion scripts, generated from the definitions of the commands.

use std::io::{self, Write};

use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox completions bash > ~/.local/share/bash-completion/completions/tinderbox
  tinderbox completions zsh > ~/.zfunc/_tinderbox
  tinderbox completions fish > ~/.config/fish/completions/tinderbox.fish")]
pub(super) struct Args {
    /// Shell
    shell: Shell,
}

/// Prints the completion script of `command`, the definition of the whole program.
pub(super) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new(); // clap_complete panics if standard output is closed
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    Ok(io::stdout().lock().write_all(&script)?)
}
