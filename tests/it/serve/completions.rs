//! Completions equal those of `generate`: streamed or not, alone or with others, as completions or chats.

use std::thread;

use burn::tensor::Device;
use serde_json::{Value, json};
use tinderbox::config::GenerateConfig;
use tinderbox::model::Gpt;
use tinderbox::serve::{Options, Slots};
use tinderbox::tokenizer::Tokenizer;

use crate::fixtures::{host, list, number};
use crate::properties::{ALPHABET, tensor};

use super::{Host, changed, chatting, config, generated, joined, letters, model, text, tokenizer};

/// Different requests, as JSON and as settings.
fn requests() -> Vec<(Value, &'static str, GenerateConfig)> {
    let settings = |temperature, max_new_tokens| GenerateConfig {
        temperature,
        max_new_tokens,
        ..GenerateConfig { seed: 5, ..GenerateConfig::default() }
    };
    let request = |prompt, settings: GenerateConfig| {
        let body = json!({
            "model": "letters", "prompt": prompt, "temperature": settings.temperature, "seed": settings.seed,
            "max_tokens": settings.max_new_tokens, "top_k": settings.top_k, "top_p": settings.top_p,
            "min_p": settings.min_p, "repetition_penalty": settings.repetition_penalty, "stop": settings.stop,
        });
        (body, prompt, settings)
    };
    vec![
        request("abc", settings(0.0, 40)),
        request("abcdefgabcdefgabcdefgabcdefgabcd", settings(0.0, 60)), // fills the context more than once
        request("k", settings(1.3, 25)),
        request("abcd", GenerateConfig { top_k: 3, ..settings(1.0, 30) }),
        request("ab", GenerateConfig { top_p: 0.6, min_p: 0.05, ..settings(1.0, 31) }),
        request("abce", GenerateConfig { repetition_penalty: 1.5, ..settings(0.0, 20) }),
        request("abc", GenerateConfig { stop: vec!["dd".to_owned(), "a".to_owned()], ..settings(1.0, 50) }),
        request("jjj", settings(1.0, 1)),
    ]
}

#[test]
fn completions_equal_those_of_generate() {
    for speculate in [0, 6] {
        let slots = |options: Options| Options { slots: Slots { speculate, ..options.slots }, ..options };
        check_completions(&Host::with(vec![model("letters", &letters(), tokenizer())], 4, None, slots));
    }
}

fn check_completions(host: &Host) {
    let requests = requests();
    let expected: Vec<String> = requests.iter().map(|(_, prompt, settings)| generated(prompt, settings, 0)).collect();
    for ((body, _, _), expected) in requests.iter().zip(&expected) {
        assert_eq!(text(&host.complete(body), 0), expected, "{body}");
    }
    // Three times each, more than there are slots: they wait, join, share prefixes and leave.
    thread::scope(|scope| {
        let completed = (0..3 * requests.len()).map(|i| {
            let body = &requests[i % requests.len()].0;
            scope.spawn(move || host.complete(body))
        });
        for (i, completion) in completed.collect::<Vec<_>>().into_iter().enumerate() {
            let response = completion.join().expect("the request succeeds");
            assert_eq!(text(&response, 0), expected[i % requests.len()], "{response}");
        }
    });
}

#[test]
fn several_completions_are_the_samples_of_generate() {
    let host = Host::new(3);
    let settings = GenerateConfig { temperature: 1.0, max_new_tokens: 20, seed: 9, ..GenerateConfig::default() };
    let body = json!({"prompt": ["abc", "de"], "n": 4, "temperature": 1.0, "max_tokens": 20, "seed": 9});
    let response = host.complete(&body);
    for (i, (prompt, sample)) in
        ["abc", "de"].into_iter().flat_map(|prompt| (0..4).map(move |i| (prompt, i))).enumerate()
    {
        assert_eq!(response["choices"][i]["index"], i);
        assert_eq!(text(&response, i), generated(prompt, &settings, sample), "{i}");
    }
    let ids = json!({"prompt": [[0, 1, 2], [3, 4]], "n": 4, "temperature": 1.0, "max_tokens": 20, "seed": 9});
    assert_eq!(host.complete(&ids)["choices"], response["choices"], "tokens and text give the same completions");
    let usage = &response["usage"];
    assert_eq!([&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]], [5, 160, 165]);
}

