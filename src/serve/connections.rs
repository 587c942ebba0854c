//! Connections. Those that wait for their client are closed to make room for new ones.
//!
//! Otherwise clients that send nothing, or half of a request, could keep others out until their time limit.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// All connections.
#[derive(Debug)]
pub(super) struct Connections {
    permits: Arc<Semaphore>,
    /// Connections that wait for their client, in the order in which they began to wait.
    waiting: Mutex<BTreeMap<u64, Arc<ConnectionState>>>,
    n_waits: AtomicU64,
    /// Notified when another connection waits.
    waits: Notify,
}

#[derive(Debug, Default)]
struct ConnectionState {
    /// Notified to close the connection.
    close: Notify,
    /// Whether the client has not accepted all of a response.
    has_unsent: AtomicBool,
}

/// A connection. At first it waits for a request.
#[derive(Debug)]
pub(super) struct Connection {
    state: Arc<ConnectionState>,
    /// Its last place among the waiting connections; at first 0.
    place: AtomicU64,
    all: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    /// At most `n` connections.
    pub(super) fn new(n: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(n)),
            waiting: Mutex::default(),
            n_waits: AtomicU64::new(1), // no place is 0
            waits: Notify::new(),
        })
    }

    /// Another connection. If there are too many, the one that has waited longest for its client is closed.
    pub(super) async fn open(self: &Arc<Self>) -> Arc<Connection> {
        let permit = loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                break permit;
            }
            self.close_first();
            tokio::select! {
                permit = self.permits.clone().acquire_owned() => break permit.expect("the semaphore is never closed"),
                () = self.waits.notified() => {}
            }
        };
        let (state, place) = (Arc::default(), AtomicU64::new(0));
        let connection = Arc::new(Connection { state, place, all: self.clone(), _permit: permit });
        connection.wait();
        connection
    }

    fn close_first(&self) {
        let mut waiting = self.waiting();
        let first = waiting.iter().find(|(_, state)| !state.has_unsent.load(Ordering::Relaxed));
        if let Some(place) = first.map(|(place, _)| *place) {
            waiting.remove(&place).expect("the place was found under the same lock").close.notify_one();
        }
    }

    /// Closes all connections that wait for their client.
    pub(super) fn close_waiting(&self) {
        self.waiting().retain(|_, state| {
            let has_unsent = state.has_unsent.load(Ordering::Relaxed);
            if !has_unsent {
                state.close.notify_one();
            }
            has_unsent
        });
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionState>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// From now on the connection waits for its client.
    pub(super) fn wait(&self) {
        self.work(); // it may wait already
        let place = self.all.n_waits.fetch_add(1, Ordering::Relaxed);
        self.place.store(place, Ordering::Relaxed);
        self.all.waiting().insert(place, self.state.clone());
        self.all.waits.notify_waiters();
    }

    /// From now on its client waits for a response.
    pub(super) fn work(&self) {
        self.all.waiting().remove(&self.place.load(Ordering::Relaxed));
    }

    /// Completes when the connection has to be closed.
    pub(super) async fn closed(&self) {
        self.state.close.notified().await;
    }

    /// Records whether there are bytes that the client does not accept.
    pub(super) fn set_unsent(&self, has_unsent: bool) {
        self.state.has_unsent.store(has_unsent, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.work();
    }
}

/// The body of a response, after which its connection waits for the next request.
pub(super) struct Response {
    body: Body,
    connection: Arc<Connection>,
}

impl Response {
    pub(super) fn new(body: Body, connection: Arc<Connection>) -> Self {
        Self { body, connection }
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.connection.wait();
    }
}

impl HttpBody for Response {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn longest_waiting_connection_is_closed() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("the system has threads");
        runtime.block_on(async {
            let all = Connections::new(3);
            let (first, second, unsent) = (all.open().await, all.open().await, all.open().await);
            first.work();
            unsent.set_unsent(true);
            let (third, ()) = tokio::join!(all.open(), async {
                second.closed().await;
                drop(second);
            });
            // No connection waits for its client: the next one must wait until one does.
            third.work();
            let mut next = std::pin::pin!(all.open());
            timeout(Duration::from_millis(10), &mut next).await.expect_err("every connection is in use");
            first.wait();
            timeout(Duration::from_millis(10), &mut next).await.expect_err("the first connection is not closed yet");
            first.closed().await;
            drop(first);
            let _next = next.await;
            assert_eq!(all.waiting().len(), 2, "the new one and the one with unsent bytes");
        });
    }
}
