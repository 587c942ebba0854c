//! Attention weights as JSON, every number exact.

use serde::Serialize;

use crate::inspect::AttentionView;

#[derive(Serialize)]
struct Attention<'a> {
    tokens: &'a [String],
    weights: Vec<Vec<Vec<&'a [f32]>>>,
}

/// `{"tokens": [T], "weights": [L][H][T][T]}`: the text of each token, and for each layer and head that is
/// shown a row of weights for each token that looks. Numbers are as short as they can be and still the same
/// when read back as 32-bit floats.
#[must_use]
pub fn attention(view: &AttentionView<'_>) -> String {
    let AttentionView { prompt, maps, selection } = view;
    let head = |layer, head| maps.map(layer, head).chunks(maps.n_tokens).collect();
    let layer = |layer| selection.heads.clone().map(|index| head(layer, index)).collect();
    let document =
        Attention { tokens: &prompt.texts, weights: selection.layers.clone().map(layer).collect() };
    serde_json::to_string(&document).expect("plain data")
}
