//! What is known of a run without computing anything.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};
use toml::Table;

use super::{RunDir, Saved};
use super::{RunsError, log};

/// Whether a run is still made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It came to its end: all of its steps, or an early one.
    Done,
    /// A process trains it now.
    Running,
    /// It ended before; it goes on with `--resume` where a checkpoint was saved.
    Stopped,
}

/// What is known of a run; none where it did not get that far, or an older version did not write it down.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Where it is kept.
    pub run: PathBuf,
    /// Whether it is still made.
    pub status: Status,
    /// Updates made; those of the last checkpoint where the run stopped.
    pub step: u64,
    /// Updates that it should make.
    pub max_steps: Option<u64>,
    /// Numbers that are learned.
    pub parameters: Option<u64>,
    /// Tokens learned from, with repetition.
    pub tokens: Option<u64>,
    /// Seconds of its steps, those before a resume included.
    pub train_s: Option<f64>,
    /// Seconds of everything, likewise.
    pub wall_s: Option<f64>,
    /// The best validation loss, nats per token.
    pub val_loss: Option<f64>,
    /// Whether that is an estimate, and not over the whole validation split.
    pub is_estimate: bool,
    /// The same in bits per byte of text: comparable between tokenizers.
    pub val_bits_per_byte: Option<f64>,
    /// The step that it is of.
    pub best_step: Option<u64>,
    /// What computed last.
    pub device: Option<String>,
    /// When it first began, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    /// The checkpoint of another run that its first weights came from.
    pub started_from: Option<String>,
    /// What could not be read.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Facts {
    /// Reads what is known of a run, as far as it is.
    ///
    /// # Errors
    /// If its config or its logs cannot be read.
    pub fn read(run: &RunDir) -> Result<Self, RunsError> {
        let settings = settings(run)?;
        let metrics = log::read(&run.join("metrics.jsonl"))?;
        let timings = log::read(&run.join("timings.jsonl"))?;
        let mut notes = Vec::new();
        let broken = metrics.broken + timings.broken;
        if broken > 0 {
            let run = run.root().display();
            notes.push(format!("`{run}` has broken lines in its logs: {broken}"));
        }
        let (metrics, timings) = (metrics.objects, timings.objects);
        let sessions: Vec<&Map<String, Value>> =
            timings.iter().filter_map(|line| line.get("session")?.as_object()).collect();
        let session = sessions.last().copied();
        let text = |key: &str| Some(session?.get(key)?.as_str()?.to_owned());
        let logged = last(&metrics, "step").and_then(Value::as_u64).unwrap_or(0);
        let end = metrics.iter().rfind(|line| number(line, "val_loss").is_some());
        let is_at_end = end.is_some_and(|end| count(end, "step") == Some(logged));
        let status = match (run.is_busy(), is_at_end) {
            (true, _) => Status::Running,
            (_, true) => Status::Done,
            _ => Status::Stopped,
        };
        let step = match status {
            Status::Stopped => saved_step(run, &mut notes).unwrap_or(logged),
            _ => logged,
        };
        let best = best(&metrics, end.filter(|_| is_at_end), step);
        Ok(Self {
            run: run.root().to_owned(),
            status,
            step,
            max_steps: settings["train"]
                .get("max_steps")
                .and_then(toml::Value::as_integer)
                .and_then(|steps| steps.try_into().ok()),
            parameters: session.and_then(|session| count(session, "parameters")),
            tokens: metrics
                .iter()
                .rfind(|line| count(line, "step") <= Some(step))
                .and_then(|line| count(line, "tokens")),
            train_s: last(&timings, "train_s").and_then(Value::as_f64),
            wall_s: last(&timings, "wall_s").and_then(Value::as_f64),
            val_loss: best.map(|best| best.val_loss),
            is_estimate: best.is_some_and(|best| best.is_estimate),
            val_bits_per_byte: best
                .and_then(|best| Some(best.val_loss * bits_per_byte_of_a_nat(session, end)?)),
            best_step: best.and_then(|best| best.step),
            device: text("device"),
            began_unix_s: sessions.first().and_then(|first| number(first, "began_unix_s")),
            started_from: text("from"),
            notes,
        })
    }
}

