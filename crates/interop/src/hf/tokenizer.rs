//! The tokenizer of a folder: its `tokenizer.json`, or one made from older files, with the settings from
//! `tokenizer_config.json` and related files.

use serde_json::{Map, Value, json};

use super::folder::{Folder, object};
use super::pretty;
use super::sentencepiece::{self, Converted};
use crate::{InteropError, TokenizerFiles};

/// Keys of `tokenizer_config.json` that name special tokens.
const SPECIAL: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

pub(super) fn read(folder: &Folder, model: &Map<String, Value>) -> Result<TokenizerFiles, InteropError> {
    let mut config = folder.json("tokenizer_config.json")?.unwrap_or_default();
    if let Some(template) = chat_template(folder)? {
        config.insert("chat_template".to_owned(), template);
    }
    let special = folder.json("special_tokens_map.json")?.unwrap_or_default();
    for key in SPECIAL {
        fill(&mut config, key, special.get(key).cloned());
    }
    let Converted { json, config: defaults } = tokenizer_json(folder, &config)?;
    fill(&mut config, "eos_token", model.get("eos_token_id").and_then(|id| token_of(&json, id)));
    for (key, value) in defaults {
        fill(&mut config, key, Some(value));
    }
    let config = (!config.is_empty()).then(|| pretty(&Value::Object(config)));
    Ok(TokenizerFiles { json, config })
}

/// The chat template that is a file of its own, or with those for tools and for documents a list of all by name.
fn chat_template(folder: &Folder) -> Result<Option<Value>, InteropError> {
    let Some(default) = folder.text("chat_template.jinja")? else { return Ok(None) };
    let mut all = vec![json!({"name": "default", "template": default})];
    for name in ["tool_use", "rag"] {
        let template = folder.text(&format!("additional_chat_templates/{name}.jinja"))?;
        all.extend(template.map(|template| json!({"name": name, "template": template})));
    }
    Ok(Some(if all.len() == 1 { default.into() } else { all.into() }))
}

/// The `tokenizer.json` of a folder with this `tokenizer_config.json`, or older files converted to it.
fn tokenizer_json(folder: &Folder, config: &Map<String, Value>) -> Result<Converted, InteropError> {
    let complete = |json| Converted { json, config: Vec::new() };
    match (folder.text("tokenizer.json")?, folder.text("vocab.json")?, folder.text("merges.txt")?) {
        (Some(json), ..) => Ok(complete(json)),
        (None, Some(vocab), Some(merges)) => from_vocab_and_merges(folder, &vocab, &merges).map(complete),
        _ => sentencepiece::read(folder, config)?.ok_or_else(|| InteropError::NotAModel {
            path: folder.path().to_owned(),
            reason: "it has no tokenizer.json, tokenizer.model, or vocab.json with merges.txt".to_owned(),
            hint: super::conversion(&folder.path().display().to_string()),
        }),
    }
}

/// Sets a key that is missing or null.
fn fill(config: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let (None | Some(Value::Null), Some(value)) = (config.get(key), value) {
        config.insert(key.to_owned(), value);
    }
}

/// The token with an id, or with the first of several ids.
fn token_of(tokenizer: &str, id: &Value) -> Option<Value> {
    let id = id.as_array().map_or(Some(id), |ids| ids.first())?;
    let tokenizer: Value = serde_json::from_str(tokenizer).ok()?;
    let added = tokenizer["added_tokens"].as_array()?;
    Some(added.iter().find(|token| token["id"] == *id)?["content"].clone())
}

/// Makes a `tokenizer.json` from GPT-2's two files, byte-level BPE.
fn from_vocab_and_merges(folder: &Folder, vocab: &str, merges: &str) -> Result<String, InteropError> {
    let vocab = object(vocab, &folder.path().join("vocab.json"))?;
    let merges: Vec<&str> = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version")).collect();
    let end_of_text = vocab.get("<|endoftext|>").map(|id| {
        json!({
            "id": id, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": true,
        })
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": Vec::from_iter(end_of_text),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges,
        },
    });
    Ok(pretty(&tokenizer))
}
