//! Whether a run is the model of another project's file: tensor by tensor, and by the logits of a text.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Serialize;
use serde_json::{Map, Value};

use super::convert::{self, Tensors};
use super::gguf::TensorType;
use super::layout::{Naming, layout};
use super::{Family, InteropError, Source, gguf};
use crate::config::{ModelConfig, PositionKind};
use crate::model::{Dtype, Gpt, LazyTensor};
use crate::run::{Checkpoint, TrainState, locate};
use crate::tokenizer::Tokenizer;

/// Read by both models where no text is given; what a tokenizer does not know of it is left out.
pub const TEXT: &str =
    "The quick brown fox jumps over the lazy dog. Then it sat down by the river, and said: \"It is late.\"";

/// Logits of equal tensors differ by less, whatever the order of sums.
const EQUAL_LOGITS: f32 = 1e-3;

/// The result of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Whether the two are one model: all tensors are there and equal, but for the rounding of the other's type of
    /// numbers, and so are the settings and the ids of the text.
    pub same: bool,
    /// The family of the other model.
    pub family: Family,
    /// Settings with other values, each on a line.
    pub settings: Vec<String>,
    /// All tensors of both, as the other names them.
    pub tensors: Vec<TensorComparison>,
    /// The two models' predictions; `None` if a tensor is missing, extra or misshapen.
    pub logits: Option<LogitComparison>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorComparison {
    /// The other's name.
    pub name: String,
    /// How the two compare.
    pub result: TensorResult,
    /// The shape that the run's tensor has, or the other's if the run has none.
    pub shape: Vec<usize>,
    /// The shape in the file, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_shape: Option<Vec<usize>>,
    /// The type of the numbers in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<&'static str>,
    /// The largest difference of two numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_difference: Option<f32>,
    /// How many numbers differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_different: Option<usize>,
}

/// How a tensor compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorResult {
    /// Every number is the same, to the bit.
    Equal,
    /// The differences are no more than the rounding of the file's type of numbers.
    Rounded,
    /// They are more.
    Different,
    /// The shapes differ.
    Misshapen,
    /// The file has it not.
    Missing,
    /// The run has it not.
    Extra,
}

/// The predictions of both for each token of a text.
#[derive(Clone, Debug, Serialize)]
pub struct LogitComparison {
    /// How many tokens were read.
    pub n_tokens: usize,
    /// Whether both tokenizers make the same ids of the text.
    pub same_ids: bool,
    /// The largest difference of two logits.
    pub max_difference: f32,
    /// After how many tokens both have the same likeliest next token.
    pub n_same_argmax: usize,
}

