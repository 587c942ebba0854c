//! The token ids of a text, in a token file or in memory. A token file never changes: it is written under another name
//! and renamed when it is complete, so that concurrent runs do not disturb each other. Readers and writers hold a lock,
//! so that [`super::cache`] does not remove it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use super::chunk::Half;
use super::{BatchSource, DataError, Examples};
use tinderbox_model::disk::{self, Temporary};

/// The ids of a split, one after another. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens {
    ids: Arc<Ids>,
    /// The positions of this split in `ids`.
    range: Range<usize>,
    bytes: u64,
}

#[derive(Debug)]
enum Ids {
    Memory(Vec<u32>),
    File(TokenFile),
    Records {
        examples: Examples,
        /// The position after each of them.
        ends: Vec<usize>,
    },
}

/// An open token file. Its lock tells others that it is in use.
#[derive(Debug)]
struct TokenFile {
    path: PathBuf,
    file: Mutex<File>,
    width: Width,
    /// The first read error.
    failure: OnceLock<io::Error>,
}

impl TokenFile {
    /// Reads ids from position `start` of the file on. Not memory-mapped: if another program truncated the file, the
    /// process would be killed.
    fn read(&self, start: usize, out: &mut [i32]) -> io::Result<()> {
        let mut bytes = vec![0; out.len() * self.width as usize];
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start((HEADER_BYTES + start * self.width as usize) as u64))?;
            file.read_exact(&mut bytes)?;
        }
        match self.width {
            Width::Two => {
                let ids = bytes.as_chunks().0.iter().map(|id| i32::from(u16::from_le_bytes(*id)));
                out.iter_mut().zip(ids).for_each(|(out, id)| *out = id);
            }
            Width::Four => {
                let ids = bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id));
                out.iter_mut().zip(ids).for_each(|(out, id)| *out = id);
            }
        }
        Ok(())
    }
}

/// The number of bytes per id in a token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Two = 2,
    Four = 4,
}

impl Width {
    /// The narrowest width that holds every id.
    pub(super) fn of_vocabulary(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::Two } else { Self::Four }
    }

    pub(super) fn encode(self, ids: &[u32]) -> Vec<u8> {
        let narrow = |&id: &u32| u16::try_from(id).expect("the vocabulary has at most 65,536 ids");
        match self {
            Self::Two => ids.iter().flat_map(|id| narrow(id).to_le_bytes()).collect(),
            Self::Four => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        }
    }
}

impl Tokens {
    /// Ids in memory that stand for `bytes` bytes of text.
    #[must_use]
    pub fn from_ids(ids: &[u32], bytes: u64) -> Self {
        Self { range: 0..ids.len(), ids: Arc::new(Ids::Memory(ids.to_vec())), bytes }
    }

