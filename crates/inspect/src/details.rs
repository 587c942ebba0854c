//! The contents of the page about a prompt: attention, predictions, the effect of each head, and the head to show
//! first.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};

use super::capture::host;
use super::lens::predictions_of;
use super::part::{Part, Replace};
use super::{HeadSelection, InspectError, LayerPrediction, Prompt, PromptAttention, predictions};
use tinderbox_kernels as kernels;
use tinderbox_model::Gpt;
use tinderbox_model::probe::Point;
use tinderbox_model::tokenizer::Tokenizer;

/// The number of likeliest tokens kept of each prediction.
const N_TOP: usize = 5;
/// The most weight-token products for which heads are removed in turn: seconds on a slow CPU.
const MOST_PRODUCTS: u64 = 100_000_000_000;
/// The mean weight from which on a head is said to look at a token, or at the previous one.
const AS_A_RULE: f32 = 0.4;
/// The fewest later tokens for such a statement.
const FEWEST: usize = 3;

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

/// A head that looks far back, with large weights, and that the prediction needs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FirstHead {
    /// Its layer, counted from 0.
    pub layer: usize,
    /// Its index in the layer, counted from 0.
    pub head: usize,
    /// The token that shows its behaviour best, counted from 0.
    pub query: usize,
    /// Its behaviour, as a sentence.
    pub sentence: String,
}

impl PromptDetails {
    /// Reads a prompt.
    ///
    /// # Errors
    /// In the same cases as [`super::capture()`].
    pub fn new(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        selection: &HeadSelection,
    ) -> Result<Self, InspectError> {
        let attention = PromptAttention::new(model, prompt, selection, &PromptAttention::DETAILS)?;
        let effects = effects(model, prompt)?;
        let first_head = first_head(&attention, effects.as_deref());
        Ok(Self { attention, predictions: predictions(model, tokenizer, prompt, N_TOP)?, effects, first_head })
    }

    /// Reads a prompt in one pass, without removing any head: there are no effects, and no head to show first.
    ///
    /// # Errors
    /// In the same cases as [`super::capture()`].
    pub fn quick(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        selection: &HeadSelection,
    ) -> Result<Self, InspectError> {
        let points = [&PromptAttention::DETAILS[..], &[Point::Logits]].concat();
        let attention = PromptAttention::new(model, prompt, selection, &points)?;
        let logits = &attention.recording.get(None, Point::Logits).values;
        let predictions = predictions_of(logits, model, tokenizer, prompt, N_TOP);
        Ok(Self { attention, predictions, effects: None, first_head: None })
    }
}

/// The rise of a prompt's mean loss without each head: see [`PromptDetails::effects`].
///
/// # Errors
/// If the device fails.
pub fn effects(model: &Gpt, prompt: &Prompt) -> Result<Option<Vec<Vec<f64>>>, InspectError> {
    let config = model.config();
    let n_products = model.num_params() * prompt.len() * config.n_layers * config.n_heads;
    if prompt.len() < 2 || n_products as u64 > MOST_PRODUCTS {
        return Ok(None);
    }
    let whole = loss(model, prompt, Replace::default())?;
    let without = |layer, head| Ok(loss(model, prompt, Replace::by_zeros(&[Part::Head { layer, head }]))? - whole);
    let of_layer = |layer| (0..config.n_heads).map(|head| without(layer, head)).collect();
    (0..config.n_layers).map(of_layer).collect::<Result<_, InspectError>>().map(Some)
}

/// The mean loss of a prompt's tokens after the first, in nats.
fn loss(model: &Gpt, prompt: &Prompt, mut probe: Replace) -> Result<f64, InspectError> {
    let n = prompt.len() - 1;
    let logits = model.forward_with(prompt.tokens(&model.device()), &mut probe); // [1, T, V]
    let logits = logits.narrow(1, 0, n).reshape([n, model.vocab_size()]); // [T - 1, V]
    let targets: Vec<i64> = prompt.ids[1..].iter().map(|&id| i64::from(id)).collect();
    let targets = Tensor::from_data(TensorData::new(targets, [n]), &model.device());
    Ok(f64::from(host(kernels::cross_entropy_of_logits(logits, targets))?[0]))
}

/// The head whose strongest pairs look furthest back, weighted by its effect if known.
fn first_head(attention: &PromptAttention, effects: Option<&[Vec<f64>]>) -> Option<FirstHead> {
    let PromptAttention { prompt, selection, recording, .. } = attention;
    if prompt.len() < 2 {
        return None;
    }
    // Squared, so that one large weight counts for more than many small ones; the previous token hardly counts.
    let pull = |layer, head, query: usize, key: usize| {
        f64::from(recording.row(layer, head, query)[key]).powi(2) * ((query - key) as f64 - 0.9).max(0.0)
    };
    let reach = |layer, head| -> f64 {
        let strongest = |query| (0..query).map(|key| pull(layer, head, query, key)).fold(0.0, f64::max);
        let effect = effects.map_or(1.0, |effects| effects[layer][head].abs());
        (1..prompt.len()).map(strongest).sum::<f64>() * effect
    };
    let heads = selection.layers.clone().flat_map(|layer| selection.heads.clone().map(move |head| (layer, head)));
    let reaches = heads.map(|(layer, head)| (layer, head, reach(layer, head)));
    let (layer, head, _) = reaches.max_by(|a, b| a.2.total_cmp(&b.2))?;
    let pairs = (1..prompt.len()).flat_map(|query| (0..query).map(move |key| (query, key)));
    let (query, key) = pairs.max_by(|a, b| pull(layer, head, a.0, a.1).total_cmp(&pull(layer, head, b.0, b.1)))?;
    let sentence = sentence(attention, (layer, head), (query, key));
    Some(FirstHead { layer, head, query, sentence })
}

