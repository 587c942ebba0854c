//! Invalid requests and misbehaving clients: they get an error that names the problem, and others are unaffected.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;

use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use tinderbox::config::GenerateConfig;
use tinderbox::serve::ApiKeys;

use crate::damage::{cases, damaged, damages};

use super::{Host, Response, changed, chatting, generated, http, letters, model, text, tokenizer};

#[test]
fn invalid_fields_are_named() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 1, None);
    let text = json!({"prompt": "abc"});
    let chat = json!({"messages": [{"role": "user", "content": "abc"}]});
    let response = json!({"input": "a"});
    let streamed = json!({"prompt": "abc", "stream": true});
    let scored = json!({"prompt": vec!["abcdefgh"; 1024], "echo": true, "max_tokens": 100});
    let long = || json!("a".repeat((1 << 20) + 1));
    let parts = |kind: &str| json!([{"role": "user", "content": [{"type": kind, "image_url": "a"}]}]);
    let text_part =
        |more: Value| json!([{"role": "user", "content": [changed(&json!({"type": "text", "text": "a"}), more)]}]);
    let with_call = |function: Value| json!([{"role": "assistant", "tool_calls": [{"function": function}]}]);
    let called = json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]);
    let moded = json!({"type": "function", "function": {"name": "f"}, "mode": 1});
    let integer = json!({"type": "json_schema", "name": "it", "schema": {"type": "integer"}});
    // Rules beyond the schemas of `/openapi.json`, whose fields `document_matches_the_accepted_values` tries.
    for (path, valid, field, value) in [
        ("/v1/completions", &text, "n", json!(5000)),
        ("/v1/completions", &text, "stop", json!("")),
        ("/v1/completions", &text, "stop", json!([1])),
        ("/v1/completions", &text, "stop", json!("a".repeat(257))),
        ("/v1/completions", &text, "stop", json!(["b", "a".repeat(257)])),
        ("/v1/completions", &text, "stream_options", json!({"include_usage": true})), // without `stream`
        ("/v1/completions", &streamed, "stream_options", json!({"include_obfuscation": true})),
        ("/v1/completions", &text, "logit_bias", json!({"11": 1})),
        ("/v1/completions", &text, "logit_bias", json!({"1": 101})),
        ("/v1/completions", &scored, "logprobs", json!(20)),
        ("/v1/completions", &text, "prompt", json!("")),
        ("/v1/completions", &text, "prompt", json!([])),
        ("/v1/completions", &text, "prompt", json!([[]])),
        ("/v1/completions", &text, "prompt", json!("xyz")),
        ("/v1/completions", &text, "prompt", json!([11])),
        ("/v1/completions", &text, "prompt", json!([1, "a"])),
        ("/v1/completions", &text, "prompt", json!(["a", 1])),
        ("/v1/completions", &text, "prompt", json!({"a": 1})),
        ("/v1/completions", &text, "prompt", long()),
        ("/v1/chat/completions", &chat, "messages", json!([])),
        ("/v1/chat/completions", &chat, "messages", json!(["hi"])),
        ("/v1/chat/completions", &chat, "messages", json!([{"content": "a"}])),
        ("/v1/chat/completions", &chat, "messages", json!([{"role": "user"}])),
        ("/v1/chat/completions", &chat, "messages", json!([{"role": "user", "content": "a", "tool_calls": []}])),
        ("/v1/chat/completions", &chat, "messages", parts("image_url")),
        ("/v1/chat/completions", &chat, "messages", called),
        ("/v1/chat/completions", &chat, "tools", json!([{}])),
        ("/v1/chat/completions", &chat, "top_logprobs", json!(1)),
        ("/v1/chat/completions", &chat, "max_tokens", json!(0)),
        ("/v1/chat/completions", &chat, "echo", json!(true)),
        ("/apply-template", &chat, "add_generation_prompt", json!(1)),
        ("/v1/responses", &response, "input", json!([])),
        ("/v1/responses", &response, "input", json!([{"type": "function_call_output", "call_id": "1", "output": "a"}])),
        ("/v1/responses", &response, "input", parts("input_image")),
        ("/v1/responses", &response, "input", json!([{"role": "user", "content": "a", "novel": 1}])),
        ("/v1/responses", &response, "input", json!([{"role": "user", "content": "a", "type": "reasoning"}])),
        ("/v1/responses", &response, "input", text_part(json!({"cache_control": {}}))),
        ("/v1/responses", &response, "input", text_part(json!({"annotations": [1]}))),
        ("/v1/responses", &response, "text", json!({"format": {"type": "text"}, "verbosity": "low"})),
        ("/v1/responses", &response, "text", json!({"format": {"type": "text", "schema": {}}})),
        ("/v1/completions", &text, "response_format", json!({"type": "json_object", "strict": true})),
        ("/v1/chat/completions", &chat, "tool_choice", moded),
        ("/v1/chat/completions", &chat, "messages", with_call(json!({"name": "f", "arguments": "{}", "novel": 1}))),
        ("/v1/responses", &response, "background", json!(true)),
        ("/v1/responses", &response, "include", json!(["reasoning.encrypted_content"])),
        ("/v1/chat/completions", &chat, "messages", text_part(json!({"novel": 1}))),
        ("/v1/chat/completions", &chat, "store", json!(true)),
        ("/v1/chat/completions", &chat, "verbosity", json!("low")),
        ("/v1/chat/completions", &chat, "functions", json!([{"name": "f"}])),
        ("/v1/responses", &response, "reasoning", json!({"effort": "low", "summary": "auto"})),
        ("/v1/responses", &response, "reasoning", json!({"effort": 1})),
        ("/v1/chat/completions", &chat, "modalities", json!(["text", "audio"])),
        ("/v1/chat/completions", &chat, "service_tier", json!("flex")),
        ("/v1/responses", &response, "input", json!("xyz")),
        ("/v1/responses", &response, "tools", json!([{"type": "web_search"}])),
        ("/v1/responses", &response, "previous_response_id", json!("resp_1")),
        ("/v1/responses", &response, "top_p", json!(1.5)),
        ("/v1/responses", &response, "text", json!({"format": integer})),
        ("/v1/embeddings", &response, "input", json!([])),
        ("/v1/embeddings", &response, "dimensions", json!(4)),
        ("/v1/embeddings", &response, "encoding_format", json!("int8")),
        ("/v1/inspect", &text, "prompt", json!("")),
        ("/v1/inspect", &text, "prompt", json!(["abc"])),
        ("/v1/inspect", &text, "prompt", json!("xyz")),
        ("/v1/inspect", &text, "prompt", json!("a".repeat(33))),
        ("/v1/inspect", &text, "prompt", long()),
        ("/v1/inspect", &text, "layer", json!(2)),
        ("/v1/inspect", &text, "head", json!(-1)),
        ("/v1/inspect", &text, "range", json!([1, 1])),
        ("/v1/inspect", &text, "range", json!([0, 4])),
        ("/v1/inspect", &text, "range", json!([0])),
        ("/v1/inspect", &text, "ablate", json!([[2, 0]])),
        ("/v1/inspect", &text, "ablate", json!([[0, 2]])),
        ("/v1/inspect", &text, "ablate", json!([0, 1])),
        ("/v1/inspect", &text, "attribution", json!(3)),
        ("/v1/inspect", &text, "max_tokens", json!(513)),
        ("/v1/inspect", &text, "stream", json!(true)),
        ("/tokenize", &json!({}), "content", long()),
        ("/tokenize", &json!({}), "content", json!("x")),
        ("/detokenize", &json!({}), "tokens", json!([11])),
    ] {
        host.refuse(path, valid, field, value);
    }
    host.complete(&json!({"prompt": "a", "stop": "a".repeat(256)}));
}

