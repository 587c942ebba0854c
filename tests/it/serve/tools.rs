//! Tools: the template receives them, and calls are separate from text.

use serde_json::{Value, json};
use tinderbox::tokenizer::Tokenizer;

use crate::fixtures::list;

use super::json::random;
use super::{Host, changed, chatting, letters, model};

/// Like Qwen's template.
const TEMPLATE: &str = "{%- if tools %}{{- '<|im_start|>system\n' }}{%- for tool in tools %}{{- tool | tojson }}\
    {%- endfor %}{{- '\nCall as <tool_call>{...}</tool_call><|im_end|>\n' }}{%- endif %}{%- for m in messages %}\
    {{- '<|im_start|>' + m.role + '\n' + m.content }}{%- if m.tool_calls %}{%- for call in m.tool_calls %}\
    {{- call.function.name }}({{ call.function.arguments | tojson }}){%- endfor %}{%- endif %}\
    {{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

fn host() -> Host {
    let tokenizer = Tokenizer::byte().with_chat_template(TEMPLATE, &["<|im_start|>", "<|im_end|>"], "<|im_end|>");
    Host::of(vec![random("bytes", tokenizer.expect("the template is valid"), 1024)], 2, None)
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn request() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"], "additionalProperties": false});
    json!({
        "messages": [{"role": "user", "content": "Will it rain?"}],
        "tools": [tool("weather", parameters), tool("time", json!({"type": "object", "properties": {}, "additionalProperties": false}))],
    })
}

fn with(field: &str, value: Value) -> Value {
    changed(&request(), json!({field: value}))
}

#[test]
fn required_call_is_returned_and_streamed() {
    let host = host();
    let weather = json!({"type": "function", "function": {"name": "weather"}});
    for seed in 0..8 {
        let mut body = with("tool_choice", if seed % 2 == 0 { weather.clone() } else { "required".into() });
        body["seed"] = seed.into();
        let answer = host.post("/v1/chat/completions", &body).json(200);
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{answer}"
        );
        let [call] = list(&choice["message"]["tool_calls"]) else { panic!("{answer}") };
        assert_eq!(call["type"], "function");
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("the value is a string"))
                .expect("the value is JSON");
        match call["function"]["name"].as_str() {
            Some("weather") => {
                assert!(
                    ["Oslo", "Rome"].contains(&arguments["city"].as_str().expect("the city is a string")),
                    "{arguments}"
                );
                assert!(arguments["days"].is_i64(), "{arguments}");
            }
            Some("time") => assert!(seed % 2 == 1 && arguments.is_object(), "{answer}"),
            other => panic!("{other:?}"),
        }
        body["stream"] = true.into();
        let events = host.post("/v1/chat/completions", &body).events();
        let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta.get("tool_calls")).collect();
        assert_eq!((calls.len(), &calls[0][0]["function"], &calls[0][0]["index"]), (1, &call["function"], &json!(0)));
        assert!(deltas.iter().all(|delta| delta["content"].as_str().is_none_or(str::is_empty)), "{events:?}");
        assert_eq!(events.last().expect("the stream has events")["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn template_receives_tools_and_earlier_calls() {
    let host = host();
    let n_tokens = |body: Value| {
        let answer = host.post("/v1/chat/completions", &changed(&body, json!({"max_tokens": 1}))).json(200);
        answer["usage"]["prompt_tokens"].as_u64().expect("the value is a number")
    };
    let mut plain = request();
    plain.as_object_mut().expect("the value is an object").remove("tools");
    let n_plain = n_tokens(plain.clone());
    assert!(n_tokens(request()) > n_plain + 200);
    assert_eq!(n_tokens(with("tool_choice", json!("none"))), n_plain);
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{\"zone\": 2, \"a\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "Will it rain?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]);
    plain["messages"] = messages;
    let more = "<|im_start|>assistant\ntime({\"zone\": 2, \"a\": 1})<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n";
    let n_more = Tokenizer::byte().encode(&more.replace("<|im_start|>", "S").replace("<|im_end|>", "E")).unwrap().len();
    assert_eq!(n_tokens(plain), n_plain + n_more as u64);
}

/// Without parallel calls, a completion ends where its first call does.
#[test]
fn completion_may_end_with_its_first_call() {
    let host = host();
    let format = json!({"type": "json_object", "schema": {"const": "a</tool_call>b"}});
    for (parallel, expected) in [(false, "\"a"), (true, "\"a</tool_call>b\"")] {
        let body = changed(&request(), json!({"response_format": format, "parallel_tool_calls": parallel}));
        let answer = &host.post("/v1/chat/completions", &body).json(200)["choices"][0];
        assert_eq!((&answer["message"]["content"], &answer["finish_reason"]), (&json!(expected), &json!("stop")));
    }
}

#[test]
fn invalid_tools_are_rejected() {
    let host = host();
    for (field, value) in [
        ("tools", json!([{}])),
        ("tools", json!([{"type": "web_search"}])),
        ("tool_choice", json!("weather")),
        ("tool_choice", json!({"type": "function", "function": {"name": "other"}})),
    ] {
        host.refuse("/v1/chat/completions", &request(), field, value);
    }
    let mut body = with("tools", json!([tool("f", json!({"type": "object", "dependentRequired": {}}))]));
    assert_eq!(host.post("/v1/chat/completions", &body).status, 200, "only a required call needs a supported schema");
    body["tool_choice"] = "required".into();
    assert_eq!(host.post("/v1/chat/completions", &body).error(400)["param"], "tools");
    let host = Host::of(vec![model("letters", &letters(), chatting())], 1, None);
    assert!(host.post("/v1/chat/completions", &request()).message(400).contains("has no tools that are called as"));
}
