//! `/props` and `/slots`: a model as llama.cpp's server describes it.

use axum::http::Uri;
use serde_json::{Value, json};

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
pub(super) fn model_of(uri: &Uri) -> Option<String> {
    let mut fields = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    fields.find(|(name, _)| name == "model").map(|(_, value)| value.into_owned())
}
