//! The messages of a conversation, and the prompt that the model's chat template makes of them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::error::ApiError;
use super::fields::parse;
use super::loaded_model::LoadedModel;
use super::prompt::EncodedPrompt;
use crate::tokenizer::Message;

pub(super) fn prompt(field: &str, text: String, model: &LoadedModel) -> Result<EncodedPrompt, ApiError> {
    let tokens = model.tokenizer.encode(&text).map_err(|error| ApiError::field(field, error.to_string()))?;
    EncodedPrompt::new(field, tokens, text, model)
}

/// The field `messages` of a chat.
pub(super) fn messages(json: &Json) -> Result<Vec<Message>, ApiError> {
    let list = json.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", "`messages` must be a list of at least one message"));
    list?.iter().map(message).collect()
}

/// The fields `instructions` and `input` of `/v1/responses`.
pub(super) fn input_messages(input: &Json, instructions: Option<&str>) -> Result<Vec<Message>, ApiError> {
    let system = instructions.map(|text| Message::new("system", text));
    let input: Option<Vec<Message>> = match input {
        Json::String(text) => Some(vec![Message::new("user", &**text)]),
        Json::Array(items) if !items.is_empty() => items.iter().map(input_message).collect(),
        _ => None,
    };
    let rule = "`input` must be a text or a list of messages with `role` and `content`, whose parts are texts";
    let input = input.ok_or_else(|| ApiError::field("input", rule))?;
    Ok(system.into_iter().chain(input).collect())
}

fn input_message(item: &Json) -> Option<Message> {
    let is_message = item.get("type").is_none_or(|kind| kind == "message");
    let role = item["role"].as_str().filter(|_| is_message)?;
    let role = if role == "developer" { "system" } else { role }; // templates know its older name
    Some(Message::new(role, content(&item["content"], &["input_text", "output_text", "text"])?))
}

/// A string, or the parts of a list joined, each of one of these types.
fn content(json: &Json, types: &[&str]) -> Option<String> {
    match json {
        Json::String(text) => Some(text.clone()),
        Json::Array(parts) => parts
            .iter()
            .map(|part| part["text"].as_str().filter(|_| types.iter().any(|it| part["type"] == *it)))
            .collect(),
        _ => None,
    }
}

/// A message in a request.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Message")]
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
    content: Json,
    name: Option<String>,
    /// The calls that an assistant made.
    #[serde(default)]
    #[schemars(extend("type" = "array"))]
    tool_calls: Json,
    /// The call whose result a tool's message has.
    tool_call_id: Option<String>,
}

fn message(json: &Json) -> Result<Message, ApiError> {
    let wrong = |rule: &str| ApiError::field("messages", format!("a message of `messages` must be {rule}"));
    let Json::Object(fields) = json else { return Err(wrong("an object")) };
    let fields = parse(fields.clone(), &[]).map_err(|error| error.param("messages"))?;
    let MessageFields { role, content: sent, name, tool_calls, tool_call_id } = fields;
    let tool_calls = match tool_calls {
        Json::Null => None,
        Json::Array(calls) if role == "assistant" => {
            let calls: Option<Vec<Json>> = calls.iter().map(call).collect();
            Some(calls.ok_or_else(|| wrong("one whose `tool_calls` have a `function` with `name` and `arguments`"))?)
        }
        _ => return Err(wrong("an assistant's, if it has `tool_calls`")),
    };
    let content = match &sent {
        Json::Null if tool_calls.is_some() => String::new(),
        Json::Array(_) => content(&sent, &["text"])
            .ok_or_else(|| wrong("text: its `content` may have parts of the type `text` only"))?,
        _ => content(&sent, &[]).ok_or_else(|| wrong("an object with a `content`, a string or a list of texts"))?,
    };
    Ok(Message { role, content, name, tool_calls, tool_call_id })
}

/// A tool call as templates read it, whose arguments are an object, not JSON in a string.
fn call(sent: &Json) -> Option<Json> {
    let (name, arguments) = (sent["function"]["name"].as_str()?, sent["function"]["arguments"].as_str()?);
    let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| Json::from(arguments));
    Some(json!({"id": sent["id"], "type": "function", "function": {"name": name, "arguments": arguments}}))
}
