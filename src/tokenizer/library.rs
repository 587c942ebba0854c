//! Any tokenizer of the `tokenizers` library, as its `tokenizer.json` describes it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tokenizers::tokenizer::{ModelWrapper, OffsetReferential, OffsetType};
use tokenizers::{AddedToken, DecoderWrapper, Model, PreTokenizer};

use super::cut::Cuts;
use super::words::{Words, unspell};
use super::{TokenizerError, TokenizerKind, train};

/// The largest vocabulary: a file with more ids is damaged, or no model of it could be trained.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// The names of tokens that end a text, the likeliest first.
const ENDS_OF_TEXT: [&str; 8] = [
    super::END_OF_TEXT,
    "<|end_of_text|>",
    "<|end\u{2581}of\u{2581}sentence|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|im_end|>",
    "[SEP]",
];

/// A tokenizer of the library, with the answers that are needed often.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) kind: TokenizerKind,
    /// The file, as it was read.
    pub(super) json: String,
    /// Without truncation, padding, dropout and post-processing: the ids are those of the text, all of them.
    parts: tokenizers::Tokenizer,
    /// One more than the largest id.
    pub(super) vocab_size: usize,
    /// The bytes of each token, by id, if tokens are bytes; empty for an id without a token.
    pub(super) bytes: Option<Vec<Box<[u8]>>>,
    /// The fast way to the ids, if there is one.
    words: Option<Words>,
    pub(super) cuts: Cuts,
    pub(super) end_of_text: Option<u32>,
    /// Tokens that are found in a text as they are, by id.
    pub(super) added: Vec<(u32, AddedToken)>,
}

impl Library {
    /// `json` is the content of a `tokenizer.json`, and `path` its path in errors.
    pub(super) fn new(
        mut library: tokenizers::Tokenizer,
        json: String,
        kind: TokenizerKind,
        path: &Path,
    ) -> Result<Self, TokenizerError> {
        let unsupported = |reason: String| TokenizerError::Unsupported { path: path.to_owned(), reason };
        library
            .with_truncation(None)
            .map_err(|error| unsupported(error.to_string()))?
            .with_padding(None)
            .with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        if let ModelWrapper::BPE(bpe) = library.get_model()
            && bpe.dropout.is_some()
        {
            let mut bpe = bpe.clone();
            bpe.dropout = None; // the same text has the same ids
            library.with_model(bpe);
        }
        if let Some(DecoderWrapper::CTC(_)) = library.get_decoder() {
            let reason = "its decoder is one for speech, which takes tokens out again";
            return Err(unsupported(reason.to_owned()));
        }
        let largest = library.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| unsupported("it has no tokens".to_owned()))? as usize;
        if largest >= MAX_VOCAB_SIZE {
            return Err(unsupported(format!(
                "its largest id is {largest}, and {} is the largest that a model here can have",
                MAX_VOCAB_SIZE - 1
            )));
        }
        let vocab_size = largest + 1;
        let mut added: Vec<(u32, AddedToken)> = library.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let end_of_text = ENDS_OF_TEXT.iter().find_map(|name| {
            let (id, _) = added.iter().find(|(_, token)| token.content == *name)?;
            Some(*id)
        });
        Ok(Self {
            kind,
            json,
            vocab_size,
            bytes: token_bytes(&library, vocab_size),
            words: Words::of(&library, AddedTokens::plain(&added)),
            cuts: Cuts::of(&library, &added),
            end_of_text,
            added,
            parts: library,
        })
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.words {
            Some(words) => words.encode(text, self.parts.get_model()),
            None => self.encode_by_library(text),
        }
    }

    /// As the library's own `encode`, except that no part of the text is dropped silently.
    fn encode_by_library(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let library = &self.parts;
        let mut pieces = library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
        if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
            pre_tokenizer
                .pre_tokenize(&mut pieces)
                .map_err(|error| TokenizerError::NoToken { text: None, reason: error.to_string() })?;
        }
        let mut ids = Vec::new();
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        for (piece, _, tokens) in splits {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => encode_piece(piece, library.get_model(), &mut ids)?,
            }
        }
        Ok(ids)
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        if let Some(bytes) = &self.bytes {
            let bytes = ids.iter().flat_map(|&id| &*bytes[id as usize]).copied();
            return super::text_of(bytes.collect());
        }
        if ids.is_empty() {
            return String::new(); // some decoders rely on a last token
        }
        self.parts.decode(ids, false).expect("decoders of text take any tokens")
    }

    /// The token as the vocabulary has it; empty if no token has this id.
    pub(super) fn token(&self, id: u32) -> String {
        self.parts.id_to_token(id).unwrap_or_default()
    }

    /// Whether a token is one byte among tokens that are text, as `<0x0A>` is.
    pub(super) fn is_byte_token(&self, id: u32) -> bool {
        let token = self.token(id);
        token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
    }
}

/// Whether all of a `tokenizer.json` except the vocabulary is as [`train`] writes it.
pub(super) fn is_trained_here(file: &Value) -> bool {
    let ours = train::with_parts(tokenizers::models::bpe::BPE::default()).to_string(false);
    let ours: Value = serde_json::from_str(&ours.expect("plain data")).expect("just written");
    let sections = ["added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"];
    let in_model = ["type", "dropout", "unk_token", "ignore_merges"];
    sections.iter().all(|key| file[key] == ours[key])
        && in_model.iter().all(|key| file["model"][key] == ours["model"][key])
}

