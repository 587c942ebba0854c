//! The state that all connections share, and the requests in flight.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::error::ApiError;
use super::guard::ApiKeys;
use super::library::Library;

/// The state that all connections share.
pub(super) struct Service {
    pub(super) library: Library,
    pub(super) keys: Option<ApiKeys>,
    pub(super) origins: Vec<String>,
    pub(super) keep_alive: Duration,
    pub(super) stopping: watch::Receiver<bool>,
    /// The thread that makes responses of completions.
    pub(super) responder: Handle,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
    n_in_flight: watch::Sender<usize>,
    /// Permits for [long work](Work::Long): one for each core.
    permits: Arc<Semaphore>,
}

pub(super) type Shared = Arc<Service>;

/// How long some work may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It starts at once.
    Short,
    /// At most one per core runs at once, so that they do not delay everything else.
    Long,
}

/// A request in flight. A stopping server waits until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight(watch::Sender<usize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Service {
    pub(super) fn new(
        library: Library,
        keys: Option<ApiKeys>,
        origins: Vec<String>,
        keep_alive: Duration,
        stopping: watch::Receiver<bool>,
        responder: Handle,
    ) -> Self {
        let (responses, n_in_flight) = (Mutex::default(), watch::Sender::new(0));
        let permits = Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, NonZero::get)));
        Self { library, keys, origins, keep_alive, stopping, responder, responses, n_in_flight, permits }
    }

    /// Registers a request; rejects it if the server is stopping.
    pub(super) fn begin(&self) -> Result<InFlight, ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::stopping());
        }
        self.n_in_flight.send_modify(|n| *n += 1);
        Ok(InFlight(self.n_in_flight.clone()))
    }

    /// Waits until the server is stopping and no request is in flight.
    pub(super) async fn finished(&self) {
        let mut stopping = self.stopping.clone();
        if stopping.wait_for(|stopping| *stopping).await.is_ok() {
            self.n_in_flight.subscribe().wait_for(|n| *n == 0).await.ok();
        }
    }

    /// Runs `work` on another thread than that of the connections.
    pub(super) async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        kind: Work,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = match kind {
            Work::Short => None,
            Work::Long => self.permits.clone().acquire_owned().await.ok(),
        };
        let service = self.clone();
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&service)
        });
        working.await.unwrap_or_else(|_| Err(ApiError::bug()))
    }

    /// Counts a response.
    pub(super) fn count(&self, status: StatusCode) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry(status.as_u16()).or_default() += 1;
    }

    /// The numbers of responses by status.
    pub(super) fn responses(&self) -> Vec<(u16, u64)> {
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.iter().map(|(status, n)| (*status, *n)).collect()
    }
}
