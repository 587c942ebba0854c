//! JSON Schemas of the types of requests and responses. Requests are checked against theirs.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

/// Schemas of requests, made on first use.
static REQUESTS: LazyLock<Mutex<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(Mutex::default);

/// The schema of a request, made on first use.
pub(super) fn request<T: JsonSchema + 'static>() -> Arc<Value> {
    let mut known = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make_request::<T>())).clone()
}

fn make_request<T: JsonSchema>() -> Value {
    let mut schema = schema::<T>(Contract::Deserialize);
    schema["additionalProperties"] = false.into();
    for property in schema["properties"].as_object_mut().expect("a request has fields").values_mut() {
        // Null counts as absent.
        let property = property.as_object_mut().expect("the schema of a field is an object");
        property.retain(|key, value| !(key == "default" && value.is_null()));
        if let Some([only, _]) = property.get("type").and_then(Value::as_array).map(Vec::as_slice) {
            let only = only.clone();
            property.insert("type".to_owned(), only);
        }
    }
    schema
}

/// The schema of a response.
pub(super) fn response<T: JsonSchema>() -> Value {
    schema::<T>(Contract::Serialize)
}

fn schema<T: JsonSchema>(contract: Contract) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.contract = contract;
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.transforms.push(Box::new(RecursiveTransform(plain)));
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    schema.as_object_mut().expect("the schema of a struct is an object").remove("title");
    schema
}

/// Removes the number formats of Rust and the line breaks of comments.
fn plain(schema: &mut Schema) {
    schema.remove("format");
    if let Some(description) = schema.get("description").and_then(Value::as_str) {
        let description = description.replace('\n', " ");
        schema.insert("description".to_owned(), description.into());
    }
}
