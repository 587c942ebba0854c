//! Decisions of rank 0 that the other ranks wait for.

use std::sync::PoisonError;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::{panic, thread};

use super::{DistributedError, Ranks};

/// The answers of rank 0 in [`Ranks::agree`] other than no (0) and yes (1): it is busy, or it has ended the run.
const WAIT: u8 = 2;
const END: u8 = 3;

impl Ranks {
    /// The answer of rank 0, on every rank; the others wait for it. It costs one exchange of a byte.
    ///
    /// # Errors
    /// On the other ranks, if rank 0 has [ended](Ranks::end) the run instead.
    pub fn agree(&self, own: bool) -> Result<bool, DistributedError> {
        loop {
            let mut answer = [u8::from(own)];
            self.broadcast(&mut answer);
            match answer[0] {
                WAIT => {}
                END => return Err(DistributedError::Ended),
                answer => return Ok(answer != 0),
            }
        }
    }

    /// Waits for rank 0, which may fail instead of coming here. Called before an exchange that follows work of rank 0
    /// alone.
    pub fn check_peers_alive(&self) -> Result<(), DistributedError> {
        self.agree(true).map(drop)
    }

    /// Called by rank 0 when it fails: ends the wait of the other ranks, which [agree](Ranks::agree) next.
    pub fn end(&self) {
        self.broadcast(&mut [END]);
    }

    /// Runs `work` on rank 0, while the others wait to [agree](Ranks::agree). Heartbeats, several within the limit of
    /// [`Ranks::limit_waiting`], distinguish a busy rank 0 from one that hangs.
    pub fn keep_waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(limit) = limit.filter(|_| !self.is_alone()) else { return work() };
        thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            let heartbeat = scope.spawn(move || {
                while is_done.recv_timeout(limit / 4) == Err(RecvTimeoutError::Timeout) {
                    self.broadcast(&mut [WAIT]);
                }
            });
            let result = work();
            drop(done);
            heartbeat.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::distributed::threads::on_ranks;

    #[test]
    fn ranks_follow_first_rank() {
        let found = on_ranks(3, |rank| {
            let ranks = Ranks::with(Arc::new(rank), [].into(), |_| ());
            let is_first = ranks.is_first();
            *ranks.limit.lock().unwrap() = Some(Duration::from_millis(4));
            if is_first {
                ranks.keep_waiting(|| thread::sleep(Duration::from_millis(20)));
            }
            let agreed = [is_first, !is_first].map(|own| ranks.agree(own).ok());
            if is_first {
                ranks.end();
            }
            (agreed, is_first || matches!(ranks.check_peers_alive(), Err(DistributedError::Ended)))
        });
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found, [([Some(true), Some(false)], true); 3]);
    }
}
