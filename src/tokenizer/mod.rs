//! How text becomes token ids, and ids become text again.
//!
//! Four kinds: characters, whose vocabulary is the alphabet of a corpus in code point order; bytes, where
//! every id is its byte; byte-level BPE, trained on a text; and whatever a `tokenizer.json` of the
//! `tokenizers` library says. Each is written as such a file, with which the library gives the same ids
//! for the same text.
//!
//! The library merges, segments and normalizes; what is done here is what it does not do, or not fast
//! enough for gigabytes: tables for characters and bytes, words that are looked up instead of merged
//! again (`words`), places where a text can be cut (`cut`), and text from ids as they come (`stream`).
//!
//! This module knows nothing of files of text, or of which split an id belongs to.

mod added;
mod bpe;
mod bytes;
mod cut;
mod error;
mod gpt2_words;
mod json;
mod library;
mod stream;
mod table;
mod visible;
mod words;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

pub use crate::config::TokenizerKind;
pub(crate) use bpe::END_OF_TEXT;
pub use error::TokenizerError;
pub(crate) use error::described_characters;
pub use stream::DecodeStream;
pub use visible::visible;

use library::Library;
use table::Table;

/// Turns text into token ids and back. Cheap to clone, and used from several threads at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
enum Inner {
    Table(Table),
    Library(Box<Library>),
}

/// The same file is the same tokenizer.
impl PartialEq for Inner {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Table(one), Self::Table(other)) => one == other,
            (Self::Library(one), Self::Library(other)) => one.json == other.json,
            _ => false,
        }
    }
}

impl Eq for Inner {}

impl Tokenizer {
    /// A tokenizer with one token for each distinct character, numbered in code point order.
    ///
    /// # Errors
    /// If there are no characters.
    pub fn char_from_alphabet(
        alphabet: impl IntoIterator<Item = char>,
    ) -> Result<Self, TokenizerError> {
        Table::characters(alphabet).map(Self::from_table)
    }

    /// A tokenizer with one token for each byte; the id is the byte.
    #[must_use]
    pub fn byte() -> Self {
        Self::from_table(Table::bytes())
    }

    /// Trains byte-level BPE on a text, which is only streamed: what stays in memory are its distinct words.
    ///
    /// The first token is the end of a text, `<|endoftext|>`; then come all 256 bytes, so that any text has
    /// ids, and then a token for each merge of the two that stand side by side most often, within words
    /// as GPT-2 cuts them. It ends at `vocab_size`, or where no pair comes twice. `chunks` are the pieces
    /// of the text, cut anywhere; how they are cut changes nothing, nor does anything else but the text.
    ///
    /// # Errors
    /// What a chunk's error is.
    ///
    /// # Panics
    /// If `vocab_size` is below 257.
    pub fn train_bpe<E>(
        vocab_size: usize,
        chunks: impl IntoIterator<Item = Result<String, E>>,
    ) -> Result<Self, E> {
        let mut counter = bpe::Counter::default();
        for chunk in chunks {
            counter.add(&chunk?);
        }
        let library = counter.train(vocab_size);
        let json = library.to_string(true).expect("a tokenizer of our own can be written as JSON");
        let trained = Library::new(library, json, TokenizerKind::Bpe, Path::new("trained"));
        Ok(Self::from_library(
            trained.expect("what was trained just now has tokens, and no more than were asked for"),
        ))
    }