#[test]
fn streamed_completions_equal_unstreamed_ones() {
    let bytes = Gpt::new(&config(64), 256, 3, &Device::flex());
    let models = vec![model("letters", &letters(), tokenizer()), model("bytes", &bytes, Tokenizer::byte())];
    let host = Host::of(models, 4, None);
    let common = json!({"seed": 3, "max_tokens": 50});
    for fields in [
        json!({"model": "letters", "prompt": "abc", "logprobs": 2, "n": 3}),
        json!({"model": "letters", "prompt": ["abc", "d"], "logprobs": 0, "echo": true}),
        json!({"model": "letters", "prompt": "abc", "stop": ["dd", "ka", "b"], "logprobs": 3, "n": 5}),
        json!({"model": "letters", "prompt": "abc", "echo": true, "max_tokens": 0, "logprobs": 1}),
        json!({"model": "letters", "prompt": "abc"}),
        // Random bytes: some are the start of a character, most are invalid.
        json!({"model": "bytes", "prompt": "\u{e9}\u{1f525}", "logprobs": 5, "echo": true, "n": 2}),
        json!({"model": "bytes", "prompt": "a", "temperature": 2.0, "logprobs": 1, "n": 4, "stop": ["\u{fffd}"]}),
    ] {
        let body = changed(&common, fields);
        let whole = host.complete(&body);
        let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
        let mut events = host.post("/v1/completions", &changed(&body, streamed)).events();
        let last = events.pop().expect("the last event has the usage");
        // The number of cached tokens differs, since the first request fills the cache.
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][key], whole["usage"][key], "{body}");
        }
        assert_eq!(last["choices"], json!([]));
        assert!(events.iter().all(|event| event.get("usage") == Some(&Value::Null)));
        let choices = list(&whole["choices"]);
        for (choice, (text, logprobs, finish)) in choices.iter().zip(joined(&events, choices.len(), "/text")) {
            assert_eq!((choice["text"].as_str(), &choice["finish_reason"]), (Some(&*text), &finish), "{body}");
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let of = |logprobs: &Value| logprobs[list].as_array().cloned().unwrap_or_default();
                let streamed: Vec<Value> = logprobs.iter().flat_map(of).collect();
                assert_eq!(streamed, of(&choice["logprobs"]), "{list} of {body}");
                let is_asked = !(body["logprobs"].is_null() || list == "top_logprobs" && body["logprobs"] == 0);
                assert_eq!(!streamed.is_empty(), is_asked && !text.is_empty(), "{list} of {body}");
            }
        }
    }
}

/// The log-softmax of each position, `[T][V]`.
fn log_softmax(ids: &[i64]) -> Vec<Vec<f64>> {
    let device = Device::flex();
    let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    let logits = letters().forward(tensor(&ids, &device));
    let logits = host(logits);
    let row = |row: &[f32]| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        row.iter().map(|x| f64::from(*x) - sum.ln()).collect()
    };
    logits.chunks(logits.len() / ids.len()).map(row).collect()
}

#[test]
fn echoed_prompt_has_the_log_softmax_of_the_model() {
    let host = Host::new(2);
    let ids = [0, 3, 3, 1, 9, 10, 4];
    let body = json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 3});
    let response = host.complete(&body);
    let choice = &response["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("addbjke"), Some("length")));
    let logprobs = &choice["logprobs"];
    let scored = list(&logprobs["token_logprobs"]);
    assert!(scored[0].is_null() && logprobs["top_logprobs"][0].is_null(), "the first token has no predecessor");
    let expected = log_softmax(&ids);
    for at in 1..ids.len() {
        let row = &expected[at - 1];
        let wanted = row[ids[at] as usize];
        assert!((number(&scored[at]) - wanted).abs() < 1e-4, "{at}: {} {wanted}", scored[at]);
        let top = logprobs["top_logprobs"][at].as_object().expect("the value is an object");
        let best = row.iter().copied().fold(f64::MIN, f64::max);
        let highest = top.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert!((3..=4).contains(&top.len()) && (highest - best).abs() < 1e-4, "{top:?}");
    }
    assert_eq!(logprobs["tokens"], json!(["a", "d", "d", "b", "j", "k", "e"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4, 5, 6]));
    // As sent by lm-eval, which discards the additional token.
    let body = json!({"prompt": ids, "max_tokens": 1, "echo": true, "logprobs": 3, "temperature": 0, "seed": 1234});
    let response = host.complete(&body);
    let with_one = list(&response["choices"][0]["logprobs"]["token_logprobs"]);
    assert_eq!(with_one[..ids.len()], *scored);
    assert_eq!(with_one.len(), ids.len() + 1);
}

