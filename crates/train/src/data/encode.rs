//! Encodes a text into a token file, on all cores, with memory that does not grow with the text.

use std::mem;

use rayon::prelude::*;

use super::DataError;
use super::chunk::{Chunk, Half};
use super::reader::{Reader, as_utf8};
use super::tokens::{Width, Writer};
use tinderbox_model::tokenizer::{Tokenizer, TokenizerError, TokenizerKind};

/// The most text that is held back for a safe cut. Longer text, such as megabytes without a space, or any text if the
/// tokenizer has no safe cuts, is cut at the end of a line or, without one, between two characters; the tokens next to
/// such a cut may differ from those of the whole text.
const MAX_WAITING_BYTES: usize = 1 << 22;

/// Pieces in memory for each thread: some take longer than others.
const PIECES_PER_THREAD: usize = 2;

/// Encodes a text or one half of it, with an end-of-text token after each document, and returns the hash of the text
/// read.
pub(super) fn encode(reader: Reader<'_>, tokenizer: &Tokenizer, writer: &mut Writer) -> Result<[u8; 32], DataError> {
    let path = &reader.source.path;
    let mut pieces = Pieces::new(reader.hashing(), tokenizer);
    let width = Width::of_vocabulary(tokenizer.vocab_size());
    in_order(
        || pieces.next(),
        |chunk| {
            let ids = ids_of(&chunk, tokenizer).map_err(|source| DataError::Encode { path: path.clone(), source })?;
            Ok((chunk, width.encode(&ids)))
        },
        |(chunk, encoded)| {
            let written = writer.write(chunk.half, chunk.text.len(), &encoded);
            written.map_err(|source| DataError::cache(&writer.path, source))
        },
    )?;
    Ok(pieces.reader.hash().expect("the reader hashes"))
}

/// The numbers of training and validation tokens that [`encode`] would write.
pub(super) fn count(reader: Reader<'_>, tokenizer: &Tokenizer) -> Result<(u64, u64), DataError> {
    let path = &reader.source.path;
    let mut pieces = Pieces::new(reader, tokenizer);
    let (mut train, mut val) = (0, 0);
    in_order(
        || pieces.next(),
        |chunk| {
            let ids = ids_of(&chunk, tokenizer).map_err(|source| DataError::Encode { path: path.clone(), source })?;
            Ok((chunk.half, ids.len() as u64))
        },
        |(half, n)| {
            match half {
                Half::Train => train += n,
                Half::Val => val += n,
            }
            Ok(())
        },
    )?;
    Ok((train, val))
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

/// Reads a text in pieces that, encoded one by one, have the tokens of the whole.
struct Pieces<'a> {
    reader: Reader<'a>,
    tokenizer: &'a Tokenizer,
    max_waiting_bytes: usize,
    /// Text that was read but held back until more follows.
    waiting: Chunk,
}

impl<'a> Pieces<'a> {
    fn new(reader: Reader<'a>, tokenizer: &'a Tokenizer) -> Self {
        Self { reader, tokenizer, max_waiting_bytes: MAX_WAITING_BYTES, waiting: Chunk::default() }
    }

    /// The next piece, which may hold several documents; `None` at the end.
    fn next(&mut self) -> Result<Option<Chunk>, DataError> {
        while let Some(chunk) = self.reader.next()? {
            if self.waiting.half != chunk.half && !self.waiting.is_empty() {
                return Ok(Some(mem::replace(&mut self.waiting, chunk))); // cut once the next chunk is here
            }
            self.waiting.append(chunk);
            let rest = self.waiting.split_off(self.end_of_piece());
            let piece = mem::replace(&mut self.waiting, rest);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(Some(mem::take(&mut self.waiting)).filter(|rest| !rest.is_empty()))
    }

    /// Up to this position, the tokens of the text held back do not depend on later text.
    fn end_of_piece(&self) -> usize {
        let start = self.waiting.ends.last().copied().unwrap_or(0);
        let open_document = &self.waiting.text[start..];
        let cut = match self.tokenizer.kind() {
            TokenizerKind::Byte => self.tokenizer.safe_split_of_table(open_document),
            _ => self.tokenizer.safe_split(as_utf8(open_document)),
        };
        let at = match cut {
            Some(at) => at,
            None if open_document.len() > self.max_waiting_bytes => {
                let line_break = open_document.iter().rposition(|byte| *byte == b'\n');
                line_break.map_or(open_document.len(), |at| at + 1)
            }
            None => 0,
        };
        start + at
    }
}

/// Passes the pieces that `next` reads to `work`, several in parallel, and the results to `take` in the order of the
/// pieces, while further pieces are read. Stops at the first error in that order.
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
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::super::cache::temporary;
    use super::super::chunk::Needs;
    use super::super::fixtures::{folder, ids, reader, record, source};
    use super::super::split::{Division, SplitPoint};
    use super::super::{Tokens, tokens};
    use super::*;