/// Adds the ids of a piece of text within which the model decides alone.
pub(super) fn encode_piece(piece: &str, model: &ModelWrapper, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
    let tokens = model
        .tokenize(piece)
        .map_err(|error| TokenizerError::NoToken { text: Some(piece.to_owned()), reason: error.to_string() })?;
    // BPE drops characters without a token silently: then its tokens are shorter than the text.
    let n_bytes = tokens.last().map_or(0, |token| token.offsets.1);
    if matches!(model, ModelWrapper::BPE(_)) && n_bytes < piece.len() {
        let is_unknown = |c: &char| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none();
        let unknown: BTreeSet<char> = piece.chars().filter(is_unknown).collect();
        let characters = unknown.into_iter().collect();
        return Err(TokenizerError::UnknownCharacters { characters });
    }
    ids.extend(tokens.iter().map(|token| token.id));
    Ok(())
}

/// The bytes of each token, if the decoder is byte-level.
fn token_bytes(library: &tokenizers::Tokenizer, vocab_size: usize) -> Option<Vec<Box<[u8]>>> {
    let is_byte_level = match library.get_decoder()? {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => {
            matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)])
        }
        _ => false,
    };
    let of_token = |id: u32| library.id_to_token(id).map_or_else(Box::default, |token| unspell(&token).into());
    is_byte_level.then(|| (0..).take(vocab_size).map(of_token).collect())
}

/// The added tokens of a tokenizer that are found in a text wherever they stand, such as `<|endoftext|>`.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// Longer ones before shorter ones: at one place, the longest counts.
    tokens: Vec<(Box<str>, u32)>,
    /// The bytes that a token can begin with.
    begins: [bool; 256],
}

/// A stretch of text between added tokens, or one of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Section<'a> {
    Text(&'a str),
    Token(u32),
}

impl AddedTokens {
    /// `None` if a token also asks for the text around it.
    fn plain(tokens: &[(u32, AddedToken)]) -> Option<Self> {
        let is_plain =
            |token: &AddedToken| !(token.single_word || token.lstrip || token.rstrip || token.content.is_empty());
        // The library looks for those that are not normalized first, on their own.
        let is_one_search = tokens.windows(2).all(|pair| pair[0].1.normalized == pair[1].1.normalized);
        if !is_one_search || !tokens.iter().all(|(_, token)| is_plain(token)) {
            return None;
        }
        let mut begins = [false; 256];
        let mut tokens: Vec<(Box<str>, u32)> =
            tokens.iter().map(|(id, token)| (token.content.as_str().into(), *id)).collect();
        tokens.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        for (content, _) in &tokens {
            begins[usize::from(content.as_bytes()[0])] = true;
        }
        Some(Self { tokens, begins })
    }

    /// The text in sections, from its start to its end.
    pub(super) fn sections<'a>(&self, text: &'a str) -> impl Iterator<Item = Section<'a>> {
        let mut rest = text;
        let mut found = self.first(rest);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Some((range, id)) = found.clone() else {
                return Some(Section::Text(std::mem::take(&mut rest)));
            };
            if range.start > 0 {
                let (before, from_token) = rest.split_at(range.start);
                rest = from_token;
                found = Some((0..range.len(), id));
                return Some(Section::Text(before));
            }
            rest = &rest[range.end..];
            found = self.first(rest);
            Some(Section::Token(id))
        })
    }

    /// The leftmost of the longest.
    fn first(&self, text: &str) -> Option<(Range<usize>, u32)> {
        if self.tokens.is_empty() {
            return None;
        }
        let begins = |(_, byte): &(usize, &u8)| self.begins[usize::from(**byte)];
        text.as_bytes().iter().enumerate().filter(begins).find_map(|(at, _)| {
            let here = &text.as_bytes()[at..];
            let (content, id) = self.tokens.iter().find(|(content, _)| here.starts_with(content.as_bytes()))?;
            Some((at..at + content.len(), *id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_of_the_longest_added_tokens_is_found() {
        let added = |contents: &[&str]| {
            let tokens = contents.iter().map(|content| AddedToken::from(*content, true));
            AddedTokens::plain(&(0..).zip(tokens).collect::<Vec<_>>()).unwrap()
        };
        let tokens = added(&["<a", "<a>", "b<"]);
        let sections: Vec<_> = tokens.sections("x<a>y<ab<<a").collect();
        let expected = [
            Section::Text("x"),
            Section::Token(1),
            Section::Text("y"),
            Section::Token(0),
            Section::Token(2),
            Section::Token(0),
        ];
        assert_eq!(sections, expected);
        assert_eq!(tokens.sections("").count(), 0);
        assert_eq!(added(&[]).sections("<a>").count(), 1);
    }

    #[test]
    fn added_tokens_that_ask_for_more_are_not_plain() {
        let plain = |token| AddedTokens::plain(&[(0, token)]).is_some();
        let token = || AddedToken::from("<a>", true);
        assert!(plain(token()));
        assert!(!plain(token().lstrip(true)));
        assert!(!plain(token().rstrip(true)));
        assert!(!plain(token().single_word(true)));
        let two_searches = [(0, token()), (1, AddedToken::from("b", false))];
        assert!(AddedTokens::plain(&two_searches).is_none());
    }
}
