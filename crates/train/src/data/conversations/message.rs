//! A message of a record in the one form that chat templates read: roles and fields of OpenAI, content as a text, calls with
//! their arguments as objects, nothing that is null.

use serde_json::{Map, Value};
use tinderbox_model::tokenizer::messages::{self, of_text};

use super::fields::Fields;

pub(super) const MESSAGE: &str = r#"{"role": "user", "content": "..."}"#;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) fields: Map<String, Value>,
    /// Whether it counts if it is an answer.
    pub(super) counts: bool,
}

/// The reason why there is no message.
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) hint: String,
}

impl Problem {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: format!("a message is {MESSAGE}") }
    }
}

impl Message {
    pub(super) fn new(role: &str, content: &str) -> Self {
        let fields = [("role", role), ("content", content)].map(|(name, value)| (name.to_owned(), value.into()));
        Self { fields: fields.into_iter().collect(), counts: true }
    }

    pub(super) fn read(sent: Value, rules: &Fields<'_>) -> Result<Self, Problem> {
        let Value::Object(sent) = sent else { return Err(Problem::new("no object")) };
        let is_named = |name: &str| rules.template.is_some_and(|template| template.contains(name));
        let role = sent.get("role").or(sent.get("from")).and_then(Value::as_str).ok_or(Problem::new("no role"))?;
        let has_call = role == "function_call";
        let role = match role {
            "human" => "user",
            "gpt" | "function_call" => "assistant",
            "observation" | "function" => "tool",
            known @ ("system" | "developer" | "user" | "assistant" | "tool") => known,
            named if is_named(named) => named,
            other => return Err(Problem::new(format!("the role {other:?}, which the chat template does not name,"))),
        }
        .to_owned();
        let mut message = Self { fields: Map::new(), counts: true };
        let mut calls = Vec::new();
        for (name, value) in sent {
            let value = match &*name {
                "role" | "from" => role.clone().into(),
                "content" | "value" if !has_call => content(value)?.into(),
                "content" | "value" | "tool_calls" => {
                    calls.extend(list(of_text(value)).into_iter().map(of_text));
                    continue;
                }
                "function_call" => {
                    calls.push(value);
                    continue;
                }
                "weight" | "train" => {
                    message.counts &= counts(&name, &value, &role)? || role != "assistant";
                    continue;
                }
                "name" | "tool_call_id" | "reasoning_content" | "reasoning" | "thinking" if value.is_string() => value,
                name if is_named(&format!("'{name}'"))
                    || is_named(&format!("\"{name}\""))
                    || is_named(&format!(".{name}")) =>
                {
                    value
                }
                name if rules.is_neutral(name) => continue,
                // Clients write what they have not used.
                "refusal" | "annotations" | "audio" if value.as_array().is_some_and(Vec::is_empty) => continue,
                name => {
                    return Err(Problem {
                        what: format!("the field {name:?}, which is not used,"),
                        hint: format!("--set 'finetune.ignored_fields=[{name:?}]' leaves it out"),
                    });
                }
            };
            let name = match &*name {
                "from" => "role".to_owned(),
                "value" => "content".to_owned(),
                _ => name,
            };
            message.fields.insert(name, value);
        }
        if !calls.is_empty() {
            if role != "assistant" {
                return Err(Problem::new("calls of tools that are not an assistant's"));
            }
            let calls: Result<Vec<Value>, String> = calls.into_iter().map(messages::call).collect();
            let calls = calls.map_err(|rule| Problem::new(format!("calls of tools that must {rule}")))?;
            message.fields.entry("content").or_insert_with(|| "".into());
            message.fields.insert("tool_calls".to_owned(), calls.into());
        }
        if !message.fields.contains_key("content") {
            return Err(Problem::new("no text in \"content\""));
        }
        Ok(message)
    }
}

/// The items of a list, or one alone.
fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) => list,
        one => vec![one],
    }
}

/// A text, or the texts of its parts.
fn content(sent: Value) -> Result<String, Problem> {
    let part = |part: &Value| -> Option<String> {
        let is_text = ["text", "input_text", "output_text"].contains(&part["type"].as_str()?);
        let is_whole = part.as_object()?.keys().all(|name| name == "type" || name == "text");
        part["text"].as_str().filter(|_| is_text && is_whole).map(str::to_owned)
    };
    match sent {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts.iter().map(part).collect::<Option<_>>().ok_or_else(|| Problem {
            what: "a part that is not a text in \"content\"".to_owned(),
            hint: r#"a part is {"type": "text", "text": "..."}"#.to_owned(),
        }),
        _ => Err(Problem::new("no text in \"content\"")),
    }
}

/// Whether a message counts by its `weight` (0 or 1) or by `train`.
fn counts(name: &str, value: &Value, role: &str) -> Result<bool, Problem> {
    let counts = match value.as_bool().filter(|_| name == "train") {
        Some(train) => train,
        None if value.as_f64() == Some(0.0) && name == "weight" => false,
        None if value.as_f64() == Some(1.0) && name == "weight" => true,
        None => {
            return Err(Problem {
                what: format!("{value} as \"{name}\""),
                hint: "\"weight\" is 0 or 1, and \"train\" is true or false".to_owned(),
            });
        }
    };
    match counts && role != "assistant" {
        true => Err(Problem {
            what: format!("{value} as \"{name}\" of the role \"{role}\""),
            hint: "only answers count; finetune.train_on = \"all\" counts every token".to_owned(),
        }),
        false => Ok(counts),
    }
}

/// The tools of a record.
pub(super) fn tools(sent: Value) -> Result<Vec<Value>, String> {
    let problem = |rule| format!("has a field \"tools\" that must {rule}\n  hint: the list may be JSON in a text");
    messages::tools(sent).map_err(problem)
}

/// A value without the entries that are null: exports of tables have them where other rows have a field.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| (name, without_nulls(value))).collect::<Map<_, _>>().into()
        }
        other => other,
    }
}
