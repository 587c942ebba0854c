//! Verifies that a run is the model of another project's file: tensor by tensor, and by the logits of a text.

mod tensors;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Serialize;
use serde_json::{Map, Value};

use tensors::compare_all;
pub use tensors::{TensorComparison, TensorResult};

use super::convert;
use super::layout::layout;
use super::{Family, ForeignModel, InteropError};
use tinderbox_model::Gpt;
use tinderbox_model::config::ModelConfig;
use tinderbox_model::tokenizer::Tokenizer;
use tinderbox_train::run::{Checkpoint, TrainState, locate};

/// The default text for both models; characters unknown to a tokenizer are left out.
pub const TEXT: &str =
    "The quick brown fox jumps over the lazy dog. Then it sat down by the river, and said: \"It is late.\"";

/// The limit on the difference between logits of equal tensors, whatever the order of summation.
const EQUAL_LOGITS: f32 = 1e-3;

/// The result of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Whether the two are the same model: all tensors exist and are equal, up to rounding to the other's number type,
    /// and so are the settings and the token ids of the text.
    pub same: bool,
    /// The family of the other model.
    pub family: &'static Family,
    /// Settings with different values, one per line.
    pub settings: Vec<String>,
    /// All tensors of both, under the other's names.
    pub tensors: Vec<TensorComparison>,
    /// The two models' predictions; `None` if a tensor is missing, extra or misshapen.
    pub logits: Option<LogitComparison>,
}

/// The predictions of both models for each token of a text.
#[derive(Clone, Debug, Serialize)]
pub struct LogitComparison {
    /// The number of tokens read.
    pub n_tokens: usize,
    /// Whether both tokenizers encode the text to the same ids.
    pub same_ids: bool,
    /// The largest difference between two logits.
    pub max_difference: f32,
    /// The number of tokens after which both predict the same most probable next token.
    pub n_same_argmax: usize,
}

/// Compares the run at `run` with the model at `against`, and their predictions for `text` or a built-in one.
pub fn verify(run: &Path, against: &Path, text: Option<&str>) -> Result<Verification, InteropError> {
    let theirs = ForeignModel::open(against)?;
    let located = locate(run)?;
    let config = located.run.config()?;
    let tokenizer = located.run.tokenizer_of_model(&config)?;
    let (config, vocab_size) = (config.model, tokenizer.vocab_size());
    let unsupported_keys = theirs.family.unsupported_keys(&config);
    if !unsupported_keys.is_empty() {
        return Err(InteropError::OtherFamily { path: against.to_owned(), family: theirs.family, unsupported_keys });
    }
    let checkpoint = Checkpoint::read(&located.checkpoint)?;
    let expected = layout(theirs.family, theirs.naming, &config, vocab_size);
    let ours = convert::to_theirs(&expected, &checkpoint.model)
        .map_err(|problems| InteropError::Tensors { path: located.checkpoint.clone(), problems })?;
    let tensors = compare_all(&ours, &theirs)?;
    let settings = differing_settings(&config, &theirs.config);
    let are_comparable = tensors.iter().all(|tensor| tensor.max_difference.is_some());
    let logits = if are_comparable {
        let text = text.map_or_else(|| default_text(&tokenizer), str::to_owned);
        let ids = tokenizer.encode(&text)?;
        if ids.is_empty() {
            return Err(InteropError::EmptyText);
        }
        let same_ids = Tokenizer::from_json(theirs.tokenizer.json.clone(), &theirs.path)?.encode(&text)? == ids;
        let read = &ids[..ids.len().min(config.context_length).min(theirs.config.context_length)];
        let model = Gpt::zeros(&config, vocab_size, &Device::flex());
        let ours = logits(&checkpoint.into_model(&located.checkpoint, model)?, read);
        let other =
            Checkpoint { model: theirs.parameters()?, optimizer: BTreeMap::new(), state: TrainState::default() };
        let model = other.into_model(against, Gpt::zeros(&theirs.config, theirs.vocab_size(), &Device::flex()))?;
        Some(compare_logits(&ours, &logits(&model, read), read.len(), same_ids))
    } else {
        None
    };
    let all_equal = tensors.iter().all(|tensor| tensor.result == TensorResult::Equal);
    let all_explained =
        tensors.iter().all(|tensor| matches!(tensor.result, TensorResult::Equal | TensorResult::Rounded));
    let predicts_the_same =
        logits.as_ref().is_some_and(|logits| logits.same_ids && (!all_equal || logits.max_difference <= EQUAL_LOGITS));
    let same = all_explained && settings.is_empty() && predicts_the_same;
    Ok(Verification { same, family: theirs.family, settings, tensors, logits })
}

