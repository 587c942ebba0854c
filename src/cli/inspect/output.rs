//! Where what was seen goes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::checkpoint::{CheckpointError, write_atomically};

/// Where what was seen goes.
#[derive(Debug, clap::Args)]
pub(super) struct Output {
    /// A file to write; one that is there is replaced [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Output {
    pub(super) fn is_file(&self) -> bool {
        self.output.is_some()
    }

    /// Says what is wrong with the place, before anything is computed for it.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = &self.output else {
            return Ok(());
        };
        let shown = path.display();
        if path.is_dir() || path.file_name().is_none() {
            bail!("cannot write `{shown}`: it is a folder\n  hint: name a file in it");
        }
        let folder = folder_of(path);
        if !folder.is_dir() {
            let folder = folder.display();
            bail!(
                "cannot write `{shown}`: there is no folder `{folder}`\n  hint: make it first, or name another"
            );
        }
        Ok(())
    }

    /// Writes `text`: to a file whole or not at all.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        let Some(path) = &self.output else {
            let mut stdout = io::stdout().lock();
            stdout.write_all(text.as_bytes())?;
            return Ok(stdout.flush()?);
        };
        let written = match fs::canonicalize(path) {
            // A pipe or a device is written to; a file, also behind a link, is replaced.
            Ok(target) if !target.is_file() => fs::write(target, text),
            Ok(target) => replace(&target, text),
            Err(_) => replace(path, text),
        };
        written.with_context(|| format!("cannot write `{}`", path.display()))
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, text.as_bytes()).map_err(|error| match error {
        CheckpointError::Write { source, .. } => source, // its hint is about runs
        other => io::Error::other(other),
    })
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// One document as it is, several as an array, in a line.
pub(super) fn json_of(mut documents: Vec<String>) -> String {
    match documents.len() {
        1 => documents.remove(0) + "\n",
        _ => format!("[{}]\n", documents.join(",")),
    }
}
