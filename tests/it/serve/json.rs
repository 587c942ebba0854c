//! Completions in the format that the request asks for: JSON, or JSON of a schema.

use burn::tensor::Device;
use serde_json::{Value, json};
use tinderbox::model::Gpt;
use tinderbox::tokenizer::Tokenizer;

use crate::fixtures::list;

use super::{Host, changed, config, joined, letters, model, text};

/// Whether a value matches the schema: an implementation of JSON Schema that is independent of grammars.
fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema == &Value::Bool(true) };
    let is_of = |kind: &Value| match kind.as_str().expect("the type is a string") {
        // JSON Schema counts -0 as an integer, which serde_json reads as a float.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|it| it == 0.0),
        "number" => value.is_number(),
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    schema.iter().all(|(keyword, rule)| match keyword.as_str() {
        "type" => rule.as_array().map_or_else(|| is_of(rule), |kinds| kinds.iter().any(is_of)),
        "enum" => list(rule).contains(value),
        "const" => rule == value,
        "anyOf" => list(rule).iter().any(|choice| is_valid(value, choice, root)),
        "$ref" => {
            let pointer = rule.as_str().and_then(|path| path.strip_prefix('#')).expect("the reference is local");
            is_valid(value, root.pointer(pointer).expect("the part exists"), root)
        }
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| is_valid(item, rule, root))),
        "required" => value.as_object().is_none_or(|object| {
            list(rule).iter().all(|name| object.contains_key(name.as_str().expect("the value is a name")))
        }),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(name, value)| rule.get(name).is_none_or(|rule| is_valid(value, rule, root)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let is_known = |name: &String| schema.get("properties").is_some_and(|known| known.get(name).is_some());
            let mut others = object.iter().filter(|(name, _)| !is_known(name));
            others.all(|(_, value)| is_valid(value, rule, root))
        }),
        "$defs" | "title" | "description" | "default" => true,
        other => panic!("{other}"),
    })
}

fn schemas() -> Vec<Value> {
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let text = json!({"type": "string"});
    let tree = json!({"type": "object", "required": ["value", "left", "right"], "additionalProperties": false,
        "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}});
    vec![
        json!({"type": "object"}),
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"type": ["integer", "null", "string"]}),
        json!({"enum": ["red", "green", "greenish", 7, null, {"a": [1]}]}),
        json!({"const": {"kind": "é", "list": [1, 2]}}),
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}),
        object(json!({"name": text, "age": {"type": "integer"}}), json!(["name", "age"])),
        object(json!({"a": text, "b": {"type": "number"}, "c": {"type": "null"}, "d": text}), json!(["c"])),
        object(json!({}), json!([])),
        object(json!({"a \"quoted\" näme": {"type": "boolean"}}), json!(["a \"quoted\" näme"])),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"anyOf": [
            object(json!({"kind": {"const": "circle"}, "radius": {"type": "number"}}), json!(["kind", "radius"])),
            object(json!({"kind": {"const": "cross"}, "size": {"type": "integer"}}), json!(["kind", "size"])),
        ]}),
        json!({"$defs": {"tree": {"anyOf": [{"type": "null"}, tree]}}, "$ref": "#/$defs/tree"}),
        json!({"type": "object", "title": "Steps", "description": "as pydantic writes them", "properties": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}}, "answer": {"type": "string"}},
            "required": ["steps", "answer"], "additionalProperties": false, "$defs": {"Step": object(
                json!({"explanation": {"type": "string"}, "output": {"type": "string", "title": "Output"}}),
                json!(["explanation", "output"]))}}),
        json!({"type": "object", "properties": {"anything": {}, "list": {"type": "array"}}, "required": ["anything"]}),
    ]
}

/// A random model, which generates all tokens about equally often.
pub(super) fn random(name: &str, tokenizer: Tokenizer, context_length: usize) -> super::Model {
    let model = Gpt::new(&config(context_length), tokenizer.vocab_size(), 3, &Device::flex());
    super::model(name, &model, tokenizer)
}

fn words() -> Tokenizer {
    let sample = r#"{"name": "Ann", "age": 12, "tags": ["a", "b"], "ok": true} {"name": "Öl", "kind": null}, "日本" "#;
    Tokenizer::train_bpe(330, &sample.repeat(4))
}

fn characters() -> Tokenizer {
    let alphabet = (' '..='~').chain("\né".chars()).chain("ä".chars());
    Tokenizer::char_from_alphabet(alphabet).expect("the alphabet is valid")
}

fn host() -> Host {
    let models = vec![
        random("words", words(), 64),
        random("characters", characters(), 64),
        random("bytes", Tokenizer::byte(), 64),
    ];
    Host::of(models, 4, None)
}

/// Makes quotes and closing brackets likelier, since few completions of a random model would end otherwise.
fn ending(name: &str) -> Value {
    let tokenizer = match name {
        "words" => words(),
        "characters" => characters(),
        _ => Tokenizer::byte(),
    };
    let id = |text: &str| tokenizer.encode(text).expect("the tokenizer has the token")[0].to_string();
    json!({id("\""): 4, id("]"): 3, id("}"): 3})
}

