//! SentencePiece's `tokenizer.model`: the tokenizer of older folders, which have no `tokenizer.json`.
//!
//! Source: `sentencepiece_model.proto`, whose names and numbers of fields are used here.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use prost::Message;
use serde_json::{Map, Value, json};

use super::folder::Folder;
use crate::InteropError;
use crate::error::damaged;
use crate::tokens::sentencepiece::{MOST_SYMBOLS, Normalization, by_scores, unigram};
use crate::tokens::{SPACE, TokenKind, VocabToken, tokenizer_json};

const FILE: &str = "tokenizer.model";
/// Tokens that a folder adds to the vocabulary, by text; newer folders have the second key of `tokenizer_config.json`.
const ADDED: &str = "added_tokens.json";
const ADDED_BY_ID: &str = "added_tokens_decoder";

/// The size of the largest accepted file in bytes, eight times that of the largest published one. In memory a piece may
/// take twenty times as much as in the file.
const LARGEST: usize = 1 << 25;

/// The codes of the supported methods.
const UNIGRAM: i32 = 1;
const BPE: i32 = 2;

/// The whole file, except for the test samples in it.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<SentencePiece>,
    #[prost(message, optional, tag = "2")]
    trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer_spec: Option<NormalizerSpec>,
    #[prost(message, optional, tag = "5")]
    denormalizer_spec: Option<NormalizerSpec>,
}

/// A token and its score.
#[derive(Clone, PartialEq, Message)]
struct SentencePiece {
    #[prost(string, required, tag = "1")]
    piece: String,
    #[prost(float, required, tag = "2")]
    score: f32,
    /// The code of a [`TokenKind`].
    #[prost(int32, required, tag = "3", default = "1")]
    r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, required, tag = "3", default = "1")]
    model_type: i32,
    /// Whether spaces belong to the word before them.
    #[prost(bool, required, tag = "24")]
    treat_whitespace_as_suffix: bool,
    #[prost(int32, required, tag = "41", default = "1")]
    bos_id: i32,
    #[prost(int32, required, tag = "42", default = "2")]
    eos_id: i32,
}

/// How text is changed before it is tokenized.
#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", required, tag = "2")]
    precompiled_charsmap: Vec<u8>,
    #[prost(bool, required, tag = "3", default = "true")]
    add_dummy_prefix: bool,
    #[prost(bool, required, tag = "4", default = "true")]
    remove_extra_whitespaces: bool,
    /// Whether spaces are replaced by U+2581, as in the tokens.
    #[prost(bool, required, tag = "5", default = "true")]
    escape_whitespaces: bool,
}

