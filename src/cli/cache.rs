//! `tinderbox cache`: shows and clears the cache of encoded texts.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::paint::n_columns;
use super::print::{note, print_json, print_table};
use crate::data::{CachedFile, clear_cache, list_cache};
use crate::format::{counted, size};
use crate::run::unix_s;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox cache
  tinderbox cache --json
  tinderbox cache clear")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Cache folder, as in data.cache_dir [default: tinderbox/tokens in your cache directory]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Action {
    /// List the files with their sizes and purposes (the default)
    #[command(after_help = "\
Example:
  tinderbox cache list --json")]
    List,
    /// Remove the files that are not in use; later runs make them again
    #[command(after_help = "\
Example:
  tinderbox cache clear --texts")]
    Clear {
        /// Also remove texts from standard input; their runs cannot be resumed without them
        #[arg(long)]
        texts: bool,
    },
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let cache_dir = args.cache_dir.as_deref();
    match args.action.unwrap_or(Action::List) {
        Action::List => {
            let (folder, files) = list_cache(cache_dir)?;
            if args.json {
                return print_json(
                    &json!({ "folder": folder.to_string_lossy(), "bytes": bytes(&files), "files": files }),
                );
            }
            if !files.is_empty() {
                print_table(&view::cache_table(&files, unix_s(), n_columns()))?;
            }
            note(format!("{} in `{}`", summary(&files), folder.display()));
        }
        Action::Clear { texts } => {
            let (folder, cleared) = clear_cache(cache_dir, texts)?;
            let (removed, in_use) = (&cleared.removed, &cleared.in_use);
            if args.json {
                return print_json(&json!({ "folder": folder.to_string_lossy(), "removed_bytes": bytes(removed),
                                           "removed": removed, "in_use": in_use }));
            }
            note(format!("removed {} from `{}`", summary(removed), folder.display()));
            if !in_use.is_empty() {
                note(format!("kept {}, which a process is using", summary(in_use)));
            }
            if !cleared.texts.is_empty() {
                note(format!("kept {} from standard input; --texts removes them, too", summary(&cleared.texts)));
            }
        }
    }
    Ok(())
}

fn bytes(files: &[CachedFile]) -> u64 {
    files.iter().map(|file| file.bytes).sum()
}

fn summary(files: &[CachedFile]) -> String {
    format!("{} of {}", counted(files.len() as u64, "file"), size(bytes(files)))
}
