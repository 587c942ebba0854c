//! A loaded model: its name, its tokenizer, and the queue of its thread.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::sync::Semaphore;

use super::counters::Metrics;
use super::inspectable::{Inspectable, OpenTensors};
use super::limits::{MAX_SCHEMAS, MAX_WAITING};
use super::renderer::Renderer;
use super::scheduler::{Queue, Scheduler, Slots};
use crate::config::ModelConfig;
use crate::generate::{LanguageModel, Vocabulary};
use crate::run::RunDir;
use crate::tokenizer::{Limits, Tokenizer};

/// A model to serve.
pub struct Model {
    /// The name used in requests.
    pub name: String,
    /// Its weights.
    pub model: LanguageModel,
    /// Opens the same weights as tensors, for inspection.
    pub tensors: OpenTensors,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Tokens that end a sequence, besides the tokenizer's end-of-text token.
    pub stop_token_ids: Vec<u32>,
    /// The time of its creation, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its run, for the page; `None` for a model without one.
    pub run: Option<RunDir>,
    /// Adapters beside its weights, in order. Each is served as a model that shares the weights, the tokenizer and the
    /// batch.
    pub adapted: Vec<Adapted>,
}

/// Adapters beside the weights of a [`Model`], served as a model.
pub struct Adapted {
    /// The name used in requests.
    pub name: String,
    /// Opens the merged weights as tensors, for inspection.
    pub tensors: OpenTensors,
    /// Tokens that end a sequence, besides the tokenizer's end-of-text token.
    pub stop_token_ids: Vec<u32>,
    /// Their run, for the page; `None` if they come from elsewhere.
    pub run: Option<RunDir>,
}

/// A model with its thread, which its adapters share.
pub(super) struct LoadedModel {
    pub(super) name: String,
    pub(super) created_unix_s: u64,
    pub(super) tokenizer: Tokenizer,
    pub(super) stop_token_ids: Vec<u32>,
    pub(super) config: ModelConfig,
    pub(super) inspectable: Arc<Inspectable>,
    pub(super) run: Option<RunDir>,
    pub(super) renderer: Arc<Renderer>,
    pub(super) metrics: Arc<Metrics>,
    /// The index of its adapters; `None` for the base.
    pub(super) adapters: Option<usize>,
    pub(super) slots: Slots,
    pub(super) queue: Arc<Queue>,
    /// Permits for the schemas in flight, one for each value.
    pub(super) schemas: Arc<Semaphore>,
    /// Made for the first sequence with a guide.
    vocabulary: Arc<OnceLock<Option<Arc<Vocabulary>>>>,
}

impl LoadedModel {
    /// Starts the thread of a model; returns the model, followed by those of its adapters. The thread ends once all of
    /// these are dropped and all sequences are finished. Processes of `program` render the chat template.
    pub(super) fn start(model: Model, slots: Slots, program: &Path, render: Limits) -> std::io::Result<Vec<Arc<Self>>> {
        let Model { name, model, tensors, tokenizer, stop_token_ids, created_unix_s, run, adapted } = model;
        let config = model.config().clone();
        // Models of tensors do not speculate.
        let is_engine = matches!(model, LanguageModel::Engine(_));
        let slots = Slots { speculate: if is_engine { slots.speculate } else { 0 }, ..slots };
        let (queue, scheduler) = Scheduler::new(model, tokenizer.clone(), slots, MAX_WAITING)?;
        thread::Builder::new().name(name.clone()).spawn(|| scheduler.run())?;
        let renderer = Arc::new(Renderer::new(program, render, &tokenizer));
        let (queue, vocabulary) = (Arc::new(queue), Arc::default());
        let schemas = Arc::new(Semaphore::new(MAX_SCHEMAS));
        let named = |Adapted { name, tensors, stop_token_ids, run }, adapters: Option<usize>| {
            Arc::new(Self {
                name,
                created_unix_s,
                tokenizer: tokenizer.clone(),
                stop_token_ids,
                config: config.clone(),
                inspectable: Arc::new(Inspectable::new(tensors)),
                run,
                renderer: Arc::clone(&renderer),
                metrics: Arc::default(),
                adapters,
                slots,
                queue: Arc::clone(&queue),
                schemas: Arc::clone(&schemas),
                vocabulary: Arc::clone(&vocabulary),
            })
        };
        let base = named(Adapted { name, tensors, stop_token_ids, run }, None);
        let adapted = adapted.into_iter().enumerate().map(|(i, adapted)| named(adapted, Some(i)));
        Ok(std::iter::once(base).chain(adapted).collect())
    }

    /// Its tokens as text, for guides; `None` if a token's text depends on its context.
    pub(super) fn vocabulary(&self) -> Option<Arc<Vocabulary>> {
        self.vocabulary.get_or_init(|| Vocabulary::of(&self.tokenizer).map(Arc::new)).clone()
    }

    pub(super) fn context_length(&self) -> usize {
        self.config.context_length
    }
}