    /// Reads what [`Tokenizer::to_json`] wrote, or any `tokenizer.json` of the `tokenizers` library: byte-level
    /// BPE such as GPT-2's, or one with pieces of words, or with words.
    ///
    /// Encoding adds no special tokens, cuts nothing off and draws no lots (dropout), whatever the file says:
    /// the ids are those of the text. A special token that stands in a text becomes its id, and is shown when
    /// it is decoded.
    ///
    /// # Errors
    /// If the file cannot be read, is not a tokenizer, or is one that cannot be used for text.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        json::read(text, path)
    }

    /// The content of this tokenizer's `tokenizer.json`: the same bytes for the same tokenizer, and for one
    /// that was read from a file, that file's.
    #[must_use]
    pub fn to_json(&self) -> String {
        match &*self.inner {
            Inner::Table(table) => json::write(table),
            Inner::Library(library) => library.json.clone(),
        }
    }

    /// How many ids there are; each is below this. A file may leave some of them without a token.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match &*self.inner {
            Inner::Table(table) => table.bytes.len(),
            Inner::Library(library) => library.vocab_size,
        }
    }

    /// What a token stands for. A file is known by its content: that of a tokenizer trained here is of
    /// kind [`TokenizerKind::Bpe`] wherever it lies.
    #[must_use]
    pub fn kind(&self) -> TokenizerKind {
        match &*self.inner {
            Inner::Table(table) => table.kind,
            Inner::Library(library) => library.kind,
        }
    }

    /// The token that ends a text, where there is one: the first that the file has as an added token of
    /// `<|endoftext|>`, `<|end_of_text|>`, `<｜end▁of▁sentence｜>`, `</s>`, `<eos>`, `[EOS]`, `<|im_end|>`,
    /// `[SEP]`.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        match &*self.inner {
            Inner::Table(_) => None,
            Inner::Library(library) => library.end_of_text,
        }
    }

    /// The tokens that stand in a text as they are, such as `<|endoftext|>`, by id.
    #[must_use]
    pub fn added_tokens(&self) -> Vec<(u32, String)> {
        match &*self.inner {
            Inner::Table(_) => Vec::new(),
            Inner::Library(library) => {
                library.added.iter().map(|(id, token)| (*id, token.content.clone())).collect()
            }
        }
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// If the text has characters without a token; the error names every one of them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &*self.inner {
            Inner::Table(table) => table.encode(text),
            Inner::Library(library) => library.encode(text),
        }
    }

    /// The ids of bytes, which a byte tokenizer does not need to be UTF-8.
    ///
    /// # Errors
    /// For any other tokenizer: if the bytes are not UTF-8, or have characters without a token.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        if self.kind() == TokenizerKind::Byte {
            return Ok(bytes.iter().map(|&byte| u32::from(byte)).collect());
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| TokenizerError::NotUtf8 { offset: error.valid_up_to() })?;
        self.encode(text)
    }

    /// The last place in a text at which it may be cut: whatever comes after the text, the ids of what is
    /// before the place, followed by those of what is behind it, are the ids of the whole.
    ///
    /// The place is on the boundary of a character, and not at the start. With characters and bytes it is the
    /// text's end. With words it is before a space that follows something else, so the end of a text is
    /// none: what comes after it could belong to its last word. None if there is no such place in the text,
    /// which then has to be longer.
    ///
    /// It is also none for every text with a file in which nothing is known to keep words apart: one without
    /// a pre-tokenizer, as Llama 2's, one that puts something before each text, or one whose pattern is not
    /// GPT-2's, GPT-4's (and Llama 3's), GPT-4o's or Qwen2's. Wherever such a text is
    /// cut, the tokens beside the cut may be others.
    #[must_use]
    pub fn cut(&self, text: &str) -> Option<usize> {
        match &*self.inner {
            Inner::Table(_) => (!text.is_empty()).then_some(text.len()),
            Inner::Library(library) => library.cuts.last(text),
        }
    }

    /// The text of ids, special tokens included. Bytes that are not UTF-8 become U+FFFD, the replacement
    /// character.
    ///
    /// # Panics
    /// If an id is not below [`Tokenizer::vocab_size`].
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let n_ids = self.vocab_size();
        assert!(ids.iter().all(|&id| (id as usize) < n_ids), "ids are below {n_ids}");
        match &*self.inner {
            Inner::Table(table) => {
                let bytes = ids.iter().flat_map(|&id| &*table.bytes[id as usize]);
                text_of(bytes.copied().collect())
            }
            Inner::Library(library) => library.decode(ids),
        }
    }

    /// The bytes that a token stands for, where that is what a token is: of characters, bytes and byte-level
    /// BPE, the file of GPT-2 included. None for other files, whose tokens are decoded together.
    ///
    /// # Panics
    /// If the id is not below [`Tokenizer::vocab_size`].
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        match &*self.inner {
            Inner::Table(table) => Some(&table.bytes[id as usize]),
            Inner::Library(library) => {
                assert!((id as usize) < library.vocab_size, "no token {id}");
                library.bytes.as_ref().map(|bytes| &*bytes[id as usize])
            }
        }
    }

    /// A token for a person to read: the text that it stands for, with bytes that are no text as `\xNN`; or
    /// where tokens are decoded together, as the vocabulary has it (`▁the`, `##ing`). Empty where no token
    /// has this id.
    ///
    /// # Panics
    /// If the id is not below [`Tokenizer::vocab_size`].
    #[must_use]
    pub fn piece(&self, id: u32) -> String {
        let Some(bytes) = self.token_bytes(id) else {
            return self.library_token(id);
        };
        let mut piece = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            piece.push_str(chunk.valid());
            for byte in chunk.invalid() {
                write!(piece, "\\x{byte:02x}").expect("a string takes all that is written");
            }
        }
        piece
    }

    fn library_token(&self, id: u32) -> String {
        match &*self.inner {
            Inner::Table(_) => String::new(),
            Inner::Library(library) => library.token(id),
        }
    }

    fn from_table(table: Table) -> Self {
        Self { inner: Arc::new(Inner::Table(table)) }
    }

    fn from_library(library: Library) -> Self {
        Self { inner: Arc::new(Inner::Library(Box::new(library))) }
    }
}

