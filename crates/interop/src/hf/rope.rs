//! `RoPE` settings in a `config.json`: in their own table since transformers 5, previously among the other keys.

use serde_json::{Value, json};

use super::ConfigJson;
use tinderbox_model::config::{ModelConfig, RopeScaling};

#[derive(Clone, PartialEq)]
struct Rope {
    theta: f64,
    fraction: f64,
    scaling: Option<RopeScaling>,
}

/// Reads `rope_parameters`, as transformers 5 writes them, or else `theta_key`, `rope_scaling` and, for partial
/// rotation, the key of `fraction` with its default.
pub(super) fn read_rope(
    keys: &mut ConfigJson<'_>,
    theta_key: &str,
    fraction: Option<(&str, f64)>,
    model: &mut ModelConfig,
) {
    let theta = keys.number_or("rope_theta", 10_000.0);
    let theta = keys.number_or(theta_key, theta);
    let own = fraction.map(|(key, _)| key).filter(|key| keys.get(key).is_some());
    let key = own.unwrap_or("partial_rotary_factor");
    let outer =
        Rope { theta, fraction: keys.number_or(key, fraction.map_or(1.0, |(_, default)| default)), scaling: None };
    let newer = read_table(keys, "rope_parameters", &outer);
    let older = read_table(keys, "rope_scaling", newer.as_ref().unwrap_or(&outer));
    // Versions of transformers disagree on the table that takes precedence.
    if let (Some(newer), Some(older), Some(value)) = (&newer, &older, keys.get("rope_scaling"))
        && newer != older
    {
        keys.problem("rope_scaling", value, "rope_parameters says otherwise, and only one of the two is supported");
    }
    let rope = newer.or(older).unwrap_or(outer);
    if fraction.is_none() && (rope.fraction - 1.0).abs() > 0.0 {
        keys.problem("partial_rotary_factor", &rope.fraction.into(), "1 is supported");
    }
    model.rope_theta = rope.theta;
    model.rotary_fraction = rope.fraction;
    model.rope_scaling = rope.scaling;
}

/// Reads the settings of a family whose layers with windows have their own base, which is returned: a table for each
/// type of layer in `rope_parameters`, as transformers 5 writes them, or else `rope_theta`, `rope_scaling` and
/// `rope_local_base_freq`.
pub(crate) fn read_rope_by_type(keys: &mut ConfigJson<'_>, [theta, local]: [f64; 2], model: &mut ModelConfig) -> f64 {
    let plain = |theta| Rope { theta, fraction: 1.0, scaling: None };
    let outer = plain(keys.number_or("rope_theta", theta));
    let older = read_table(keys, "rope_scaling", &outer);
    let local = plain(keys.number_or("rope_local_base_freq", local));
    let (of_all, of_windows) = match keys.get("rope_parameters").and_then(Value::as_object) {
        None => (older.unwrap_or(outer), local),
        Some(tables) => {
            let mut tables = ConfigJson::new(tables);
            let of_all = read_table(&mut tables, "full_attention", &outer).or(older).unwrap_or(outer);
            let of_windows = read_table(&mut tables, "sliding_attention", &local).unwrap_or(local);
            keys.problems.extend(tables.problems.into_iter().map(|problem| format!("rope_parameters.{problem}")));
            (of_all, of_windows)
        }
    };
    if of_windows.scaling.is_some() || [&of_all, &of_windows].iter().any(|rope| rope.fraction < 1.0) {
        keys.problems.push("rope_parameters: only full_attention can be scaled, and the whole head rotates".to_owned());
    }
    model.rope_theta = of_all.theta;
    model.rope_scaling = of_all.scaling;
    of_windows.theta
}

/// The settings in the table `name`, with `outer` for the keys that it lacks; `None` without such a table.
fn read_table(keys: &mut ConfigJson<'_>, name: &str, outer: &Rope) -> Option<Rope> {
    let map = match keys.get(name)? {
        Value::Object(map) if map.is_empty() => return None,
        Value::Object(map) => map,
        other => {
            keys.problem(name, other, "a table is expected");
            return None;
        }
    };
    let mut inner = ConfigJson::new(map);
    for key in ["rope_theta", "partial_rotary_factor"] {
        expect_same(&mut inner, key, keys.get(key));
    }
    let rope = Rope {
        theta: inner.number_or("rope_theta", outer.theta),
        fraction: inner.number_or("partial_rotary_factor", outer.fraction),
        scaling: scaling(&mut inner, keys.get("original_max_position_embeddings")),
    };
    keys.problems.extend(inner.problems.into_iter().map(|problem| format!("{name}.{problem}")));
    Some(rope)
}