/// Compares the run at `run` with the model at `against`, and their predictions for `text`, or for a built-in one.
///
/// # Errors
/// If one cannot be read, or the run is of another family.
pub fn verify(run: &Path, against: &Path, text: Option<&str>) -> Result<Verification, InteropError> {
    let theirs = Source::open(against)?;
    let located = locate(run)?;
    let config = located.run.config()?.model;
    let tokenizer = located.run.tokenizer()?;
    let obstacles = theirs.family.obstacles(&config);
    if !obstacles.is_empty() {
        return Err(InteropError::OtherFamily { path: against.to_owned(), family: theirs.family, obstacles });
    }
    let vocab_size = config.vocab_size.unwrap_or_else(|| tokenizer.vocab_size());
    let checkpoint = Checkpoint::read(&located.checkpoint)?;
    let expected = layout(theirs.family, theirs.naming, &config, vocab_size);
    let ours = convert::to_theirs(&expected, &checkpoint.model)
        .map_err(|problems| InteropError::Tensors { path: located.checkpoint.clone(), problems })?;
    let tensors = compare_all(&ours, &theirs)?;
    let settings = differing_settings(&config, &theirs.config);
    let are_comparable = tensors.iter().all(|tensor| tensor.max_difference.is_some());
    let logits = if are_comparable {
        let ids = ids(&tokenizer, text, config.context_length.min(theirs.config.context_length))?;
        let ours = Gpt::zeros(&config, vocab_size, &Device::flex());
        let ours = logits(&checkpoint.into_model(&located.checkpoint, ours)?, &ids.ours);
        let other =
            Checkpoint { model: theirs.parameters()?, optimizer: BTreeMap::new(), state: TrainState::default() };
        let model = other.into_model(against, Gpt::zeros(&theirs.config, theirs.vocab_size(), &Device::flex()))?;
        let same_ids = their_ids(&theirs, &ids.text)? == ids.all;
        Some(compare_logits(&ours, &logits(&model, &ids.ours), ids.ours.len(), same_ids))
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

/// Compares every tensor of both, in the order of their names.
fn compare_all(ours: &Tensors, theirs: &Source) -> Result<Vec<TensorComparison>, InteropError> {
    let roundings = roundings(theirs)?;
    let names: BTreeSet<&String> = ours.keys().chain(theirs.tensors.keys()).collect();
    let compared = names.into_iter().map(|name| {
        let (mine, other) = (ours.get(name), theirs.tensors.get(name));
        let rounding = roundings.get(name).copied();
        let found = |result, shape: &LazyTensor| TensorComparison {
            name: name.clone(),
            result,
            shape: shape.shape().to_vec(),
            other_shape: None,
            dtype: rounding.map(|rounding| rounding.dtype),
            max_difference: None,
            n_different: None,
        };
        match (mine, other) {
            (None, None) => unreachable!("the name is of one of them"),
            (Some(mine), None) => Ok(found(TensorResult::Missing, mine)),
            (None, Some(other)) => Ok(found(TensorResult::Extra, other)),
            (Some(mine), Some(other)) if mine.shape() != other.shape() => {
                let other_shape = Some(other.shape().to_vec());
                Ok(TensorComparison { other_shape, ..found(TensorResult::Misshapen, mine) })
            }
            (Some(mine), Some(other)) => {
                let Difference { max, n_different, is_rounding } =
                    compare(mine, other, rounding.unwrap_or(Dtype::F32.into()))?;
                let result = match n_different {
                    0 => TensorResult::Equal,
                    _ if is_rounding => TensorResult::Rounded,
                    _ => TensorResult::Different,
                };
                let (max_difference, n_different) = (Some(max), Some(n_different));
                Ok(TensorComparison { max_difference, n_different, ..found(result, mine) })
            }
        }
    });
    let compared: io::Result<Vec<TensorComparison>> = compared.collect();
    compared.map_err(|source| InteropError::Read { path: theirs.path.clone(), source })
}

/// How the numbers of each tensor of the file are rounded.
fn roundings(source: &Source) -> Result<BTreeMap<String, Rounding>, InteropError> {
    if source.naming == Naming::Gguf {
        let types = gguf::tensor_types(&source.path)?;
        return Ok(types.into_iter().map(|(name, dtype)| (name, dtype.into())).collect());
    }
    let rounding = |(name, tensor): (&String, &LazyTensor)| Some((name.clone(), tensor.dtype()?.into()));
    Ok(source.tensors.iter().filter_map(rounding).collect())
}

struct Difference {
    max: f32,
    n_different: usize,
    is_rounding: bool,
}

/// Compares number by number; one of the two is in memory at a time.
fn compare(mine: &LazyTensor, other: &LazyTensor, rounding: Rounding) -> io::Result<Difference> {
    let mine = mine.read()?.values;
    let mut difference = Difference { max: 0.0, n_different: 0, is_rounding: true };
    let (mut at, mut allowed) = (0, 0.0);
    other.stream(&mut |numbers| {
        for &theirs in numbers {
            let ours = mine[at];
            if at % rounding.block == 0 {
                let block = &mine[at..mine.len().min(at + rounding.block)];
                allowed = rounding.allowed(block.iter().fold(0.0, |largest, x| largest.max(x.abs())));
            }
            at += 1;
            if ours.to_bits() == theirs.to_bits() {
                continue;
            }
            let off = (ours - theirs).abs();
            difference.n_different += 1;
            // Not a number, or infinite: as different as can be.
            difference.max = if off.is_finite() { difference.max.max(off) } else { f32::INFINITY };
            difference.is_rounding &= off <= allowed;
        }
        Ok(())
    })?;
    Ok(difference)
}

/// How a type of numbers rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rounding {
    /// The name of the type.
    dtype: &'static str,
    /// How many numbers share a scale.
    block: usize,
    /// How far a number may be from what was rounded to it, as a share of the largest of its block.
    share: f32,
}

impl From<Dtype> for Rounding {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => TensorType::F32.into(),
            Dtype::F16 => TensorType::F16.into(),
            Dtype::Bf16 => TensorType::Bf16.into(),
        }
    }
}

