//! Safe file access: links are not followed, readers find complete files only, and whatever a call has written survives
//! a crash of the system.

#![allow(clippy::missing_errors_doc, reason = "every error is one of the system")]

mod atomic;
mod file;
mod names;
mod partial_dir;

pub use atomic::{PartialFile, is_partial, remove_dir, remove_left_over, write_atomically, write_synced};
pub use file::{Summed, Temporary, crc32c_of, folder_of, is_at, is_link, open_file, open_lock, remove_unused};
pub use names::{create_dir_all, rename, sync_names_beside};
pub use partial_dir::{PartialDir, lock_folder, remove_left_over_of};
