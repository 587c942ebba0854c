//! The text of one sequence as it is generated: the parts that can be shown, with the scores of their tokens.
//!
//! A streamed response sends the parts one by one, any other response all parts at once, so that both have the same
//! text.

use std::collections::VecDeque;

use super::calls::{Call, CallReader};
use super::error::ApiError;
use super::request::{EncodedPrompt, TextRequest};
use super::scheduler::EventKind;
use super::score::Score;
use crate::generate::End;
use crate::tokenizer::{DecodeStream, Tokenizer};

/// The next part of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TextDelta {
    pub(super) text: String,
    /// Tokens, each with the number of characters of the text before it.
    pub(super) scores: Vec<(usize, Score)>,
    /// Calls of tools, each complete.
    pub(super) calls: Vec<Call>,
}

/// The text generated so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// The number of prompt characters, if the text begins with the prompt.
    n_echoed: usize,
    /// The number of generated characters shown.
    n_shown: usize,
    /// Scores of tokens whose text is held back.
    held: VecDeque<(usize, Score)>,
    /// The number of prompt tokens read from the cache.
    pub(super) n_cached: usize,
    pub(super) n_written: usize,
    pub(super) end: Option<End>,
    /// Takes the calls out of the text, if the request has tools.
    pub(super) reader: CallReader,
}

impl Choice {
    /// Processes the next event of the sequence; returns what can be shown now.
    pub(super) fn take(
        &mut self,
        kind: EventKind,
        request: &TextRequest,
        prompt: &EncodedPrompt,
        tokenizer: &Tokenizer,
    ) -> Result<TextDelta, ApiError> {
        match kind {
            EventKind::Read { scores, n_cached } => {
                self.n_cached = n_cached;
                if !request.echo {
                    return Ok(TextDelta::default());
                }
                self.n_echoed = prompt.text.chars().count();
                let scores = offsets(prompt, tokenizer).into_iter().zip(scores).collect();
                Ok(TextDelta { text: prompt.text.to_string(), scores, ..TextDelta::default() })
            }
            EventKind::Token { offset, text, score } => {
                self.n_written += 1;
                self.n_shown += text.chars().count();
                self.held.extend(score.map(|score| (self.n_echoed + offset, score)));
                let mut calls = Vec::new();
                let text = if request.has_tools { self.reader.push(&text, &mut calls) } else { text };
                Ok(TextDelta { text, scores: self.release(), calls })
            }
            EventKind::End(end) => {
                self.end = Some(end);
                // The tokens of a stop text are not part of the text; the end-of-text token is.
                let rest = match end {
                    End::StopText => self.release(),
                    End::Model | End::Length => self.held.drain(..).collect(),
                };
                let mut calls = Vec::new();
                Ok(TextDelta { text: self.reader.finish(&mut calls), scores: rest, calls })
            }
            EventKind::Failed(error) => Err(error),
        }
    }

    /// The scores of tokens whose text is shown.
    fn release(&mut self) -> Vec<(usize, Score)> {
        let n_shown = self.n_echoed + self.n_shown;
        let n = self.held.iter().take_while(|(offset, _)| *offset < n_shown).count();
        self.held.drain(..n).collect()
    }
}

impl TextDelta {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scores.is_empty() && self.calls.is_empty()
    }

    pub(super) fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.scores.extend(next.scores);
        self.calls.extend(next.calls);
    }
}

/// For each token of a prompt, the number of characters before it.
fn offsets(prompt: &EncodedPrompt, tokenizer: &Tokenizer) -> Vec<usize> {
    let added = tokenizer.bos().filter(|bos| {
        prompt.tokens.first() == Some(bos) && !prompt.text.starts_with(&tokenizer.piece(*bos)) // not in the text
    });
    let mut stream = DecodeStream::after(tokenizer, &[]);
    let mut n_characters = 0;
    let mut offsets = Vec::with_capacity(prompt.tokens.len());
    offsets.extend(added.map(|_| 0));
    for token in &prompt.tokens[offsets.len()..] {
        offsets.push(n_characters);
        n_characters += stream.push(*token).chars().count();
    }
    offsets
}