#[test]
fn errors_say_the_range_of_a_field() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 1, None);
    let text = json!({"prompt": "abc"});
    for (field, value, message) in [
        ("temperature", json!(2.5), "`temperature` = 2.5 must be a number from 0 to 2"),
        ("top_p", json!(-1), "`top_p` = -1 must be a number from 0 to 1"),
        ("n", json!(-1), "`n` = -1 must be a whole number from 1 to 1024"),
        ("top_k", json!(99), "`top_k` = 99 must be a whole number from 0 to 11"), // the vocabulary
        ("max_tokens", json!(1.5), "`max_tokens` = 1.5 must be a whole number from 0 to 32768"),
        ("echo", json!("x"), "`echo` = \"x\" must be true or false"),
        ("user", json!([]), "`user` = [] must be a string"),
        ("metadata", json!([]), "`metadata` = [] must be an object"),
        ("stop_token_ids", json!({"a": 1}), "`stop_token_ids` = {\"a\":1} must be a list of at most 16"),
        ("best_of", json!(0.5), "`best_of` is not supported; leave it out, or set it to 1"),
        ("suffix", json!(true), "`suffix` is not supported; leave it out, or set it to null"),
        ("tools", json!([]), "`tools` is not supported"),
        ("prompt", Value::Null, "there is no `prompt`"),
    ] {
        assert_eq!(host.refuse("/v1/completions", &text, field, value)["message"], message);
    }
    let error = host.post("/v1/completions", &json!({"prompt": "a".repeat(33)})).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["message"], "`prompt` has 33 tokens, and the context of `letters` holds 32");
}

