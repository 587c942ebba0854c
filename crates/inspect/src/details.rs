//! The contents of the page about a prompt: attention, predictions, the effect of each head, and the head to show
//! first.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};

use super::capture::host;
use super::lens::predictions;
use super::part::{ModelPart, Replace};
use super::{HeadSelection, InspectError, LayerPrediction, Prompt, PromptAttention};
use tinderbox_kernels as kernels;
use tinderbox_model::Gpt;
use tinderbox_model::probe::Point;
use tinderbox_model::tokenizer::{Tokenizer, visible};

/// The number of likeliest tokens kept of each prediction.
const N_TOP: usize = 5;
/// The most weight-token products for which heads are removed in turn: seconds on a slow CPU.
const MOST_PRODUCTS: u64 = 100_000_000_000;

/// Everything that the page about a prompt shows.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptDetails {
    /// The attention, with [`PromptAttention::DETAILS`].
    pub attention: PromptAttention,
    /// The model's prediction after each token, `[T]`.
    pub predictions: Vec<LayerPrediction>,
    /// The rise of the prompt's mean loss when each head is replaced by zeros, in nats per token, `[L][H]`; `None` for
    /// a single token, or for a model so large that this would take long.
    pub effects: Option<Vec<Vec<f64>>>,
    /// The head to show first; `None` for a single token.
    pub first_head: Option<FirstHead>,
}

/// A head that the prediction needs, a query token, and the earlier key token with the largest weight.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FirstHead {
    /// Its layer, counted from 0.
    pub layer: usize,
    /// Its index in the layer, counted from 0.
    pub head: usize,
    /// The query token, counted from 0.
    pub query: usize,
    /// The key token with the largest weight, counted from 0.
    pub key: usize,
    /// Ranks pairs of different prompts; 0 if the token attends only to itself or to a sink.
    #[serde(skip)]
    pub pull: f64,
}

impl PromptDetails {
    /// Reads a prompt, and removes each head in turn.
    pub fn new(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        selection: &HeadSelection,
    ) -> Result<Self, InspectError> {
        let quick = Self::quick(model, tokenizer, prompt, selection)?;
        let effects = effects(model, prompt)?;
        let first_head = FirstHead::of(&quick.attention, tokenizer, effects.as_deref());
        Ok(Self { effects, first_head, ..quick })
    }

    /// Reads a prompt in one pass, without effects.
    pub fn quick(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        selection: &HeadSelection,
    ) -> Result<Self, InspectError> {
        let points = [&PromptAttention::DETAILS[..], &[Point::Logits]].concat();
        let attention = PromptAttention::new(model, prompt, selection, &points)?;
        let logits = &attention.recording.get(None, Point::Logits).values;
        let predictions = predictions(logits, model, tokenizer, prompt, N_TOP);
        let first_head = FirstHead::of(&attention, tokenizer, None);
        Ok(Self { attention, predictions, effects: None, first_head })
    }
}

/// The rise of a prompt's mean loss without each head: see [`PromptDetails::effects`].
pub fn effects(model: &Gpt, prompt: &Prompt) -> Result<Option<Vec<Vec<f64>>>, InspectError> {
    let config = model.config();
    let n_products = model.num_params() * prompt.len() * config.n_layers * config.n_heads;
    if prompt.len() < 2 || n_products as u64 > MOST_PRODUCTS {
        return Ok(None);
    }
    let whole = loss(model, prompt, Replace::default())?;
    let without = |layer, head| Ok(loss(model, prompt, Replace::by_zeros(&[ModelPart::Head { layer, head }]))? - whole);
    let of_layer = |layer| (0..config.n_heads).map(|head| without(layer, head)).collect();
    (0..config.n_layers).map(of_layer).collect::<Result<_, InspectError>>().map(Some)
}

/// The mean loss of a prompt's tokens after the first, in nats.
fn loss(model: &Gpt, prompt: &Prompt, mut probe: Replace) -> Result<f64, InspectError> {
    let n = prompt.len() - 1;
    let logits = model.forward_with(prompt.tokens(&model.device()), None, &mut probe); // [1, T, V]
    let logits = logits.narrow(1, 0, n).reshape([n, model.vocab_size()]); // [T - 1, V]
    let targets: Vec<i64> = prompt.ids[1..].iter().map(|&id| i64::from(id)).collect();
    let targets = Tensor::from_data(TensorData::new(targets, [n]), &model.device());
    Ok(f64::from(host(kernels::cross_entropy_of_logits(logits, targets))?[0]))
}

impl FirstHead {
    /// The head whose tokens look furthest back with the largest weights, weighted by its effect if known, and its
    /// clearest pair; `None` for a single token. The root of the effect is used, since one text measures it with noise.
    pub fn of(attention: &PromptAttention, tokenizer: &Tokenizer, effects: Option<&[Vec<f64>]>) -> Option<Self> {
        let PromptAttention { prompt, selection, recording, .. } = attention;
        if prompt.len() < 2 {
            return None;
        }
        let sinks = sinks(prompt, tokenizer);
        let pull = |layer, head, query| pull(recording.row(layer, head, query), query, &sinks);
        let reach = |layer: usize, head: usize| -> f64 {
            let effect = effects.map_or(1.0, |effects| effects[layer][head].abs().sqrt());
            (1..prompt.len()).map(|query| pull(layer, head, query).1).sum::<f64>() * effect
        };
        let [layer, head] = selection.highest(reach)?;
        let pairs = (1..prompt.len()).map(|query| (query, pull(layer, head, query)));
        let (query, (key, pull)) = pairs.max_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
        Some(Self { layer, head, query, key, pull })
    }
}

