//! `/v1/responses`: OpenAI's newer form of a conversation, as far as it is text. Nothing is stored.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::choice::Choice;
use super::error::ApiError;
use crate::generate::End;
use crate::tokenizer::Message;

/// A request to `/v1/responses`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["input"]))]
#[allow(dead_code, reason = "some fields are read first, and some have only values that change nothing")]
pub(super) struct ResponseRequest {
    /// A text, or messages of texts.
    #[schemars(extend("anyOf" = [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]))]
    input: Value,
    /// What the system says before.
    instructions: Option<String>,
    /// The most tokens that are written; by default as many as the context holds.
    #[schemars(range(min = 1, max = super::limits::MAX_TOKENS))]
    pub(super) max_output_tokens: Option<usize>,
    /// Divides the logits; 0 always takes the likeliest token. 1 by default.
    #[schemars(range(min = 0, max = 2))]
    pub(super) temperature: Option<f64>,
    /// Only the likeliest tokens that together have this probability are drawn. 1 by default.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(super) top_p: Option<f64>,
    /// The same seed writes the same text; by default, and with -1, another one each time.
    #[schemars(range(min = -1, max = i64::MAX))]
    pub(super) seed: Option<i64>,
    /// Whether the text comes as server-sent events while it is written.
    pub(super) stream: bool,
    /// The form of the text, in its `format`.
    #[schemars(extend("type" = "object"))]
    text: Value,
    /// Changes nothing: no response is stored.
    store: Option<bool>,
    /// Changes nothing.
    user: Option<String>,
    /// Comes back with the response.
    #[schemars(extend("type" = "object"))]
    pub(super) metadata: Value,
    /// Not supported, but for an empty list.
    #[schemars(extend("type" = "array", "enum" = [[]]))]
    tools: Value,
    /// Not supported, but for those that choose no tool.
    #[schemars(extend("type" = "string", "enum" = ["none", "auto"]))]
    tool_choice: Value,
    /// Changes nothing.
    parallel_tool_calls: Option<bool>,
    /// Not supported.
    #[schemars(extend("type" = "string", "enum" = ["disabled"]))]
    truncation: Value,
    /// Not supported.
    previous_response_id: (),
}

/// The messages of a request: its instructions and its input.
pub(super) fn messages(input: Option<&Value>, instructions: Option<String>) -> Result<Vec<Message>, ApiError> {
    let system = instructions.map(|text| Message::new("system", text));
    let input: Option<Vec<Message>> = match input {
        Some(Value::String(text)) => Some(vec![Message::new("user", &**text)]),
        Some(Value::Array(items)) if !items.is_empty() => items.iter().map(message).collect(),
        _ => None,
    };
    let rule = "`input` must be a text or a list of messages with `role` and `content`, whose parts are texts";
    let input = input.ok_or_else(|| ApiError::field("input", rule))?;
    Ok(system.into_iter().chain(input).collect())
}

fn message(item: &Value) -> Option<Message> {
    let is_message = item.get("type").is_none_or(|kind| kind == "message");
    let role = item["role"].as_str().filter(|_| is_message)?;
    let role = if role == "developer" { "system" } else { role }; // its older name, which templates know
    let text = |part: &Value| {
        let is_text = ["input_text", "output_text", "text"].iter().any(|kind| part["type"] == *kind);
        part["text"].as_str().filter(|_| is_text).map(str::to_owned)
    };
    let content = match &item["content"] {
        Value::String(content) => content.clone(),
        Value::Array(parts) => parts.iter().map(text).collect::<Option<Vec<String>>>()?.concat(),
        _ => return None,
    };
    Some(Message::new(role, content))
}

/// The fields of a request that its response repeats.
pub(super) fn repeated(request: &ResponseRequest, instructions: Option<&str>) -> Value {
    let ResponseRequest { max_output_tokens, metadata, .. } = request;
    let metadata = if metadata.is_null() { json!({}) } else { metadata.clone() };
    json!({"instructions": instructions, "max_output_tokens": max_output_tokens, "metadata": metadata})
}