#[test]
fn values_that_change_nothing_are_accepted() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 1, None);
    let neutral = json!({
        "prompt": "abc", "suffix": null, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me",
        "logit_bias": {}, "stop": [], "stream_options": null, "n": 1,
    });
    host.complete(&neutral);
    let neutral = json!({
        "messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": null, "annotations": [],
            "refusal": null}, {"role": "user", "content": "a"}],
        "store": false, "service_tier": "auto", "modalities": ["text"], "top_logprobs": 0, "prompt_cache_key": "a",
        "safety_identifier": "me", "function_call": "none", "max_tokens": 1, "functions": [], "verbosity": "medium",
        "prediction": {"type": "content", "content": "abc"}, "prompt_cache_retention": "24h", "prompt_cache_options": {},
        "audio": null, "moderation": null, "web_search_options": null, "parallel_tool_calls": false, "metadata": {},
        "reasoning_effort": "low",
    });
    host.post("/v1/chat/completions", &neutral).json(200);
    let streamed = json!({"stream": true, "stream_options": {"include_usage": false, "include_obfuscation": false}});
    host.post("/v1/chat/completions", &changed(&neutral, streamed.clone())).events();
    let answer = host.post("/v1/responses", &json!({"input": "abc", "max_output_tokens": 3})).json(200);
    let neutral = json!({
        "input": [{"role": "user", "content": "a"}, answer["output"][0], {"role": "user", "content": "b"}],
        "store": false, "background": false, "include": [], "top_logprobs": 0, "service_tier": "default",
        "max_output_tokens": 1, "max_tool_calls": 3, "reasoning": {"effort": null, "summary": null}, "tools": [],
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "conversation": null, "prompt": null,
        "prompt_cache_key": "a", "prompt_cache_retention": "in_memory", "truncation": "disabled", "user": "me",
    });
    host.post("/v1/responses", &neutral).json(200);
    assert_eq!(host.post("/v1/responses", &changed(&neutral, streamed)).status, 200);
}

