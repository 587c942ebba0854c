//! Responses with completions: collected, or streamed as server-sent events. This runs on the responder's thread; the I/O
//! thread only passes the bytes on.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver};
use tokio::time::sleep;

use super::completion::{Completion, CompletionDelta};
use super::error::ApiError;
use super::scheduler::{self, Event, EventKind};
use super::service::InFlight;
use super::unsent::Outbox;
use super::writer::ResponseWriter;

/// Events are passed on once they have this many bytes, even if more are ready.
const CHUNK: usize = 1 << 16;

/// The completions of a request while they are generated. Dropping it stops the generation.
pub(super) struct ResponseStream {
    writer: ResponseWriter,
    events: UnboundedReceiver<Event>,
    /// Counts the events that are not sent.
    outbox: Arc<Outbox>,
    completions: Vec<Completion>,
    n_open: usize,
    /// The time at which the request arrived; `None` after the first token.
    since: Option<Instant>,
    _in_flight: InFlight,
}

impl ResponseStream {
    pub(super) fn new(
        writer: ResponseWriter,
        events: UnboundedReceiver<Event>,
        outbox: Arc<Outbox>,
        since: Instant,
        in_flight: InFlight,
    ) -> Self {
        let n_open = writer.request.n_sequences();
        let completions = vec![Completion::default(); n_open];
        Self { writer, events, outbox, completions, n_open, since: Some(since), _in_flight: in_flight }
    }

    /// The complete response, once all completions are finished.
    pub(super) async fn collect(mut self) -> Result<Bytes, ApiError> {
        let mut whole = vec![CompletionDelta::default(); self.completions.len()];
        while self.n_open > 0 {
            let event = self.events.recv().await.ok_or_else(scheduler::stopped)?;
            self.outbox.remove(event.n_bytes());
            let Event { idx, kind } = event;
            whole[idx].append(self.take(idx, kind)?);
        }
        // A large response would delay the events of other requests.
        let json = tokio::task::spawn_blocking(move || self.writer.whole(whole, &self.completions));
        json.await.map(Bytes::from).map_err(|_| ApiError::bug())
    }

    /// Sends server-sent events until the last one, or until nobody receives them. After the time `keep_alive` without an
    /// event, as while the sequences wait for a slot, it sends a comment, which clients skip.
    pub(super) async fn send(mut self, to: Sender<Bytes>, keep_alive: Duration) {
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() {
            let first = tokio::select! {
                () = to.closed() => return,
                event = self.events.recv() => event.ok_or_else(scheduler::stopped),
                () = sleep(keep_alive) => match to.send(Bytes::from_static(b": waiting\n\n")).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let mut out = String::new();
            let mut n_bytes = first.as_ref().map_or(0, Event::n_bytes);
            flow = self.write(first, &mut out);
            while flow.is_continue()
                && out.len() < CHUNK
                && let Ok(event) = self.events.try_recv()
            {
                n_bytes += event.n_bytes();
                flow = self.write(Ok(event), &mut out);
            }
            if !out.is_empty() && to.send(out.into()).await.is_err() {
                return;
            }
            self.outbox.remove(n_bytes);
        }
    }

    fn take(&mut self, idx: usize, kind: EventKind) -> Result<CompletionDelta, ApiError> {
        let ResponseWriter { request, model, .. } = &self.writer;
        if let (EventKind::Token { .. }, Some(since)) = (&kind, self.since) {
            model.metrics.first_token(since.elapsed());
            self.since = None;
        }
        let delta = self.completions[idx].take(kind, request, request.prompt(idx), &model.tokenizer)?;
        self.n_open -= usize::from(self.completions[idx].end.is_some());
        Ok(delta)
    }

    fn write(&mut self, next: Result<Event, ApiError>, out: &mut String) -> ControlFlow<()> {
        let taken = next.and_then(|Event { idx, kind }| {
            if matches!(kind, EventKind::Read { .. }) {
                self.writer.begin(idx, out);
            }
            Ok((idx, self.take(idx, kind)?))
        });
        let (idx, delta) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.writer.fail(&error, out);
                return ControlFlow::Break(());
            }
        };
        let completion = &self.completions[idx];
        if !delta.is_empty() {
            self.writer.delta(idx, delta, completion, out);
        }
        if completion.end.is_some() {
            self.writer.end(idx, completion, out);
        }
        if self.n_open > 0 {
            return ControlFlow::Continue(());
        }
        self.writer.finish(&self.completions, out);
        ControlFlow::Break(())
    }
}

pub(super) struct Chunks(pub(super) Receiver<Bytes>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
