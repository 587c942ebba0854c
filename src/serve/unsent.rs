//! Output that its clients have not read: one budget for the whole server, for streams and for whole responses.
//!
//! A stream whose client does not read waits for it, and others use its slots meanwhile. The memory of a large response
//! is reserved before it is made, and the request waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::HttpBody;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::ApiError;
use super::limits::{MAX_RESERVED, REQUEST_TIME};

/// What is reserved is a multiple of this number of bytes.
const UNIT: usize = 1 << 10;
/// Smaller responses reserve nothing: the number of connections limits them.
const SMALL: usize = 1 << 18;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Unsent {
    /// The number of bytes of all streams beyond which each of them may have only a few; as many may be reserved.
    most: usize,
    streamed: AtomicUsize,
    reserved: Arc<Semaphore>,
}

impl Unsent {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let reserved = Arc::new(Semaphore::new(most / UNIT));
        Arc::new(Self { most, streamed: AtomicUsize::new(0), reserved })
    }

    /// Waits for the memory of a response of up to `n_bytes`; `None` if it is small.
    pub(super) async fn reserve(&self, n_bytes: usize) -> Result<Option<Reserved>, ApiError> {
        if n_bytes <= SMALL {
            return Ok(None);
        }
        let n_units = u32::try_from(n_bytes.min(MAX_RESERVED) / UNIT).expect("the limit is 32 bits");
        let permit = timeout(REQUEST_TIME, self.reserved.clone().acquire_many_owned(n_units)).await;
        let permit = permit.map_err(|_| ApiError::late())?;
        Ok(Some(Reserved(permit.expect("the semaphore is never closed"))))
    }
}

/// The memory of a response, until it is dropped.
#[derive(Debug)]
pub(super) struct Reserved(OwnedSemaphorePermit);

/// Keeps the memory of a response until it is sent, as much of it as the response needs.
pub(super) fn hold(reserved: Option<Reserved>, mut response: Response) -> Response {
    if let Some(mut reserved) = reserved {
        let n_bytes = response.body().size_hint().lower().try_into().unwrap_or(usize::MAX);
        let n_spare = reserved.0.num_permits().saturating_sub(n_bytes.div_ceil(UNIT));
        drop(reserved.0.split(n_spare));
        response.extensions_mut().insert(Arc::new(reserved));
    }
    response
}

/// The bytes of a stream that are generated and not yet sent.
#[derive(Debug)]
pub(super) struct Outbox {
    n_bytes: AtomicUsize,
    all: Arc<Unsent>,
}

impl Outbox {
    pub(super) fn new(all: &Arc<Unsent>) -> Arc<Self> {
        Arc::new(Self { n_bytes: AtomicUsize::new(0), all: all.clone() })
    }

    pub(super) fn add(&self, n_bytes: usize) {
        self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        self.all.streamed.fetch_add(n_bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, n_bytes: usize) {
        self.n_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
        self.all.streamed.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    /// Whether generation has to wait for the client.
    pub(super) fn is_full(&self) -> bool {
        self.n_bytes.load(Ordering::Relaxed) > self.limit()
    }

    /// Whether generation that waited can go on.
    pub(super) fn has_room(&self) -> bool {
        self.n_bytes.load(Ordering::Relaxed) <= self.limit() / 2
    }

    fn limit(&self) -> usize {
        let is_scarce = self.all.streamed.load(Ordering::Relaxed) > self.all.most;
        self.all.most / if is_scarce { 2048 } else { 256 }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.remove(self.n_bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn one_stream_waits_before_all_do() {
        let all = Unsent::new(2048 * 100);
        let outboxes: Vec<_> = (0..300).map(|_| Outbox::new(&all)).collect();
        for outbox in &outboxes {
            outbox.add(800);
            assert!(!outbox.is_full() || all.streamed.load(Ordering::Relaxed) > 2048 * 100);
        }
        assert!(outboxes[0].is_full(), "all of them are over the budget");
        outboxes[0].remove(760);
        assert!(outboxes[0].has_room());
        drop(outboxes);
        let outbox = Outbox::new(&all);
        outbox.add(801);
        assert!(outbox.is_full(), "no other stream has bytes");
        drop(outbox);
        assert_eq!(all.streamed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn responses_hold_what_they_need() {
        let runtime = Builder::new_current_thread().enable_time().build().expect("the system has threads");
        runtime.block_on(async {
            let all = Unsent::new(2 * SMALL);
            assert!(all.reserve(SMALL).await.expect("it is small").is_none());
            let reserved = all.reserve(2 * SMALL).await.expect("nothing else is reserved");
            assert_eq!(all.reserved.available_permits(), 0);
            let response = hold(reserved, Response::new("x".repeat(3 * UNIT / 2).into()));
            assert_eq!(all.reserved.available_permits(), 2 * SMALL / UNIT - 2);
            drop(response);
            assert_eq!(all.reserved.available_permits(), 2 * SMALL / UNIT);
        });
    }
}
