//! The files that a run writes line by line: metrics, timings, samples, what heads do, and events for
//! `TensorBoard`.
//!
//! `metrics.jsonl`, `head_metrics.jsonl` and `samples.txt` hold only what the seed and the config decide, so that two runs of
//! them can be compared byte by byte; what a clock says, and which machine it was, is in `timings.jsonl`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TrainError;
use super::observer::{Evaluation, Logged, Started, Summary};
use crate::config::TrainConfig;
use crate::inspect::ScoredHeads;
use crate::run::samples::{HEADING, heading_step};
use crate::run::{RunDir, tensorboard, unix_s, write_atomically};

/// The log of what heads do.
const HEADS: &str = "head_metrics.jsonl";

#[derive(Debug)]
pub(super) struct Logs {
    metrics: LogFile,
    timings: LogFile,
    samples: LogFile,
    /// None where the config does not ask for it.
    heads: Option<LogFile>,
    /// None where the config does not ask for it.
    events: Option<LogFile>,
    /// What processes before this one took for the steps up to here.
    before: Elapsed,
}

/// How long a process, or a whole run, trains already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elapsed {
    /// Seconds of the steps alone.
    pub train_s: f64,
    /// Seconds of everything.
    pub wall_s: f64,
}

impl Elapsed {
    fn plus(self, more: Self) -> Self {
        Self { train_s: self.train_s + more.train_s, wall_s: self.wall_s + more.wall_s }
    }
}

impl Logs {
    /// Opens the logs of a run, without what they say about steps after `step`; those of heads and of
    /// `TensorBoard` where `config` asks for them.
    pub(super) fn open(
        run: &RunDir,
        step: usize,
        config: &TrainConfig,
    ) -> Result<Self, TrainError> {
        for name in ["metrics.jsonl", "timings.jsonl", HEADS] {
            cut(&run.join(name), |line| line_step(line).is_some_and(|at| at > step))?;
        }
        cut(&run.join("samples.txt"), |line| heading_step(line).is_some_and(|at| at > step))?;
        cut(&run.join("train.log"), |line| log_step(line).is_some_and(|at| at > step))?;
        let events = run.join(tensorboard::FILE);
        cut_events(&events, step)?;
        Ok(Self {
            before: elapsed_before(&run.join("timings.jsonl"))?,
            metrics: LogFile::open(run.join("metrics.jsonl"))?,
            timings: LogFile::open(run.join("timings.jsonl"))?,
            samples: LogFile::open(run.join("samples.txt"))?,
            heads: match config.head_metrics {
                true => Some(LogFile::open(run.join(HEADS))?),
                false => None,
            },
            events: match config.tensorboard {
                true => Some(open_events(events)?),
                false => None,
            },
        })
    }

    /// A process begins to train.
    pub(super) fn began(&mut self, started: &Started) -> Result<(), TrainError> {
        let Started {
            run_dir: _,
            sources: _,
            device,
            matmul_precision,
            parameters,
            train_tokens,
            val_tokens,
            val_bytes,
            vocab_size,
            step,
            max_steps: _,
            tokens_per_step: _,
            resumed: _,
            from,
        } = started;
        self.timings.line(&json!({"step": step, "session": {
            "began_unix_s": unix_s(), "device": device, "matmul_precision": matmul_precision,
            "parameters": parameters, "vocab_size": vocab_size, "train_tokens": train_tokens, "val_tokens": val_tokens, "val_bytes": val_bytes,
            "from": from, "version": env!("CARGO_PKG_VERSION"),
        }}))
    }

    /// The process ends, after `step`; the run may not.
    pub(super) fn ended(
        &mut self,
        step: usize,
        elapsed: Elapsed,
        peak_rss_mib: Option<f64>,
    ) -> Result<(), TrainError> {
        let Elapsed { train_s, wall_s } = self.before.plus(elapsed);
        self.timings.line(&json!({
            "step": step, "train_s": train_s, "wall_s": wall_s, "end": {"peak_rss_mib": peak_rss_mib},
        }))?;
        self.sync()
    }

    pub(super) fn logged(
        &mut self,
        logged: &Logged,
        tokens: u64,
        elapsed: Elapsed,
    ) -> Result<(), TrainError> {
        let Logged { step, train_loss, learning_rate, gradient_norm, median_step_ms, tokens_per_s } =
            logged;
        self.metrics.line(&json!({
            "step": step, "tokens": tokens, "train_loss": train_loss,
            "learning_rate": learning_rate, "gradient_norm": gradient_norm,
        }))?;
        let Elapsed { train_s, wall_s } = self.before.plus(elapsed);
        self.timings.line(&json!({
            "step": step, "median_step_ms": median_step_ms, "tokens_per_s": tokens_per_s,
            "train_s": train_s, "wall_s": wall_s,
        }))?;
        self.scalars(
            *step,
            &[
                ("loss/train", *train_loss),
                ("learning_rate", *learning_rate),
                ("gradient_norm", f64::from(*gradient_norm)),
                ("tokens_per_s", *tokens_per_s),
            ],
        )
    }

    pub(super) fn evaluated(
        &mut self,
        evaluation: &Evaluation,
        tokens: u64,
    ) -> Result<(), TrainError> {
        let Evaluation { step, train_loss, val_loss, val_bits_per_byte, is_best } = evaluation;
        self.metrics.line(&json!({
            "step": step, "tokens": tokens, "train_loss_estimate": train_loss,
            "val_loss_estimate": val_loss, "val_bits_per_byte_estimate": val_bits_per_byte,
            "is_best": is_best,
        }))?;
        self.scalars(
            *step,
            &[
                ("loss/train_estimate", *train_loss),
                ("loss/val_estimate", *val_loss),
                ("bits_per_byte/val_estimate", *val_bits_per_byte),
            ],
        )
    }