    /// The ids of records, one after another.
    pub(super) fn of_records(examples: Examples, bytes: u64) -> Self {
        let sums = examples.lengths().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        });
        let ends: Vec<usize> = sums.collect();
        Self { range: 0..ends.last().copied().unwrap_or(0), ids: Arc::new(Ids::Records { examples, ends }), bytes }
    }

    /// `n` pseudorandom ids below `vocab_size`, always the same: synthetic text for benchmarks.
    #[must_use]
    pub fn made_up(n: usize, vocab_size: usize) -> Self {
        let vocab_size = u64::try_from(vocab_size).unwrap_or(u64::MAX);
        let noise = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let ids = (0..n as u64).map(|i| u32::try_from(noise(i) % vocab_size).unwrap_or(0));
        Self::from_ids(&ids.collect::<Vec<u32>>(), n as u64)
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes of text that the tokens stand for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` with the ids from position `start` on, or with zeros if they cannot be read, which [`Tokens::check`]
    /// reports.
    ///
    /// # Panics
    /// If there are too few.
    pub fn read(&self, start: usize, out: &mut [i32]) {
        let end = start.checked_add(out.len()).filter(|end| *end <= self.len());
        assert!(end.is_some(), "{} ids from {start} on, out of {}", out.len(), self.len());
        let start = self.range.start + start;
        match &*self.ids {
            Ids::Memory(ids) => out.iter_mut().zip(&ids[start..]).for_each(|(out, id)| *out = id.cast_signed()),
            Ids::File(file) => {
                if let Err(error) = file.read(start, out) {
                    out.fill(0);
                    file.failure.set(error).ok(); // the first error is kept
                }
            }
            Ids::Records { examples, ends } => {
                let first = ends.partition_point(|end| *end <= start);
                let n_before = first.checked_sub(1).map_or(0, |before| ends[before]);
                let ids = (first..ends.len()).flat_map(|idx| examples.read(idx).ids).skip(start - n_before);
                out.iter_mut().zip(ids).for_each(|(out, id)| *out = id.cast_signed());
            }
        }
    }

    /// Adds the number of tokens of each id, `[V]`, the first token left out. Tokens that cannot be read count as zeros.
    pub(super) fn count_after_first(&self, counts: &mut [u64]) {
        let mut ids = vec![0; BUFFER_BYTES / size_of::<i32>()];
        for start in (1..self.len()).step_by(ids.len()) {
            let ids = &mut ids[..(self.len() - start).min(BUFFER_BYTES / size_of::<i32>())];
            self.read(start, ids);
            let known = ids.iter().filter_map(|id| usize::try_from(*id).ok());
            known.for_each(|id| _ = counts.get_mut(id).map(|count| *count += 1));
        }
    }

    /// Checks that every read so far succeeded: another program may cut a token file short.
    pub fn check(&self) -> Result<(), DataError> {
        let TokenFile { path, failure, .. } = match &*self.ids {
            Ids::Memory(_) => return Ok(()),
            Ids::File(file) => file,
            Ids::Records { examples, .. } => return examples.check(),
        };
        failure.get().map_or(Ok(()), |error| {
            let source = io::Error::new(error.kind(), error.to_string());
            Err(DataError::Tokens { path: path.clone(), source })
        })
    }
}

/// The first bytes of a token file, with the version of the format.
const MAGIC: [u8; 8] = *b"TBTOKEN2";

/// The magic, the key, five numbers and the checksum.
const HEADER_BYTES: usize = 8 + 32 + 6 * 8;

/// Bytes read between two progress reports.
const BUFFER_BYTES: usize = 1 << 20;

/// The hash of everything that determines the ids of a token file.
pub(super) type CacheKey = [u8; 32];

/// The tokens of both splits and of the training split, which comes first, and the bytes that they stand for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    n_tokens: u64,
    n_train: u64,
    bytes: u64,
    train_bytes: u64,
}

/// The training and the validation split of a token file, which is read once to verify its checksum. `None` if it is
/// missing, damaged, or of another key or version. `on_bytes` receives the number of bytes read so far, and may
/// stop the reading.
pub(super) fn open(
    path: &Path,
    key: &CacheKey,
    width: Width,
    on_bytes: &dyn Fn(u64) -> Result<(), DataError>,
) -> Result<Option<(Tokens, Tokens)>, DataError> {
    let Some((mut file, header, lengths)) = open_header(path, key, width) else { return Ok(None) };
    let (mut buffer, mut n_bytes, mut crc32c) = (vec![0; BUFFER_BYTES], 0, 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                crc32c = crc32c::crc32c_append(crc32c, &buffer[..n]);
                n_bytes += n as u64;
                on_bytes(n_bytes)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
    if header != header_of(key, width, lengths, crc32c) {
        return Ok(None);
    }
    // The lock and the time only help other processes to clean up: a file system without locks or times works, too.
    let _ = file.try_lock_shared();
    let _ = file.set_modified(SystemTime::now());
    let size = |n: u64| usize::try_from(n).expect("tokens that were read");
    let (n_train, n_tokens) = (size(lengths.n_train), size(lengths.n_tokens));
    let file = TokenFile { path: path.to_owned(), file: Mutex::new(file), width, failure: OnceLock::new() };
    let ids = Arc::new(Ids::File(file));
    let train = Tokens { ids: ids.clone(), range: 0..n_train, bytes: lengths.train_bytes };
    let val = Tokens { ids, range: n_train..n_tokens, bytes: lengths.bytes - lengths.train_bytes };
    Ok(Some((train, val)))
}

/// Opens a file with a valid header of this key, whose length matches it.
fn open_header(path: &Path, key: &CacheKey, width: Width) -> Option<(File, [u8; HEADER_BYTES], Lengths)> {
    let mut file = disk::open_file(path).ok()?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    let (numbers, _) = header[40..].as_chunks();
    let [_, n_tokens, n_train, bytes, train_bytes] = std::array::from_fn(|idx| u64::from_le_bytes(numbers[idx]));
    let lengths = Lengths { n_tokens, n_train, bytes, train_bytes };
    let n_bytes = n_tokens.checked_mul(width as u64)?;
    let checked = HEADER_BYTES - 8;
    let is_whole = header[..checked] == header_of(key, width, lengths, 0)[..checked]
        && n_train <= n_tokens
        && train_bytes <= bytes
        && file.metadata().ok()?.len() == n_bytes.checked_add(HEADER_BYTES as u64)?;
    is_whole.then_some((file, header, lengths))
}

/// A token file under a temporary name until it is complete.
#[derive(Debug)]
pub(super) struct Writer {
    temporary: Temporary,
    /// The final path.
    pub path: PathBuf,
    width: Width,
    lengths: Lengths,
    /// The CRC-32C of the ids so far.
    crc32c: u32,
}

impl Writer {
    pub(super) fn create(mut temporary: Temporary, path: &Path, width: Width) -> io::Result<Self> {
        temporary.file.write_all(&[0; HEADER_BYTES])?; // not a valid token file until it is complete
        Ok(Self { temporary, path: path.to_owned(), width, lengths: Lengths::default(), crc32c: 0 })
    }

    /// Adds ids, as [`Width::encode`] makes them, that stand for `n_bytes` of text.
    pub(super) fn write(&mut self, half: Half, n_bytes: usize, encoded: &[u8]) -> io::Result<()> {
        let (n_tokens, n_bytes) = (encoded.len() as u64 / self.width as u64, n_bytes as u64);
        self.lengths.n_tokens += n_tokens;
        self.lengths.bytes += n_bytes;
        if half == Half::Train {
            self.lengths.n_train += n_tokens;
            self.lengths.train_bytes += n_bytes;
        }
        self.crc32c = crc32c::crc32c_append(self.crc32c, encoded);
        self.temporary.file.write_all(encoded)
    }

    /// Completes the file and renames it.
    pub(super) fn finish(mut self, key: &CacheKey) -> io::Result<()> {
        let file = &mut self.temporary.file;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header_of(key, self.width, self.lengths, self.crc32c))?;
        file.sync_all()?;
        self.temporary.rename(&self.path)
    }
}

/// The header of a file whose ids have the checksum `crc32c`. The checksum in it covers the ids and the header.
fn header_of(key: &CacheKey, width: Width, lengths: Lengths, crc32c: u32) -> [u8; HEADER_BYTES] {
    let Lengths { n_tokens, n_train, bytes, train_bytes } = lengths;
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..40].copy_from_slice(key);
    let numbers = [width as u64, n_tokens, n_train, bytes, train_bytes];
    for (field, number) in header[40..].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let (checked, checksum) = header.split_at_mut(HEADER_BYTES - 8);
    checksum.copy_from_slice(&u64::from(crc32c::crc32c_append(crc32c, checked)).to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::cache::temporary;
    use super::super::fixtures::ids;
    use super::*;

    const KEY: CacheKey = [7; 32];

    fn open(path: &Path, key: &CacheKey, width: Width) -> Option<(Tokens, Tokens)> {
        super::open(path, key, width, &|_| Ok(())).unwrap()
    }

    fn written(folder: &Path, width: Width, ids: [u32; 4]) -> PathBuf {
        let path = folder.join("a.tokens");
        let mut writer = Writer::create(temporary(folder).unwrap(), &path, width).unwrap();
        writer.write(Half::Train, 2, &width.encode(&ids[..2])).unwrap();
        writer.write(Half::Train, 3, &width.encode(&ids[2..3])).unwrap();
        writer.write(Half::Val, 4, &width.encode(&ids[3..])).unwrap();
        writer.finish(&KEY).unwrap();
        path
    }

    #[test]
    fn ids_round_trip_through_files_and_memory() {
        let folder = tempfile::tempdir().unwrap();
        for (width, all) in [(Width::Two, [0, 1, 65535, 7]), (Width::Four, [0, 1, 70000, 7])] {
            let path = written(folder.path(), width, all);
            let (train, val) = open(&path, &KEY, width).unwrap();
            assert_eq!((ids(&train), train.bytes()), (all[..3].to_vec(), 5));
            assert_eq!((ids(&val), val.bytes()), (vec![7], 4));
            let memory = Tokens::from_ids(&all, 9);
            assert_eq!((ids(&memory), memory.bytes()), (all.to_vec(), 9));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    #[should_panic(expected = "2 ids from 2 on, out of 3")]
    fn split_is_not_read_beyond_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), Width::Two, [1, 2, 3, 4]);
        let (train, _) = open(&path, &KEY, Width::Two).unwrap();
        train.read(2, &mut [0; 2]);
    }

    #[test]
    fn damaged_files_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), Width::Two, [1, 2, 3, 4]);
        assert!(open(&path, &[8; 32], Width::Two).is_none());
        assert!(open(&path, &KEY, Width::Four).is_none());
        let good = fs::read(&path).unwrap();
        let shorter = (0..good.len()).map(|n| good[..n].to_vec());
        let flipped = (0..8 * good.len()).map(|bit| {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped
        });
        for damaged in shorter.chain(flipped).chain([[&good[..], &[0]].concat()]) {
            fs::write(&path, &damaged).unwrap();
            assert!(open(&path, &KEY, Width::Two).is_none(), "{} bytes", damaged.len());
        }
        fs::write(&path, good).unwrap();
        assert!(open(&path, &KEY, Width::Two).is_some());
    }

    #[test]
    fn truncated_mapped_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), Width::Two, [1, 2, 3, 4]);
        let (train, val) = open(&path, &KEY, Width::Two).unwrap();
        assert_eq!(ids(&train), [1, 2, 3]);
        train.check().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(9).unwrap();
        assert_eq!(ids(&val), [0]);
        let error = val.check().unwrap_err().to_string();
        assert!(error.contains("cannot read the encoded text") && error.contains("a.tokens"), "{error}");
        train.check().unwrap_err();
    }
}
