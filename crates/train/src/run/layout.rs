//! The names of the files of a run directory, and the paths that name a run or a checkpoint.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::{RunError, cannot_read, cannot_write};
use crate::config::Config;
use tinderbox_model::disk::write_atomically;
pub(crate) use tinderbox_model::tokenizer::TOKENIZER_CONFIG;

/// The config as resolved.
pub const CONFIG: &str = "config.toml";
/// The tokenizer, loadable by the `tokenizers` library.
pub const TOKENIZER: &str = "tokenizer.json";
pub(crate) const METRICS: &str = "metrics.jsonl";
pub(crate) const TIMINGS: &str = "timings.jsonl";
pub(crate) const HEAD_METRICS: &str = "head_metrics.jsonl";
pub(crate) const SAMPLES: &str = "samples.txt";
/// The effect of a fine-tuning.
pub(super) const BEFORE_AND_AFTER: &str = "before-and-after.json";
/// The text that the terminal showed.
pub const TRAIN_LOG: &str = "train.log";
/// The page of the run.
pub const REPORT: &str = "report.html";
/// The picture of the losses.
pub const LOSS_SVG: &str = "loss.svg";
/// The picture of the learning rate.
pub const LEARNING_RATE_SVG: &str = "learning-rate.svg";
/// The picture of the heads.
pub const HEADS_SVG: &str = "heads.svg";
pub(crate) const TENSORBOARD: &str = "tensorboard";
pub(super) const CHECKPOINTS: &str = "checkpoints";
pub(super) const BEST: &str = "best";
pub(super) const LAST: &str = "last";
pub(super) const LOCK: &str = ".lock";

pub(super) const MODEL: &str = "model.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "state.json";
/// The runs whose adapters need the checkpoint.
pub(super) const NEEDED_BY: &str = "needed-by";
/// Every file of a checkpoint.
pub(super) const FILES: [&str; 4] = [MODEL, OPTIMIZER, STATE, NEEDED_BY];

/// Everything that `--overwrite` removes, the config last. The lock file stays.
pub(super) const CONTENTS: [&str; 17] = [
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    METRICS,
    TIMINGS,
    HEAD_METRICS,
    SAMPLES,
    BEFORE_AND_AFTER,
    TRAIN_LOG,
    REPORT,
    LOSS_SVG,
    LEARNING_RATE_SVG,
    HEADS_SVG,
    TENSORBOARD,
    CHECKPOINTS,
    BEST,
    LAST,
];

/// The default run directory, `runs/NAME`, with NAME from the config's file name.
pub fn default_dir(config: impl AsRef<Path>) -> PathBuf {
    let config = config.as_ref();
    Path::new("runs").join(config.file_stem().unwrap_or(config.as_os_str()))
}