#[test]
fn errors_have_the_documented_status() {
    let host = Host::new(1);
    host.post("/v1/completions", &json!({"model": "gpt-5", "prompt": "a"})).error(404);
    assert_eq!(host.get("/v1/models/gpt-5").error(404)["code"], "model_not_found");
    host.get("/v1/nothing").error(404);
    let long = "m".repeat(1 << 20);
    let streamed = |options: Value| json!({"prompt": "a", "stream": true, "stream_options": options});
    for body in [json!({"prompt": "a", &long: 1}), json!({"prompt": &long}), streamed(json!({&long: 1}))] {
        let refused = host.post("/v1/completions", &body);
        refused.error(400);
        assert!(refused.body.len() < 5000, "an error repeats only part of the request: {}", refused.body.len());
    }
    for response in [
        host.post("/v1/completions", &json!({"model": long, "prompt": "a"})),
        host.get(&format!("/v1/{}", &long[..10_000])),
    ] {
        response.error(404);
        assert!(response.body.len() < 1000, "an error repeats only part of the request: {}", response.body.len());
    }
    for path in ["/v1/models/%ff", "/assets/%ff", "/app/run/%ff", "/app/report/%ff", "/app/comparison/%ff"] {
        assert_eq!(host.get(path).error(400)["message"], "the address is not UTF-8", "{path}");
    }
    host.get("/../Cargo.toml").error(404);
    host.get("/v1/completions").error(405);
    let chat = json!({"messages": [{"role": "user", "content": "abc"}]});
    assert!(host.post("/v1/chat/completions", &chat).message(400).contains("chat template"));
    let large = vec![b' '; 10 << 20];
    host.request("POST", "/v1/completions", "", &large).error(413);
    for body in [&b""[..], b"{", b"[]", b"\xff\xfe", b"{\"prompt\": \"a\"} x", "[".repeat(100_000).as_bytes()] {
        host.request("POST", "/v1/completions", "", body).error(400);
    }
    let twice = host.request("POST", "/v1/completions", "", b"{\"prompt\": \"a\", \"n\": 1, \"n\": 2}");
    assert!(twice.message(400).contains("the name \"n\" twice"), "{twice:?}");
    host.request("POST", "/v1/completions", "Origin: http://evil.example\r\n", b"{}").error(403);
    let other_host = b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    Response::read(host.send(other_host)).error(403);
    host.request("GET", "/v1/models", "Origin: http://localhost\r\n", b"").json(200);
    let models = host.get("/v1/models").json(200);
    assert_eq!(models["data"][0]["id"], "letters");
    assert_eq!(host.get("/v1/models/letters").json(200), models["data"][0]);
    assert_eq!(host.get("/health").json(200)["status"], "ok");
    assert!(host.metric("tinderbox_responses_total{status=\"403\"}") == 2, "responses are counted");
    let tokens = host.post("/tokenize", &json!({"content": "face"})).json(200);
    assert_eq!(tokens["tokens"], json!([5, 0, 2, 4]));
    let content = host.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json(200);
    assert_eq!(content["content"], "face");
}

#[test]
fn pages_of_allowed_sites_may_use_the_server() {
    let origins = vec!["http://friend.example:3000".to_owned()];
    let keys = ApiKeys::parse("key").ok();
    let models = vec![model("letters", &letters(), tokenizer())];
    let host = Host::with(models, 1, keys, |options| tinderbox::serve::Options { origins, ..options });
    let ask = |method: &str, origin: &str, more: &str| {
        host.request(method, "/v1/models", &format!("Origin: {origin}\r\n{more}"), b"")
    };
    let friend = "http://friend.example:3000";
    let before = ask("OPTIONS", friend, "Access-Control-Request-Headers: authorization,x-stainless-os\r\n");
    assert_eq!((before.status, before.body.as_str()), (204, ""));
    for header in [
        "access-control-allow-origin: http://friend.example:3000",
        "access-control-allow-headers: authorization,x-stainless-os",
        "access-control-allow-methods: get, post",
    ] {
        assert!(before.headers.contains(header), "{header} is not in {}", before.headers);
    }
    let answer = ask("GET", friend, "Authorization: Bearer key\r\n");
    answer.json(200);
    assert!(answer.headers.contains("access-control-allow-origin: http://friend.example:3000"), "{answer:?}");
    ask("GET", friend, "").error(401);
    for method in ["OPTIONS", "GET"] {
        let refused = ask(method, "http://evil.example", "Authorization: Bearer key\r\n");
        refused.error(403);
        assert!(!refused.headers.contains("access-control"), "{refused:?}");
    }
}

#[test]
fn requests_need_a_valid_key() {
    let keys = ApiKeys::parse("first\nsecond\n").ok();
    let host = Host::of(vec![model("letters", &letters(), tokenizer())], 1, keys);
    let ask = |headers: &str| host.request("GET", "/v1/models", headers, b"");
    for headers in ["", "Authorization: Bearer third\r\n", "Authorization: first\r\n"] {
        let refused = ask(headers);
        assert_eq!(refused.error(401)["code"], "invalid_api_key");
        assert!(refused.headers.contains("www-authenticate: bearer") && !refused.body.contains("first"));
    }
    ask("Authorization: Bearer second\r\n").json(200);
    host.get("/health").json(200);
    // The files of the page are public, but its data is not; its frames send the key in a cookie.
    assert_eq!([host.get("/").status, host.get("/assets/app.js").status], [200, 200]);
    host.get("/app/runs").error(401);
    ask("Cookie: tinderbox_key=second\r\n").json(200);
}