#[test]
fn bias_changes_sampling_but_not_scores() {
    let host = Host::new(2);
    let plain = host.complete(&json!({"prompt": "abc", "temperature": 0, "logprobs": 0, "max_tokens": 1}));
    let token = text(&plain, 0);
    let id = ALPHABET.find(token).expect("the completion is a letter of the alphabet");
    let bias = json!({id.to_string(): -100});
    let biased = json!({"prompt": "abc", "temperature": 0, "logprobs": 11, "max_tokens": 1, "logit_bias": bias});
    let biased = host.complete(&biased);
    assert_ne!(text(&biased, 0), token);
    let scores = &biased["choices"][0]["logprobs"]["top_logprobs"][0];
    assert_eq!(scores[token], plain["choices"][0]["logprobs"]["token_logprobs"][0]);
}

#[test]
fn shared_prefix_is_cached() {
    let host = Host::new(2);
    let prompt = "abcdefghijkabcdefghijk";
    let cached = |body: Value| {
        let response = host.complete(&body);
        response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("the value is a number")
    };
    // The bias keeps the completion from matching the next prompt.
    assert_eq!(cached(json!({"prompt": prompt, "max_tokens": 3, "logit_bias": {"0": -100}})), 0);
    assert_eq!(cached(json!({"prompt": format!("{prompt}aa"), "max_tokens": 3, "temperature": 0})), 22);
    assert_eq!(cached(json!({"prompt": prompt, "max_tokens": 3})), 21, "the last token is read for its logits");
    assert_eq!(cached(json!({"prompt": "kkk", "max_tokens": 3})), 0);
}

#[test]
fn chat_equals_completion_of_the_rendered_prompt() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 2, None);
    let parts = json!([{"type": "text", "text": " ab"}, {"type": "text", "text": "c "}]);
    let messages = json!([{"role": "user", "content": parts}, {"role": "assistant", "content": "de"}]);
    let mut n_ended = 0;
    for seed in 0..6 {
        let body = json!({"messages": messages, "seed": seed, "logprobs": true, "top_logprobs": 2});
        let chat = host.post("/v1/chat/completions", &body).json(200);
        assert_eq!(chat["object"], "chat.completion");
        let (choice, usage) = (&chat["choices"][0], &chat["usage"]);
        // By default the answer may fill the context.
        let prompt = [9, 0, 1, 2, 10, 9, 3, 4, 10, 9];
        let n = 32 - prompt.len() + 1;
        let same = json!({"prompt": prompt, "seed": seed, "max_tokens": n});
        let completion = host.complete(&same);
        let content = choice["message"]["content"].as_str().expect("the value is a string");
        assert_eq!(
            (content, &choice["finish_reason"]),
            (text(&completion, 0), &completion["choices"][0]["finish_reason"])
        );
        n_ended += usize::from(choice["finish_reason"] == "stop");
        assert_eq!(usage["prompt_tokens"], prompt.len());
        let scores = list(&choice["logprobs"]["content"]);
        let tokens: String = scores.iter().filter_map(|score| score["token"].as_str()).collect();
        assert_eq!(tokens, content);
        for score in scores {
            assert_eq!(score["bytes"], json!(score["token"].as_str().expect("the value is a string").as_bytes()));
            assert_eq!(list(&score["top_logprobs"]).len(), 2);
        }
        let events = host.post("/v1/chat/completions", &changed(&body, json!({"stream": true}))).events();
        assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event.get("usage").is_none()));
        let (joined, logprobs, finish) = joined(&events, 1, "/delta/content").remove(0);
        let streamed: Vec<Value> =
            logprobs.iter().flat_map(|part| part["content"].as_array().cloned().unwrap_or_default()).collect();
        assert_eq!((joined.as_str(), &streamed[..], &finish), (content, scores, &choice["finish_reason"]));
    }
    assert!(n_ended > 0, "no answer ends by itself");
    // Fields without effect.
    let body = json!({"messages": messages, "seed": 1, "max_tokens": 5});
    let same = changed(&body, json!({"tools": [], "tool_choice": "auto", "metadata": {"a": "b"}, "min_tokens": 0}));
    let [one, other] = [body, same].map(|body| host.post("/v1/chat/completions", &body).json(200)["choices"].clone());
    assert_eq!(one, other);
    let refused = json!({"messages": [{"role": "robot", "content": "a"}]});
    assert!(host.post("/v1/chat/completions", &refused).message(400).contains("no robots"));
}

