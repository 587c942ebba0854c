//! The directory of a run: what lies where, and what a user may call it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::{read_text, remove_dir, write_atomically};
use super::{CheckpointError, Saved};
use crate::config::Config;
use crate::tokenizer::Tokenizer;

const CONFIG: &str = "config.toml";
const TOKENIZER: &str = "tokenizer.json";
const CHECKPOINTS: &str = "checkpoints";
const BEST: &str = "best";
const LAST: &str = "last";
const LOCK: &str = ".lock";

/// How often, and how far apart, a lock is asked for: [`RunDir::is_busy`] holds it for a moment.
const LOCK_ATTEMPTS: usize = 3;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Everything that a run writes, and so all that replacing one removes.
const CONTENTS: [&str; 15] = [
    CONFIG,
    TOKENIZER,
    "metrics.jsonl",
    "timings.jsonl",
    "head_metrics.jsonl",
    "samples.txt",
    "train.log",
    "report.html",
    "loss.svg",
    "learning-rate.svg",
    "heads.svg",
    "tensorboard",
    CHECKPOINTS,
    BEST,
    LAST,
];

/// The directory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// Says whether a new run may be made at `root`, without touching anything.
    ///
    /// # Errors
    /// If a run is there and may not be replaced, or anything that is not a run.
    pub fn check_new(root: &Path, overwrite: bool) -> Result<(), CheckpointError> {
        let failed = |source| CheckpointError::Read { path: root.to_owned(), source };
        let mut entries = match fs::read_dir(root) {
            Ok(entries) => entries.filter(|entry| !matches!(entry, Ok(e) if e.file_name() == LOCK)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        match entries.next().transpose().map_err(failed)? {
            None => Ok(()),
            Some(_) if !root.join(CONFIG).is_file() => {
                Err(CheckpointError::Foreign(root.to_owned()))
            }
            Some(_) if overwrite => Ok(()),
            Some(_) => Err(CheckpointError::Exists(root.to_owned())),
        }
    }

    /// Makes the directory of a new run, in place of an old one if that is wanted.
    ///
    /// # Errors
    /// As [`RunDir::check_new`], or if it cannot be written.
    pub fn create(
        root: &Path,
        overwrite: bool,
        config: &Config,
        tokenizer: &Tokenizer,
    ) -> Result<Self, CheckpointError> {
        Self::check_new(root, overwrite)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CheckpointError::Write { path, source }
        };
        // By its config a directory is known as a run's, and can be overwritten, even where this ends halfway.
        for name in CONTENTS.into_iter().filter(|name| *name != CONFIG) {
            let path = root.join(name);
            match path.symlink_metadata() {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(_) => continue, // it is not there
            }
            .map_err(failed(&path))?;
        }
        fs::create_dir_all(root).map_err(failed(root))?;
        let run = Self { root: root.to_owned() };
        run.write_config(config)?;
        write_atomically(&root.join(TOKENIZER), tokenizer.to_json().as_bytes())?;
        let checkpoints = root.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(failed(&checkpoints))?;
        Ok(run)
    }

    /// Keeps other processes from training in `root` for as long as what is returned lives. Makes the
    /// directory where it is not there yet.
    ///
    /// # Errors
    /// If another process trains there, or nothing can be written there.
    pub fn lock(root: &Path) -> Result<fs::File, CheckpointError> {
        let path = root.join(LOCK);
        let opened = fs::create_dir_all(root).and_then(|()| fs::File::create(&path));
        let file = opened.map_err(|source| CheckpointError::Write { path, source })?;
        for _ in 0..LOCK_ATTEMPTS {
            match file.try_lock() {
                Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                // Some network drives know no locks: better no guard than no training.
                Ok(()) | Err(fs::TryLockError::Error(_)) => return Ok(file),
            }
        }
        Err(CheckpointError::Busy(root.to_owned()))
    }

    /// Whether a process trains in this run now. Changes nothing on the disk.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let Ok(file) = fs::File::open(self.root.join(LOCK)) else {
            return false; // nobody ever trained here since it was copied, or nobody may look
        };
        matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
    }

    /// The run that is at `root`.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(root: &Path) -> Result<Self, CheckpointError> {
        if root.join(CONFIG).is_file() {
            return Ok(Self { root: root.to_owned() });
        }
        if root.exists() {
            return Err(CheckpointError::NotARun(root.to_owned()));
        }
        Err(not_found(root))
    }

    /// Where the run is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file of the run.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The run's config, as resolved when it began or was last resumed.
    ///
    /// # Errors
    /// If it cannot be read, or breaks a rule.
    pub fn config(&self) -> Result<Config, CheckpointError> {
        Ok(Config::load(&self.root.join(CONFIG), &[])?)
    }

    /// Keeps `config` as the run's own.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_config(&self, config: &Config) -> Result<(), CheckpointError> {
        write_atomically(&self.root.join(CONFIG), config.to_toml().as_bytes())
    }

    /// The run's tokenizer.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        Ok(Tokenizer::from_file(&self.root.join(TOKENIZER))?)
    }

    /// The directory of the checkpoint after `step` updates.
    #[must_use]
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        self.root.join(CHECKPOINTS).join(checkpoint_name(step))
    }

    /// Saves a checkpoint, makes it the run's last and, where it is, its best, and removes those that
    /// are no longer kept.
    ///
    /// # Errors
    /// If something cannot be written; whatever was saved before is still there.
    pub fn save(&self, saved: &Saved, keep: usize) -> Result<PathBuf, CheckpointError> {
        let step = saved.state.step;
        let dir = self.checkpoint(step);
        saved.write(&dir)?;
        self.point(LAST, step)?;
        if let Some(best) = saved.state.best.filter(|best| self.checkpoint(best.step).is_dir()) {
            self.point(BEST, best.step)?;
        }
        self.prune(keep, saved.state.best.map(|best| best.step))?;
        Ok(dir)
    }

    /// Makes the checkpoint of `step` the run's best.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn set_best(&self, step: usize) -> Result<(), CheckpointError> {
        self.point(BEST, step)
    }

    /// The checkpoint that the run goes on from.
    ///
    /// # Errors
    /// If nothing was saved yet.
    pub fn last(&self) -> Result<PathBuf, CheckpointError> {
        self.pointed(LAST)
    }

    /// The best checkpoint of the run, or the last one where none was evaluated yet.
    ///
    /// # Errors
    /// If nothing was saved yet.
    pub fn best(&self) -> Result<PathBuf, CheckpointError> {
        match self.pointed(BEST) {
            Err(CheckpointError::NoCheckpoint(_)) => self.last(),
            found => found,
        }
    }

    fn point(&self, name: &str, step: usize) -> Result<(), CheckpointError> {
        write_atomically(&self.root.join(name), format!("{}\n", checkpoint_name(step)).as_bytes())
    }

    fn pointed(&self, name: &str) -> Result<PathBuf, CheckpointError> {
        let path = self.root.join(name);
        if !path.is_file() {
            return Err(CheckpointError::NoCheckpoint(self.root.clone()));
        }
        let text = read_text(&path)?;
        let dir = self.root.join(CHECKPOINTS).join(text.trim());
        if dir.is_dir() && step_of(&dir).is_some() {
            return Ok(dir);
        }
        let reason = format!("it names `{}`, which is not there", text.trim());
        Err(CheckpointError::Damaged { path, reason })
    }

    /// Removes all checkpoints but the `keep` latest and the best.
    fn prune(&self, keep: usize, best: Option<usize>) -> Result<(), CheckpointError> {
        let root = self.root.join(CHECKPOINTS);
        let failed = |source| CheckpointError::Read { path: root.clone(), source };
        let mut steps = Vec::new();
        for entry in fs::read_dir(&root).map_err(failed)? {
            steps.extend(step_of(&entry.map_err(failed)?.path()));
        }
        steps.sort_unstable_by(|a, b| b.cmp(a));
        for step in steps.into_iter().skip(keep.max(1)).filter(|step| Some(*step) != best) {
            remove_dir(&self.checkpoint(step))?;
        }
        Ok(())
    }

    /// Removes checkpoints after `step`, which a resumed run makes anew, and what a run that died left
    /// half written.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn forget_after(&self, step: usize) -> Result<(), CheckpointError> {
        let root = self.root.join(CHECKPOINTS);
        let failed = |source| CheckpointError::Write { path: root.clone(), source };
        for entry in fs::read_dir(&root).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if step_of(&path).is_some_and(|found| found > step) {
                remove_dir(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "partial") {
                fs::remove_dir_all(&path).map_err(failed)?;
            }
        }
        if let Err(CheckpointError::Damaged { path, .. }) = self.pointed(BEST) {
            fs::remove_file(&path).map_err(failed)?; // it named one of those
        }
        Ok(())
    }
}

