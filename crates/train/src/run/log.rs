//! The logs of a run that are read back: writing and reading share one definition of each format.
//!
//! `metrics.jsonl` and `head_metrics.jsonl` depend on the seed and the config alone, so that two runs can be compared
//! byte by byte; everything that depends on the clock or the machine is in `timings.jsonl`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::{HEAD_METRICS, METRICS, RunDir, SAMPLES, TIMINGS, TRAIN_LOG};
pub(crate) use super::log_file::{LogFile, read_lines};
use super::{RunError, cannot_write, read_or_empty, samples, tensorboard};
use tinderbox_inspect::ScoredHeads;
use tinderbox_model::disk::write_atomically;
use tinderbox_model::format::grouped;

/// A line of `metrics.jsonl`: a log interval, an evaluation or the end of the run. Losses are in nats per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MetricsLine {
    /// Updates made.
    pub step: u64,
    /// Tokens trained on so far, with repetition.
    pub tokens: Option<u64>,

    // A log interval: mean loss, and the values of the last step.
    pub train_loss: Option<f64>,
    pub learning_rate: Option<f64>,
    pub gradient_norm: Option<f64>,
    /// The norms of the gradients of each layer, before clipping, by column: see [`gradient_norm_of`].
    #[serde(flatten, skip_deserializing)]
    pub gradient_norms: BTreeMap<String, f64>,

    // An evaluation on a few batches of each split.
    pub train_loss_estimate: Option<f64>,
    pub val_loss_estimate: Option<f64>,
    pub val_bits_per_byte_estimate: Option<f64>,
    /// Of preferences: the share of pairs whose better answer is preferred, and by how much on average.
    pub val_accuracy_estimate: Option<f64>,
    pub val_margin_estimate: Option<f64>,
    pub is_best: Option<bool>,

    // The end: the last weights and the best checkpoint, on the whole validation split.
    pub val_loss: Option<f64>,
    pub val_bits_per_byte: Option<f64>,
    pub val_accuracy: Option<f64>,
    pub val_margin: Option<f64>,
    pub best_step: Option<u64>,
    pub best_val_loss: Option<f64>,
}

/// A line of `timings.jsonl`: the start of a process, a log interval or the end of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimingsLine {
    /// Updates made.
    pub step: u64,
    /// The process that starts.
    pub session: Option<Box<Process>>,
    /// Median duration of the interval's steps.
    pub median_step_ms: Option<f64>,
    /// Tokens per step over that duration.
    pub tokens_per_s: Option<f64>,
    /// The share of the interval's step time that rank 0 spent waiting for other ranks; `None` without other ranks.
    pub waiting_share: Option<f64>,
    /// The share of the interval's step time that rank 0 spent communicating with them; `None` without other ranks.
    pub communication_share: Option<f64>,
    /// Time of all steps, earlier processes included.
    pub train_s: Option<f64>,
    /// Wall-clock time, earlier processes included.
    pub wall_s: Option<f64>,
    /// The process that ends.
    pub end: Option<End>,
}

/// The end of a process in `timings.jsonl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    pub peak_rss_mib: Option<f64>,
}

/// The beginning of the columns of gradient norms by layer.
pub(super) const GRADIENT_NORM_OF: &str = "gradient_norm.";

/// The column of the gradient norm of a layer, such as `gradient_norm.blocks.0`.
pub(crate) fn gradient_norm_of(layer: &str) -> String {
    format!("{GRADIENT_NORM_OF}{layer}")
}

/// The columns of the two logs, in display order.
pub(super) const COLUMNS: [&str; 23] = [
    "step",
    "tokens",
    "train_loss",
    "learning_rate",
    "gradient_norm",
    "train_loss_estimate",
    "val_loss_estimate",
    "val_bits_per_byte_estimate",
    "val_accuracy_estimate",
    "val_margin_estimate",
    "is_best",
    "val_loss",
    "val_bits_per_byte",
    "val_accuracy",
    "val_margin",
    "best_step",
    "best_val_loss",
    "median_step_ms",
    "tokens_per_s",
    "waiting_share",
    "communication_share",
    "train_s",
    "wall_s",
];

/// A process that trained a run: the first one, or one that resumed it. `None` if an older version did not log it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub struct Process {
    /// Updates made before it started.
    #[serde(skip)]
    pub step: u64,
    /// Its peak memory. `None` while it runs, and after a crash.
    #[serde(skip)]
    pub peak_rss_mib: Option<f64>,
    /// Its start time, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    pub device: Option<String>,
    /// The precision of matrix products, as in the config.
    pub matmul_precision: Option<Value>,
    pub parameters: Option<u64>,
    /// Those that the steps change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_parameters: Option<u64>,
    pub vocab_size: Option<u64>,
    pub train_tokens: Option<u64>,
    pub val_tokens: Option<u64>,
    /// Bytes of text in the validation split.
    pub val_bytes: Option<u64>,
    /// The checkpoint of another run that the initial weights came from.
    pub from: Option<String>,
    /// The number of processes that train together; `None` if there is just one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    pub version: Option<String>,
}