/// Reports a number in a table that differs from the one beside it: versions of transformers disagree on the one that
/// takes precedence.
fn expect_same(table: &mut ConfigJson<'_>, key: &str, outside: Option<&Value>) {
    if let (Some(inside), Some(outside)) = (table.get(key), outside)
        && inside.as_f64() != outside.as_f64()
    {
        table.problem(key, inside, &format!("beside the table it is {outside}, and only one of the two is supported"));
    }
}

/// `original` is the context length before scaling in older files.
fn scaling(keys: &mut ConfigJson<'_>, original: Option<&Value>) -> Option<RopeScaling> {
    let key = if keys.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = keys.get(key)?;
    match kind.as_str() {
        Some("default") => None,
        Some("linear") => Some(RopeScaling::Linear { factor: keys.number("factor") }),
        Some("llama3") => Some(RopeScaling::Llama3 {
            factor: keys.number("factor"),
            low_freq_factor: keys.number("low_freq_factor"),
            high_freq_factor: keys.number("high_freq_factor"),
            original_context_length: original_context_length(keys, original),
        }),
        Some("yarn") => {
            for name in ["mscale", "mscale_all_dim", "truncate"] {
                if let Some(value) = keys.get(name).filter(|value| **value != Value::Bool(true)) {
                    keys.problem(name, value, "it has to be left out");
                }
            }
            Some(RopeScaling::Yarn {
                factor: keys.number("factor"),
                original_context_length: original_context_length(keys, original),
                beta_fast: keys.number_or("beta_fast", RopeScaling::beta_fast()),
                beta_slow: keys.number_or("beta_slow", RopeScaling::beta_slow()),
                attention_factor: keys.optional_number("attention_factor"),
            })
        }
        Some("longrope" | "su") => {
            for name in ["short_mscale", "long_mscale"] {
                keys.none(name, "it has to be left out");
            }
            let attention_factor = keys.optional_number("attention_factor");
            if attention_factor.is_none() {
                keys.none("factor", "it is supported beside attention_factor only");
            }
            Some(RopeScaling::Longrope {
                short_factors: keys.numbers("short_factor"),
                long_factors: keys.numbers("long_factor"),
                original_context_length: original_context_length(keys, original),
                attention_factor,
            })
        }
        _ => {
            keys.problem(key, kind, "\"default\", \"linear\", \"llama3\", \"yarn\", \"longrope\" are supported");
            None
        }
    }
}

/// The context length before the scaling, in the table or, in older files, beside it.
fn original_context_length(keys: &mut ConfigJson<'_>, outside: Option<&Value>) -> usize {
    expect_same(keys, "original_max_position_embeddings", outside);
    let original = keys.get("original_max_position_embeddings").or(outside);
    let original = original.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    if original.is_none() {
        keys.problems.push("original_max_position_embeddings is missing".to_owned());
    }
    original.unwrap_or(1)
}

/// The table `rope_scaling` of a model; null if it has none.
pub(super) fn rope_scaling(model: &ModelConfig) -> Value {
    let Some(scaling) = &model.rope_scaling else { return Value::Null };
    let unless = |default: f64, number: f64| Some(number).filter(|number| (number - default).abs() > 0.0);
    let mut table = match *scaling {
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context_length,
        }),
        RopeScaling::Longrope { ref short_factors, ref long_factors, original_context_length, attention_factor } => {
            json!({
                "rope_type": "longrope", "short_factor": short_factors, "long_factor": long_factors,
                "original_max_position_embeddings": original_context_length, "attention_factor": attention_factor,
            })
        }
        RopeScaling::Yarn { factor, original_context_length, beta_fast, beta_slow, attention_factor } => json!({
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original_context_length,
            "beta_fast": unless(RopeScaling::beta_fast(), beta_fast),
            "beta_slow": unless(RopeScaling::beta_slow(), beta_slow),
            "attention_factor": attention_factor,
        }),
    };
    table.as_object_mut().expect("a scaling is a table").retain(|_, value| !value.is_null());
    table
}