/// The directory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// The directory at `root`, which may not hold a run yet.
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The run at `root`.
    pub fn open(root: &Path) -> Result<Self, RunError> {
        match root.join(CONFIG).is_file() {
            true => {
                let run = Self::at(root);
                run.check_kinds()?;
                Ok(run)
            }
            false => Err(match locate_checkpoint(root) {
                Some(Ok(Located { run, .. })) if root.exists() => {
                    RunError::IsCheckpoint { path: root.to_owned(), run: run.root }
                }
                _ if root.exists() => RunError::NotARun(root.to_owned()),
                _ => not_found(root),
            }),
        }
    }

    /// Rejects devices and pipes, also behind links: in a run received from others, reading one could take forever.
    fn check_kinds(&self) -> Result<(), RunError> {
        let is_other = |path: &PathBuf| path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir());
        self.contents().into_iter().find(is_other).map_or(Ok(()), |path| Err(RunError::NotAFile(path)))
    }

    /// Rejects files that are links: in a run received from others they could direct writes anywhere.
    pub(crate) fn check_no_links(&self) -> Result<(), RunError> {
        self.contents().into_iter().find(|path| path.is_symlink()).map_or(Ok(()), |path| Err(RunError::Link(path)))
    }

    /// The files and folders of the run, two levels deep, each folder before what is in it. One that is missing or
    /// unreadable is an error where it is needed.
    fn contents(&self) -> Vec<PathBuf> {
        fn list(path: PathBuf, levels: usize, found: &mut Vec<PathBuf>) {
            let entries = if levels > 0 { fs::read_dir(&path).ok() } else { None };
            found.push(path);
            for entry in entries.into_iter().flatten().flatten() {
                list(entry.path(), levels - 1, found);
            }
        }
        let mut found = Vec::new();
        for name in CONTENTS {
            list(self.join(name), 2, &mut found);
        }
        found
    }

    /// The path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The run's config, as resolved when the run began or was last resumed.
    pub fn config(&self) -> Result<Config, RunError> {
        Ok(Config::load_saved(&self.join(CONFIG))?)
    }

    /// The time of the last change of the run's config; `None` if the system does not report it.
    pub fn config_time(&self) -> Option<SystemTime> {
        fs::metadata(self.join(CONFIG)).and_then(|it| it.modified()).ok()
    }

    /// Replaces the run's config.
    pub fn write_config(&self, config: &Config) -> Result<(), RunError> {
        self.replace(CONFIG, &config.to_toml())
    }

    /// The directory of the checkpoint after `step` updates.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        self.join(CHECKPOINTS).join(checkpoint_name(step))
    }

    /// Makes the checkpoint of `step` the run's best.
    pub fn set_best(&self, step: usize) -> Result<(), RunError> {
        self.write_pointer(BEST, step)
    }

    /// The checkpoint that the run resumes from.
    pub fn last(&self) -> Result<PathBuf, RunError> {
        self.read_pointer(LAST)
    }

    /// The best checkpoint of the run, or the last one if there were no evaluations.
    pub fn best(&self) -> Result<PathBuf, RunError> {
        match self.read_pointer(BEST) {
            Err(RunError::NoCheckpoint(_)) => self.last(),
            result => result,
        }
    }

    pub(super) fn write_pointer(&self, name: &str, step: usize) -> Result<(), RunError> {
        self.replace(name, &format!("{}\n", checkpoint_name(step)))
    }

    pub(super) fn replace(&self, name: &str, text: &str) -> Result<(), RunError> {
        let path = self.join(name);
        write_atomically(&path, text.as_bytes()).map_err(cannot_write(&path))
    }

    pub(super) fn read_pointer(&self, name: &str) -> Result<PathBuf, RunError> {
        let path = self.join(name);
        if !path.is_file() {
            return Err(RunError::NoCheckpoint(self.root.clone()));
        }
        let text = fs::read_to_string(&path).map_err(cannot_read(&path))?;
        let name = Path::new(text.trim());
        let dir = self.join(CHECKPOINTS).join(name);
        let is_name = name.components().eq([Component::Normal(name.as_os_str())]); // it leads nowhere else
        if is_name && dir.is_dir() && step_of(&dir).is_some() {
            return Ok(dir);
        }
        let reason = format!("it names `{}`, which is not there", text.trim());
        Err(RunError::Pointer { path, reason })
    }

    /// The checkpoints that the run has now, with their steps, in order of step.
    pub fn kept(&self) -> Result<Vec<(usize, PathBuf)>, RunError> {
        steps_in(&self.checkpoints())
    }

    pub(super) fn checkpoints(&self) -> PathBuf {
        self.join(CHECKPOINTS)
    }
}

/// A checkpoint and its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The run.
    pub run: RunDir,
    /// The checkpoint's directory.
    pub checkpoint: PathBuf,
}

/// Finds the checkpoint that a user names by a run directory (its best one), its `best` or `last`, or one of its
/// `checkpoints/step-N`.
pub fn locate(path: &Path) -> Result<Located, RunError> {
    if let Some(located) = locate_checkpoint(path) {
        return located;
    }
    let run = RunDir::open(path)?;
    let checkpoint = run.best()?;
    Ok(Located { run, checkpoint })
}