/// A checkpoint that a user named, and the run that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The run.
    pub run: RunDir,
    /// The checkpoint's directory.
    pub checkpoint: PathBuf,
}

/// Finds what a user means by a run: a run directory (its best checkpoint), its `best` or `last`, or
/// one of its `checkpoints/step-N`.
///
/// # Errors
/// If there is no such run or checkpoint.
pub fn locate(path: &Path) -> Result<Located, CheckpointError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    if let (Some(BEST | LAST), Some(parent)) = (name.as_deref(), ancestor(path, 1))
        && !path.is_dir()
    {
        let run = RunDir::open(&parent)?;
        let checkpoint = if name.as_deref() == Some(BEST) { run.best() } else { run.last() }?;
        return Ok(Located { run, checkpoint });
    }
    if let Some(step) = step_of(path)
        && let Some(root) = ancestor(path, 2)
    {
        let run = RunDir::open(&root)?;
        let written_out = run.checkpoint(step); // `step-500` means `step-000500`
        let places = [path.to_owned(), written_out];
        return match places.into_iter().find(|place| place.is_dir()) {
            Some(checkpoint) => Ok(Located { run, checkpoint }),
            None => Err(not_found(path)),
        };
    }
    let run = RunDir::open(path)?;
    let checkpoint = run.best()?;
    Ok(Located { run, checkpoint })
}

