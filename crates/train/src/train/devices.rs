//! Training on several devices of this machine, with one rank per device.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use super::{Assignment, Interrupter, Job, Observer, Skipped, Summary, TrainError, lead};
use crate::distributed::{OtherFailed, Ranks};
use tinderbox_model::device::OpenDevice;

/// Like [`train`](super::train), on the job's device and on `others`: each device computes a share of every batch.
///
/// `on_skipped` is called for every step that did not change the weights of one of `others`, if each device takes steps
/// locally (`sync = "local"`).
///
/// # Panics
/// If the thread of one of `others` panics.
pub fn train_on(
    job: Job,
    others: &[OpenDevice],
    observer: Box<dyn Observer>,
    interrupter: &Interrupter,
    on_skipped: impl Fn(&Ranks, usize, &Skipped) + Sync,
) -> Result<Summary, TrainError> {
    let devices: Vec<_> = std::iter::once(&job.device).chain(others).cloned().collect();
    let mut ranks = Ranks::of_devices(&devices).into_iter();
    let first = ranks.next().expect("the job's device");
    thread::scope(|scope| {
        let followers: Vec<_> = ranks
            .zip(others)
            .map(|(ranks, device)| {
                let on_skipped = &on_skipped;
                scope.spawn(move || {
                    let follow = || {
                        ranks.check_device_sums()?;
                        let Some(assignment) = Assignment::receive(&ranks)? else { return Ok(()) };
                        assignment.work(device.clone(), &ranks, |step, skipped| on_skipped(&ranks, step, skipped))
                    };
                    in_own_pool(ranks.size(), || or_end_others(&ranks, follow))
                })
            })
            .collect();
        let led = or_end_others(&first, || {
            first.check_device_sums()?;
            lead(job, &first, observer, interrupter)
        });
        for follower in followers {
            match follower.join().expect("panics are caught") {
                Ok(followed) => followed?,
                Err(panic) if panic.is::<OtherFailed>() => {}
                Err(panic) => resume_unwind(panic),
            }
        }
        led.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Runs the work of a rank, and aborts the other ranks if it fails.
fn or_end_others<T>(
    ranks: &Ranks,
    work: impl FnOnce() -> Result<T, TrainError>,
) -> thread::Result<Result<T, TrainError>> {
    let done = catch_unwind(AssertUnwindSafe(work));
    if !matches!(done, Ok(Ok(_))) {
        let ended = catch_unwind(AssertUnwindSafe(|| ranks.abort(1)));
        debug_assert!(ended.is_err_and(|panic| panic.is::<OtherFailed>()));
    }
    done
}

/// Runs `f`, one of `n_parts` that run at once, in a separate thread pool with its share of the cores: two ranks in the
/// same pool could deadlock.
pub(crate) fn in_own_pool<T: Send>(n_parts: usize, f: impl FnOnce() -> T + Send) -> T {
    let n_threads = (rayon::current_num_threads() / n_parts).max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("the system can start threads");
    pool.install(f)
}