/// Bytes as text, with U+FFFD for what is none.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn character_ids_follow_code_points() {
        let tokenizer = Tokenizer::char_from_alphabet("hello, \u{e9}\n".chars()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(tokenizer.encode("\n ,ehlo\u{e9}").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tokenizer.token_bytes(7), Some("\u{e9}".as_bytes()));
        assert_eq!(tokenizer.kind(), TokenizerKind::Char);
    }

    #[test]
    fn byte_ids_are_bytes() {
        let tokenizer = Tokenizer::byte();
        assert_eq!(tokenizer.vocab_size(), 256);
        assert_eq!(tokenizer.encode("\0a\u{e9}").unwrap(), [0, 97, 0xc3, 0xa9]);
        assert_eq!(tokenizer.encode_bytes(&[0xff, 0x80]).unwrap(), [255, 128]);
        assert_eq!(tokenizer.decode(&[0xff, 97]), "\u{fffd}a");
    }

    #[test]
    fn unknown_characters_are_all_named_once() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).unwrap();
        let error = tokenizer.encode("a\u{1f525}b\n\u{e9}\n").unwrap_err();
        let message = error.to_string();
        for name in ["'\\n' (U+000A)", "'\u{e9}' (U+00E9)", "'\u{1f525}' (U+1F525)"] {
            assert_eq!(message.matches(name).count(), 1, "{message}");
        }
        assert!(message.contains("kind = \"byte\""), "{message}");
    }

    #[test]
    fn a_long_list_of_unknown_characters_is_cut() {
        let tokenizer = Tokenizer::char_from_alphabet("a".chars()).unwrap();
        let text: String = ('\u{4e00}'..'\u{4f00}').collect();
        let message = tokenizer.encode(&text).unwrap_err().to_string();
        assert!(message.contains("256 characters") && message.contains("236 more"), "{message}");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_by_a_character_tokenizer() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).unwrap();
        let error = tokenizer.encode_bytes(b"ab\xff").unwrap_err();
        assert!(matches!(error, TokenizerError::NotUtf8 { offset: 2 }));
    }

    #[test]
    fn an_empty_alphabet_is_refused() {
        let error = Tokenizer::char_from_alphabet([]).unwrap_err();
        assert!(matches!(error, TokenizerError::EmptyAlphabet));
    }

    proptest! {
        #[test]
        fn text_comes_back_exactly(text in any::<String>(), more in "[\r\n\t \u{300}]{0,5}") {
            let text = text + "a" + &more;
            for tokenizer in
                [Tokenizer::char_from_alphabet(text.chars()).unwrap(), Tokenizer::byte()]
            {
                let ids = tokenizer.encode(&text).unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.decode(&ids), &*text);
                prop_assert_eq!(tokenizer.encode_bytes(text.as_bytes()).unwrap(), ids);
            }
        }
    }
}
