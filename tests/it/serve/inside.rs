//! `/v1/inspect`: the numbers of `tinderbox inspect`, and completions with heads ablated.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use super::program::program;
use super::{Host, ask, letters};

use crate::fixtures::{Folder, host, list, number};
use crate::properties::tensor;

/// The numbers as 32-bit floats, which they are.
fn floats(numbers: &Value) -> Vec<f32> {
    list(numbers).iter().map(|x| number(x) as f32).collect()
}

#[test]
fn attention_and_lens_equal_those_of_the_command() {
    let folder = Folder::trained();
    let (server, port) = program(&folder, &["runs/tiny"]);
    let prompt = "The cat sat";
    let inspect = |body: Value| ask(port, "POST", "/v1/inspect", &body).json(200);
    let found = inspect(json!({"prompt": prompt, "attention": true, "lens": true, "top": 3, "attribution": 4}));
    let always = ["--prompt", prompt, "--format", "json"];
    let attention = folder.json(&[&["inspect", "attention", "runs/tiny"][..], &always].concat());
    assert_eq!(found["tokens"], attention["tokens"]);
    let shown = &found["attention"]["weights"];
    assert_eq!(list(shown).len(), list(&attention["weights"]).len());
    for (layer, heads) in list(&attention["weights"]).iter().enumerate() {
        for (head, rows) in list(heads).iter().enumerate() {
            for (query, row) in list(rows).iter().enumerate() {
                assert_eq!(floats(&shown[layer][head][query]), floats(row)[..=query], "{layer}.{head} {query}");
            }
        }
    }
    let lens = folder.json(&[&["inspect", "lens", "runs/tiny", "--top", "3", "--token", "4"][..], &always].concat());
    assert_eq!(found["lens"], lens["positions"]);
    assert_eq!(found["attribution"], lens["attribution"]);
    let some =
        inspect(json!({"prompt": prompt, "attention": true, "lens": true, "layer": 1, "head": 0, "range": [2, 5]}));
    assert_eq!(some["attention"]["weights"], json!([[list(&shown[1][0])[2..5]]]));
    let positions: Vec<&Value> = list(&some["lens"]).iter().map(|at| &at["position"]).collect();
    assert_eq!(positions, [2, 3, 4]);
    server.kill();
}

#[test]
fn ablation_changes_the_completion_only_for_its_request() {
    let host = Host::new(1);
    let inspect = |body: Value| host.post("/v1/inspect", &body).json(200);
    let whole = inspect(json!({"prompt": "abcabcab", "max_tokens": 12}));
    assert_eq!(whole.get("ablation"), None);
    let without = inspect(json!({"prompt": "abcabcab", "max_tokens": 12, "ablate": [[1, 0], [0, 1], [1, 0]]}));
    let ablation = &without["ablation"];
    assert_eq!(ablation["heads"], json!([[0, 1], [1, 0]]));
    for field in ["loss", "losses", "next", "continuation"] {
        assert_eq!(without[field], whole[field], "the model itself is unchanged");
        assert_ne!(ablation[field], whole[field], "{field}");
    }
    let losses: Vec<f64> = list(&whole["losses"]).iter().filter_map(Value::as_f64).collect();
    let mean = losses.iter().sum::<f64>() / 7.0;
    assert_eq!(losses.len(), 7);
    assert!((number(&whole["loss"]) - mean).abs() < 1e-12);
    // The completion and its scores equal those of `/v1/completions`.
    let written = host.complete(&json!({
        "prompt": "abcabcab", "max_tokens": 12, "temperature": 0, "echo": true, "logprobs": 0,
    }));
    let text = format!("abcabcab{}", whole["continuation"]["text"].as_str().expect("the value is a string"));
    assert_eq!(written["choices"][0]["text"], text);
    let logprobs = list(&written["choices"][0]["logprobs"]["token_logprobs"]);
    for (loss, logprob) in losses.iter().zip(&logprobs[1..]) {
        assert!((loss + number(logprob)).abs() < 1e-4, "{loss} {logprob}");
    }
    let patterns = inspect(json!({"prompt": [0, 1, 2, 0, 1, 2], "patterns": true}));
    assert!(patterns["patterns"][1][1]["kind"].is_string(), "{patterns}");
    assert!(patterns["patterns"][1][1]["previous_token"].is_number(), "{patterns}");
}

#[test]
fn embedding_is_the_mean_of_the_last_residual_stream() {
    let server = Host::new(1);
    let ids = json!([[0, 1, 2], [3]]);
    let answer = server.post("/v1/embeddings", &json!({"input": ["abc", "d"], "encoding_format": "float"})).json(200);
    assert_eq!(
        server.post("/v1/embeddings", &json!({"input": ids})).json(200),
        answer,
        "tokens and text give the same vectors"
    );
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("letters")));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
    assert_eq!([&answer["data"][0]["index"], &answer["data"][1]["index"]], [0, 1]);
    let model = letters();
    let stream = host(model.stream(tensor(&[0, 1, 2], &model.device())));
    let width = model.config().d_model;
    let mean: Vec<f64> =
        (0..width).map(|i| (0..3).map(|t| f64::from(stream[t * width + i])).sum::<f64>() / 3.0).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    let found = floats(&answer["data"][0]["embedding"]);
    assert_eq!(found.len(), width);
    for (found, mean) in found.iter().zip(&mean) {
        assert!((f64::from(*found) - mean / length).abs() < 1e-5, "{found} is not {}", mean / length);
    }
    let encoded = server.post("/v1/embeddings", &json!({"input": "abc", "encoding_format": "base64"})).json(200);
    let bytes = BASE64_STANDARD
        .decode(encoded["data"][0]["embedding"].as_str().expect("the value is a string"))
        .expect("the vector is base64");
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(numbers, found);
}
