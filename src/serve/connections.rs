//! Connections. Those that wait for their client are closed to make room for new ones.
//!
//! Otherwise clients that send nothing, or half of a request, could keep others out until their time limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct Connections {
    permits: Arc<Semaphore>,
    /// Connections that wait for their client, in the order in which they began to wait.
    waiting: Mutex<Vec<Arc<ConnectionState>>>,
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
    all: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    pub(super) fn new(n: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(n));
        Arc::new(Self { permits, waiting: Mutex::default(), waits: Notify::new() })
    }

    /// Another connection. If there are too many, the one that has waited longest for its client is closed.
    pub(super) async fn open(self: &Arc<Self>) -> Arc<Connection> {
        let permit = loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                break permit;
            }
            self.close_waiting(1);
            tokio::select! {
                permit = self.permits.clone().acquire_owned() => break permit.expect("the semaphore is never closed"),
                () = self.waits.notified() => {}
            }
        };
        let connection = Arc::new(Connection { state: Arc::default(), all: self.clone(), _permit: permit });
        connection.wait();
        connection
    }

    /// Closes the `most` connections that have waited longest for their client, except for those with unsent bytes.
    pub(super) fn close_waiting(&self, most: usize) {
        let mut waiting = self.waiting();
        for state in waiting.extract_if(.., |state| !state.has_unsent.load(Ordering::Relaxed)).take(most) {
            state.close.notify_one();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<ConnectionState>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// From now on the connection waits for its client.
    pub(super) fn wait(&self) {
        self.work(); // it may wait already
        self.all.waiting().push(self.state.clone());
        self.all.waits.notify_waiters();
    }

    /// From now on its client waits for a response.
    pub(super) fn work(&self) {
        self.all.waiting().retain(|waiting| !Arc::ptr_eq(waiting, &self.state));
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

/// A response that is being sent. Dropping it lets its connection wait for the next request.
pub(super) struct Responding(pub(super) Arc<Connection>);

impl Drop for Responding {
    fn drop(&mut self) {
        self.0.wait();
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
