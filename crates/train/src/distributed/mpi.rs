//! Communication over MPI between the processes that a launcher started.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::{Universe, initialize_with_threading, processor_name};
use mpi::request::{Request, Scope, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};

use super::{Collective, DistributedError, Limit};

/// The most items in one message, since MPI counts them with a 32-bit signed integer.
const MAX_ITEMS: usize = 1 << 28;

/// The most bytes in one message of an exchange. For longer messages MPI uses a handshake with the receiver (the
/// rendezvous protocol), whose reply queues behind the data sent in the other direction. The limit of Open MPI over TCP
/// is 64 KiB including the header.
const MAX_MESSAGE: usize = 1 << 15;

/// The tags of these messages, of the query whether a process is alive, and of the reply to it.
const PIECE: i32 = 0;
const ROLL_CALL: i32 = 1;
const HERE: i32 = 2;

/// The longest time that a reply may take.
const ANSWER: Duration = Duration::from_secs(5);

/// The interval of a waiting process between checks for queries whether it is alive.
const LOOK: Duration = Duration::from_millis(20);

/// The time after which a waiting process sleeps for [`NAP`] between two checks for messages.
const AWAKE: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

pub(super) struct Mpi {
    rank: usize,
    size: usize,
    /// `None` once this process has left.
    universe: Mutex<Option<Universe>>,
    limit: Mutex<Option<Arc<Limit>>>,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.rank).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Mpi {
    /// Connects to the other processes of the job. The launcher started `launched` processes in all.
    pub(super) fn connect(launched: usize) -> Result<Self, DistributedError> {
        let (universe, threading) = initialize_with_threading(Threading::Serialized).expect("MPI is initialized once");
        let world = world();
        let [rank, size] = [world.rank(), world.size()].map(number);
        let connected = Self { rank, size, universe: Mutex::new(Some(universe)), limit: Mutex::new(None) };
        if size != launched {
            return Err(DistributedError::OtherMpi { launched, found: size });
        }
        if threading < Threading::Serialized {
            return Err(DistributedError::Threads);
        }
        Ok(connected)
    }

    /// All-to-all: sends each process its part and receives the part that each process sends to this one.
    fn exchange<'a>(&self, part_for: impl Fn(usize) -> &'a [u8], arrived: &mut [u8]) {
        let own = part_for(self.rank);
        if own.is_empty() {
            return;
        }
        let mut from: Vec<_> = arrived.chunks_exact_mut(own.len()).collect();
        from[self.rank].copy_from_slice(own);
        let world = world();
        scope(|scope| {
            let mut receiving = Vec::new();
            for (rank, theirs) in from.into_iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
                let process = world.process_at_rank(index(rank));
                for piece in theirs.chunks_mut(MAX_MESSAGE) {
                    receiving.push(process.immediate_receive_into_with_tag(scope, piece, PIECE));
                }
            }
            let mut sending = Vec::new();
            for begin in (0..own.len()).step_by(MAX_MESSAGE) {
                // Each process begins with a different receiver.
                for rank in (self.rank + 1..self.rank + self.size).map(|rank| rank % self.size) {
                    let piece = &part_for(rank)[begin..own.len().min(begin + MAX_MESSAGE)];
                    let process = world.process_at_rank(index(rank));
                    sending.push(process.immediate_send_with_tag(scope, piece, PIECE));
                }
            }
            self.finish(receiving.into_iter().chain(sending));
        });
    }

    /// Waits until all requests are done, or ends all processes if that takes too long. The requests do not block, so a
    /// waiting process still answers queries.
    fn finish<'a, D: ?Sized + 'a, S: Scope<'a>>(&self, requests: impl IntoIterator<Item = Request<'a, D, S>>) {
        let limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (began, mut looked) = (Instant::now(), Duration::ZERO);
        let mut patience = limit.as_ref().map(|limit| limit.after);
        for mut request in requests {
            while let Err(unfinished) = request.test() {
                request = unfinished;
                let waited = began.elapsed();
                if waited > looked + LOOK {
                    looked = waited;
                    // One process queries on behalf of all.
                    let is_asked = answer().is_some() && patience.is_some();
                    if is_asked {
                        patience = Some(waited + 3 * ANSWER);
                    }
                    if let (Some(limit), Some(true)) = (&limit, patience.map(|patience| waited > patience)) {
                        self.call_the_roll(limit);
                        patience = Some(began.elapsed() + 3 * ANSWER);
                    }
                }
                if waited > AWAKE {
                    thread::sleep(NAP);
                } else {
                    thread::yield_now();
                }
            }
        }
    }

    /// Queries whether the other processes are alive, then ends all processes; returns early if a process of a lower
    /// rank queries as well.
    fn call_the_roll(&self, limit: &Limit) {
        let mut missing: Vec<usize> = (0..self.size).filter(|rank| *rank != self.rank).collect();
        for rank in &missing {
            world().process_at_rank(index(*rank)).send_with_tag(&[0_u8], ROLL_CALL);
        }
        let began = Instant::now();
        while !missing.is_empty() && began.elapsed() < ANSWER.min(limit.after) {
            if answer().is_some_and(|asking| asking < self.rank) {
                return;
            }
            if let Some(from) = receive(HERE) {
                missing.retain(|rank| *rank != from);
            }
            thread::yield_now();
        }
        (limit.report)(&missing);
        self.abort(1)
    }
}

/// Receives a message with this tag, if there is one, and returns its sender.
fn receive(tag: i32) -> Option<usize> {
    let status = world().any_process().immediate_probe_with_tag(tag)?;
    let from = status.source_rank();
    world().process_at_rank(from).receive_with_tag::<u8>(tag);
    Some(number(from))
}

/// Answers a pending query whether this process is alive, if there is one, and returns its sender.
fn answer() -> Option<usize> {
    let from = receive(ROLL_CALL)?;
    world().process_at_rank(index(from)).send_with_tag(&[0_u8], HERE);
    Some(from)
}

fn world() -> SimpleCommunicator {
    SimpleCommunicator::world()
}

fn number(n: i32) -> usize {
    usize::try_from(n).expect("MPI counts are not negative")
}

fn index(rank: usize) -> i32 {
    i32::try_from(rank).expect("ranks fit i32")
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

    fn barrier(&self) {
        self.finish([world().immediate_barrier()]);
    }

    fn all_to_all(&self, own: &[u8], arrived: &mut [u8]) {
        let part = own.len() / self.size;
        self.exchange(|rank| &own[rank * part..][..part], arrived);
    }

    fn all_gather(&self, own: &[u8], arrived: &mut [u8]) {
        self.exchange(|_| own, arrived);
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) {
        let world = world();
        for bytes in bytes.chunks_mut(MAX_ITEMS) {
            let root = world.process_at_rank(index(root));
            scope(|scope| self.finish([root.immediate_broadcast_into(scope, bytes)]));
        }
    }

    fn limit_waiting(&self, limit: Option<Limit>) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = limit.map(Arc::new);
    }

    fn leave(&self) {
        drop(self.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn abort(&self, code: u8) -> ! {
        world().abort(i32::from(code))
    }
}

impl Drop for Mpi {
    /// Skips finalizing MPI: a process that is dropped without having left has failed, and finalizing would deadlock
    /// with the other processes. The launcher ends them when this process exits.
    fn drop(&mut self) {
        std::mem::forget(self.universe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
