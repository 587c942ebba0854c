//! The state that all connections share, and the requests in flight.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::error::ApiError;
use super::library::Library;
use super::limits::MAX_UNSENT;
use super::loaded_model::LoadedModel;
use super::options::Options;
use super::unsent::Unsent;

pub(super) struct Service {
    pub(super) options: Arc<Options>,
    pub(super) library: Library,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) unsent: Arc<Unsent>,
    /// The thread that makes responses of completions.
    pub(super) responder: Handle,
    responses: Mutex<BTreeMap<u16, u64>>,
    in_flight: watch::Sender<()>,
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
pub(super) type InFlight = watch::Receiver<()>;

impl Service {
    pub(super) fn new(
        models: Vec<Arc<LoadedModel>>,
        options: Options,
        stopping: watch::Receiver<bool>,
        responder: Handle,
    ) -> Self {
        let options = Arc::new(options);
        Self {
            options: options.clone(),
            library: Library::new(models, options),
            stopping,
            unsent: Unsent::new(MAX_UNSENT),
            responder,
            responses: Mutex::default(),
            in_flight: watch::Sender::new(()),
            permits: Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, NonZero::get))),
        }
    }

    /// Registers a request; rejects it if the server is stopping.
    pub(super) fn begin(&self) -> Result<InFlight, ApiError> {
        if *self.stopping.borrow() { Err(ApiError::stopping()) } else { Ok(self.in_flight.subscribe()) }
    }

    /// Waits until the server is stopping and no request is in flight.
    pub(super) async fn finished(&self) {
        let mut stopping = self.stopping.clone();
        if stopping.wait_for(|stopping| *stopping).await.is_ok() {
            self.in_flight.closed().await;
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

    /// The numbers of responses by status.
    pub(super) fn responses(&self) -> MutexGuard<'_, BTreeMap<u16, u64>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
