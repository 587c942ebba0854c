//! One completion as it is generated: its text, scores and tool calls, in parts that can be shown.
//!
//! A streamed response sends the parts one by one, any other response all parts at once, so that both have the same
//! text.

use std::collections::VecDeque;

use super::calls::{Call, CallReader};
use super::error::ApiError;
use super::prompt::EncodedPrompt;
use super::request::GenerateRequest;
use super::scheduler::EventKind;
use super::score::Score;
use crate::generate::End;
use crate::tokenizer::{DecodeStream, Tokenizer};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CompletionDelta {
    pub(super) text: String,
    pub(super) scores: Vec<PlacedScore>,
    /// Complete tool calls.
    pub(super) calls: Vec<Call>,
}

/// The score of a token, and its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlacedScore {
    pub(super) score: Score,
    /// The number of characters before the token.
    pub(super) offset: usize,
    /// The token before it; `None` where the text begins.
    pub(super) before: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Completion {
    /// The number of prompt characters, if the completion begins with the prompt.
    n_echoed: usize,
    /// The number of generated characters shown.
    n_shown: usize,
    /// Scores of tokens whose text is held back.
    held: VecDeque<PlacedScore>,
    /// The last token of the prompt, or the last one with a score.
    last: Option<u32>,
    /// The number of prompt tokens read from the cache.
    pub(super) n_cached: usize,
    pub(super) n_generated: usize,
    pub(super) end: Option<End>,
    /// Extracts tool calls, if the request has tools.
    pub(super) reader: CallReader,
}

impl Completion {
    /// Processes the next event of the sequence; returns the part that can be shown now.
    pub(super) fn take(
        &mut self,
        kind: EventKind,
        request: &GenerateRequest,
        prompt: &EncodedPrompt,
        tokenizer: &Tokenizer,
    ) -> Result<CompletionDelta, ApiError> {
        match kind {
            EventKind::Read { scores, n_cached } => {
                self.n_cached = n_cached;
                self.last = prompt.tokens.last().copied();
                if !request.echo {
                    return Ok(CompletionDelta::default());
                }
                self.n_echoed = prompt.text.chars().count();
                let place = |((offset, before), score)| PlacedScore { score, offset, before };
                let places = if scores.is_empty() { Vec::new() } else { places(prompt, tokenizer) };
                let scores = places.into_iter().zip(scores).map(place).collect();
                Ok(CompletionDelta { text: prompt.text.to_string(), scores, calls: Vec::new() })
            }
            EventKind::Token { offset, text, score } => {
                self.n_generated += 1;
                self.n_shown += text.chars().count();
                self.held.extend(score.map(|score| {
                    let before = self.last.replace(score.token);
                    PlacedScore { score, offset: self.n_echoed + offset, before }
                }));
                let mut calls = Vec::new();
                let text = if request.has_tools { self.reader.push(&text, &mut calls) } else { text };
                Ok(CompletionDelta { text, scores: self.release(), calls })
            }
            EventKind::End(end) => {
                self.end = Some(end);
                // The tokens of a stop string are not part of the completion; the end-of-text token is.
                let scores = match end {
                    End::StopString => self.release(),
                    End::Model | End::Length => self.held.drain(..).collect(),
                };
                let mut calls = Vec::new();
                Ok(CompletionDelta { text: self.reader.finish(&mut calls), scores, calls })
            }
            EventKind::Failed(error) => Err(error),
        }
    }

    /// The scores of tokens whose text is shown.
    fn release(&mut self) -> Vec<PlacedScore> {
        let n_shown = self.n_echoed + self.n_shown;
        let n = self.held.iter().take_while(|held| held.offset < n_shown).count();
        self.held.drain(..n).collect()
    }
}

impl CompletionDelta {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scores.is_empty() && self.calls.is_empty()
    }

    pub(super) fn append(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.scores.extend(next.scores);
        self.calls.extend(next.calls);
    }
}

/// For each token of a prompt, the number of characters before it, and the token before it in the text.
fn places(prompt: &EncodedPrompt, tokenizer: &Tokenizer) -> Vec<(usize, Option<u32>)> {
    let added = tokenizer.bos().filter(|bos| {
        prompt.tokens.first() == Some(bos) && !prompt.text.starts_with(&tokenizer.piece(*bos)) // not in the text
    });
    let mut stream = DecodeStream::after(tokenizer, &[]);
    let (mut n_characters, mut before) = (0, None);
    let mut places = Vec::with_capacity(prompt.tokens.len());
    places.extend(added.map(|_| (0, None)));
    for token in &prompt.tokens[places.len()..] {
        places.push((n_characters, before));
        n_characters += stream.push(*token).chars().count();
        before = Some(*token);
    }
    places
}
