//! The folder of a sweep: its request, and an append-only log from which a killed sweep resumes.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Request, SweepError, SweepPlan};
use crate::run::log::{LogFile, cut_torn_line, read_lines};
use crate::run::{Lock, RunDir};
use tinderbox_model::disk::write_atomically;

const REQUEST: &str = "sweep.json";
const LOG: &str = "log.jsonl";

/// An event in the log of a sweep. Trials count from 0, the base config; seeds from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum Entry {
    /// The base config was measured, and the dimensions of the sweep were fixed.
    Planned(SweepPlan),
    /// A setting was checked and its steps were measured; its runs have `max_steps`.
    Prepared { trial: usize, parameters: u64, step_ms: f64, max_steps: usize },
    /// A setting cannot be trained, or not within the limits.
    LeftOut { trial: usize, reason: String },
    /// A run ended with this loss over the whole validation split.
    Reached { trial: usize, seed: usize, step: usize, bits_per_byte: f64 },
    /// A run ended without a result.
    Failed { trial: usize, seed: usize, reason: String },
}

/// The folder of a sweep, locked against other processes.
#[derive(Debug)]
pub(super) struct Folder {
    log: LogFile,
    _lock: Lock,
}

impl Folder {
    /// Opens the folder of a new sweep, or of the same one interrupted, with the entries of its log.
    pub fn open(root: &Path, request: &Request, overwrite: bool) -> Result<(Self, Vec<Entry>), SweepError> {
        let path = root.join(REQUEST);
        let earlier = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(SweepError::File(path, error)),
            Ok(bytes) => Some(serde_json::from_slice::<Request>(&bytes).ok()),
        };
        if earlier.is_none() && !is_free(root) {
            return Err(SweepError::NotEmpty(root.to_owned()));
        }
        let lock = RunDir::lock(root)?;
        match earlier {
            // Another program's file of that name.
            Some(None) if overwrite && !has_entries(root) => return Err(SweepError::NotEmpty(root.to_owned())),
            Some(_) if overwrite => {
                remove_runs(root)?;
                for name in [REQUEST, LOG, super::PAGE, super::BEST] {
                    remove(fs::remove_file(root.join(name)), &root.join(name))?;
                }
            }
            Some(None) => return Err(SweepError::Damaged(path)),
            Some(Some(earlier)) => {
                let differences = earlier.differences(request);
                if !differences.is_empty() {
                    return Err(SweepError::Other(root.to_owned(), differences));
                }
            }
            None => {}
        }
        let json = serde_json::to_vec_pretty(request).expect("plain data serializes");
        write_atomically(&path, &json).map_err(|error| SweepError::File(path, error))?;
        let path = root.join(LOG);
        cut_torn_line(&path)?; // or the next entry would be appended to it
        let entries = read_lines(&path)?.lines;
        Ok((Self { log: LogFile::open(path)?, _lock: lock }, entries))
    }

    /// Appends an entry, and waits until it is on the disk.
    pub fn append(&mut self, entry: &Entry) -> Result<(), SweepError> {
        self.log.line(entry)?;
        Ok(self.log.sync()?)
    }
}

/// Whether there is nothing at `root` except what a process left that was killed as it started.
fn is_free(root: &Path) -> bool {
    let is_hidden = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    fs::read_dir(root).map_or_else(
        |error| error.kind() == ErrorKind::NotFound,
        |entries| entries.flatten().all(|entry| is_hidden(&entry)),
    )
}

/// Whether the log has an entry, as that of every sweep has soon after it began.
fn has_entries(root: &Path) -> bool {
    read_lines::<Entry>(&root.join(LOG)).is_ok_and(|log| !log.lines.is_empty())
}

/// Removes the runs of a sweep: those that its log names, if nothing but a run wrote in them. Others stay.
fn remove_runs(root: &Path) -> Result<(), SweepError> {
    let entries = read_lines::<Entry>(&root.join(LOG))?.lines;
    let n_seeds = entries.iter().find_map(|entry| match entry {
        Entry::Planned(plan) => Some(plan.n_seeds),
        _ => None,
    });
    let trials = entries.iter().filter_map(|entry| match entry {
        Entry::Prepared { trial, .. } => Some(*trial),
        _ => None,
    });
    let seeds = 0..n_seeds.unwrap_or(1);
    let runs: Vec<_> =
        trials.flat_map(|trial| seeds.clone().map(move |seed| root.join(super::run_name(trial, seed)))).collect();
    runs.iter().try_for_each(|run| RunDir::check_removable(run))?;
    runs.iter().try_for_each(|run| RunDir::remove(run))?;
    fs::remove_dir(root.join(super::RUNS)).ok(); // unless there are others
    Ok(())
}