#[test]
fn full_queue_is_a_429_with_retry_after() {
    let host = Host::new(1);
    let long = json!({"prompt": "abc", "n": 1024, "max_tokens": 30_000, "stream": true}).to_string();
    let long = http("POST", "/v1/completions", "", long.as_bytes());
    // Four of these fit, besides the sequence that has the slot.
    let waiting: Vec<TcpStream> = (0..5).map(|_| host.send(&long)).collect();
    // An earlier request would wait for its turn instead of being rejected.
    host.wait_until("waiting_texts", |n| n >= 4 * 1024 - 1);
    let mut asked = (0..1000).map(|_| host.post("/v1/completions", &json!({"prompt": "abc", "n": 1000})));
    let refused = asked.find(|response| response.status == 429).expect("the queue fills up");
    assert_eq!(refused.error(429)["code"], "rate_limit_exceeded");
    assert!(refused.headers.contains("retry-after: 1"), "{refused:?}");
    drop(waiting);
    host.wait_until_idle();
    host.complete(&json!({"prompt": "abc"}));
}

#[test]
fn disconnected_clients_free_their_slots() {
    let host = Host::new(4);
    for stream in [true, false] {
        let body = json!({"prompt": "abc", "max_tokens": 30_000, "stream": stream}).to_string();
        let request = http("POST", "/v1/completions", "", body.as_bytes());
        // Four have slots and have read part of their completion before 196 others wait in the queue.
        let mut clients: Vec<TcpStream> = (0..4).map(|_| host.send(&request)).collect();
        if stream {
            let mut some = [0; 500];
            for client in &mut clients {
                client.read_exact(&mut some).expect("the stream has begun");
            }
        }
        clients.extend((0..196).map(|_| host.send(&request)));
        drop(clients);
        host.wait_until_idle();
    }
    // Half of a request, and half of a body.
    let half = http("POST", "/v1/completions", "", b"{\"prompt\": \"abc\"}");
    drop([&half[..30], &half[..half.len() - 5]].map(|half| host.send(half)));
    let settings = GenerateConfig { temperature: 0.0, max_new_tokens: 9, ..GenerateConfig::default() };
    let response = host.complete(&json!({"prompt": "abc", "max_tokens": 9, "temperature": 0}));
    assert_eq!(text(&response, 0), generated("abc", &settings, 0));
}

#[test]
fn stopped_server_finishes_and_rejects_new_requests() {
    let host = Host::new(1);
    let body = json!({"prompt": "abc", "max_tokens": 15_000, "stream": true}).to_string();
    let mut client = host.send(&http("POST", "/v1/completions", "", body.as_bytes()));
    let mut beginning = [0; 500];
    client.read_exact(&mut beginning).expect("the stream has begun");
    assert!(!host.stop.was_asked());
    host.stop.stop();
    assert!(host.stop.was_asked());
    host.post("/v1/completions", &json!({"prompt": "abc"})).error(503);
    host.get("/health").error(503);
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("the stream is finished");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    let address = host.address;
    drop(host);
    TcpStream::connect(address).expect_err("the server no longer listens");
}

