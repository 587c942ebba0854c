//! A piece of a text on its way from a file to tokens.

use std::mem;

use sha2::{Digest, Sha256};

use crate::config::TokenizerConfig;
use tinderbox_model::tokenizer::{Tokenizer, TokenizerKind};

/// The requirements of a tokenizer for the reading of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needs {
    /// The unit for measuring and splitting a text: characters or bytes. With variable-length tokens it is bytes, too,
    /// and the number of tokens is unknown.
    pub kind: TokenizerKind,
    /// Whether document ends are marked. Otherwise documents follow one another, each on a new line.
    pub documents: bool,
}

impl Needs {
    pub(super) const BYTES: Self = Self { kind: TokenizerKind::Byte, documents: false };
    pub(super) const CHARACTERS: Self = Self { kind: TokenizerKind::Char, documents: false };
    pub(super) const BPE: Self = Self { kind: TokenizerKind::Bpe, documents: true };

    pub(super) fn of_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self { kind: tokenizer.kind(), documents: tokenizer.end_of_text().is_some() }
    }

    /// The needs of the tokenizer that a config asks for, which does not exist yet.
    pub(super) fn of_config(config: &TokenizerConfig) -> Self {
        let TokenizerConfig { kind, end_of_text, vocab_size: _, path: _ } = config;
        match kind {
            TokenizerKind::Char | TokenizerKind::Byte => Self { kind: *kind, documents: *end_of_text },
            TokenizerKind::Bpe | TokenizerKind::File => Self::BPE,
        }
    }

    /// Whether the text must be UTF-8.
    pub(super) fn utf8(self) -> bool {
        self.kind != TokenizerKind::Byte
    }

    /// Marks the end of a document in a hash: impossible in UTF-8, and in no other file by chance.
    fn end_mark(self) -> &'static [u8] {
        if self.utf8() { b"\xff" } else { b"\xff end of document \xff" }
    }
}

/// The split that a part of a text belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    #[default]
    Train,
    Val,
}

/// A part of a text. Whole characters, if the text is UTF-8.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub half: Half,
    pub text: Vec<u8>,
    /// The positions of document ends in the text, in ascending order; 0 ends a document of the previous chunk.
    pub ends: Vec<usize>,
}

impl Chunk {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.ends.is_empty()
    }

    /// The pieces of text between the ends, and whether a document ends after each.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let ends = self.ends.iter().map(|&end| (end, true)).chain([(self.text.len(), false)]);
        let pieces = ends.scan(0, |start, (end, is_end)| Some((&self.text[mem::replace(start, end)..end], is_end)));
        pieces.filter(|(text, is_end)| *is_end || !text.is_empty())
    }

    /// Splits off everything after `at`. A document that ends there ends in the first part.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let n_ends = self.ends.partition_point(|&end| end <= at);
        let ends = self.ends.split_off(n_ends).into_iter().map(|end| end - at);
        Self { half: self.half, text: self.text.split_off(at), ends: ends.collect() }
    }

    pub(super) fn append(&mut self, next: Self) {
        if self.is_empty() {
            *self = next;
            return;
        }
        let n = self.text.len();
        self.text.extend(next.text);
        self.ends.extend(next.ends.into_iter().map(|end| n + end));
    }

    /// Adds the text, and where its documents end, to a hash.
    pub(super) fn hash_into(&self, hash: &mut Sha256, needs: Needs) {
        for (text, is_end) in self.pieces() {
            hash.update(text);
            if is_end {
                hash.update(needs.end_mark());
            }
        }
    }
}