/// The processes of a run in order, without those whose steps a later one repeated.
pub fn processes(run: &RunDir) -> Result<Vec<Process>, RunError> {
    Ok(processes_of(&read_lines(&run.join(TIMINGS))?.lines))
}

pub(super) fn processes_of(timings: &[TimingsLine]) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::new();
    for line in timings {
        if let Some(session) = &line.session {
            processes.push(Process { step: line.step, ..(**session).clone() });
        }
        if let (Some(end), Some(process)) = (line.end, processes.last_mut()) {
            process.peak_rss_mib = end.peak_rss_mib;
        }
    }
    processes
}

/// A line of `head_metrics.jsonl`: the scores of every head at an evaluation, which `inspect` defines.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeadMetricsLine {
    /// Updates made.
    pub step: u64,
    #[serde(flatten)]
    pub heads: Value,
}

/// The head metrics of a run by step; empty if the run does not log them.
pub fn head_metrics(run: &RunDir) -> Result<BTreeMap<u64, ScoredHeads>, RunError> {
    let lines = read_lines::<HeadMetricsLine>(&run.join(HEAD_METRICS))?.lines;
    Ok(lines.into_iter().filter_map(|line| Some((line.step, ScoredHeads::deserialize(line.heads).ok()?))).collect())
}

/// Whether a run logged its end, after `step` updates.
pub(crate) fn has_ended(run: &RunDir, step: usize) -> bool {
    read_lines::<MetricsLine>(&run.join(METRICS))
        .is_ok_and(|metrics| metrics.lines.iter().any(|line| line.step == step as u64 && line.val_loss.is_some()))
}

/// The latest step of `metrics.jsonl`, 0 if it has no lines; `None` if it cannot be read.
pub(super) fn last_step(run: &RunDir) -> Option<u64> {
    let metrics = read_lines::<MetricsLine>(&run.join(METRICS)).ok().filter(|metrics| metrics.broken == 0)?;
    Some(metrics.lines.iter().map(|line| line.step).max().unwrap_or(0))
}

/// `train_s` and `wall_s` of the last line of `timings.jsonl` with both; 0 without such a line.
pub(crate) fn elapsed_s(run: &RunDir) -> Result<[f64; 2], RunError> {
    let timings = read_lines::<TimingsLine>(&run.join(TIMINGS))?.lines;
    let last = timings.iter().rev().find_map(|line| Some([line.train_s?, line.wall_s?]));
    Ok(last.unwrap_or_default())
}

/// Truncates the logs of a run to `step`, for a process that resumes there, and removes torn lines.
pub(crate) fn cut_back(run: &RunDir, step: usize) -> Result<(), RunError> {
    let logs: [(&str, StepOf); 5] = [
        (METRICS, json_step),
        (TIMINGS, json_step),
        (HEAD_METRICS, json_step),
        (SAMPLES, samples::heading_step),
        (TRAIN_LOG, label_step),
    ];
    for (name, step_of) in logs {
        cut(&run.join(name), |bytes| lines_up_to(bytes, step, step_of))?;
    }
    cut(&tensorboard::path(run), |bytes| tensorboard::records_up_to(bytes, step))
}

/// Removes the log entries of the evaluation of `step`, which will be repeated: all of them, or only its sample.
pub(crate) fn cut_evaluation(run: &RunDir, step: usize, only_sample: bool) -> Result<(), RunError> {
    type IsOfEvaluation = fn(&str) -> bool;
    let estimates: IsOfEvaluation = |line| line.contains("\"val_loss_estimate\"");
    let logs: [(&str, StepOf, IsOfEvaluation); 3] = [
        (METRICS, json_step, estimates),
        (HEAD_METRICS, json_step, |_| true),
        (SAMPLES, samples::heading_step, |_| true),
    ];
    for (name, step_of, is_of_evaluation) in logs.into_iter().filter(|(name, ..)| !only_sample || *name == SAMPLES) {
        cut(&run.join(name), |bytes| {
            let is_kept = |line: &&[u8]| {
                let line = String::from_utf8_lossy(line);
                step_of(&line).is_none_or(|at| at < step || !is_of_evaluation(&line))
            };
            bytes.split_inclusive(|&byte| byte == b'\n').take_while(is_kept).map(<[u8]>::len).sum()
        })?;
    }
    Ok(())
}

