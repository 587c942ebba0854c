//! Any tokenizer of the `tokenizers` library, as its `tokenizer.json` says.

use std::collections::BTreeSet;
use std::path::Path;

use tokenizers::tokenizer::{ModelWrapper, OffsetReferential, OffsetType};
use tokenizers::{AddedToken, DecoderWrapper, Model, PreTokenizer};

use super::added::AddedTokens;
use super::cut::Cuts;
use super::words::Words;
use super::{TokenizerError, TokenizerKind, bytes};

/// The largest vocabulary: one that has more ids is damaged, or would be before a model of it is trained.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// What tokens that end a text are called, the likeliest first.
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

/// A tokenizer of the library, with what is asked of it often.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) kind: TokenizerKind,
    /// The file, as it was read.
    pub(super) json: String,
    /// Without truncation, padding, dropout and post-processing: a text's ids are all of them, and no others.
    parts: tokenizers::Tokenizer,
    /// One more than the largest id.
    pub(super) vocab_size: usize,
    /// The bytes of each token, by id, where that is what a token is; empty where there is no token.
    pub(super) bytes: Option<Vec<Box<[u8]>>>,
    /// The fast way to the ids, where there is one.
    words: Option<Words>,
    pub(super) cuts: Cuts,
    pub(super) end_of_text: Option<u32>,
    /// Tokens that stand in a text as they are, by id.
    pub(super) added: Vec<(u32, AddedToken)>,
}

impl Library {
    /// `json` is the content of a `tokenizer.json`, and `path` is how errors call it.
    pub(super) fn new(
        mut library: tokenizers::Tokenizer,
        json: String,
        kind: TokenizerKind,
        path: &Path,
    ) -> Result<Self, TokenizerError> {
        let unsupported =
            |reason: String| TokenizerError::Unsupported { path: path.to_owned(), reason };
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
            return Err(unsupported(
                "its decoder is one for speech, which takes tokens out again".to_owned(),
            ));
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
        let mut added: Vec<(u32, AddedToken)> =
            library.get_added_tokens_decoder().into_iter().collect();
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

    /// What the library's own `encode` does, except that nothing is lost without a word.
    fn encode_by_library(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let cannot = |error: tokenizers::Error| TokenizerError::NoToken {
            text: None,
            reason: error.to_string(),
        };
        let library = &self.parts;
        let mut pieces =
            library.get_added_vocabulary().extract_and_normalize(library.get_normalizer(), text);
        if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(cannot)?;
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
            return String::new(); // some decoders count on a last token
        }
        self.parts.decode(ids, false).expect("decoders of text take any tokens")
    }

    /// The token as the vocabulary has it; nothing where there is none of this id.
    pub(super) fn token(&self, id: u32) -> String {
        self.parts.id_to_token(id).unwrap_or_default()
    }

    /// Whether a token is one byte among tokens that are text, as `<0x0A>` is.
    pub(super) fn is_byte_token(&self, id: u32) -> bool {
        let token = self.token(id);
        token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
    }
}

/// Adds the ids of a piece of text within which the model decides alone.
pub(super) fn encode_piece(
    piece: &str,
    model: &ModelWrapper,
    ids: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    let tokens = model.tokenize(piece).map_err(|error| TokenizerError::NoToken {
        text: Some(piece.to_owned()),
        reason: error.to_string(),
    })?;
    // BPE leaves out, without an error, what it has no token for: then its tokens are shorter than the text.
    let n_bytes = tokens.last().map_or(0, |token| token.offsets.1);
    if matches!(model, ModelWrapper::BPE(_)) && n_bytes < piece.len() {
        let unknown =
            piece.chars().filter(|c| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none());
        return Err(TokenizerError::UnknownCharacters {
            characters: unknown.collect::<BTreeSet<_>>().into_iter().collect(),
        });
    }
    ids.extend(tokens.iter().map(|token| token.id));
    Ok(())
}

/// The bytes of each token, where a byte-level decoder says that this is what it is.
fn token_bytes(library: &tokenizers::Tokenizer, vocab_size: usize) -> Option<Vec<Box<[u8]>>> {
    let is_byte_level = match library.get_decoder()? {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => {
            matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)])
        }
        _ => false,
    };
    let of_token = |id: usize| {
        let token = u32::try_from(id).ok().and_then(|id| library.id_to_token(id));
        token.map_or_else(Box::default, |token| bytes::meant(&token).into())
    };
    is_byte_level.then(|| (0..vocab_size).map(of_token).collect())
}
