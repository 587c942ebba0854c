//! Predictions of the next token by the model and by each layer, as if the layer were the last.
//!
//! Source: nostalgebraist 2020, "interpreting GPT: the logit lens".

use serde::Serialize;

use super::capture::{capture, host};
use super::vectors::{largest, softmax};
use super::{InspectError, Prompt};
use tinderbox_model::Gpt;
use tinderbox_model::probe::Point;
use tinderbox_model::tokenizer::Tokenizer;

/// The predictions after each layer: its residual stream through the final norm and the output layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lens {
    /// The text of each token, `[T]`.
    pub tokens: Vec<String>,
    /// The predictions after each token, `[T]`.
    pub positions: Vec<TokenPredictions>,
}

/// The predictions after one token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenPredictions {
    /// The token, counted from 0.
    pub position: usize,
    /// From the embedding, and from the residual stream after each layer: `[1 + L]`; the last is the model's own.
    pub stages: Vec<LayerPrediction>,
}

/// A prediction of the next token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerPrediction {
    /// The layer that it was made after, counted from 0; `None` for the embedding.
    pub layer: Option<usize>,
    /// The most probable tokens, in descending order.
    pub top: Vec<TokenProbability>,
    /// The actual next token; `None` at the end of the text.
    #[serde(rename = "came")]
    pub actual: Option<ActualToken>,
}

/// A token and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenProbability {
    /// The token id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its probability, from 0 to 1.
    pub probability: f64,
}

/// The token that follows in the text, its probability and its rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActualToken {
    /// The token and its probability.
    #[serde(flatten)]
    pub entry: TokenProbability,
    /// Its rank among all tokens; 1 is the most probable.
    pub rank: usize,
}

impl Lens {
    /// Reads `prompt`, and keeps the `n_top` most probable tokens of each prediction.
    pub fn new(model: &Gpt, tokenizer: &Tokenizer, prompt: &Prompt, n_top: usize) -> Result<Self, InspectError> {
        let recording = capture(model, prompt, &[Point::Embedding, Point::Residual])?;
        let mut positions: Vec<TokenPredictions> =
            (0..prompt.len()).map(|position| TokenPredictions { position, stages: Vec::new() }).collect();
        let layers = (0..model.config().n_layers).map(Some);
        for layer in std::iter::once(None).chain(layers) {
            let residual = recording.residual(layer).to_device(&model.device()); // [1, T, C]
            let logits = host(model.unembed(residual))?; // [1, T, V]
            for (at, row) in positions.iter_mut().zip(logits.chunks(model.vocab_size())) {
                let next = prompt.ids.get(at.position + 1).copied();
                at.stages.push(LayerPrediction::new(row, tokenizer, n_top, layer, next));
            }
        }
        Ok(Self { tokens: prompt.texts.clone(), positions })
    }
}

/// The predictions after each token of `prompt`, `[T]`, that the model's logits, `[T, V]`, stand for.
pub(super) fn predictions(
    logits: &[f32],
    model: &Gpt,
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    n_top: usize,
) -> Vec<LayerPrediction> {
    let last = model.config().n_layers.checked_sub(1);
    let after =
        |(at, row): (usize, &[f32])| LayerPrediction::new(row, tokenizer, n_top, last, prompt.ids.get(at + 1).copied());
    logits.chunks(model.vocab_size()).enumerate().map(after).collect()
}

impl LayerPrediction {
    pub(super) fn new(
        logits: &[f32],
        tokenizer: &Tokenizer,
        n_top: usize,
        layer: Option<usize>,
        next: Option<u32>,
    ) -> Self {
        let probabilities = softmax(&logits.iter().copied().map(f64::from).collect::<Vec<_>>());
        let entry = |index: usize| {
            let id = id_of(index);
            TokenProbability { id, token: tokenizer.piece(id), probability: probabilities[index] }
        };
        let actual = next.map(|id| {
            let logit = logits[id as usize];
            ActualToken { rank: 1 + logits.iter().filter(|other| **other > logit).count(), entry: entry(id as usize) }
        });
        Self { layer, top: largest(logits, n_top).into_iter().map(entry).collect(), actual }
    }
}

fn id_of(index: usize) -> u32 {
    u32::try_from(index).expect("ids are 32 bits")
}

/// A token that a model may predict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The token id.
    pub id: u32,
    /// Its text.
    pub token: String,
}

impl Answer {
    /// The token whose text is `text`.
    ///
    /// # Errors
    /// If the text has unknown characters, or is not exactly one token.
    pub fn read(text: &str, tokenizer: &Tokenizer) -> Result<Self, InspectError> {
        let ids = tokenizer.encode(text);
        let ids = ids.map_err(|source| InspectError::NotAToken { text: text.to_owned(), source })?;
        match ids[..] {
            [id] => Ok(Self { id, token: tokenizer.piece(id) }),
            _ => Err(InspectError::NotOneToken { text: text.to_owned(), n_tokens: ids.len() }),
        }
    }

    /// The most probable token after the one at `position`.
    ///
    /// # Errors
    /// If there is no such position, or the device fails.
    pub fn likeliest(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        position: usize,
    ) -> Result<Self, InspectError> {
        prompt.check(position)?;
        let logits = model.forward(prompt.tokens(&model.device())); // [1, T, V]
        let logits = host(logits.narrow(1, position, 1))?; // [V]
        let id = id_of(largest(&logits, 1)[0]);
        Ok(Self { id, token: tokenizer.piece(id) })
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation;

    use super::*;
    use crate::testing::{self, prompt, small_config};
    use tinderbox_model::config::ModelConfig;

    #[test]
    fn last_layer_prediction_equals_model_prediction() {
        for tie_embeddings in [true, false] {
            let model = testing::model(&ModelConfig { tie_embeddings, ..small_config() });
            let (tokenizer, prompt) = (Tokenizer::byte(), prompt("hello"));
            let lens = Lens::new(&model, &tokenizer, &prompt, 256).expect("finite values");
            let logits = model.forward(prompt.tokens(&model.device()));
            let expected = host(activation::softmax(logits, 2)).expect("finite values"); // [1, T, V]
            for (position, at) in lens.positions.iter().enumerate() {
                assert_eq!((at.position, at.stages.len()), (position, 3));
                let last = at.stages.last().expect("a lens has the embedding and every layer");
                assert_eq!(last.layer, Some(1));
                for entry in &last.top {
                    let probability = expected[position * 256 + entry.id as usize];
                    assert!((entry.probability - f64::from(probability)).abs() < 1e-6);
                }
                assert!(last.top.is_sorted_by(|a, b| a.probability >= b.probability));
                let sum: f64 = last.top.iter().map(|entry| entry.probability).sum();
                assert!((sum - 1.0).abs() < 1e-9);
                let actual = last.actual.as_ref();
                assert_eq!(actual.map(|actual| actual.entry.id), prompt.ids.get(position + 1).copied());
                assert!(actual.is_none_or(|actual| last.top[actual.rank - 1].id == actual.entry.id));
            }
        }
    }
}
