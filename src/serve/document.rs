//! `/openapi.json`: the description of the server, made of the types of requests and responses.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::answer::{ChatCompletion, Completion, Usage};
use super::chat::MessageFields;
use super::embeddings::{EmbeddingFields, Embeddings};
use super::error::ErrorBody;
use super::inspect::{InspectFields, Inspection};
use super::request::{ChatRequest, CompletionRequest, StreamOptions};
use super::responses::ResponseRequest;
use super::routes::{DetokenizeRequest, Detokenized, ModelBody, TokenizeRequest, Tokenized};
use super::view::ViewFields;

/// The schemas of requests, by the names of their types.
static REQUESTS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    [
        request::<ChatRequest>(),
        request::<CompletionRequest>(),
        request::<DetokenizeRequest>(),
        request::<EmbeddingFields>(),
        request::<InspectFields>(),
        request::<MessageFields>(),
        request::<ResponseRequest>(),
        request::<StreamOptions>(),
        request::<TokenizeRequest>(),
        request::<ViewFields>(),
    ]
    .into()
});

/// The schema of a request.
pub(super) fn request_schema<T: JsonSchema>() -> &'static Value {
    &REQUESTS[&*T::schema_name()]
}

fn schema<T: JsonSchema>(contract: Contract) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.contract = contract;
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.transforms.push(Box::new(RecursiveTransform(plain)));
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    schema.as_object_mut().expect("of a struct").remove("title");
    schema
}

/// Removes what only Rust knows: the formats of numbers, and the line breaks of comments.
fn plain(schema: &mut Schema) {
    schema.remove("format");
    if let Some(description) = schema.get("description").and_then(Value::as_str) {
        let description = description.replace('\n', " ");
        schema.insert("description".to_owned(), description.into());
    }
}

fn response<T: JsonSchema>() -> Value {
    schema::<T>(Contract::Serialize)
}

/// The name and the schema of a request.
pub(super) fn request<T: JsonSchema>() -> (String, Value) {
    let mut schema = schema::<T>(Contract::Deserialize);
    schema["additionalProperties"] = false.into();
    for property in schema["properties"].as_object_mut().expect("fields").values_mut() {
        // Null counts as missing.
        let property = property.as_object_mut().expect("a described field");
        property.retain(|key, value| !(key == "default" && value.is_null()));
        if let Some([only, _]) = property.get("type").and_then(Value::as_array).map(Vec::as_slice) {
            let only = only.clone();
            property.insert("type".to_owned(), only);
        }
    }
    (T::schema_name().into_owned(), schema)
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A response of which `object` says what it is.
fn object<T: JsonSchema>(object: &str) -> Value {
    let mut schema = response::<T>();
    schema["properties"]["object"]["enum"] = json!([object]);
    schema["properties"]["usage"] = reference("Usage");
    schema
}

/// A path with one method. `more_errors` are statuses besides the usual ones.
fn path(summary: &str, request: Option<&str>, content: Value, more_errors: &str) -> Value {
    let errors = format!(
        "400 (a field and its range), 401, 403, 404, 405, 408, {more_errors}413, 429 with Retry-After, 500 or 503."
    );
    let mut path = json!({"summary": summary, "responses": {
        "200": {"description": "Done.", "content": content},
        "default": {"description": errors, "content": {"application/json": {"schema": reference("Error")}}},
    }});
    let Some(request) = request else { return json!({"get": path}) };
    path["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": reference(request)}}});
    json!({"post": path})
}

