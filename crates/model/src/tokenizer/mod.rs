//! Converts text to token ids and back.
//!
//! A [`Tokenizer`] wraps one of the `tokenizers` library, stored as its `tokenizer.json`: a `table` of characters or
//! bytes, byte-level BPE trained on a text (`train`), or any file (`library`). This module adds the
//! features that the library lacks or is too slow for: ids of whole `words`, `safe_splits` of a text, and incremental
//! decoding (`stream`).

mod byte_alphabet;
mod chat_renderer;
mod chat_template;
mod config;
mod config_json;
mod error;
mod file;
mod library;
mod limited;
pub mod messages;
mod parts;
mod python;
mod safe_splits;
mod stream;
mod table;
mod train;
mod words;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokenizers::DecoderWrapper;

pub use chat_renderer::{ChatRenderer, RenderError};
pub use chat_template::{Message, REASONING};
pub use config::{TokenizerConfig, TokenizerKind};
pub use config_json::TOKENIZER_CONFIG;
pub use error::TokenizerError;
pub use error::described_characters;
pub use library::panic_becomes_error;
pub use limited::{Limits, WITHIN_LIMITS, set_program, work_within_limits};
pub use safe_splits::{LLAMA_3_PATTERN, QWEN2_PATTERN};
pub use stream::{DecodeStream, bytes_of_token, decoded_bytes};
pub use train::{END_OF_TEXT, WordCounter};

use config_json::TokenizerConfigJson;
use library::{Encoder, Library, caught};

/// The texts that a tokenizer is tried on when it is opened.
const TRIED: [&str; 12] = [
    "",
    " ",
    "a",
    "The cat sat, 3 times (12:30)!\n\n\tdon't  ",
    "<s></s><unk>[UNK][MASK]<|endoftext|>",
    "e\u{301}\u{e9}\u{fb01}\u{fdfa}\u{2126}\u{130}\u{df}",
    "\u{4e2d}\u{6587}\u{ac00}\u{1100}\u{1161}\u{3042}\u{645}\u{631}",
    "\u{1f525}\u{1f468}\u{200d}\u{1f469}\u{fe0f}\u{1f1e9}\u{1f1ea}",
    "\0\u{1}\u{7f}\u{85}\u{a0}\u{ad}\u{2028}\u{feff}\u{fffd}\u{10ffff}",
    "\r\n \u{2581}\u{2581}_ \u{120}\u{10a}##ing",
    "``quoted'' \u{201c}\u{2026}\u{201d} <0x41>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// The most tokens that a tokenizer is tried on when it is opened.
const MAX_TRIED: usize = 1024;

/// Converts text to token ids and back. Cheap to clone, and safe to share between threads.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Library>,
    config_json: Option<TokenizerConfigJson>,
    /// The number of padding ids, which have no token, after those of the file.
    n_padding: usize,
}

/// Tokenizers with the same file compare equal.
impl PartialEq for Tokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.inner.json == other.inner.json
    }
}

impl Tokenizer {
    /// A tokenizer with one token for each distinct character, numbered in code point order.
    ///
    /// # Errors
    /// If there are no characters.
    pub fn char_from_alphabet(alphabet: impl IntoIterator<Item = char>) -> Result<Self, TokenizerError> {
        Ok(Self::made_here(table::characters(alphabet)?, TokenizerKind::Char))
    }

    /// A tokenizer with one token for each byte; the id is the byte.
    pub fn byte() -> Self {
        Self::made_here(table::bytes(), TokenizerKind::Byte)
    }

    /// Adds an end-of-text token, `<|endoftext|>`, which is also matched within text. A tokenizer whose tokens are
    /// neither characters nor bytes is returned unchanged.
    #[must_use]
    pub fn with_end_of_text(self) -> Self {
        let kind = self.kind();
        match kind.is_table() && self.end_of_text().is_none() {
            true => Self::made_here(table::with_end_of_text(self.inner.tokenizer.clone()), kind),
            false => self,
        }
    }

    /// Trains byte-level BPE on a text.
    ///
    /// Token 0 is the end-of-text token, `<|endoftext|>`; then come all 256 bytes, so that any text has ids, and a
    /// token for each merge of the adjacent pair that is most frequent within GPT-2's words, up to `vocab_size` or
    /// until no pair occurs twice.
    ///
    /// # Panics
    /// If `vocab_size` is below 257.
    pub fn train_bpe(vocab_size: usize, text: &str) -> Self {
        let mut words = WordCounter::default();
        words.add(text);
        Self::from_words(words, vocab_size)
    }

