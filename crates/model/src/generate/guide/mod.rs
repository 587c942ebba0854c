//! Guided writing: only tokens with which a text can still become JSON of a schema are drawn.
//!
//! A `schema` becomes a grammar, whose texts an automaton over bytes (`machine`) reads; the `vocabulary` of a tokenizer
//! knows which tokens the automaton would take next.

mod machine;
mod schema;
mod vocabulary;

use std::sync::Arc;

pub use self::schema::{CallSchema, Grammar, SchemaError};
pub use self::vocabulary::Vocabulary;

use self::machine::State;
pub(super) use self::vocabulary::Mask;

/// What the next tokens of one text may be.
#[derive(Clone, Debug)]
pub struct Guide {
    grammar: Arc<Grammar>,
    vocabulary: Arc<Vocabulary>,
    state: State,
}

impl Guide {
    /// The guide of a text that begins now.
    ///
    /// # Errors
    /// If the vocabulary cannot spell all that the grammar needs.
    pub fn new(grammar: Arc<Grammar>, vocabulary: Arc<Vocabulary>) -> Result<Self, SchemaError> {
        vocabulary.check(&grammar)?;
        let state = State::first(&grammar);
        Ok(Self { grammar, vocabulary, state })
    }

    /// Whether the text is complete, and nothing can follow.
    pub(super) fn is_complete(&self) -> bool {
        self.state.is_complete()
    }

    /// The tokens that may follow; `ends` are those that end the text.
    pub(super) fn allowed(&self, ends: &[u32]) -> Mask {
        let mut mask = self.vocabulary.allowed(&self.grammar, &self.state);
        if self.state.may_end() {
            for end in ends {
                mask.allow(*end);
            }
        }
        mask
    }

    /// Goes on by a token that was allowed; one that ends the text changes nothing.
    pub(super) fn advance(&mut self, token: u32) {
        if let Some(bytes) = self.vocabulary.bytes(token) {
            self.state = self.state.after(&self.grammar, bytes);
        }
    }
}

#[cfg(test)]
mod tests;
