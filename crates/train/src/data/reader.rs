//! Reads a text from beginning to end, in chunks of bounded length that record where documents end.

use std::mem;
use std::ops::ControlFlow;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::DataError;
use super::chunk::{Chunk, Half, Needs};
use super::file::{OpenFile, RecordPart};
use super::separator::Separator;
use super::source::{TextFile, TextSource};
use super::split::{Division, DocumentLengths, HeldOut, SplitPoint};

/// The progress of one reading of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The text, as the config names it.
    pub path: &'a Path,
    /// The purpose of the reading.
    pub purpose: Purpose,
    /// Bytes of text read so far.
    pub bytes: u64,
    /// Total bytes of text, if known.
    pub of: Option<u64>,
}

/// The purpose of reading a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To find its hash, length and alphabet.
    Scan,
    /// To count the words that merges are learned from.
    CountWords,
    /// To find the merges; nothing more is reported until they are found.
    FindMerges,
    /// To encode it.
    Encode,
}

/// Called often while texts are read. `Break` stops the reading and leaves nothing half-written.
pub type OnProgress<'a> = &'a (dyn Fn(&Reading<'_>) -> ControlFlow<()> + Sync);

/// The [`OnProgress`] of callers that want no reports.
pub(super) fn ignore(_: &Reading<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(super) fn report(on_progress: OnProgress<'_>, reading: &Reading<'_>) -> Result<(), DataError> {
    match on_progress(reading) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(DataError::Stopped),
    }
}

/// The reader's handling of documents, apart from marking their ends.
enum Documents<'a> {
    Ignored,
    Measured(DocumentLengths),
    /// Skips those of the other half.
    Chosen {
        held_out: &'a HeldOut,
        half: Half,
        n_begun: u64,
    },
}

pub(super) struct Reader<'a> {
    pub source: &'a TextSource,
    needs: Needs,
    /// The approximate size of a chunk; at least 4, the longest character. Several for each core are in memory.
    pub chunk_bytes: usize,
    files: std::slice::Iter<'a, TextFile>,
    /// Finds the ends of documents within a text file, if it has them.
    separator: Option<Separator>,
    /// The current file, and whether its lines are records.
    open: Option<(OpenFile, bool)>,
    /// Whether the text read so far ends in the middle of a line.
    line_is_open: bool,
    /// Whether any text of the current document was read.
    document_began: bool,
    documents: Documents<'a>,
    /// Whether the next text begins a document, and the positions of documents that begin in the current chunk. Unlike
    /// `document_began`, these include documents that a separator ends.
    next_begins: bool,
    begins: Vec<usize>,
    /// The hash of the text read, if requested.
    hash: Option<Sha256>,
    /// The end of the training split; `None` after it.
    split_point: Option<SplitPoint>,
    /// The part of the last chunk after the split point.
    rest: Option<Chunk>,
    on_progress: OnProgress<'a>,
    reading: Reading<'a>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a TextSource, needs: Needs) -> Self {
        Self {
            source,
            needs,
            chunk_bytes: 1 << 18,
            files: source.files.iter(),
            separator: source.separator.as_ref().filter(|_| needs.documents).map(|text| Separator::new(text)),
            open: None,
            line_is_open: false,
            document_began: false,
            documents: Documents::Ignored,
            next_begins: true,
            begins: Vec::new(),
            hash: None,
            split_point: None,
            rest: None,
            on_progress: &ignore,
            reading: Reading { path: &source.path, purpose: Purpose::Scan, bytes: 0, of: None },
        }
    }

    /// Reports progress before each chunk.
    pub(super) fn with_progress(self, on_progress: OnProgress<'a>, purpose: Purpose, of: Option<u64>) -> Self {
        Self { on_progress, reading: Reading { purpose, of, ..self.reading }, ..self }
    }

    /// Divides the text: at a point, and with it the chunk that straddles it, or by leaving out the documents of the
    /// other half. Without marked ends, each of the others begins on a new line as in the whole text.
    pub(super) fn divided(self, division: &'a Division, half: Half) -> Self {
        match division {
            Division::At(split_point) => Self { split_point: Some(*split_point), ..self },
            Division::Documents(held_out) => {
                let documents = Documents::Chosen { held_out, half, n_begun: 0 };
                Self { documents, ..self.separating() }
            }
        }
    }

    /// Finds the separators of documents even if their ends are not marked.
    fn separating(self) -> Self {
        Self { separator: self.source.separator.as_deref().map(Separator::new), ..self }
    }

    /// Measures the documents: see [`Reader::lengths`].
    pub(super) fn measuring(self) -> Self {
        Self { documents: Documents::Measured(DocumentLengths::default()), ..self.separating() }
    }

    /// The lengths of the documents read so far, if they are measured.
    pub(super) fn lengths(self) -> Option<DocumentLengths> {
        if let Documents::Measured(lengths) = self.documents { Some(lengths) } else { None }
    }

    /// Hashes the text read, including documents of the other half.
    pub(super) fn hashing(self) -> Self {
        Self { hash: Some(Sha256::new()), ..self }
    }

    /// The hash of the text read so far, and of its document ends if they are marked.
    pub(super) fn hash(self) -> Option<[u8; 32]> {
        self.hash.map(|hash| hash.finalize().into())
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        let mut chunk = loop {
            let Some(chunk) = self.read()? else { return Ok(None) };
            if let Some(hash) = &mut self.hash {
                chunk.hash_into(hash, self.needs);
            }
            match self.of_documents(chunk) {
                chunk if chunk.is_empty() => {}
                chunk => break chunk,
            }
        };
        if let Documents::Chosen { half, .. } = self.documents {
            return Ok(Some(Chunk { half, ..chunk }));
        }
        let Some(split_point) = &mut self.split_point else {
            return Ok(Some(Chunk { half: Half::Val, ..chunk }));
        };
        match split_point.find(&chunk) {
            None => {}
            // A document may end here, too; only the next chunk would show it.
            Some(at) if at == chunk.text.len() => *split_point = SplitPoint::START,
            Some(at) => {
                self.split_point = None;
                let rest = Chunk { half: Half::Val, ..chunk.split_off(at) };
                if chunk.is_empty() {
                    return Ok(Some(rest));
                }
                self.rest = Some(rest);
            }
        }
        Ok(Some(chunk))
    }

    fn read(&mut self) -> Result<Option<Chunk>, DataError> {
        report(self.on_progress, &self.reading)?;
        self.begins.clear();
        let mut chunk = Chunk::default();
        while chunk.text.len() < self.chunk_bytes {
            let (file, is_jsonl) = match &mut self.open {
                Some(open) => open,
                None => match self.files.next() {
                    Some(file) => self.open.insert((self.source.open(file, self.needs.utf8())?, file.is_jsonl)),
                    None => break,
                },
            };
            let start = chunk.text.len();
            let (has_more, ends_document) = if *is_jsonl {
                let (field, max_bytes) = (&self.source.text_field, self.source.max_record_bytes);
                match file.read_record(field, max_bytes, self.chunk_bytes - start, &mut chunk.text)? {
                    RecordPart::Beginning => (true, false),
                    RecordPart::End => (true, true),
                    RecordPart::None => (false, false),
                }
            } else {
                let has_more = file.read_text(self.chunk_bytes - start, &mut chunk.text)?;
                (has_more, !has_more)
            };
            let separator = self.separator.as_mut().filter(|_| !*is_jsonl);
            if !has_more {
                self.open = None;
            }
            let (found, is_document) = match separator {
                Some(separator) => {
                    let found = separator.find(&chunk.text[start..]);
                    (found, ends_document && separator.end())
                }
                None => (Vec::new(), ends_document && self.document_began | (chunk.text.len() > start)),
            };
            if self.needs.documents {
                chunk.ends.extend(found.iter().map(|end| start + end));
            }
            self.text_added(&mut chunk, start, &found);
            if ends_document {
                (self.document_began, self.next_begins) = (false, true);
            }
            if is_document && self.needs.documents && self.source.has_documents {
                chunk.ends.push(chunk.text.len());
            }
        }
        self.reading.bytes += chunk.text.len() as u64;
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    /// Inserts a line break at `start` if a document begins there in mid-line and document ends are not marked. The
    /// text from `start` on has `separators` that end there, relative to `start`.
    fn text_added(&mut self, chunk: &mut Chunk, mut start: usize, separators: &[usize]) {
        let n_bytes = chunk.text.len() - start;
        if n_bytes == 0 {
            return;
        }
        let is_first = !mem::replace(&mut self.document_began, true);
        if is_first && self.line_is_open && !self.needs.documents {
            chunk.text.insert(start, b'\n');
            start += 1; // the line break ends the document before it
        }
        self.line_is_open = chunk.text.last() != Some(&b'\n');
        if mem::replace(&mut self.next_begins, separators.last() == Some(&n_bytes)) {
            self.begins.push(start);
        }
        self.begins.extend(separators.iter().filter(|end| **end < n_bytes).map(|end| start + end));
    }

    /// Measures the documents of a chunk, or leaves out those of the other half.
    fn of_documents(&mut self, chunk: Chunk) -> Chunk {
        let n_bytes = chunk.text.len();
        match &mut self.documents {
            Documents::Ignored => chunk,
            Documents::Measured(lengths) => {
                let mut from = 0;
                for &begin in &self.begins {
                    lengths.add(begin - from);
                    lengths.begin();
                    from = begin;
                }
                lengths.add(n_bytes - from);
                chunk
            }
            Documents::Chosen { held_out, half, n_begun } => {
                let mut chosen = Chunk::default();
                let (mut from, mut rest) = (0, &chunk.ends[..]);
                for until in self.begins.iter().copied().chain([n_bytes]) {
                    let n_ends = rest.partition_point(|end| *end <= until);
                    let (ends, others) = rest.split_at(n_ends);
                    let is_held = *n_begun > 0 && held_out.holds(*n_begun - 1);
                    if is_held == (*half == Half::Val) {
                        let shift = |end: &usize| chosen.text.len() + end - from;
                        chosen.ends.extend(ends.iter().map(shift));
                        chosen.text.extend_from_slice(&chunk.text[from..until]);
                    }
                    (from, rest) = (until, others);
                    *n_begun += u64::from(until < n_bytes);
                }
                chosen
            }
        }
    }
}