    /// Like [`Tokenizer::train_bpe`], on text that was already counted.
    pub fn from_words(words: WordCounter, vocab_size: usize) -> Self {
        Self::made_here(words.train(vocab_size), TokenizerKind::Bpe)
    }

    fn made_here(library: tokenizers::Tokenizer, kind: TokenizerKind) -> Self {
        let json = library.to_string(true).expect("a tokenizer is plain data");
        let library = Library::new(library, json, kind, Path::new("made here"));
        Self::from(library.expect("a tokenizer made here is supported"))
    }

    /// Pads the ids to `vocab_size`, if given: some models have more embedding rows than tokens, for round numbers. A
    /// padding id decodes to nothing and is never generated.
    ///
    /// # Errors
    /// If there are more than `vocab_size` ids.
    pub fn padded_to(self, vocab_size: Option<usize>) -> Result<Self, TokenizerError> {
        let n_ids = self.inner.vocab_size;
        let vocab_size = vocab_size.unwrap_or(n_ids);
        match vocab_size.checked_sub(n_ids) {
            Some(n_padding) => Ok(Self { n_padding, ..self }),
            None => Err(TokenizerError::TooManyIds { n_ids, vocab_size }),
        }
    }

    /// Reads a file that [`Tokenizer::to_json`] wrote, or any `tokenizer.json` of the `tokenizers` library.
    ///
    /// Encoding adds no special tokens, truncates nothing and ignores dropout, whatever the file says. A special token
    /// within a text becomes its id, and decoding shows it. A `tokenizer_config.json` beside a file named
    /// `tokenizer.json` is read too.
    ///
    /// # Errors
    /// If a file cannot be read, is not a tokenizer, or is one that cannot be used for text.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        let tokenizer = Self::from_json(text, path)?;
        Ok(Self { config_json: TokenizerConfigJson::beside(path, &tokenizer.inner)?, ..tokenizer })
    }

    /// Reads the tokenizer of a `tokenizer.json`; errors show `path`.
    ///
    /// # Errors
    /// If it is not a tokenizer that can be used here.
    pub fn from_json(text: String, path: &Path) -> Result<Self, TokenizerError> {
        let unsupported = |reason| TokenizerError::Unsupported { path: path.to_owned(), reason };
        caught(|| Self::parse(text, path)).map_err(unsupported).flatten()
    }

    /// Reads a tokenizer and tries it; panics where the library does.
    fn parse(text: String, path: &Path) -> Result<Self, TokenizerError> {
        let library = file::read(&text, path)?;
        if let Some(kind) = table::kind_of(&library) {
            return Ok(Self::made_here(library, kind));
        }
        let kind = match train::is_trained_here(&library) {
            true => TokenizerKind::Bpe,
            false => TokenizerKind::File,
        };
        let tokenizer: Self = Library::new(library, text, kind, path)?.into();
        tokenizer.try_out();
        Ok(tokenizer)
    }

    /// Encodes and decodes texts and tokens of every sort.
    fn try_out(&self) {
        let added = self.inner.added.iter().take(MAX_TRIED);
        let added: String = added.flat_map(|(_, token)| [" ", &token.content, &token.content, " "]).collect();
        for text in TRIED.into_iter().chain([&*added]) {
            if let Ok(ids) = self.encode_or_panic(text) {
                self.decode_or_panic(&ids);
            }
        }
        let n_ids = self.inner.vocab_size;
        let ids: Vec<u32> = (0..).take(n_ids).step_by(n_ids.div_ceil(MAX_TRIED)).collect();
        self.decode_or_panic(&ids);
    }

    /// Adds the content of a `tokenizer_config.json`; errors show `path`.
    ///
    /// # Errors
    /// If it is not one.
    pub fn with_config(self, json: String, path: &Path) -> Result<Self, TokenizerError> {
        Ok(Self { config_json: Some(TokenizerConfigJson::parse(json, path, &self.inner)?), ..self })
    }

    /// Replaces the chat template; its answers end with the token `end`. New `tokens` of the template get the next ids.
    ///
    /// # Errors
    /// If the tokenizer cannot have more tokens.
    pub fn with_chat_template(&self, template: &str, tokens: &[&str], end: &str) -> Result<Self, TokenizerError> {
        let mut file: Value = serde_json::from_str(&self.to_json()).expect("the tokenizer was parsed or made here");
        let mut config: Map<String, Value> =
            self.config_json().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        let known = self.added_tokens();
        let new = tokens.iter().filter(|token| known.iter().all(|(_, known)| known != *token));
        let new = (self.n_ids()..).zip(new).map(|(id, token)| {
            json!({
                "id": id, "content": token, "special": true, "normalized": false, "single_word": false,
                "lstrip": false, "rstrip": false,
            })
        });
        let mut added = file["added_tokens"].as_array().cloned().unwrap_or_default();
        added.extend(new);
        file["added_tokens"] = added.into();
        config.insert("chat_template".to_owned(), template.into());
        config.insert("eos_token".to_owned(), end.into());
        let path = Path::new("tokenizer.json");
        Self::from_json(file.to_string(), path)?.with_config(Value::Object(config).to_string(), path)
    }

    /// The content of its `tokenizer.json`: the same bytes each time, equal to those of the file that it was read from.
    pub fn to_json(&self) -> String {
        self.inner.json.clone()
    }

    /// The largest id plus one. A file may leave some ids without a token, and so does padding.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size + self.n_padding
    }

    /// The largest id of a token plus one: ids from here on are padding.
    pub fn n_ids(&self) -> usize {
        self.inner.vocab_size
    }

    /// The ids below [`Tokenizer::n_ids`] that the file leaves without a token, in ascending order.
    pub fn gaps(&self) -> Arc<[u32]> {
        self.inner.gaps.clone()
    }

    /// The kind of token. A file is classified by its content: one trained here is [`TokenizerKind::Bpe`].
    pub fn kind(&self) -> TokenizerKind {
        self.inner.kind
    }

    /// The end-of-text token: the `eos_token` of its `tokenizer_config.json`, or else the first of
    /// `<|endoftext|>`, `<|end_of_text|>`, `<｜end▁of▁sentence｜>`, `</s>`, `<eos>`, `[EOS]`, `<|im_end|>`, `[SEP]` that
    /// is an added token of the file.
    pub fn end_of_text(&self) -> Option<u32> {
        let named = self.config_json.as_ref().and_then(|config| config.end_of_text);
        named.or(self.inner.end_of_text)
    }

    /// The token to put before each text that the model reads: the one that its `tokenizer_config.json` asks for, or
    /// else, if that file exists, the one in the template of the `tokenizer.json`.
    pub fn bos(&self) -> Option<u32> {
        self.config_json.as_ref()?.bos
    }

    /// The BOS token that its `tokenizer_config.json` names, whether texts get it or not.
    pub fn bos_token(&self) -> Option<u32> {
        self.config_json.as_ref()?.bos_token
    }

    /// Removes the token before each text, for a model that learns from texts without one.
    #[must_use]
    pub fn without_bos(self) -> Self {
        match self.bos() {
            Some(_) => Self { config_json: self.config_json.map(TokenizerConfigJson::without_bos), ..self },
            None => self,
        }
    }

    /// The chat template, in Jinja, that turns a conversation into text.
    pub fn chat_template(&self) -> Option<&str> {
        self.config_json.as_ref()?.chat_templates.get(config_json::DEFAULT).map(String::as_str)
    }

    /// The chat template for conversations with tools.
    pub fn tool_template(&self) -> Option<&str> {
        let named = self.config_json.as_ref()?.chat_templates.get(config_json::TOOL_USE);
        named.map(String::as_str).or(self.chat_template())
    }

    /// The content of its `tokenizer_config.json`.
    pub fn config_json(&self) -> Option<&str> {
        self.config_json.as_ref().map(|config| &*config.json)
    }

    /// Added tokens, which are matched verbatim in text, such as `<|endoftext|>`, by id.
    pub fn added_tokens(&self) -> Vec<(u32, String)> {
        self.inner.added.iter().map(|(id, token)| (*id, token.content.clone())).collect()
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// If the text has characters without a token; the error names all of them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let no_token = |reason| TokenizerError::NoToken { text: None, reason };
        caught(|| self.encode_or_panic(text)).map_err(no_token).flatten()
    }

    fn encode_or_panic(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let library = &*self.inner;
        match &library.encoder {
            Encoder::Bytes => Ok(table::byte_ids(text.as_bytes(), library.end_of_text)),
            Encoder::Characters(ids) => ids.encode(text, library.end_of_text),
            Encoder::Words(words) => words.encode(text, library.tokenizer.get_model()),
            Encoder::Library => library.encode_by_library(text),
        }
    }

    /// The ids of a prompt, preceded by [`Tokenizer::bos`] unless the text begins with it.
    ///
    /// # Errors
    /// In the same cases as [`Tokenizer::encode_bytes`].
    pub fn encode_prompt(&self, text: impl AsRef<[u8]>) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode_bytes(text.as_ref())?;
        let bos = self.bos().filter(|bos| ids.first() != Some(bos));
        Ok(bos.into_iter().chain(ids).collect())
    }

    /// The ids of bytes, which must be UTF-8 unless the tokenizer's kind is byte.
    ///
    /// # Errors
    /// If the bytes have to be UTF-8 but are not, or have characters without a token.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        if self.kind() == TokenizerKind::Byte {
            return Ok(table::byte_ids(bytes, self.inner.end_of_text));
        }
        let text =
            std::str::from_utf8(bytes).map_err(|error| TokenizerError::NotUtf8 { offset: error.valid_up_to() })?;
        self.encode(text)
    }

    /// The last place at which a text may be split: whatever follows the text, the ids of the parts before and after it
    /// are the ids of the whole.
    ///
    /// With characters and bytes it is the end of the text, or before what could become an `<|endoftext|>`. With words
    /// it is before a space that follows something else. `None` if the text has no such place, and for every text if no
    /// word boundaries are known: with a file without a pre-tokenizer, such as Llama 2's, with a prefix for each text,
    /// or with a pattern other than those of GPT-2, GPT-4 (and Llama 3), GPT-4o and Qwen2.
    pub fn safe_split(&self, text: &str) -> Option<usize> {
        match &self.inner.encoder {
            Encoder::Bytes | Encoder::Characters(_) => self.safe_split_of_table(text.as_bytes()),
            Encoder::Words(_) | Encoder::Library => self.inner.safe_splits.as_ref()?.last(text),
        }
    }

    /// Like [`Tokenizer::safe_split`], for a tokenizer of characters or bytes, and bytes that need not be UTF-8.
    pub fn safe_split_of_table(&self, text: &[u8]) -> Option<usize> {
        let n_open = if self.inner.end_of_text.is_some() { table::open_end(text) } else { 0 };
        Some(text.len() - n_open).filter(|at| *at > 0)
    }

    /// The text of ids, special tokens included. Bytes that are not UTF-8 become U+FFFD, and so do ids that the library
    /// fails at.
    ///
    /// # Panics
    /// If an id is not below [`Tokenizer::vocab_size`].
    pub fn decode(&self, ids: &[u32]) -> String {
        let n_ids = self.vocab_size();
        assert!(ids.iter().all(|&id| (id as usize) < n_ids), "ids are below {n_ids}");
        caught(|| self.decode_or_panic(ids)).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into())
    }

    fn decode_or_panic(&self, ids: &[u32]) -> String {
        match &self.inner.bytes {
            Some(bytes) => text_of(ids.iter().filter_map(|&id| bytes.get(id as usize)).flatten().copied().collect()),
            None if ids.is_empty() => String::new(), // some decoders need a last token
            None => self.inner.tokenizer.decode(ids, false).expect("text decoders accept any tokens"),
        }
    }

    /// The bytes of a token of characters, bytes or byte-level BPE; `None` for files whose tokens decode only in
    /// context.
    ///
    /// # Panics
    /// If the id is not below [`Tokenizer::vocab_size`].
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        assert!((id as usize) < self.vocab_size(), "no token {id}");
        self.inner.bytes.as_ref().map(|bytes| bytes.get(id as usize).map_or(&[][..], |bytes| bytes))
    }

    /// The bytes that a token adds to a text, also if the file's decoder only joins tokens; `None` if they depend on
    /// the tokens before it.
    pub(crate) fn text_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let is_joined = || matches!(self.inner.tokenizer.get_decoder(), Some(DecoderWrapper::Fuse(_)));
        let bytes = self.token_bytes(id).map(<[u8]>::to_vec);
        bytes.or_else(|| is_joined().then(|| self.piece(id).into_bytes()))
    }

    /// The ids of special tokens, which have a meaning for the model instead of a text.
    pub fn special_tokens(&self) -> impl Iterator<Item = u32> {
        self.inner.added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id)
    }

    /// A readable form of a token: its text, with bytes that are not text as `\xNN`; or, if tokens decode only in
    /// context, as the vocabulary spells it (`▁the`, `##ing`). Empty for an id without a token.
    ///
    /// # Panics
    /// If the id is not below [`Tokenizer::vocab_size`].
    pub fn piece(&self, id: u32) -> String {
        let Some(bytes) = self.token_bytes(id) else {
            return self.inner.tokenizer.id_to_token(id).unwrap_or_default();
        };
        let mut piece = String::new();
        for chunk in bytes.utf8_chunks() {
            piece.push_str(chunk.valid());
            for byte in chunk.invalid() {
                write!(piece, "\\x{byte:02x}").expect("writing to a string cannot fail");
            }
        }
        piece
    }
}