/// A response; `choice` is its text's, once that is finished.
fn response(answer: &Answer, text: &str, choice: Option<&Choice>) -> Value {
    let mut response = answer.request.repeated.clone();
    let is_cut = choice.is_some_and(|choice| choice.end == Some(End::Length));
    let (status, details) = match choice {
        None => ("in_progress", Value::Null),
        Some(_) if is_cut => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(_) => ("completed", Value::Null),
    };
    let config = &answer.request.config;
    let rest = json!({
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "model": answer.model.name,
        "status": status,
        "incomplete_details": details,
        "error": null,
        "output": choice.map(|_| vec![item(answer, text, status)]).unwrap_or_default(),
        "temperature": config.temperature,
        "top_p": config.top_p,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "store": false,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": choice.map(|choice| usage(answer, choice)),
    });
    let Value::Object(rest) = rest else { unreachable!("it is one") };
    response.as_object_mut().expect("of a request to /v1/responses").extend(rest);
    response
}

fn usage(answer: &Answer, choice: &Choice) -> Value {
    let (n_read, n_written) = (answer.request.prompt(0).tokens.len(), choice.n_written);
    json!({
        "input_tokens": n_read,
        "input_tokens_details": {"cached_tokens": choice.n_cached},
        "output_tokens": n_written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": n_read + n_written,
    })
}

fn item_id(answer: &Answer) -> String {
    answer.id.replacen("resp", "msg", 1)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The message of a response.
fn item(answer: &Answer, text: &str, status: &str) -> Value {
    let content = if status == "in_progress" { Vec::new() } else { vec![part(text)] };
    json!({"id": item_id(answer), "type": "message", "role": "assistant", "status": status, "content": content})
}

/// The complete response.
pub(super) fn whole(answer: &Answer, text: &str, choice: &Choice) -> String {
    response(answer, text, Some(choice)).to_string()
}

/// The events of a streamed response.
#[derive(Debug, Default)]
pub(super) struct ResponseEvents {
    n_events: usize,
    text: String,
}

impl ResponseEvents {
    /// Writes an event with these fields.
    fn write(&mut self, kind: &str, fields: Value, out: &mut String) {
        let mut event = json!({"type": kind, "sequence_number": self.n_events});
        let Value::Object(fields) = fields else { unreachable!("it is one") };
        event.as_object_mut().expect("it is one").extend(fields);
        self.n_events += 1;
        write!(out, "event: {kind}\ndata: {event}\n\n").expect("memory");
    }

    /// Writes the events before the text.
    pub(super) fn open(&mut self, answer: &Answer, out: &mut String) {
        let begun = json!({"response": response(answer, "", None)});
        self.write("response.created", begun.clone(), out);
        self.write("response.in_progress", begun, out);
        let item = json!({"output_index": 0, "item": item(answer, "", "in_progress")});
        self.write("response.output_item.added", item, out);
        self.write("response.content_part.added", at(answer, json!({"part": part("")})), out);
    }

    /// Writes the event of the next part of the text.
    pub(super) fn add(&mut self, answer: &Answer, text: &str, out: &mut String) {
        self.text.push_str(text);
        self.write("response.output_text.delta", at(answer, json!({"delta": text, "logprobs": []})), out);
    }

    /// Writes the events after the text.
    pub(super) fn close(&mut self, answer: &Answer, choice: &Choice, out: &mut String) {
        let text = std::mem::take(&mut self.text);
        self.write("response.output_text.done", at(answer, json!({"text": text, "logprobs": []})), out);
        self.write("response.content_part.done", at(answer, json!({"part": part(&text)})), out);
        let response = response(answer, &text, Some(choice));
        self.write("response.output_item.done", json!({"output_index": 0, "item": response["output"][0]}), out);
        let kind = if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        self.write(kind, json!({"response": response}), out);
    }

    /// Writes the event of an error, the last.
    pub(super) fn fail(&mut self, error: &ApiError, out: &mut String) {
        let body: Value = serde_json::from_str(&error.body()).expect("it is JSON");
        let error = &body["error"];
        let fields = json!({"code": error["code"], "message": error["message"], "param": error["param"]});
        self.write("error", fields, out);
    }
}

/// The fields of an event with the place of the text.
fn at(answer: &Answer, mut fields: Value) -> Value {
    fields["item_id"] = item_id(answer).into();
    fields["output_index"] = 0.into();
    fields["content_index"] = 0.into();
    fields
}