/// The text of a chunk that was read as UTF-8.
pub(super) fn as_utf8(text: &[u8]) -> &str {
    std::str::from_utf8(text).expect("the reader checks it")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixtures::{folder, reader, record, source};
    use super::*;

    /// The text and the document ends that a reader yields for a folder of these files.
    fn read(files: &[(&str, &[u8])], chunk_bytes: usize, needs: Needs) -> Result<Chunk, DataError> {
        let folder = folder(files.iter().copied());
        read_source(&source(folder.path()), chunk_bytes, needs)
    }

    fn read_source(source: &TextSource, chunk_bytes: usize, needs: Needs) -> Result<Chunk, DataError> {
        let mut reader = reader(source, needs, chunk_bytes);
        let mut whole = Chunk::default();
        while let Some(chunk) = reader.next()? {
            assert!(!chunk.is_empty());
            assert!(!needs.utf8() || std::str::from_utf8(&chunk.text).is_ok());
            whole.append(chunk);
        }
        Ok(whole)
    }

    #[test]
    fn documents_end_or_start_on_new_lines() {
        let files: [(&str, &[u8]); 6] = [
            ("b.txt", b"b, without an end of line"),
            ("c.txt", b""),
            ("a/z.txt", b"a/z\n"),
            ("a/b/c.md", b"a/b/c\n\n"),
            ("d.txt", b"d"),
            ("e.jsonl", b"{\"text\": \"one\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"two\\n\"}"),
        ];
        for chunk_bytes in [4, 9, 1000] {
            let whole = read(&files, chunk_bytes, Needs::CHARACTERS).unwrap();
            let expected = b"a/b/c\n\na/z\nb, without an end of line\nd\none\ntwo\n";
            assert_eq!(whole.text, expected);
            assert!(whole.ends.is_empty());

            let whole = read(&files, chunk_bytes, Needs::BPE).unwrap();
            let documents = ["a/b/c\n\n", "a/z\n", "b, without an end of line", "d", "one", "two\n"];
            assert!(whole.pieces().eq(documents.map(|text| (text.as_bytes(), true))));
        }
    }

    #[test]
    fn separators_divide_text_file_into_documents() {
        let records = record("x\n\ny");
        let files = [("a.txt", &b"one\n\n\ntwo\n\n"[..]), ("b.jsonl", records.as_bytes()), ("c.txt", b"three\n")];
        let folder = folder(files);
        let source = TextSource { separator: Some("\n\n".to_owned()), ..source(folder.path()) };
        for chunk_bytes in 4..20 {
            let whole = |needs| read_source(&source, chunk_bytes, needs).unwrap();
            let documents = ["one\n\n", "\ntwo\n\n", "x\n\ny", "three\n"];
            assert!(whole(Needs::BPE).pieces().eq(documents.map(|text| (text.as_bytes(), true))));
            assert_eq!(whole(Needs::CHARACTERS).text, b"one\n\n\ntwo\n\nx\n\ny\nthree\n");
        }
    }

    #[test]
    fn invalid_utf8_is_reported_with_offset() {
        for (content, at) in [
            (&b"\xff"[..], 0),
            (b"0123456789\xc3(", 10),
            (b"01234567\xe2\x82", 8),
            (b"0\xf0", 1),
            (b"\xef\xbb", 0),
            (b"\xef\xbb\xbf01\xff", 5),
        ] {
            for chunk_bytes in 4..12 {
                let files = [("a.txt", content)];
                let error = read(&files, chunk_bytes, Needs::CHARACTERS).unwrap_err();
                let DataError::NotUtf8 { path, offset } = error else { panic!("{error}") };
                assert_eq!((offset, path.ends_with("a.txt")), (at, true));
                assert_eq!(read(&files, chunk_bytes, Needs::BYTES).unwrap().text, content);
            }
        }
    }

    #[test]
    fn chunks_split_at_document_ends() {
        let chunk =
            |text: &[u8], ends: &[usize]| Chunk { text: text.to_vec(), ends: ends.to_vec(), ..Chunk::default() };
        let mut first = chunk(b"abcdef", &[0, 2, 2, 6]);
        assert!(first.pieces().eq([&b""[..], b"ab", b"", b"cdef"].map(|text| (text, true))));
        assert_eq!(first.split_off(2), chunk(b"cdef", &[4]));
        assert_eq!(first, chunk(b"ab", &[0, 2, 2]));
    }

    fn whole(mut reader: Reader<'_>) -> (Chunk, Reader<'_>) {
        let mut whole = Chunk::default();
        while let Some(chunk) = reader.next().unwrap() {
            whole.append(chunk);
        }
        (whole, reader)
    }

    proptest! {
        #[test]
        fn documents_are_read_in_their_half(
            texts in prop::collection::vec("[a-z\n]{0,12}", 2..30),
            separator in prop::option::of(Just("x".to_owned())),
            chunk_bytes in 4_usize..40,
            val_fraction in 0.2_f64..0.8,
        ) {
            let names: Vec<String> = (10..).zip(&texts).map(|(i, _)| format!("{i}.txt")).collect();
            let files: Vec<_> = names.iter().zip(&texts).map(|(name, text)| (&**name, text.as_bytes())).collect();
            let folder = folder(files);
            let source = TextSource { separator, ..source(folder.path()) };
            for needs in [Needs::CHARACTERS, Needs::BPE] {
                let new = || reader(&source, needs, chunk_bytes);
                let (all, measured) = whole(new().measuring().hashing());
                let (lengths, hash) = (measured.lengths().unwrap(), whole(new().hashing()).1.hash());
                let Some(held_out) = HeldOut::draw(&lengths, val_fraction, 1) else { continue };
                let n_held = [held_out.train_bytes, held_out.val_bytes];
                let division = Division::Documents(held_out);
                let [train, val] = [Half::Train, Half::Val].map(|half| {
                    let (text, read) = whole(new().divided(&division, half).hashing());
                    assert!((text.half == half || text.is_empty()) && read.hash() == hash);
                    text
                });
                let n_bytes = [&train, &val].map(|half| half.text.len() as u64);
                prop_assert_eq!(n_bytes, n_held);
                if source.separator.is_none() {
                    let parts = |chunk: &Chunk| -> Vec<Vec<u8>> {
                        let mark = |is_end| if is_end { &b"|"[..] } else { b"" };
                        match needs.documents {
                            true => chunk.pieces().map(|(text, is_end)| [text, mark(is_end)].concat()).collect(),
                            false => chunk.text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
                        }
                    };
                    let (mut both, mut expected) = ([parts(&train), parts(&val)].concat(), parts(&all));
                    for parts in [&mut both, &mut expected] {
                        parts.retain(|part| !part.is_empty());
                        parts.sort();
                    }
                    prop_assert_eq!(both, expected, "the halves hold the documents of the whole");
                }
            }
        }

        #[test]
        fn records_read_like_files(
            texts in prop::collection::vec("\\PC{0,9}|(?s:.{0,9})|[a-z\n]{0,30}", 1..20),
            chunk_bytes in 4_usize..50,
        ) {
            prop_assume!(texts.iter().all(|text| !text.starts_with('\u{feff}')));
            let names: Vec<String> = (10..).zip(&texts).map(|(i, _)| format!("{i}.txt")).collect();
            let files: Vec<_> = names.iter().zip(&texts).map(|(name, text)| (&**name, text.as_bytes())).collect();
            let lines: String = texts.iter().map(|text| record(text)).collect();
            for needs in [Needs::CHARACTERS, Needs::BPE, Needs::BYTES] {
                let of_files = read(&files, chunk_bytes, needs).unwrap();
                let of_records = read(&[("a.jsonl", lines.as_bytes())], chunk_bytes, needs).unwrap();
                prop_assert_eq!(&of_records, &of_files);
                prop_assert!(!needs.documents || of_files.text == texts.concat().into_bytes());
            }
        }
    }
}
