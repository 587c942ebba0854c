//! The forms of a record, a line of JSON, recognized by its fields.

use serde_json::{Map, Value, json};

use crate::data::record::not_json;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// Messages, each with its `role` and `content`, and the tools that they may name.
    Messages { messages: Vec<Value>, tools: Option<Value> },
    /// A question and its answer; for a model without a chat template, the answer continues the question.
    Completion { prompt: String, completion: String },
    /// Text without parts.
    Text(String),
    /// Two answers to the same question, the better one first, each as a separate record.
    Preference([Box<Record>; 2]),
}

/// The forms, as an error lists them.
const FORMS: &str = "hint: a record has \"messages\", \"prompt\" and \"completion\", \"instruction\" and \"output\", \
                     \"text\", or \"chosen\" and \"rejected\"";

impl Record {
    /// Reads a line; fails with the reason, which continues a sentence about the line.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| format!("{}\n  hint: JSON Lines is one object a line", not_json(&error)))?;
        let Value::Object(fields) = value else { return Err(format!("is not an object\n  {FORMS}")) };
        Self::of_fields(fields)
    }

    fn of_fields(mut fields: Map<String, Value>) -> Result<Self, String> {
        if fields.contains_key("chosen") || fields.contains_key("rejected") {
            return Self::of_preference(&fields);
        }
        if let Some(messages) = fields.remove("messages") {
            let tools = fields.remove("tools").filter(|tools| !tools.is_null());
            return Ok(Self::Messages { messages: checked(messages, "messages")?, tools });
        }
        if fields.contains_key("prompt") || fields.contains_key("completion") {
            return Self::of_prompt(&mut fields);
        }
        if fields.contains_key("instruction") || fields.contains_key("output") {
            let [instruction, output] = [text(&mut fields, "instruction")?, text(&mut fields, "output")?];
            let input = if fields.contains_key("input") { text(&mut fields, "input")? } else { String::new() };
            let prompt = if input.is_empty() { instruction } else { format!("{instruction}\n\n{input}") };
            return Ok(Self::Completion { prompt, completion: output });
        }
        if fields.contains_key("text") {
            return Ok(Self::Text(text(&mut fields, "text")?));
        }
        let mut names: Vec<String> = fields.keys().take(12).map(|name| format!("\"{name}\"")).collect();
        names.sort();
        Err(format!("has only the fields {}\n  {FORMS}", names.join(", ")))
    }

    /// With `prompt`, both answers are what `completion` would be; without it, both are whole conversations.
    fn of_preference(fields: &Map<String, Value>) -> Result<Self, String> {
        let answer = |name: &str| {
            let Some(answer) = fields.get(name) else { return Err(format!("has no field \"{name}\"\n  {FORMS}")) };
            let field = if fields.contains_key("prompt") { "completion" } else { "messages" };
            let kept = ["tools", "prompt"].into_iter().filter_map(|key| Some((key, fields.get(key)?)));
            let record = kept.chain([(field, answer)]).map(|(key, value)| (key.to_owned(), value.clone()));
            Self::of_fields(record.collect())
                .map(Box::new)
                .map_err(|error| error.replace(&format!("\"{field}\""), &format!("\"{name}\"")))
        };
        Ok(Self::Preference([answer("chosen")?, answer("rejected")?]))
    }

    /// Both are texts, or both are lists of messages.
    fn of_prompt(fields: &mut Map<String, Value>) -> Result<Self, String> {
        if !fields.get("prompt").is_some_and(Value::is_array) {
            let [prompt, completion] = [text(fields, "prompt")?, text(fields, "completion")?];
            return Ok(Self::Completion { prompt, completion });
        }
        let tools = fields.remove("tools").filter(|tools| !tools.is_null());
        let mut messages = checked(fields.remove("prompt").unwrap_or_default(), "prompt")?;
        messages.extend(checked(fields.remove("completion").unwrap_or_default(), "completion")?);
        Ok(Self::Messages { messages, tools })
    }

    /// The conversation of one question and answer.
    pub(super) fn question_and_answer(prompt: &str, completion: &str) -> Vec<Value> {
        vec![json!({"role": "user", "content": prompt}), json!({"role": "assistant", "content": completion})]
    }
}

/// The messages of a field, each with a role, and with a text or with calls of tools.
fn checked(messages: Value, field: &str) -> Result<Vec<Value>, String> {
    let Value::Array(messages) = messages else {
        return Err(format!("has no list in its field \"{field}\"\n  hint: a message is {MESSAGE}"));
    };
    if messages.is_empty() {
        return Err(format!("has an empty list in its field \"{field}\"\n  hint: remove the line"));
    }
    for (idx, message) in messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str);
        let has_content = message.get("content").is_some_and(Value::is_string);
        if role.is_none() || !has_content && message.get("tool_calls").is_none() {
            let missing = if role.is_none() { "role" } else { "text in \"content\"" };
            return Err(format!(
                "has no {missing} in message {} of its field \"{field}\"\n  hint: a message is {MESSAGE}",
                idx + 1
            ));
        }
    }
    Ok(messages)
}

const MESSAGE: &str = r#"{"role": "user", "content": "..."}"#;

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<String, String> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("has something else than a text in its field \"{name}\"\n  {FORMS}")),
        None => Err(format!("has no field \"{name}\"\n  {FORMS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Record, String> {
        Record::parse(line.as_bytes())
    }

    #[test]
    fn record_forms_follow_from_fields() {
        let completion = |prompt: &str, completion: &str| Record::Completion {
            prompt: prompt.to_owned(),
            completion: completion.to_owned(),
        };
        for (line, expected) in [
            (r#"{"prompt": "a", "completion": "b", "id": 3}"#, completion("a", "b")),
            (r#"{"instruction": "a", "input": "", "output": "b"}"#, completion("a", "b")),
            (r#"{"instruction": "a", "input": "x", "output": "b"}"#, completion("a\n\nx", "b")),
            (r#"{"text": "a"}"#, Record::Text("a".to_owned())),
            (
                r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#,
                Record::Preference([completion("a", "b"), completion("a", "c")].map(Box::new)),
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a"}], "tools": null}"#,
                Record::Messages { messages: vec![json!({"role": "user", "content": "a"})], tools: None },
            ),
            (
                r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
                Record::Messages { messages: Record::question_and_answer("a", "b"), tools: None },
            ),
        ] {
            assert_eq!(parsed(line).expect(line), expected);
        }
    }

    #[test]
    fn invalid_records_name_their_field() {
        for (line, expected) in [
            ("{", "is not JSON: EOF while parsing an object at column 1"),
            ("[1]", "is not an object"),
            (r#"{"question": "a", "answer": "b"}"#, "has only the fields \"answer\", \"question\""),
            (r#"{"prompt": "a"}"#, "has no field \"completion\""),
            (r#"{"prompt": "a", "completion": 3}"#, "has something else than a text in its field \"completion\""),
            (r#"{"messages": "a"}"#, "has no list in its field \"messages\""),
            (r#"{"messages": []}"#, "has an empty list in its field \"messages\""),
            (r#"{"messages": [{"role": "user"}]}"#, "has no text in \"content\" in message 1"),
            (r#"{"messages": [{"content": "a"}]}"#, "has no role in message 1"),
            (r#"{"prompt": "a", "chosen": "b"}"#, "has no field \"rejected\""),
            (r#"{"chosen": "b", "rejected": "c"}"#, "has no list in its field \"chosen\""),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.starts_with(expected) && error.contains("\n  hint: "), "{line}: {error}");
        }
    }
}
