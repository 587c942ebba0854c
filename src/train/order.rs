//! What rank 0 tells the others to do.

use std::sync::MutexGuard;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::distributed::Ranks;

/// The next task that rank 0 gives the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Take an [`Assignment`](super::Assignment).
    Begin,
    /// Wait on: rank 0 does something by itself.
    Wait,
    /// Make a step.
    Step,
    /// Average the weights, if each rank made steps by itself.
    Average,
    /// Average the optimizers' running means, if each rank made steps by itself.
    AverageOptimizer,
    /// Take part in the estimate of the loss on the validation split,
    EstimateVal,
    /// or on the training split.
    EstimateTrain,
    /// Take part in the evaluation of the whole validation split,
    Whole,
    /// or in that of rank 0's best checkpoint.
    WholeOfBest,
    /// Stop: the run ends, however it does.
    End,
}

impl Order {
    const ALL: [Self; 10] = [
        Self::Begin,
        Self::Wait,
        Self::Step,
        Self::Average,
        Self::AverageOptimizer,
        Self::EstimateVal,
        Self::EstimateTrain,
        Self::Whole,
        Self::WholeOfBest,
        Self::End,
    ];

    /// Tells the other ranks, which wait for it. The task lasts for as long as its turn is held.
    #[must_use = "the task lasts for as long as its turn is held"]
    pub(super) fn give(self, ranks: &Ranks) -> MutexGuard<'_, ()> {
        let turn = ranks.take_turn();
        ranks.broadcast(&mut [self as u8]);
        turn
    }

    /// The next one but [`Order::Wait`].
    pub(super) fn wait(ranks: &Ranks) -> Self {
        loop {
            let mut order = [0];
            ranks.broadcast(&mut order);
            match Self::ALL[usize::from(order[0])] {
                Self::Wait => {}
                order => return order,
            }
        }
    }
}

/// Orders the other ranks to wait on, again and again, while rank 0 writes samples, checkpoints and reports: without it
/// they could not tell that from rank 0 hanging.
pub(super) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Beats a few times within `limit`, until it is dropped.
    pub(super) fn start(ranks: &Ranks, limit: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let ranks = ranks.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(limit / 4) == Err(RecvTimeoutError::Timeout) {
                // Within a task rank 0 exchanges numbers, or is expected to.
                if let Some(_turn) = ranks.try_turn() {
                    ranks.broadcast(&mut [Order::Wait as u8]);
                }
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_an_order() {
        for (idx, order) in Order::ALL.into_iter().enumerate() {
            assert_eq!(order as usize, idx);
        }
    }
}
