//! Runs on several devices of one process. CPUs stand in for the GPUs, whose own reduction can only be tested with two
//! NVIDIA devices.

use serde_json::Value;
use tinderbox::device::{self, OpenDevice};
use tinderbox::distributed::DistributedError;
use tinderbox::train::{Event, Interrupter, Job, Observer, Start, Summary, TrainError, train_on};

use crate::runs::Place;

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

fn flex() -> OpenDevice {
    device::open(&"flex".parse().expect("a device")).expect("opens")
}

/// Trains on this many devices.
fn train(place: &Place, n: usize, run: &str, start: Start, settings: &[&str]) -> Result<Summary, TrainError> {
    let rows = ["train.batch_size=5", "train.grad_accumulation_steps=2", "train.log_interval=1"];
    let config = place.config(&[&rows, settings].concat());
    let job = Job { config, run_dir: place.path(run), start, from: None, device: flex() };
    let others = vec![flex(); n - 1];
    train_on(job, &others, Box::new(Silent), &Interrupter::new(), |_, _, _| panic!("no step is skipped"))
}

/// The losses of the steps and of the evaluations.
fn losses(place: &Place, run: &str) -> Vec<f64> {
    let metrics = place.read(&format!("{run}/metrics.jsonl"));
    let lines = metrics.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON"));
    lines.filter_map(|line| line["train_loss"].as_f64().or(line["val_loss"].as_f64())).collect()
}

#[test]
fn several_devices_make_the_run_of_one() {
    let place = Place::new();
    let one = train(&place, 1, "one", Start::New, &["train.max_steps=30"]).expect("trains");
    for n in [2, 3] {
        let run = format!("{n}-devices");
        let several = train(&place, n, &run, Start::New, &["train.max_steps=30"]).expect("trains");
        assert!((several.val_loss.expect("measured") - one.val_loss.expect("measured")).abs() < 1e-5);
        let [expected, found] = ["one", &run].map(|run| losses(&place, run));
        assert!(expected.len() > 30 && expected.len() == found.len());
        assert!(
            expected.iter().zip(&found).all(|(one, several)| (one - several).abs() < 1e-5),
            "{expected:?} {found:?}"
        );
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_devices() {
    let place = Place::new();
    let files = ["model", "optimizer"].map(|name| format!("checkpoints/step-000020/{name}.safetensors"));
    let go = |n, run, start, max_steps| {
        train(&place, n, run, start, &["schedule.kind=\"constant\"", max_steps]).expect("trains")
    };
    go(2, "whole", Start::New, "train.max_steps=20");
    go(2, "parts", Start::New, "train.max_steps=12");
    go(2, "parts", Start::Resume, "train.max_steps=20");
    place.assert_same("whole", "parts", &files.each_ref().map(String::as_str));
    let summary = go(3, "parts", Start::Resume, "train.max_steps=24");
    assert_eq!(summary.steps, 24);
}

#[test]
fn devices_that_make_steps_by_themselves_average_their_weights() {
    let place = Place::new();
    let sync = ["distributed.sync=\"local\"", "distributed.local_steps=5"];
    let average = ["distributed.outer_learning_rate=1.0", "distributed.outer_momentum=0.0"];
    train(&place, 2, "local", Start::New, &[&sync, &average, &["train.max_steps=20"][..]].concat()).expect("trains");
    let losses = losses(&place, "local");
    assert!(losses[19] < losses[0] - 0.5, "{losses:?}");
}

#[test]
fn a_run_that_cannot_start_ends_on_all_devices() {
    let place = Place::new();
    let error = train(&place, 3, "run", Start::New, &["data.path=\"-\""]).expect_err("no text");
    assert!(matches!(error, TrainError::Distributed(DistributedError::StandardInput)), "{error}");
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_on_all_devices() {
    let place = Place::new();
    let settings = ["optimizer.learning_rate=3e38", "optimizer.weight_decay=0", "schedule.warmup_steps=0"];
    for sync in ["step", "local"] {
        let sync_is = format!("distributed.sync=\"{sync}\"");
        let error = train(&place, 3, sync, Start::New, &[&settings[..], &[&sync_is]].concat()).expect_err("no loss");
        assert!(matches!(error, TrainError::NotFinite { .. }), "{error}");
    }
}