/// The bytes of a token as it is shown.
fn bytes_of(token: &Value) -> Vec<u8> {
    let token = token.as_str().expect("the value is a string");
    let byte = |digits: &str| u8::from_str_radix(digits, 16).expect("the value is a byte");
    let bytes = token.strip_prefix("bytes:").map(|bytes| bytes.split("\\x").skip(1).map(byte).collect());
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Whatever a tokenizer calls its tokens: `▁On`, `<0x8A>`, `##er`.
#[test]
fn tokens_with_log_probabilities_joined_are_the_text() {
    let names = ["llama2", "unigram", "wordpiece", "gpt2"];
    let tokenizers = names.map(|name| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        let tokenizer = Tokenizer::from_file(&folder.join(format!("{name}.json"))).expect("the file is valid");
        tokenizer.with_chat_template("{{ messages[0].content }}", &["<|end|>"], "<|end|>").expect("it is valid")
    });
    let models = names.iter().zip(&tokenizers);
    let models = models.map(|(name, tokenizer)| super::json::random(name, tokenizer.clone(), 64));
    let host = Host::of(models.collect(), 4, None);
    let bytes = |token: &Value| serde_json::from_value::<Vec<u8>>(token.clone()).expect("they are bytes");
    for (name, tokenizer) in names.iter().zip(&tokenizers) {
        let prompt = if *name == "unigram" { "Once upon a time" } else { "Once upon  a time, é\u{1f525}." };
        let decoded = tokenizer.decode(&tokenizer.encode(prompt).expect("it can be encoded"));
        let body = json!({"model": name, "prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 3});
        let logprobs = &host.complete(&body)["choices"][0]["logprobs"];
        let joined: Vec<u8> = list(&logprobs["tokens"]).iter().flat_map(bytes_of).collect();
        let added = tokenizer.bos().map_or_else(String::new, |bos| tokenizer.piece(bos));
        assert_eq!(String::from_utf8(joined).expect("the prompt is text"), added + &decoded, "{name}");
        // The text shows bytes that are no characters as U+FFFD, not as many as a lossy reading of the bytes.
        let single_bytes = (0..).take(tokenizer.n_ids()).filter(|id| tokenizer.piece(*id).starts_with("<0x"));
        let bias: serde_json::Map<String, Value> = single_bytes.map(|id| (id.to_string(), json!(-100))).collect();
        for seed in 0..5 {
            let messages = json!([{"role": "user", "content": "Once"}]);
            let body = json!({"model": name, "messages": messages, "max_tokens": 20, "seed": seed, "logprobs": true,
                "top_logprobs": 5, "logit_bias": bias});
            let choice = &host.post("/v1/chat/completions", &body).json(200)["choices"][0];
            let content = choice["message"]["content"].as_str().expect("the value is a string");
            let scores = list(&choice["logprobs"]["content"]);
            let joined: Vec<u8> = scores.iter().flat_map(|score| bytes(&score["bytes"])).collect();
            let joined = String::from_utf8_lossy(&joined);
            let [joined, content] = [&*joined, content].map(|text| text.trim_end_matches('\u{fffd}'));
            assert_eq!(joined, content, "{name}: {choice}");
            for token in scores.iter().chain(scores.iter().flat_map(|score| list(&score["top_logprobs"]))) {
                assert_eq!(bytes_of(&token["token"]), bytes(&token["bytes"]), "{token}");
                let text = token["token"].as_str().expect("the value is a string");
                assert!(!["▁", "##", "<0x"].iter().any(|spelled| text.starts_with(spelled)), "{name}: {token}");
            }
        }
        // llama.cpp's server lists tokens of a text so.
        let tokens = host.post("/tokenize", &json!({"model": name, "content": prompt, "with_pieces": true})).json(200);
        let piece = |token: &Value| match &token["piece"] {
            Value::String(text) => text.as_bytes().to_vec(),
            list => bytes(list),
        };
        let joined: Vec<u8> = list(&tokens["tokens"]).iter().flat_map(piece).collect();
        assert_eq!(String::from_utf8(joined).expect("the prompt is text"), decoded, "{name}");
    }
}

#[test]
fn stop_tokens_and_min_tokens_decide_the_end() {
    let stopping = |stop_token_ids| {
        let model = model("letters", &letters(), tokenizer());
        Host::of(vec![super::Model { stop_token_ids, ..model }], 2, None)
    };
    let host = stopping(Vec::new());
    let usual = json!({"prompt": "abc", "temperature": 0, "max_tokens": 12, "logprobs": 0});
    let greedy = |fields: Value| changed(&usual, fields);
    let free = host.complete(&greedy(json!({})));
    let free = text(&free, 0);
    let letter = free.chars().nth(4).expect("the completion has 12 letters");
    let at = free.find(letter).expect("the part exists");
    let ids = json!([u32::from(letter) - u32::from('a')]);
    let stopped = host.complete(&greedy(json!({"stop_token_ids": ids})));
    assert_eq!((text(&stopped, 0), &stopped["choices"][0]["finish_reason"]), (&free[..at], &json!("stop")));
    assert_eq!(stopped["usage"]["completion_tokens"], at + 1);
    // The model's own stop tokens do the same, unless they are ignored.
    let host = stopping(vec![u32::from(letter) - u32::from('a')]);
    assert_eq!(text(&host.complete(&greedy(json!({}))), 0), &free[..at]);
    let longer = host.complete(&greedy(json!({"min_tokens": at + 3})));
    assert!(text(&longer, 0).len() >= at + 3 && !text(&longer, 0)[..at + 3].contains(letter), "{longer}");
    let never = host.complete(&greedy(json!({"ignore_eos": true})));
    assert_eq!((text(&never, 0).len(), text(&never, 0).contains(letter)), (12, false));
    // With the largest penalties, the greedy completion avoids repeating letters.
    let varied = host.complete(&greedy(json!({"presence_penalty": 2, "frequency_penalty": 2, "ignore_eos": true})));
    let distinct = |text: &str| text.chars().collect::<std::collections::BTreeSet<_>>().len();
    assert!(distinct(text(&varied, 0)) > distinct(text(&never, 0)), "{varied} {never}");
    let seeds = json!({"temperature": 1.5, "seed": -1, "max_tokens": 30, "ignore_eos": true});
    let texts: std::collections::BTreeSet<String> =
        (0..4).map(|_| text(&host.complete(&greedy(seeds.clone())), 0).to_owned()).collect();
    assert!(texts.len() > 1, "-1 is another seed each time");
}

#[test]
fn template_receives_the_variables_of_the_request() {
    let template =
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if enable_thinking %}ab{% else %}c{% endif %}";
    let host = Host::of(vec![model("letters", &letters(), super::chatting_with(template))], 1, None);
    let n_tokens = |variables: Value| {
        let messages = json!([{"role": "user", "content": "abc"}]);
        let body = json!({"messages": messages, "max_tokens": 1, "chat_template_kwargs": variables});
        host.post("/v1/chat/completions", &body).json(200)["usage"]["prompt_tokens"].clone()
    };
    assert_eq!(n_tokens(json!({"enable_thinking": true})), 5);
    assert_eq!(n_tokens(json!({"enable_thinking": false})), 4);
    assert_eq!(n_tokens(json!({"messages": []})), 4, "they do not replace the template's own variables");
}

/// What the chat template makes of fields that it may know.
#[test]
fn fields_of_chats_reach_the_template() {
    let template = "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content or '' }}|{{ m.content }}]{% endfor %}\
                    {% if reasoning_effort %}({{ reasoning_effort }}){% endif %}{% if add_generation_prompt %}>{% endif %}";
    let trimming = template.replace("m.content", "m.content | trim");
    let knowing = format!("{template}{{# developer #}}");
    let models = [("plain", template), ("trimming", &*trimming), ("knowing", &*knowing)];
    let models = models.map(|(name, template)| model(name, &letters(), super::chatting_with(template)));
    let host = Host::of(models.into(), 1, None);
    let user = json!({"role": "user", "content": "a"});
    let thinking = json!([user, {"role": "assistant", "content": "b", "reasoning_content": "why"}]);
    let developer = json!([{"role": "developer", "content": "be brief"}, user]);
    let begun = json!([user, {"role": "assistant", "content": [{"type": "text", "text": " Once "}]}]);
    let continued = json!({"messages": begun, "continue_final_message": true});
    let low = json!({"messages": [user], "reasoning_effort": "low"});
    for (name, fields, expected) in [
        ("plain", low.clone(), "[user||a](low)>"),
        ("plain", changed(&low, json!({"chat_template_kwargs": {"reasoning_effort": "high"}})), "[user||a](high)>"),
        ("plain", json!({"messages": thinking}), "[user||a][assistant|why|b]>"),
        ("plain", json!({"messages": developer}), "[system||be brief][user||a]>"),
        ("knowing", json!({"messages": developer}), "[developer||be brief][user||a]>"),
        ("plain", continued.clone(), "[user||a][assistant|| Once "),
        ("trimming", continued.clone(), "[user||a][assistant||Once"),
        ("plain", changed(&continued, json!({"add_generation_prompt": false})), "[user||a][assistant|| Once "),
    ] {
        let body = changed(&fields, json!({"model": name}));
        assert_eq!(host.post("/apply-template", &body).json(200)["prompt"], expected, "{body}");
    }
    host.refuse(
        "/apply-template",
        &changed(&continued, json!({"add_generation_prompt": true})),
        "continue_final_message",
        true.into(),
    );
    let silent = super::chatting_with("{{ messages[0].content }}");
    let host = Host::of(vec![model("letters", &letters(), silent)], 1, None);
    assert!(host.post("/apply-template", &continued).message(400).contains("leaves out the end of the last message"));
    let counted = host.post("/v1/responses/input_tokens", &json!({"input": "abc", "reasoning": {"effort": "low"}}));
    assert_eq!(counted.json(200)["input_tokens"], 3);
}

#[test]
fn waiting_stream_sends_comments() {
    use std::io::Read;
    let models = vec![model("letters", &letters(), tokenizer())];
    let host = Host::with(models, 1, None, |options| tinderbox::serve::Options {
        keep_alive: std::time::Duration::from_millis(5),
        ..options
    });
    let long = json!({"prompt": "abc", "max_tokens": 30_000}).to_string();
    let _busy = host.send(&super::http("POST", "/v1/completions", "", long.as_bytes()));
    while host.metric("tinderbox_busy_places{model=\"letters\"}") == 0 {}
    let streamed = json!({"prompt": "abc", "stream": true, "max_tokens": 3}).to_string();
    let mut waiting = host.send(&super::http("POST", "/v1/completions", "", streamed.as_bytes()));
    let mut read = String::new();
    while !read.contains(": waiting\n\n") {
        let mut some = [0; 256];
        let n = waiting.read(&mut some).expect("the stream stays open");
        assert!(n > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&some[..n]));
    }
    assert!(!read.contains("data: "), "{read}");
}

