//! The tokenizers whose tables are plain: one token for each character of an alphabet, or for each byte.

use std::collections::BTreeSet;

use super::{TokenizerError, TokenizerKind};

/// Characters or bytes, and their ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) kind: TokenizerKind,
    /// The bytes of each token, by id.
    pub(super) bytes: Vec<Box<[u8]>>,
    /// The id of each character, by code point; [`UNKNOWN`] where there is none. Empty for bytes.
    ids: Vec<u32>,
}

/// Stands where a character has no id.
const UNKNOWN: u32 = u32::MAX;

impl Table {
    /// One token for each distinct character, numbered in code point order.
    pub(super) fn characters(
        alphabet: impl IntoIterator<Item = char>,
    ) -> Result<Self, TokenizerError> {
        let mut alphabet: Vec<char> = alphabet.into_iter().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let last = *alphabet.last().ok_or(TokenizerError::EmptyAlphabet)?;
        let mut ids = vec![UNKNOWN; last as usize + 1];
        for (id, &character) in (0..).zip(&alphabet) {
            ids[character as usize] = id;
        }
        let bytes = alphabet.iter().map(|character| character.to_string().into_bytes().into());
        Ok(Self { kind: TokenizerKind::Char, bytes: bytes.collect(), ids })
    }

    /// One token for each byte; the id is the byte.
    pub(super) fn bytes() -> Self {
        Self {
            kind: TokenizerKind::Byte,
            bytes: (0..=u8::MAX).map(|byte| [byte].into()).collect(),
            ids: Vec::new(),
        }
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.kind == TokenizerKind::Byte {
            return Ok(text.bytes().map(u32::from).collect());
        }
        let mut ids = Vec::with_capacity(text.len());
        let mut all_known = true;
        ids.extend(text.chars().map(|character| {
            let id = self.id(character);
            all_known &= id != UNKNOWN;
            id
        }));
        if all_known { Ok(ids) } else { Err(self.unknown_characters(text)) }
    }

    /// The id of a character, or [`UNKNOWN`].
    fn id(&self, character: char) -> u32 {
        self.ids.get(character as usize).copied().unwrap_or(UNKNOWN)
    }

    fn unknown_characters(&self, text: &str) -> TokenizerError {
        let unknown = text.chars().filter(|&character| self.id(character) == UNKNOWN);
        let characters = unknown.collect::<BTreeSet<_>>();
        TokenizerError::UnknownCharacters { characters: characters.into_iter().collect() }
    }
}
