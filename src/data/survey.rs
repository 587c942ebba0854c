//! What a text would be as a corpus, without encoding it.

use super::DataError;
use super::corpus::training_tokens;
use super::source::Source;
use super::summary::Summary;
use crate::config::DataConfig;
use crate::tokenizer::TokenizerKind;

/// The extent of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Its length in bytes; at least 1.
    pub bytes: u64,
    /// Its length in characters or bytes, as the tokenizer counts.
    pub n_tokens: u64,
    /// How many different characters it has; 0 for bytes.
    pub n_characters: usize,
}

impl Survey {
    /// How many of so many tokens would be for training.
    ///
    /// # Errors
    /// If that is too few for a window of the context, or leaves too few for validation.
    pub fn training_tokens(
        n_tokens: u64,
        data: &DataConfig,
        context_length: usize,
    ) -> Result<u64, DataError> {
        training_tokens(data, n_tokens, context_length)
    }
}

/// Reads the text once, and writes nothing.
///
/// # Errors
/// If it cannot be read, is empty or, with characters, not UTF-8.
pub fn survey(data: &DataConfig, kind: TokenizerKind) -> Result<Survey, DataError> {
    let source = Source::find(&data.path)?;
    let summary = Summary::read(&source, &data.path, kind)?;
    Ok(Survey {
        bytes: summary.bytes,
        n_tokens: summary.n_tokens,
        n_characters: summary.alphabet.chars().count(),
    })
}