#[test]
fn props_and_slots_follow_llama_cpp() {
    let models = vec![model("plain", &letters(), tokenizer()), model("chat", &letters(), chatting())];
    let host = Host::of(models, 3, None);
    let props = host.get("/props").json(200);
    assert_eq!(
        (&props["model_alias"], &props["total_slots"], &props["chat_template"]),
        (&json!("plain"), &json!(3), &json!(""))
    );
    assert_eq!(props["default_generation_settings"]["n_ctx"], 32);
    let chat = host.get("/props?model=chat").json(200);
    assert_eq!(chat["eos_token"], "<|end|>");
    assert!(chat["chat_template"].as_str().expect("the model has a template").contains("add_generation_prompt"));
    let slots = host.get("/slots").json(200);
    assert_eq!(list(&slots).len(), 3);
    assert_eq!(slots[2], json!({"id": 2, "n_ctx": 32, "speculative": false, "is_processing": false}));
    assert_eq!(host.get("/slots?model=none").error(404)["code"], "model_not_found");
    let with_pieces = host.post("/tokenize", &json!({"content": "ba", "with_pieces": true})).json(200);
    assert_eq!(with_pieces["tokens"], json!([{"id": 1, "piece": "b"}, {"id": 0, "piece": "a"}]));
    assert_eq!(with_pieces["pieces"], json!(["b", "a"]));
    assert_eq!(host.get("/models").json(200), host.get("/v1/models").json(200));
}