/// The differing settings that affect the results of equal tensors.
fn differing_settings(ours: &ModelConfig, theirs: &ModelConfig) -> Vec<String> {
    let settings = |config: &ModelConfig| -> Map<String, Value> {
        let Ok(Value::Object(mut all)) = serde_json::to_value(config) else { unreachable!("a config is an object") };
        // Shapes show in the tensors; `context_length` and `dropout` concern training; zero biases have no effect.
        for key in ["bias", "qkv_bias", "vocab_size", "tie_embeddings", "context_length", "dropout", "d_ff", "d_model"]
        {
            all.remove(key);
        }
        all.remove("zero_init_projections"); // before training only
        all.retain(|key, _| config.has_effect(key));
        let rotates: Vec<bool> = (0..config.n_layers).map(|layer| config.rotates(layer)).collect();
        all.insert("rope_layers".to_owned(), serde_json::json!(rotates));
        let windows: Vec<Option<usize>> = (0..config.n_layers).map(|layer| config.attention_window_of(layer)).collect();
        all.insert("attention_window".to_owned(), serde_json::json!(windows));
        all.insert("attention_scale".to_owned(), config.attention_scale().into());
        all
    };
    let (ours, theirs) = (settings(ours), settings(theirs));
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), Value::to_string);
    keys.into_iter()
        .filter(|key| !is_same(ours.get(*key), theirs.get(*key)))
        .map(|key| format!("model.{key} = {}, and {} in the file", shown(ours.get(key)), shown(theirs.get(key))))
        .collect()
}

/// GGUF files store 32-bit numbers.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    match (one.and_then(Value::as_f64), other.and_then(Value::as_f64)) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-6 * one.abs(),
        _ => match (one, other) {
            (Some(Value::Array(one)), Some(Value::Array(other))) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(Some(one), Some(other)))
            }
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                one.keys().chain(other.keys()).all(|key| is_same(one.get(key), other.get(key)))
            }
            _ => one == other,
        },
    }
}

/// [`TEXT`], without the characters that the tokenizer does not know.
fn default_text(tokenizer: &Tokenizer) -> String {
    match tokenizer.encode(TEXT) {
        Ok(_) => TEXT.to_owned(),
        Err(_) => TEXT.chars().filter(|character| tokenizer.encode(&character.to_string()).is_ok()).collect(),
    }
}

/// `[T, V]`, row by row.
fn logits(model: &Gpt, ids: &[u32]) -> Vec<f32> {
    let ids: Vec<i32> = ids.iter().map(|id| id.cast_signed()).collect();
    let shape = [1, ids.len()];
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &model.device());
    model.forward(tokens).try_into_vec_as().expect("the CPU does not fail")
}

fn compare_logits(ours: &[f32], theirs: &[f32], n_tokens: usize, same_ids: bool) -> LogitComparison {
    // If one vocabulary is padded, only that model has more logits.
    let [ours, theirs] = [ours, theirs].map(|logits| logits.chunks_exact(logits.len() / n_tokens));
    let mut found = LogitComparison { n_tokens, same_ids, max_difference: 0.0, n_same_argmax: 0 };
    for (ours, theirs) in ours.zip(theirs) {
        let differences = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs());
        found.max_difference =
            differences.fold(found.max_difference, |max, x| if x > max || x.is_nan() { x } else { max });
        let largest = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
        found.n_same_argmax += usize::from(largest(ours) == largest(theirs));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_learned_positions_have_no_wavelengths() {
        let ours = ModelConfig { rope_theta: 5.0, bias: true, dropout: 0.1, ..ModelConfig::default() };
        assert_eq!(differing_settings(&ours, &ModelConfig::default()), [""; 0]);
        let close = ModelConfig { norm_eps: f64::from(1e-5_f32), ..ModelConfig::default() };
        assert_eq!(differing_settings(&close, &ModelConfig { norm_eps: 1e-5, ..close.clone() }), [""; 0]);
        let other = ModelConfig { norm_eps: 1e-6, attention_window: vec![0, 3], ..ModelConfig::default() };
        let found = differing_settings(&ModelConfig { norm_eps: 1e-5, ..ModelConfig::default() }, &other);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].starts_with("model.norm_eps = 0.00001, and 1e-6"), "{found:?}");
    }

    #[test]
    fn most_probable_tokens_are_compared_at_each_position() {
        let found = compare_logits(&[1.0, 2.0, 0.0, 5.0, 4.0, 0.0], &[1.0, 2.5, 0.0, 4.0, 5.0, 0.0], 2, true);
        assert_eq!((found.n_tokens, found.n_same_argmax, found.max_difference), (2, 1, 1.0));
    }
}