#[test]
fn damaged_requests_are_rejected() {
    let host = Host::new(2);
    let valid = [
        ("/v1/completions", json!({"model": "letters", "prompt": "abc", "max_tokens": 5, "logprobs": 2, "n": 2})),
        ("/v1/completions", json!({"prompt": [[1, 2], [3]], "echo": true, "stream": true, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": ["a", "b"], "stop": ["c"], "logit_bias": {"3": 2.5}, "top_p": 0.5})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "abc"}]})),
        ("/tokenize", json!({"content": "abc"})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
    ];
    let statuses = RefCell::new(BTreeMap::new());
    let mut runner = TestRunner::new_with_rng(cases(1000), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&(0..valid.len(), damages()), |(at, damages)| {
        let (path, body) = &valid[at];
        let body = damaged(body.to_string().as_bytes(), &damages);
        let response = host.request("POST", path, "", &body);
        *statuses.borrow_mut().entry(response.status).or_insert(0) += 1;
        if response.status != 200 {
            assert!(matches!(response.status, 400 | 404), "{response:?} to {}", String::from_utf8_lossy(&body));
            response.error(response.status);
        }
        Ok(())
    });
    outcome.expect("damaged requests are rejected");
    let statuses = statuses.into_inner();
    assert!(statuses[&200] > 5 && statuses[&400] > 300, "{statuses:?}");
    host.wait_until_idle();
    host.get("/health").json(200);
}

/// Values just outside the schema of a field.
fn invalid_for(schema: &Value) -> Vec<Value> {
    let number = |key: &str| schema[key].as_f64();
    let mut refused = Vec::new();
    refused.extend(number("minimum").map(|least| json!(least - 1.0)));
    refused.extend(number("exclusiveMinimum").map(|least| json!(least)));
    refused.extend(number("maximum").filter(|most| *most < 1e15).map(|most| json!(most + 1.0)));
    match schema["type"].as_str() {
        Some("boolean" | "number" | "integer") => refused.push(json!("a")),
        Some("string") => refused.push(json!(1)),
        Some("null" | "object") => refused.push(json!([1])),
        _ => refused.push(json!({"a": 1})),
    }
    refused
}

#[test]
fn document_matches_the_accepted_values() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 1, None);
    let document = host.get("/openapi.json").json(200);
    let schema = |name: &str| {
        document["components"]["schemas"][name]["properties"].as_object().expect("the schema has fields").clone()
    };
    let with_stream = |field: &str, mut body: Value| {
        match field {
            "stream_options" => body["stream"] = true.into(),
            "top_logprobs" if body["messages"].is_array() => body["logprobs"] = true.into(),
            _ => {}
        }
        body
    };
    let requests = [
        ("/v1/completions", "CompletionRequest", json!({"prompt": "abc", "max_tokens": 1})),
        (
            "/v1/chat/completions",
            "ChatRequest",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ),
        ("/v1/responses", "ResponseRequest", json!({"input": "a", "max_output_tokens": 1})),
        ("/v1/embeddings", "EmbeddingRequest", json!({"input": "abc"})),
        ("/v1/inspect", "InspectRequest", json!({"prompt": "abc"})),
        ("/tokenize", "TokenizeRequest", json!({"content": "abc"})),
        ("/detokenize", "DetokenizeRequest", json!({"tokens": [1]})),
    ];
    for (path, name, valid) in requests {
        assert!(document["paths"][path]["post"].is_object());
        let mut n_fields = 0;
        for (field, schema) in schema(name) {
            n_fields += 1;
            for value in invalid_for(&schema) {
                host.refuse(path, &with_stream(&field, valid.clone()), &field, value);
            }
            // The ends of the range, and the values that mean unset.
            let most = schema["maximum"].clone();
            let least = schema.get("minimum").or(schema["enum"].get(0)).cloned().unwrap_or_default();
            let default = schema["default"].clone();
            for value in [most, least, default].into_iter().filter(|value| !value.is_null()) {
                let mut body = with_stream(&field, valid.clone());
                body[&field] = value;
                if ["n", "max_tokens", "max_completion_tokens", "max_output_tokens"].contains(&field.as_str())
                    && body[&field] != schema["minimum"]
                {
                    continue; // generating so many would take too long
                }
                assert_eq!(host.post(path, &body).status, 200, "{body}");
            }
        }
        assert!(n_fields > 1);
        let mut body = valid;
        body["novel"] = 1.into();
        host.post(path, &body).error(400);
    }
    for path in ["/v1/models", "/health", "/metrics", "/props", "/slots", "/openapi.json"] {
        assert!(document["paths"][path]["get"].is_object() && host.get(path).status == 200, "{path}");
    }
}
