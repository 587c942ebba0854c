//! From text to a token file, on all cores, with memory that does not grow with the text.

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::DataError;
use super::reader::{Chunk, Needs, Reader, Unit, as_utf8};
use super::split::{Half, SplitPoint, SplitReader};
use super::tokens::{Lengths, Width, Writer};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The longest text that waits for a place to cut. Longer ones, such as megabytes without a space or any text
/// of a tokenizer that tells no place, are cut at the end of a line, or where there is none between two
/// characters; the tokens beside such a cut may differ from those of the whole.
const MAX_WAITING_BYTES: usize = 1 << 22;

/// Pieces in memory for each thread: some take longer than others.
const PIECES_PER_THREAD: usize = 2;

/// Encodes a text, and returns the lengths of both splits and the hash of what was read, which
/// [`super::scan`] found before if the text has not changed.
///
/// Where documents are told apart, an end-of-text token stands behind each.
pub(super) fn encode(
    reader: Reader<'_>,
    tokenizer: &Tokenizer,
    split_point: SplitPoint,
    writer: &mut Writer,
) -> Result<(Lengths, [u8; 32]), DataError> {
    struct Encoded {
        half: Half,
        chunk: Chunk,
        n_tokens: u64,
        bytes: Vec<u8>,
    }
    let unit = Needs::of(tokenizer).unit;
    let cut = |text: &[u8]| match unit {
        Unit::Byte | Unit::Character => text.len(),
        Unit::Piece => tokenizer.cut(as_utf8(text)).unwrap_or(0),
    };
    let path = reader.path();
    let mut pieces = Pieces::new(SplitReader::new(reader, split_point), cut);
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    let mut hash = Sha256::new();
    let mut lengths = Lengths::default();
    in_order(
        || pieces.next(),
        |(half, chunk)| {
            let ids =
                ids_of(&chunk, tokenizer).map_err(|source| DataError::Encode { path: path.to_owned(), source })?;
            Ok(Encoded { half, n_tokens: ids.len() as u64, bytes: width.encode(&ids), chunk })
        },
        |encoded| {
            encoded.chunk.hash_into(&mut hash);
            let n_bytes = encoded.chunk.text.len() as u64;
            lengths.n_tokens += encoded.n_tokens;
            lengths.bytes += n_bytes;
            if encoded.half == Half::Train {
                lengths.n_train += encoded.n_tokens;
                lengths.train_bytes += n_bytes;
            }
            let written = writer.write(&encoded.bytes);
            written.map_err(|source| DataError::cache(&writer.path, source))
        },
    )?;
    Ok((lengths, hash.finalize().into()))
}

fn ids_of(chunk: &Chunk, tokenizer: &Tokenizer) -> Result<Vec<u32>, TokenizerError> {
    let end_of_text = tokenizer.end_of_text();
    let mut ids = Vec::new();
    for (text, is_end) in chunk.pieces() {
        ids.append(&mut tokenizer.encode_bytes(text)?);
        if is_end {
            ids.extend(end_of_text);
        }
    }
    Ok(ids)
}

/// Reads a text in pieces that have the tokens of the whole when they are encoded one by one.
struct Pieces<'a, C> {
    reader: SplitReader<'a>,
    cut: C,
    max_waiting_bytes: usize,
    /// The end of what was read, which waits for what follows it.
    waiting: Option<(Half, Chunk)>,
}

impl<'a, C: FnMut(&[u8]) -> usize> Pieces<'a, C> {
    /// `cut` returns the last place up to which a text may be encoded whatever follows, or 0.
    fn new(reader: SplitReader<'a>, cut: C) -> Self {
        Self { reader, cut, max_waiting_bytes: MAX_WAITING_BYTES, waiting: None }
    }

    /// The next piece, which may hold several documents; `None` at the end.
    fn next(&mut self) -> Result<Option<(Half, Chunk)>, DataError> {
        loop {
            let Some((half, chunk)) = self.reader.next()? else {
                return Ok(self.waiting.take());
            };
            let mut piece = match self.waiting.take() {
                Some((before, waiting)) if before != half => {
                    self.waiting = Some((half, chunk)); // cut when the next one is here
                    return Ok(Some((before, waiting)));
                }
                Some((_, mut waiting)) => {
                    waiting.append(&chunk);
                    waiting
                }
                None => chunk,
            };
            let at = self.end_of_piece(&piece);
            let rest = piece.split_off(at);
            self.waiting = Some((half, rest)).filter(|(_, rest)| !rest.is_empty());
            if !piece.is_empty() {
                return Ok(Some((half, piece)));
            }
        }
    }

