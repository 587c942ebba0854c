//! An HTTP server with OpenAI's API: several models, each with a thread that generates many sequences at once.
//!
//! Connections are futures on one I/O thread, and know nothing about models; a model's thread knows nothing about HTTP.
//! Connections submit sequences to a model's thread and get events back, from which another thread makes responses. No
//! work that takes long runs on the I/O thread.

mod app;
mod calls;
mod completion;
mod connections;
mod counters;
mod document;
mod embeddings;
mod error;
mod fields;
mod format;
mod forms;
mod guard;
mod http;
mod inspect;
mod inspectable;
mod library;
mod limits;
mod listen;
mod llama;
mod loaded_model;
mod metrics;
mod options;
mod prompt;
mod renderer;
mod request;
mod responses;
mod routes;
mod scheduler;
mod score;
mod service;
mod stream;
mod unsent;
mod view;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

pub use self::guard::{ApiKeys, is_origin};
pub(crate) use self::http::unix_s;
pub use self::inspectable::{OpenTensors, TensorsError};
use self::loaded_model::LoadedModel;
pub use self::loaded_model::{Adapted, Model};
pub use self::options::{OpenModel, Options};
pub use self::scheduler::Slots;
use self::service::{Service, Shared};

/// The reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}\n  hint: {}", listen_hint(source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start the server: {0}\n  hint: free some memory, or raise the limit on processes")]
    Start(#[from] io::Error),
    #[error("two models are called `{0}`\n  hint: name each run once, and rename folders that share a name")]
    SameName(String),
}

fn listen_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; choose another --port, or 0 for any free port",
        io::ErrorKind::PermissionDenied => "choose a --port of 1024 or above",
        _ => "--host is an address of this machine, such as 127.0.0.1",
    }
}

/// A server that listens, and responds once it [runs](Server::run).
pub struct Server {
    runtime: Runtime,
    /// Makes responses of completions, beside the I/O thread.
    responder: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    service: Shared,
    stop: watch::Sender<bool>,
}

/// Stops a server: it finishes requests in progress and rejects others.
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
        let adapted = models.iter().flat_map(|model| &model.adapted).map(|adapted| &*adapted.name);
        let mut names: Vec<&str> = models.iter().map(|model| &*model.name).chain(adapted).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ServeError::SameName(pair[0].to_owned()));
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let responder = Builder::new_multi_thread().worker_threads(1).thread_name("responder").enable_time().build()?;
        let listener = runtime.block_on(async { listen::bind(options.address) });
        let listener = listener.map_err(|source| ServeError::Listen { address: options.address, source })?;
        let address = listener.local_addr()?;
        let models = models
            .into_iter()
            .map(|model| LoadedModel::start(model, options.slots, &options.program, options.render))
            .collect::<Result<Vec<_>, _>>()?;
        let stop = watch::Sender::new(false);
        let service = Service::new(models.concat(), options, stop.subscribe(), responder.handle().clone());
        Ok(Self { runtime, responder, listener, address, service: Arc::new(service), stop })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that stops it.
    pub fn stop(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Serves until it is stopped and all earlier requests are finished.
    pub fn run(self) {
        let Self { runtime, responder, listener, service, .. } = self;
        runtime.block_on(listen::run(listener, service));
        // Only responses to clients that left are still in progress.
        responder.shutdown_background();
        runtime.shutdown_background();
    }
}
