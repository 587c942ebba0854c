//! Limits on what a client may request, and on how long it may take.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

use super::connections::Connection;
use super::error::ApiError;

/// The maximum number of sequences in a request: prompts times `n`.
pub(super) const MAX_SEQUENCES: usize = 1024;
/// The maximum number of tokens generated in a sequence.
pub(super) const MAX_TOKENS: usize = 1 << 15;
/// The maximum number of alternatives per token.
pub(super) const MAX_TOP_LOGPROBS: usize = 20;
/// The maximum number of tokens of an inspected text.
pub(super) const MAX_INSPECTED: usize = 2048;
/// The maximum number of weights held for an inspection: 256 MiB.
pub(super) const MAX_INSPECTED_WEIGHTS: usize = 1 << 26;
/// The maximum number of weights in a response: some 40 MB of JSON.
pub(super) const MAX_SHOWN_WEIGHTS: usize = 1 << 22;
/// The maximum number of log-probabilities in a response: some 40 MB of JSON.
pub(super) const MAX_SHOWN_SCORES: usize = 1 << 21;
/// The maximum number of tokens generated with heads ablated.
pub(super) const MAX_CONTINUATION: usize = 512;
/// The maximum number of requests that inspect a model or wait to.
pub(super) const MAX_INSPECTIONS: usize = 8;
/// The maximum number of models of a folder in memory.
pub(super) const MAX_OPENED: usize = 4;
/// The maximum number of bytes of a text to tokenize, which takes up to 200 times its size in memory.
pub(super) const MAX_TEXT: usize = 1 << 20;
/// The maximum number of conversations that wait for the chat template of a model.
pub(super) const MAX_CHATS: usize = 16;
/// The maximum size of all schemas in flight of a model: a compiled schema has up to 4096 values, and takes some 10 MiB.
pub(super) const MAX_SCHEMAS: usize = 1 << 15;
pub(super) const MAX_BIAS: f64 = 100.0;
pub(super) const MAX_STOPS: usize = 16;
/// The maximum number of bytes of a stop string, which is compared with the text after each token.
pub(super) const MAX_STOP: usize = 256;
pub(super) const MAX_BODY: usize = 8 << 20;
/// The maximum number of bytes of streams, and of large responses, that clients have not read.
pub(super) const MAX_UNSENT: usize = 64 << 20;
/// The memory for each byte of a request whose parts are listed: a token with its text.
pub(super) const PER_BYTE: usize = 40;
/// The memory for an inspection, without attention weights.
pub(super) const INSPECTION: usize = 16 << 20;
/// The most memory that is reserved for a response: that of the largest ones.
pub(super) const MAX_RESERVED: usize = 40 << 20;
/// The maximum number of bytes of an oversized body that are read and discarded, so that the client sees the response.
const MAX_DISCARDED: usize = 64 << 20;
/// The maximum number of sequences that wait for a slot of a model.
pub(super) const MAX_WAITING: usize = 4096;
/// The maximum number of connections. Another one replaces one that waits for its client, or waits to be accepted.
pub(super) const MAX_CONNECTIONS: usize = 512;
/// The time limit of a request, from its last byte to the last token.
pub(super) const REQUEST_TIME: Duration = Duration::from_mins(10);
/// The time limit for the headers of a request.
pub(super) const HEADER_TIME: Duration = Duration::from_secs(30);
/// The time limit for the body of a request.
const BODY_TIME: Duration = Duration::from_mins(1);
/// The time within which a client must accept a number of bytes, or all that there are.
const WRITE_TIME: Duration = Duration::from_secs(30);
const WRITE_BYTES: usize = 1 << 16;
/// The time for responses in flight to finish when the server stops.
pub(super) const LAST_WRITES: Duration = Duration::from_secs(5);

pub(super) async fn read_body(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, ApiError> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > MAX_DISCARDED) {
        return Err(too_large());
    }
    let slow = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not arrive in time");
    timeout(BODY_TIME, collect(body)).await.map_err(slow)?
}

async fn collect(mut body: Body) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut n) = (Vec::new(), 0);
    while n <= MAX_DISCARDED
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| ApiError::bad_request(format!("the body cannot be read: {error}")))?;
        let chunk = frame.into_data().unwrap_or_default(); // none in trailers
        n += chunk.len();
        if n <= MAX_BODY {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes = Vec::new();
        }
    }
    if n > MAX_BODY { Err(too_large()) } else { Ok(bytes) }
}

fn too_large() -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body of a request has at most {MAX_BODY} bytes"))
}

/// A connection that fails if its client accepts no bytes for too long.
#[derive(Debug)]
pub(super) struct WriteLimit {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Runs while there is data that the client does not accept.
    waiting: Option<Pin<Box<Sleep>>>,
    /// The number of bytes accepted since then.
    n_accepted: usize,
}

impl WriteLimit {
    pub(super) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream, connection, waiting: None, n_accepted: 0 }
    }

    fn limit<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.set_unsent(written.is_pending());
        if written.is_ready() {
            if self.n_accepted >= WRITE_BYTES {
                self.waiting = None;
                self.n_accepted = 0;
            }
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(WRITE_TIME)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteLimit {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for WriteLimit {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(n)) = written {
            self.n_accepted += n;
        }
        self.limit(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.n_accepted = WRITE_BYTES; // nothing is left
        self.limit(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
