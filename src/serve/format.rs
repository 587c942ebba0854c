//! `response_format`: the format of a completion, and the guide that enforces it.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::only;
use super::loaded_model::LoadedModel;
use super::scheduler::Guided;
use crate::generate::{Grammar, Guide, SchemaError};

/// The fields of a format with a schema. The completion is always strict.
const SCHEMA_FORMAT: [&str; 5] = ["type", "name", "description", "schema", "strict"];

/// The guide of the format in the field `name`; `None` if any text is allowed.
pub(super) fn guide(name: &str, format: &Value, model: &LoadedModel) -> Result<Option<Guided>, ApiError> {
    let grammar = match format["type"].as_str() {
        None if format.is_null() => return Ok(None),
        Some("text") => {
            only(name, format, &["type"])?;
            return Ok(None);
        }
        Some("json_object") => {
            only(name, format, &["type", "schema"])?;
            match &format["schema"] {
                Value::Null => of_schema(name, &json!({"type": "object"}))?,
                schema => of_schema(name, schema)?, // as llama.cpp's server has it
            }
        }
        Some("json_schema") => {
            // OpenAI nests it for completions, and not for responses.
            let nested = format.get("json_schema");
            let known: &[&str] = if nested.is_some() { &["type", "json_schema"] } else { &SCHEMA_FORMAT };
            only(name, format, known)?;
            only(name, nested.unwrap_or(&Value::Null), &SCHEMA_FORMAT)?;
            match nested.unwrap_or(format).get("schema") {
                None | Some(Value::Null) => {
                    let rule = format!("`{name}` of the type json_schema needs `json_schema` with a `schema`");
                    return Err(ApiError::field(name, rule));
                }
                Some(schema) => of_schema(name, schema)?,
            }
        }
        _ => {
            let rule = format!("`{name}` must be an object with the `type` text, json_object or json_schema");
            return Err(ApiError::field(name, rule));
        }
    };
    guide_by(name, grammar, model).map(Some)
}

fn of_schema(name: &str, schema: &Value) -> Result<Grammar, ApiError> {
    Grammar::of_schema(schema).map_err(|error| refused(name, &error))
}

/// The guide of a grammar that the field `name` requires.
pub(super) fn guide_by(name: &str, grammar: Grammar, model: &LoadedModel) -> Result<Guided, ApiError> {
    let vocabulary = model.vocabulary().ok_or_else(|| {
        ApiError::field(
            name,
            format!("`{}` cannot follow a schema: the text of its tokens depends on their context", model.name),
        )
    })?;
    let n_values = u32::try_from(grammar.n_values()).expect("the size of a schema is limited");
    let values = model.schemas.clone().try_acquire_many_owned(n_values);
    let values = values.map_err(|_| ApiError::busy("the schemas of other requests are as large as they may be"))?;
    let guide = Guide::new(&grammar, vocabulary).map_err(|error| refused(name, &error))?;
    Ok(Guided::new(guide, values))
}

pub(super) fn refused(name: &str, error: &SchemaError) -> ApiError {
    ApiError::field(name, format!("`{name}`: {error}"))
}
