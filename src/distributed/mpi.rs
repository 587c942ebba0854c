//! The processes that an MPI launcher started.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::{Universe, initialize_with_threading, processor_name};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::{Collective, DistributedError};

/// The most items of one message: MPI counts them with 31 bits.
const MAX_ITEMS: usize = 1 << 28;

/// All processes of an MPI job.
pub(super) struct Mpi {
    rank: usize,
    size: usize,
    /// Until this process leaves.
    universe: Mutex<Option<Universe>>,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Mpi {
    /// Finds the others, of whom the launcher started `launched` with this one.
    pub(super) fn connect(launched: usize) -> Result<Self, DistributedError> {
        let (universe, threading) = initialize_with_threading(Threading::Serialized).expect("called once");
        let world = world();
        let [rank, size] = [world.rank(), world.size()].map(|n| usize::try_from(n).expect("not negative"));
        let connected = Self { rank, size, universe: Mutex::new(Some(universe)) };
        if size != launched {
            return Err(DistributedError::OtherMpi { launched, found: size });
        }
        if threading < Threading::Serialized {
            return Err(DistributedError::Threads);
        }
        Ok(connected)
    }
}

fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn host(&self) -> String {
        processor_name().unwrap_or_else(|_| "a machine without a name".to_owned())
    }

    fn all_reduce(&self, values: &mut [f32]) {
        for values in values.chunks_mut(MAX_ITEMS) {
            let own = values.to_vec();
            world().all_reduce_into(&own[..], values, SystemOperation::sum());
        }
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) {
        let root = i32::try_from(root).expect("a rank");
        for bytes in bytes.chunks_mut(MAX_ITEMS) {
            world().process_at_rank(root).broadcast_into(bytes);
        }
    }

    fn leave(&self) {
        drop(self.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn abort(&self, code: u8) -> ! {
        world().abort(i32::from(code))
    }
}

impl Drop for Mpi {
    /// A process that did not leave failed: to finalize would wait for the others, who wait for it. The launcher ends
    /// them when it sees this one end.
    fn drop(&mut self) {
        std::mem::forget(self.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