impl From<Library> for Tokenizer {
    fn from(library: Library) -> Self {
        Self { inner: Arc::new(library), config_json: None, n_padding: 0 }
    }
}

/// Bytes as text, with U+FFFD for invalid bytes.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A piece of text on one line, with `·` for a space, `↵` for a line end and `→` for a tab. Characters that would
/// change the line itself, such as terminal control codes, become `\u{fffd}`.
pub fn visible(piece: &str) -> String {
    let mut shown = String::new();
    for character in piece.chars() {
        match character {
            ' ' => shown.push('·'),
            '\n' => shown.push('↵'),
            '\t' => shown.push('→'),
            other if other.is_control() || is_format(other) => shown.push('\u{fffd}'),
            mark @ '\u{300}'..='\u{36f}' if shown.is_empty() => shown.extend(['◌', mark]),
            other => shown.push(other),
        }
    }
    shown
}

/// Whether a character has no width, or changes the direction of text.
fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_ids_follow_code_points_and_byte_ids_equal_bytes() {
        let tokenizer = Tokenizer::char_from_alphabet("hello, \u{e9}\n".chars()).unwrap();
        assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (TokenizerKind::Char, 8));
        assert_eq!(tokenizer.encode("\n ,ehlo\u{e9}").unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(tokenizer.token_bytes(7), Some("\u{e9}".as_bytes()));
        let tokenizer = Tokenizer::byte();
        assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (TokenizerKind::Byte, 256));
        assert_eq!(tokenizer.encode("\0a\u{e9}").unwrap(), [0, 97, 0xc3, 0xa9]);
        assert_eq!(tokenizer.encode_bytes(&[0xff, 0x80]).unwrap(), [255, 128]);
        assert_eq!(tokenizer.decode(&[0xff, 97]), "\u{fffd}a");
    }

    #[test]
    fn encode_names_unknown_characters() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).unwrap();
        let message = tokenizer.encode("a\u{1f525}b\n\u{e9}\n").unwrap_err().to_string();
        for name in ["'\\n' (U+000A)", "'\u{e9}' (U+00E9)", "'\u{1f525}' (U+1F525)"] {
            assert_eq!(message.matches(name).count(), 1, "{message}");
        }
        assert!(message.contains("kind = \"byte\""), "{message}");
        let text: String = ('\u{4e00}'..'\u{4f00}').collect();
        let message = tokenizer.encode(&text).unwrap_err().to_string();
        assert!(message.contains("256 characters") && message.contains("236 more"), "{message}");
        let error = tokenizer.encode_bytes(b"ab\xff").unwrap_err();
        assert!(matches!(error, TokenizerError::NotUtf8 { offset: 2 }));
        let error = Tokenizer::char_from_alphabet([]).unwrap_err();
        assert!(matches!(error, TokenizerError::EmptyAlphabet));
    }

    #[test]
    fn padding_decodes_to_nothing_and_keeps_all_tokens() {
        let padded = |size| Tokenizer::char_from_alphabet("abc".chars()).unwrap().padded_to(size);
        let tokenizer = padded(Some(6)).unwrap();
        assert_eq!((tokenizer.vocab_size(), tokenizer.n_ids()), (6, 3));
        assert_eq!(tokenizer.encode("cab").unwrap(), [2, 0, 1]);
        assert_eq!((tokenizer.decode(&[0, 5, 2]), tokenizer.piece(5)), ("ac".to_owned(), String::new()));
        assert_eq!(tokenizer.token_bytes(3), Some(&[][..]));
        assert_eq!(tokenizer, padded(None).unwrap());
        assert_eq!(padded(None).unwrap().vocab_size(), 3);
        let error = padded(Some(2)).unwrap_err();
        assert!(matches!(error, TokenizerError::TooManyIds { n_ids: 3, vocab_size: 2 }), "{error}");
    }

    #[test]
    fn visible_text_stays_on_one_line() {
        for (piece, expected) in [
            (" a\n\t\"\u{e9} ", "·a↵→\"\u{e9}·"),
            ("\u{301}", "◌\u{301}"),
            (" 猫", "·猫"),
            ("\u{202e}\u{1b}[1m", "\u{fffd}\u{fffd}[1m"),
            ("\u{7}\r\u{200b}", "\u{fffd}\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(visible(piece), expected);
        }
    }
}
