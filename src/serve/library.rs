//! The served models: those named at the start, those in a folder of runs, which is listed again for each request, and the
//! checkpoints that their runs keep. All but the named ones are opened on first use.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::{ApiError, echoed};
use super::http::unix_s;
use super::limits::MAX_OPENED;
use super::loaded_model::{LoadedModel, Model};
use super::options::Options;
use super::scheduler::Slots;
use crate::run::{self, RunDir};

/// A run shown on the page.
#[derive(Clone, Debug)]
pub(super) struct ListedRun {
    pub(super) name: String,
    pub(super) run: RunDir,
    /// The current checkpoint of the run and its time; `None` before the first.
    pub(super) checkpoint: Option<(PathBuf, SystemTime)>,
}

impl ListedRun {
    fn new(name: String, run: RunDir) -> Self {
        let checkpoint = run::locate(run.root()).ok().and_then(|located| with_time(located.checkpoint));
        Self { name, run, checkpoint }
    }
}

/// A checkpoint with its time; `None` if it is gone.
fn with_time(checkpoint: PathBuf) -> Option<(PathBuf, SystemTime)> {
    let made = fs::metadata(&checkpoint).and_then(|it| it.modified()).ok()?;
    Some((checkpoint, made))
}

/// A model that is opened on first use.
#[derive(Debug, PartialEq)]
struct Snapshot {
    name: String,
    /// The path of the run or checkpoint to open.
    path: PathBuf,
    checkpoint: PathBuf,
    made: SystemTime,
}

/// A model as listed by `/v1/models`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub(super) struct ListedModel {
    pub(super) id: String,
    #[schemars(extend("enum" = ["model"]))]
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The number of tokens that the context holds.
    max_model_len: usize,
}

impl ListedModel {
    fn new(id: String, created: u64, max_model_len: usize) -> Self {
        Self { id, object: "model", created, owned_by: "tinderbox", max_model_len }
    }
}

pub(super) struct Library {
    named: Vec<Arc<LoadedModel>>,
    options: Arc<Options>,
    /// Opened models that were not named; the most recently used last.
    opened: Mutex<Vec<(Snapshot, Arc<LoadedModel>)>>,
    /// Held while a model is opened, one at a time.
    opening: Mutex<()>,
    /// Context lengths, by run and time of its config.
    context_lengths: Mutex<HashMap<(PathBuf, SystemTime), usize>>,
}

impl Library {
    pub(super) fn new(named: Vec<Arc<LoadedModel>>, options: Arc<Options>) -> Self {
        let (opened, opening, context_lengths) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { named, options, opened, opening, context_lengths }
    }

    /// The model with this name among those named at the start; by default the first.
    pub(super) fn named(&self, name: Option<&str>) -> Option<&Arc<LoadedModel>> {
        self.named.iter().find(|model| name.is_none_or(|name| name == model.name))
    }

    /// The runs in the folder by name, including those without a checkpoint.
    fn folder_runs(&self) -> impl Iterator<Item = ListedRun> {
        self.folder_runs_where(|_| true)
    }

    /// The runs in the folder whose names pass the test. A requested name is compared with these; it never becomes a path.
    fn folder_runs_where(&self, test: impl Fn(&str) -> bool) -> impl Iterator<Item = ListedRun> {
        let entries = self.options.folder.iter().flat_map(fs::read_dir).flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok().map(|name| (name, entry.path()));
        let mut found: Vec<_> =
            entries.filter_map(name).filter(|(name, _)| !name.starts_with('.') && test(name)).collect();
        found.sort_unstable();
        found.into_iter().filter_map(|(name, path)| Some(ListedRun::new(name, RunDir::open(&path).ok()?)))
    }

    pub(super) fn loaded(&self) -> Vec<Arc<LoadedModel>> {
        let opened = self.opened().iter().map(|(_, model)| model.clone()).collect::<Vec<_>>();
        self.named.iter().cloned().chain(opened).collect()
    }

    pub(super) fn runs(&self) -> Vec<ListedRun> {
        let named = self.named.iter();
        let named = named.filter_map(|model| Some(ListedRun::new(model.name.clone(), model.run.clone()?)));
        named.chain(self.folder_runs()).collect()
    }

    pub(super) fn run(&self, name: &str) -> Result<ListedRun, ApiError> {
        let named = self.named.iter().find(|model| model.name == name);
        let named = named.and_then(|model| Some(ListedRun::new(name.to_owned(), model.run.clone()?)));
        named.or_else(|| self.folder_runs_where(|found| found == name).next()).ok_or_else(|| self.no_model(name))
    }