/// Removes the last line of a log if a process was killed while writing it.
pub(crate) fn cut_torn_line(path: &Path) -> Result<(), RunError> {
    cut(path, |bytes| lines_up_to(bytes, 0, |_| None))
}

/// The step of a line of a log; `None` if the line continues the one before.
type StepOf = fn(&str) -> Option<usize>;

/// Truncates an existing file to as many bytes as `kept` returns.
fn cut(path: &Path, kept: impl FnOnce(&[u8]) -> usize) -> Result<(), RunError> {
    let bytes = read_or_empty(path)?;
    let n = kept(&bytes);
    if n < bytes.len() {
        write_atomically(path, &bytes[..n]).map_err(cannot_write(path))?;
    }
    Ok(())
}

/// The number of bytes before the trailing lines of later steps. A later step before an earlier one is damaged, and
/// does not end the log; nor do lines without a step. A last line without a line break is torn.
fn lines_up_to(bytes: &[u8], step: usize, step_of: impl Fn(&str) -> Option<usize>) -> usize {
    let (mut n_bytes, mut n_kept, mut is_later) = (0, 0, false);
    for line in bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        n_bytes += line.len();
        is_later = step_of(&String::from_utf8_lossy(line)).map_or(is_later, |at| at > step);
        if !is_later {
            n_kept = n_bytes;
        }
    }
    n_kept
}

/// The step of a line of JSON; `None` if it has none or is broken.
fn json_step(line: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Step {
        step: usize,
    }
    serde_json::from_str(line).ok().map(|Step { step }| step)
}

/// The start of a line of `train.log` about a step: `step   500/2,000`.
pub fn step_label(step: usize, max_steps: usize) -> String {
    let [step, max_steps] = [step, max_steps].map(|n| grouped(n as u64));
    format!("step {step:>width$}/{max_steps}", width = max_steps.len())
}

/// The step of a line that begins with a [`step_label`], also of one of an older version, without commas.
fn label_step(line: &str) -> Option<usize> {
    let (step, _) = line.strip_prefix("step")?.trim_start().split_once('/')?;
    step.replace(',', "").parse().ok()
}

/// The prefix of an error in `train.log`. Its hint and causes follow, indented.
pub const ERROR: &str = "error: ";
/// The prefix of the line that says where the report is.
pub const REPORT: &str = "report: ";
/// The prefix of the line that says why there is no report.
pub const NO_REPORT: &str = "warning: no report: ";

/// The error that `train.log` ends with.
pub fn last_error(run: &RunDir) -> Option<String> {
    let log = read_or_empty(&run.join(TRAIN_LOG)).ok()?;
    last_error_of(&String::from_utf8_lossy(&log))
}