/// The best evaluation of a run.
#[derive(Clone, Copy)]
struct BestLoss {
    val_loss: f64,
    step: Option<u64>,
    is_estimate: bool,
}

/// The best loss over the whole split where the run came to its `end`, else the best estimate up to `step`.
fn best(
    metrics: &[Map<String, Value>],
    end: Option<&Map<String, Value>>,
    step: u64,
) -> Option<BestLoss> {
    if let Some(end) = end {
        let of_best = number(end, "best_val_loss").map(|loss| (loss, count(end, "best_step")));
        // Older versions tell only of the last weights.
        let of_last = || Some((number(end, "val_loss")?, count(end, "step")));
        let (val_loss, step) = of_best.or_else(of_last)?;
        return Some(BestLoss { val_loss, step, is_estimate: false });
    }
    let of_this_run =
        |line: &&Map<String, Value>| (1..=step).contains(&count(line, "step").unwrap_or(0));
    let estimates = metrics.iter().filter(of_this_run).filter_map(|line| {
        Some(BestLoss {
            val_loss: number(line, "val_loss_estimate")?,
            step: count(line, "step"),
            is_estimate: true,
        })
    });
    estimates.min_by(|a, b| a.val_loss.total_cmp(&b.val_loss))
}

/// Bits per byte of the validation split for each nat per token: from its sizes, or from an end that says
/// both.
#[allow(clippy::cast_precision_loss, reason = "texts are below 2^52 bytes")]
fn bits_per_byte_of_a_nat(
    session: Option<&Map<String, Value>>,
    end: Option<&Map<String, Value>>,
) -> Option<f64> {
    let of_sizes = session.and_then(|session| {
        let (tokens, bytes) = (count(session, "val_tokens")?, count(session, "val_bytes")?);
        (bytes > 0).then(|| tokens as f64 / bytes as f64 / std::f64::consts::LN_2)
    });
    of_sizes.or_else(|| Some(number(end?, "val_bits_per_byte")? / number(end?, "val_loss")?))
}

/// The step that a run would go on from.
fn saved_step(run: &RunDir, notes: &mut Vec<String>) -> Option<u64> {
    let last = run.last().ok()?; // there is none yet
    match Saved::read_state(&last) {
        Ok(state) => Some(state.step as u64),
        Err(error) => {
            let error = error.to_string(); // its hint is for those who go on from it
            notes.extend(error.lines().next().map(str::to_owned));
            None
        }
    }
}

/// The config of a run as a table, each section in it; with defaults for keys that it does not have, unless it
/// has keys that this version does not know.
///
/// # Errors
/// If the config cannot be read.
pub fn settings(run: &RunDir) -> Result<Table, RunsError> {
    let sections = ["data", "tokenizer", "model", "train", "optimizer", "schedule", "generate"];
    let mut table = match run.config() {
        Ok(config) => toml::from_str(&config.to_toml()).expect("what was written as TOML"),
        Err(_) => as_it_is(run)?,
    };
    for name in sections {
        table.entry(name).or_insert_with(|| Table::new().into());
    }
    Ok(table)
}

fn as_it_is(run: &RunDir) -> Result<Table, RunsError> {
    let path = run.join("config.toml");
    let text = fs::read_to_string(&path);
    let text = text.map_err(|source| RunsError::Read { path: path.clone(), source })?;
    toml::from_str(&text).map_err(|error: toml::de::Error| RunsError::Damaged {
        path,
        reason: error.message().to_owned(),
    })
}

/// The value of the last line that has the key.
fn last<'a>(lines: &'a [Map<String, Value>], key: &str) -> Option<&'a Value> {
    lines.iter().rev().find_map(|line| line.get(key))
}

fn number(object: &Map<String, Value>, key: &str) -> Option<f64> {
    object.get(key)?.as_f64()
}

fn count(object: &Map<String, Value>, key: &str) -> Option<u64> {
    object.get(key)?.as_u64()
}