/// The checkpoint at a path that has the form of one; `None` for any other path.
fn locate_checkpoint(path: &Path) -> Option<Result<Located, RunError>> {
    let name = path.file_name().and_then(|name| name.to_str());
    if let (Some(BEST | LAST), Some(parent)) = (name, ancestor(path, 1))
        && !path.is_dir()
    {
        return Some(RunDir::open(&parent).and_then(|run| {
            let checkpoint = if name == Some(BEST) { run.best() } else { run.last() }?;
            Ok(Located { run, checkpoint })
        }));
    }
    let step = step_of(path)?;
    let is_in_checkpoints = std::path::absolute(path)
        .is_ok_and(|path| path.parent().and_then(Path::file_name).is_some_and(|folder| folder == CHECKPOINTS));
    let root = ancestor(path, 2).filter(|_| is_in_checkpoints)?;
    Some(RunDir::open(&root).and_then(|run| {
        let padded = run.checkpoint(step); // `step-500` means `step-000500`
        let checkpoint = [path.to_owned(), padded].into_iter().find(|path| path.is_dir());
        Ok(Located { run, checkpoint: checkpoint.ok_or_else(|| not_found(path))? })
    }))
}

/// The run at `path`, or the run of the checkpoint that `path` names.
pub fn open_or_locate(path: &Path) -> Result<RunDir, RunError> {
    RunDir::open(path).or_else(|error| locate(path).map(|located| located.run).map_err(|_| error))
}

/// The directory `n` levels above `path`, in the working directory's path if `path` has fewer levels.
fn ancestor(path: &Path, n: usize) -> Option<PathBuf> {
    let above = |path: &Path| {
        let above = path.ancestors().nth(n)?;
        (!above.as_os_str().is_empty()).then(|| above.to_owned())
    };
    above(path).or_else(|| above(&std::path::absolute(path).ok()?))
}

/// Whether `path` is an existing file of a run or of one of its checkpoints, other than its report and pictures, which
/// can be drawn again.
pub fn is_part_of_run(path: &Path) -> bool {
    const DRAWN: [&str; 4] = [REPORT, LOSS_SVG, LEARNING_RATE_SVG, HEADS_SVG];
    let Ok(path) = path.canonicalize() else { return false };
    path.ancestors().skip(1).any(|root| {
        let within = path.strip_prefix(root).ok().and_then(|within| within.components().next());
        let is_kept = |name: &&str| within.is_some_and(|within| within.as_os_str() == *name) && !DRAWN.contains(name);
        CONTENTS.iter().any(is_kept) && is_run(root)
    })
}

/// Whether the files of a folder are those of a run: other programs use a `config.toml`, too.
pub(super) fn is_run(root: &Path) -> bool {
    let config = root.join(CONFIG);
    let text = if config.is_file() { fs::read_to_string(config).unwrap_or_default() } else { String::new() };
    let config: toml::Table = toml::from_str(&text).unwrap_or_default();
    let has_sections = ["model", "train"].iter().all(|section| config.get(*section).is_some_and(toml::Value::is_table));
    has_sections && (root.join(LOCK).is_file() || root.join(CHECKPOINTS).is_dir())
}

/// The error for a missing path: with the checkpoint that is meant by `RUN/step-N`, or else with the runs or checkpoints
/// beside it.
fn not_found(path: &Path) -> RunError {
    let meant = ancestor(path, 1).zip(step_of(path)).map(|(root, step)| RunDir { root }.checkpoint(step));
    if let Some(meant) = meant.filter(|meant| meant.is_dir()) {
        return RunError::NotFound { path: path.to_owned(), hint: format!("did you mean `{}`?", meant.display()) };
    }
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
    RunError::NotFound { path: path.to_owned(), hint }
}

fn checkpoint_name(step: usize) -> String {
    format!("step-{step:06}")
}

/// The steps of the checkpoints in a folder, in order, with their directories.
pub(super) fn steps_in(folder: &Path) -> Result<Vec<(usize, PathBuf)>, RunError> {
    let entries =
        fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(cannot_read(folder))?;
    let mut steps: Vec<_> = entries.iter().filter_map(|entry| Some((step_of(&entry.path())?, entry.path()))).collect();
    steps.sort();
    Ok(steps)
}

/// The step of a checkpoint's directory; `None` for any other name.
pub(super) fn step_of(path: &Path) -> Option<usize> {
    let digits = path.file_name()?.to_str()?.strip_prefix("step-")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}
