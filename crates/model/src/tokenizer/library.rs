//! A tokenizer of the `tokenizers` library, with a fast encoder where there is one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::tokenizer::{ModelWrapper, OffsetReferential, OffsetType};
use tokenizers::{AddedToken, DecoderWrapper, PostProcessorWrapper, PreTokenizer, Tokenizer};

use super::byte_alphabet::unspell;
use super::safe_splits::SafeSplits;
use super::table::CharacterIds;
use super::words::{WordEncoder, encode_piece};
use super::{TokenizerError, TokenizerKind};

/// The largest vocabulary: a file with more ids is damaged, or too large to train a model with.
const MAX_VOCAB_SIZE: usize = 1 << 24;

/// The names of end-of-text tokens, the likeliest first.
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

/// A tokenizer of the library, with frequently needed properties precomputed.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) kind: TokenizerKind,
    /// The content of its `tokenizer.json`.
    pub(super) json: String,
    /// Without truncation, padding, dropout and post-processing: encoding gives all ids of the text and no others.
    pub(super) tokenizer: Tokenizer,
    /// The largest id plus one.
    pub(super) vocab_size: usize,
    /// The ids below `vocab_size` without a token, in ascending order.
    pub(super) gaps: Arc<[u32]>,
    /// The bytes of each token, by id, if tokens decode to bytes one by one; empty for an id without a token.
    pub(super) bytes: Option<Vec<Box<[u8]>>>,
    pub(super) encoder: Encoder,
    /// `None` if no safe splits are known.
    pub(super) safe_splits: Option<SafeSplits>,
    pub(super) end_of_text: Option<u32>,
    /// The token that post-processing puts before each text.
    pub(super) prepended: Option<u32>,
    /// Added tokens, which are matched verbatim in text, by id.
    pub(super) added: Vec<(u32, AddedToken)>,
}

#[derive(Debug)]
pub(super) enum Encoder {
    Bytes,
    Characters(CharacterIds),
    Words(Box<WordEncoder>),
    Library,
}

impl Library {
    /// `json` is the content of a `tokenizer.json`, and `path` its path in errors.
    pub(super) fn new(
        mut tokenizer: Tokenizer,
        json: String,
        kind: TokenizerKind,
        path: &Path,
    ) -> Result<Self, TokenizerError> {
        let unsupported = |reason: String| TokenizerError::Unsupported { path: path.to_owned(), reason };
        let prepended = tokenizer.get_post_processor().and_then(prepended);
        tokenizer
            .with_truncation(None)
            .map_err(|error| unsupported(error.to_string()))?
            .with_padding(None)
            .with_post_processor(None::<PostProcessorWrapper>);
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
            && bpe.dropout.is_some()
        {
            let mut bpe = bpe.clone();
            bpe.dropout = None; // the same text must have the same ids
            tokenizer.with_model(bpe);
        }
        if let Some(DecoderWrapper::CTC(_)) = tokenizer.get_decoder() {
            let reason = "its decoder is one for speech, which takes tokens out again";
            return Err(unsupported(reason.to_owned()));
        }
        let mut ids: Vec<u32> = tokenizer.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        let largest = *ids.last().ok_or_else(|| unsupported("it has no tokens".to_owned()))? as usize;
        if largest >= MAX_VOCAB_SIZE {
            return Err(unsupported(format!(
                "its largest id is {largest}, and {} is the largest that a model here can have",
                MAX_VOCAB_SIZE - 1
            )));
        }
        let vocab_size = largest + 1;
        let gaps = (0..).take(vocab_size).filter(|id| ids.binary_search(id).is_err()).collect();
        let mut added: Vec<(u32, AddedToken)> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let end_of_text = ENDS_OF_TEXT.iter().find_map(|name| {
            let (id, _) = added.iter().find(|(_, token)| token.content == *name)?;
            Some(*id)
        });
        let encoder = match kind {
            TokenizerKind::Byte => Encoder::Bytes,
            TokenizerKind::Char => Encoder::Characters(CharacterIds::from_library(&tokenizer)),
            TokenizerKind::Bpe | TokenizerKind::File => WordEncoder::from_library(&tokenizer, &added)
                .map_or(Encoder::Library, |words| Encoder::Words(Box::new(words))),
        };
        let bytes = token_bytes(&tokenizer, kind, vocab_size);
        let safe_splits = SafeSplits::from_library(&tokenizer, &added);
        Ok(Self { kind, json, tokenizer, vocab_size, gaps, bytes, encoder, safe_splits, end_of_text, prepended, added })
    }

    /// Like the library's own `encode`, except that no part of the text is dropped silently.
    pub(super) fn encode_by_library(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let tokenizer = &self.tokenizer;
        let mut pieces = tokenizer.get_added_vocabulary().extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer
                .pre_tokenize(&mut pieces)
                .map_err(|error| TokenizerError::NoToken { text: None, reason: error.to_string() })?;
        }
        let mut ids = Vec::new();
        let splits = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        for (piece, _, tokens) in splits {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => encode_piece(piece, tokenizer.get_model(), &mut ids)?,
            }
        }
        Ok(ids)
    }
}

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be one of the `tokenizers` library that becomes an error: a panic hook has nothing
/// to report then.
pub fn panic_becomes_error() -> bool {
    IS_CAUGHT.get()
}

/// Calls the library, which panics at some files and texts; fails with the message.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let outer = IS_CAUGHT.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    IS_CAUGHT.set(outer);
    called.map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        format!("the tokenizers library fails at it: {}", message.unwrap_or("it panics"))
    })
}

fn prepended(post_processor: &PostProcessorWrapper) -> Option<u32> {
    fn first_token(part: &Value) -> Option<u32> {
        match part["type"].as_str()? {
            "TemplateProcessing" => {
                let name = part["single"][0]["SpecialToken"]["id"].as_str()?;
                part["special_tokens"][name]["ids"][0].as_u64()?.try_into().ok()
            }
            "Sequence" => part["processors"].as_array()?.iter().find_map(first_token),
            _ => None,
        }
    }
    first_token(&serde_json::to_value(post_processor).ok()?)
}

/// The bytes of each token, if tokens are characters or the decoder is byte-level.
fn token_bytes(tokenizer: &Tokenizer, kind: TokenizerKind, vocab_size: usize) -> Option<Vec<Box<[u8]>>> {
    let bytes_of: fn(String) -> Vec<u8> = match tokenizer.get_decoder()? {
        _ if kind == TokenizerKind::Char => String::into_bytes,
        DecoderWrapper::ByteLevel(_) => unspell,
        DecoderWrapper::Sequence(parts) if matches!(parts.get_decoders(), [DecoderWrapper::ByteLevel(_)]) => unspell,
        _ => return None,
    };
    let of_token = |id: u32| tokenizer.id_to_token(id).map_or_else(Box::default, |token| bytes_of(token).into());
    Some((0..).take(vocab_size).map(of_token).collect())
}