    /// What each head does now.
    pub(super) fn heads(&mut self, step: usize, heads: &ScoredHeads) -> Result<(), TrainError> {
        let Some(log) = &mut self.heads else {
            return Ok(());
        };
        let mut line = heads.to_json();
        line["step"] = step.into();
        log.line(&line)?;
        let mut numbers = Vec::new();
        for (layer, scores) in heads.scores.iter().enumerate() {
            for (head, scores) in scores.iter().enumerate() {
                let known = scores.named().into_iter();
                numbers.extend(known.filter_map(|(name, score)| {
                    Some((format!("heads/{name}/{layer}.{head}"), score?))
                }));
            }
        }
        let numbers: Vec<(&str, f64)> = numbers.iter().map(|(tag, x)| (&**tag, *x)).collect();
        self.scalars(step, &numbers)
    }

    /// What the last evaluation, of the whole validation split, came to.
    pub(super) fn finished(&mut self, summary: &Summary) -> Result<(), TrainError> {
        let Summary {
            steps, tokens, val_loss, best_val_loss, best_step, val_bits_per_byte, ..
        } = summary;
        self.metrics.line(&json!({
            "step": steps, "tokens": tokens, "val_loss": val_loss,
            "val_bits_per_byte": val_bits_per_byte, "best_step": best_step, "best_val_loss": best_val_loss,
        }))?;
        let of_split = [("loss/val", val_loss), ("bits_per_byte/val", val_bits_per_byte)];
        let known = of_split.into_iter().filter_map(|(tag, number)| Some((tag, (*number)?)));
        self.scalars(*steps, &known.collect::<Vec<_>>())
    }

    /// Waits until all lines are on the disk.
    pub(super) fn sync(&self) -> Result<(), TrainError> {
        [&self.metrics, &self.timings, &self.samples]
            .into_iter()
            .chain(&self.heads)
            .chain(&self.events)
            .try_for_each(LogFile::sync)
    }

    fn scalars(&mut self, step: usize, numbers: &[(&str, f64)]) -> Result<(), TrainError> {
        match &mut self.events {
            Some(events) => events.write(&tensorboard::scalars(unix_s(), step, numbers)),
            None => Ok(()),
        }
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
        self.samples.write(format!("{before}{step}{after}\n{text}\n\n").as_bytes())?;
        match &mut self.events {
            Some(events) => events.write(&tensorboard::text(unix_s(), step, "sample", text)),
            None => Ok(()),
        }
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
        let failed = |source| TrainError::Log { path: self.path.clone(), source };
        self.file.sync_data().map_err(failed)
    }

    fn line(&mut self, value: &Value) -> Result<(), TrainError> {
        self.write(format!("{value}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        self.file
            .write_all(bytes)
            .map_err(|source| TrainError::Log { path: self.path.clone(), source })
    }
}

/// Opens the file of events at its end, and begins it where it is new.
fn open_events(path: PathBuf) -> Result<LogFile, TrainError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TrainError::Log { path, source }
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed(folder))?;
    }
    let mut events = LogFile::open(path)?;
    let length = events.file.metadata().map_err(failed(&events.path))?.len();
    if length == 0 {
        events.write(&tensorboard::opening(unix_s()))?;
    }
    Ok(events)
}

/// What the last line of the timings says that was trained already.
fn elapsed_before(timings: &Path) -> Result<Elapsed, TrainError> {
    let bytes = read(timings)?.unwrap_or_default();
    let elapsed = |line: &[u8]| {
        let line: Value = serde_json::from_slice(line).ok()?;
        Some(Elapsed { train_s: line["train_s"].as_f64()?, wall_s: line["wall_s"].as_f64()? })
    };
    let last = bytes.rsplit(|&byte| byte == b'\n').find_map(elapsed);
    Ok(last.unwrap_or_default())
}

/// What is in a log; none where there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, TrainError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TrainError::Log { path: path.to_owned(), source }),
    }
}

/// Cuts the file of events off before the first that is later than `step`, or broken.
fn cut_events(path: &Path, step: usize) -> Result<(), TrainError> {
    let Some(bytes) = read(path)? else {
        return Ok(());
    };
    let kept = tensorboard::kept_bytes(&bytes, step);
    if kept < bytes.len() {
        write_atomically(path, &bytes[..kept])?;
    }
    Ok(())
}

/// Cuts a text file off before the first line that `is_later` holds for.
fn cut(path: &Path, is_later: impl Fn(&str) -> bool) -> Result<(), TrainError> {
    let Some(bytes) = read(path)? else {
        return Ok(());
    };
    // A crash can leave half a line; what a lossy reading changes is cut or kept line by line.
    let text = String::from_utf8_lossy(&bytes);
    let kept: usize =
        text.split_inclusive('\n').take_while(|line| !is_later(line)).map(str::len).sum();
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
    value["step"].as_u64().and_then(|step| usize::try_from(step).ok())
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
            cut_text("hello\nstep  50/200  loss 1\nstep 100/200  loss 1\n", |line| {
                log_step(line).is_some_and(|at| at > 50)
            }),
            "hello\nstep  50/200  loss 1\n"
        );
    }
}
