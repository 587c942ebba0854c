//! `/tokenize` and `/detokenize`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, parse};
use super::http::to_json;
use super::loaded_model::LoadedModel;
use super::prompt::{check_text, tokens};

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
pub(super) struct Tokenized {
    tokens: TokenList,
    pieces: Vec<String>,
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum TokenList {
    Ids(Vec<u32>),
    WithPieces(Vec<TokenWithPiece>),
}

#[derive(Serialize, JsonSchema)]
struct TokenWithPiece {
    id: u32,
    piece: String,
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
    let ids = if add_special { tokenizer.encode_prompt(content) } else { tokenizer.encode(&content) };
    let ids = ids.map_err(|error| ApiError::field("content", error.to_string()))?;
    let pieces: Vec<String> = ids.iter().map(|id| tokenizer.piece(*id)).collect();
    let count = ids.len();
    let with_piece = |(id, piece): (u32, &String)| TokenWithPiece { id, piece: piece.clone() };
    let tokens = match with_pieces {
        true => TokenList::WithPieces(ids.into_iter().zip(&pieces).map(with_piece).collect()),
        false => TokenList::Ids(ids),
    };
    Ok(to_json(&Tokenized { tokens, pieces, count, max_model_len: model.context_length() }))
}

/// The response of `/detokenize`, as JSON.
pub(super) fn detokenize(fields: Fields, model: &LoadedModel) -> Result<String, ApiError> {
    let DetokenizeRequest { tokens: list } = parse(fields, &[])?;
    let content = model.tokenizer.decode(&tokens("tokens", &list, &model.tokenizer)?);
    Ok(to_json(&Detokenized { content }))
}
