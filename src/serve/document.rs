//! `/openapi.json`: the description of the server, made with its router from the types of requests and responses.

use axum::Router;
use axum::routing::{MethodRouter, get};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::chat::MessageFields;
use super::embeddings::EmbeddingFields;
use super::error::ErrorBody;
use super::forms::{ChatRequest, CompletionRequest, ResponseRequest};
use super::http::json_response;
use super::inspect::{InspectFields, Inspection};
use super::library::ListedModel;
use super::schema;
use super::tokens::{DetokenizeRequest, TokenizeRequest};
use super::writer::{ChatCompletionBody, CompletionBody, Usage};

/// A router whose routes are described.
pub(super) struct Described<S> {
    router: Router<S>,
    paths: Map<String, Value>,
}

impl<S: Clone + Send + Sync + 'static> Default for Described<S> {
    fn default() -> Self {
        Self { router: Router::new(), paths: Map::new() }
    }
}

impl<S: Clone + Send + Sync + 'static> Described<S> {
    /// Adds a route that takes GET requests.
    pub(super) fn get(&mut self, path: &str, handler: MethodRouter<S>) -> Description<'_> {
        self.route(path, handler, "get")
    }

    /// Adds a route that takes POST requests with a schema of this name.
    pub(super) fn post(&mut self, path: &str, handler: MethodRouter<S>, request: &str) -> Description<'_> {
        let description = self.route(path, handler, "post");
        description.0["requestBody"] = json!({"required": true, "content": json_content(reference(request))});
        description
    }

    fn route(&mut self, path: &str, handler: MethodRouter<S>, method: &str) -> Description<'_> {
        self.router = std::mem::take(&mut self.router).route(path, handler);
        let path = path.replace("{*", "{"); // axum's sign for the rest of an address
        let mut description = json!({});
        if path.contains('{') {
            description["parameters"] =
                json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        let described = self.paths.entry(path).or_insert(json!({method: description}));
        Description(&mut described[method]).fails("")
    }

    /// The router, with `/openapi.json`, which describes it.
    pub(super) fn finish(mut self) -> Router<S> {
        let (path, content) = ("/openapi.json", json_content(json!({"type": "object"})));
        self.get(path, MethodRouter::new()).summary("This document").returns(content);
        let document = document(self.paths);
        self.router.route(path, get(move || async move { json_response(document) }))
    }
}

/// The description of a route.
pub(super) struct Description<'a>(&'a mut Value);

impl Description<'_> {
    pub(super) fn summary(self, summary: &str) -> Self {
        self.0["summary"] = summary.into();
        self
    }

    /// The content of the response.
    pub(super) fn returns(self, content: Value) -> Self {
        self.0["responses"]["200"] = json!({"description": "Done.", "content": content});
        self
    }

    /// Statuses besides the usual ones.
    pub(super) fn fails(self, more: &str) -> Self {
        let errors = format!(
            "400 (a field and its range), 401, 403, 404, 405, 408, {more}413, 429 with Retry-After, 500 or 503."
        );
        self.0["responses"]["default"] = json!({"description": errors, "content": json_content(reference("Error"))});
        self
    }
}

pub(super) fn json_content(schema: Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// JSON, or events with `stream`.
pub(super) fn json_or_events(schema: Value, events: &str) -> Value {
    let mut content = json_content(schema);
    content["text/event-stream"] = json!({"schema": {"type": "string", "description": events}});
    content
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn request<T: JsonSchema + 'static>() -> (String, Value) {
    let mut schema = Value::clone(&schema::request::<T>());
    if T::schema_name() != "Message" {
        schema["properties"]["model"] = json!({
            "type": "string",
            "description": "A model that /v1/models lists; by default the first one.",
        });
    }
    (T::schema_name().into_owned(), schema)
}

/// A response whose field `object` names its type.
fn object<T: JsonSchema>(object: &str) -> Value {
    let mut schema = schema::response::<T>();
    schema["properties"]["object"]["enum"] = json!([object]);
    schema["properties"]["usage"] = reference("Usage");
    schema
}

fn document(paths: Map<String, Value>) -> String {
    let mut schemas = Map::from_iter([
        request::<ChatRequest>(),
        request::<CompletionRequest>(),
        request::<DetokenizeRequest>(),
        request::<EmbeddingFields>(),
        request::<InspectFields>(),
        request::<MessageFields>(),
        request::<ResponseRequest>(),
        request::<TokenizeRequest>(),
    ]);
    schemas.extend([
        ("ChatCompletion".to_owned(), object::<ChatCompletionBody>("chat.completion")),
        ("Completion".to_owned(), object::<CompletionBody>("text_completion")),
        ("Error".to_owned(), schema::response::<ErrorBody<'_>>()),
        ("Inspection".to_owned(), schema::response::<Inspection<'_>>()),
        ("Model".to_owned(), schema::response::<ListedModel>()),
        ("Usage".to_owned(), schema::response::<Usage>()),
    ]);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tinderbox",
            "version": "1",
            "description": "The API of `tinderbox serve`: OpenAI's API, as far as text models need it. A parameter that is \
                            not listed here is rejected.",
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
    .to_string()
}
