//! A text as a model reads it.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::InspectError;
use tinderbox_model::tokenizer::{Tokenizer, visible};

/// A text as a model reads it: as many of its last tokens as fit the context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The T token ids, at least one.
    pub ids: Vec<u32>,
    /// The text of each token, `[T]`, as [`Tokenizer::piece`] gives it, such as `\xe7` for a part of a character.
    pub texts: Vec<String>,
    /// A readable form of the tokens, on one line, with visible blanks and line ends: `[T]`.
    pub pieces: Vec<String>,
    /// The number of tokens dropped from the front because they did not fit the context.
    pub n_dropped: usize,
    /// The concatenated bytes of the tokens.
    bytes: Vec<u8>,
    /// The position at which each token ends in `bytes`.
    ends: Vec<usize>,
}

impl Prompt {
    /// Reads a text, or its end if it is longer than the context.
    ///
    /// # Errors
    /// If the text is empty, or cannot be encoded.
    pub fn read(text: &str, tokenizer: &Tokenizer, context_length: usize) -> Result<Self, InspectError> {
        let mut ids = tokenizer.encode_prompt(text).map_err(InspectError::Prompt)?;
        if ids.is_empty() {
            return Err(InspectError::EmptyPrompt);
        }
        let n_dropped = ids.len().saturating_sub(context_length);
        ids.drain(..n_dropped);
        Ok(Self { n_dropped, ..Self::of_ids(ids, tokenizer) })
    }

    /// Makes a prompt of tokens.
    ///
    /// # Panics
    /// If there are none, or an id is not the tokenizer's.
    pub fn of_ids(ids: Vec<u32>, tokenizer: &Tokenizer) -> Self {
        assert!(!ids.is_empty(), "a prompt has tokens");
        let texts: Vec<String> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (&id, text) in ids.iter().zip(&texts) {
            match tokenizer.token_bytes(id) {
                Some(of_token) => bytes.extend_from_slice(of_token),
                None => bytes.extend_from_slice(text.replace('▁', " ").as_bytes()), // SentencePiece's blanks
            }
            ends.push(bytes.len());
        }
        Self { ids, pieces: texts.iter().map(|text| visible(text)).collect(), texts, n_dropped: 0, bytes, ends }
    }

    /// The number of tokens that the model reads.
    #[allow(clippy::len_without_is_empty, reason = "a prompt is never empty")]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The number of bytes of the text.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The last token of the last occurrence of `text`; `None` if it is not in the prompt.
    pub fn position_of(&self, text: &str) -> Option<usize> {
        let text = text.as_bytes();
        if text.is_empty() {
            return None;
        }
        let start = self.bytes.windows(text.len()).rposition(|window| window == text)?;
        self.ends.iter().position(|&end| end >= start + text.len())
    }

    /// The pieces, with the tokens of one character merged: for showing the prompt as running text.
    pub fn whole_pieces(&self) -> Vec<String> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for &end in &self.ends {
            let bytes = &self.bytes[start..end];
            let is_begun = std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
            if is_begun && end < self.bytes.len() {
                continue;
            }
            pieces.push(visible(&String::from_utf8_lossy(bytes)));
            start = end;
        }
        pieces
    }

    /// # Shapes
    /// -> `[1, T]`
    pub fn tokens(&self, device: &Device) -> Tensor<2, Int> {
        to_tensor(&self.ids, device)
    }

    pub(super) fn check(&self, position: usize) -> Result<(), InspectError> {
        match position < self.len() {
            true => Ok(()),
            false => Err(InspectError::OutOfRange { what: "token", index: position, of: "the prompt", n: self.len() }),
        }
    }
}

/// # Shapes
/// `ids: [T]` -> `[1, T]`
pub(super) fn to_tensor(ids: &[u32], device: &Device) -> Tensor<2, Int> {
    let signed: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    Tensor::from_data(TensorData::new(signed, [1, ids.len()]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, context_length: usize) -> Prompt {
        Prompt::read(text, &Tokenizer::byte(), context_length).expect("any text encodes as bytes")
    }

    #[test]
    fn pieces_show_invisible_characters() {
        let prompt = read("a \n\t\0", 8);
        assert_eq!(prompt.pieces, ["a", "·", "↵", "→", "\u{fffd}"]);
        assert_eq!(prompt.texts, ["a", " ", "\n", "\t", "\0"]);
        assert_eq!((prompt.len(), prompt.n_dropped), (5, 0));
    }

    #[test]
    fn partial_characters_show_their_bytes() {
        let prompt = read("é", 8);
        assert_eq!(prompt.texts, [r"\xc3", r"\xa9"]);
        assert_eq!(prompt.whole_pieces(), ["é"]);
        assert_eq!(read("éa猫", 5).whole_pieces(), ["\u{fffd}", "a", "猫"]);
    }

    #[test]
    fn long_prompt_loses_its_start() {
        let prompt = read("abcdef", 4);
        assert_eq!(prompt.ids, b"cdef".map(u32::from));
        assert_eq!(prompt.n_dropped, 2);
        assert_eq!(prompt.position_of("a"), None);
    }

    #[test]
    fn position_of_finds_last_occurrence() {
        let prompt = read("a cat, é cat.", 20);
        for (text, position) in [("cat", Some(12)), ("é", Some(8)), ("a cat", Some(4)), ("dog", None), ("", None)] {
            assert_eq!(prompt.position_of(text), position, "{text}");
        }
    }
}
