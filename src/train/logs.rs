//! The files that a run writes line by line: metrics, timings, samples.
//!
//! `metrics.jsonl` and `samples.txt` hold only what the seed and the config decide, so that two runs of
//! them can be compared byte by byte; what a clock says is in `timings.jsonl`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TrainError;
use super::observer::{Evaluation, Logged};
use crate::checkpoint::{RunDir, write_atomically};

/// What stands before and after the step in the heading of a sample.
const HEADING: [&str; 2] = ["===== step ", " ====="];

#[derive(Debug)]
pub(super) struct Logs {
    metrics: LogFile,
    timings: LogFile,
    samples: LogFile,
}

impl Logs {
    /// Opens the logs of a run, without what they say about steps after `step`.
    pub(super) fn open(run: &RunDir, step: usize) -> Result<Self, TrainError> {
        for name in ["metrics.jsonl", "timings.jsonl"] {
            cut(&run.join(name), |line| {
                line_step(line).is_some_and(|at| at > step)
            })?;
        }
        cut(&run.join("samples.txt"), |line| {
            heading_step(line).is_some_and(|at| at > step)
        })?;
        cut(&run.join("train.log"), |line| {
            log_step(line).is_some_and(|at| at > step)
        })?;
        Ok(Self {
            metrics: LogFile::open(run.join("metrics.jsonl"))?,
            timings: LogFile::open(run.join("timings.jsonl"))?,
            samples: LogFile::open(run.join("samples.txt"))?,
        })
    }

    pub(super) fn logged(&mut self, logged: &Logged, tokens: u64) -> Result<(), TrainError> {
        let Logged {
            step,
            train_loss,
            learning_rate,
            gradient_norm,
            median_step_ms,
            tokens_per_s,
        } = logged;
        self.metrics.line(&json!({
            "step": step, "tokens": tokens, "train_loss": train_loss,
            "learning_rate": learning_rate, "gradient_norm": gradient_norm,
        }))?;
        self.timings.line(&json!({
            "step": step, "median_step_ms": median_step_ms, "tokens_per_s": tokens_per_s,
        }))
    }

    pub(super) fn evaluated(
        &mut self,
        evaluation: &Evaluation,
        tokens: u64,
    ) -> Result<(), TrainError> {
        let Evaluation {
            step,
            train_loss,
            val_loss,
            val_bits_per_byte,
            is_best,
        } = evaluation;
        self.metrics.line(&json!({
            "step": step, "tokens": tokens, "train_loss_estimate": train_loss,
            "val_loss_estimate": val_loss, "val_bits_per_byte_estimate": val_bits_per_byte,
            "is_best": is_best,
        }))
    }

    pub(super) fn finished(
        &mut self,
        step: usize,
        tokens: u64,
        val_loss: f64,
        val_bits_per_byte: f64,
    ) -> Result<(), TrainError> {
        self.metrics.line(&json!({
            "step": step, "tokens": tokens, "val_loss": val_loss,
            "val_bits_per_byte": val_bits_per_byte,
        }))
    }

    /// Waits until all lines are on the disk.
    pub(super) fn sync(&self) -> Result<(), TrainError> {
        [&self.metrics, &self.timings, &self.samples]
            .into_iter()
            .try_for_each(LogFile::sync)
    }

    /// Whether the run in this directory said how it ended, after `step`.
    pub(super) fn says_end(run: &RunDir, step: usize) -> bool {
        let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .any(|line| line["step"].as_u64() == Some(step as u64) && line["val_loss"].is_number())
    }

    pub(super) fn sampled(&mut self, step: usize, text: &str) -> Result<(), TrainError> {
        let [before, after] = HEADING;
        self.samples
            .write(&format!("{before}{step}{after}\n{text}\n\n"))
    }
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn open(path: PathBuf) -> Result<Self, TrainError> {
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(TrainError::Log { path, source }),
        }
    }

    fn sync(&self) -> Result<(), TrainError> {
        let failed = |source| TrainError::Log {
            path: self.path.clone(),
            source,
        };
        self.file.sync_data().map_err(failed)
    }

    fn line(&mut self, value: &Value) -> Result<(), TrainError> {
        self.write(&format!("{value}\n"))
    }

    fn write(&mut self, text: &str) -> Result<(), TrainError> {
        self.file
            .write_all(text.as_bytes())
            .map_err(|source| TrainError::Log {
                path: self.path.clone(),
                source,
            })
    }
}

/// Cuts a text file off before the first line that `is_later` holds for.
fn cut(path: &Path, is_later: impl Fn(&str) -> bool) -> Result<(), TrainError> {
    let text = match fs::read(path) {
        // A crash can leave half a line; what a lossy reading changes is cut or kept line by line.
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(TrainError::Log {
                path: path.to_owned(),
                source,
            });
        }
    };
    let kept: usize = text
        .split_inclusive('\n')
        .take_while(|line| !is_later(line))
        .map(str::len)
        .sum();
    if kept < text.len() {
        write_atomically(path, &text.as_bytes()[..kept])?;
    }
    Ok(())
}

/// The step of a line of JSON; a line that a crash cut short counts as later than any.
fn line_step(line: &str) -> Option<usize> {
    let Ok(value) = serde_json::from_str::<Value>(line) else {
        return Some(usize::MAX);
    };
    value["step"]
        .as_u64()
        .and_then(|step| usize::try_from(step).ok())
}

fn heading_step(line: &str) -> Option<usize> {
    let [before, after] = HEADING;
    line.trim_end()
        .strip_prefix(before)?
        .strip_suffix(after)?
        .parse()
        .ok()
}

/// The step of a line of the terminal's log, which begins `step 500/2000`.
fn log_step(line: &str) -> Option<usize> {
    let (step, _) = line.strip_prefix("step")?.trim_start().split_once('/')?;
    step.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_the_step_is_cut() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("log");
        let cut_text = |text: &str, is_later: fn(&str) -> bool| {
            fs::write(&path, text).expect("written");
            cut(&path, is_later).expect("cut");
            fs::read_to_string(&path).expect("read")
        };
        let jsonl = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n";
        assert_eq!(
            cut_text(jsonl, |line| line_step(line).is_some_and(|at| at > 2)),
            "{\"step\":1}\n{\"step\":2}\n"
        );
        assert_eq!(
            cut_text("{\"step\":1}\n{\"st", |line| line_step(line) > Some(9)),
            "{\"step\":1}\n"
        );
        let samples = "===== step 5 =====\nstep 9 is\n\n===== step 10 =====\nb\n\n";
        assert_eq!(
            cut_text(samples, |line| heading_step(line).is_some_and(|at| at > 5)),
            "===== step 5 =====\nstep 9 is\n\n"
        );
        assert_eq!(
            cut_text(
                "hello\nstep  50/200  loss 1\nstep 100/200  loss 1\n",
                |line| { log_step(line).is_some_and(|at| at > 50) }
            ),
            "hello\nstep  50/200  loss 1\n"
        );
    }
}