fn paths() -> Value {
    let of = |schema: Value| json!({"application/json": {"schema": schema}});
    let get = |summary: &str, content: Value| path(summary, None, content, "");
    let post = |summary: &str, request: &str, content: Value| path(summary, Some(request), content, "");
    let texts = |response: &str| {
        let mut content = of(reference(response));
        content["text/event-stream"] = json!({"schema": {
            "type": "string",
            "description": "With stream: events `data: {...}` as OpenAI sends them, the last of them `data: [DONE]`.",
        }});
        content
    };
    let input_tokens = of(json!({"type": "object", "properties": {
        "object": {"type": "string", "enum": ["response.input_tokens"]},
        "input_tokens": {"type": "integer"},
    }}));
    let mut model = get("A model", of(reference("Model")));
    model["get"]["parameters"] =
        json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}]);
    json!({
        "/v1/models": get("The models", of(json!({"type": "object", "properties": {
            "object": {"type": "string", "enum": ["list"]},
            "data": {"type": "array", "items": reference("Model")},
        }}))),
        "/v1/models/{name}": model,
        "/v1/completions": post("Write on from prompts", "CompletionRequest", texts("Completion")),
        "/v1/chat/completions": post(
            "Answer a conversation, with a model that has a chat template", "ChatRequest", texts("ChatCompletion"),
        ),
        "/v1/responses": post("Answer a conversation, in OpenAI's newer form", "ResponseRequest", json!({
            "application/json": {"schema": {"type": "object", "properties": {
                "id": {"type": "string"},
                "object": {"type": "string", "enum": ["response"]},
                "status": {"type": "string", "enum": ["completed", "incomplete"]},
                "output": {"type": "array", "items": {"type": "object"}},
                "usage": {"type": "object"},
            }}},
            "text/event-stream": {"schema": {
                "type": "string",
                "description": "With stream: events from response.created to response.completed, as OpenAI sends them.",
            }},
        })),
        "/v1/chat/completions/input_tokens": post("The tokens of a conversation", "ChatRequest", input_tokens.clone()),
        "/v1/responses/input_tokens": post("The tokens of a conversation", "ResponseRequest", input_tokens),
        "/v1/embeddings": post(
            "The vectors of texts: the mean of the last residual stream", "EmbeddingRequest", of(response::<Embeddings>()),
        ),
        "/v1/inspect": path(
            "What the model does with a text: attention, lens, patterns of heads, and the text without some heads",
            Some("InspectRequest"), of(reference("Inspection")), "409 (the checkpoint was removed), ",
        ),
        "/tokenize": post("The tokens of a text", "TokenizeRequest", of(response::<Tokenized>())),
        "/detokenize": post("The text of tokens", "DetokenizeRequest", of(response::<Detokenized>())),
        "/apply-template": post("The prompt that the chat template makes of a conversation", "ChatRequest", of(
            json!({"type": "object", "properties": {"prompt": {"type": "string"}}}),
        )),
        "/health": get("Whether it answers; needs no key", of(
            json!({"type": "object", "properties": {"status": {"type": "string", "enum": ["ok"]}}}),
        )),
        "/metrics": get("Counters, for Prometheus", json!({"text/plain": {"schema": {"type": "string"}}})),
        "/props": get("A model, as llama.cpp's server describes one; ?model=NAME", of(json!({"type": "object"}))),
        "/slots": get("The slots of a model, as llama.cpp's server lists them; ?model=NAME", of(
            json!({"type": "array", "items": {"type": "object"}}),
        )),
        "/openapi.json": get("This document", of(json!({"type": "object"}))),
    })
}

/// The document.
pub(super) fn json() -> String {
    let mut schemas: Map<String, Value> = REQUESTS.clone().into_iter().collect();
    for own in ["StreamOptions", "ViewFields"] {
        schemas.remove(own); // part of another request, and the page's
    }
    for request in [
        "ChatRequest",
        "CompletionRequest",
        "DetokenizeRequest",
        "EmbeddingRequest",
        "InspectRequest",
        "ResponseRequest",
        "TokenizeRequest",
    ] {
        schemas[request]["properties"]["model"] = json!({
            "type": "string",
            "description": "A model that /v1/models lists; the first one if there is none.",
        });
    }
    schemas.extend([
        ("ChatCompletion".to_owned(), object::<ChatCompletion>("chat.completion")),
        ("Completion".to_owned(), object::<Completion>("text_completion")),
        ("Error".to_owned(), response::<ErrorBody<'_>>()),
        ("Inspection".to_owned(), response::<Inspection<'_>>()),
        ("Model".to_owned(), response::<ModelBody<'_>>()),
        ("Usage".to_owned(), response::<Usage>()),
    ]);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tinderbox",
            "version": "1",
            "description": "What `tinderbox serve` answers: OpenAI's API, as far as models of text need it. A parameter \
                            that is not listed here is refused.",
        },
        "security": [{}, {"key": []}],
        "paths": paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
    .to_string()
}
