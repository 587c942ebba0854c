//! The endpoints of llama.cpp's server: `/tokenize` and `/detokenize`; `/props` and `/slots`, which describe a model.

use axum::http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, parse};
use super::http::{Lazy, to_json, to_large_json};
use super::limits::PER_BYTE;
use super::loaded_model::LoadedModel;
use super::prompt::{check_text, tokens};
use crate::tokenizer::bytes_of_token;

#[derive(Deserialize, JsonSchema)]
pub(super) struct TokenizeRequest {
    content: String,
    /// Add the token that the model expects before a text.
    #[serde(default)]
    add_special: bool,
    /// List each token with its text, as llama.cpp's server does.
    #[serde(default)]
    with_pieces: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Tokenized<T, P> {
    /// Ids, or each with its piece.
    #[schemars(with = "Vec<Value>")]
    tokens: T,
    #[schemars(with = "Vec<String>")]
    pieces: P,
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize)]
struct TokenWithPiece {
    id: u32,
    piece: Piece,
}

/// What a token adds to the text.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    /// Bytes that are not text by themselves.
    Bytes(Vec<u8>),
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct DetokenizeRequest {
    #[schemars(extend("items" = {"type": "integer", "minimum": 0}))]
    tokens: Vec<Value>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Detokenized {
    content: String,
}

/// The response of `/tokenize`, as JSON.
pub(super) fn tokenize(fields: Fields, model: &LoadedModel) -> Result<String, ApiError> {
    let TokenizeRequest { content, add_special, with_pieces } = parse(fields, &[])?;
    check_text("content", &content)?;
    let tokenizer = &model.tokenizer;
    let n_bytes = PER_BYTE * content.len();
    let ids = if add_special { tokenizer.encode_prompt(content) } else { tokenizer.encode(&content) };
    let ids = ids.map_err(|error| ApiError::field("content", error.to_string()))?;
    let pieces = Lazy::new(ids.iter().map(|id| tokenizer.piece(*id)));
    let (count, max_model_len) = (ids.len(), model.context_length());
    if !with_pieces {
        return Ok(to_large_json(&Tokenized { tokens: &ids, pieces, count, max_model_len }, n_bytes));
    }
    let before = std::iter::once(None).chain(ids.iter().copied().map(Some));
    let tokens = Lazy::new(before.zip(&ids).map(|(before, id)| {
        let bytes = bytes_of_token(tokenizer, before, *id);
        let piece = String::from_utf8(bytes).map_or_else(|error| Piece::Bytes(error.into_bytes()), Piece::Text);
        TokenWithPiece { id: *id, piece }
    }));
    Ok(to_large_json(&Tokenized { tokens, pieces, count, max_model_len }, n_bytes))
}

/// The response of `/detokenize`, as JSON.
pub(super) fn detokenize(fields: Fields, model: &LoadedModel) -> Result<String, ApiError> {
    let DetokenizeRequest { tokens: list } = parse(fields, &[])?;
    let content = model.tokenizer.decode(&tokens("tokens", &list, &model.tokenizer)?);
    Ok(to_json(&Detokenized { content }))
}

pub(super) fn props(model: &LoadedModel) -> Value {
    let piece = |id: Option<u32>| id.map(|id| model.tokenizer.piece(id)).unwrap_or_default();
    json!({
        "default_generation_settings": {
            "n_ctx": model.context_length(),
            "params": {
                "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": -1, "n_predict": -1, "stop": [],
            },
        },
        "total_slots": model.slots.n,
        "model_alias": model.name,
        "model_path": model.name, // paths stay private
        "modalities": {"vision": false, "audio": false},
        "chat_template": model.tokenizer.chat_template().unwrap_or_default(),
        "bos_token": piece(model.tokenizer.bos_token()),
        "eos_token": piece(model.tokenizer.end_of_text()),
        "build_info": concat!("tinderbox ", env!("CARGO_PKG_VERSION")),
    })
}

/// The slots of a model. The first ones count as busy, since only their number is known.
pub(super) fn slots(model: &LoadedModel) -> Value {
    let n_busy = model.queue.n_busy();
    let speculative = model.slots.speculate > 0;
    let slot = |id: usize| json!({"id": id, "n_ctx": model.context_length(), "speculative": speculative, "is_processing": id < n_busy});
    (0..model.slots.n).map(slot).collect()
}

/// The model that a query names, as in `/props?model=NAME`.
pub(super) fn model_of(uri: &Uri) -> Option<String> {
    let mut fields = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    fields.find(|(name, _)| name == "model").map(|(_, value)| value.into_owned())
}
