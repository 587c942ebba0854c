//! The text and the vocabulary of a run, as far as they can be known.

use std::io::ErrorKind;

use serde::Serialize;

use super::PlanError;
use crate::config::Config;
use crate::data::{DataError, Survey, survey};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// How many different characters a text is taken to have that cannot be read: ASCII's.
const ASSUMED_CHARACTERS: usize = 128;

/// How many bytes of text a token of several is taken to stand for, before the text is encoded.
const BYTES_PER_TOKEN: u64 = 4;

/// What a token may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vocabulary {
    /// How many different tokens there are.
    pub size: usize,
    /// Where that is known from.
    pub source: String,
}

/// The text of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Text {
    /// Its length in bytes.
    pub bytes: u64,
    /// Tokens that are learned from.
    pub train_tokens: u64,
    /// Tokens that are kept for validation.
    pub val_tokens: u64,
}

pub(super) struct Found {
    pub(super) vocabulary: Vocabulary,
    pub(super) text: Option<Text>,
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Reads the text, if it is there, and finds out the vocabulary.
pub(super) fn find(config: &Config) -> Result<Found, PlanError> {
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let path = config.data.path.display();
    let kind = config.tokenizer.kind;
    let surveyed = match survey(&config.data, kind) {
        Ok(surveyed) => Some(surveyed),
        Err(DataError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            notes.push(format!(
                "the text `{path}` is not there (scripts/fetch_data.sh downloads tiny Shakespeare), so the \
                 number of epochs and the last evaluation are left out"
            ));
            None
        }
        Err(error) => return Err(error.into()),
    };
    let vocabulary = match (kind, surveyed) {
        (TokenizerKind::Byte, _) => Vocabulary {
            size: 256,
            source: "bytes".to_owned(),
        },
        (TokenizerKind::Char, Some(surveyed)) => Vocabulary {
            size: surveyed.n_characters,
            source: format!("the characters of `{path}`"),
        },
        (TokenizerKind::Char, None) => {
            notes.push(format!(
                "a vocabulary of {ASSUMED_CHARACTERS} characters was assumed: it is that of the text"
            ));
            Vocabulary {
                size: ASSUMED_CHARACTERS,
                source: "assumed".to_owned(),
            }
        }
        (TokenizerKind::Bpe, _) => Vocabulary {
            size: config
                .tokenizer
                .vocab_size
                .expect("a config with bpe is given one when it is loaded"),
            source: "tokenizer.vocab_size, if the text has enough for it".to_owned(),
        },
        (TokenizerKind::File, _) => {
            let path = config.tokenizer.path.as_ref();
            let path = path.expect("a rule of the config");
            Vocabulary {
                size: Tokenizer::from_file(path)
                    .map_err(PlanError::Tokenizer)?
                    .vocab_size(),
                source: format!("`{}`", path.display()),
            }
        }
    };
    let is_estimate = matches!(kind, TokenizerKind::Bpe | TokenizerKind::File);
    if is_estimate && surveyed.is_some() {
        notes.push(format!(
            "a token was taken to stand for {BYTES_PER_TOKEN} bytes of text: how many it does, encoding tells"
        ));
    }
    let text = surveyed.map(
        |Survey {
             bytes, n_tokens, ..
         }| {
            let n_tokens = match is_estimate {
                true => bytes.div_ceil(BYTES_PER_TOKEN),
                false => n_tokens,
            };
            let context_length = config.model.context_length;
            let train_tokens = Survey::training_tokens(n_tokens, &config.data, context_length)
                .inspect_err(|error| warnings.push(error.to_string()))
                .unwrap_or(n_tokens);
            Text {
                bytes,
                train_tokens,
                val_tokens: n_tokens - train_tokens,
            }
        },
    );
    Ok(Found {
        vocabulary,
        text,
        notes,
        warnings,
    })
}