fn remove(result: io::Result<()>, path: &Path) -> Result<(), SweepError> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(SweepError::File(path.to_owned(), error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_log_line_is_dropped_and_other_sweep_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a");
        let request = Request { space: vec!["model.bias=true,false".to_owned()], ..Request::default() };
        let entry = |trial| Entry::LeftOut { trial, reason: "too large".to_owned() };
        let (mut folder, entries) = Folder::open(&root, &request, false).unwrap();
        assert_eq!(entries, []);
        folder.append(&entry(1)).unwrap();
        assert!(matches!(Folder::open(&root, &request, false), Err(SweepError::Run(_))), "it is busy");
        drop(folder);
        let path = root.join(LOG);
        let log = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{log}{{\"event\":\"left_")).unwrap();
        let (mut folder, entries) = Folder::open(&root, &request, false).unwrap();
        assert_eq!(entries, [entry(1)]);
        folder.append(&entry(2)).unwrap();
        drop(folder);
        assert_eq!(Folder::open(&root, &request, false).unwrap().1, [entry(1), entry(2)]);
        // The name of the config, its comments and its layout do not change what is tried.
        let base = |config: &str, name: &str| Request {
            config: config.to_owned(),
            config_name: name.into(),
            ..request.clone()
        };
        let commented = base("# Mine.\n[train]\n\nmax_steps = 9 # few\n", "./my.toml");
        let plain = base("[train]\nmax_steps = 9\n", "my.toml");
        assert_eq!(commented.differences(&plain), "");
        let longer = base("[train]\nmax_steps = 10\n", "my.toml");
        assert_eq!(commented.differences(&longer), "the base config");
        let renamed = Request { config_name: "./my.toml".into(), ..request.clone() };
        assert_eq!(Folder::open(&root, &renamed, false).unwrap().1, [entry(1), entry(2)]);
        let other = Request { n_seeds: 3, ..request.clone() };
        let error = Folder::open(&root, &other, false).unwrap_err().to_string();
        assert!(error.contains("--seeds"), "{error}");
        let planned = SweepPlan { base_s: 1.0, full_s: 1.0, n_settings: 2, n_seeds: 2, jobs: 1 };
        let prepared = Entry::Prepared { trial: 1, parameters: 1, step_ms: 1.0, max_steps: 1 };
        let mut folder = Folder::open(&root, &request, false).unwrap().0;
        folder.append(&Entry::Planned(planned)).unwrap();
        folder.append(&prepared).unwrap();
        drop(folder);
        let names = ["trial-001", "trial-001-seed-1", "trial-000", "trial-001-seed-2", "trial-notes", "mine"];
        let runs = names.map(|run| root.join(super::super::RUNS).join(run));
        for run in &runs {
            fs::create_dir_all(run.join("checkpoints")).unwrap();
            fs::write(run.join("config.toml"), "[model]\n[train]\n").unwrap();
        }
        let notes = runs[0].join("notes.txt");
        fs::write(&notes, "of the user").unwrap();
        let refused = Folder::open(&root, &other, true).unwrap_err().to_string();
        assert!(refused.contains("no run wrote them:\n  - notes.txt"), "{refused}");
        assert!(runs.iter().all(|run| run.join("config.toml").is_file()), "nothing is changed");
        assert!(Folder::open(&root, &request, false).is_ok(), "nor is its request");
        fs::remove_file(notes).unwrap();
        assert_eq!(Folder::open(&root, &other, true).unwrap().1, []);
        assert_eq!(runs.map(|run| run.exists()), [false, false, true, true, true, true], "only its own are removed");
        fs::write(root.join(REQUEST), "{\"of\": \"another program\"}").unwrap();
        assert!(matches!(Folder::open(&root, &request, true), Err(SweepError::NotEmpty(_))));
        fs::write(dir.path().join("a file"), "").unwrap();
        assert!(matches!(Folder::open(dir.path(), &request, true), Err(SweepError::NotEmpty(_))));
    }
}