#[test]
fn random_models_generate_json_of_every_schema() {
    let host = host();
    let schemas = schemas();
    assert_eq!(schemas.len(), 20);
    let (mut n_texts, mut n_ended, mut n_large) = (0, 0, 0);
    for (name, n) in [("words", 5), ("characters", 2), ("bytes", 2)] {
        for schema in &schemas {
            let format =
                json!({"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}});
            let body = json!({"model": name, "prompt": "a", "n": n, "seed": 5, "max_tokens": 2000,
                "response_format": format, "logit_bias": ending(name)});
            let response = host.complete(&body);
            for (i, choice) in list(&response["choices"]).iter().enumerate() {
                n_texts += 1;
                if choice["finish_reason"] == "length" {
                    continue;
                }
                n_ended += 1;
                let text = text(&response, i);
                match serde_json::from_str(text) {
                    Ok(value) => assert!(is_valid(&value, schema, schema), "{schema}: {text}"),
                    // Such as 1e999: valid JSON of the schema, which bounds no number. llguidance's grammar of unbounded
                    // numbers takes any exponent, without an option, and that of bounded ones takes none at all.
                    Err(error) if error.to_string().starts_with("number out of range") => n_large += 1,
                    Err(error) => panic!("{schema}: {text}: {error}"),
                }
            }
        }
    }
    println!("{n_ended} of {n_texts} completions ended, {n_large} with a number that no f64 holds");
    assert!(n_large * 10 <= n_ended, "{n_large} of {n_ended}");
    assert!(n_ended * 10 >= n_texts * 9, "{n_ended} of {n_texts} ended");
}

#[test]
fn json_is_batched_streamed_and_cut_like_any_completion() {
    let host = host();
    let format = json!({"type": "json_object"});
    let body = json!({"model": "words", "prompt": "{", "n": 3, "seed": 1, "temperature": 0.7, "max_tokens": 300,
        "response_format": format, "logit_bias": ending("words"), "logprobs": 0});
    let free = json!({"model": "words", "prompt": "{", "n": 8, "seed": 2, "max_tokens": 300});
    let alone = host.complete(&body);
    let (beside, _) = std::thread::scope(|scope| {
        let free = scope.spawn(|| host.complete(&free));
        (host.complete(&body), free.join().expect("the request succeeds"))
    });
    assert_eq!(alone["choices"], beside["choices"]);
    assert!(list(&alone["choices"]).iter().any(|choice| choice["finish_reason"] == "stop"), "{alone}");
    let events = host.post("/v1/completions", &changed(&body, json!({"stream": true}))).events();
    for (i, (streamed, _, finish)) in joined(&events, 3, "/text").into_iter().enumerate() {
        assert_eq!((streamed.as_str(), &finish), (text(&alone, i), &alone["choices"][i]["finish_reason"]));
    }
    let with = |field: &str, value: Value| host.complete(&changed(&body, json!({field: value})));
    let whole = text(&alone, 0).to_owned();
    let cut = with("max_tokens", json!(1));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(whole.starts_with(text(&cut, 0)) && text(&cut, 0).len() < whole.len(), "{whole} {cut}");
    let stopped = with("stop", json!(["\""]));
    let before = whole.split('"').next().expect("the completion is not empty");
    assert_eq!((text(&stopped, 0), stopped["choices"][0]["finish_reason"].as_str()), (before, Some("stop")));
    // The end-of-text token is sampled only where the JSON is complete, even if it could continue.
    let integer = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}});
    for seed in 0..6 {
        let body = json!({"model": "words", "prompt": "1", "seed": seed, "response_format": integer,
            "logit_bias": {"0": 100}, "max_tokens": 40});
        let response = host.complete(&body);
        text(&response, 0).trim().parse::<i64>().unwrap_or_else(|error| panic!("{error}: {response}"));
        assert_eq!(response["choices"][0]["finish_reason"], "stop");
    }
    // llama.cpp's server takes a schema here as well.
    let constant =
        json!({"prompt": "a", "max_tokens": 60, "response_format": {"type": "json_object", "schema": {"const": "b"}}});
    let response = host.complete(&constant);
    assert_eq!(text(&response, 0).trim(), "\"b\"", "{response}");
    let text_only = json!({"type": "text"});
    assert_eq!(
        host.complete(&json!({"prompt": "a", "seed": 1, "response_format": text_only}))["choices"],
        host.complete(&json!({"prompt": "a", "seed": 1}))["choices"]
    );
}

#[test]
fn unsupported_formats_are_rejected() {
    let host = Host::of(vec![random("words", words(), 64), model("letters", &letters(), super::tokenizer())], 1, None);
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    for (format, part) in [
        (json!({"type": "xml"}), "must be an object with the `type`"),
        (json!("json"), "must be an object"),
        (json!({"type": "json_schema"}), "needs `json_schema` with a `schema`"),
        (schema(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
        (schema(json!({"items": {"not": {"type": "null"}}})), "\"not\""),
        (json!({"type": "json_object", "schema": {"items": {"contains": {}}}}), "contains"),
    ] {
        let error = host.refuse("/v1/completions", &json!({"prompt": "a"}), "response_format", format);
        assert!(error["message"].as_str().expect("the value is a string").contains(part), "{error}");
    }
    let body = json!({"model": "letters", "prompt": "a", "response_format": {"type": "json_object"}});
    assert!(host.post("/v1/completions", &body).message(400).contains("its vocabulary has no '{'"));
}
