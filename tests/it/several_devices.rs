//! Runs on several devices of one process. CPUs stand in for the GPUs, whose own reduction can only be tested with two
//! NVIDIA devices.

use tinderbox::distributed::DistributedError;
use tinderbox::train::{Interrupter, Start, Summary, TrainError, train_on};

use crate::fixtures::{Place, largest_difference, losses_of, silent};

/// Trains on this many devices, which succeeds.
fn trained(place: &Place, n: usize, run: &str, start: Start, settings: &[&str]) -> Summary {
    train(place, n, run, start, settings).expect("the run trains")
}

fn train(place: &Place, n: usize, run: &str, start: Start, settings: &[&str]) -> Result<Summary, TrainError> {
    let rows = ["train.batch_size=5", "train.grad_accumulation_steps=2"];
    let logs = ["train.log_interval=1", "train.checkpoint_interval=10"];
    let config = place.config(&[&rows, &logs, settings].concat());
    let job = place.job(run, config, start);
    let others = vec![job.device.clone(); n - 1];
    train_on(job, &others, silent(), &Interrupter::new(), |_, _, _| panic!("no step is skipped"))
}

fn losses(place: &Place, run: &str) -> Vec<f64> {
    losses_of(&place.read(&format!("{run}/metrics.jsonl")))
}

#[test]
fn several_devices_repeat_run_of_one() {
    let place = Place::new();
    let one = trained(&place, 1, "one", Start::New, &["train.max_steps=30"]);
    for n in [2, 3] {
        let run = format!("{n}-devices");
        let several = trained(&place, n, &run, Start::New, &["train.max_steps=30"]);
        let [several, one] = [&several, &one].map(|summary| summary.val_loss.expect("the run is evaluated"));
        assert!((several - one).abs() < 1e-5, "{several} {one}");
        assert!(losses(&place, "one").len() > 30 && apart(&place, "one", &run) < 1e-5);
    }
}

fn apart(place: &Place, one: &str, other: &str) -> f64 {
    largest_difference(&losses(place, one), &losses(place, other))
}

/// Trains a run of twenty steps on two devices in one piece and in two, which must not matter.
fn expect_to_go_on(place: &Place, settings: &[&str]) {
    for (run, start, max_steps) in
        [("whole", Start::Overwrite, 20), ("parts", Start::Overwrite, 10), ("parts", Start::Resume, 20)]
    {
        let max_steps = format!("train.max_steps={max_steps}");
        let settings = [&["schedule.kind=\"constant\"", "train.eval_interval=0", &max_steps], settings].concat();
        trained(place, 2, run, start, &settings);
    }
    let files = ["model", "optimizer"].map(|name| format!("checkpoints/step-000020/{name}.safetensors"));
    place.assert_same("whole", "parts", &files.each_ref().map(String::as_str));
}

#[test]
fn resume_keeps_bytes_with_equal_devices() {
    let place = Place::new();
    expect_to_go_on(&place, &[]);
    let more = ["schedule.kind=\"constant\"", "train.eval_interval=0", "train.max_steps=24"];
    assert_eq!(trained(&place, 3, "parts", Start::Resume, &more).steps, 24);
}

const LOCAL: [&str; 2] = ["distributed.sync=\"local\"", "distributed.local_steps=5"];
const AVERAGE: [&str; 2] = ["distributed.outer_learning_rate=1.0", "distributed.outer_momentum=0.0"];

#[test]
fn local_steps_average_weights_and_resume() {
    let place = Place::new();
    trained(&place, 2, "local", Start::New, &[&LOCAL[..], &AVERAGE, &["train.max_steps=20"]].concat());
    let losses = losses(&place, "local");
    assert!(losses[19] < losses[0] - 0.5, "{losses:?}");
    for kind in ["optimizer.kind=\"adamw\"", "optimizer.kind=\"muon\""] {
        expect_to_go_on(&place, &[&LOCAL[..], &[kind]].concat());
    }
}

#[test]
fn equal_local_steps_equal_one_device() {
    let place = Place::new();
    // One row: each of two devices takes the same step as a single one, so averaging changes nothing.
    let one_row = ["train.batch_size=1", "train.grad_accumulation_steps=1", "train.max_steps=20"];
    trained(&place, 1, "one", Start::New, &one_row);
    trained(&place, 2, "average", Start::New, &[&one_row[..], &LOCAL, &AVERAGE].concat());
    assert!(apart(&place, "average", "one") < 1e-5);
    trained(&place, 2, "outer", Start::New, &[&one_row[..], &LOCAL].concat());
    assert!(apart(&place, "outer", "one") > 1e-4, "the outer steps go another way");
}

#[test]
fn bf16_gradients_stay_close() {
    let place = Place::new();
    let calm = ["train.max_steps=60", "optimizer.learning_rate=1e-3"];
    let bf16 = [&calm[..], &["distributed.gradient_dtype=\"bf16\""]].concat();
    trained(&place, 3, "f32", Start::New, &calm);
    for run in ["bf16", "again"] {
        trained(&place, 3, run, Start::New, &bf16);
    }
    place.assert_same("bf16", "again", &["checkpoints/step-000060/model.safetensors"]);
    let difference = apart(&place, "bf16", "f32");
    assert!((1e-6..0.02).contains(&difference), "{difference}");
}

#[test]
fn failed_start_ends_all_devices() {
    let place = Place::new();
    let error = train(&place, 3, "run", Start::New, &["data.path=\"-\""]).expect_err("no text");
    assert!(matches!(error, TrainError::Distributed(DistributedError::StandardInput)), "{error}");
}

#[test]
fn non_finite_loss_ends_all_devices() {
    let place = Place::new();
    let settings = ["optimizer.learning_rate=3e38", "optimizer.weight_decay=0", "schedule.warmup_steps=0"];
    for sync in ["step", "local"] {
        let sync_is = format!("distributed.sync=\"{sync}\"");
        let error = train(&place, 3, sync, Start::New, &[&settings[..], &[&sync_is]].concat()).expect_err("no loss");
        assert!(matches!(error, TrainError::NotFinite { .. }), "{error}");
    }
}
