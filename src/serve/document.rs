//! `/openapi.json`: the description of the server, made with its router from the types of requests and responses.

use axum::Router;
use axum::routing::{MethodRouter, get};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::error::ErrorBody;
use super::fields::{request_schema, response_schema};
use super::http::json_response;
use super::inspect::Inspection;
use super::library::ListedModel;
use super::prompt::MessageFields;
use super::service::Shared;
use super::writer::{ChatCompletionBody, CompletionBody, Usage};

#[derive(Default)]
pub(super) struct Described {
    router: Router<Shared>,
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Described {
    /// Adds a route that takes GET requests.
    pub(super) fn get(&mut self, path: &str, handler: MethodRouter<Shared>) -> Description<'_> {
        self.route("get", path, handler)
    }

    /// Adds a route that takes POST requests of the type `T`.
    pub(super) fn post<T: JsonSchema + 'static>(
        &mut self,
        path: &str,
        handler: MethodRouter<Shared>,
    ) -> Description<'_> {
        let mut schema = Value::clone(&request_schema::<T>());
        schema["properties"]["model"] = json!({
            "type": "string",
            "description": "A model that /v1/models lists; by default the first one.",
        });
        self.schemas.insert(T::schema_name().into_owned(), schema);
        let description = self.route("post", path, handler);
        let content = json_content(reference(&T::schema_name()));
        description.0["requestBody"] = json!({"required": true, "content": content});
        description
    }

    fn route(&mut self, method: &str, path: &str, handler: MethodRouter<Shared>) -> Description<'_> {
        self.router = std::mem::take(&mut self.router).route(path, handler);
        let path = path.replace("{*", "{"); // axum's sign for the rest of an address
        let errors = "400 (a field and its range), 401, 403, 404, 405, 408, 409 (the checkpoint was removed), 413, 429 \
                      with Retry-After, 500 or 503.";
        let content = json_content(reference("Error"));
        let mut description = json!({"responses": {"default": {"description": errors, "content": content}}});
        if path.contains('{') {
            description["parameters"] =
                json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        let described = self.paths.entry(path).or_insert(json!({method: description}));
        Description(&mut described[method])
    }

    /// The router, with `/openapi.json`, which describes it.
    pub(super) fn finish(mut self) -> Router<Shared> {
        let (path, content) = ("/openapi.json", json_content(json!({"type": "object"})));
        self.get(path, MethodRouter::new()).summary("This document").returns(content);
        let document = document(self.paths, self.schemas);
        self.router.route(path, get(move || async move { json_response(document) }))
    }
}

pub(super) struct Description<'a>(&'a mut Value);

impl Description<'_> {
    pub(super) fn summary(self, summary: &str) -> Self {
        self.0["summary"] = summary.into();
        self
    }

    pub(super) fn returns(self, content: Value) {
        self.0["responses"]["200"] = json!({"description": "Done.", "content": content});
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

/// A response whose field `object` names its type.
fn object<T: JsonSchema>(object: &str) -> Value {
    let mut schema = response_schema::<T>();
    schema["properties"]["object"]["enum"] = json!([object]);
    schema["properties"]["usage"] = reference("Usage");
    schema
}

fn document(paths: Map<String, Value>, mut schemas: Map<String, Value>) -> String {
    schemas.extend([
        ("ChatCompletion".to_owned(), object::<ChatCompletionBody>("chat.completion")),
        ("Completion".to_owned(), object::<CompletionBody>("text_completion")),
        ("Error".to_owned(), response_schema::<ErrorBody<'_>>()),
        ("Inspection".to_owned(), response_schema::<Inspection<'_>>()),
        ("Message".to_owned(), Value::clone(&request_schema::<MessageFields>())),
        ("Model".to_owned(), response_schema::<ListedModel>()),
        ("Usage".to_owned(), response_schema::<Usage>()),
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
