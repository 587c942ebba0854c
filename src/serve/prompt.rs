//! Prompts in requests: texts or token ids, checked against the context of the model, or messages for its chat template.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ApiError, echoed};
use super::fields::{only, parse, wrong};
use super::limits::{MAX_SEQUENCES, MAX_TEXT, MAX_TOKENS};
use super::loaded_model::LoadedModel;
use crate::tokenizer::messages;
use crate::tokenizer::{Message, Tokenizer};

#[derive(Clone, Debug)]
pub(super) struct EncodedPrompt {
    pub(super) tokens: Arc<[u32]>,
    /// Without a BOS token added by the tokenizer.
    pub(super) text: Arc<str>,
}

impl EncodedPrompt {
    /// A prompt that is not empty and fits the context. The tokens are those of the field `name`.
    fn new(name: &str, tokens: Vec<u32>, text: String, model: &LoadedModel) -> Result<Self, ApiError> {
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

    /// The prompt of a rendered conversation.
    pub(super) fn rendered(name: &str, text: String, model: &LoadedModel) -> Result<Self, ApiError> {
        let tokens = model.tokenizer.encode(&text).map_err(|error| ApiError::field(name, error.to_string()))?;
        Self::new(name, tokens, text, model)
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

/// The field `messages` of a chat.
pub(super) fn messages(json: &Value) -> Result<Vec<Message>, ApiError> {
    let list = json.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", "`messages` must be a list of at least one message"));
    list?.iter().map(message).collect()
}

/// The fields `instructions` and `input` of `/v1/responses`.
pub(super) fn input_messages(input: &Value, instructions: Option<&str>) -> Result<Vec<Message>, ApiError> {
    let system = instructions.map(|text| Message::new("system", text));
    let input: Vec<Message> = match input {
        Value::String(text) => vec![Message::new("user", &**text)],
        Value::Array(items) if !items.is_empty() => items.iter().map(input_message).collect::<Result<_, _>>()?,
        _ => return Err(ApiError::field("input", INPUT)),
    };
    Ok(system.into_iter().chain(input).collect())
}

const INPUT: &str = "`input` must be a text or a list of messages with `role` and `content`, whose parts are texts";

/// A message in the input of `/v1/responses`, perhaps one of an earlier response.
#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
struct InputItem {
    role: String,
    #[schemars(extend("anyOf" = [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]))]
    content: Value,
    #[serde(default)]
    #[schemars(extend("type" = "string", "enum" = ["message"]))]
    r#type: Value,
    id: Option<String>,
    status: Option<String>,
}

/// A part of the content of a message.
#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
struct TextPart {
    r#type: String,
    text: String,
    #[serde(default)]
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    annotations: Value,
    #[serde(default)]
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    logprobs: Value,
    /// Ignored: what prompts have in common is found without it.
    #[serde(default)]
    #[schemars(extend("type" = "object"))]
    prompt_cache_breakpoint: Value,
}

fn input_message(item: &Value) -> Result<Message, ApiError> {
    let InputItem { role, content: sent, .. } = object("input", item, INPUT)?;
    let role = if role == "developer" { "system".to_owned() } else { role }; // templates know its older name
    Ok(Message::new(role, content("input", &sent, &["input_text", "output_text", "text"], INPUT)?))
}

/// An object in the field `name`.
fn object<T: DeserializeOwned + JsonSchema + 'static>(name: &str, json: &Value, rule: &str) -> Result<T, ApiError> {
    let Value::Object(fields) = json else { return Err(ApiError::field(name, rule)) };
    parse(fields.clone(), &[]).map_err(|error| error.param(name))
}

/// A string in the field `name`, or the parts of a list joined, each of one of these types.
fn content(name: &str, json: &Value, types: &[&str], rule: &str) -> Result<String, ApiError> {
    let text = |part: &Value| match object(name, part, rule)? {
        TextPart { r#type, text, .. } if types.contains(&&*r#type) => Ok(text),
        _ => Err(ApiError::field(name, rule)),
    };
    match json {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(text).collect(),
        _ => Err(ApiError::field(name, rule)),
    }
}

/// A message in a request.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Message")]
#[allow(dead_code, reason = "some fields have only values that change nothing")]
pub(super) struct MessageFields {
    /// A role that the model's template supports, such as user.
    role: String,
    #[serde(default)]
    #[schemars(extend("anyOf" = [
        {"type": "string"},
        {"type": "array", "items": {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
        }},
    ]))]
    content: Value,
    name: Option<String>,
    /// What an assistant thought before it answered, for the model's template.
    reasoning_content: Option<String>,
    /// The calls that an assistant made.
    #[serde(default)]
    #[schemars(extend("type" = "array"))]
    tool_calls: Value,
    /// The call whose result a tool's message has.
    tool_call_id: Option<String>,
    /// Not supported.
    #[serde(default)]
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    annotations: Value,
}

const CONTENT: &str = "a message of `messages` must have a `content`: a string, or a list of parts of the type `text`";

fn message(json: &Value) -> Result<Message, ApiError> {
    let wrong = |rule: &str| ApiError::field("messages", format!("a message of `messages` must be {rule}"));
    let fields = object("messages", json, "a message of `messages` must be an object")?;
    let MessageFields { role, content: sent, name, reasoning_content, tool_calls, tool_call_id, .. } = fields;
    let tool_calls = match tool_calls {
        Value::Null => None,
        Value::Array(calls) if role == "assistant" => {
            for call in &calls {
                only("messages", call, &["id", "index", "type", "function"])?;
                only("messages", &call["function"], &["name", "arguments"])?;
            }
            let calls: Result<Vec<Value>, String> = calls.into_iter().map(messages::call).collect();
            Some(calls.map_err(|_| wrong("one whose `tool_calls` have a `function` with `name` and `arguments`"))?)
                .filter(|calls| !calls.is_empty())
        }
        _ => return Err(wrong("an assistant's, if it has `tool_calls`")),
    };
    // OpenAI's clients send null where an assistant only called tools or said nothing.
    let has_content = tool_calls.is_some() || json.get("content").is_some();
    let content = match &sent {
        Value::Null if role == "assistant" && has_content => String::new(),
        _ => content("messages", &sent, &["text"], CONTENT)?,
    };
    Ok(Message { role, content, name, reasoning_content, tool_calls, tool_call_id })
}
