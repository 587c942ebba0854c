//! Output files: paths are checked before anything is computed, and files are written atomically.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::model::disk::write_atomically;
use crate::run::layout;
use crate::view::html::is_page;

/// Returns an error if `path` is a folder, its folder does not exist, or it is one of a run's own files.
pub(super) fn check_file(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if path.is_dir() || path.file_name().is_none() {
        bail!("cannot write `{shown}`: it is a folder\n  hint: name a file in it");
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        bail!("cannot write `{shown}`: there is no folder `{folder}`\n  hint: create it first, or choose another");
    }
    if layout::is_part_of_run(path) {
        bail!("cannot write `{shown}`: it belongs to a run\n  hint: choose another name");
    }
    Ok(())
}

/// Like [`check_file`], and returns an error if `path` is a file that is not of the `kind` that `is_ours` recognizes:
/// only files that this program made and can make again are replaced.
pub(super) fn check_replaced(path: &Path, kind: &str, is_ours: impl FnOnce(&str) -> bool) -> anyhow::Result<()> {
    check_file(path)?;
    let is_other = |text: Vec<u8>| !text.is_empty() && !is_ours(&String::from_utf8_lossy(&text));
    // Pipes and devices are never read.
    if path.is_file() && fs::read(path).map_or(true, is_other) {
        bail!(
            "`{}` is not {kind}, so it is not replaced\n  hint: choose another name, or move the file away",
            path.display()
        );
    }
    Ok(())
}

/// [`check_replaced`] for a page.
pub(super) fn check_page(path: &Path) -> anyhow::Result<()> {
    check_replaced(path, "a page that Tinderbox wrote", is_page)
}

/// Writes a file atomically, replacing an existing one.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let result = match fs::canonicalize(path) {
        // Pipes and devices are written to directly; a file, even behind a link, is replaced.
        Ok(target) if !target.is_file() => fs::write(target, text),
        Ok(target) => write_atomically(&target, text.as_bytes()),
        Err(_) => write_atomically(path, text.as_bytes()),
    };
    result.with_context(|| format!("cannot write `{}`", path.display()))
}
