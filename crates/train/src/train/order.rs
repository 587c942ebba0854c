//! The orders of rank 0 to the other ranks.

use std::sync::MutexGuard;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::distributed::Ranks;

/// The next task of the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Receive an [`Assignment`](super::Assignment).
    Begin,
    /// Keep waiting: rank 0 is busy with a task that needs no other rank.
    Wait,
    /// Make a step.
    Step,
    /// Average the weights after local steps.
    Average,
    /// Average the optimizers' running means after local steps.
    AverageOptimizer,
    /// Take part in the estimate of the loss on the validation split.
    EstimateVal,
    /// Take part in the estimate of the loss on the training split.
    EstimateTrain,
    /// Take part in the evaluation of the whole validation split.
    Whole,
    /// Take part in the evaluation of rank 0's best checkpoint.
    WholeOfBest,
    /// Stop: the run ends, for any reason.
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

    /// Sends the order to the other ranks, which wait for it. The task lasts as long as the returned turn is held.
    #[must_use = "the task lasts for as long as its turn is held"]
    pub(super) fn give(self, ranks: &Ranks) -> MutexGuard<'_, ()> {
        let turn = ranks.take_turn();
        ranks.broadcast(&mut [self as u8]);
        turn
    }

    /// The next order other than [`Order::Wait`].
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

/// A heartbeat: repeats [`Order::Wait`] while rank 0 writes samples, checkpoints and reports, so that the other ranks
/// can tell a busy rank 0 from one that hangs.
pub(super) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts a thread that sends several heartbeats within each period of `limit`, until the heartbeat is dropped.
    pub(super) fn start(ranks: &Ranks, limit: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let ranks = ranks.clone();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(limit / 4) == Err(RecvTimeoutError::Timeout) {
                // The turn is taken while rank 0 exchanges data in a task, which needs no heartbeat.
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
