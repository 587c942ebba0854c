//! The two methods of SentencePiece, BPE by scores and Unigram, in terms of the `tokenizers` library.
//!
//! Source: transformers, `LlamaConverter` and `SpmConverter` in `convert_slow_tokenizer.py`; where those deviate from
//! SentencePiece itself, such as in the spaces at the ends of a text, the conversion here follows SentencePiece.

use serde_json::{Value, json};
use tokenizers::normalizers::Precompiled;

use super::{Parts, SPACE, Token, TokenKind, bpe, scores};

/// The changes that are made to a text before it is tokenized.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Normalization<'a> {
    /// A table of characters and their replacements, in SentencePiece's binary form; empty if there is none.
    pub table: &'a [u8],
    /// Whether spaces are removed at the ends of a text, and all but one between words.
    pub remove_extra_spaces: bool,
    /// Whether text is tokenized as if a space preceded it.
    pub add_space_prefix: bool,
}

/// BPE: the adjacent pair is merged that makes the token with the highest score.
///
/// # Errors
/// The reason, if the table of characters is malformed.
pub(crate) fn by_scores(tokens: &[Token], scores: &[f32], normalization: Normalization<'_>) -> Result<Parts, String> {
    // With a prefix, tokens are matched before spaces are replaced: only merges find those that contain a space.
    let is_merged = |token: &Token| match token.kind {
        TokenKind::Normal => true,
        TokenKind::UserDefined => normalization.add_space_prefix && token.text.contains(SPACE),
        _ => false,
    };
    let merged = tokens.iter().zip(scores).filter(|(token, _)| is_merged(token));
    let pieces: Vec<(&str, f32)> = merged.map(|(token, score)| (token.text.as_str(), *score)).collect();
    let unknown = tokens.iter().find(|token| token.kind == TokenKind::Unknown);
    let settings = json!({
        "unk_token": unknown.map(|token| &token.text), "fuse_unk": true, "byte_fallback": has_bytes(tokens),
        "merges": scores::merges(&pieces),
    });
    normalization.parts(bpe(tokens, settings))
}

/// Unigram: a text is split into the tokens with the highest sum of scores, the logarithms of their probabilities.
///
/// # Errors
/// The reason, if the table of characters is malformed.
pub(crate) fn unigram(tokens: &[Token], scores: &[f32], normalization: Normalization<'_>) -> Result<Parts, String> {
    let unknown = tokens.iter().position(|token| token.kind == TokenKind::Unknown);
    let vocab: Vec<(&str, f32)> = tokens.iter().zip(scores).map(|(token, score)| (&*token.text, *score)).collect();
    normalization.parts(json!({
        "type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": has_bytes(tokens),
    }))
}

/// Whether bytes stand in for characters without a token.
fn has_bytes(tokens: &[Token]) -> bool {
    tokens.iter().any(|token| token.kind == TokenKind::Byte)
}

impl Normalization<'_> {
    fn parts(self, model: Value) -> Result<Parts, String> {
        let space = SPACE.to_string();
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": space}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.add_space_prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(Parts {
            normalizer: json!({"type": "Sequence", "normalizers": self.normalizers()?}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model,
            // The library normalizes such tokens, too, so they would begin with the space that is put before a text.
            matches_normalized: !self.add_space_prefix,
        })
    }

    fn normalizers(self) -> Result<Vec<Value>, String> {
        let replace = |pattern: Value, by: &str| json!({"type": "Replace", "pattern": pattern, "content": by});
        let space = SPACE.to_string();
        let mut normalizers = Vec::new();
        if !self.table.is_empty() {
            let table = Precompiled::from(self.table);
            normalizers.push(json!(table.map_err(|error| format!("its table of characters: {error}"))?));
        }
        if self.remove_extra_spaces {
            // In Python, `^` and `$` would match at every line.
            normalizers.push(replace(json!({"Regex": format!(r"\A +|[ {SPACE}]+\z")}), ""));
            normalizers.push(replace(json!({"Regex": " {2,}"}), " "));
        }
        if self.add_space_prefix {
            normalizers.push(json!({"type": "Prepend", "prepend": space}));
        }
        normalizers.push(replace(json!({"String": " "}), &space));
        Ok(normalizers)
    }
}
