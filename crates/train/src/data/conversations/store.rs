//! Records in two files of the cache, their tokens and a few numbers of each, so that memory holds only the numbers.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::{Example, Records};
use crate::data::cache::{Cache, temporary};
use crate::data::chunk::Half;
use crate::data::tokens::{self, CacheKey, Width, Writer};
use crate::data::{DataError, Tokens};

/// The numbers of a record in its file; at its end are two rows of them for all records.
const NUMBERS: usize = 6;

/// The numbers in memory before they are written.
const MAX_WAITING: usize = 1 << 16;

/// A record without its tokens, which stand in a row with those of the others: each as twice its id, and one more if it
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    start: usize,
    pub(super) n_tokens: usize,
    pub(super) n_counted: usize,
    n_cut: usize,
    /// Tokens of the worse answer, which follow; 0 without one.
    pub(super) n_rejected: usize,
    n_rejected_cut: usize,
    /// Whether it is of the same line as the one before.
    pub(super) continues: bool,
}

impl Place {
    /// The place of a record, the first of its line, whose tokens begin at `start`.
    pub(super) fn of(example: &Example, start: usize) -> Self {
        let [n_rejected, n_rejected_cut] = example.rejected.as_ref().map_or([0; 2], |it| [it.ids.len(), it.n_cut]);
        let (n_tokens, n_counted, n_cut) = (example.ids.len(), example.n_counted(), example.n_cut);
        Self { start, n_tokens, n_counted, n_cut, n_rejected, n_rejected_cut, continues: false }
    }

    pub(super) fn end(&self) -> usize {
        self.start + self.n_tokens + self.n_rejected
    }

    /// The record, whose tokens are among these.
    pub(super) fn read(&self, tokens: &Tokens) -> Example {
        let mut both = vec![0; self.end() - self.start];
        tokens.read(self.start, &mut both);
        let (chosen, rejected) = both.split_at(self.n_tokens);
        let example = |marked: &[i32], n_cut| Example {
            ids: marked.iter().map(|id| id.cast_unsigned() >> 1).collect(),
            counts: marked.iter().map(|id| id & 1 == 1).collect(),
            n_cut,
            rejected: None,
        };
        let rejected = (!rejected.is_empty()).then(|| Box::new(example(rejected, self.n_rejected_cut)));
        Example { rejected, ..example(chosen, self.n_cut) }
    }
}

/// The tokens of a record as they are stored.
pub(super) fn marked(example: &Example) -> Vec<u32> {
    let answers = [Some(example), example.rejected.as_deref()].into_iter().flatten();
    answers.flat_map(|it| it.ids.iter().zip(&it.counts).map(|(id, counts)| 2 * id + u32::from(*counts))).collect()
}

/// The records of a key in a cache.
pub(super) struct Store<'a> {
    pub(super) cache: &'a Cache,
    pub(super) key: CacheKey,
    pub(super) vocab_size: usize,
}

