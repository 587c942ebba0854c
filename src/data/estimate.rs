//! How long texts are, without encoding them.

use std::collections::BTreeSet;

use super::corpus::check_numbers;
use super::divide::Place;
use super::reader::{Needs, Unit};
use super::survey::Survey;
use super::{DataError, progress, text};
use crate::config::DataConfig;
use crate::tokenizer::TokenizerKind;

/// How many bytes of text a token that stands for several is taken to stand for.
pub const ASSUMED_BYTES_PER_TOKEN: u64 = 4;

/// The estimate of all texts of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of text; at least 1.
    pub bytes: u64,
    /// Tokens to learn from: exact for characters and bytes, else [`ASSUMED_BYTES_PER_TOKEN`] each.
    pub train_tokens: u64,
    /// Tokens kept for validation, counted the same way.
    pub val_tokens: u64,
    /// How many different characters there are; 0 where they are no tokens.
    pub n_characters: usize,
}

impl Estimate {
    /// Reads the texts once, and writes nothing. Texts that are too short for the context length count, and
    /// are told to `too_short`.
    ///
    /// # Errors
    /// If a text cannot be read, is empty, is not what the tokenizer needs, or is in another, too.
    pub fn read(
        data: &DataConfig,
        kind: TokenizerKind,
        context_length: usize,
        mut too_short: impl FnMut(DataError),
    ) -> Result<Self, DataError> {
        let needs = Needs {
            utf8: kind != TokenizerKind::Byte,
            documents: false,
            unit: match kind {
                TokenizerKind::Byte => Unit::Byte,
                TokenizerKind::Char => Unit::Character,
                TokenizerKind::Bpe | TokenizerKind::File => Unit::Piece,
            },
        };
        let sources = text::find(&data.all_sources())?;
        let mut estimate = Self { bytes: 0, train_tokens: 0, val_tokens: 0, n_characters: 0 };
        let mut characters = BTreeSet::new();
        for source in &sources {
            let survey = Survey::read(source, needs, &progress::ignore)?;
            let n_tokens = match needs.unit {
                Unit::Piece => survey.bytes.div_ceil(ASSUMED_BYTES_PER_TOKEN),
                Unit::Byte | Unit::Character => survey.n_units,
            };
            let train = Place::share(1.0 - data.val_fraction, n_tokens);
            let val = n_tokens - train;
            if let Err(error) = check_numbers(&source.path, train, val, data, context_length) {
                too_short(error);
            }
            estimate.bytes += survey.bytes;
            estimate.train_tokens += train;
            estimate.val_tokens += val;
            characters.extend(survey.alphabet.chars());
        }
        estimate.n_characters = characters.len();
        Ok(estimate)
    }
}
