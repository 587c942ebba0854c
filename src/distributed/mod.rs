//! The processes that train one run together, and how they exchange numbers.
//!
//! A process is alone unless a launcher such as `mpirun` started several, which then exchange through MPI (feature
//! `mpi`). The threads of a process that trains on several GPUs are ranks as well. Nothing here knows of models or runs.

mod error;
mod launcher;
#[cfg(feature = "mpi")]
mod mpi;
mod sum;
mod threads;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::distributed::{CollectiveTensor, ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor};

use crate::device::{Backend, OpenDevice};

pub use error::DistributedError;
pub use sum::{Format, MOST_NUMBERS};
pub use threads::OtherFailed;

/// Exchanges between processes. Each process makes the same calls in the same order, one at a time.
pub trait Collective: Debug + Send + Sync {
    /// The number of this process, from 0.
    fn rank(&self) -> usize;
    /// How many processes there are.
    fn size(&self) -> usize;
    /// The name of this process's machine.
    fn host(&self) -> String;
    /// Waits until every process is here.
    fn barrier(&self);
    /// Sends each process its part of `own`, which has one for each in the order of the ranks, and collects the parts
    /// that they send to this one.
    fn all_to_all(&self, own: &[u8], arrived: &mut [u8]);
    /// Sends all of `own` to every process, and collects what they send.
    fn all_gather(&self, own: &[u8], arrived: &mut [u8]);
    /// Replaces the bytes by those of the process `root`.
    fn broadcast(&self, root: usize, bytes: &mut [u8]);
    /// From now on, ends all processes if an exchange takes too long; `None` waits for as long as it takes.
    fn limit_waiting(&self, limit: Option<Limit>);
    /// The last call: waits for the others, and says goodbye to the launcher.
    fn leave(&self);
    /// Ends all processes at once; the launcher's exit code is `code` where it passes codes on.
    fn abort(&self, code: u8) -> !;
}

/// A process without others.
#[derive(Debug)]
struct Alone;

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn host(&self) -> String {
        "this machine".to_owned()
    }

    fn barrier(&self) {}

    fn all_to_all(&self, own: &[u8], arrived: &mut [u8]) {
        arrived.copy_from_slice(own);
    }

    fn all_gather(&self, own: &[u8], arrived: &mut [u8]) {
        arrived.copy_from_slice(own);
    }

    fn broadcast(&self, _: usize, _: &mut [u8]) {}

    fn limit_waiting(&self, _: Option<Limit>) {}

    fn leave(&self) {}

    fn abort(&self, code: u8) -> ! {
        std::process::exit(i32::from(code))
    }
}

/// Reports ranks that hang, before all processes are ended.
pub type OnHang = fn(&DistributedError);

/// How long an exchange may take.
pub struct Limit {
    /// Then those who do not answer are looked for.
    pub after: Duration,
    /// Reports their ranks; none if all of them answered.
    pub report: Report,
}

/// See [`Limit::report`].
pub type Report = Box<dyn Fn(&[usize]) + Send + Sync>;

/// How long a process took part in exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Until the last process was there.
    pub waiting: Duration,
    /// From then on, until the numbers were.
    pub communicating: Duration,
}

/// [`Exchanged`], in nanoseconds.
#[derive(Debug, Default)]
struct Clocks {
    waiting: AtomicU64,
    communicating: AtomicU64,
}