impl Store<'_> {
    fn files(&self) -> [(PathBuf, CacheKey, Width); 2] {
        let numbers = Sha256::digest([&self.key[..], b"numbers"].concat()).into();
        [(self.key, Width::of_vocabulary(2 * self.vocab_size)), (numbers, Width::Four)]
            .map(|(key, width)| (self.cache.path(&key, "tokens"), key, width))
    }

    /// The tokens of all records, their places, and a summary without rows; `None` if a file is missing or damaged.
    pub(super) fn open(&self) -> Result<Option<(Tokens, Vec<Place>, Records)>, DataError> {
        let [marked, numbers] = self.files().map(|(path, key, width)| tokens::open(&path, &key, width, &|_| Ok(())));
        let (Some((marked, _)), Some((numbers, _))) = (marked?, numbers?) else { return Ok(None) };
        let mut all = vec![0; numbers.len()];
        numbers.read(0, &mut all);
        numbers.check()?;
        let [each @ .., of_all, more] = all.as_chunks::<NUMBERS>().0 else { return Ok(None) };
        let sizes = |numbers: &[i32; NUMBERS]| numbers.map(|n| n.cast_unsigned() as usize);
        let mut places: Vec<Place> = Vec::with_capacity(each.len());
        for numbers in each {
            let start = places.last().map_or(0, Place::end);
            let [n_tokens, n_counted, n_cut, n_rejected, n_rejected_cut, continues] = sizes(numbers);
            let continues = continues > 0;
            places.push(Place { start, n_tokens, n_counted, n_cut, n_rejected, n_rejected_cut, continues });
        }
        let ([skipped, cut, longest, n_endless, ..], [n_written, ..]) = (sizes(of_all), sizes(more));
        let is_divided = |pair: &&[Place]| !pair[0].continues && pair[1].continues;
        let records = Records {
            used: places.len(),
            rows: 0,
            divided: places.windows(2).filter(is_divided).count(),
            skipped,
            cut,
            tokens: places.iter().map(|place| place.n_tokens as u64).sum(),
            counted_tokens: places.iter().map(|place| place.n_counted as u64).sum(),
            longest,
            preferences: places.first().is_some_and(|place| place.n_rejected > 0),
            endless: (n_endless > 0).then(|| (n_endless, of_all[4].cast_unsigned())),
            written: (n_written > 0).then(|| (n_written, more[1].cast_unsigned())),
            left_out: Vec::new(),
        };
        let is_whole = places.last().map_or(0, Place::end) == marked.len();
        Ok(is_whole.then_some((marked, places, records)))
    }

    /// Files that are written in place of these.
    pub(super) fn create(&self) -> Result<NewStore, DataError> {
        let [marked, numbers] = self.files().map(|(path, key, width)| -> Result<NewFile, DataError> {
            let writer = temporary(&self.cache.folder).and_then(|file| Writer::create(file, &path, width));
            let writer = writer.map_err(|source| DataError::cache(&path, source))?;
            Ok(NewFile { writer, key, width, waiting: Vec::new() })
        });
        Ok(NewStore { marked: marked?, numbers: numbers? })
    }

    /// Notes the purpose of the files for human readers.
    pub(super) fn note(&self, made_for: &str) {
        for (path, ..) in self.files() {
            self.cache.note(&path, made_for);
        }
    }
}

/// Records that are being written.
pub(super) struct NewStore {
    marked: NewFile,
    numbers: NewFile,
}

impl NewStore {
    /// Adds a record; `continues` if it is of the same line as the one before.
    pub(super) fn add(&mut self, example: &Example, continues: bool) -> Result<(), DataError> {
        let Place { start: _, n_tokens, n_counted, n_cut, n_rejected, n_rejected_cut, .. } = Place::of(example, 0);
        self.marked.add(&marked(example))?;
        self.numbers.add(&[n_tokens, n_counted, n_cut, n_rejected, n_rejected_cut, usize::from(continues)].map(number))
    }

    pub(super) fn finish(mut self, records: &Records) -> Result<(), DataError> {
        let (n_endless, token) = records.endless.unwrap_or_default();
        let of_all = [records.skipped, records.cut, records.longest, n_endless].map(number);
        self.numbers.add(&of_all)?;
        let (n_written, of_template) = records.written.unwrap_or_default();
        self.numbers.add(&[token, 0, number(n_written), of_template, 0, 0, 0, 0])?;
        self.marked.finish()?;
        self.numbers.finish()
    }
}

/// A number of tokens or records: lines have less than 2^32 bytes unless a limit was raised beyond reason.
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

struct NewFile {
    writer: Writer,
    key: CacheKey,
    width: Width,
    waiting: Vec<u32>,
}

impl NewFile {
    fn add(&mut self, numbers: &[u32]) -> Result<(), DataError> {
        self.waiting.extend(numbers);
        if self.waiting.len() < MAX_WAITING { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), DataError> {
        let written = self.writer.write(Half::Train, 0, &self.width.encode(&self.waiting));
        self.waiting.clear();
        written.map_err(|source| DataError::cache(&self.writer.path, source))
    }

    fn finish(mut self) -> Result<(), DataError> {
        self.write()?;
        let path = self.writer.path.clone();
        self.writer.finish(&self.key).map_err(|source| DataError::cache(&path, source))
    }
}