/// The directory `n` levels above. From inside a run, `best` and `step-000500` have theirs in the working
/// directory's path.
fn ancestor(path: &Path, n: usize) -> Option<PathBuf> {
    let above = |path: &Path| {
        let above = path.ancestors().nth(n)?;
        (!above.as_os_str().is_empty()).then(|| above.to_owned())
    };
    above(path).or_else(|| above(&std::path::absolute(path).ok()?))
}

/// The error for a path that leads nowhere, with what stands beside it.
fn not_found(path: &Path) -> CheckpointError {
    let siblings = path.parent().and_then(|parent| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let mut names: Vec<String> = fs::read_dir(parent)
            .ok()?
            .flatten()
            .filter(|entry| entry.path().join(CONFIG).is_file() || step_of(&entry.path()).is_some())
            .map(|entry| format!("`{}`", entry.path().display()))
            .collect();
        names.sort();
        (!names.is_empty()).then(|| names.join(", "))
    });
    let hint = match siblings {
        Some(names) => format!("found there: {names}"),
        None => "train one with `tinderbox train CONFIG`".to_owned(),
    };
    CheckpointError::NotFound { path: path.to_owned(), hint }
}

fn checkpoint_name(step: usize) -> String {
    format!("step-{step:06}")
}

/// The step of a checkpoint's directory; none for any other name.
fn step_of(path: &Path) -> Option<usize> {
    let digits = path.file_name()?.to_str()?.strip_prefix("step-")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}
