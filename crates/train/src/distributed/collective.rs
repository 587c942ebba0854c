//! The operations that a way of communication provides.

use std::fmt::Debug;
use std::time::Duration;

/// Collective operations. Each process makes the same calls in the same order, one at a time.
pub trait Collective: Debug + Send + Sync {
    /// The rank of this process, counted from 0.
    fn rank(&self) -> usize;
    /// The number of processes.
    fn size(&self) -> usize;
    /// The name of this process's machine.
    fn host(&self) -> String;
    /// A barrier: waits until every process has arrived.
    fn barrier(&self);
    /// All-to-all: splits `own` into equal parts, one per rank in order, sends each process its part, and collects the
    /// parts sent to this process in `arrived`.
    fn all_to_all(&self, own: &[u8], arrived: &mut [u8]);
    /// All-gather: sends all of `own` to every process and collects what every process sends in `arrived`.
    fn all_gather(&self, own: &[u8], arrived: &mut [u8]);
    /// Broadcast: replaces the bytes with those of process `root`.
    fn broadcast(&self, root: usize, bytes: &mut [u8]);
    /// Sets a time limit for exchanges, after which all processes are ended; `None` sets no limit.
    fn limit_waiting(&self, limit: Option<Limit>);
    /// Waits for the other processes and shuts MPI down. No other call may follow.
    fn leave(&self);
    /// Ends all processes at once. The launcher exits with `code` if it forwards exit codes.
    fn abort(&self, code: u8) -> !;
}

/// The time limit of an exchange.
pub struct Limit {
    /// The time after which the search for processes that do not answer begins.
    pub after: Duration,
    /// Called with the ranks that do not answer, or an empty slice if all of them answered.
    pub report: Report,
}

/// See [`Limit::report`].
pub type Report = Box<dyn Fn(&[usize]) + Send + Sync>;
