//! A served model: its name, its tokenizer, and the queue of its generating thread.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::inspectable::{Inspectable, OpenTensors};
use super::limits::MAX_WAITING;
use super::metrics::Metrics;
use super::renderer::Renderer;
use super::scheduler::{Queue, Scheduler};
use crate::config::ModelConfig;
use crate::generate::LanguageModel;
use crate::run::RunDir;
use crate::tokenizer::Tokenizer;

/// A model to serve.
#[derive(Debug)]
pub struct Model {
    /// The name used in requests.
    pub name: String,
    /// Its weights.
    pub model: LanguageModel,
    /// The same weights as tensors, for inspection.
    pub tensors: OpenTensors,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end its texts, besides the tokenizer's end-of-text token.
    pub stop_token_ids: Vec<u32>,
    /// The time of its creation, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its run, for the page; `None` for a model without one.
    pub run: Option<RunDir>,
}

/// A model with its thread.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) name: String,
    pub(super) created_unix_s: u64,
    pub(super) tokenizer: Tokenizer,
    pub(super) stop_token_ids: Vec<u32>,
    pub(super) config: ModelConfig,
    pub(super) inspectable: Arc<Inspectable>,
    pub(super) run: Option<RunDir>,
    pub(super) renderer: Renderer,
    pub(super) n_slots: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) queue: Queue,
}

impl Hosted {
    /// Starts the thread of a model, which ends once this is dropped and all sequences are finished. Processes of
    /// `program` render its chat template.
    pub(super) fn start(model: Model, n_slots: usize, program: &Path) -> std::io::Result<Self> {
        let Model { name, model, tensors, tokenizer, stop_token_ids, created_unix_s, run } = model;
        let config = model.config().clone();
        let inspectable = Arc::new(Inspectable::new(tensors));
        let metrics = Arc::<Metrics>::default();
        let (queue, end) = Queue::new(MAX_WAITING);
        let scheduler = Scheduler::new(model, tokenizer.clone(), n_slots, end, metrics.clone());
        thread::Builder::new().name(name.clone()).spawn(|| scheduler.run())?;
        let renderer = Renderer::new(program.to_owned(), &tokenizer);
        Ok(Self {
            name,
            created_unix_s,
            tokenizer,
            stop_token_ids,
            config,
            inspectable,
            run,
            renderer,
            n_slots,
            metrics,
            queue,
        })
    }

    /// The number of tokens in its context.
    pub(super) fn context_length(&self) -> usize {
        self.config.context_length
    }

    /// The text of a token: its characters, `bytes:\xNN` if it is not text, or its spelling in the vocabulary if tokens
    /// decode only in context.
    pub(super) fn token_text(&self, token: u32) -> String {
        match self.tokenizer.token_bytes(token) {
            None => self.tokenizer.piece(token),
            Some(bytes) => String::from_utf8(bytes.to_vec()).unwrap_or_else(|_| {
                bytes.iter().fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}"))
            }),
        }
    }
}
