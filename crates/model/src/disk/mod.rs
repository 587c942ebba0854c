//! Safe file access: links are not followed, readers find complete files only, and whatever a call has written survives
//! a crash of the system.

#![allow(clippy::missing_errors_doc, reason = "every error is one of the system")]

mod atomic;
mod file;
mod partial_dir;

pub use atomic::{
    PartialFile, create_dir_all, is_partial, remove_dir, remove_left_over, rename, sync_names_beside, write_atomically,
    write_synced,
};
pub use file::{
    Summed, Temporary, crc32c_of, each_chunk, folder_of, is_at, is_link, open_file, open_lock, remove_unused,
};
pub use partial_dir::{PartialDir, lock_folder, remove_left_over_of};
