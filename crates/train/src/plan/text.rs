//! The text and the vocabulary of a run, as far as they are known before it starts.

use std::path::Path;

use serde::Serialize;

use super::PlanError;
use crate::config::Config;
use crate::data::{self, ASSUMED_BYTES_PER_TOKEN, DataError, Estimate};
use tinderbox_model::tokenizer::{Tokenizer, TokenizerKind};

/// The number of characters assumed for a text that is not found: those of ASCII.
const ASSUMED_CHARACTERS: usize = 128;

/// The vocabulary of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vocabulary {
    /// The number of distinct tokens.
    pub size: usize,
    /// The setting or the text that determines the size.
    pub source: String,
}

/// Scans the text, if there is one, and determines the vocabulary, unless it is `known`.
pub(super) fn find(
    config: &Config,
    known: Option<Vocabulary>,
    notes: &mut Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<(Vocabulary, Option<Estimate>), PlanError> {
    let path = config.data.path.display();
    let kind = config.tokenizer.kind;
    let mut too_short = |error: DataError| warnings.push(error.to_string());
    let mut left_out = |why: String| {
        notes.push(format!("{why}, so the number of epochs and the last evaluation are left out"));
        None
    };
    let extent = if config.data.path == Path::new("-") {
        left_out("standard input is not read".to_owned())
    } else {
        match Estimate::read(config, &mut too_short) {
            Ok(extent) => Some(extent),
            // A mistyped path, unlike a text that is yet to come, is refused as `train` does.
            Err(DataError::Missing { path, nearest }) if nearest.is_none() || data::fetch_hint(&path).is_some() => {
                let hint = data::missing_hint(&path, nearest.as_deref());
                left_out(format!("the text `{}` is not there ({hint})", path.display()))
            }
            Err(error) => return Err(error.into()),
        }
    };
    let end = usize::from(config.tokenizer.end_of_text);
    let and_end = if config.tokenizer.end_of_text { " and the end of a text" } else { "" };
    let (mut size, mut source) = match (known, kind, &extent) {
        (Some(Vocabulary { size, source }), ..) => (size, source),
        (None, TokenizerKind::Byte, _) => (256 + end, format!("bytes{and_end}")),
        (None, TokenizerKind::Char, Some(extent)) => {
            (extent.n_characters + end, format!("the characters of `{path}`{and_end}"))
        }
        (None, TokenizerKind::Char, None) => {
            notes.push(format!("a vocabulary of {ASSUMED_CHARACTERS} characters was assumed: it is that of the text"));
            (ASSUMED_CHARACTERS, "assumed".to_owned())
        }
        (None, TokenizerKind::Bpe, _) => {
            (config.tokenizer.bpe_vocab_size(), "tokenizer.vocab_size, if the text has enough for it".to_owned())
        }
        (None, TokenizerKind::File, _) => {
            let path = config.tokenizer.path.as_ref().expect("the rules require a path for kind file");
            let tokenizer = Tokenizer::from_file(path).map_err(PlanError::Tokenizer)?;
            (tokenizer.vocab_size(), format!("`{}`", path.display()))
        }
    };
    if let Some(rows) = config.model.vocab_size {
        // A tokenizer with more tokens is rejected when the run starts.
        (size, source) = (rows.max(size), "model.vocab_size".to_owned());
    }
    let is_estimate = matches!(kind, TokenizerKind::Bpe | TokenizerKind::File);
    if is_estimate && extent.is_some() {
        notes.push(format!(
            "{ASSUMED_BYTES_PER_TOKEN} bytes of text per token are assumed; only encoding the text tells the number"
        ));
    }
    Ok((Vocabulary { size, source }, extent))
}
