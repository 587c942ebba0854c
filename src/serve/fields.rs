//! The fields of a request, checked against the schema of its type. Errors name the field and its range; fields that the
//! schema does not have are rejected.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{ApiError, echoed};
use crate::json;

/// The fields of a request, or of an object in it.
pub(super) type Fields = Map<String, Value>;

/// The fields of a request's body.
pub(super) fn read(body: &[u8]) -> Result<Fields, ApiError> {
    match json::parse(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ApiError::bad_request("the body is JSON, but not an object: it must be {...}")),
        Err(error) => Err(ApiError::bad_request(format!("the body is not JSON: {error}"))),
    }
}

/// Takes the model that a request names.
pub(super) fn take_model(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    match fields.remove("model") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(value) => Err(wrong("model", &value, "a string")),
    }
}

/// The fields as a `T`; null counts as absent. `most` has the largest values of fields whose range depends on the model.
pub(super) fn parse<T>(mut fields: Fields, most: &[(&str, usize)]) -> Result<T, ApiError>
where
    T: DeserializeOwned + JsonSchema + 'static,
{
    let schema = request_schema::<T>();
    fields.retain(|_, value| !value.is_null());
    for (name, value) in &fields {
        let Some(schema) = schema["properties"].get(name) else {
            let name = echoed(name);
            return Err(ApiError::field(&name, format!("`{name}` is not supported")));
        };
        let most = most.iter().find(|(field, _)| field == name).map(|(_, most)| *most as u64);
        check(name, value, schema, most)?;
    }
    let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(name) = required.find(|name| !fields.contains_key(*name)) {
        return Err(ApiError::field(name, format!("there is no `{name}`")));
    }
    serde_json::from_value(Value::Object(fields)).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Checks a value against the schema of its field. The contents of lists and objects are checked where they are read.
fn check(name: &str, value: &Value, schema: &Value, most: Option<u64>) -> Result<(), ApiError> {
    if let Some(neutral) = schema["enum"].get(0).or((schema["type"] == "null").then_some(&Value::Null)) {
        // An unsupported parameter of OpenAI's API: its only valid values have no effect.
        let is_one = schema["enum"].as_array().is_some_and(|values| values.contains(value));
        let is_same = is_one || value == neutral || value.as_f64().is_some_and(|x| neutral.as_f64() == Some(x));
        let message = || format!("`{name}` is not supported; leave it out, or set it to {neutral}");
        return if is_same { Ok(()) } else { Err(ApiError::field(name, message())) };
    }
    let bound = |key: &str| schema[key].as_f64();
    let (is_good, rule) = match schema["type"].as_str() {
        Some("object") => (value.is_object(), "an object".to_owned()),
        Some("boolean") => (value.is_boolean(), "true or false".to_owned()),
        Some("string") => (value.is_string(), "a string".to_owned()),
        Some("array") => {
            let most = bound("maxItems").unwrap_or(f64::MAX);
            let rule = if most < f64::MAX { format!("a list of at most {most}") } else { "a list".to_owned() };
            (value.as_array().is_some_and(|list| list.len() as f64 <= most), rule)
        }
        Some("integer") => {
            let [least, highest] = ["minimum", "maximum"].map(|key| integer(&schema[key]));
            let range = least.unwrap_or(0)..=most.map(i128::from).or(highest).unwrap_or(u64::MAX.into());
            let rule = format!("a whole number from {} to {}", range.start(), range.end());
            (integer(value).is_some_and(|n| range.contains(&n)), rule)
        }
        Some("number") => {
            let highest = bound("maximum").unwrap_or(f64::MAX);
            let (above, least) = (bound("exclusiveMinimum"), bound("minimum").unwrap_or(f64::MIN));
            let is_good = |x: f64| x <= highest && x >= least && above.is_none_or(|above| x > above);
            let rule = match above {
                Some(above) => format!("a number above {above} and at most {highest}"),
                None => format!("a number from {least} to {highest}"),
            };
            (value.as_f64().is_some_and(is_good), rule)
        }
        _ => return Ok(()),
    };
    if is_good { Ok(()) } else { Err(wrong(name, value, &rule)) }
}

/// Refuses the fields of an object in the field `name` that are not `known`; null counts as absent.
pub(super) fn only(name: &str, object: &Value, known: &[&str]) -> Result<(), ApiError> {
    let mut fields = object.as_object().into_iter().flatten();
    match fields.find(|(key, value)| !value.is_null() && !known.contains(&key.as_str())) {
        Some((key, _)) => {
            let message = format!("`{}` in `{name}` is not supported; known are {}", echoed(key), known.join(", "));
            Err(ApiError::field(name, message))
        }
        None => Ok(()),
    }
}

fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or(value.as_u64().map(i128::from))
}

pub(super) fn wrong(name: &str, value: &Value, rule: &str) -> ApiError {
    let value = echoed(&value.to_string());
    ApiError::field(name, format!("`{name}` = {value} must be {rule}"))
}

/// Schemas of requests, made on first use.
static REQUESTS: LazyLock<Mutex<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(Mutex::default);

/// The schema of a request, made on first use.
pub(super) fn request_schema<T: JsonSchema + 'static>() -> Arc<Value> {
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

pub(super) fn response_schema<T: JsonSchema>() -> Value {
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
