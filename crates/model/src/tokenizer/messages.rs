//! Tools and their calls as chat templates read them, whoever sent them: a record or a request.

use serde_json::{Map, Value};

use crate::json;

/// A call of a tool: `{"function": {"name": ..., "arguments": {...}}}`, with its other fields, in the order in which they
/// were sent. The function may stand alone. Arguments may be JSON in a text; none are `{}`, and a text that is not JSON
/// remains one. Null is absent.
///
/// # Errors
/// If it has no function with a name; the error is a rule that continues "must".
pub fn call(sent: Value) -> Result<Value, String> {
    let mut call = wrapped(sent).ok_or("be objects with a \"function\" that has a \"name\"")?;
    let function = call["function"].as_object_mut().expect("a wrapped function is an object");
    let arguments = function.entry("arguments").or_insert(Value::Null);
    let read = match &*arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => json::parse(text.as_bytes()).unwrap_or_else(|_| arguments.clone()),
        _ => arguments.take(),
    };
    *arguments = if read.is_null() { Map::new().into() } else { read };
    Ok(call)
}

/// The tools that a conversation may call, each `{"type": "function", "function": {"name": ...}}`: a list of them, or of
/// their functions; the list or its items may be JSON in a text.
///
/// # Errors
/// If it is something else; the error is a rule that continues "must".
pub fn tools(sent: Value) -> Result<Vec<Value>, String> {
    let rule = "be a list of functions, such as [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    match of_text(sent) {
        Value::Null => Ok(Vec::new()),
        Value::Array(tools) => tools.into_iter().map(|tool| wrapped(of_text(tool)).ok_or(rule.to_owned())).collect(),
        _ => Err(rule.to_owned()),
    }
}

/// The value of JSON in a text; any other value as it is.
pub fn of_text(sent: Value) -> Value {
    match &sent {
        Value::String(text) => json::parse(text.as_bytes()).unwrap_or(sent),
        _ => sent,
    }
}

/// An object with a `function` that has a `name`, or the function alone, in such an object.
fn wrapped(sent: Value) -> Option<Value> {
    let Value::Object(mut fields) = sent else { return None };
    fields.retain(|_, value| !value.is_null());
    if !fields.contains_key("function") {
        let object = [("type".to_owned(), "function".into()), ("function".to_owned(), fields.into())];
        fields = object.into_iter().collect();
    }
    let is_function = fields.get("type").is_none_or(|kind| kind == "function");
    fields["function"]["name"].as_str().filter(|name| is_function && !name.is_empty())?;
    Some(fields.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_and_tools_have_one_form_and_their_order() {
        let with =
            |arguments: &str| format!(r#"{{"type":"function","function":{{"name":"f","arguments":{arguments}}}}}"#);
        for (sent, expected) in [
            (
                r#"{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":null}"}}"#.to_owned(),
                r#"{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":null}}}"#.to_owned(),
            ),
            (
                r#"{"function":{"arguments":{"b":1,"a":2},"name":"f"},"id":null}"#.to_owned(),
                r#"{"function":{"arguments":{"b":1,"a":2},"name":"f"}}"#.to_owned(),
            ),
            (r#"{"name":"f","arguments":{"z":1,"a":2}}"#.to_owned(), with(r#"{"z":1,"a":2}"#)),
            (r#"{"name":"f"}"#.to_owned(), with("{}")),
            (with("null"), with("{}")),
            (with("\" \""), with("{}")),
            (with("\"null\""), with("{}")),
            (with("\"{broken\""), with("\"{broken\"")),
            (with("[1]"), with("[1]")),
        ] {
            let read = call(serde_json::from_str(&sent).expect(&sent)).expect(&sent);
            assert_eq!(read.to_string(), expected, "{sent}");
        }
        for wrong in [
            json!("f"),
            json!({}),
            json!({"function": "f"}),
            json!({"function": {"name": ""}}),
            json!({"type": "custom", "function": {"name": "f"}}),
        ] {
            call(wrong.clone()).expect_err(&wrong.to_string());
        }
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}});
        let function = tool["function"].clone();
        for sent in [json!([tool]), json!([function]), json!([function.to_string()]), json!([tool]).to_string().into()]
        {
            assert_eq!(tools(sent.clone()).expect("tools"), std::slice::from_ref(&tool), "{sent}");
        }
        assert!(tools(Value::Null).expect("no tools").is_empty());
        for wrong in [json!({}), json!("f"), json!([1]), json!([{"type": "function"}])] {
            assert!(tools(wrong.clone()).expect_err("no tools").starts_with("be a list"), "{wrong}");
        }
    }
}
