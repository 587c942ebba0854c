//! An HTTP server with OpenAI's API: several models, each with a thread that generates many sequences at once.
//!
//! Connections are futures on one I/O thread, and know nothing about models; a model's thread knows nothing about HTTP.
//! They exchange sequences to be generated, and events of these, of which another thread makes responses. The I/O thread
//! does nothing that takes long.

mod answer;
mod app;
mod calls;
mod chat;
mod choice;
mod connections;
mod document;
mod embeddings;
mod error;
mod fields;
mod format;
mod guard;
mod hosted;
mod inspect;
mod inspectable;
mod library;
mod limits;
mod listen;
mod metrics;
mod renderer;
mod request;
mod responses;
mod routes;
mod scheduler;
mod score;
mod slots;
mod stream;
mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, watch};

use self::error::ApiError;
pub use self::guard::{ApiKeys, is_origin};
use self::hosted::Hosted;
pub use self::hosted::{Adapted, Model};
pub use self::inspectable::{OpenTensors, TensorsError};
use self::library::Library;
pub use self::library::OpenModel;
pub use self::renderer::{COMMAND as RENDER_CHATS, render_chats};
pub use self::scheduler::Slots;

/// The settings of a server.
#[derive(Debug)]
pub struct Options {
    /// The address to listen on; port 0 means any free port.
    pub address: SocketAddr,
    /// The places for the texts that a model writes at once.
    pub slots: Slots,
    /// The accepted API keys; `None` for no authentication.
    pub keys: Option<ApiKeys>,
    /// Sites of which any page may use the server, such as `http://localhost:3000`.
    pub origins: Vec<String>,
    /// The time after which a stream without news gets a comment, so that nothing on the way closes it.
    pub keep_alive: Duration,
    /// A folder whose runs are served as well; `None` for only the given models.
    pub folder: Option<PathBuf>,
    /// Opens a run of the folder, or a checkpoint that a run keeps, on first use.
    pub open: OpenModel,
    /// The `tinderbox` program, of which a process renders the chat template of each model.
    pub program: PathBuf,
}

/// The reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}\n  hint: {}", listen_hint(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A thread cannot be started, or the system has no sockets.
    #[error("cannot start the server: {0}\n  hint: free some memory, or raise the limit on processes")]
    Start(#[from] io::Error),
    /// Two models have the same name.
    #[error("two models are called `{0}`\n  hint: name each run once; runs in folders of the same name need others")]
    SameName(String),
}

fn listen_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; choose another --port, or 0 for any that is free",
        io::ErrorKind::PermissionDenied => "choose a --port from 1024 on",
        _ => "--host is an address of this machine, such as 127.0.0.1",
    }
}

/// A server that listens, and responds once it [runs](Server::run).
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    /// Makes responses of texts, beside the I/O thread.
    answers: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    service: Shared,
    stop: watch::Sender<bool>,
}

/// Stops a server: texts in progress are finished, and further requests are rejected.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Stops the server.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether the server was asked to stop.
    pub fn was_asked(&self) -> bool {
        *self.0.borrow()
    }
}

impl Server {
    /// Starts the models, and listens.
    ///
    /// # Errors
    /// If two models have the same name, the server cannot listen on the address, or threads cannot be started.
    pub fn bind(models: Vec<Model>, options: Options) -> Result<Self, ServeError> {
        let Options { address, slots, keys, origins, keep_alive, folder, open, program } = options;
        let adapted = models.iter().flat_map(|model| &model.adapted).map(|adapted| &*adapted.name);
        let mut names: Vec<&str> = models.iter().map(|model| &*model.name).chain(adapted).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ServeError::SameName(pair[0].to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut answers = tokio::runtime::Builder::new_multi_thread();
        let answers = answers.worker_threads(1).thread_name("answers").enable_time().build()?;
        let listener = runtime.block_on(async { listen::bind(address) });
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        let address = listener.local_addr()?;
        let start = |model| Hosted::start(model, slots, &program);
        let models = models.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let models = models.into_iter().flatten().map(Arc::new).collect();
        let stop = watch::Sender::new(false);
        let service = Service {
            library: Library::new(models, folder, open, slots, program),
            keys,
            origins,
            keep_alive,
            responses: Mutex::default(),
            stopping: stop.subscribe(),
            n_busy: watch::Sender::new(0),
            answers: answers.handle().clone(),
            permits: Arc::new(Semaphore::new(thread::available_parallelism().map_or(1, NonZero::get))),
        };
        Ok(Self { runtime, answers, listener, address, service: Arc::new(service), stop })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that stops it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Serves until it is stopped and all earlier requests are finished.
    pub fn run(self) {
        let Self { runtime, answers, listener, service, .. } = self;
        runtime.block_on(listen::run(listener, service));
        // What is still computed is for clients that left.
        answers.shutdown_background();
        runtime.shutdown_background();
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct Service {
    library: Library,
    keys: Option<ApiKeys>,
    origins: Vec<String>,
    keep_alive: Duration,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
    stopping: watch::Receiver<bool>,
    /// The number of requests in progress.
    n_busy: watch::Sender<usize>,
    /// The thread that makes responses of texts.
    answers: Handle,
    /// Permits for [long work](Work::Long): one for each core.
    permits: Arc<Semaphore>,
}

/// How long some work may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// It is started at once, whatever else is under way.
    Short,
    /// Only as many of these run as there are cores, so that they do not delay everything else.
    Long,
}

type Shared = Arc<Service>;

/// A request in progress, which a stopping server waits for.
#[derive(Debug)]
struct Busy(watch::Sender<usize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Service {
    /// Registers a request; rejects it if the server is stopping.
    fn begin(&self) -> Result<Busy, ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::stopping());
        }
        self.n_busy.send_modify(|n| *n += 1);
        Ok(Busy(self.n_busy.clone()))
    }

    /// The result of work on another thread than that of the connections.
    async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        kind: Work,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = match kind {
            Work::Short => None,
            Work::Long => self.permits.clone().acquire_owned().await.ok(),
        };
        let service = self.clone();
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&service)
        });
        working.await.unwrap_or_else(|_| Err(ApiError::bug()))
    }

    fn count(&self, status: StatusCode) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry(status.as_u16()).or_default() += 1;
    }

    fn responses(&self) -> Vec<(u16, u64)> {
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.iter().map(|(status, n)| (*status, *n)).collect()
    }
}

/// An unpredictable number below 2^63.
fn random() -> u64 {
    RandomState::new().hash_one(SystemTime::now()) >> 1
}

/// A time in seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
