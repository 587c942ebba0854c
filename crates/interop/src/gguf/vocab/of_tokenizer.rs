//! Converts a tokenizer to a GGUF vocabulary.

use std::collections::HashMap;

use serde_json::Value;

use super::pre_tokenizer::{self, PreTokenizer};
use super::{Model, Vocab};
use crate::InteropError;
use crate::tokens::scores::{self, Merge};
use crate::tokens::{SPACE, TokenKind, VocabToken};
use tinderbox_model::tokenizer::{Tokenizer, TokenizerKind};

/// A placeholder where the list of merges must not be empty: tokens start as single characters, so it merges nothing.
const NO_MERGE: &str = "\u{ff}\u{ff} \u{ff}\u{ff}";

impl Vocab {
    /// The vocabulary of a tokenizer, its padding included.
    pub(crate) fn of_tokenizer(tokenizer: &Tokenizer) -> Result<Self, InteropError> {
        let n_rows = tokenizer.vocab_size();
        let file: Value = serde_json::from_str(&tokenizer.to_json()).expect("the tokenizer's JSON was parsed before");
        let merges = if file["model"]["type"] == "BPE" { merges(&file["model"])? } else { Vec::new() };
        let is_characters = tokenizer.kind() == TokenizerKind::Char;
        let mut tokens = tokens(&file, n_rows, is_characters)?;
        let model = match PreTokenizer::of_tokenizer(&file) {
            _ if file["model"]["type"] != "BPE" => {
                return Err(inexpressible(&format!("its model is {}, not BPE", file["model"]["type"])));
            }
            _ if is_characters => Model::Llama { scores: vec![0.0; n_rows], add_space_prefix: false },
            _ if tokenizer.kind() == TokenizerKind::Byte => gpt2(pre_tokenizer::GPT_2, &merges),
            Some(PreTokenizer { name, .. }) if file["decoder"]["type"] == "ByteLevel" => gpt2(name, &merges),
            _ => llama(&file, &mut tokens, &merges)?,
        };
        // Without an EOS token, llama.cpp takes the third token. The last one is the rarest: padding, the byte 0xff,
        // which is in no text, the last merge, or the highest code point.
        let last = u32::try_from(n_rows - 1).expect("ids are 32 bits");
        Ok(Self {
            bos: tokenizer.bos().or(tokenizer.bos_token()),
            eos: Some(tokenizer.end_of_text().unwrap_or(last)),
            ends: super::ends(&tokens, std::iter::empty()),
            add_bos: tokenizer.bos().is_some(),
            chat_template: tokenizer.chat_template().map(str::to_owned),
            tokens,
            model,
        })
    }
}

/// All tokens, by id.
fn tokens(file: &Value, n_rows: usize, is_characters: bool) -> Result<Vec<VocabToken>, InteropError> {
    let padding = |id: usize| VocabToken { text: format!("[PAD{id}]"), kind: TokenKind::Unused };
    let mut tokens: Vec<VocabToken> = (0..n_rows).map(padding).collect();
    let mut set = |id: &Value, text: &str, kind: TokenKind| -> Result<(), InteropError> {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let token = id.and_then(|id| tokens.get_mut(id));
        *token.ok_or_else(|| inexpressible(&format!("it has no row for the token {text:?}")))? =
            VocabToken { text: text.to_owned(), kind };
        Ok(())
    };
    for (text, id) in file["model"]["vocab"].as_object().into_iter().flatten() {
        if text.contains('\0') || (is_characters && text.contains(SPACE)) {
            return Err(inexpressible(&format!("{text:?} is one of its characters, and cannot be one there")));
        }
        let text = if is_characters { text.replace(' ', &SPACE.to_string()) } else { text.clone() };
        set(id, &text, TokenKind::Normal)?;
    }
    for added in file["added_tokens"].as_array().into_iter().flatten() {
        let text = added["content"].as_str().unwrap_or_default();
        if let Some(key) = ["lstrip", "rstrip", "single_word"].into_iter().find(|key| added[key] == true) {
            return Err(inexpressible(&format!("its token {text:?} has `{key}`, which is not known there")));
        }
        let kind = if added["special"] == true { TokenKind::Control } else { TokenKind::UserDefined };
        set(&added["id"], text, kind)?;
    }
    Ok(tokens)
}

