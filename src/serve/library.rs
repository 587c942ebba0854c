//! The served models: those named at the start, those in a folder of runs, which is listed again for each request, and the
//! checkpoints that their runs keep. All but the named ones are opened on first use.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use super::error::ApiError;
use super::ids::unix_s;
use super::limits::MAX_OPENED;
use super::loaded_model::{LoadedModel, Model};
use super::scheduler::Slots;
use crate::run::{self, RunDir};

/// Opens the model of a run or a checkpoint, or returns the reason why it cannot.
pub type OpenModel = Box<dyn Fn(&Path) -> Result<Model, String> + Send + Sync>;

/// The names in a folder, sorted.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'));
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort_unstable();
    names
}

/// A run shown on the page.
#[derive(Clone, Debug)]
pub(super) struct ListedRun {
    pub(super) name: String,
    pub(super) run: RunDir,
    /// The current checkpoint of the run and its time; `None` before the first.
    pub(super) checkpoint: Option<(PathBuf, SystemTime)>,
}

impl ListedRun {
    /// The run with this name in a folder.
    fn open(folder: &Path, name: String) -> Option<Self> {
        Some(Self::new(name.clone(), RunDir::open(&folder.join(name)).ok()?))
    }

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
#[derive(Debug)]
struct Unopened {
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

/// All served models.
pub(super) struct Library {
    named: Vec<Arc<LoadedModel>>,
    /// A folder whose runs are served too.
    folder: Option<PathBuf>,
    open: OpenModel,
    slots: Slots,
    /// The program that renders chat templates.
    program: PathBuf,
    /// Opened models that were not named, with their checkpoints; the most recently used last.
    opened: Mutex<Vec<(PathBuf, SystemTime, Arc<LoadedModel>)>>,
    /// Held while a model is opened, one at a time.
    opening: Mutex<()>,
    /// Context lengths, by run and time of its config.
    context_lengths: Mutex<HashMap<(PathBuf, SystemTime), usize>>,
}

impl Library {
    pub(super) fn new(
        named: Vec<Arc<LoadedModel>>,
        folder: Option<PathBuf>,
        open: OpenModel,
        slots: Slots,
        program: PathBuf,
    ) -> Self {
        let (opened, opening, context_lengths) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { named, folder, open, slots, program, opened, opening, context_lengths }
    }

    /// The model with this name among those named at the start; by default the first.
    pub(super) fn named(&self, name: Option<&str>) -> Option<&Arc<LoadedModel>> {
        self.named.iter().find(|model| name.is_none_or(|name| name == model.name))
    }

    /// The runs in the folder by name, including those without a checkpoint.
    fn folder_runs(&self) -> impl Iterator<Item = ListedRun> {
        let folder = self.folder.as_deref();
        folder
            .into_iter()
            .flat_map(|folder| names_in(folder).into_iter().filter_map(move |name| ListedRun::open(folder, name)))
    }

    /// The run with this name in the folder. The name is compared with those of all runs; it never becomes a path.
    fn folder_run(&self, name: &str) -> Option<ListedRun> {
        let folder = self.folder.as_deref()?;
        let found = names_in(folder).into_iter().find(|found| found == name)?;
        ListedRun::open(folder, found)
    }

    /// The models in memory.
    pub(super) fn loaded(&self) -> Vec<Arc<LoadedModel>> {
        let opened = self.opened().iter().map(|(.., model)| model.clone()).collect::<Vec<_>>();
        self.named.iter().cloned().chain(opened).collect()
    }

    /// The current runs, by name.
    pub(super) fn runs(&self) -> Vec<ListedRun> {
        let named = self.named.iter();
        let named = named.filter_map(|model| Some(ListedRun::new(model.name.clone(), model.run.clone()?)));
        named.chain(self.folder_runs()).collect()
    }

    /// The run with this name.
    pub(super) fn run(&self, name: &str) -> Result<ListedRun, ApiError> {
        let named = self.named.iter().find(|model| model.name == name);
        let named = named.and_then(|model| Some(ListedRun::new(name.to_owned(), model.run.clone()?)));
        named.or_else(|| self.folder_run(name)).ok_or_else(|| self.no_model(name))
    }

    /// The error for a name that no model has.
    pub(super) fn no_model(&self, name: &str) -> ApiError {
        let models = self.models();
        let known: Vec<&str> = models.iter().map(|model| &*model.id).collect();
        ApiError::no_model(name, &known)
    }

    /// Every model that can be requested now.
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
        let Unopened { name, path, checkpoint, made } = meant;
        let failed = |why| ApiError::unavailable(format!("`{name}` cannot be opened: {why}"));
        let model = (self.open)(&path).map_err(failed)?;
        let started = LoadedModel::start(Model { name: name.clone(), ..model }, self.slots, &self.program);
        let started = started.map_err(|error| failed(error.to_string()))?;
        let model = Arc::new(started.into_iter().next().expect("a model without adapters is one model"));
        let mut opened = self.opened();
        // A model of an earlier checkpoint, or the least recently used one, finishes its sequences.
        let mut old: Vec<_> = opened.extract_if(.., |(.., other)| other.name == name).collect();
        if opened.len() >= MAX_OPENED {
            old.push(opened.remove(0));
        }
        opened.push((checkpoint, made, model.clone()));
        drop(opened); // before `old`, whose drop may take a moment
        Ok(model)
    }

    /// The folder's run with this name, by default its first one; or a checkpoint that a run keeps, `RUN/step-N`.
    fn unopened(&self, name: Option<&str>) -> Result<Unopened, ApiError> {
        let run = match name {
            Some(name) => self.folder_run(name).filter(|run| run.checkpoint.is_some()),
            None => self.folder_runs().find(|run| run.checkpoint.is_some()),
        };
        if let Some(ListedRun { name, run, checkpoint: Some((checkpoint, made)) }) = run {
            return Ok(Unopened { name, path: run.root().to_owned(), checkpoint, made });
        }
        if let Some((run, step)) = name.and_then(|name| name.rsplit_once('/')) {
            let kept = self.run(run).ok().and_then(|run| run.run.kept().ok()).unwrap_or_default();
            let is_meant = |checkpoint: &PathBuf| checkpoint.file_name().is_some_and(|name| name == step);
            let found = kept.into_iter().map(|(_, checkpoint)| checkpoint).find(is_meant).and_then(with_time);
            if let Some((checkpoint, made)) = found {
                return Ok(Unopened { name: format!("{run}/{step}"), path: checkpoint.clone(), checkpoint, made });
            }
        }
        Err(self.no_model(name.unwrap_or_default()))
    }

    /// The model of a checkpoint if it is open; counts as a use.
    fn take_opened(&self, meant: &Unopened) -> Option<Arc<LoadedModel>> {
        let mut opened = self.opened();
        opened.retain(|(.., model)| model.queue.is_open()); // one whose thread has ended is opened again
        let is_it = |(checkpoint, made, model): &(PathBuf, SystemTime, Arc<LoadedModel>)| {
            model.name == meant.name && *checkpoint == meant.checkpoint && *made == meant.made
        };
        let at = opened.iter().position(is_it)?;
        let found = opened.remove(at);
        let model = found.2.clone();
        opened.push(found);
        Some(model)
    }

    fn opened(&self) -> MutexGuard<'_, Vec<(PathBuf, SystemTime, Arc<LoadedModel>)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
