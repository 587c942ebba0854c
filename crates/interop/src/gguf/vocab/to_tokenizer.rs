//! Converts a GGUF vocabulary to the files of the `tokenizers` library.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::pre_tokenizer::{PreTokenizer, byte_level};
use super::{Model, Vocab};
use crate::gguf::metadata::Metadata;
use crate::tokens::sentencepiece::{self, Normalization};
use crate::tokens::{self, Parts, SPACE, TokenKind, VocabToken};
use crate::{InteropError, TokenizerFiles};

impl Vocab {
    /// The `tokenizer.json`, and the `tokenizer_config.json` if it has content. `metadata` is for errors.
    pub(crate) fn to_tokenizer(&self, metadata: &Metadata) -> Result<TokenizerFiles, InteropError> {
        let json = match &self.model {
            Model::Gpt2 { pre, merges } => {
                let pre_tokenizer = PreTokenizer::of_name(pre)
                    .ok_or_else(|| metadata.unsupported(super::PRE, &format!("{pre:?}"), &PreTokenizer::names()))?;
                let parts = gpt2(&self.tokens, pre_tokenizer, merges);
                parts.and_then(|parts| tokens::tokenizer_json(&self.tokens, parts))
            }
            Model::Llama { add_space_prefix: false, .. } if self.is_characters() => characters(&self.tokens),
            Model::Llama { scores, add_space_prefix } => {
                let normalization = Normalization { add_space_prefix: *add_space_prefix, ..Normalization::default() };
                let parts = sentencepiece::by_scores(&self.tokens, scores, normalization);
                parts.and_then(|parts| tokens::tokenizer_json(&self.tokens, parts))
            }
        };
        let json = json.map_err(|reason| metadata.damaged(reason))?;
        Ok(TokenizerFiles { json, config: self.config() })
    }

    /// Whether each token is a character of text.
    fn is_characters(&self) -> bool {
        self.tokens.iter().all(|token| match token.kind {
            TokenKind::Normal => token.text.chars().count() == 1,
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unused => true,
            TokenKind::Byte | TokenKind::Unknown => false,
        })
    }

    /// The `tokenizer_config.json`. An EOS token that is plain text is left out: only llama.cpp needs one.
    fn config(&self) -> Option<String> {
        let special = |id: Option<u32>| Some(&self.tokens[id? as usize]).filter(|token| token.is_added());
        let (bos, eos) = (special(self.bos), special(self.eos));
        if bos.is_none() && eos.is_none() && self.chat_template.is_none() {
            return None;
        }
        let mut config = Map::new();
        for (key, token) in [("bos_token", bos), ("eos_token", eos)] {
            config.extend(token.map(|token| (key.to_owned(), json!(token.text))));
        }
        config.insert("add_bos_token".to_owned(), json!(self.add_bos && bos.is_some()));
        config.extend(self.chat_template.as_ref().map(|template| ("chat_template".to_owned(), json!(template))));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        Some(format!("{:#}\n", Value::Object(config)))
    }
}

/// The `tokenizer.json` of a vocabulary of characters.
fn characters(vocab: &[VocabToken]) -> Result<String, String> {
    let text = |token: &VocabToken| match token.kind {
        TokenKind::Normal => token.text.replace(SPACE, " "),
        _ => token.text.clone(),
    };
    let vocab: Vec<VocabToken> = vocab.iter().map(|token| VocabToken { text: text(token), kind: token.kind }).collect();
    let parts = Parts {
        normalizer: Value::Null,
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Fuse"}),
        model: tokens::bpe(&vocab, json!({})),
        matches_normalized: true,
    };
    tokens::tokenizer_json(&vocab, parts)
}

fn gpt2(vocab: &[VocabToken], pre_tokenizer: PreTokenizer, merges: &[String]) -> Result<Parts, String> {
    let known: HashSet<&str> = vocab.iter().map(|token| token.text.as_str()).collect();
    // A byte table has no end-of-text token before the bytes.
    let is_table = vocab.first().is_some_and(|token| token.kind == TokenKind::Normal);
    let mut pairs = Vec::new();
    for merge in merges {
        // The left token may begin with a space.
        let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
        let (left, right) = space.map(|(at, _)| (&merge[..at], &merge[at + 1..])).ok_or_else(|| {
            format!("`{}` has {merge:?}, which is not two tokens with a space between", super::MERGES)
        })?;
        if !known.contains(left) || !known.contains(right) {
            continue; // a placeholder for an empty list
        }
        if !known.contains(format!("{left}{right}").as_str()) {
            return Err(format!("`{}` has {merge:?}, and no token is the result", super::MERGES));
        }
        pairs.push([left, right]);
    }
    let any = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    // Bytes that are never merged need no word splitting.
    let (words, decoder) = match pairs.is_empty() && is_table {
        true => (byte_level(false), byte_level(false)),
        false => (pre_tokenizer.pre_tokenizer(), any),
    };
    Ok(Parts {
        normalizer: pre_tokenizer.normalizer(),
        pre_tokenizer: words,
        decoder,
        model: tokens::bpe(vocab, json!({"ignore_merges": pre_tokenizer.ignore_merges, "merges": pairs})),
        matches_normalized: true,
    })
}