/// The layer and head in which a token looks furthest back with the largest weight.
///
/// # Errors
/// If there is no such token, or in the same cases as [`super::capture()`].
pub fn head_of_token(
    model: &Gpt,
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    selection: &HeadSelection,
    query: usize,
) -> Result<[usize; 2], InspectError> {
    prompt.check(query)?;
    if let Some((layer, head)) = selection.single() {
        return Ok([layer, head]);
    }
    let attention = PromptAttention::new(model, prompt, selection, &[])?;
    let sinks = sinks(prompt, tokenizer);
    let reach = |layer, head| pull(attention.recording.row(layer, head, query), query, &sinks).1;
    Ok(selection.highest(reach).expect("a selection has a head"))
}

/// The key with the largest weight, and the rank of the pair: 0 for the query itself and for a sink.
fn pull(row: &[f32], query: usize, sinks: &[bool]) -> (usize, f64) {
    let key = most(row, query);
    let is_telling = key < query && !sinks[key] && !sinks[query];
    // Squared, so that one large weight outweighs many small ones. The logarithm makes the previous token negligible
    // and keeps a small weight across a long text from winning.
    let weight = f64::from(row[key]).powi(2);
    (key, if is_telling { weight * ((query - key) as f64 + 0.1).ln() } else { 0.0 })
}

/// The key with the largest weight; the earliest among equals.
fn most(row: &[f32], query: usize) -> usize {
    (0..=query).fold(0, |best, key| if row[key] > row[best] { key } else { best })
}

/// The tokens to which a head attends when it has nothing to do: the first, special tokens such as `<|endoftext|>`, and
/// blanks.
fn sinks(prompt: &Prompt, tokenizer: &Tokenizer) -> Vec<bool> {
    let added: Vec<u32> = tokenizer.added_tokens().into_iter().map(|(id, _)| id).collect();
    let tokens = prompt.ids.iter().zip(&prompt.texts).enumerate();
    tokens.map(|(at, (id, text))| at == 0 || added.contains(id) || text.trim().is_empty()).collect()
}

