//! `RoPE` settings in a `config.json`: in their own table since transformers 5, previously among the other keys.

use serde_json::{Map, Value, json};

use super::ConfigJson;
use tinderbox_train::config::{ModelConfig, RopeScaling};

/// Reads `rope_parameters`, as transformers 5 writes them, or else `theta_key`, `rope_scaling` and, for partial
/// rotation, the key of `fraction` with its default.
pub(super) fn read_rope(
    keys: &mut ConfigJson<'_>,
    theta_key: &str,
    fraction: Option<(&str, f64)>,
    model: &mut ModelConfig,
) {
    let (name, table) = match (keys.get("rope_parameters"), keys.get("rope_scaling")) {
        (Some(table), _) => ("rope_parameters", Some(table)),
        (None, table) => ("rope_scaling", table),
    };
    let empty = Map::new();
    let map = match table {
        None => &empty,
        Some(Value::Object(map)) => map,
        Some(other) => {
            keys.problem(name, other, "a table is expected");
            &empty
        }
    };
    let mut inner = ConfigJson::new(map);
    let outer_theta = keys.number_or("rope_theta", 10_000.0);
    let outer_theta = keys.number_or(theta_key, outer_theta);
    model.rope_theta = inner.number_or("rope_theta", outer_theta);
    let own = fraction.map(|(key, _)| key).filter(|key| keys.get(key).is_some());
    let key = own.unwrap_or("partial_rotary_factor");
    let outer_fraction = keys.number_or(key, fraction.map_or(1.0, |(_, default)| default));
    let rotary_fraction = inner.number_or("partial_rotary_factor", outer_fraction);
    if fraction.is_none() && (rotary_fraction - 1.0).abs() > 0.0 {
        keys.problem("partial_rotary_factor", &rotary_fraction.into(), "1 is supported");
    }
    let original = keys.get("original_max_position_embeddings");
    model.rope_scaling = scaling(&mut inner, original);
    keys.problems.extend(inner.problems.into_iter().map(|problem| format!("{name}.{problem}")));
    model.rotary_fraction = rotary_fraction;
}

/// `original` is the context length before scaling in older files.
fn scaling(keys: &mut ConfigJson<'_>, original: Option<&Value>) -> Option<RopeScaling> {
    let key = if keys.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = keys.get(key)?;
    match kind.as_str() {
        Some("default") => None,
        Some("linear") => Some(RopeScaling::Linear { factor: keys.number("factor") }),
        Some("llama3") => {
            let original = keys.get("original_max_position_embeddings").or(original);
            let original = original.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            if original.is_none() {
                keys.problems.push("original_max_position_embeddings is missing".to_owned());
            }
            Some(RopeScaling::Llama3 {
                factor: keys.number("factor"),
                low_freq_factor: keys.number("low_freq_factor"),
                high_freq_factor: keys.number("high_freq_factor"),
                original_context_length: original.unwrap_or(1),
            })
        }
        _ => {
            keys.problem(key, kind, "\"default\", \"linear\", \"llama3\" are supported");
            None
        }
    }
}

/// The table `rope_scaling` of a model; null if it has none.
pub(super) fn rope_scaling(model: &ModelConfig) -> Value {
    match model.rope_scaling {
        None => Value::Null,
        Some(RopeScaling::Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length }) => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context_length,
        }),
    }
}
