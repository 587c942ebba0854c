//! `/v1/responses` returns the answers of `/v1/chat/completions` in its own form.

use serde_json::{Value, json};

use crate::fixtures::list;

use super::{Host, chatting, letters, model};

/// The events of a stream; checks their types and numbers.
fn events(host: &Host, body: &Value) -> Vec<Value> {
    let response = host.post("/v1/responses", body);
    assert_eq!(response.status, 200, "{response:?}");
    let read = |(n, event): (usize, &str)| {
        let (kind, data) = event
            .strip_prefix("event: ")
            .and_then(|event| event.split_once("\ndata: "))
            .expect("the event has a type and data");
        let data: Value = serde_json::from_str(data).expect("the value is JSON");
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(kind), &json!(n)));
        data
    };
    response.body.split_terminator("\n\n").enumerate().map(read).collect()
}

#[test]
fn response_equals_the_answer_of_a_chat() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 2, None);
    let mut statuses = std::collections::BTreeSet::new();
    for seed in 0..16 {
        let chat = json!({"seed": seed, "max_tokens": 6, "messages": [
            {"role": "system", "content": "ab"}, {"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"},
            {"role": "user", "content": "cab"}]});
        let chat = host.post("/v1/chat/completions", &chat).json(200);
        let mut body = json!({"seed": seed, "max_output_tokens": 6, "instructions": "ab", "metadata": {"a": "b"}, "input": [
            {"role": "user", "content": "abc"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "de"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "ab"}]}]});
        let whole = host.post("/v1/responses", &body).json(200);
        let is_cut = chat["choices"][0]["finish_reason"] == "length";
        let status = if is_cut { "incomplete" } else { "completed" };
        statuses.insert(status);
        assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!(status)));
        let details = if is_cut { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        assert_eq!((&whole["incomplete_details"], &whole["metadata"]), (&details, &json!({"a": "b"})));
        let item = &list(&whole["output"])[0];
        let text = &item["content"][0]["text"];
        assert_eq!(
            (text, &item["content"][0]["type"]),
            (&chat["choices"][0]["message"]["content"], &json!("output_text"))
        );
        for (ours, chats) in [
            ("input_tokens", "prompt_tokens"),
            ("output_tokens", "completion_tokens"),
            ("total_tokens", "total_tokens"),
        ] {
            assert_eq!(whole["usage"][ours], chat["usage"][chats], "{ours}");
        }
        body["stream"] = true.into();
        let events = events(&host, &body);
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        let begun =
            ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"];
        let ended = format!("response.{status}");
        let done = ["response.output_text.done", "response.content_part.done", "response.output_item.done", &ended];
        assert!(kinds.starts_with(&begun) && kinds.ends_with(&done), "{kinds:?}");
        let parts = &events[begun.len()..events.len() - done.len()];
        assert!(parts.iter().all(|event| event["type"] == "response.output_text.delta"));
        let joined: String = parts.iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!((&json!(joined), &events[events.len() - done.len()]["text"]), (text, text));
        let last = &events.last().expect("the stream has events")["response"];
        for field in ["output_tokens", "input_tokens"] {
            assert_eq!(last["usage"][field], whole["usage"][field]);
        }
        assert_eq!((&last["status"], &last["output"][0]["content"]), (&whole["status"], &item["content"]));
    }
    assert_eq!(statuses.len(), 2, "some answers are cut, and some end");
}