/// A token in words: punctuation by its name, a part of a word with its word.
pub fn token_name(prompt: &Prompt, at: usize) -> String {
    let text = prompt.texts[at].as_str();
    let n_quotes = || prompt.texts[..at].iter().map(|text| text.matches('"').count()).sum::<usize>();
    match text.trim_matches(' ') {
        "\"" if n_quotes().is_multiple_of(2) => return "the opening quote".to_owned(),
        "\"" => return "the closing quote".to_owned(),
        "." => return "the full stop".to_owned(),
        "," => return "the comma".to_owned(),
        "\n" => return "the line end".to_owned(),
        "" => return "a blank".to_owned(),
        _ => {}
    }
    let is_inner = |text: &String| text.chars().all(char::is_alphanumeric);
    let texts = &prompt.texts;
    let start =
        (0..at).rev().take_while(|&i| is_inner(&texts[i + 1]) && texts[i].ends_with(char::is_alphanumeric)).last();
    let end = (at + 1..texts.len()).take_while(|&i| is_inner(&texts[i])).last();
    let piece = visible(text.trim_matches(' '));
    match is_inner(&prompt.texts[at]) && (start.is_some() || end.is_some()) {
        true => {
            let word = texts[start.unwrap_or(at)..=end.unwrap_or(at)].concat();
            format!("the “{piece}” of “{}”", word.trim())
        }
        false => format!("“{piece}”"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handmade::with_zero_rows;
    use crate::testing::{self, attention, louder, small_config};

    #[test]
    fn token_names_describe_punctuation_and_words() {
        let prompt = Prompt::read("\"I am,\" a\n.", &Tokenizer::byte(), 32).expect("any text encodes as bytes");
        let names = ["the opening quote", "“I”", "a blank", "the “a” of “am”", "the “m” of “am”", "the comma"];
        let found: Vec<String> = (0..prompt.len()).map(|at| token_name(&prompt, at)).collect();
        assert_eq!(found[..6], names);
        assert_eq!(found[6..], ["the closing quote", "a blank", "“a”", "the line end", "the full stop"]);
    }

    /// Four heads: attending to the token itself, to the previous one, to the quotes at 4 and 0, and to all.
    fn heads(text: &str, effects: [f64; 4]) -> FirstHead {
        let weight = |head: usize, query: usize, key: usize| match head {
            _ if key > query => 0.0,
            1 => f32::from(key == query.saturating_sub(1)),
            2 if query > 4 => [(0, 0.6), (4, 0.4)].into_iter().find(|it| it.0 == key).map_or(0.0, |it| it.1),
            0 | 2 => f32::from(key == query),
            _ => 1.0 / (query + 1) as f32,
        };
        let it = attention(text, [2, 2], [None, None], weight);
        let effects = [effects[..2].to_vec(), effects[2..].to_vec()];
        FirstHead::of(&it, &Tokenizer::byte(), Some(&effects)).expect("the prompt has several tokens")
    }

    #[test]
    fn first_head_matters_and_looks_far_back() {
        let weight = |head: usize, query: usize, key: usize| match (head, query) {
            (1, 5..) => f32::from(key == 2),
            _ => f32::from(key == query),
        };
        let it = attention("I \"ab cd", [1, 2], [None, None], weight);
        let first = FirstHead::of(&it, &Tokenizer::byte(), None).expect("the prompt has several tokens");
        assert_eq!((first.layer, first.head, first.query, first.key), (0, 1, 7, 2));
        let names = [first.query, first.key].map(|at| token_name(&it.prompt, at));
        assert_eq!(names, ["the “d” of “cd”", "the opening quote"]);
        let before = heads("\"ab cd\"", [1.0, 1.0, 1.0, 0.0]);
        assert_eq!((before.layer, before.head, before.key + 1), (0, 1, before.query));
    }

    #[test]
    fn first_head_skips_sinks() {
        let sink = heads("\"ab cd\"", [0.0, 0.0, 1.0, 0.0]);
        assert!(sink.pull.abs() < 1e-12, "the first token has the largest weight: {sink:?}");
        let end = Tokenizer::byte().with_end_of_text();
        let ids = [97, 256, 98, 32, 99];
        assert_eq!(sinks(&Prompt::of_ids(ids.to_vec(), &end), &end), [true, true, false, true, false]);
    }

    #[test]
    fn head_of_token_looks_furthest_back() {
        let prompt = testing::prompt("hello, and good");
        let (config, tokenizer) = (small_config(), Tokenizer::byte());
        let model = louder(&config, 256);
        let all = HeadSelection::new(None, None, &config).expect("the model has heads");
        let it = PromptAttention::new(&model, &prompt, &all, &[]).expect("finite values");
        for query in 1..prompt.len() {
            let [layer, head] = head_of_token(&model, &tokenizer, &prompt, &all, query).expect("finite values");
            let reach = |layer, head| {
                let row = it.recording.row(layer, head, query);
                let key = most(row, query);
                let counts = key > 0 && key < query && prompt.texts[key] != " " && prompt.texts[query] != " ";
                if counts { f64::from(row[key]).powi(2) * ((query - key) as f64 + 0.1).ln() } else { 0.0 }
            };
            let best = all.map(reach).concat().into_iter().fold(0.0, f64::max);
            assert!((reach(layer, head) - best).abs() < 1e-9, "token {query}: {layer}.{head}");
        }
        let second = HeadSelection::new(Some(1), Some(2), &config).expect("the head exists");
        assert_eq!(head_of_token(&model, &tokenizer, &prompt, &second, 3).expect("finite values"), [1, 2]);
    }

    #[test]
    fn first_head_pair_has_largest_weight() {
        for text in ["hello, and good", "a b", "\"x\" y z", "aa"] {
            let prompt = testing::prompt(text);
            let (config, tokenizer) = (small_config(), Tokenizer::byte());
            let all = HeadSelection::new(None, None, &config).expect("the model has heads");
            let it = PromptDetails::quick(&louder(&config, 256), &tokenizer, &prompt, &all).expect("finite values");
            let FirstHead { layer, head, query, key, .. } = it.first_head.expect("the prompt has several tokens");
            let row = it.attention.recording.row(layer, head, query);
            assert!(row.iter().all(|weight| *weight <= row[key]), "{text}: {query} {key} {row:?}");
        }
    }

    #[test]
    fn effects_equal_loss_rise_without_head() {
        let model = louder(&small_config(), 256);
        let prompt = testing::prompt("hello");
        let effects = effects(&model, &prompt).expect("the device computes").expect("a small model has effects");
        assert_eq!(effects.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
        let whole = loss(&model, &prompt, Replace::default()).expect("the device computes");
        // A model whose output projection does not read the head.
        let without = with_zero_rows(model.clone(), &[("blocks.1.attention.output.weight", 4..8)]);
        let expected = loss(&without, &prompt, Replace::default()).expect("the device computes") - whole;
        assert!((effects[1][1] - expected).abs() < 1e-4, "{} {expected}", effects[1][1]);
        assert!(expected.abs() > 1e-3);
    }

    #[test]
    fn single_token_has_no_first_head() {
        let model = testing::model(&small_config());
        let selection = HeadSelection::new(None, None, model.config()).expect("the model has heads");
        let details =
            PromptDetails::new(&model, &Tokenizer::byte(), &testing::prompt("a"), &selection).expect("finite values");
        assert_eq!((details.first_head, details.effects), (None, None));
        assert_eq!(details.predictions.len(), 1);
        assert_eq!(details.predictions[0].top.len(), N_TOP);
    }
}