fn sentence(attention: &PromptAttention, (layer, head): (usize, usize), (query, key): (usize, usize)) -> String {
    let PromptAttention { prompt, recording, .. } = attention;
    let mean = |key_of: &dyn Fn(usize) -> usize, first: usize| {
        let weights = (first..prompt.len()).map(|query| recording.row(layer, head, query)[key_of(query)]);
        weights.sum::<f32>() / (prompt.len() - first) as f32
    };
    let name = format!("ead {layer}.{head}");
    if mean(&|query| query - 1, 1) >= AS_A_RULE {
        return format!("H{name} looks at the token before.");
    }
    if prompt.len() - key > FEWEST && mean(&|_| key, key + 1) >= AS_A_RULE {
        return format!("H{name} looks back at {}.", describe(prompt, key));
    }
    let n = match query - key {
        1 => "1 token".to_owned(),
        n => format!("{n} tokens"),
    };
    let weight = recording.row(layer, head, query)[key];
    format!(
        "In h{name}, {} looks back at {}, {n} before, with weight {weight:.2}.",
        describe(prompt, query),
        describe(prompt, key)
    )
}

/// A token in words: punctuation by its name, a part of a word with its word.
fn describe(prompt: &Prompt, at: usize) -> String {
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
    let piece = &prompt.pieces[at];
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
    use crate::testing::{self, attention, louder, small_config};

    #[test]
    fn tokens_have_names() {
        let prompt = Prompt::read("\"I am,\" a\n.", &Tokenizer::byte(), 32).expect("bytes");
        let names = ["the opening quote", "“I”", "a blank", "the “a” of “am”", "the “m” of “am”", "the comma"];
        let found: Vec<String> = (0..prompt.len()).map(|at| describe(&prompt, at)).collect();
        assert_eq!(found[..6], names);
        assert_eq!(found[6..], ["the closing quote", "a blank", "“a”", "the line end", "the full stop"]);
    }

    #[test]
    fn a_quick_look_is_the_same_without_effects() {
        let (config, tokenizer, prompt) = (small_config(), Tokenizer::byte(), testing::prompt("hello"));
        let model = louder(&config, 256);
        let all = HeadSelection::new(None, None, &config).expect("all");
        let quick = PromptDetails::quick(&model, &tokenizer, &prompt, &all).expect("read");
        let whole = PromptDetails::new(&model, &tokenizer, &prompt, &all).expect("read");
        assert_eq!(quick.attention.recording.map(1, 2), whole.attention.recording.map(1, 2));
        assert_eq!((quick.effects, quick.first_head), (None, None));
        for (quick, whole) in quick.predictions.iter().zip(&whole.predictions) {
            let [quick, whole] = [quick, whole].map(|it| it.top[0].probability);
            assert!((quick - whole).abs() < 1e-5);
        }
    }

    /// Four heads: attending to the token itself, to the previous one, to the first one, and to all.
    fn heads(text: &str, effects: [f64; 4]) -> FirstHead {
        let weight = |head: usize, query: usize, key: usize| match head {
            _ if key > query => 0.0,
            0 => f32::from(key == query),
            1 => f32::from(key == query.saturating_sub(1)),
            2 => f32::from(key == 0),
            _ => 1.0 / (query + 1) as f32,
        };
        let it = attention(text, [2, 2], [None, None], weight);
        let effects = [effects[..2].to_vec(), effects[2..].to_vec()];
        first_head(&it, Some(&effects)).expect("a head")
    }

    #[test]
    fn the_head_that_matters_and_looks_far_is_shown_first() {
        let first = heads("\"ab cd\"", [1.0, 1.0, -1.0, 0.1]);
        assert_eq!((first.layer, first.head, first.query), (1, 0, 6));
        assert_eq!(first.sentence, "Head 1.0 looks back at the opening quote.");
        let before = heads("\"ab cd\"", [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(before.sentence, "Head 0.1 looks at the token before.");
        let spread = heads("ab cd", [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(
            spread.sentence,
            "In head 1.1, the “c” of “cd” looks back at the “a” of “ab”, 3 tokens before, with weight 0.25."
        );
    }

    #[test]
    fn the_effect_of_a_head_is_that_of_its_removal() {
        let model = louder(&small_config(), 256);
        let prompt = testing::prompt("hello");
        let effects = effects(&model, &prompt).expect("a device").expect("a small model");
        assert_eq!(effects.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
        let whole = loss(&model, &prompt, Replace::default()).expect("a device");
        // A model whose output projection does not read the head.
        let without = testing::with_zero_rows(model.clone(), &[("blocks.1.attention.output.weight", 4..8)]);
        let expected = loss(&without, &prompt, Replace::default()).expect("a device") - whole;
        assert!((effects[1][1] - expected).abs() < 1e-4, "{} {expected}", effects[1][1]);
        assert!(expected.abs() > 1e-3);
    }

    #[test]
    fn a_single_token_has_no_head_to_see_first() {
        let model = testing::model(&small_config());
        let selection = HeadSelection::new(None, None, model.config()).expect("all");
        let details = PromptDetails::new(&model, &Tokenizer::byte(), &testing::prompt("a"), &selection).expect("read");
        assert_eq!((details.first_head, details.effects), (None, None));
        assert_eq!(details.predictions.len(), 1);
        assert_eq!(details.predictions[0].top.len(), N_TOP);
    }
}
