//! The weights of a model as tensors, for inspection: opened on first use, and used by one request at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::ApiError;
use super::limits::MAX_INSPECTIONS;
use crate::inspect::InspectError;
use crate::model::Gpt;

/// The reason why the weights of a model cannot be opened as tensors.
#[derive(Debug)]
pub enum TensorsError {
    /// Their checkpoint was removed or replaced.
    Gone,
    /// Any other reason.
    Failed(String),
}

/// Opens the weights of a model as tensors.
pub type OpenTensors = Box<dyn Fn() -> Result<Gpt, TensorsError> + Send + Sync>;

/// A model that can be inspected, by one request at a time.
pub(super) struct Inspectable {
    open: OpenTensors,
    model: Mutex<Option<Gpt>>,
    /// Permits for requests that inspect or wait to.
    permits: Arc<Semaphore>,
}

impl Inspectable {
    pub(super) fn new(open: OpenTensors) -> Self {
        Self { open, model: Mutex::new(None), permits: Arc::new(Semaphore::new(MAX_INSPECTIONS)) }
    }

    /// A permit for a request to inspect or wait.
    pub(super) fn permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let busy = || ApiError::busy(&format!("{MAX_INSPECTIONS} requests are inspecting this model already"));
        self.permits.clone().try_acquire_owned().map_err(|_| busy())
    }

    /// Runs `inspect` on a thread of its own, unless no client waits for the result by then. The thread ends, since each
    /// that lives keeps some of the memory that it needed.
    pub(super) async fn inspect<T: Send + 'static>(
        self: Arc<Self>,
        permit: OwnedSemaphorePermit,
        inspect: impl FnOnce(&Gpt) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, receiver) = oneshot::channel();
        let thread = thread::Builder::new().name("inspection".to_owned()).spawn(move || {
            let _permit = permit;
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            if !sender.is_closed() {
                sender.send(self.open(&mut model).and_then(inspect)).ok(); // the client may have left
            }
        });
        thread.map_err(|error| ApiError::unavailable(format!("no thread can be started: {error}")))?;
        receiver.await.unwrap_or_else(|_| Err(ApiError::bug()))
    }

    fn open<'a>(&self, model: &'a mut Option<Gpt>) -> Result<&'a Gpt, ApiError> {
        if model.is_none() {
            *model = Some((self.open)().map_err(|error| match error {
                TensorsError::Gone => {
                    let message = "the checkpoint of this model was removed or replaced before it was inspected; \
                                   request another checkpoint of the run, or restart the server";
                    ApiError::new(StatusCode::CONFLICT, message).code("checkpoint_removed")
                }
                TensorsError::Failed(why) => ApiError::failed(format!("the weights cannot be read: {why}")),
            })?);
        }
        Ok(model.as_ref().expect("the model was opened above"))
    }
}

impl From<InspectError> for ApiError {
    fn from(error: InspectError) -> Self {
        let message = crate::format::first_line(&error);
        match error {
            InspectError::NotFinite(_) | InspectError::Device(_) => Self::failed(message),
            _ => Self::bad_request(message),
        }
    }
}
