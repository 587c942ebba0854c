//! Sends the texts of a request to the client: collected, or as server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Busy;
use super::answer::Answer;
use super::choice::{Choice, TextDelta};
use super::error::ApiError;
use super::scheduler::{self, Event, EventKind};

/// The texts of a request while they are generated. Dropping it stops the generation.
#[derive(Debug)]
pub(super) struct Texts {
    answer: Answer,
    events: UnboundedReceiver<Event>,
    choices: Vec<Choice>,
    n_open: usize,
    /// The time at which the request arrived; `None` once the first token was generated.
    since: Option<Instant>,
    _busy: Busy,
}

/// Whether a stream continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    More,
    Done,
}

impl Texts {
    pub(super) fn new(answer: Answer, events: UnboundedReceiver<Event>, since: Instant, busy: Busy) -> Self {
        let n = answer.request.n_choices();
        let choices = vec![Choice::default(); n];
        Self { answer, events, choices, n_open: n, since: Some(since), _busy: busy }
    }

    /// The complete response, once all texts are finished.
    pub(super) async fn collect(mut self) -> Result<String, ApiError> {
        let mut texts = vec![TextDelta::default(); self.choices.len()];
        while self.n_open > 0 {
            let Event { idx, kind } = self.events.recv().await.ok_or_else(scheduler::stopped)?;
            texts[idx].append(self.take(idx, kind)?);
        }
        Ok(self.answer.whole(texts, &self.choices))
    }

    fn take(&mut self, idx: usize, kind: EventKind) -> Result<TextDelta, ApiError> {
        if let (EventKind::Token { .. }, Some(since)) = (&kind, self.since) {
            self.answer.model.metrics.first_token(since.elapsed());
            self.since = None;
        }
        let Answer { request, model, .. } = &self.answer;
        let part = self.choices[idx].take(kind, request, request.prompt(idx), &model.tokenizer)?;
        self.n_open -= usize::from(self.choices[idx].end.is_some());
        Ok(part)
    }

    /// Writes the server-sent events for an event of a text.
    fn write(&mut self, Event { idx, kind }: Event, out: &mut String) -> Flow {
        if matches!(kind, EventKind::Read { .. }) {
            self.answer.opening(idx).into_iter().for_each(|chunk| event(out, &chunk));
        }
        let part = match self.take(idx, kind) {
            Ok(part) => part,
            Err(error) => {
                event(out, &error.body());
                return Flow::Done;
            }
        };
        if !part.is_empty() {
            event(out, &self.answer.part(idx, part));
        }
        if let Some(end) = self.choices[idx].end {
            event(out, &self.answer.closing(idx, end));
        }
        if self.n_open > 0 {
            return Flow::More;
        }
        if self.answer.request.include_usage {
            event(out, &self.answer.usage_chunk(&self.choices));
        }
        event(out, "[DONE]");
        Flow::Done
    }
}

fn event(out: &mut String, data: &str) {
    write!(out, "data: {data}\n\n").expect("memory");
}

/// Server-sent events of texts, up to the last.
#[derive(Debug)]
pub(super) struct EventStream(Option<Texts>);

impl EventStream {
    pub(super) fn new(texts: Texts) -> Self {
        Self(Some(texts))
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    /// All events since the last poll, in one piece.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(texts) = &mut self.0 else { return Poll::Ready(None) };
        let mut out = String::new();
        let mut flow = Flow::More;
        while flow == Flow::More {
            flow = match texts.events.poll_recv(context) {
                Poll::Pending if out.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(event)) => texts.write(event, &mut out),
                Poll::Ready(None) => {
                    event(&mut out, &scheduler::stopped().body());
                    Flow::Done
                }
            };
        }
        if flow == Flow::Done {
            self.0 = None;
        }
        Poll::Ready(Some(Ok(out.into())))
    }
}
