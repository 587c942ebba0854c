//! An HTTP server that speaks OpenAI's API: several models, each with a thread that writes many texts at once.
//!
//! Connections are futures of one thread at the edge, and know nothing of models; a model's thread knows nothing of
//! HTTP. Between them are texts to be written, and what happens to these.

mod answer;
mod app;
mod chat;
mod choice;
mod error;
mod fields;
mod guard;
mod hosted;
mod inside;
mod inspect;
mod library;
mod limits;
mod listen;
mod metrics;
mod request;
mod routes;
mod scheduler;
mod score;
mod stream;
mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::error::ApiError;
pub use self::guard::Keys;
use self::hosted::Hosted;
pub use self::hosted::Model;
pub use self::inside::{OpenTensors, TensorsError};
use self::library::Library;
pub use self::library::OpenModel;

/// How a server is to be.
#[derive(Debug)]
pub struct Options {
    /// Where it listens; port 0 stands for any that is free.
    pub address: SocketAddr,
    /// How many texts a model writes at once. At least 1.
    pub n_places: usize,
    /// Who may ask; `None` for everybody.
    pub keys: Option<Keys>,
    /// A folder whose runs are served as well; `None` for the models given alone.
    pub folder: Option<PathBuf>,
    /// Opens a run of the folder, and a checkpoint that a run keeps, when it is first asked for.
    pub open: OpenModel,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}\n  hint: {}", listen_hint(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started, or the system has no sockets.
    #[error("cannot start the server: {0}\n  hint: free some memory, or raise the limit on processes")]
    Start(#[from] io::Error),
    /// Two models have one name.
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

/// A server that listens, and answers once it [runs](Server::run).
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    service: Shared,
    stop: watch::Sender<bool>,
}

/// Ends a server: what is being written is finished, and further requests are refused.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Ends the server.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether the server was asked to end.
    pub fn was_asked(&self) -> bool {
        *self.0.borrow()
    }
}

impl Server {
    /// Starts the models, and listens.
    ///
    /// # Errors
    /// If two models have the same name, the address cannot be listened on, or there are no threads.
    pub fn bind(models: Vec<Model>, options: Options) -> Result<Self, ServeError> {
        let Options { address, n_places, keys, folder, open } = options;
        let mut names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ServeError::SameName(pair[0].to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(async { listen::bind(address) });
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        let address = listener.local_addr()?;
        let start = |model| Hosted::start(model, n_places, limits::MAX_WAITING).map(Arc::new);
        let models = models.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let stop = watch::Sender::new(false);
        let service = Service {
            library: Library::new(models, folder, open, n_places),
            keys,
            responses: Mutex::default(),
            stopping: stop.subscribe(),
            n_busy: watch::Sender::new(0),
        };
        Ok(Self { runtime, listener, address, service: Arc::new(service), stop })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends it.
    #[must_use]
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Answers until it is stopped and everything that was asked for before is written.
    pub fn run(self) {
        let Self { runtime, listener, service, .. } = self;
        runtime.block_on(listen::run(listener, service));
    }
}

/// Everything that connections share.
#[derive(Debug)]
struct Service {
    library: Library,
    keys: Option<Keys>,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
    stopping: watch::Receiver<bool>,
    /// Requests that are being answered.
    n_busy: watch::Sender<usize>,
}

type Shared = Arc<Service>;

/// A request that is being answered, for which a server that is stopped waits.
#[derive(Debug)]
struct Busy(watch::Sender<usize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Service {
    /// Counts a request in; refuses it if the server is stopped.
    fn begin(&self) -> Result<Busy, ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::unavailable("the server is being stopped"));
        }
        self.n_busy.send_modify(|n| *n += 1);
        Ok(Busy(self.n_busy.clone()))
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

/// A number that nobody can foresee, below 2^63.
fn random() -> u64 {
    RandomState::new().hash_one(unix_s()) >> 1
}

fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