    pub(super) fn no_model(&self, name: &str) -> ApiError {
        let models = self.models();
        let known: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        let message = format!("there is no model `{}`; there is {}", echoed(name), known.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found").param("model")
    }

    pub(super) fn models(&self) -> Vec<ListedModel> {
        let listed = |model: &Arc<LoadedModel>| {
            ListedModel::new(model.name.clone(), model.created_unix_s, model.context_length())
        };
        let named = self.named.iter().map(listed);
        named.chain(self.folder_models()).collect()
    }

    /// The models of the folder. A config is read again only when it changes.
    fn folder_models(&self) -> Vec<ListedModel> {
        let mut known = self.context_lengths.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = HashMap::new();
        let of_run = |run: ListedRun| {
            let (_, time) = run.checkpoint?;
            let key = (run.run.root().to_owned(), run.run.config_time()?);
            let context_length = match known.get(&key) {
                Some(context_length) => *context_length,
                None => run.run.config().ok()?.model.context_length,
            };
            found.insert(key, context_length);
            Some(ListedModel::new(run.name, unix_s(time), context_length))
        };
        let models = self.folder_runs().filter_map(of_run).collect();
        *known = found;
        models
    }

    /// The model with this name at its current checkpoint; by default the first model.
    pub(super) fn model(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
        if let Some(model) = self.named(name) {
            return Ok(model.clone());
        }
        let meant = self.unopened(name)?;
        if let Some(model) = self.take_opened(&meant) {
            return Ok(model);
        }
        // Another request may have opened it in the meantime.
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = self.take_opened(&meant) {
            return Ok(model);
        }
        let failed = |why| ApiError::unavailable(format!("`{}` cannot be opened: {why}", meant.name));
        let (model, n_slots) = (self.options.open)(&meant.path).map_err(failed)?;
        let Options { slots, program, render, .. } = &*self.options;
        let slots = Slots { n: n_slots, ..*slots };
        let started = LoadedModel::start(Model { name: meant.name.clone(), ..model }, slots, program, *render);
        let model = started.map_err(|error| failed(error.to_string()))?.remove(0); // it has no adapters
        let mut opened = self.opened();
        // A model of an earlier checkpoint, or the least recently used one, finishes its sequences.
        let mut old: Vec<_> = opened.extract_if(.., |(other, _)| other.name == meant.name).collect();
        if opened.len() >= MAX_OPENED {
            old.push(opened.remove(0));
        }
        opened.push((meant, model.clone()));
        drop(opened); // before `old`, whose drop may take a moment
        Ok(model)
    }

    /// The folder's run with this name, by default its first one; or a checkpoint that a run keeps, `RUN/step-N`.
    fn unopened(&self, name: Option<&str>) -> Result<Snapshot, ApiError> {
        let mut runs = self.folder_runs_where(|found| name.is_none_or(|name| name == found));
        if let Some(ListedRun { name, run, checkpoint: Some((checkpoint, made)) }) =
            runs.find(|run| run.checkpoint.is_some())
        {
            return Ok(Snapshot { name, path: run.root().to_owned(), checkpoint, made });
        }
        if let Some((run, step)) = name.and_then(|name| name.rsplit_once('/')) {
            let kept = self.run(run).ok().and_then(|run| run.run.kept().ok()).unwrap_or_default();
            let is_meant = |checkpoint: &PathBuf| checkpoint.file_name().is_some_and(|name| name == step);
            let found = kept.into_iter().map(|(_, checkpoint)| checkpoint).find(is_meant).and_then(with_time);
            if let Some((checkpoint, made)) = found {
                return Ok(Snapshot { name: format!("{run}/{step}"), path: checkpoint.clone(), checkpoint, made });
            }
        }
        Err(self.no_model(name.unwrap_or_default()))
    }

    /// The model of a checkpoint if it is open; counts as a use.
    fn take_opened(&self, meant: &Snapshot) -> Option<Arc<LoadedModel>> {
        let mut opened = self.opened();
        opened.retain(|(_, model)| model.queue.is_open()); // one whose thread has ended is opened again
        let at = opened.iter().position(|(snapshot, _)| snapshot == meant)?;
        opened[at..].rotate_left(1);
        opened.last().map(|(_, model)| model.clone())
    }

    fn opened(&self) -> MutexGuard<'_, Vec<(Snapshot, Arc<LoadedModel>)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