    fn end_of_piece(&mut self, piece: &Chunk) -> usize {
        let start = piece.ends.last().copied().unwrap_or(0);
        let open_document = &piece.text[start..];
        let at = match (self.cut)(open_document) {
            0 if open_document.len() > self.max_waiting_bytes => {
                let line_break = open_document.iter().rposition(|byte| *byte == b'\n');
                line_break.map_or(open_document.len(), |at| at + 1)
            }
            at => at,
        };
        start + at
    }
}

/// Hands every piece that `next` reads to `work`, several at once, and the results to `take`, in the order of
/// the pieces. The following pieces are read meanwhile. The first error, in the order of the pieces, ends it.
pub(super) fn in_order<I: Send, O: Send>(
    mut next: impl FnMut() -> Result<Option<I>, DataError> + Send,
    work: impl Fn(I) -> Result<O, DataError> + Sync,
    mut take: impl FnMut(O) -> Result<(), DataError> + Send,
) -> Result<(), DataError> {
    let n_pieces = PIECES_PER_THREAD * rayon::current_num_threads();
    let mut read = || {
        let mut pieces = Vec::with_capacity(n_pieces);
        while pieces.len() < n_pieces
            && pieces.last().is_none_or(Result::is_ok)
            && let Some(piece) = next().transpose()
        {
            pieces.push(piece);
        }
        pieces
    };
    let mut pieces = read();
    while !pieces.is_empty() {
        let work_on_all = || {
            let results: Vec<Result<O, DataError>> = pieces.into_par_iter().map(|piece| work(piece?)).collect();
            results.into_iter().try_for_each(|result| take(result?))
        };
        let (done, following) = rayon::join(work_on_all, &mut read);
        done?;
        pieces = following;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::config::SourceConfig;
    use crate::data::Tokens;
    use crate::data::cache::Temporary;
    use crate::data::source::Source;
    use crate::data::tokens;

    fn tokenizers(text: &str) -> [Tokenizer; 3] {
        let bpe = Tokenizer::train_bpe(300, [Ok::<_, std::convert::Infallible>(text.repeat(4))]);
        [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte(), bpe.unwrap()]
    }

    static FILES: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        ["llama2.json", "wordpiece.json"].map(|name| Tokenizer::from_file(&folder.join(name)).unwrap())
    });

    fn ids(tokens: &Tokens) -> Vec<u32> {
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids.into_iter().map(i32::cast_unsigned).collect()
    }

    fn source(path: PathBuf) -> Source {
        Source::find(&SourceConfig { path, ..SourceConfig::default() }).unwrap()
    }

    /// Both halves of a file, read in chunks of this size on so many threads.
    fn encoded(
        content: &[u8],
        tokenizer: &Tokenizer,
        split_point: SplitPoint,
        chunk_bytes: usize,
        n_threads: usize,
    ) -> (Tokens, Tokens) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let is_records = content.starts_with(b"{\"text\"");
        let path = if is_records { path } else { path.with_extension("txt") };
        fs::write(&path, content).unwrap();
        let source = source(path);
        let mut reader = Reader::new(&source, Needs::of(tokenizer));
        reader.chunk_bytes = chunk_bytes;
        let width = Width::of_vocabulary(tokenizer.vocab_size());
        let tokens = folder.path().join("tokens");
        let temporary = Temporary::create(folder.path()).unwrap();
        let mut writer = Writer::create(temporary, &tokens, width).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build();
        let write = || encode(reader, tokenizer, split_point, &mut writer);
        let (lengths, _) = pool.unwrap().install(write).unwrap();
        writer.finish(&[1; 32], lengths).unwrap();
        tokens::open(&tokens, &[1; 32], width).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))] // each learns a tokenizer

        #[test]
        fn a_text_in_chunks_is_encoded_as_the_whole(
            text in "[a-c \n\u{e9}]{1,200}|(?s:.{1,80})|( ?[a-z]{1,5}|<\\|endoftext\\|>| {1,9}){1,40}",
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
            val_fraction in 0.01_f64..0.99,
        ) {
            prop_assume!(!text.starts_with('\u{feff}') && !text.starts_with("{\"text\""));
            for tokenizer in tokenizers(&text) {
                let unit = Needs::of(&tokenizer).unit;
                let n_units = match unit {
                    Unit::Character => text.chars().count(),
                    Unit::Byte | Unit::Piece => text.len(),
                };
                let split_point = SplitPoint::of(val_fraction, unit, n_units as u64);
                let (train, val) =
                    encoded(text.as_bytes(), &tokenizer, split_point, chunk_bytes, n_threads);
                let middle = usize::try_from(train.bytes()).unwrap();
                let (before, behind) = text.as_bytes().split_at(middle);
                prop_assert_eq!(ids(&train), tokenizer.encode_bytes(before).unwrap());
                prop_assert_eq!(ids(&val), tokenizer.encode_bytes(behind).unwrap());
                prop_assert_eq!(val.bytes(), behind.len() as u64);
            }
        }

        #[test]
        fn documents_are_encoded_each_on_its_own(
            documents in prop::collection::vec("( ?[a-z]{1,5}|\n| {1,9}){1,9}", 1..20),
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
        ) {
            let lines = documents.iter().map(|text| serde_json::json!({ "text": text }));
            let content: String = lines.map(|line| line.to_string() + "\n").collect();
            let [.., bpe] = tokenizers(&documents.concat());
            // One that tells no place to cut at, and one that tells few.
            let [llama2, wordpiece] = FILES.each_ref();
            for tokenizer in [&bpe, llama2, wordpiece] {
                let content = content.as_bytes();
                let (_, all) =
                    encoded(content, tokenizer, SplitPoint::START, chunk_bytes, n_threads);
                let expected = documents.iter().flat_map(|text| {
                    let mut ids = tokenizer.encode(text).unwrap();
                    ids.extend(tokenizer.end_of_text());
                    ids
                });
                prop_assert_eq!(ids(&all), expected.collect::<Vec<_>>());
                prop_assert_eq!(all.bytes(), documents.concat().len() as u64);
            }
        }
    }

    /// The pieces of a text in which there is no place to cut, read four bytes at a time.
    fn pieces(text: &str, max_waiting_bytes: usize) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, text).unwrap();
        let source = source(path);
        let mut reader = Reader::new(&source, Needs::PIECES);
        reader.chunk_bytes = 4;
        let reader = SplitReader::new(reader, SplitPoint::START);
        let mut pieces = Pieces { max_waiting_bytes, ..Pieces::new(reader, |_| 0) };
        let next = || pieces.next().unwrap().map(|(_, chunk)| chunk.text);
        std::iter::from_fn(next).map(|text| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn without_a_place_to_cut_a_text_is_cut_at_the_end_of_a_line_or_between_characters() {
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(pieces(text, 100), [text], "a text waits as long as it can");
        assert_eq!(pieces(text, 10), ["one\ntwo\n", "three\nfour\n"]);
        let text = "\u{4e00}".repeat(7);
        let pieces = pieces(&text, 10);
        assert!(pieces.len() > 1, "{pieces:?}");
        assert!(pieces.iter().all(|piece| piece.len() <= 14), "{pieces:?}");
        assert_eq!(pieces.concat(), text);
    }

    fn error(name: &str) -> DataError {
        DataError::Empty { path: name.into() }
    }

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        for n_threads in [1, 2, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
            let mut numbers = 0..100_u64;
            let mut taken = Vec::new();
            let done = pool.build().unwrap().install(|| {
                in_order(
                    || Ok(numbers.next()),
                    |n| Ok((0..(n * 7919) % 1000).fold(n, |n, _| std::hint::black_box(n))),
                    |n| {
                        taken.push(n);
                        Ok(())
                    },
                )
            });
            done.unwrap();
            assert_eq!(taken, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        let mut numbers = 0..100;
        let mut n_taken = 0;
        let done = in_order(
            || numbers.next().filter(|n| *n < 60).ok_or_else(|| error("read")).map(Some),
            |n| {
                if n >= 40 { Err(error(&n.to_string())) } else { Ok(n) }
            },
            |_| {
                n_taken += 1;
                Ok(())
            },
        );
        assert!(done.unwrap_err().to_string().contains("`40`"));
        assert_eq!(n_taken, 40);
        let done = in_order(|| Err(error("read")), Ok::<u8, _>, |_| Ok(()));
        assert!(done.unwrap_err().to_string().contains("`read`"));
    }
}