impl From<TensorType> for Rounding {
    fn from(dtype: TensorType) -> Self {
        let share = match dtype {
            TensorType::F32 => 0.0,
            TensorType::F16 => 1.0 / 2048.0,
            TensorType::Bf16 => 1.0 / 256.0,
            // Half a step of the scale, and as much as 127 times the rounding of the scale itself to an f16.
            TensorType::Q8_0 => (0.5 + 127.0 / 2048.0) / 127.0,
            // A step: the end of the scale that is not used by the largest number lacks one. And the scale's rounding.
            TensorType::Q4_0 => (1.0 + 8.0 / 2048.0) / 8.0,
            // Half a step of up to 2/15, and the rounding of scale and offset.
            TensorType::Q4_1 => 1.0 / 15.0 + 3.0 / 2048.0,
        };
        Self { dtype: dtype.name(), block: dtype.block_len(), share }
    }
}

impl Rounding {
    fn allowed(&self, largest: f32) -> f32 {
        // The smallest numbers of an f16 are further apart than their share.
        let least = if self.share == 0.0 { 0.0 } else { 3e-8 };
        (largest * self.share).max(least) * 1.000_001
    }
}

/// The settings that change what the same tensors compute, where they differ.
fn differing_settings(ours: &ModelConfig, theirs: &ModelConfig) -> Vec<String> {
    let settings = |config: &ModelConfig| -> Map<String, Value> {
        let Ok(Value::Object(mut all)) = serde_json::to_value(config) else { unreachable!("a config is an object") };
        // Shapes show in tensors; these two are of training; biases of zeros are none.
        for key in ["bias", "qkv_bias", "vocab_size", "tie_embeddings", "context_length", "dropout", "d_ff", "d_model"]
        {
            all.remove(key);
        }
        if config.position != PositionKind::Rope {
            for key in ["rope_theta", "rotary_fraction", "rope_scaling"] {
                all.remove(key);
            }
        }
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

/// Numbers of a GGUF file have 32 bits.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    match (one.and_then(Value::as_f64), other.and_then(Value::as_f64)) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-6 * one.abs(),
        _ => one == other,
    }
}

/// A text and its tokens.
struct Ids {
    text: String,
    all: Vec<u32>,
    /// As many as a context holds.
    ours: Vec<u32>,
}

fn ids(tokenizer: &Tokenizer, text: Option<&str>, most: usize) -> Result<Ids, InteropError> {
    let text = match text {
        Some(text) => text.to_owned(),
        None if tokenizer.encode(TEXT).is_ok() => TEXT.to_owned(),
        None => TEXT.chars().filter(|character| tokenizer.encode(&character.to_string()).is_ok()).collect(),
    };
    let all = tokenizer.encode(&text)?;
    if all.is_empty() {
        return Err(InteropError::EmptyText);
    }
    let ours = all[..all.len().min(most)].to_vec();
    Ok(Ids { text, all, ours })
}

fn their_ids(theirs: &Source, text: &str) -> Result<Vec<u32>, InteropError> {
    Ok(Tokenizer::from_json(theirs.tokenizer.json.clone(), &theirs.path)?.encode(text)?)
}

/// `[T, V]`, row by row.
fn logits(model: &Gpt, ids: &[u32]) -> Vec<f32> {
    let ids: Vec<i32> = ids.iter().map(|id| id.cast_signed()).collect();
    let shape = [1, ids.len()];
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ids, shape), &model.device());
    model.forward(tokens).try_into_vec_as().expect("the CPU does not fail")
}

