//! A text as a model reads it.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::InspectError;
use crate::tokenizer::Tokenizer;

/// A text as a model reads it: as many of its last tokens as the context holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens, T of them, at least one.
    pub ids: Vec<u32>,
    /// The tokens as a person reads them, blanks and line ends visible.
    pub pieces: Vec<String>,
    /// How many tokens at the front did not fit the context, and were left out.
    pub n_dropped: usize,
}

impl Prompt {
    /// Reads a text; of one longer than the context, its end.
    ///
    /// # Errors
    /// If the text is empty, or has what the tokenizer cannot say.
    pub fn read(
        text: &str,
        tokenizer: &Tokenizer,
        context_length: usize,
    ) -> Result<Self, InspectError> {
        let mut ids = tokenizer.encode(text).map_err(InspectError::Prompt)?;
        if ids.is_empty() {
            return Err(InspectError::EmptyPrompt);
        }
        let n_dropped = ids.len().saturating_sub(context_length);
        ids.drain(..n_dropped);
        let pieces = ids
            .iter()
            .map(|&id| visible(&String::from_utf8_lossy(tokenizer.token_bytes(id))))
            .collect();
        Ok(Self {
            ids,
            pieces,
            n_dropped,
        })
    }

    /// How many tokens the model reads.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a prompt is never empty")]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// # Shapes
    /// -> `[1, T]`
    #[must_use]
    pub fn tokens(&self, device: &Device) -> Tensor<2, Int> {
        let ids: Vec<i64> = self.ids.iter().map(|&id| i64::from(id)).collect();
        let n = ids.len();
        Tensor::from_data(TensorData::new(ids, [1, n]), device)
    }
}

/// A piece of text on one line, with what cannot be seen made visible: `·` for a blank, `↵` for a line end,
/// `→` for a tab.
fn visible(piece: &str) -> String {
    let shown = piece.chars().map(|character| match character {
        ' ' => '·',
        '\n' => '↵',
        '\t' => '→',
        other if other.is_control() => '\u{fffd}',
        other => other,
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_can_be_seen() {
        let tokenizer = Tokenizer::byte();
        let prompt = Prompt::read("a \n\t\0", &tokenizer, 8).expect("bytes");
        assert_eq!(prompt.pieces, ["a", "·", "↵", "→", "\u{fffd}"]);
        assert_eq!((prompt.len(), prompt.n_dropped), (5, 0));
    }

    #[test]
    fn what_does_not_fit_the_context_is_left_out_at_the_front() {
        let prompt = Prompt::read("abcdef", &Tokenizer::byte(), 4).expect("bytes");
        assert_eq!(prompt.ids, b"cdef".map(u32::from));
        assert_eq!(prompt.n_dropped, 2);
    }

    #[test]
    fn an_empty_prompt_is_refused() {
        let error = Prompt::read("", &Tokenizer::byte(), 4).unwrap_err();
        assert!(matches!(error, InspectError::EmptyPrompt));
    }
}
