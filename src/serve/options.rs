//! The settings of a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::guard::ApiKeys;
use super::loaded_model::Model;
use super::scheduler::Slots;
use crate::tokenizer::Limits;

/// The settings of a server.
pub struct Options {
    /// The address to listen on; port 0 means any free port.
    pub address: SocketAddr,
    /// The slots of each model.
    pub slots: Slots,
    /// The accepted API keys; `None` for no authentication.
    pub keys: Option<ApiKeys>,
    /// Sites whose pages may use the server, such as `http://localhost:3000`.
    pub origins: Vec<String>,
    /// A silent stream gets a comment after this time, so that no proxy closes it.
    pub keep_alive: Duration,
    /// A folder whose runs are served too; `None` for only the given models.
    pub folder: Option<PathBuf>,
    /// Opens a run of the folder, or a checkpoint that a run keeps, on first use.
    pub open: OpenModel,
    /// The `tinderbox` program, started as a separate process to render chat templates.
    pub program: PathBuf,
    /// The limits of that process.
    pub render: Limits,
}

/// Opens the model of a run or a checkpoint, with the number of slots for which there is memory, or returns the reason
/// why it cannot.
pub type OpenModel = Box<dyn Fn(&Path) -> Result<(Model, usize), String> + Send + Sync>;
