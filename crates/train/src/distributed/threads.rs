//! Ranks that are threads of one process, each with a separate device.

use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Collective, Limit};

#[derive(Debug)]
pub(super) struct Thread {
    rank: usize,
    shared: Arc<Shared>,
}

/// The panic payload of a thread that unwinds because a rank aborted.
#[derive(Debug)]
pub struct OtherFailed;

#[derive(Debug)]
struct Shared {
    /// The bytes that each rank makes available to all ranks.
    buffers: Vec<Mutex<Vec<u8>>>,
    rendezvous: Mutex<Rendezvous>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Rendezvous {
    n_here: usize,
    n_held: usize,
    is_broken: bool,
}

impl Thread {
    pub(super) fn all(size: usize) -> impl Iterator<Item = Self> {
        let buffers = (0..size).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { buffers, rendezvous: Mutex::default(), changed: Condvar::new() });
        (0..size).map(move |rank| Self { rank, shared: Arc::clone(&shared) })
    }

    fn rendezvous(&self) -> MutexGuard<'_, Rendezvous> {
        self.shared.rendezvous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self, rank: usize) -> MutexGuard<'_, Vec<u8>> {
        self.shared.buffers[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `own` available to all ranks and calls `read` with the bytes of each rank.
    fn exchange(&self, own: &[u8], mut read: impl FnMut(usize, &[u8])) {
        own.clone_into(&mut *self.buffer(self.rank));
        self.barrier();
        (0..self.size()).for_each(|rank| read(rank, &self.buffer(rank)));
        self.barrier();
    }
}

impl Collective for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.buffers.len()
    }

    fn host(&self) -> String {
        "this machine".to_owned()
    }

    fn barrier(&self) {
        let mut rendezvous = self.rendezvous();
        let held = rendezvous.n_held;
        rendezvous.n_here += 1;
        if rendezvous.n_here == self.size() {
            (rendezvous.n_here, rendezvous.n_held) = (0, held + 1);
            self.shared.changed.notify_all();
        }
        while rendezvous.n_held == held {
            if rendezvous.is_broken {
                drop(rendezvous);
                panic::resume_unwind(Box::new(OtherFailed));
            }
            rendezvous = self.shared.changed.wait(rendezvous).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn all_to_all(&self, own: &[u8], arrived: &mut [u8]) {
        let n = own.len() / self.size();
        self.exchange(own, |rank, theirs| {
            arrived[rank * n..(rank + 1) * n].copy_from_slice(&theirs[self.rank * n..(self.rank + 1) * n]);
        });
    }

    fn all_gather(&self, own: &[u8], arrived: &mut [u8]) {
        let n = own.len();
        self.exchange(own, |rank, theirs| arrived[rank * n..(rank + 1) * n].copy_from_slice(theirs));
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) {
        let own: &[u8] = if self.rank == root { bytes } else { &[] };
        own.clone_into(&mut *self.buffer(self.rank));
        self.barrier();
        bytes.copy_from_slice(&self.buffer(root));
        self.barrier();
    }

    /// Does nothing: a thread ends with its process, so there is no limit to check.
    fn limit_waiting(&self, _: Option<Limit>) {}

    fn leave(&self) {}

    /// Unwinds this thread, and all others as soon as they wait for it, with [`OtherFailed`].
    fn abort(&self, _: u8) -> ! {
        self.rendezvous().is_broken = true;
        self.shared.changed.notify_all();
        panic::resume_unwind(Box::new(OtherFailed))
    }
}

/// The result of `work` on each of `size` ranks; an error if it panicked.
#[cfg(test)]
pub(super) fn on_ranks<T: Send>(size: usize, work: impl Fn(Thread) -> T + Sync) -> Vec<std::thread::Result<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = Thread::all(size).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_rank_ends_waiting_ranks() {
        let ends = on_ranks(3, |rank| {
            rank.barrier();
            if rank.rank() == 1 {
                rank.abort(1);
            }
            rank.barrier();
        });
        assert!(ends.iter().all(|end| end.as_ref().is_err_and(|payload| payload.is::<OtherFailed>())));
    }

    #[test]
    fn collectives_pass_bytes() {
        let found = on_ranks(2, |rank| {
            let own = 10 * rank.rank() as u8;
            let (mut of_root, mut parts, mut all) = ([own; 3], [0; 4], [0; 4]);
            rank.broadcast(1, &mut of_root);
            rank.all_to_all(&[own, own + 1, own + 2, own + 3], &mut parts);
            rank.all_gather(&[own, own + 1], &mut all);
            (of_root, parts, all)
        });
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found, [([10; 3], [0, 1, 10, 11], [0, 1, 10, 11]), ([10; 3], [2, 3, 12, 13], [0, 1, 10, 11])]);
    }
}
