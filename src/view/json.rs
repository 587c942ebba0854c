//! Attention as JSON.

use serde::Serialize;

use crate::inspect::PromptAttention;

/// `{"tokens": [T], "weights": [L][H][T][T]}`: the text of each token, and for each layer and head shown a row of
/// weights per query. Numbers are as short as possible while still read back as the same 32-bit floats.
pub fn attention_json(attention: &PromptAttention) -> String {
    #[derive(Serialize)]
    struct Attention<'a> {
        tokens: &'a [String],
        weights: Vec<Vec<Vec<&'a [f32]>>>,
    }
    let PromptAttention { prompt, recording, selection, .. } = attention;
    let weights = selection.map(|layer, head| recording.map(layer, head).chunks(prompt.len()).collect());
    serde_json::to_string(&Attention { tokens: &prompt.texts, weights }).expect("an attention map is plain data")
}
