//! `/props` and `/slots`: a model as llama.cpp's server describes it.

use axum::http::Uri;
use serde_json::{Value, json};

use super::error::ApiError;
use super::loaded_model::LoadedModel;

/// The properties of a model.
pub(super) fn props(model: &LoadedModel) -> Value {
    let piece = |id: Option<u32>| id.map(|id| model.tokenizer.piece(id)).unwrap_or_default();
    json!({
        "default_generation_settings": {
            "n_ctx": model.context_length(),
            "params": {
                "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": -1, "n_predict": -1, "stop": [],
            },
        },
        "total_slots": model.slots.n,
        "model_alias": model.name,
        "model_path": model.name, // paths stay private
        "modalities": {"vision": false, "audio": false},
        "chat_template": model.tokenizer.chat_template().unwrap_or_default(),
        "bos_token": piece(model.tokenizer.bos_token()),
        "eos_token": piece(model.tokenizer.end_of_text()),
        "build_info": concat!("tinderbox ", env!("CARGO_PKG_VERSION")),
    })
}

/// The slots of a model. The first ones count as busy, since only their number is known.
pub(super) fn slots(model: &LoadedModel) -> Value {
    let n_busy = model.n_busy();
    let speculative = model.slots.speculate > 0;
    let slot = |id: usize| json!({"id": id, "n_ctx": model.context_length(), "speculative": speculative, "is_processing": id < n_busy});
    (0..model.slots.n).map(slot).collect()
}

/// The model that a query names, as in `/props?model=NAME`.
pub(super) fn model_of(uri: &Uri) -> Result<Option<String>, ApiError> {
    let mut fields = uri.query().unwrap_or_default().split('&');
    let name = fields.find_map(|field| field.strip_prefix("model="));
    name.map(|name| decoded(name).ok_or_else(|| ApiError::bad_request("the query is not UTF-8"))).transpose()
}

/// The text of a value in a query.
fn decoded(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.replace('+', " ").into_bytes();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(rest.replace('+', " ").bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_of_decodes_the_query() {
        for (query, expected) in [
            ("/props", Some(None)),
            ("/props?autoload=1", Some(None)),
            ("/props?a=b&model=run%2Flast+%c3%A9", Some(Some("run/last é"))),
            ("/props?model=%f", None),
            ("/props?model=%ff", None),
        ] {
            let found = model_of(&query.parse().unwrap()).ok();
            assert_eq!(found, expected.map(|name| name.map(str::to_owned)), "{query}");
        }
    }
}
