//! Converts a GGUF vocabulary to the files of the `tokenizers` library.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::pre_tokenizer::{PreTokenizer, byte_level};
use super::scores;
use super::{Model, SPACE, Token, TokenKind, Vocab};
use crate::gguf::metadata::Metadata;
use crate::{InteropError, TokenizerFiles};

impl Vocab {
    /// The `tokenizer.json`, and the `tokenizer_config.json` if it has content. `metadata` is for errors.
    pub(crate) fn to_tokenizer(&self, metadata: &Metadata) -> Result<TokenizerFiles, InteropError> {
        let mut known = HashSet::new();
        if let Some(twice) = self.tokens.iter().find(|token| !known.insert(token.text.as_str())) {
            return Err(metadata.damaged(format!("the token {:?} is in its vocabulary twice", twice.text)));
        }
        let parts = match &self.model {
            Model::Gpt2 { pre, merges } => {
                let pre_tokenizer = PreTokenizer::of_name(pre)
                    .ok_or_else(|| metadata.unsupported(super::PRE, &format!("{pre:?}"), &PreTokenizer::names()))?;
                let is_table = self.tokens.first().is_some_and(|token| token.kind == TokenKind::Normal);
                gpt2(pre_tokenizer, merges, &known, is_table).map_err(|reason| metadata.damaged(reason))?
            }
            Model::Llama { add_space_prefix: false, .. } if self.is_characters() => characters(),
            Model::Llama { scores, add_space_prefix } => self.llama(scores, *add_space_prefix),
        };
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added_tokens(),
            "normalizer": parts.normalizer, "pre_tokenizer": parts.pre_tokenizer, "post_processor": null,
            "decoder": parts.decoder, "model": Value::Object(self.bpe(parts.model)),
        });
        // Through the library, which writes every setting, in its own order.
        let library = tokenizers::Tokenizer::from_bytes(file.to_string());
        let library = library.map_err(|error| metadata.damaged(format!("its vocabulary: {error}")))?;
        let json = library.to_string(true).map_err(|error| metadata.damaged(error.to_string()))?;
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

    /// The added tokens, which are matched verbatim in text.
    fn added_tokens(&self) -> Vec<Value> {
        let added = (0_u32..).zip(&self.tokens).filter(|(_, token)| token.is_added()).map(|(id, token)| {
            let special = token.kind != TokenKind::UserDefined;
            json!({
                "id": id, "content": token.text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": !special, "special": special,
            })
        });
        added.collect()
    }

    /// The settings of a model, with its tokens by id.
    fn bpe(&self, settings: Map<String, Value>) -> Map<String, Value> {
        let mut model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "merges": [],
        });
        let model = model.as_object_mut().expect("just made");
        let is_spaced = matches!(&self.model, Model::Llama { .. }) && self.is_characters();
        let text = |token: &Token| match token.kind {
            TokenKind::Normal if is_spaced => token.text.replace(SPACE, " "),
            _ => token.text.clone(),
        };
        let tokens = self.tokens[..self.n_inside()].iter().enumerate();
        let tokens = tokens.filter(|(_, token)| token.kind != TokenKind::Unused);
        let vocab: BTreeMap<String, usize> = tokens.map(|(id, token)| (text(token), id)).collect();
        model.insert("vocab".to_owned(), json!(vocab));
        model.extend(settings);
        std::mem::take(model)
    }

    /// The number of tokens in the model's vocabulary. The library numbers other added tokens consecutively after
    /// it: trailing ones can be left out, if there is no gap before or among them.
    fn n_inside(&self) -> usize {
        let is_unused = |token: &Token| token.kind == TokenKind::Unused;
        let last = self.tokens.iter().rposition(|token| !token.is_added() && !is_unused(token));
        let (inside, rest) = self.tokens.split_at(last.map_or(0, |last| last + 1));
        let has_gap = inside.iter().any(is_unused) || rest.iter().skip_while(|it| it.is_added()).any(Token::is_added);
        if has_gap { self.tokens.len() } else { inside.len() }
    }

    /// The same conversion as that of Llama's tokenizer by transformers.
    fn llama(&self, scores: &[f32], add_space_prefix: bool) -> Parts {
        let normal = self.tokens.iter().zip(scores).filter(|(token, _)| token.kind == TokenKind::Normal);
        let pieces: Vec<(&str, f32)> = normal.map(|(token, score)| (token.text.as_str(), *score)).collect();
        let unknown = self.tokens.iter().find(|token| token.kind == TokenKind::Unknown);
        let has_bytes = self.tokens.iter().any(|token| token.kind == TokenKind::Byte);
        let space = SPACE.to_string();
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": space})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": space}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if add_space_prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": space}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Parts {
            normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
            pre_tokenizer: Value::Null,
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            model: settings(json!({
                "unk_token": unknown.map(|token| &token.text), "fuse_unk": true, "byte_fallback": has_bytes,
                "merges": scores::merges(&pieces),
            })),
        }
    }

    /// The `tokenizer_config.json`, without an EOS token that is plain text, set only because llama.cpp needs one.
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

impl Token {
    fn is_added(&self) -> bool {
        matches!(self.kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
    }
}

/// The parts of a `tokenizer.json` other than tokens.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Map<String, Value>,
}

fn settings(value: Value) -> Map<String, Value> {
    if let Value::Object(settings) = value { settings } else { Map::new() }
}

fn characters() -> Parts {
    Parts { normalizer: Value::Null, pre_tokenizer: Value::Null, decoder: json!({"type": "Fuse"}), model: Map::new() }
}

/// `is_table`: whether this may be a byte table, without an end-of-text token before the bytes.
fn gpt2(
    pre_tokenizer: PreTokenizer,
    merges: &[String],
    tokens: &HashSet<&str>,
    is_table: bool,
) -> Result<Parts, String> {
    let mut pairs = Vec::new();
    for merge in merges {
        // The left token may begin with a space.
        let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
        let (left, right) = space.map(|(at, _)| (&merge[..at], &merge[at + 1..])).ok_or_else(|| {
            format!("`{}` has {merge:?}, which is not two tokens with a space between", super::MERGES)
        })?;
        if !tokens.contains(left) || !tokens.contains(right) {
            continue; // a placeholder for an empty list
        }
        if !tokens.contains(format!("{left}{right}").as_str()) {
            return Err(format!("`{}` has {merge:?}, and no token is what they make", super::MERGES));
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
        model: settings(json!({"ignore_merges": pre_tokenizer.ignore_merges, "merges": pairs})),
    })
}
