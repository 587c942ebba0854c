//! Tool calls: the tools that a request offers, and the calls in completions, in the format of Qwen's models:
//! `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ApiError;
use super::fields::{only, wrong};
use super::format;
use super::http::random;
use super::loaded_model::LoadedModel;
use super::scheduler::Guided;
use crate::generate::{CallSchema, Grammar};

const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// The tools that the model may call.
pub(super) struct Tools {
    /// As they were sent, for the template.
    pub(super) list: Vec<Value>,
    /// One of these tools must be called; empty if no call is required.
    required: Vec<String>,
}

impl Tools {
    /// The tools in `tools`, as restricted by `tool_choice`; `None` if the model may call none.
    pub(super) fn read(list: &[Value], choice: &Value, model: &LoadedModel) -> Result<Option<Self>, ApiError> {
        only("tool_choice", choice, &["type", "function"])?;
        only("tool_choice", &choice["function"], &["name"])?;
        let names: Vec<String> = list.iter().map(|tool| name(tool).map(str::to_owned)).collect::<Result<_, _>>()?;
        let chosen = if choice.is_null() { Some("auto") } else { choice.as_str() };
        let required = match (chosen, choice["function"]["name"].as_str()) {
            (Some("none"), _) => return Ok(None),
            (Some("auto"), _) if list.is_empty() => return Ok(None),
            (Some("auto"), _) => Vec::new(),
            (Some("required"), _) if !list.is_empty() => names,
            (None, Some(name)) if names.iter().any(|known| known == name) => vec![name.to_owned()],
            _ => {
                let rule = "none, auto, required, or an object that names a function of `tools`";
                return Err(wrong("tool_choice", choice, rule));
            }
        };
        if !model.tokenizer.tool_template().is_some_and(|template| template.contains(OPEN)) {
            let message =
                format!("the chat template of `{}` has no tools that are called as `{OPEN}{{...}}{CLOSE}`", model.name);
            return Err(ApiError::field("tools", message));
        }
        Ok(Some(Self { list: list.to_vec(), required }))
    }

    /// The guide of a completion that must be a call; `None` if it need not be.
    pub(super) fn guide(&self, model: &LoadedModel) -> Result<Option<Guided>, ApiError> {
        if self.required.is_empty() {
            return Ok(None);
        }
        let calls = self.list.iter().filter_map(|tool| {
            let name = name(tool).ok().filter(|name| self.required.iter().any(|required| required == name))?;
            Some(CallSchema {
                before: format!("{OPEN}\n{{\"name\": {}, \"arguments\": ", Value::from(name)),
                arguments: Some(&tool["function"]["parameters"]).filter(|schema| !schema.is_null()),
                after: format!("}}\n{CLOSE}"),
            })
        });
        let calls: Vec<CallSchema<'_>> = calls.collect();
        let grammar = Grammar::of_calls(&calls).map_err(|error| format::refused("tools", &error))?;
        format::guide_by("tools", grammar, model).map(Some)
    }
}

fn name(tool: &Value) -> Result<&str, ApiError> {
    let name = tool["function"]["name"].as_str().filter(|name| tool["type"] == "function" && !name.is_empty());
    let rule = "`tools` must be functions: {\"type\": \"function\", \"function\": {\"name\": ...}}";
    name.ok_or_else(|| ApiError::field("tools", rule))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON.
    pub(super) arguments: String,
}

/// A call as the model generated it.
#[derive(Deserialize)]
struct GeneratedCall<'a> {
    name: String,
    /// An object, or a string with one; digits of large numbers stay as they are.
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Extracts tool calls from a completion as it is generated.
#[derive(Clone, Debug, Default)]
pub(super) struct CallReader {
    /// Text that may become part of a call, or white space before one.
    held: String,
    is_inside: bool,
    pub(super) n_calls: usize,
}

impl CallReader {
    /// Reads the next part; returns its text and adds its calls to `calls`.
    pub(super) fn push(&mut self, text: &str, calls: &mut Vec<Call>) -> String {
        self.held.push_str(text);
        let mut shown = String::new();
        loop {
            let mark = if self.is_inside { CLOSE } else { OPEN };
            let Some(at) = self.held.find(mark) else { break };
            let rest = self.held.split_off(at + mark.len());
            self.held.truncate(at);
            let before = std::mem::replace(&mut self.held, rest);
            if !self.is_inside {
                shown.push_str(before.trim_end());
            } else if !self.call(&before, calls) {
                shown.extend([OPEN, &before, CLOSE]);
            }
            self.is_inside = !self.is_inside;
        }
        if !self.is_inside {
            let n_mark = (1..OPEN.len()).rev().find(|n| self.held.ends_with(&OPEN[..*n])).unwrap_or(0);
            let n_shown = self.held[..self.held.len() - n_mark].trim_end().len();
            let held = self.held.split_off(n_shown);
            shown += &std::mem::replace(&mut self.held, held);
        }
        shown
    }

    /// Returns the rest of the text at the end, where a call need not be closed.
    pub(super) fn finish(&mut self, calls: &mut Vec<Call>) -> String {
        let held = std::mem::take(&mut self.held);
        if self.is_inside {
            return if self.call(&held, calls) { String::new() } else { OPEN.to_owned() + &held };
        }
        if self.n_calls > 0 && held.trim().is_empty() { String::new() } else { held }
    }

    /// Adds the call between the marks; false if the text is not a call.
    fn call(&mut self, text: &str, calls: &mut Vec<Call>) -> bool {
        let Ok(GeneratedCall { name, arguments }) = serde_json::from_str(text.trim()) else { return false };
        let arguments = match arguments.map(RawValue::get) {
            None => "{}".to_owned(),
            Some(text) => serde_json::from_str(text).unwrap_or_else(|_| text.to_owned()),
        };
        self.n_calls += 1;
        calls.push(Call { id: format!("call_{:016x}", random()), name, arguments });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text and the calls in these parts of a completion.
    fn read(parts: &[&str]) -> (String, Vec<(String, String)>) {
        let (mut reader, mut calls) = (CallReader::default(), Vec::new());
        let mut text: String = parts.iter().map(|part| reader.push(part, &mut calls)).collect();
        text += &reader.finish(&mut calls);
        (text, calls.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn calls_are_extracted_wherever_parts_are_cut() {
        let text = "I look.\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"b\": 12345678901234567890123, \"a\": \"é\"}}\n\
                    </tool_call>\n<tool_call>{\"name\": \"stop\"}</tool_call>\n";
        let calls = [("look", r#"{"b": 12345678901234567890123, "a": "é"}"#), ("stop", "{}")];
        let expected =
            ("I look.".to_owned(), calls.map(|(name, arguments)| (name.to_owned(), arguments.to_owned())).to_vec());
        assert_eq!(read(&[text]), expected);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(read(&characters.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn invalid_calls_are_text() {
        for text in
            ["a <b> c", "a <tool_", "<tool_call>{\"name\": </tool_call>", "<tool_call>{}</tool_call> x", "a \n "]
        {
            assert_eq!(read(&[text]), (text.to_owned(), Vec::new()));
        }
        let call = ("f".to_owned(), "{\"x\":1}".to_owned());
        assert_eq!(read(&["<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}"]), (String::new(), vec![call]));
    }
}