fn compare_logits(ours: &[f32], theirs: &[f32], n_tokens: usize, same_ids: bool) -> LogitComparison {
    // A vocabulary that is padded in one of them only has more logits there.
    let rows = |logits: &[f32]| -> Vec<Vec<f32>> {
        logits.chunks_exact(logits.len() / n_tokens).map(<[f32]>::to_vec).collect()
    };
    let mut found = LogitComparison { n_tokens, same_ids, max_difference: 0.0, n_same_argmax: 0 };
    for (ours, theirs) in rows(ours).iter().zip(&rows(theirs)) {
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

    fn tensor(values: &[f32]) -> LazyTensor {
        let values = values.to_vec();
        LazyTensor::computed(vec![values.len()], move |sink| values.chunks(5).try_for_each(&mut *sink))
    }

    fn found(mine: &[f32], other: &[f32], rounding: impl Into<Rounding>) -> (f32, usize, bool) {
        let difference = compare(&tensor(mine), &tensor(other), rounding.into()).expect("in memory");
        (difference.max, difference.n_different, difference.is_rounding)
    }

    #[test]
    fn equal_is_equal_to_the_bit() {
        assert_eq!(found(&[1.0, -2.0], &[1.0, -2.0], Dtype::F32), (0.0, 0, true));
        assert_eq!(found(&[0.0], &[-0.0], Dtype::F32), (0.0, 1, true));
        let (max, n, is_rounding) = found(&[1.0, 2.0], &[1.0, 2.000_000_2], Dtype::F32);
        assert!(max > 0.0 && n == 1 && !is_rounding);
        let (max, _, is_rounding) = found(&[1.0], &[f32::NAN], Dtype::F16);
        assert!(max == f32::INFINITY && !is_rounding);
    }

    /// Numbers as their type rounds them, and three of them a little further.
    #[test]
    fn a_type_explains_its_own_rounding_and_no_more() {
        let numbers: Vec<f32> = (0..96_u8).map(|at| (f32::from(at) * 1.7).sin() * 0.3 * f32::from(at % 7)).collect();
        for dtype in [TensorType::F16, TensorType::Bf16, TensorType::Q8_0] {
            let (mut bytes, mut rounded) = (Vec::new(), Vec::new());
            dtype.encode(&numbers, &mut bytes);
            dtype.decode(&bytes, &mut rounded);
            let (max, n, is_rounding) = found(&numbers, &rounded, dtype);
            assert!(max > 0.0 && n > 60 && is_rounding, "{dtype:?} {max} {n}");
            assert!(!found(&numbers, &rounded, Dtype::F32).2);
            for x in &mut rounded[40..44] {
                *x += max * 3.0;
            }
            assert!(!found(&numbers, &rounded, dtype).2, "{dtype:?}");
        }
    }

    #[test]
    fn four_bits_explain_their_steps() {
        // As ggml makes them: d = largest / -8, and q = x / d + 8; d = (max - min) / 15, and q = (x - min) / d.
        let numbers: Vec<f32> = (0..32_u8).map(|at| (f32::from(at) * 0.7).sin()).collect();
        let largest = numbers.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("some");
        let d = largest / -8.0;
        let q4_0: Vec<f32> = numbers.iter().map(|x| ((x / d + 8.5).floor().clamp(0.0, 15.0) - 8.0) * d).collect();
        assert!(found(&numbers, &q4_0, TensorType::Q4_0).2);
        let (min, max) = numbers.iter().fold((1.0_f32, -1.0_f32), |(min, max), x| (min.min(*x), max.max(*x)));
        let d = (max - min) / 15.0;
        let q4_1: Vec<f32> = numbers.iter().map(|x| ((x - min) / d + 0.5).floor() * d + min).collect();
        assert!(found(&numbers, &q4_1, TensorType::Q4_1).2);
        assert!(!found(&numbers, &q4_1, TensorType::Q8_0).2);
    }

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
    fn the_likeliest_token_is_compared_at_each_position() {
        let found = compare_logits(&[1.0, 2.0, 0.0, 5.0, 4.0, 0.0], &[1.0, 2.5, 0.0, 4.0, 5.0, 0.0], 2, true);
        assert_eq!((found.n_tokens, found.n_same_argmax, found.max_difference), (2, 1, 1.0));
    }
}
