//! Tokens with their kinds, as SentencePiece and llama.cpp have them, and the `tokenizer.json` made from them.
//!
//! The formats that hold such tokens are read elsewhere: `tokenizer.model` in `hf`, the metadata of GGUF in `gguf`.

pub(crate) mod scores;
pub(crate) mod sentencepiece;

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

/// Replaces a space in the tokens of SentencePiece.
pub(crate) const SPACE: char = '\u{2581}';

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabToken {
    /// Its spelling in the vocabulary.
    pub text: String,
    pub kind: TokenKind,
}

/// The kind of a token, with its code in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// Replaces text without a token.
    Unknown = 2,
    /// Special: matched verbatim in text, and not shown.
    Control = 3,
    /// Matched verbatim in text.
    UserDefined = 4,
    /// Padding: an embedding row without a token.
    Unused = 5,
    /// A byte of a character without a token, such as `<0x0A>`.
    Byte = 6,
}

impl TokenKind {
    pub(crate) fn of_code(code: i128) -> Option<Self> {
        use TokenKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
        [Normal, Unknown, Control, UserDefined, Unused, Byte].into_iter().find(|kind| *kind as i128 == code)
    }
}

impl VocabToken {
    /// Whether it is matched verbatim in text.
    pub(crate) fn is_added(&self) -> bool {
        matches!(self.kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
    }
}

/// The parts of a `tokenizer.json`.
pub(crate) struct Parts {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
    pub model: Value,
    /// Whether tokens of the kind [`TokenKind::UserDefined`] are matched in the normalized text.
    pub matches_normalized: bool,
}

/// The `tokenizer.json` with these tokens, by id.
pub(crate) fn tokenizer_json(tokens: &[VocabToken], parts: Parts) -> Result<String, String> {
    let mut known = HashSet::new();
    if let Some(twice) = tokens.iter().find(|token| !known.insert(token.text.as_str())) {
        return Err(format!("the token {:?} is in its vocabulary twice", twice.text));
    }
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added_tokens(tokens, parts.matches_normalized), "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer, "post_processor": null, "decoder": parts.decoder, "model": parts.model,
    });
    // Through the library, which writes every setting, in its own order.
    let library = tokenizers::Tokenizer::from_bytes(file.to_string());
    let library = library.map_err(|error| format!("its vocabulary: {error}"))?;
    library.to_string(true).map_err(|error| error.to_string())
}

/// The model BPE with these tokens, by id, and these settings.
pub(crate) fn bpe(tokens: &[VocabToken], settings: Value) -> Value {
    let inside = tokens[..n_inside(tokens)].iter().enumerate();
    let inside = inside.filter(|(_, token)| token.kind != TokenKind::Unused);
    let vocab: BTreeMap<&str, usize> = inside.map(|(id, token)| (token.text.as_str(), id)).collect();
    let mut model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "merges": [], "vocab": vocab,
    });
    for (key, value) in settings.as_object().into_iter().flatten() {
        model[key.as_str()] = value.clone();
    }
    model
}

fn added_tokens(tokens: &[VocabToken], matches_normalized: bool) -> Vec<Value> {
    let added = (0_u32..).zip(tokens).filter(|(_, token)| token.is_added()).map(|(id, token)| {
        let special = token.kind != TokenKind::UserDefined;
        json!({
            "id": id, "content": token.text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": matches_normalized && !special, "special": special,
        })
    });
    added.collect()
}

/// The number of tokens in the model's vocabulary. The library numbers other added tokens consecutively after it:
/// trailing ones can be left out, if there is no gap before or among them.
fn n_inside(tokens: &[VocabToken]) -> usize {
    let is_unused = |token: &VocabToken| token.kind == TokenKind::Unused;
    let last = tokens.iter().rposition(|token| !token.is_added() && !is_unused(token));
    let (inside, rest) = tokens.split_at(last.map_or(0, |last| last + 1));
    let has_gap = inside.iter().any(is_unused) || rest.iter().skip_while(|it| it.is_added()).any(VocabToken::is_added);
    if has_gap { tokens.len() } else { inside.len() }
}