fn last_error_of(log: &str) -> Option<String> {
    let is_aside = |line: &&str| [" ", REPORT, NO_REPORT].iter().any(|start| line.starts_with(start));
    let last = log.lines().rfind(|line| !is_aside(line))?;
    last.strip_prefix(ERROR).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use serde::de::DeserializeOwned;

    use super::*;

    fn rewritten<T: Serialize + DeserializeOwned>(line: &str) -> String {
        super::super::log_file::json_line(&serde_json::from_str::<T>(line).unwrap())
    }

    #[test]
    fn log_lines_round_trip() {
        let metrics = "{\"gradient_norm\":1.0595381259918213,\"learning_rate\":0.00009900990099009902,\"step\":10,\
                       \"tokens\":5120,\"train_loss\":2.8664432764053345}\n";
        assert_eq!(rewritten::<MetricsLine>(metrics), metrics);
        let train_loss = Some(2.866_443_276_405_334_5);
        assert_eq!(serde_json::from_str::<MetricsLine>(metrics).unwrap().train_loss, train_loss);
        let session = "{\"session\":{\"began_unix_s\":1.5,\"device\":\"flex\",\"from\":null,\
                       \"matmul_precision\":\"f32\",\"parameters\":7,\"train_tokens\":4,\"val_bytes\":2,\
                       \"val_tokens\":3,\"version\":\"0.1.0\",\"vocab_size\":5},\"step\":0}\n";
        for timings in [session, "{\"end\":{\"peak_rss_mib\":null},\"step\":9}\n"] {
            assert_eq!(rewritten::<TimingsLine>(timings), timings);
        }
        let heads = "{\"step\":3,\"windows\":4}\n";
        assert_eq!(rewritten::<HeadMetricsLine>(heads), heads);
    }

    #[test]
    fn columns_are_the_fields_of_the_lines() {
        let fields = |line: Value| line.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let metrics = fields(serde_json::to_value(MetricsLine::default()).unwrap());
        let timings = fields(serde_json::to_value(TimingsLine::default()).unwrap());
        let mut all = &metrics | &timings;
        all.retain(|name| name != "session" && name != "end"); // objects are not columns
        assert_eq!(all, BTreeSet::from(COLUMNS.map(str::to_owned)));
    }

    #[test]
    fn unknown_fields_are_ignored_and_broken_lines_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let counts = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let read = read_lines::<MetricsLine>(&path).unwrap();
            (read.lines.len(), read.broken)
        };
        assert_eq!(counts(b"{\"step\":1}\n{\"step\":2,\"novel\":{\"a\":1}}\n"), (2, 0));
        assert_eq!(counts(b"{\"step\":1}\n{\"step\":"), (1, 0));
        assert_eq!(counts(b"{\"step\":1}\n\xff\n7\n{\"step\":2}\n"), (2, 2));
        assert_eq!(counts(b""), (0, 0));
        assert_eq!(read_lines::<MetricsLine>(&dir.path().join("nowhere")).unwrap().lines, []);
    }

    #[test]
    fn process_end_belongs_to_last_start() {
        let read = |text: &str| {
            processes_of(&text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>())
        };
        let processes = read(
            "{\"step\":0,\"session\":{\"device\":\"flex\",\"version\":\"0.1.0\",\"val_tokens\":7}}
             {\"step\":5,\"train_s\":1.0,\"wall_s\":2.0,\"end\":{\"peak_rss_mib\":50.5}}
             {\"step\":5,\"session\":{\"device\":\"wgpu\"}}
             {\"step\":8,\"tokens_per_s\":9.0}",
        );
        let [first, second] = &processes[..] else { panic!("{processes:?}") };
        assert_eq!((first.step, first.peak_rss_mib, first.device.as_deref()), (0, Some(50.5), Some("flex")));
        assert_eq!((first.version.as_deref(), first.val_tokens), (Some("0.1.0"), Some(7)));
        let expected = Process { step: 5, device: Some("wgpu".to_owned()), ..Process::default() };
        assert_eq!(*second, expected);
        assert_eq!(read("{\"step\":5,\"end\":{\"peak_rss_mib\":1.0}}"), []);
    }

    #[test]
    fn cut_back_removes_later_steps() {
        for (step, step_of, kept, cut) in [
            (2, json_step as StepOf, "{\"step\":1}\n{\"step\":2}\n", "{\"step\":3}\n"),
            (9, json_step, "{\"step\":1}\n", "{\"st"),
            (5, samples::heading_step, "===== step 5 =====\nstep 9 is\n\n", "===== step 10 =====\nb\n\n"),
            (50, label_step, "hello\nstep  50/200  loss 1\n", "step 100/200  loss 1\n"),
        ] {
            assert_eq!(lines_up_to(format!("{kept}{cut}").as_bytes(), step, step_of), kept.len(), "{kept}");
        }
    }

    #[test]
    fn broken_line_does_not_lose_others() {
        let line = |step: usize| format!("{{\"step\":{step}}}\n");
        let whole: String = (1..=9).map(line).collect();
        let kept: String = (1..=5).map(line).collect();
        for at in 0..kept.len() {
            for bit in 0..8 {
                let mut log = whole.clone().into_bytes();
                log[at] ^= 1 << bit;
                let n = lines_up_to(&log, 5, json_step);
                let is_last = at + line(5).len() >= kept.len(); // it may look like one of another step
                assert!(n == kept.len() || is_last && n.abs_diff(kept.len()) <= line(5).len(), "{at}");
            }
        }
        let garbage = b"{\"step\":1}\n\xff\xfe\n{\"step\":2}\n{\"step\":";
        assert_eq!(lines_up_to(garbage, 2, json_step), garbage.len() - 8);
    }

    #[test]
    fn step_label_round_trips() {
        assert_eq!(step_label(50, 2000), "step    50/2,000");
        assert_eq!(label_step("step 1300/1300  loss 1"), Some(1300), "of an older version");
        for (step, max_steps) in [(0, 1), (50, 2000), (2000, 2000)] {
            assert_eq!(label_step(&(step_label(step, max_steps) + "  loss 1")), Some(step));
        }
        assert_eq!(label_step("stepping on 5/6"), None);
    }

    #[test]
    fn log_ending_with_error_marks_failed_run() {
        let log = format!("step 1/5  loss 3\n{ERROR}the loss is NaN\n  hint: lower it\n");
        assert_eq!(last_error_of(&log).as_deref(), Some("the loss is NaN"));
        for aside in [REPORT, NO_REPORT] {
            assert_eq!(last_error_of(&format!("{log}{aside}`x/report.html`\n")).as_deref(), Some("the loss is NaN"));
        }
        assert_eq!(last_error_of(&(log + "resuming `x`\n")), None);
        assert_eq!(last_error_of(""), None);
    }
}