/// Adds how long `f` takes.
fn timed(clock: &AtomicU64, f: impl FnOnce()) {
    let began = Instant::now();
    f();
    clock.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The processes of a run, as one of them sees them. Rank 0 leads: it writes the run, and the others compute with it.
#[derive(Clone, Debug)]
pub struct Ranks {
    collective: Arc<dyn Collective>,
    /// The machines of all ranks.
    hosts: Arc<[String]>,
    on_hang: OnHang,
    clocks: Arc<Clocks>,
    turn: Arc<Mutex<()>>,
    /// Those of all ranks, if they add up tensors among themselves.
    cards: Arc<[Device]>,
}

impl Ranks {
    /// A process without others.
    pub fn alone() -> Self {
        Self::with(Arc::new(Alone), [Alone.host()].into(), |_| ())
    }

    fn with(collective: Arc<dyn Collective>, hosts: Arc<[String]>, on_hang: OnHang) -> Self {
        Self { collective, hosts, on_hang, clocks: Arc::default(), turn: Arc::default(), cards: [].into() }
    }

    /// Ranks that are threads of this process, in their order, each with one of `devices`. CUDA's add up tensors among
    /// themselves; numbers of others go through memory.
    ///
    /// A rank that [aborts](Ranks::abort) unwinds, and so do those that wait for it, with [`OtherFailed`].
    pub fn of_devices(devices: &[OpenDevice]) -> Vec<Self> {
        let names: Arc<[String]> = devices.iter().map(|device| device.name.clone()).collect();
        let are_cards = devices.iter().all(|device| device.backend == Backend::Cuda);
        let cards = devices.iter().filter(|_| are_cards).map(|device| device.device.clone());
        let cards: Arc<[Device]> = cards.collect();
        let rank = |thread| Self { cards: cards.clone(), ..Self::with(Arc::new(thread), names.clone(), |_| ()) };
        threads::Thread::all(devices.len()).map(rank).collect()
    }

    /// Joins the processes that the launcher started, and shares the cores of each machine out to those on it.
    /// Alone without a launcher, or if it started one process. `on_hang` hears of ranks that hang, if there is a
    /// [limit](Ranks::limit_waiting).
    ///
    /// # Errors
    /// If the launcher started several processes that cannot find each other: the program was built without MPI, or
    /// with that of another launcher.
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

    /// How many processes may use the same cores as this one, itself included.
    fn n_sharing(&self, cores: &[String]) -> usize {
        let own = self.rank();
        (0..self.size()).filter(|rank| self.hosts[*rank] == self.hosts[own] && cores[*rank] == cores[own]).count()
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.collective.rank()
    }

    /// How many processes there are, at least 1.
    pub fn size(&self) -> usize {
        self.collective.size()
    }

    /// The number of this process among those on its machine, from 0.
    pub fn index_on_host(&self) -> usize {
        self.hosts[..self.rank()].iter().filter(|host| **host == self.hosts[self.rank()]).count()
    }

    /// Whether the devices of all ranks [add up tensors](Ranks::sum_on_cards) among themselves.
    pub fn has_cards(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Whether there is one process only.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this process leads.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// A rank with its machine, such as `rank 2 on node7`.
    pub fn name_of(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank])
    }

    /// This process with its machine.
    pub fn name(&self) -> String {
        self.name_of(self.rank())
    }

    /// Replaces each number by its sum over all processes, the same bits in each of them. `format` is how they travel.
    pub fn all_reduce(&self, values: &mut [f32], format: Format) {
        timed(&self.clocks.communicating, || sum::all_reduce(&*self.collective, values, format));
    }

    /// The sums of tensors over all ranks, which call it in the same order, by the devices themselves.
    ///
    /// # Panics
    /// If the ranks [have no cards](Ranks::has_cards).
    pub fn sum_on_cards(&self, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
        assert!(self.has_cards(), "cards of one process");
        let sum = |tensor| all_reduce(tensor, ReduceOperation::Sum, self.cards.to_vec());
        let under_way: Vec<_> = tensors.into_iter().map(sum).collect();
        under_way.into_iter().map(CollectiveTensor::resolve).collect()
    }

    /// Has the devices of all ranks add up ones, if they add up tensors among themselves: a missing library shows.
    ///
    /// # Errors
    /// If the sum is another.
    pub fn check_cards(&self) -> Result<(), DistributedError> {
        let Some(own) = self.cards.get(self.rank()) else { return Ok(()) };
        let sum = self.sum_on_cards(vec![Tensor::ones([1], own)]).remove(0).try_into_scalar::<f32>();
        match sum {
            Ok(sum) if (sum - self.size() as f32).abs() < 0.5 => Ok(()),
            _ => Err(DistributedError::Cards(self.name())),
        }
    }

    /// Waits until every process is here.
    pub fn meet(&self) {
        timed(&self.clocks.waiting, || self.collective.barrier());
    }

    /// How long this process has waited for others in [`Ranks::meet`], and summed with them, since it joined.
    pub fn exchanged(&self) -> Exchanged {
        let read = |clock: &AtomicU64| Duration::from_nanos(clock.load(Ordering::Relaxed));
        Exchanged { waiting: read(&self.clocks.waiting), communicating: read(&self.clocks.communicating) }
    }

    /// From now on, ends all processes if an exchange takes this long; `None` waits for as long as it takes.
    pub fn limit_waiting(&self, after: Option<Duration>) {
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

    /// Keeps other threads of this process from beginning an exchange.
    pub fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Ranks::take_turn`]; `None` if another thread has it.
    pub fn try_turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok()
    }

    /// Replaces the bytes by those of rank 0.
    pub fn broadcast(&self, bytes: &mut [u8]) {
        self.collective.broadcast(0, bytes);
    }

    /// Replaces the numbers by those of rank 0.
    pub fn broadcast_numbers(&self, values: &mut [f32]) {
        let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.broadcast(&mut bytes);
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    /// The text of rank 0; that of the others is not looked at.
    pub fn broadcast_text(&self, text: &str) -> String {
        self.text_of(0, text)
    }

    /// The texts of all ranks, in their order.
    fn gather(&self, text: &str) -> Vec<String> {
        (0..self.size()).map(|rank| self.text_of(rank, text)).collect()
    }

    /// The text of a rank, for all of them.
    fn text_of(&self, rank: usize, text: &str) -> String {
        let mut length = (text.len() as u64).to_le_bytes();
        self.collective.broadcast(rank, &mut length);
        let length = usize::try_from(u64::from_le_bytes(length)).expect("the length of a text in memory");
        let mut bytes = if self.rank() == rank { text.as_bytes().to_vec() } else { vec![0; length] };
        self.collective.broadcast(rank, &mut bytes);
        String::from_utf8(bytes).expect("it was a text")
    }

    /// Checks that `found` is the same for all ranks.
    ///
    /// # Errors
    /// On a rank whose `found` is not that of rank 0: both are named.
    pub fn check_same(&self, what: &'static str, found: &str) -> Result<(), DistributedError> {
        let expected = self.broadcast_text(found);
        if found == expected { Ok(()) } else { Err(self.differs(what)) }
    }

    /// The error of a rank that has another `what` than rank 0.
    pub fn differs(&self, what: &'static str) -> DistributedError {
        DistributedError::Differs { what, this: self.name(), first: self.name_of(0) }
    }

    /// The last call: waits until every process is here, and says goodbye to the launcher.
    pub fn leave(&self) {
        self.collective.leave();
    }

    /// Ends all processes at once, with this exit code where the launcher passes it on.
    pub fn abort(&self, code: u8) -> ! {
        self.collective.abort(code)
    }
}

/// Fails if a launcher started several processes, of which each would do all of the `work`.
///
/// # Errors
/// Then.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_others_keeps_its_numbers() {
        let ranks = Ranks::alone();
        assert!(ranks.is_alone() && ranks.is_first());
        let mut values = [1.5, -2.0];
        ranks.all_reduce(&mut values, Format::Bf16);
        ranks.broadcast_numbers(&mut values);
        assert_eq!(values.map(f32::to_bits), [1.5_f32, -2.0].map(f32::to_bits));
        assert_eq!(ranks.broadcast_text("a text"), "a text");
        assert!(ranks.check_same("config", "a = 1").is_ok());
    }
}
