//! A token that a model may predict.

use serde::Serialize;

use super::lens::likeliest;
use super::{InspectError, Prompt};
use crate::model::Gpt;
use crate::tokenizer::Tokenizer;

/// A token that a model may predict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The token's number.
    pub id: u32,
    /// Its text.
    pub token: String,
}

impl Answer {
    /// The token with this number.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(id: u32, tokenizer: &Tokenizer) -> Self {
        let token = tokenizer.piece(id);
        Self { id, token }
    }

    /// The token that a text is.
    ///
    /// # Errors
    /// If the text has unknown characters, or is no token or several.
    pub fn read(text: &str, tokenizer: &Tokenizer) -> Result<Self, InspectError> {
        let ids = tokenizer.encode(text);
        let ids =
            ids.map_err(|source| InspectError::NotAToken { text: text.to_owned(), source })?;
        match ids[..] {
            [id] => Ok(Self::new(id, tokenizer)),
            _ => Err(InspectError::NotOneToken { text: text.to_owned(), n_tokens: ids.len() }),
        }
    }

    /// The token that a model finds likeliest after the one at `position`.
    ///
    /// # Errors
    /// If there is no such position, or the device fails.
    pub fn likeliest(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        position: usize,
    ) -> Result<Self, InspectError> {
        InspectError::check_token(position, prompt.len())?;
        let logits = model.forward(prompt.tokens(&model.device())); // [1, T, V]
        let logits = logits.narrow(1, position, 1).reshape([-1]);
        let logits = logits.try_into_vec_as::<f32>();
        let logits = logits.map_err(InspectError::Device)?;
        let first = likeliest(&logits, 1)[0];
        let id = u32::try_from(first).expect("ids are 32 bits");
        Ok(Self::new(id, tokenizer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_token() {
        let tokenizer = Tokenizer::char_from_alphabet("abc".chars()).expect("three");
        let read = |text| Answer::read(text, &tokenizer);
        assert_eq!(read("b").expect("a token").id, 1);
        for (text, n) in [("", 0), ("ab", 2)] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, InspectError::NotOneToken { n_tokens, .. } if n_tokens == n));
        }
        assert!(matches!(read("x").unwrap_err(), InspectError::NotAToken { .. }));
    }
}
