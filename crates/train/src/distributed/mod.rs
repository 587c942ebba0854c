//! The processes that train one run together, and their communication.
//!
//! A process is alone unless a launcher such as `mpirun` started several, which then communicate over MPI (feature
//! `mpi`). A process that trains on several GPUs has one thread per GPU, and these threads are ranks as well. Nothing
//! here depends on models or runs.

mod agree;
mod collective;
mod config;
mod error;
mod launcher;
#[cfg(feature = "mpi")]
mod mpi;
mod sum;
mod threads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::distributed::{CollectiveTensor, ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};

use tinderbox_model::device::{Backend, OpenDevice};

pub use collective::{Collective, Limit, Report};
pub use config::{DistributedConfig, SyncKind};
pub use error::DistributedError;
pub use sum::{ExchangeDtype, MOST_NUMBERS};
pub use threads::OtherFailed;

/// A function that is called with the ranks that hang, before all processes are ended.
pub type OnHang = fn(&DistributedError);

/// The time that a process has spent in exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// The time spent waiting, until the last process arrived.
    pub waiting: Duration,
    /// The time spent communicating, from then until the data arrived.
    pub communicating: Duration,
}

/// The processes of a run, as seen by one of them. Rank 0 is the main process: it writes the run directory, and the
/// others only compute.
#[derive(Clone, Debug)]
pub struct Ranks {
    collective: Arc<dyn Collective>,
    /// The names of the machines of all ranks.
    hosts: Arc<[String]>,
    on_hang: OnHang,
    exchanged: Arc<Mutex<Exchanged>>,
    /// The time after which a rank that waits gives up.
    limit: Arc<Mutex<Option<Duration>>>,
    /// The devices of all ranks, if they can sum tensors directly.
    cards: Arc<[Device]>,
}

impl Ranks {
    /// The ranks of a single process.
    pub fn alone() -> Self {
        let thread = threads::Thread::all(1).next().expect("there is one rank");
        Self::with(Arc::new(thread), ["this machine".to_owned()].into(), |_| ())
    }

    fn with(collective: Arc<dyn Collective>, hosts: Arc<[String]>, on_hang: OnHang) -> Self {
        Self { collective, hosts, on_hang, exchanged: Arc::default(), limit: Arc::default(), cards: [].into() }
    }

    /// Ranks that are threads of this process, each with the device of the same index. CUDA devices sum tensors
    /// directly; the tensors of other devices are summed in host memory.
    ///
    /// If a rank [aborts](Ranks::abort), it unwinds, and ranks that wait for it unwind with [`OtherFailed`].
    pub fn of_devices(devices: &[OpenDevice]) -> Vec<Self> {
        let names: Arc<[String]> = devices.iter().map(|device| device.name.clone()).collect();
        let are_cards = devices.iter().all(|device| device.backend == Backend::Cuda);
        let cards = devices.iter().filter(|_| are_cards).map(|device| device.device.clone());
        let cards: Arc<[Device]> = cards.collect();
        let rank = |thread| Self { cards: cards.clone(), ..Self::with(Arc::new(thread), names.clone(), |_| ()) };
        threads::Thread::all(devices.len()).map(rank).collect()
    }

    /// Connects to the other processes that the launcher started and divides the cores of each machine among its
    /// processes. Without a launcher, or if it started one process, the process is alone. `on_hang` is called with the
    /// ranks that hang, if there is a [limit](Ranks::limit_waiting).
    ///
    /// # Errors
    /// If the launcher started several processes that cannot find each other, because the program was built without MPI
    /// or with another MPI than the launcher's.
    pub fn join(on_hang: OnHang) -> Result<Self, DistributedError> {
        let size = launcher::n_processes();
        if size < 2 {
            return Ok(Self::alone());
        }
        let mut ranks = Self::with(connect(size)?, [].into(), on_hang);
        ranks.hosts = ranks.gather(&ranks.collective.host()).into();
        let places: Vec<String> = ranks.gather(&launcher::allowed_cores());
        launcher::limit_threads(ranks.n_sharing(&places));
        Ok(ranks)
    }

    /// The number of processes that may use the same cores as this one, including itself.
    fn n_sharing(&self, cores: &[String]) -> usize {
        let own = self.rank();
        (0..self.size()).filter(|rank| self.hosts[*rank] == self.hosts[own] && cores[*rank] == cores[own]).count()
    }

    /// The rank of this process, counted from 0.
    pub fn rank(&self) -> usize {
        self.collective.rank()
    }

    /// The number of processes, at least 1.
    pub fn size(&self) -> usize {
        self.collective.size()
    }

    /// The local rank: the index of this process among those on its machine, counted from 0.
    pub fn index_on_host(&self) -> usize {
        self.hosts[..self.rank()].iter().filter(|host| **host == self.hosts[self.rank()]).count()
    }