    /// Tables, tables with an end-of-text token, and BPE.
    fn tokenizers(text: &str) -> [Tokenizer; 5] {
        let bpe = Tokenizer::train_bpe(300, &text.repeat(4));
        let (characters, bytes) = (Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte());
        let ending = [characters.clone(), bytes.clone()].map(Tokenizer::with_end_of_text);
        let [ending_characters, ending_bytes] = ending;
        [characters, bytes, ending_characters, ending_bytes, bpe]
    }

    /// A tokenizer without safe cuts, and one with few.
    static FILES: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers");
        ["llama2.json", "wordpiece.json"].map(|name| Tokenizer::from_file(&folder.join(name)).unwrap())
    });

    fn split_point(text: &str, tokenizer: &Tokenizer, val_fraction: f64) -> SplitPoint {
        let n_units = match tokenizer.kind() {
            TokenizerKind::Char => text.chars().count(),
            _ => text.len(),
        };
        SplitPoint::new(val_fraction, tokenizer.kind(), n_units as u64)
    }

    /// Both halves of a file, read in chunks of this size and encoded on this many threads.
    fn encoded(
        (name, content): (&str, &str),
        tokenizer: &Tokenizer,
        split_point: SplitPoint,
        chunk_bytes: usize,
        n_threads: usize,
    ) -> [Tokens; 2] {
        let folder = folder([(name, content.as_bytes())]);
        let source = source(&folder.path().join(name));
        let division = Division::At(split_point);
        let reader = reader(&source, Needs::of_tokenizer(tokenizer), chunk_bytes).divided(&division, Half::Train);
        let width = Width::of_vocabulary(tokenizer.vocab_size());
        let path = folder.path().join("tokens");
        let mut writer = Writer::create(temporary(folder.path()).unwrap(), &path, width).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build();
        pool.unwrap().install(|| encode(reader, tokenizer, &mut writer)).unwrap();
        writer.finish(&[1; 32]).unwrap();
        tokens::open(&path, &[1; 32], width, &|_| Ok(())).unwrap().unwrap().into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))] // each trains a tokenizer

        #[test]
        fn chunked_text_is_split_and_encoded_like_whole(
            text in "[a-c \n\u{e9}]{1,200}|(?s:.{1,80})|( ?[a-z]{1,5}|<\\|endoftext\\|>| {1,9}){1,40}",
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
            val_fraction in 0.01_f64..0.99,
        ) {
            prop_assume!(!text.starts_with('\u{feff}'));
            for tokenizer in tokenizers(&text) {
                let halves = |chunk_bytes| {
                    let split_point = split_point(&text, &tokenizer, val_fraction);
                    encoded(("a.txt", text.as_str()), &tokenizer, split_point, chunk_bytes, n_threads)
                };
                let [train, val] = halves(chunk_bytes);
                prop_assert_eq!(train.bytes(), halves(1 << 20)[0].bytes());
                if tokenizer.kind() == TokenizerKind::Char && tokenizer.end_of_text().is_none() {
                    prop_assert_eq!(train.len(), ((1.0 - val_fraction) * text.chars().count() as f64) as usize);
                }
                let (before, behind) = text.as_bytes().split_at(usize::try_from(train.bytes()).unwrap());
                prop_assert_eq!(ids(&train), tokenizer.encode_bytes(before).unwrap());
                prop_assert_eq!(ids(&val), tokenizer.encode_bytes(behind).unwrap());
                prop_assert_eq!(val.bytes(), behind.len() as u64);
            }
        }

        #[test]
        fn documents_are_encoded_separately(
            documents in prop::collection::vec("( ?[a-z]{1,5}|\n| {1,9}){1,9}", 1..20),
            chunk_bytes in 4_usize..60,
            n_threads in 1_usize..6,
            val_fraction in 0.01_f64..0.99,
        ) {
            let content: String = documents.iter().map(|text| record(text)).collect();
            let (file, text) = (("a.jsonl", &*content), documents.concat());
            let [_, _, ref characters, ref bytes, ref bpe] = tokenizers(&text);
            let [llama2, wordpiece] = FILES.each_ref();
            for tokenizer in [bpe, characters, bytes, llama2, wordpiece] {
                let [_, all] = encoded(file, tokenizer, SplitPoint::START, chunk_bytes, n_threads);
                let expected = documents.iter().flat_map(|text| {
                    let mut ids = tokenizer.encode(text).unwrap();
                    ids.extend(tokenizer.end_of_text());
                    ids
                });
                prop_assert_eq!(ids(&all), expected.collect::<Vec<_>>());
                prop_assert_eq!(all.bytes(), text.len() as u64);
            }
            for tokenizer in [bpe, characters, bytes] {
                let split_point = split_point(&text, tokenizer, val_fraction);
                let [parts, whole] = [chunk_bytes, 1 << 20].map(|n| encoded(file, tokenizer, split_point, n, n_threads));
                prop_assert_eq!(parts.each_ref().map(ids), whole.each_ref().map(ids));
            }
        }
    }

    #[test]
    fn bpe_text_is_split_at_line_end() {
        let bpe = Tokenizer::train_bpe(260, "");
        let lines = "a line of twenty b.\n".repeat(100); // 2000 bytes
        for (text, val_fraction, expected) in [
            (&lines, 0.1, 1800),    // exactly at the end of a line
            (&lines, 0.0951, 1820), // at the end of the line that it is in
            (&lines, 0.9999, 20),
            (&"\u{4e00}".repeat(400), 0.5, 675), // of 1200 bytes: a character, an eighth of the other half after 600
        ] {
            let [train, _] = encoded(("a.txt", text.as_str()), &bpe, split_point(text, &bpe, val_fraction), 64, 1);
            assert_eq!(train.bytes(), expected, "{val_fraction}");
        }
    }

    #[test]
    fn document_that_ends_at_split_is_in_first_half() {
        let bpe = Tokenizer::train_bpe(260, "");
        let file = ("a.jsonl", &*record("ten bytes.").repeat(10));
        for chunk_bytes in 4..30 {
            let [train, val] = encoded(file, &bpe, SplitPoint::new(0.2, bpe.kind(), 100), chunk_bytes, 1);
            let n_ends = |half| ids(half).into_iter().filter(|id| Some(*id) == bpe.end_of_text()).count();
            assert_eq!((train.bytes(), n_ends(&train), n_ends(&val)), (80, 8, 2), "{chunk_bytes}");
        }
    }

    #[test]
    fn fallback_cuts_are_at_line_ends_or_between_characters() {
        let pieces = |text: &str, max_waiting_bytes| -> Vec<String> {
            let folder = folder([("a.txt", text.as_bytes())]);
            let source = source(&folder.path().join("a.txt"));
            let reader = reader(&source, Needs::BPE, 4);
            let mut pieces = Pieces { max_waiting_bytes, ..Pieces::new(reader, &FILES[0]) };
            let next = || pieces.next().unwrap().map(|chunk| chunk.text);
            std::iter::from_fn(next).map(|text| String::from_utf8(text).unwrap()).collect()
        };
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(pieces(text, 100), [text], "a text waits as long as it can");
        assert_eq!(pieces(text, 10), ["one\ntwo\n", "three\nfour\n"]);
        let text = "\u{4e00}".repeat(7);
        let pieces = pieces(&text, 10);
        assert!(pieces.len() > 1, "{pieces:?}");
        assert!(pieces.iter().all(|piece| piece.len() <= 14), "{pieces:?}");
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn results_arrive_in_order_up_to_first_error() {
        let error = |name: String| DataError::Empty { path: name.into() };
        for (n_threads, n_good) in [(1, 40), (2, 60), (7, 50)] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
            let (mut numbers, mut taken) = (0..60_u64, Vec::new());
            let done = pool.install(|| {
                in_order(
                    || numbers.next().map(Some).ok_or_else(|| error("read".to_owned())),
                    |n| {
                        let n = (0..(n * 7919) % 1000).fold(n, |n, _| std::hint::black_box(n));
                        if n < n_good { Ok(n) } else { Err(error(n.to_string())) }
                    },
                    |n| {
                        taken.push(n);
                        Ok(())
                    },
                )
            });
            let name = if n_good < 60 { n_good.to_string() } else { "read".to_owned() };
            assert!(done.unwrap_err().to_string().contains(&format!("`{name}`")));
            assert_eq!(taken, (0..n_good).collect::<Vec<_>>());
        }
    }
}