/// A file converted to those of newer folders.
#[derive(Debug)]
pub(super) struct Converted {
    /// The `tokenizer.json`.
    pub json: String,
    /// Entries of a `tokenizer_config.json`, for keys that the folder's lacks.
    pub config: Vec<(&'static str, Value)>,
}

/// Reads the `tokenizer.model` of a folder with this `tokenizer_config.json`; `None` if there is none.
pub(super) fn read(folder: &Folder, config: &Map<String, Value>) -> Result<Option<Converted>, InteropError> {
    let Some(bytes) = folder.bytes(FILE)? else { return Ok(None) };
    let path = folder.path().join(FILE);
    let not_whole = |reason: String| damaged(&path, format!("it is not a complete SentencePiece model: {reason}"));
    let unsupported = |problems| InteropError::Unsupported { path: path.clone(), problems };
    if bytes.len() > LARGEST {
        return Err(not_whole(format!("it has {} bytes, and {LARGEST} are the most that is read", bytes.len())));
    }
    let mut model = SentencePieceModel::parse(&bytes).map_err(not_whole)?;
    if let Some(add_space_prefix) = config.get("add_prefix_space").and_then(Value::as_bool) {
        model.normalizer.add_dummy_prefix = add_space_prefix;
    }
    let special = model.special();
    let problems = model.problems();
    if !problems.is_empty() {
        return Err(unsupported(problems));
    }
    for (id, (text, kind)) in added(folder, config)? {
        model.add(id, &text, kind).map_err(|problem| unsupported(vec![problem]))?;
    }
    let json = model.to_tokenizer().map_err(not_whole)?;
    Ok(Some(Converted { json, config: special }))
}

/// The tokens that a folder adds, by id. Both files may have them.
fn added(folder: &Folder, config: &Map<String, Value>) -> Result<BTreeMap<u64, (String, TokenKind)>, InteropError> {
    let older = folder.json(ADDED)?.unwrap_or_default();
    let older = older.into_iter().filter_map(|(text, id)| Some((id.as_u64()?, (text, TokenKind::Control))));
    let mut added: BTreeMap<_, _> = older.collect();
    for (id, token) in config.get(ADDED_BY_ID).and_then(Value::as_object).into_iter().flatten() {
        if let (Ok(id), Some(text)) = (id.parse::<u64>(), token["content"].as_str()) {
            let kind = if token["special"] == true { TokenKind::Control } else { TokenKind::UserDefined };
            added.insert(id, (text.to_owned(), kind));
        }
    }
    Ok(added)
}

/// The parts of a file that matter here.
struct SentencePieceModel {
    tokens: Vec<VocabToken>,
    scores: Vec<f32>,
    /// The number of tokens of the file, without those of the folder.
    n_own: usize,
    trainer: TrainerSpec,
    normalizer: NormalizerSpec,
    /// Whether a table of characters changes decoded text.
    changes_decoded: bool,
}

impl SentencePieceModel {
    fn parse(file: &[u8]) -> Result<Self, String> {
        let ModelProto { pieces, trainer_spec, normalizer_spec, denormalizer_spec } =
            ModelProto::decode(file).map_err(|error| error.to_string())?;
        let (mut tokens, mut scores) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        for (i, SentencePiece { piece, score, r#type: code }) in pieces.into_iter().enumerate() {
            let kind =
                TokenKind::of_code(code.into()).ok_or_else(|| format!("piece {i}: it has the unknown type {code}"))?;
            if piece.is_empty() {
                return Err(format!("piece {i}: it has no text"));
            }
            tokens.push(VocabToken { text: piece, kind });
            scores.push(score);
        }
        // They follow the pieces, so a file that was cut between two pieces lacks them.
        let trainer = trainer_spec.ok_or("its trainer_spec is missing")?;
        let normalizer = normalizer_spec.ok_or("its normalizer_spec is missing")?;
        if !tokens.iter().any(|token| token.kind == TokenKind::Unknown) {
            return Err("it has no piece of the type UNKNOWN".to_owned());
        }
        let changes_decoded = denormalizer_spec.is_some_and(|spec| !spec.precompiled_charsmap.is_empty());
        let n_own = tokens.len();
        Ok(Self { tokens, scores, n_own, trainer, normalizer, changes_decoded })
    }

    /// The settings that have no equivalent here.
    fn problems(&self) -> Vec<String> {
        let method = self.trainer.model_type;
        let mut problems = Vec::new();
        if ![UNIGRAM, BPE].contains(&method) {
            problems
                .push(format!("trainer_spec.model_type = {method}: {UNIGRAM} (unigram) and {BPE} (bpe) are supported"));
        }
        if self.trainer.treat_whitespace_as_suffix {
            problems.push("trainer_spec.treat_whitespace_as_suffix = true: false is supported".to_owned());
        }
        if !self.normalizer.escape_whitespaces {
            problems.push("normalizer_spec.escape_whitespaces = false: true is supported".to_owned());
        }
        if self.changes_decoded {
            problems.push("denormalizer_spec has a table of characters: none is supported".to_owned());
        }
        let unused = self.tokens.iter().find(|token| token.kind == TokenKind::Unused);
        if let (UNIGRAM, Some(unused)) = (method, unused) {
            problems.push(format!("the piece {:?} is of the type UNUSED: it is supported for bpe only", unused.text));
        }
        let symbols = self.symbols();
        for symbol in self.own_symbols() {
            if symbol.contains(' ') {
                problems.push(format!("user_defined_symbols has {symbol:?}: symbols without a space are supported"));
            } else if method == UNIGRAM && symbol.contains(SPACE) {
                problems.push(format!("user_defined_symbols has {symbol:?}: U+2581 in it is supported for bpe only"));
            }
        }
        if symbols.len() > MOST_SYMBOLS {
            problems.push(format!("user_defined_symbols has {}: {MOST_SYMBOLS} are supported", symbols.len()));
        }
        problems
    }

    /// The user's tokens in the file.
    fn own_symbols(&self) -> impl Iterator<Item = &str> {
        let own = self.tokens[..self.n_own].iter().filter(|token| token.kind == TokenKind::UserDefined);
        own.map(|token| &*token.text)
    }

    /// The user's tokens that cannot be added tokens, the longest first. SentencePiece finds them before it changes a
    /// text, the `tokenizers` library finds added tokens so only if nothing changes the text.
    fn symbols(&self) -> Vec<&str> {
        let NormalizerSpec { precompiled_charsmap, add_dummy_prefix, remove_extra_whitespaces, .. } = &self.normalizer;
        let is_kept = precompiled_charsmap.is_empty() && !add_dummy_prefix && !remove_extra_whitespaces;
        if is_kept && self.trainer.model_type == BPE {
            return Vec::new();
        }
        let mut symbols: Vec<&str> = self.own_symbols().collect();
        symbols.sort_by_key(|symbol| Reverse(symbol.chars().count()));
        symbols
    }

    /// Entries of a `tokenizer_config.json`. Such models expect a BOS token before a text if they have one.
    fn special(&self) -> Vec<(&'static str, Value)> {
        let token = |id: i32| {
            let token = self.tokens.get(usize::try_from(id).ok()?)?; // -1 if there is none
            (token.kind == TokenKind::Control).then(|| json!(token.text))
        };
        let bos = token(self.trainer.bos_id);
        let add_bos = bos.is_some().then_some(Value::Bool(true));
        let special = [("bos_token", bos), ("eos_token", token(self.trainer.eos_id)), ("add_bos_token", add_bos)];
        special.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Adds a token of the folder, or sets the kind of one that is there.
    fn add(&mut self, id: u64, text: &str, kind: TokenKind) -> Result<(), String> {
        let n = self.tokens.len();
        match self.tokens.get_mut(usize::try_from(id).unwrap_or(usize::MAX)) {
            Some(token) if token.text != text => {
                Err(format!("the added token {text:?} has the id {id}, which is that of the piece {:?}", token.text))
            }
            Some(token) => {
                if matches!(token.kind, TokenKind::Normal | TokenKind::UserDefined) {
                    token.kind = kind;
                }
                Ok(())
            }
            None if id == n as u64 => {
                self.tokens.push(VocabToken { text: text.to_owned(), kind });
                self.scores.push(0.0);
                Ok(())
            }
            None => Err(format!("the added token {text:?} has the id {id}, and no token has the id {n}")),
        }
    }

    fn to_tokenizer(&self) -> Result<String, String> {
        let convert = if self.trainer.model_type == UNIGRAM { unigram } else { by_scores };
        let symbols = self.symbols();
        let mut tokens = self.tokens.clone();
        if !symbols.is_empty() {
            let own = tokens[..self.n_own].iter_mut().filter(|token| token.kind == TokenKind::UserDefined);
            own.for_each(|token| token.kind = TokenKind::Normal);
        }
        let normalization = Normalization {
            symbols: &symbols,
            table: &self.normalizer.precompiled_charsmap,
            remove_extra_spaces: self.normalizer.remove_extra_whitespaces,
            add_space_prefix: self.normalizer.add_dummy_prefix,
        };
        tokenizer_json(&tokens, convert(&tokens, &self.scores, normalization)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use tinderbox_model::tokenizer::Tokenizer;

    /// A file of `scripts/fixtures/sentencepiece_files.py`.
    fn fixture(name: &str) -> Vec<u8> {
        fs::read(Path::new("../../tests/fixtures/sentencepiece").join(name)).expect("the fixture exists")
    }

    /// Converts a folder with these files.
    fn read_files(files: &[(&str, &[u8])], config: &Value) -> Result<Converted, String> {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        for (name, content) in files {
            fs::write(folder.path().join(name), content).expect("the file can be written");
        }
        let config = config.as_object().expect("the config is an object");
        let read = Folder::open(folder.path()).and_then(|folder| read(&folder, config));
        let place = folder.path().display().to_string();
        read.map(|read| read.expect("the folder has a tokenizer.model"))
            .map_err(|error| error.to_string().replace(&place, "FOLDER"))
    }

    fn tokenizer(converted: Converted) -> Tokenizer {
        Tokenizer::from_json(converted.json, Path::new("tokenizer.json")).expect("the tokenizer was just made")
    }

    #[test]
    fn ids_and_decoded_text_match_sentencepiece() {
        let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("the file is JSON");
        for name in ["bpe", "bpe_without_prefix", "unigram"] {
            let file = fixture(&format!("{name}.model"));
            let tokenizer = tokenizer(read_files(&[(FILE, &file)], &json!({})).expect("the file is complete"));
            let expected = &expected["files"][name];
            assert_eq!(tokenizer.vocab_size() as u64, expected["n_pieces"].as_u64().expect("the fixture has a count"));
            let cases = expected["cases"].as_array().expect("the fixture has a list");
            assert!(cases.len() > 10);
            for case in cases {
                let text = case["text"].as_str().expect("the fixture has a text");
                let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("the fixture has ids");
                assert_eq!(tokenizer.encode(text).expect("the vocabulary covers any text"), ids, "{name}: {text:?}");
                let decoded = case["decoded"].as_str().expect("the fixture has a text").replace(" \u{2047} ", "<unk>");
                assert_eq!(tokenizer.decode(&ids), decoded, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn tokens_of_folder_are_added() {
        let file = fixture("bpe.model");
        let older = br#"{"<|im_start|>": 520, "<x>": 521}"#;
        let newer = json!({ ADDED_BY_ID: {
            "0": { "content": "<unk>", "special": true }, "3": { "content": "<sep>", "special": true },
            "521": { "content": "<x>", "special": false },
        }});
        let converted = read_files(&[(FILE, &file), (ADDED, older)], &newer).expect("the tokens fit the vocabulary");
        let json: Value = serde_json::from_str(&converted.json).expect("the file is JSON");
        let added: Vec<_> = json["added_tokens"].as_array().expect("the fixture has a list").iter().collect();
        for (id, text, special) in
            [(0, "<unk>", true), (3, "<sep>", true), (520, "<|im_start|>", true), (521, "<x>", false)]
        {
            let token = added.iter().find(|token| token["id"] == id).expect("the folder has a tokenizer.model");
            assert_eq!((&token["content"], &token["special"]), (&json!(text), &json!(special)));
        }
        let tokenizer = tokenizer(converted);
        assert_eq!(tokenizer.vocab_size(), 522);
        assert_eq!(tokenizer.encode("<|im_start|><x>").expect("the vocabulary covers any text"), [520, 521]);
        let added = |added: &[u8]| read_files(&[(FILE, &file), (ADDED, added)], &json!({}));
        let error = added(br#"{"<x>": 521}"#).expect_err("an id is missing");
        assert!(error.contains("the added token \"<x>\" has the id 521, and no token has the id 520"), "{error}");
        let error = added(br#"{"<x>": 1}"#).expect_err("the id belongs to another token");
        assert!(error.contains("the added token \"<x>\" has the id 1, which is that of the piece \"<s>\""), "{error}");
    }

    #[test]
    fn config_of_folder_sets_space_prefix() {
        let file = fixture("bpe.model");
        let ids = |config: Value| {
            let converted = read_files(&[(FILE, &file)], &config).expect("the file is complete");
            tokenizer(converted).encode("girl").expect("the vocabulary covers any text")
        };
        assert_eq!(ids(json!({ "add_prefix_space": true })), ids(json!({ "add_prefix_space": null })));
        assert_ne!(ids(json!({ "add_prefix_space": false })), ids(json!({})));
    }

    #[test]
    fn truncated_files_are_refused_at_any_length() {
        for name in ["bpe.model", "unigram.model"] {
            let file = fixture(name);
            for length in (0..file.len()).step_by(97).chain([file.len() - 1]) {
                let error = read_files(&[(FILE, &file[..length])], &json!({})).expect_err("the file is truncated");
                let expected = "`FOLDER/tokenizer.model` is damaged: it is not a complete SentencePiece model: ";
                assert!(error.starts_with(expected), "{name}, {length} bytes: {error}");
                assert!(error.contains("\n  hint: download or write it again"), "{error}");
            }
        }
        let error =
            |file: &[u8]| read_files(&[(FILE, file)], &json!({})).expect_err("the file is no SentencePiece model");
        let pointer = error(b"version https://git-lfs.github.com/spec/v1\n");
        assert!(pointer.contains("failed to decode Protobuf message: invalid wire type value: 6"), "{pointer}");
        let piece = error(&[0x0a, 2, 0x18, 9]);
        assert!(piece.contains("piece 0: it has the unknown type 9"), "{piece}");
    }

    #[test]
    fn settings_without_equivalent_are_listed() {
        let file = [
            &[0x0a, 7, 0x0a, 3, b'<', b'u', b'>', 0x18, 2][..], // the piece <u>, UNKNOWN
            &[0x0a, 7, 0x0a, 3, b'a', b' ', b'b', 0x18, 4],     // the piece "a b", USER_DEFINED
            &[0x12, 5, 0x18, 3, 0xc0, 0x01, 1],                 // model_type WORD, spaces as suffixes
            &[0x1a, 2, 0x28, 0],                                // no escaped spaces
        ];
        let error = read_files(&[(FILE, &file.concat())], &json!({})).expect_err("the settings are unsupported");
        insta::assert_snapshot!(error, @r#"
        the model in `FOLDER/tokenizer.model` is not supported:
          - trainer_spec.model_type = 3: 1 (unigram) and 2 (bpe) are supported
          - trainer_spec.treat_whitespace_as_suffix = true: false is supported
          - normalizer_spec.escape_whitespaces = false: true is supported
          - user_defined_symbols has "a b": symbols without a space are supported
        "#);
    }
}