    /// Whether the devices of all ranks can [sum tensors](Ranks::sum_on_devices) directly.
    pub fn sums_on_devices(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Whether there is only one process.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this is rank 0.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The name of a rank and its machine, such as `rank 2 on node7`.
    pub fn name_of(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank])
    }

    /// The name of this process and its machine.
    pub fn name(&self) -> String {
        self.name_of(self.rank())
    }

    /// All-reduce: replaces each number with its sum over all processes, bitwise identical on every process. The
    /// numbers are sent in `dtype`.
    pub fn all_reduce(&self, values: &mut [f32], dtype: ExchangeDtype) {
        let began = Instant::now();
        sum::all_reduce(&*self.collective, values, dtype);
        self.exchanged_now().communicating += began.elapsed();
    }

    /// The sums of tensors over all ranks, computed by the devices directly. All ranks must call it in the same order.
    ///
    /// # Panics
    /// If the ranks [do not sum on their devices](Ranks::sums_on_devices).
    pub fn sum_on_devices(&self, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
        assert!(self.sums_on_devices(), "devices of one process");
        let sum = |tensor| all_reduce(tensor, ReduceOperation::Sum, self.cards.to_vec());
        let under_way: Vec<_> = tensors.into_iter().map(sum).collect();
        under_way.into_iter().map(CollectiveTensor::resolve).collect()
    }

    /// Sums ones on the devices of all ranks, if they sum tensors directly, so that a missing library is found early.
    pub fn check_device_sums(&self) -> Result<(), DistributedError> {
        let Some(own) = self.cards.get(self.rank()) else { return Ok(()) };
        let sum = self.sum_on_devices(vec![Tensor::ones([1], own)]).remove(0).try_into_scalar::<f32>();
        match sum {
            Ok(sum) if (sum - self.size() as f32).abs() < 0.5 => Ok(()),
            _ => Err(DistributedError::Cards(self.name())),
        }
    }

    /// A barrier: waits until every process has arrived.
    pub fn barrier(&self) {
        let began = Instant::now();
        self.collective.barrier();
        self.exchanged_now().waiting += began.elapsed();
    }

    /// The time that this process has spent in [`Ranks::barrier`] and in sums since it joined.
    pub fn exchanged(&self) -> Exchanged {
        *self.exchanged_now()
    }

    fn exchanged_now(&self) -> MutexGuard<'_, Exchanged> {
        self.exchanged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a time limit for exchanges, after which all processes are ended; `None` sets no limit.
    pub fn limit_waiting(&self, after: Option<Duration>) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = after;
        let names: Vec<String> = (0..self.size()).map(|rank| self.name_of(rank)).collect();
        let on_hang = self.on_hang;
        let limit = |after: Duration| {
            let report = move |missing: &[usize]| {
                let missing = missing.iter().map(|rank| names[*rank].clone()).collect();
                on_hang(&DistributedError::Hangs { missing, after });
            };
            Limit { after, report: Box::new(report) }
        };
        self.collective.limit_waiting(after.map(limit));
    }

    /// Replaces the bytes with those of rank 0.
    pub fn broadcast(&self, bytes: &mut [u8]) {
        self.collective.broadcast(0, bytes);
    }

    /// Replaces the numbers with those of rank 0.
    pub fn broadcast_numbers(&self, values: &mut [f32]) {
        let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.broadcast(&mut bytes);
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    /// The text of rank 0; the texts of other ranks are ignored.
    pub fn broadcast_text(&self, text: &str) -> String {
        self.text_of(0, text)
    }

    /// The texts of all ranks, in order.
    fn gather(&self, text: &str) -> Vec<String> {
        (0..self.size()).map(|rank| self.text_of(rank, text)).collect()
    }

    fn text_of(&self, rank: usize, text: &str) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.collective.broadcast(rank, &mut length);
        let length = usize::try_from(u64::from_le_bytes(length)).expect("the length of a text in memory");
        let mut bytes = if self.rank() == rank { text.as_bytes().to_vec() } else { vec![0; length] };
        self.collective.broadcast(rank, &mut bytes);
        String::from_utf8(bytes).expect("rank 0 sends UTF-8")
    }

    /// Checks that `found` is the same for all ranks.
    ///
    /// # Errors
    /// On a rank whose `found` differs from that of rank 0; the error names both.
    pub fn check_same(&self, what: &'static str, found: &str) -> Result<(), DistributedError> {
        let expected = self.broadcast_text(found);
        if found == expected { Ok(()) } else { Err(self.differs(what)) }
    }

    /// The error of a rank whose `what` differs from that of rank 0.
    pub fn differs(&self, what: &'static str) -> DistributedError {
        DistributedError::Differs { what, this: self.name(), first: self.name_of(0) }
    }

    /// Waits until every process has arrived and shuts MPI down. No other call may follow.
    pub fn leave(&self) {
        self.collective.leave();
    }

    /// Ends all processes at once, with this exit code if the launcher forwards it.
    pub fn abort(&self, code: u8) -> ! {
        self.collective.abort(code)
    }
}

/// Returns an error if a launcher started several processes, since each would do all of the `work`.
pub fn refuse_launcher(work: &'static str) -> Result<(), DistributedError> {
    match launcher::n_processes() {
        0 | 1 => Ok(()),
        n_processes => Err(DistributedError::NotShared { n_processes, work }),
    }
}

#[cfg(feature = "mpi")]
fn connect(size: usize) -> Result<Arc<dyn Collective>, DistributedError> {
    Ok(Arc::new(mpi::Mpi::connect(size)?))
}

#[cfg(not(feature = "mpi"))]
fn connect(size: usize) -> Result<Arc<dyn Collective>, DistributedError> {
    Err(DistributedError::NotCompiled(size))
}
