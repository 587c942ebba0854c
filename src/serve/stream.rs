//! Makes a response of the texts of a request: collected, or as server-sent events. This runs on a thread of its own: the
//! I/O thread only passes the bytes on.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver};
use tokio::time::sleep;

use super::Busy;
use super::answer::Answer;
use super::choice::{Choice, TextDelta};
use super::error::ApiError;
use super::request::Shape;
use super::responses::ResponseEvents;
use super::scheduler::{self, Event, EventKind};

/// The bytes of events after which they are passed on, even if there are more.
const CHUNK: usize = 1 << 16;

/// The texts of a request while they are generated. Dropping it stops the generation.
#[derive(Debug)]
pub(super) struct Texts {
    answer: Answer,
    events: UnboundedReceiver<Event>,
    choices: Vec<Choice>,
    n_open: usize,
    /// The events of a response, if that is the form.
    response: ResponseEvents,
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
        let response = ResponseEvents::default();
        Self { answer, events, choices, n_open: n, response, since: Some(since), _busy: busy }
    }

    /// The complete response, once all texts are finished.
    pub(super) async fn collect(mut self) -> Result<Bytes, ApiError> {
        let mut texts = vec![TextDelta::default(); self.choices.len()];
        while self.n_open > 0 {
            let Event { idx, kind } = self.events.recv().await.ok_or_else(scheduler::stopped)?;
            texts[idx].append(self.take(idx, kind)?);
        }
        // A large response takes longer than the events of other requests may wait.
        let whole = tokio::task::spawn_blocking(move || self.answer.whole(texts, &self.choices));
        whole.await.map(Bytes::from).map_err(|_| ApiError::bug())
    }

    /// Sends server-sent events of the texts, up to the last, or until nobody receives them. When there is nothing to send
    /// for the time of `keep_alive`, as while the texts wait for a slot, it sends a comment, which clients skip.
    pub(super) async fn send(mut self, to: Sender<Bytes>, keep_alive: Duration) {
        let mut flow = Flow::More;
        while flow == Flow::More {
            let first = tokio::select! {
                () = to.closed() => return,
                event = self.events.recv() => event.ok_or_else(scheduler::stopped),
                () = sleep(keep_alive) => match to.send(Bytes::from_static(b": waiting\n\n")).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let mut out = String::new();
            flow = self.write(first, &mut out);
            while flow == Flow::More
                && out.len() < CHUNK
                && let Ok(event) = self.events.try_recv()
            {
                flow = self.write(Ok(event), &mut out);
            }
            if !out.is_empty() && to.send(out.into()).await.is_err() {
                return;
            }
        }
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

    /// Writes the server-sent events of a response for an event of its text.
    fn write_response(&mut self, next: Result<Event, ApiError>, out: &mut String) -> Flow {
        let taken = next.and_then(|Event { idx, kind }| {
            if matches!(kind, EventKind::Read { .. }) {
                self.response.open(&self.answer, out);
            }
            self.take(idx, kind)
        });
        match taken {
            Err(error) => {
                self.response.fail(&error, out);
                return Flow::Done;
            }
            Ok(part) if !part.text.is_empty() => self.response.add(&self.answer, &part.text, out),
            Ok(_) => {}
        }
        if self.n_open > 0 {
            return Flow::More;
        }
        self.response.close(&self.answer, &self.choices[0], out);
        Flow::Done
    }

    /// Writes the server-sent events for an event of a text.
    fn write(&mut self, next: Result<Event, ApiError>, out: &mut String) -> Flow {
        if self.answer.request.shape == Shape::Response {
            return self.write_response(next, out);
        }
        let taken = next.and_then(|Event { idx, kind }| {
            if matches!(kind, EventKind::Read { .. }) {
                self.answer.opening(idx).into_iter().for_each(|chunk| event(out, &chunk));
            }
            Ok((idx, self.take(idx, kind)?))
        });
        let (idx, part) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                event(out, &error.body());
                return Flow::Done;
            }
        };
        if !part.is_empty() {
            let first_call = self.choices[idx].reader.n_calls - part.calls.len();
            event(out, &self.answer.part(idx, part, first_call));
        }
        if self.choices[idx].end.is_some() {
            event(out, &self.answer.closing(idx, &self.choices[idx]));
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

/// The body of a streamed response.
#[derive(Debug)]
pub(super) struct Chunks(pub(super) Receiver<Bytes>);

impl Stream for Chunks {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(Ok))
    }
}