/// The merges of a file, each two tokens or a string with a space between them.
fn merges(model: &Value) -> Result<Vec<Merge>, InteropError> {
    let merge = |merge: &Value| match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
        (Some(text), _) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        (_, Some([left, right])) => Some((left.as_str()?.to_owned(), right.as_str()?.to_owned())),
        _ => None,
    };
    let merges = model["merges"].as_array().into_iter().flatten();
    merges.map(|value| merge(value).ok_or_else(|| inexpressible(&format!("it merges {value}")))).collect()
}

fn gpt2(pre: &str, merges: &[Merge]) -> Model {
    let mut merges: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    if merges.is_empty() {
        merges.push(NO_MERGE.to_owned()); // llama.cpp rejects files without any
    }
    Model::Gpt2 { pre: pre.to_owned(), merges }
}

/// SentencePiece's BPE: spaces become U+2581, text is not split into words, bytes stand in for unknown characters.
fn llama(file: &Value, tokens: &mut [VocabToken], merges: &[Merge]) -> Result<Model, InteropError> {
    let no_pre_tokenizer = || {
        inexpressible(&format!(
            "llama.cpp has no pre-tokenizer like its {}",
            file["pre_tokenizer"]["type"].as_str().unwrap_or("own, which is none")
        ))
    };
    let add_space_prefix = space_prefix(file).ok_or_else(no_pre_tokenizer)?;
    if file["model"]["byte_fallback"] != true {
        return Err(no_pre_tokenizer());
    }
    for token in tokens.iter_mut() {
        if is_byte(&token.text) {
            token.kind = TokenKind::Byte;
        } else if file["model"]["unk_token"] == *token.text {
            token.kind = TokenKind::Unknown;
        }
    }
    let by_piece: HashMap<String, f32> = scores::scores(merges);
    let scores: Vec<f32> = tokens.iter().map(|token| by_piece.get(&token.text).copied().unwrap_or(0.0)).collect();
    let normal = tokens.iter().zip(&scores).filter(|(token, _)| token.kind == TokenKind::Normal);
    let pieces: Vec<(&str, f32)> = normal.map(|(token, score)| (token.text.as_str(), *score)).collect();
    match scores::are_all(merges, &pieces) {
        true => Ok(Model::Llama { scores, add_space_prefix }),
        false => {
            Err(inexpressible("its merges are a list, and scores, as SentencePiece has them, do not say the same"))
        }
    }
}

/// Whether a space is put before a text; `None` if text is changed before the merges in other ways than replacing
/// spaces.
fn space_prefix(file: &Value) -> Option<bool> {
    let is_space = |value: &Value| value.as_str().is_some_and(|text| text.chars().eq([SPACE]));
    let normalizers = match &file["normalizer"] {
        Value::Null => &[],
        normalizer if normalizer["type"] == "Sequence" => normalizer["normalizers"].as_array()?.as_slice(),
        normalizer => std::slice::from_ref(normalizer),
    };
    let replaces = |it: &Value| it["type"] == "Replace" && it["pattern"]["String"] == " " && is_space(&it["content"]);
    let prepends = |it: &Value| it["type"] == "Prepend" && is_space(&it["prepend"]);
    let pre_tokenizer = &file["pre_tokenizer"];
    match normalizers {
        [] => {
            let is_whole = pre_tokenizer["type"] == "Metaspace"
                && is_space(&pre_tokenizer["replacement"])
                && pre_tokenizer["split"] == false;
            is_whole.then(|| pre_tokenizer["prepend_scheme"] != "never")
        }
        [replace] => (replaces(replace) && pre_tokenizer.is_null()).then_some(false),
        [prepend, replace] => (prepends(prepend) && replaces(replace) && pre_tokenizer.is_null()).then_some(true),
        _ => None,
    }
}

/// Whether a token is a byte, such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

fn inexpressible(reason: &str) -> InteropError {
    InteropError::NoGguf { reason: format!("llama.cpp has no such tokenizer: {reason}") }
}
