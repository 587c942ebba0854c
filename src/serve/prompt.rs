//! Prompts in requests: texts or token ids, checked against the context of the model.

use std::sync::Arc;

use serde_json::Value;

use super::error::{ApiError, echoed};
use super::fields::wrong;
use super::limits::{MAX_SEQUENCES, MAX_TEXT, MAX_TOKENS};
use super::loaded_model::LoadedModel;
use crate::tokenizer::Tokenizer;

#[derive(Clone, Debug)]
pub(super) struct EncodedPrompt {
    pub(super) tokens: Arc<[u32]>,
    /// Without a BOS token added by the tokenizer.
    pub(super) text: Arc<str>,
}

impl EncodedPrompt {
    /// A prompt that is not empty and fits the context. The tokens are those of the field `name`.
    pub(super) fn new(name: &str, tokens: Vec<u32>, text: String, model: &LoadedModel) -> Result<Self, ApiError> {
        let most = model.context_length();
        match tokens.len() {
            0 => Err(ApiError::field(name, format!("`{name}` is empty: it must have at least one token"))),
            n if n > most => {
                let message = format!("`{name}` has {n} tokens, and the context of `{}` holds {most}", model.name);
                Err(ApiError::too_long(name, message))
            }
            _ => Ok(Self { tokens: tokens.into(), text: text.into() }),
        }
    }

    /// The number of tokens that can be generated after it within the context; at least 1.
    pub(super) fn room(&self, model: &LoadedModel) -> usize {
        (model.context_length() - self.tokens.len() + 1).min(MAX_TOKENS)
    }
}

/// The prompts in a field: a string, a list of token ids, or a list of either.
pub(super) fn prompts(name: &str, value: &Value, model: &LoadedModel) -> Result<Vec<EncodedPrompt>, ApiError> {
    let rule = "a string, a list of strings, a list of token ids, or a list of such lists";
    match value {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => {
            if list.len() > MAX_SEQUENCES {
                let message = format!("`{name}` has {} texts; a request may have {MAX_SEQUENCES}", list.len());
                return Err(ApiError::field(name, message));
            }
            list.iter().map(|value| prompt(name, value, model, rule)).collect()
        }
        value => Ok(vec![prompt(name, value, model, rule)?]),
    }
}

/// The prompt in a field: a string or a list of token ids.
pub(super) fn prompt(name: &str, value: &Value, model: &LoadedModel, rule: &str) -> Result<EncodedPrompt, ApiError> {
    let tokenizer = &model.tokenizer;
    let (tokens, text) = match value {
        Value::String(text) => {
            check_text(name, text)?;
            let tokens = tokenizer.encode_prompt(text);
            (tokens.map_err(|error| ApiError::field(name, error.to_string()))?, text.clone())
        }
        Value::Array(list) => {
            let tokens = tokens(name, list, tokenizer)?;
            let text = tokenizer.decode(&tokens);
            (tokens, text)
        }
        other => return Err(wrong(name, other, rule)),
    };
    EncodedPrompt::new(name, tokens, text, model)
}

pub(super) fn tokens(name: &str, list: &[Value], tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
    let n_ids = tokenizer.vocab_size();
    let token = |value: &Value| {
        let token = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < n_ids);
        token.ok_or_else(|| {
            let value = echoed(&value.to_string());
            ApiError::field(name, format!("`{name}` has the token {value}; tokens are whole numbers below {n_ids}"))
        })
    };
    list.iter().map(token).collect()
}

/// Rejects a text that is too long to be split into tokens.
pub(super) fn check_text(name: &str, text: &str) -> Result<(), ApiError> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    let message = format!("`{name}` has a text of {} bytes; a text may have {MAX_TEXT}", text.len());
    Err(ApiError::field(name, message))
}
