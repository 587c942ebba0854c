//! The form of `/v1/responses`, OpenAI's newer form of a conversation, as far as it is text. Nothing is stored.

use std::fmt::Write;

use serde_json::{Value, json};

use super::completion::Completion;
use super::error::ApiError;
use super::request::GenerateRequest;
use crate::generate::End;

/// A response; `completion` is `None` until it is finished.
fn response(request: &GenerateRequest, text: &str, completion: Option<&Completion>) -> Value {
    let mut response = request.repeated.clone();
    let (status, details) = match completion {
        None => ("in_progress", Value::Null),
        Some(Completion { end: Some(End::Length), .. }) => ("incomplete", json!({"reason": "max_output_tokens"})),
        Some(_) => ("completed", Value::Null),
    };
    let rest = json!({
        "id": request.id,
        "object": "response",
        "created_at": request.created_unix_s,
        "model": request.model,
        "status": status,
        "incomplete_details": details,
        "error": null,
        "output": completion.map(|_| vec![item(request, status, vec![part(text)])]).unwrap_or_default(),
        "temperature": request.settings.config.temperature,
        "top_p": request.settings.config.top_p,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "store": false,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": completion.map(|completion| usage(request, completion)),
    });
    extend(&mut response, rest);
    response
}

fn usage(request: &GenerateRequest, completion: &Completion) -> Value {
    let (n_read, n_generated) = (request.prompt(0).tokens.len(), completion.n_generated);
    json!({
        "input_tokens": n_read,
        "input_tokens_details": {"cached_tokens": completion.n_cached},
        "output_tokens": n_generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": n_read + n_generated,
    })
}

fn item_id(request: &GenerateRequest) -> String {
    request.id.replacen("resp", "msg", 1)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn item(request: &GenerateRequest, status: &str, content: Vec<Value>) -> Value {
    json!({"id": item_id(request), "type": "message", "role": "assistant", "status": status, "content": content})
}

fn extend(object: &mut Value, fields: Value) {
    let (Value::Object(object), Value::Object(fields)) = (object, fields) else { unreachable!("both are objects") };
    object.extend(fields);
}

pub(super) fn whole(request: &GenerateRequest, text: &str, completion: &Completion) -> String {
    response(request, text, Some(completion)).to_string()
}

/// The events of a streamed response.
#[derive(Debug, Default)]
pub(super) struct ResponseEvents {
    n_events: usize,
    text: String,
}

impl ResponseEvents {
    fn write(&mut self, kind: &str, fields: Value, out: &mut String) {
        let mut event = json!({"type": kind, "sequence_number": self.n_events});
        extend(&mut event, fields);
        self.n_events += 1;
        write!(out, "event: {kind}\ndata: {event}\n\n").expect("a string takes any text");
    }

    /// Writes an event of the text.
    fn write_text(&mut self, kind: &str, request: &GenerateRequest, mut fields: Value, out: &mut String) {
        extend(&mut fields, json!({"item_id": item_id(request), "output_index": 0, "content_index": 0}));
        self.write(kind, fields, out);
    }

    /// Writes the events before the text.
    pub(super) fn begin(&mut self, request: &GenerateRequest, out: &mut String) {
        let begun = json!({"response": response(request, "", None)});
        self.write("response.created", begun.clone(), out);
        self.write("response.in_progress", begun, out);
        let item = json!({"output_index": 0, "item": item(request, "in_progress", Vec::new())});
        self.write("response.output_item.added", item, out);
        self.write_text("response.content_part.added", request, json!({"part": part("")}), out);
    }

    /// Writes the event of the next part of the text.
    pub(super) fn delta(&mut self, request: &GenerateRequest, text: &str, out: &mut String) {
        self.text.push_str(text);
        self.write_text("response.output_text.delta", request, json!({"delta": text, "logprobs": []}), out);
    }

    /// Writes the events after the text.
    pub(super) fn end(&mut self, request: &GenerateRequest, completion: &Completion, out: &mut String) {
        let text = std::mem::take(&mut self.text);
        self.write_text("response.output_text.done", request, json!({"text": text, "logprobs": []}), out);
        self.write_text("response.content_part.done", request, json!({"part": part(&text)}), out);
        let response = response(request, &text, Some(completion));
        self.write("response.output_item.done", json!({"output_index": 0, "item": response["output"][0]}), out);
        let kind = if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        self.write(kind, json!({"response": response}), out);
    }

    /// Writes the last event, an error.
    pub(super) fn fail(&mut self, error: &ApiError, out: &mut String) {
        let fields = json!({"code": error.code, "message": error.message, "param": error.param});
        self.write("error", fields, out);
    }
}
