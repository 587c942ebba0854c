//! Runs interrupted between two steps, within a step, and within what follows a step.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
#[cfg(target_os = "linux")]
use std::{
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use burn::tensor::{Device, Tensor};
use tinderbox::config::{Config, ModelConfig, PositionKind};
use tinderbox::data::{Split, Tokens};
use tinderbox::model::{Gpt, LazyTensor};
use tinderbox::run::{Checkpoint, Pending, Trained};
use tinderbox::train::{Event, Job, Start, Summary, TrainError, evaluate};

#[cfg(target_os = "linux")]
use crate::fixtures::{Folder, fs, set, signal};
use crate::fixtures::{Place, TEN_STEPS, observed, trainer, weights_of};

/// Trains, interrupted at the first event `at`, and returns the steps that were skipped.
fn go(
    place: &Place,
    run: &str,
    (start, from): (Start, Option<&str>),
    config: Config,
    at: fn(&Event<'_>) -> bool,
) -> (Result<Summary, TrainError>, Vec<usize>) {
    let skipped = Arc::new(Mutex::new(Vec::new()));
    let counted = skipped.clone();
    let job = Job { from: from.map(|from| place.path(from)), ..place.job(run, config, start) };
    let summary = observed(job, move |event, interrupter| {
        if at(event) {
            interrupter.stop(None);
        }
        if let Event::Skipped { step, .. } = event {
            counted.lock().expect("nobody panicked").push(*step);
        }
    });
    let skipped = skipped.lock().expect("nobody panicked").clone();
    (summary, skipped)
}

const NEVER: fn(&Event<'_>) -> bool = |_| false;

/// A run, where it stops, at which step, and what is pending there.
type Case = (&'static str, fn(&Event<'_>) -> bool, usize, Option<Pending>);

#[test]
fn resume_finishes_pending_work() {
    let place = Place::new();
    let config = || place.config(&["train.head_metrics=true"]);
    place.trained("parent", &["train.max_steps=2"]);
    let new = (Start::New, Some("parent"));
    go(&place, "whole", new, config(), NEVER).0.expect("the run trains");
    let cases: [Case; 7] = [
        ("start", |event| matches!(event, Event::Started(_)), 0, Some(Pending::Start)),
        ("log", |event| matches!(event, Event::Stepped { step: 4, .. }), 4, Some(Pending::Evaluation)),
        ("sample", |event| matches!(event, Event::Evaluated(it) if it.step == 4), 4, Some(Pending::Sample)),
        ("last", |event| matches!(event, Event::Logged(it) if it.step == 10), 10, Some(Pending::Evaluation)),
        ("last-sample", |event| matches!(event, Event::Evaluated(it) if it.step == 10), 10, Some(Pending::Sample)),
        ("end", |event| matches!(event, Event::FinalEvaluation { .. }), 10, None),
        ("first", |event| matches!(event, Event::Evaluated(it) if it.step == 0), 1, Some(Pending::Start)),
    ];
    for (run, at, step, left) in cases {
        let stopped = go(&place, run, new, config(), at).0.expect("the run stops as asked");
        assert!(stopped.interrupted && stopped.val_loss.is_none(), "{run}");
        if run != "first" {
            let state = Checkpoint::read_state(&place.path(run).join(format!("checkpoints/step-{step:06}")));
            let state = state.expect("the checkpoint was saved");
            assert_eq!((state.step, state.pending), (step, left), "{run}");
        }
        let resumed = go(&place, run, (Start::Resume, None), config(), NEVER).0.expect("the run resumes");
        assert!(!resumed.interrupted && resumed.steps == 10 && resumed.val_loss.is_some(), "{run}");
        let files = TEN_STEPS.into_iter().chain(["head_metrics.jsonl"]);
        place.assert_same("whole", run, &files.collect::<Vec<_>>());
    }
}

#[test]
fn killed_resume_repeats_pending_work_once() {
    let place = Place::new();
    let new = (Start::New, None);
    go(&place, "whole", new, place.config(&[]), NEVER).0.expect("the run trains");
    let at = |event: &Event<'_>| matches!(event, Event::Stepped { step: 4, .. });
    go(&place, "run", new, place.config(&[]), at).0.expect("the run stops as asked");
    // As if killed after the evaluation: the checkpoint is still the one from before it.
    let (last, state) = (place.read("run/last"), "run/checkpoints/step-000004/state.json");
    let before = place.read(state);
    let after = |event: &Event<'_>| matches!(event, Event::Evaluated(_));
    go(&place, "run", (Start::Resume, None), place.config(&[]), after).0.expect("the run stops as asked");
    assert_eq!(place.read("run/last"), last);
    fs::write(place.path(state), before);
    go(&place, "run", (Start::Resume, None), place.config(&[]), NEVER).0.expect("the run resumes");
    place.assert_same("whole", "run", &["metrics.jsonl", "samples.txt", "best", "last"]);
}

#[test]
fn interrupted_step_changes_nothing() {
    let place = Place::new();
    let config = place.config(&["train.grad_accumulation_steps=3"]);
    let [(mut whole, _), (mut stopped, _)] = [(); 2].map(|()| trainer(&config, &Device::flex()));
    whole.step();
    stopped.step();
    let n_asked = AtomicUsize::new(0);
    let result = stopped.step_unless(|| n_asked.fetch_add(1, Ordering::SeqCst) == 1);
    assert!(result.is_none());
    assert_eq!(n_asked.into_inner(), 2, "before the second and the third batch");
    assert_eq!(weights_of(&whole), weights_of(&stopped));
    whole.step();
    stopped.step();
    assert_eq!(weights_of(&whole), weights_of(&stopped), "the next step is the one that was not made");
}

/// Before a batch, before each of the two blocks and before the output layer.
const ASKED_PER_BATCH: usize = 4;

#[test]
fn comparison_stops_between_layers_and_is_bounded() {
    let place = Place::new();
    place.trained("run", &["train.max_steps=1"]);
    let opened = Trained::open(&place.path("run"), None).expect("it opens");
    let val = opened.corpus().expect("the text is there").val;
    let measured = |n_allowed: usize, max_rows: usize| {
        let mut asked = Vec::new();
        let goes_on = |done, of| {
            asked.push((done, of));
            asked.len() <= n_allowed
        };
        let loss = evaluate::rows_while(&opened.model, &val, 2, max_rows, goes_on).expect("the loss is finite");
        (loss, asked)
    };
    let (loss, asked) = measured(usize::MAX, usize::MAX);
    assert_eq!(loss, evaluate::full(&opened.model, &val, 2).ok());
    assert!(asked.len() > 3 * ASKED_PER_BATCH);
    assert!(asked.iter().enumerate().all(|(n, (done, of))| n / ASKED_PER_BATCH == *done && done < of), "{asked:?}");
    for n in 0..=2 * ASKED_PER_BATCH {
        let (loss, asked) = measured(n, usize::MAX);
        assert_eq!((loss, asked.len()), (None, n + 1));
    }
    let (loss, asked) = measured(usize::MAX, 4);
    assert_eq!((loss.map(|loss| loss.tokens), asked.len()), (Some(4 * 16), 2 * ASKED_PER_BATCH));
}

#[test]
fn long_windows_are_compared_in_small_batches() {
    let shape = ModelConfig { d_model: 2, n_layers: 1, n_heads: 1, n_kv_heads: 1, d_ff: 2, ..ModelConfig::default() };
    let text = Split::from(Tokens::made_up(16_385, 5));
    for (context_length, n_batches) in [(8192, 2), (4096, 2), (1024, 4)] {
        let config = ModelConfig { context_length, position: PositionKind::Rope, ..shape.clone() }.with_derived();
        let model = Gpt::new(&config, 5, 1, &Device::flex());
        let mut batches = BTreeSet::new();
        let goes_on = |batch, _| {
            batches.insert(batch);
            true
        };
        evaluate::rows_while(&model, &text, 4, usize::MAX, goes_on).expect("the loss is finite");
        assert_eq!(batches.len(), n_batches, "windows of {context_length}");
    }
}

#[test]
fn resume_counts_earlier_non_finite_steps() {
    let place = Place::new();
    place.trained("run", &["train.max_steps=1"]);
    // The loss is finite, so that checkpoints can be saved, and the square of the gradient's norm is not.
    let dir = place.path("run/checkpoints/step-000001");
    let mut checkpoint = Checkpoint::read(&dir).expect("it is whole");
    let shape = checkpoint.model["norm.weight"].shape().to_vec();
    let large = Tensor::<1>::full(shape, 1e25, &Device::flex());
    checkpoint.model.insert("norm.weight".to_owned(), LazyTensor::on_device(large));
    checkpoint.write(&dir).expect("it can be written");
    let settings =
        ["train.max_steps=1000", "train.eval_interval=0", "train.checkpoint_interval=0", "train.skip_non_finite=true"];
    let resume = |at| go(&place, "run", (Start::Resume, None), place.config(&settings), at);
    let (stopped, before) = resume(|event| matches!(event, Event::Stepped { step: 61, .. }));
    assert!(stopped.expect("the run stops as asked").interrupted && before.len() == 60, "{before:?}");
    let (ended, after) = resume(NEVER);
    assert!(matches!(ended, Err(TrainError::NotFinite { .. })), "{ended:?}");
    assert_eq!(before.len() + after.len(), 99);
}

#[test]
fn loss_spikes_are_skipped_across_resume() {
    let place = Place::new();
    let config = |more: &[&str]| {
        let common = ["train.max_steps=110", "train.skip_loss_spikes=0.8", "train.eval_interval=0"];
        // Only the noise of the batches is left.
        let constant = ["train.checkpoint_interval=0", "train.log_interval=1", "optimizer.learning_rate=1e-7"];
        place.config(&[&common[..], &constant, more].concat())
    };
    let new = (Start::New, None);
    let (whole, skipped) = go(&place, "whole", new, config(&[]), NEVER);
    whole.expect("the run trains");
    assert!(!skipped.is_empty() && skipped[0] > 64, "{skipped:?}");
    let n_logged = String::from_utf8(place.read("whole/metrics.jsonl")).expect("the bytes are UTF-8").lines().count();
    assert_eq!(n_logged, 110 - skipped.len() + 2, "a step that is skipped has no loss; the end has two lines");
    let (_, none) = go(&place, "none", new, config(&["train.skip_loss_spikes=0"]), NEVER);
    assert!(none.is_empty());

    let at = |event: &Event<'_>| matches!(event, Event::Stepped { step: 70, .. });
    let (stopped, mut parts) = go(&place, "parts", new, config(&[]), at);
    assert!(stopped.expect("the run stops as asked").interrupted);
    let (resumed, rest) = go(&place, "parts", (Start::Resume, None), config(&[]), NEVER);
    resumed.expect("the run resumes");
    parts.extend(rest);
    assert_eq!(parts, skipped);
    let last = ["model.safetensors", "state.json"].map(|file| format!("checkpoints/step-000110/{file}"));
    place.assert_same("whole", "parts", &[&*last[0], &*last[1], "metrics.jsonl"]);
}

/// Waits until a command handles interrupts, and `pause` longer; interrupts it, and returns how long it took to end.
#[cfg(target_os = "linux")]
fn interrupt(folder: &Folder, args: &[&str], pause: Duration) -> (Duration, Output) {
    let mut child =
        folder.command(args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let id = child.id();
    let catches_interrupts = || {
        let status = fs::read_to_string(format!("/proc/{id}/status"));
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux tells");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & 0b10 != 0
    };
    while !catches_interrupts() {
        if child.try_wait().expect("a status").is_some() {
            let output = child.wait_with_output().expect("the process has ended");
            panic!("it ended by itself: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(pause);
    let began = Instant::now();
    signal("-INT", id);
    let stdin = child.stdin.take(); // stays open
    let output = child.wait_with_output().expect("the program ends");
    drop(stdin);
    (began.elapsed(), output)
}

/// Interrupts a command as early as possible, and checks that it ends like one stopped before its first step.
#[cfg(target_os = "linux")]
fn interrupted_before_it_begins(folder: &Folder, args: &[&str]) {
    let (_, output) = interrupt(folder, args, Duration::ZERO);
    let said = String::from_utf8(output.stderr).expect("the bytes are UTF-8");
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.ends_with("interrupted before the first step: no run was made or changed\n"), "{said}");
}

/// Each phase is so long that the run is in it some seconds after its start, and would not end by itself.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "measures times, for which nothing else should run"]
fn every_phase_ends_soon_after_interrupt() {
    let folder = Folder::new();
    let word = |n: u64| format!("{:x} ", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    folder.write("long.txt", (0..8_000_000).map(word).collect::<String>()); // of words that occur once
    let long = "data.path=\"long.txt\"";
    let phases: [(&str, &[&str], u64); 7] = [
        ("steps", &["train.max_steps=16000000", "train.sample_tokens=0"], 2000),
        ("accumulation", &["train.grad_accumulation_steps=16000000"], 2000),
        ("estimates", &["train.eval_interval=1", "train.eval_batches=16000000"], 2000),
        ("a sample", &["train.eval_interval=1", "train.sample_tokens=16000000"], 2000),
        ("the last evaluation", &[long, "train.max_steps=1", "train.eval_interval=0", "data.val_fraction=0.9"], 30_000),
        ("reading", &[long, "tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=5000"], 100),
        ("finding merges", &[long, "tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=5000"], 10_000),
    ];
    let mut late = Vec::new();
    for (phase, settings, pause_ms) in phases {
        let args = [&["train", "tiny.toml", "--overwrite"], &*set(settings)].concat();
        let (elapsed, output) = interrupt(&folder, &args, Duration::from_millis(pause_ms));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{phase}: {said}");
        let is_reading = ["reading", "finding merges"].contains(&phase);
        assert_eq!(said.contains("before the first step"), is_reading, "{phase} was not under way: {said}");
        eprintln!("{phase}: {} ms; {}", elapsed.as_millis(), said.lines().last().unwrap_or_default());
        // Includes writing the checkpoint and the report.
        if elapsed > Duration::from_secs(5) {
            late.push(phase);
        }
    }
    assert!(late.is_empty(), "later than five seconds: {late:?}");
}

/// Nothing is written to its standard input, so no text ever arrives.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_ends_wait_for_standard_input() {
    let folder = Folder::new();
    interrupted_before_it_begins(&folder, &["train", "tiny.toml", "--set", "data.path=-"]);
    assert!(!folder.path("runs").exists());
}

/// Its weights are a 64 GiB sparse file, which takes many seconds to read.
#[cfg(target_os = "linux")]
#[test]
fn interrupt_ends_reading_of_checkpoint() {
    let folder = Folder::trained();
    let weights = folder.path("runs/tiny/checkpoints/step-000040/model.safetensors");
    let header =
        format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{}]}}}}", 1_u64 << 34, 1_u64 << 36);
    let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(&weights, &start);
    let file = std::fs::File::options().append(true).open(&weights).expect("the file can be opened");
    file.set_len(start.len() as u64 + (1 << 36)).expect("most file systems have holes");
    let before = folder.read("runs/tiny/metrics.jsonl");
    interrupted_before_it_begins(&folder, &["train", "tiny.toml", "--set", "train.max_steps=50", "--resume"]);
    assert_eq!(folder.read("runs/tiny/metrics.jsonl"), before);
}
