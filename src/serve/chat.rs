//! The messages of a chat request, and the prompt that the model's chat template makes of them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::limits::MAX_CHATS;
use super::renderer::{Conversation, RenderError, Renderer};
use crate::tokenizer::Message;

/// The prompt for a conversation with the model `name`.
pub(super) fn prompt(
    renderer: &Renderer,
    messages: Option<&Json>,
    variables: Option<Json>,
    name: &str,
) -> Result<String, ApiError> {
    let variables = match variables {
        None => Map::new(),
        Some(Json::Object(variables)) => variables,
        Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
    };
    renderer.render(&Conversation { messages: self::messages(messages)?, variables }).map_err(|error| match error {
        RenderError::NoTemplate => {
            ApiError::field("model", format!("`{name}` has no chat template; use /v1/completions"))
        }
        RenderError::Unusable(why) => {
            ApiError::bad_request(format!("the chat template of `{name}` cannot be used: {why}"))
        }
        RenderError::Refused(why) => {
            ApiError::field("messages", format!("the chat template of `{name}` does not take these: {why}"))
        }
        RenderError::Busy => ApiError::busy(&format!("{MAX_CHATS} conversations wait for the template of `{name}`")),
    })
}

fn messages(json: Option<&Json>) -> Result<Vec<Message>, ApiError> {
    let rule = "`messages` must be a list of objects with `role` and `content`, at least one";
    let list = json.and_then(Json::as_array).filter(|list| !list.is_empty());
    list.ok_or_else(|| ApiError::field("messages", rule))?.iter().map(message).collect()
}

/// A message as it is sent.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Message", extend("required" = ["role", "content"]))]
pub(super) struct MessageFields {
    /// One that the model's template knows, such as user.
    role: Option<String>,
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
}

fn message(json: &Json) -> Result<Message, ApiError> {
    let wrong = |rule: &str| ApiError::field("messages", format!("a message of `messages` must be {rule}"));
    let Json::Object(fields) = json else { return Err(wrong("an object")) };
    let MessageFields { role, content, name } = Fields::from_object(fields.clone()).parse(&[])?;
    let role = role.ok_or_else(|| wrong("an object with a `role`"))?;
    let content = match content {
        Json::String(text) => text,
        Json::Array(parts) => {
            let text =
                |part: &Json| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned)).flatten();
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.ok_or_else(|| wrong("text: its `content` may have parts of the type `text` only"))?.concat()
        }
        _ => return Err(wrong("an object with a `content`, a string or a list of texts")),
    };
    Ok(Message { role, content, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_checked() {
        let parts = serde_json::json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        let joined = Message { role: "user".to_owned(), content: "ab".to_owned(), name: None };
        assert_eq!(messages(Some(&parts)).map_err(|error| error.body()), Ok(vec![joined]));
        for wrong in [
            serde_json::json!([]),
            serde_json::json!("hi"),
            serde_json::json!(["hi"]),
            serde_json::json!([{"content": "a"}]),
            serde_json::json!([{"role": "user"}]),
            serde_json::json!([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
            serde_json::json!([{"role": "user", "content": "a", "tool_calls": []}]),
        ] {
            messages(Some(&wrong)).expect_err(&wrong.to_string());
        }
    }
}
