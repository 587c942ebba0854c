//! Imports a model of another project as a run directory, which works like any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::gguf::{self, TensorType};
use super::{ForeignModel, InteropError, Naming, TokenizerFiles};
use tinderbox_model::config::{ModelConfig, TokenizerConfig, TokenizerKind};
use tinderbox_model::tokenizer::{TOKENIZER_CONFIG, Tokenizer};
use tinderbox_train::config::{Config, DataConfig, TrainConfig};
use tinderbox_train::run::{Checkpoint, RunDir, RunError, TrainState, layout};

/// The number of tokens that an evaluation reads at once. Without it, contexts of thousands of tokens would exhaust the
/// memory.
const EVALUATED_TOKENS: usize = 4096;

/// An imported model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The number of parameters.
    pub n_parameters: usize,
    /// The token that the tokenizer goes without, if any: it fills batches, and the model has no row for it.
    pub left_out: Option<String>,
}

/// Writes a model as the run `root`, replacing an old run if `overwrite`. `origin` names its source in the run's
/// records.
pub fn import(source: &ForeignModel, origin: &str, root: &Path, overwrite: bool) -> Result<Imported, InteropError> {
    RunDir::check_new(root, overwrite).map_err(in_the_way)?; // before reading gigabytes
    let (tokenizer, left_out) = tokenizer(source)?;
    let config = config(source, &tokenizer, root)?;
    let model = source.parameters()?;
    let n_parameters = model.values().map(tinderbox_model::LazyTensor::n_numbers).sum();
    let state = TrainState {
        started_from: Some(origin.to_owned()),
        family: Some(source.family.name().to_owned()),
        dtype: Some(dtype(source)?.to_owned()),
        tokenizer_crc32c: Some(crc32c::crc32c(tokenizer.to_json().as_bytes())),
        ..TrainState::default()
    };
    let checkpoint = Checkpoint { model, optimizer: BTreeMap::new(), state };
    RunDir::create_with(root, overwrite, &config, &tokenizer, &checkpoint).map_err(in_the_way)?;
    Ok(Imported { n_parameters, left_out })
}

/// The type of most numbers, as `export --dtype` calls it: for quantized ones, the type with the most bits of those.
fn dtype(source: &ForeignModel) -> Result<&'static str, InteropError> {
    let kinds = match source.naming {
        Naming::Gguf => gguf::tensor_types(&source.path)?,
        Naming::Hf => BTreeMap::new(),
    };
    let mut n_numbers = BTreeMap::new();
    for (name, tensor) in &source.tensors {
        let kind = kinds.get(name).copied().or_else(|| tensor.dtype().map(TensorType::from));
        let name = match kind.unwrap_or(TensorType::F32) {
            TensorType::F32 => "f32",
            TensorType::F16 => "f16",
            TensorType::Bf16 => "bf16",
            _ => "q8_0",
        };
        *n_numbers.entry(name).or_insert(0) += tensor.n_numbers();
    }
    Ok(n_numbers.into_iter().max_by_key(|(_, n)| *n).map_or("f32", |(name, _)| name))
}

fn in_the_way(error: RunError) -> InteropError {
    match error {
        RunError::Exists(root) => InteropError::Exists(root),
        other => other.into(),
    }
}

/// The tokenizer, and a token that is left out of it.
fn tokenizer(source: &ForeignModel) -> Result<(Tokenizer, Option<String>), InteropError> {
    let TokenizerFiles { json, config } = &source.tokenizer;
    // An empty config is kept too: without a config, no text gets a BOS token.
    let config = config.clone().unwrap_or_else(|| "{}".to_owned());
    let read = |json: String| {
        let tokenizer = Tokenizer::from_json(json, &source.path.join(layout::TOKENIZER))?;
        tokenizer.with_config(config.clone(), &source.path.join(TOKENIZER_CONFIG))
    };
    let n_rows = source.vocab_size();
    let (mut tokenizer, mut left_out) = (read(json.clone())?, None);
    let n_ids = tokenizer.vocab_size();
    if n_ids > n_rows
        && let Some((json, token)) = without_padding(json, &config, n_ids - 1)
    {
        (tokenizer, left_out) = (read(json)?, Some(token));
    }
    let n_ids = tokenizer.vocab_size();
    if n_ids > n_rows {
        let problem = format!(
            "vocab_size = {n_rows}: the tokenizer has {n_ids} ids, and each needs a row; the model's \
             resize_token_embeddings of transformers adds rows"
        );
        return Err(InteropError::Unsupported { path: source.path.clone(), problems: vec![problem] });
    }
    Ok((tokenizer, left_out))
}

/// A tokenizer without its last token, and that token, if it only fills batches. Some models were published without a
/// row for it.
fn without_padding(json: &str, config: &str, last: usize) -> Option<(String, String)> {
    let config: Value = serde_json::from_str(config).ok()?;
    let name = |key: &str| config[key].as_str().or_else(|| config[key]["content"].as_str());
    let token = name("pad_token").filter(|token| ![name("bos_token"), name("eos_token")].contains(&Some(*token)))?;
    let mut file: Value = serde_json::from_str(json).ok()?;
    let added = file["added_tokens"].as_array_mut()?;
    added.pop_if(|added| added["id"] == last && added["content"] == token)?;
    match &mut file["model"]["vocab"] {
        Value::Object(vocab) => drop(vocab.shift_remove(token)),
        Value::Array(vocab) => drop(vocab.pop_if(|piece| piece[0] == token)),
        _ => {}
    }
    Some((file.to_string(), token.to_owned()))
}

fn config(source: &ForeignModel, tokenizer: &Tokenizer, root: &Path) -> Result<Config, InteropError> {
    let padded = (source.vocab_size() > tokenizer.vocab_size()).then(|| source.vocab_size());
    let path = root.join(layout::TOKENIZER);
    let path = if path.to_str().is_some() { path } else { PathBuf::from(layout::TOKENIZER) };
    let default = TrainConfig::default();
    let mut generate = source.generate.clone();
    generate.stop_token_ids.retain(|id| Some(*id) != tokenizer.end_of_text());
    let batch_size = (EVALUATED_TOKENS / source.config.context_length).clamp(1, default.batch_size);
    let config = Config {
        // Texts are read as in the run that the model came from, so that losses can be compared.
        data: DataConfig { document_separator: source.document_separator.clone(), ..DataConfig::default() },
        tokenizer: TokenizerConfig {
            kind: TokenizerKind::File,
            end_of_text: tokenizer.end_of_text().is_some(),
            path: Some(path),
            ..TokenizerConfig::default()
        },
        model: ModelConfig { vocab_size: padded, ..source.config.clone() },
        train: TrainConfig { batch_size, ..default },
        generate,
        ..Config::default()
    };
    config.check_saved().map_err(|problems| InteropError::Unsupported { path: source.path.clone(), problems })?;
    Ok(config)
}
