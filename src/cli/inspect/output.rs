//! Where what was seen goes.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::cli::output;

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
        self.output.as_deref().map_or(Ok(()), output::check_file)
    }

    /// Writes `text`: to a file whole or not at all.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            return output::write(path, text);
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}

/// One document as it is, several as an array, in a line.
pub(super) fn json_of(mut documents: Vec<String>) -> String {
    match documents.len() {
        1 => documents.remove(0) + "\n",
        _ => format!("[{}]\n", documents.join(",")),
    }
}
