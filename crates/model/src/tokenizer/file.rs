//! Reads a `tokenizer.json` straight into the library's tokenizer. The library first parses the file into a value tree
//! 40 times its size.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::tokenizer::{Model, ModelWrapper, TokenizerImpl};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

use super::TokenizerError;
use super::parts::Part;

/// The id limit of any file, however short it is.
const MAX_IDS: u64 = 1 << 16;

/// The keys of a model that the library reads. It skips others, which it can do in value trees only.
const MODEL_KEYS: [&str; 12] = [
    "type",
    "vocab",
    "merges",
    "dropout",
    "unk_token",
    "unk_id",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "max_input_chars_per_word",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
];

/// Reads the tokenizer of a `tokenizer.json`; errors show `path`.
pub(super) fn read(json: &str, path: &Path) -> Result<Tokenizer, TokenizerError> {
    let malformed = |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
    let unsupported = |reason: String| TokenizerError::Unsupported { path: path.to_owned(), reason };
    let outline: Outline = serde_json::from_str(json).map_err(|error| {
        malformed(match error.is_data() {
            true => "it is JSON, but without a `model`, which holds the vocabulary".to_owned(),
            false => format!("not JSON: {error}"),
        })
    })?;
    let Outline { model, added_tokens, normalizer, pre_tokenizer, decoder } = outline;
    let vocab = model.get("vocab").ok_or_else(|| malformed("its `model` has no `vocab`".to_owned()))?;
    let largest = vocab.largest.max(added_tokens.map_or(0, |tokens| tokens.largest));
    // The library allocates lists as long as the largest id.
    if largest > MAX_IDS.max(json.len() as u64) {
        return Err(unsupported(format!("it has the id {largest}, and is much too short for so many tokens")));
    }
    Part::all_of(normalizer, pre_tokenizer, decoder).into_iter().try_for_each(Part::check).map_err(unsupported)?;
    let has_more = model.keys().any(|key| !MODEL_KEYS.contains(&key.as_str()));
    let read = match model.get("type").and_then(|kind| kind.text.as_deref()) {
        _ if has_more => serde_json::from_str(json),
        Some("BPE") => with_model::<BPE>(json),
        None if model.contains_key("merges") => with_model::<BPE>(json),
        Some("WordPiece") => with_model::<WordPiece>(json),
        Some("WordLevel") => with_model::<WordLevel>(json),
        Some("Unigram") => with_model::<Unigram>(json),
        _ => serde_json::from_str(json),
    };
    read.map_err(|error| malformed(error.to_string()))
}

/// Reads a file with this kind of model, parsing its text once without keeping it.
fn with_model<'a, M>(json: &'a str) -> serde_json::Result<Tokenizer>
where
    M: Model + Deserialize<'a> + Into<ModelWrapper>,
{
    type File<M> = TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    Ok(serde_json::from_str::<File<M>>(json)?.into())
}

/// The parts of a file that decide how to read it.
#[derive(Deserialize)]
struct Outline {
    model: BTreeMap<String, Summary>,
    added_tokens: Option<Summary>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
}

/// What reading a value leaves of it.
#[derive(Default)]
struct Summary {
    /// The largest integer in it, or 0.
    largest: u64,
    /// The value, if it is a string.
    text: Option<String>,
}

impl<'de> Deserialize<'de> for Summary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Summary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_u64<E>(self, largest: u64) -> Result<Summary, E> {
                Ok(Summary { largest, text: None })
            }

            fn visit_i64<E>(self, _: i64) -> Result<Summary, E> {
                Ok(Summary::default()) // below 0
            }

            fn visit_f64<E>(self, _: f64) -> Result<Summary, E> {
                Ok(Summary::default())
            }

            fn visit_bool<E>(self, _: bool) -> Result<Summary, E> {
                Ok(Summary::default())
            }

            fn visit_str<E>(self, text: &str) -> Result<Summary, E> {
                Ok(Summary { largest: 0, text: Some(text.to_owned()) })
            }

            fn visit_unit<E>(self) -> Result<Summary, E> {
                Ok(Summary::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Summary, A::Error> {
                let mut largest = 0;
                while let Some(value) = values.next_element::<Summary>()? {
                    largest = largest.max(value.largest);
                }
                Ok(Summary { largest, text: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Summary, A::Error> {
                let mut largest = 0;
                while let Some((_, value)) = map.next_entry::<IgnoredAny, Summary>()? {
                    largest = largest.max(value.largest);
                }
                Ok(Summary { largest, text: None })
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}
