//! Counts the kernels that a GPU is given.

use serde::Serialize;

use super::OpenDevice;

/// The kernels that a GPU is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Launches {
    /// The number of kernels.
    pub kernels: u64,
    /// The number of batches of kernels and uploads that the GPU gets at once; `None` where that is not known.
    pub submits: Option<u64>,
}

/// Calls `f`, which must wait for its results, and counts the kernels that the process launches meanwhile; `None` on a
/// CPU.
pub fn count_launches<T>(device: &OpenDevice, f: impl FnOnce() -> T) -> (T, Option<Launches>) {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if !device.backend.is_cpu() {
        return counted(device, f);
    }
    let _ = device;
    (f(), None)
}

/// Calls `f` without computing anything on the GPU: its kernels are compiled and prepared, and then dropped. All results
/// are whatever the memory holds.
pub fn without_kernels<T>(f: impl FnOnce() -> T) -> T {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    let _dry_run = burn::cubecl::dry_run::DryRun::new();
    f()
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn counted<T>(device: &OpenDevice, f: impl FnOnce() -> T) -> (T, Option<Launches>) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use burn::cubecl::logging::{LaunchObservation, LaunchObserver};

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl LaunchObserver for Counter {
        fn launched(&self, _: &'static str) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let counter = Arc::new(Counter::default());
    let submits = || submissions(device);
    let before = submits();
    let observation = LaunchObservation::new(counter.clone());
    let result = f();
    drop(observation);
    // Either count is a submission itself.
    let submits = before.zip(submits()).map(|(before, after)| after - before - 1);
    (result, Some(Launches { kernels: counter.0.load(Ordering::Relaxed), submits }))
}

#[cfg(feature = "wgpu")]
fn submissions(device: &OpenDevice) -> Option<u64> {
    super::graphics::submissions(&device.device)
}

#[cfg(all(feature = "cuda", not(feature = "wgpu")))]
fn submissions(_: &OpenDevice) -> Option<u64> {
    None
}
