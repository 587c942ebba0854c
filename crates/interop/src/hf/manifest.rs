//! The files that an export wrote into a folder, with their checksums: a later export replaces only these.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::pretty;
use tinderbox_model::disk::{crc32c_of, write_synced};

/// Hidden, since only Tinderbox reads it.
pub(super) const MANIFEST: &str = ".tinderbox-export.json";

pub(super) fn write(folder: &Path) -> io::Result<()> {
    let mut files = Map::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), checksum(&entry.path())?.into());
    }
    files.sort_keys();
    let text = pretty(&json!({ "crc32c": files }));
    write_synced(&folder.join(MANIFEST), |file| file.write_all(text.as_bytes()))
}

/// The names in `folder`, in order, of everything that no export wrote or that was changed since.
pub(super) fn others(folder: &Path) -> io::Result<Vec<String>> {
    let manifest = fs::read(folder.join(MANIFEST)).ok();
    let manifest: Option<Value> = manifest.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let listed = |name: &str| manifest.as_ref()?.get("crc32c")?.get(name)?.as_str();
    let mut others = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type()?.is_file();
        let is_ours = match listed(&name) {
            _ if !is_file => false,
            None => name == MANIFEST && manifest.is_some(),
            Some(expected) => checksum(&entry.path())? == expected,
        };
        if !is_ours {
            others.push(name);
        }
    }
    others.sort();
    Ok(others)
}

/// The CRC-32C of a file, in hexadecimal.
fn checksum(path: &Path) -> io::Result<String> {
    Ok(format!("{:08x}", crc32c_of(File::open(path)?)?))
}
