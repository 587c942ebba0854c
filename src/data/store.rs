//! Token files: the ids of a whole corpus behind a header that says what they are of.
//!
//! A file is named by its key and never changed: it is written under another name and renamed when
//! it is complete, so that starts at the same time do not disturb each other. Whoever uses one holds
//! a shared lock on it, and whoever writes one an exclusive lock, by which [`super::cache`] knows
//! what it may not remove.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cache::Temporary;
use super::tokens::{Tokens, Width};

/// Says that this is a token file, and in which version of the format.
const MAGIC: [u8; 8] = *b"TBTOKEN1";

/// The magic, the key and five numbers.
const HEADER_BYTES: usize = 8 + 32 + 5 * 8;

/// What a token file is of: everything that its ids follow from.
pub(super) type Key = [u8; 32];

/// How long both splits are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lengths {
    /// Tokens of both splits.
    pub n_tokens: u64,
    /// Tokens of the training split, which is the first.
    pub n_train: u64,
    /// Bytes of text that both splits stand for.
    pub bytes: u64,
    /// Bytes of text that the training split stands for.
    pub train_bytes: u64,
}

/// The training and the validation half of a token file. None if there is no such file, or it is
/// not whole, or of something else: then it is to be written anew.
pub(super) fn open(path: &Path, key: &Key, width: Width) -> Option<(Tokens, Tokens)> {
    let mut file = File::open(path).ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    let u64_at = |index: usize| {
        let (numbers, _) = header[40..].as_chunks();
        u64::from_le_bytes(numbers[index])
    };
    let lengths = Lengths {
        n_tokens: u64_at(1),
        n_train: u64_at(2),
        bytes: u64_at(3),
        train_bytes: u64_at(4),
    };
    let n_bytes = lengths.n_tokens.checked_mul(width.bytes() as u64)?;
    let is_whole = header == header_of(key, width, lengths)
        && lengths.n_train <= lengths.n_tokens
        && lengths.train_bytes <= lengths.bytes
        && file.metadata().ok()?.len() == n_bytes.checked_add(HEADER_BYTES as u64)?;
    if !is_whole {
        return None;
    }
    // Both only help others to tidy up: a file system without locks or times can do without.
    let _ = file.try_lock_shared();
    let _ = file.set_modified(SystemTime::now());
    let tokens = Tokens::map(file, HEADER_BYTES, width, lengths.bytes).ok()?;
    Some(tokens.split_at(usize::try_from(lengths.n_train).ok()?, lengths.train_bytes))
}

/// A token file on its way, under a name of its own until it is complete.
#[derive(Debug)]
pub(super) struct Writer {
    temporary: Temporary,
    path: PathBuf,
    width: Width,
}

impl Writer {
    /// Begins the file that will be at `path`.
    pub(super) fn create(mut temporary: Temporary, path: &Path, width: Width) -> io::Result<Self> {
        temporary.file.write_all(&[0; HEADER_BYTES])?; // not a token file before it is complete
        Ok(Self { temporary, path: path.to_owned(), width })
    }

    /// Where the file will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds ids as [`Width::encode`] makes them.
    pub(super) fn write(&mut self, encoded: &[u8]) -> io::Result<()> {
        self.temporary.file.write_all(encoded)
    }

    /// Completes the file and gives it its name.
    pub(super) fn finish(mut self, key: &Key, lengths: Lengths) -> io::Result<()> {
        let file = &mut self.temporary.file;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header_of(key, self.width, lengths))?;
        file.sync_all()?;
        self.temporary.rename(&self.path)
    }
}

fn header_of(key: &Key, width: Width, lengths: Lengths) -> [u8; HEADER_BYTES] {
    let Lengths { n_tokens, n_train, bytes, train_bytes } = lengths;
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..40].copy_from_slice(key);
    let numbers = [width.bytes() as u64, n_tokens, n_train, bytes, train_bytes];
    for (field, number) in header[40..].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEY: Key = [7; 32];
    const LENGTHS: Lengths = Lengths { n_tokens: 4, n_train: 3, bytes: 9, train_bytes: 5 };

    fn written(folder: &Path, width: Width) -> PathBuf {
        let path = folder.join("a.tokens");
        let temporary = Temporary::create(folder).unwrap();
        let mut writer = Writer::create(temporary, &path, width).unwrap();
        writer.write(&width.encode(&[1, 2])).unwrap();
        writer.write(&width.encode(&[3, 4])).unwrap();
        writer.finish(&KEY, LENGTHS).unwrap();
        path
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for width in [Width::Two, Width::Four] {
            let path = written(folder.path(), width);
            let (train, val) = open(&path, &KEY, width).unwrap();
            assert_eq!((train.len(), train.bytes()), (3, 5));
            assert_eq!((val.len(), val.bytes()), (1, 4));
            let mut id = [0];
            val.read(0, &mut id);
            assert_eq!(id, [4]);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_files_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), Width::Two);
        assert!(open(&path, &[8; 32], Width::Two).is_none());
        assert!(open(&path, &KEY, Width::Four).is_none());
        let good = fs::read(&path).unwrap();
        for n_kept in 0..good.len() {
            fs::write(&path, &good[..n_kept]).unwrap();
            assert!(open(&path, &KEY, Width::Two).is_none(), "{n_kept} bytes");
        }
        fs::write(&path, [&good[..], &[0]].concat()).unwrap();
        assert!(open(&path, &KEY, Width::Two).is_none());
        let mut longer_train = good.clone();
        longer_train[HEADER_BYTES - 24] = 5; // n_train, beyond all tokens
        fs::write(&path, longer_train).unwrap();
        assert!(open(&path, &KEY, Width::Two).is_none());
        fs::write(&path, good).unwrap();
        assert!(open(&path, &KEY, Width::Two).is_some());
    }

    #[test]
    fn a_writer_that_gives_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let temporary = Temporary::create(folder.path()).unwrap();
        let mut writer = Writer::create(temporary, &path, Width::Two).unwrap();
        writer.write(&Width::Two.encode(&[1])).unwrap();
        drop(writer);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
