//! A request to stop a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to stop, from any thread. Clones share the request.
#[derive(Clone, Debug, Default)]
pub struct Interrupter(Arc<AtomicBool>);

impl Interrupter {
    /// An interrupter that has not asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the run to finish its step, save, and stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the run was asked to stop.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
