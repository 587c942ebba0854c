//! Sliding windows in a `config.json`: `sliding_window`, the number of tokens that a position attends to, itself included,
//! for all layers, or for those that `layer_types` or `max_window_layers` names.

use std::ops::Range;

use serde_json::{Value, json};

use crate::hf::{ConfigJson, Key};
use tinderbox_model::config::ModelConfig;

/// The window of a file that has the switch and not the size.
const DEFAULT: usize = 4096;
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The keys of a family whose layers all have the same window, or none has.
pub(super) const IN_ALL_LAYERS: &[Key] =
    &[Key::Read(read_for_all), Key::Written("sliding_window", |model| json!(size(model)))];

/// The same, for families that have no windows unless the file says so.
pub(super) const IN_ALL_LAYERS_IF_NAMED: &[Key] = &[
    Key::Read(|keys, model| {
        if keys.has("sliding_window") {
            read_for_all(keys, model);
        }
    }),
    IN_ALL_LAYERS[1],
];

/// The keys of a family with windows in some layers.
pub(super) const IN_SOME_LAYERS: &[Key] = &[
    Key::Read(read_by_layer),
    Key::Written("use_sliding_window", |model| size(model).is_some().into()),
    Key::Written("sliding_window", |model| json!(size(model))),
    // For versions of transformers that do not know `layer_types`; without windows, the default.
    Key::Written("max_window_layers", |model| all(model).position(|window| window > 0).unwrap_or(28).into()),
    Key::Written("layer_types", types),
];

/// The size of the windows, or the whole context without windows, for families in which transformers requires a size.
pub(super) fn or_context(model: &ModelConfig) -> Value {
    size(model).unwrap_or(model.context_length).into()
}

/// Reads windows of a size, in all layers but the global ones unless `layer_types` says otherwise.
pub(super) fn read_in_all_but(
    keys: &mut ConfigJson<'_>,
    model: &mut ModelConfig,
    default: usize,
    is_global: impl Fn(usize) -> bool,
) {
    let size = keys.size_or("sliding_window", default);
    let by_number = layers(model.n_layers).map(|layer| if is_global(layer) { 0 } else { size });
    model.attention_window = repeated(&by_type(keys, model.n_layers, Some(size), by_number.collect()));
}

/// The size of the windows that all layers but the global ones have, 0 if no layer has one; `None` if others have.
pub(super) fn in_all_but(config: &ModelConfig, is_global: impl Fn(usize) -> bool) -> Option<usize> {
    let size = size(config).unwrap_or(0);
    let expected = |(layer, window)| window == if is_global(layer) { 0 } else { size };
    (size == 0 || all(config).enumerate().all(expected)).then_some(size)
}

pub(super) fn types(model: &ModelConfig) -> Value {
    json!(all(model).map(|window| if window > 0 { SLIDING } else { FULL }).collect::<Vec<_>>())
}

/// The layers of a file that is not checked yet, but no more than a model may have.
pub(super) fn layers(n: usize) -> Range<usize> {
    0..n.min(1 << 16)
}

/// The windows of all layers, 0 without one.
pub(super) fn all(model: &ModelConfig) -> impl Iterator<Item = usize> {
    (0..model.n_layers).map(|layer| model.attention_window_of(layer).unwrap_or(0))
}

fn size(model: &ModelConfig) -> Option<usize> {
    all(model).find(|window| *window > 0)
}

/// `config`, with windows of one size in the layers that have one.
pub(super) fn of_one_size(config: &ModelConfig) -> Vec<usize> {
    let size = config.attention_window.iter().copied().find(|window| *window > 0).unwrap_or(0);
    config.attention_window.iter().map(|window| if *window > 0 { size } else { 0 }).collect()
}

/// `config`, with windows of one size if all layers have one, or else none.
pub(super) fn in_all_layers(config: &ModelConfig) -> Vec<usize> {
    let has_all = config.attention_window.iter().all(|window| *window > 0);
    if has_all { of_one_size(config) } else { vec![0; config.attention_window.len()] }
}

/// The windows of the layers as the shortest list that is repeated over them; empty if there are none.
pub(super) fn repeated(windows: &[usize]) -> Vec<usize> {
    if windows.iter().all(|window| *window == 0) {
        return Vec::new();
    }
    super::shortest_period(windows).to_vec()
}

/// The value of `sliding_window`; `None` if it is null, or restricts nothing.
fn window(keys: &mut ConfigJson<'_>, model: &ModelConfig, default: Option<usize>) -> Option<usize> {
    let window = match keys.has("sliding_window") {
        true if keys.get("sliding_window").is_none() => None,
        true => Some(keys.size_or("sliding_window", 1)),
        false => default,
    };
    window.filter(|window| *window < model.context_length)
}

fn read_for_all(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    model.attention_window = window(keys, model, Some(DEFAULT)).into_iter().collect();
}

fn read_by_layer(keys: &mut ConfigJson<'_>, model: &mut ModelConfig) {
    let n_layers = keys.size_or("num_hidden_layers", 1);
    let is_used = keys.flag_or("use_sliding_window", false);
    let size = window(keys, model, Some(DEFAULT)).filter(|_| is_used).unwrap_or(0);
    // It may be 0, which is no size.
    let first = match keys.get("max_window_layers").and_then(Value::as_u64) {
        Some(0) => 0,
        _ => keys.size_or("max_window_layers", 28),
    };
    let by_number = layers(n_layers).map(|layer| if layer < first { 0 } else { size }).collect();
    let windows = by_type(keys, n_layers, is_used.then_some(size), by_number);
    model.attention_window = repeated(&windows);
}

/// The windows of the layers by their `layer_types`, where `size` is that of a sliding one, `None` if there are none; those
/// given, if the file does not name the types.
pub(super) fn by_type(
    keys: &mut ConfigJson<'_>,
    n_layers: usize,
    size: Option<usize>,
    otherwise: Vec<usize>,
) -> Vec<usize> {
    let of_type = |kind: &Value| match kind.as_str() {
        Some(FULL) => Some(0),
        Some(SLIDING) => size,
        _ => None,
    };
    let Some(types) = keys.get("layer_types") else { return otherwise };
    let windows: Option<Vec<usize>> = types.as_array().and_then(|types| types.iter().map(of_type).collect());
    windows.filter(|windows| windows.len() == n_layers).unwrap_or_else(|| {
        let sliding = if size.is_some() { format!(" and \"{SLIDING}\"") } else { String::new() };
        let supported = format!("a list of \"{FULL}\"{sliding}, as many as num_hidden_layers, is supported");
        keys.problem("layer_types", types, &supported);
        Vec::new()
    })
}
