//! Reads a `tokenizer.json` straight into the library's tokenizer. The library first parses the file into a value tree
//! 40 times its size.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::tokenizer::{Model, ModelWrapper, TokenizerImpl};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// The id limit of any file, however short it is.
const MAX_IDS: u64 = 1 << 16;

/// The keys of a model that the library reads, besides its type, vocabulary and merges.
const SETTINGS: [&str; 9] = [
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

/// The reason why a file cannot be read.
pub(super) enum Fault {
    /// The file is malformed.
    Malformed(String),
    /// An id would need far more memory than the file has bytes.
    LargeId(u64),
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Reads the tokenizer of a `tokenizer.json`.
pub(super) fn read(json: &str) -> Result<Tokenizer, Fault> {
    let outline: Outline = serde_json::from_str(json).map_err(|error| {
        Fault::Malformed(match error.is_data() {
            true => "it is JSON, but without a `model`, which holds the vocabulary".to_owned(),
            false => format!("not JSON: {error}"),
        })
    })?;
    let Outline { model, added_tokens } = outline;
    let Some(Largest(largest)) = model.vocab else {
        return Err(Fault::Malformed("its `model` has no `vocab`".to_owned()));
    };
    let largest = largest.max(added_tokens.map_or(0, |Largest(id)| id));
    // The library allocates lists as long as the largest id.
    if largest > MAX_IDS.max(json.len() as u64) {
        return Err(Fault::LargeId(largest));
    }
    Ok(match model.kind.as_deref() {
        _ if model.has_more => serde_json::from_str(json)?,
        Some("BPE") => with_model::<BPE>(json)?,
        None if model.has_merges => with_model::<BPE>(json)?,
        Some("WordPiece") => with_model::<WordPiece>(json)?,
        Some("WordLevel") => with_model::<WordLevel>(json)?,
        Some("Unigram") => with_model::<Unigram>(json)?,
        _ => serde_json::from_str(json)?,
    })
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
    model: ModelOutline,
    /// The largest integer in them, which is an id.
    added_tokens: Option<Largest>,
}

/// The keys that identify a model.
#[derive(Default)]
struct ModelOutline {
    kind: Option<String>,
    vocab: Option<Largest>,
    has_merges: bool,
    /// Whether it has keys that the library skips, which it can do in value trees only.
    has_more: bool,
}

impl<'de> Deserialize<'de> for ModelOutline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = ModelOutline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelOutline, A::Error> {
                let mut model = ModelOutline::default();
                while let Some(key) = map.next_key::<String>()? {
                    match &*key {
                        "type" => model.kind = map.next_value()?,
                        "vocab" => model.vocab = Some(map.next_value()?),
                        key => {
                            model.has_merges |= key == "merges";
                            model.has_more |= key != "merges" && !SETTINGS.contains(&key);
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(model)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The largest integer in a value, or 0.
#[derive(Clone, Copy)]
struct Largest(u64);

impl<'de> Deserialize<'de> for Largest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Integers;
        impl<'de> Visitor<'de> for Integers {
            type Value = Largest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_u64<E>(self, value: u64) -> Result<Largest, E> {
                Ok(Largest(value))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Largest, E> {
                Ok(Largest(0)) // below 0
            }

            fn visit_f64<E>(self, _: f64) -> Result<Largest, E> {
                Ok(Largest(0))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Largest, E> {
                Ok(Largest(0))
            }

            fn visit_str<E>(self, _: &str) -> Result<Largest, E> {
                Ok(Largest(0))
            }

            fn visit_unit<E>(self) -> Result<Largest, E> {
                Ok(Largest(0))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Largest, A::Error> {
                let mut largest = 0;
                while let Some(Largest(value)) = values.next_element()? {
                    largest = largest.max(value);
                }
                Ok(Largest(largest))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Largest, A::Error> {
                let mut largest = 0;
                while let Some((_, Largest(value))) = map.next_entry::<IgnoredAny, Largest>()? {
                    largest = largest.max(value);
                }
                Ok(Largest(largest))
            }
        }
        deserializer.deserialize_any(Integers)
    }
}