#[test]
fn metrics_have_types_and_quoted_names() {
    let host = Host::of(vec![model("a \"b\"", &letters(), tokenizer())], 16, None);
    host.complete(&json!({"prompt": "abc", "max_tokens": 5}));
    let page = host.get("/metrics").body;
    for line in [
        r#"responses_total{status="200"} 1"#,
        r#"prompt_tokens_total{model="a \"b\""} 3"#,
        r#"prompt_tokens_shared_total{model="a \"b\""} 0"#,
        r#"written_tokens_total{model="a \"b\""} 5"#,
        r#"waiting_texts{model="a \"b\""} 0"#,
        r#"places{model="a \"b\""} 16"#,
        r#"first_token_seconds_bucket{model="a \"b\"",le="+Inf"} 1"#,
        r#"first_token_seconds_count{model="a \"b\""} 1"#,
    ] {
        assert!(page.lines().any(|found| found.strip_prefix("tinderbox_") == Some(line)), "{line} in\n{page}");
    }
    let n_lines = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((n_lines("# TYPE "), n_lines("# HELP ")), (9, 9));
}

#[test]
fn rendered_prompt_is_returned_and_counted() {
    let host = Host::of(vec![model("letters", &letters(), chatting())], 2, None);
    let messages = json!([{"role": "user", "content": " abc "}]);
    let (to_answer, to_end) =
        (json!({"messages": messages}), json!({"messages": messages, "add_generation_prompt": false}));
    let prompt = |body: &Value| host.post("/apply-template", body).json(200)["prompt"].clone();
    assert_eq!(prompt(&to_answer), "<|start|>abc<|end|><|start|>");
    assert_eq!(prompt(&to_end), "<|start|>abc<|end|>");
    let long = json!({"messages": [{"role": "user", "content": "a".repeat(99)}]});
    assert_eq!(prompt(&long).as_str().expect("the value is a string").len(), 99 + "<|start|><|end|><|start|>".len());
    assert_eq!(host.post("/chat/completions/input_tokens", &long).error(400)["code"], "context_length_exceeded");
    for (body, n) in [(&to_answer, 6), (&to_end, 5)] {
        for prefix in ["/v1", ""] {
            let path = format!("{prefix}/chat/completions");
            let expected = json!({"object": "response.input_tokens", "input_tokens": n});
            assert_eq!(host.post(&format!("{path}/input_tokens"), body).json(200), expected);
            assert_eq!(
                host.post(&path, &changed(body, json!({"max_tokens": 1}))).json(200)["usage"]["prompt_tokens"],
                n
            );
        }
    }
    let counted = host.post("/v1/responses/input_tokens", &json!({"input": "abc"})).json(200);
    assert_eq!(counted["input_tokens"], 6);
}
