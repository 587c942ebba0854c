//! The models that are served: those named at the start, and those of a folder of runs, which is looked through anew with
//! each request and whose models are opened when they are first asked for.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::ApiError;
use super::hosted::{Hosted, Model};
use super::limits::{MAX_OPENED, MAX_WAITING};
use crate::run::{self, RunDir};

type Open = Box<dyn Fn(&Path) -> Result<Model, String> + Send + Sync>;

/// A folder of runs, each of which is served once it has a checkpoint.
pub struct Folder {
    path: PathBuf,
    open: Open,
}

impl Folder {
    /// The folder at `path`; `open` opens the model of a run in it, or says why it cannot.
    pub fn new(path: PathBuf, open: impl Fn(&Path) -> Result<Model, String> + Send + Sync + 'static) -> Self {
        Self { path, open: Box::new(open) }
    }

    /// The runs in the folder by name, those without a checkpoint as well.
    fn runs(&self) -> Vec<ListedRun> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let run = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
            Some(ListedRun::new(name, RunDir::open(&entry.path()).ok()?))
        };
        let mut runs: Vec<ListedRun> = entries.filter_map(run).collect();
        runs.sort_by(|a, b| a.name.cmp(&b.name));
        runs
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Folder").field(&self.path).finish()
    }
}

/// A run that the page shows.
#[derive(Clone, Debug)]
pub(super) struct ListedRun {
    pub(super) name: String,
    pub(super) run: RunDir,
    /// The checkpoint that the name stands for now, and when it was made; `None` before the first.
    pub(super) checkpoint: Option<(PathBuf, SystemTime)>,
}

impl ListedRun {
    fn new(name: String, run: RunDir) -> Self {
        let checkpoint = run::locate(run.root()).ok().map(|located| located.checkpoint);
        let with_time = |path: PathBuf| Some((fs::metadata(&path).and_then(|it| it.modified()).ok()?, path));
        let checkpoint = checkpoint.and_then(with_time).map(|(time, path)| (path, time));
        Self { name, run, checkpoint }
    }
}

/// A model as `/v1/models` shows it.
#[derive(Debug)]
pub(super) struct ListedModel {
    pub(super) name: String,
    pub(super) created_unix_s: u64,
    pub(super) context_length: usize,
}

/// All models.
#[derive(Debug)]
pub(super) struct Library {
    named: Vec<Arc<Hosted>>,
    folder: Option<Folder>,
    n_places: usize,
    /// Models of the folder with their checkpoints, the one used last at the end.
    opened: Mutex<Vec<(PathBuf, SystemTime, Arc<Hosted>)>>,
    /// Held while a model is opened: one at a time.
    opening: Mutex<()>,
}

impl Library {
    pub(super) fn new(named: Vec<Arc<Hosted>>, folder: Option<Folder>, n_places: usize) -> Self {
        Self { named, folder, n_places, opened: Mutex::default(), opening: Mutex::default() }
    }

    /// Whether finding a model may take as long as opening it.
    pub(super) fn is_slow(&self) -> bool {
        self.folder.is_some()
    }

    /// The models that are in memory.
    pub(super) fn loaded(&self) -> Vec<Arc<Hosted>> {
        let opened = self.opened().iter().map(|(.., model)| model.clone()).collect::<Vec<_>>();
        self.named.iter().cloned().chain(opened).collect()
    }

    /// The runs that there are now, by name.
    pub(super) fn runs(&self) -> Vec<ListedRun> {
        let named = self.named.iter();
        let named = named.filter_map(|model| Some(ListedRun::new(model.name.clone(), model.run.clone()?)));
        named.chain(self.folder.iter().flat_map(Folder::runs)).collect()
    }

    /// The run of a name.
    pub(super) fn run(&self, name: &str) -> Result<ListedRun, ApiError> {
        let runs = self.runs();
        let known: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
        let error = ApiError::no_model(name, &known);
        runs.into_iter().find(|run| run.name == name).ok_or(error)
    }

    /// Every model that could be asked for now.
    pub(super) fn models(&self) -> Vec<ListedModel> {
        let named = self.named.iter().map(|model| ListedModel {
            name: model.name.clone(),
            created_unix_s: model.created_unix_s,
            context_length: model.context_length(),
        });
        let of_run = |run: ListedRun| {
            let (_, time) = run.checkpoint?;
            Some(ListedModel {
                created_unix_s: time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                context_length: run.run.config().ok()?.model.context_length,
                name: run.name,
            })
        };
        named.chain(self.folder.iter().flat_map(Folder::runs).filter_map(of_run)).collect()
    }

    /// The model of a name, or the first one, with the checkpoint that it has now.
    pub(super) fn model(&self, name: Option<&str>) -> Result<Arc<Hosted>, ApiError> {
        let is_meant = |known: &str| name.is_none_or(|name| name == known);
        if let Some(model) = self.named.iter().find(|model| is_meant(&model.name)) {
            return Ok(model.clone());
        }
        let runs: Vec<ListedRun> = self.folder.iter().flat_map(Folder::runs).collect();
        let served = || runs.iter().filter_map(|run| Some((run, run.checkpoint.as_ref()?)));
        let found = served().find(|(run, _)| is_meant(&run.name)).zip(self.folder.as_ref());
        let Some(((run, (checkpoint, time)), folder)) = found else {
            let named = self.named.iter().map(|model| &*model.name);
            let known: Vec<&str> = named.chain(served().map(|(run, _)| &*run.name)).collect();
            return Err(ApiError::no_model(name.unwrap_or_default(), &known));
        };
        if let Some(model) = self.take_opened(&run.name, checkpoint, *time) {
            return Ok(model);
        }
        // Whoever waited here may find it open.
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = self.take_opened(&run.name, checkpoint, *time) {
            return Ok(model);
        }
        let failed = |why| ApiError::unavailable(format!("`{}` cannot be opened: {why}", run.name));
        let model = (folder.open)(run.run.root()).map_err(failed)?;
        let model = Hosted::start(Model { name: run.name.clone(), ..model }, self.n_places, MAX_WAITING);
        let model = Arc::new(model.map_err(|error| failed(error.to_string()))?);
        let mut opened = self.opened();
        // Texts of an earlier checkpoint, or of a model that nobody has used for long, are written to their end.
        opened.retain(|(.., other)| other.name != run.name);
        if opened.len() >= MAX_OPENED {
            opened.remove(0);
        }
        opened.push((checkpoint.clone(), *time, model.clone()));
        Ok(model)
    }

    /// The model of a checkpoint if it is open, which counts as a use.
    fn take_opened(&self, name: &str, checkpoint: &Path, time: SystemTime) -> Option<Arc<Hosted>> {
        let mut opened = self.opened();
        let is_it = |(path, made, model): &(PathBuf, SystemTime, Arc<Hosted>)| {
            model.name == name && path == checkpoint && *made == time
        };
        let at = opened.iter().position(is_it)?;
        let found = opened.remove(at);
        let model = found.2.clone();
        opened.push(found);
        Some(model)
    }

    fn opened(&self) -> MutexGuard<'_, Vec<(PathBuf, SystemTime, Arc<Hosted>)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
