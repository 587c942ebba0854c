//! Small but complete runs: trained, stopped, resumed, broken.

use std::path::PathBuf;

use burn::tensor::Device;
use tinderbox::data::{Corpus, OpenOptions, Split, Tokens};
use tinderbox::model::Gpt;
use tinderbox::run::{Checkpoint, RunDir};
use tinderbox::train::{Start, TrainError, Trainer};

use crate::fixtures::{Place, expect_close, fs, host, trainer, weights_of};

#[test]
fn run_learns_and_summary_adds_up() {
    let place = Place::new();
    let config = place.config(&[
        "train.max_steps=150",
        "model.dropout=0.0",
        "train.eval_interval=50",
        "train.checkpoint_interval=50",
        "train.log_interval=1",
    ]);
    let (summary, losses) = place.train("run", config.clone(), Start::New, None).expect("the run trains");
    assert_eq!(losses.len(), 150);
    assert!(losses[0] > 3.0 && losses[149] < 1.5, "from {} to {}", losses[0], losses[149]);
    assert_eq!(summary.tokens, 150 * 4 * 16);
    assert!(summary.best_val_loss <= summary.val_loss && summary.val_loss < Some(1.6), "{summary:?}");
    assert!(summary.train_s > 0.0 && summary.train_s < summary.wall_s);
    let run = place.run("run");
    assert_eq!(run.config().expect("its config"), Place::resolved(config));
    assert_eq!(run.checkpoint(summary.best_step.expect("the run was evaluated")), run.best().expect("a best"));
    let kept = fs::read_dir(place.path("run/checkpoints")).expect("it can be read").count();
    assert!((2..=3).contains(&kept), "{kept} checkpoints are kept, not the last two and the best");
}

#[cfg(target_os = "linux")]
#[test]
fn runs_with_names_in_other_encodings_are_listed_as_json() {
    use crate::fixtures::{Folder, Ran};
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::trained();
    let name = std::ffi::OsStr::from_bytes(b"runs/caf\xe9");
    fs::rename(folder.path("runs/tiny"), folder.path(name));
    assert_eq!(folder.json(&["runs", "--json"])[0]["run"], "runs/caf\u{fffd}");
    let mut command = folder.command(&["train", "tiny.toml", "--set", "train.max_steps=1", "--overwrite", "--json"]);
    command.arg("--run-dir").arg(name);
    let done = Ran::of(command).exits(0).stdout;
    assert!(done.contains("\"run_dir\":\"runs/caf\u{fffd}\""), "{done}");
}

/// A learning rate that works for a few steps and then diverges.
const EXPLODING: [&str; 4] = [
    "optimizer.learning_rate=1e9",
    "optimizer.grad_clip_norm=0.0",
    "schedule.warmup_steps=1000000000000",
    "train.sample_tokens=0",
];

#[test]
fn non_finite_loss_keeps_last_good_checkpoint() {
    let place = Place::new();
    let config = |more: &[&str]| place.config(&[&EXPLODING, more].concat());
    // Works for four steps: such a long warm-up leaves next to nothing of the learning rate.
    place.train("run", config(&["train.checkpoint_interval=1"]), Start::New, Some(4)).expect("the run trains");
    let explode = config(&["schedule.warmup_steps=0", "optimizer.learning_rate=1e30"]);
    let error = place.train("run", explode, Start::Resume, None).expect_err("it cannot go well");
    let TrainError::NotFinite { step, .. } = error else { panic!("{error}") };
    assert!(step > 4, "{step}");
    let run = place.run("run");
    assert_eq!(run.last().expect("a checkpoint"), run.checkpoint(4), "nothing worse was kept");
    let sane = config(&["optimizer.learning_rate=1e-3", "schedule.warmup_steps=0"]);
    place.train("run", sane, Start::Resume, None).expect("the run resumes from there");
}

#[test]
fn first_non_finite_loss_keeps_nothing_and_names_learning_rate() {
    let place = Place::new();
    for (kind, hint) in [
        ("optimizer.kind=\"adamw\"", "lower optimizer.learning_rate, or lengthen"),
        ("optimizer.kind=\"muon\"", "lower optimizer.muon_learning_rate"),
    ] {
        let settings = ["optimizer.learning_rate=3e38", "schedule.warmup_steps=0", "train.max_steps=1", kind];
        let error = place.train("run", place.config(&settings), Start::Overwrite, None).expect_err("it diverges");
        assert!(matches!(error, TrainError::NotFinite { step: 1, .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
        let run = place.run("run");
        assert!(run.last().is_err() && run.best().is_err(), "nothing was kept");
    }
}

#[test]
fn last_and_best_checkpoints_are_kept() {
    let place = Place::new();
    // A growing learning rate ruins what the first evaluation saw: the first stays the best.
    let config = place.config(&[
        "train.keep_checkpoints=1",
        "train.eval_interval=2",
        "optimizer.learning_rate=3.0",
        "schedule.kind=constant",
        "schedule.warmup_steps=12",
        "train.max_steps=12",
    ]);
    place.train("run", config, Start::New, None).expect("the run trains");
    let run = place.run("run");
    let best =
        Checkpoint::read_state(&run.last().expect("a last")).expect("it is whole").best.expect("the run was evaluated");
    assert!(best.step < 12, "the test wants a best checkpoint that is not the last");
    let mut kept: Vec<PathBuf> = fs::read_dir(place.path("run/checkpoints"))
        .expect("it can be read")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    kept.sort();
    assert_eq!(kept, [run.checkpoint(best.step), run.checkpoint(12)]);
    fs::write(place.path("run/best"), "step-000777\n");
    assert!(run.best().is_err(), "a best that is not there is no reason to take another");
}

#[test]
fn lock_admits_one_process_per_run() {
    let place = Place::new();
    let held = RunDir::lock(&place.path("run")).expect("no other process holds the run");
    let error = place.train("run", place.config(&[]), Start::New, None).expect_err("held");
    assert!(error.to_string().contains("another process is training"), "{error}");
    drop(held);
    place.train("run", place.config(&[]), Start::New, None).expect("free again");
}

#[test]
fn accumulated_gradients_equal_one_large_batch() {
    let place = Place::new();
    let trained = |batch_size: usize, n: usize| {
        let batch = format!("train.batch_size={batch_size}");
        let config = place.config(&["model.dropout=0.0", &batch, &format!("train.grad_accumulation_steps={n}")]);
        let (mut trainer, _) = trainer(&config, &Device::flex());
        let losses: Vec<f32> = (0..5).map(|_| host(trainer.step().loss)[0]).collect();
        (losses, weights_of(&trainer))
    };
    let ((one_losses, one), (parts_losses, parts)) = (trained(8, 1), trained(2, 4));
    expect_close("losses", &parts_losses, &one_losses, 1e-5);
    for (name, tensor) in one {
        expect_close(&name, &parts[&name].values, &tensor.values, 2e-5);
    }
}

#[test]
fn patience_counts_evaluations_since_best() {
    let place = Place::new();
    let stopping = ["train.max_steps=500", "train.early_stopping_patience=2", "train.eval_interval=2"];
    let summary =
        place.trained("run", &[&stopping[..], &["optimizer.learning_rate=0.5", "schedule.kind=constant"]].concat());
    assert!(summary.steps < 500 && !summary.interrupted, "{summary:?}");
    let last = place.run("run").last().expect("a checkpoint");
    let best = Checkpoint::read_state(&last).expect("it is whole").best.expect("the run was evaluated");
    assert_eq!(summary.steps, best.step + 4, "two evaluations after the best one");
}

#[test]
fn text_in_memory_trains_like_text_on_disk() {
    let place = Place::new();
    let config = place.config(&[]);
    let corpus = Corpus::open(&config, OpenOptions::default()).expect("a corpus");
    let text = corpus.train.texts().next().expect("one text").clone();
    let mut ids = vec![0; text.len()];
    text.read(0, &mut ids);
    let ids: Vec<u32> = ids.into_iter().map(i32::cast_unsigned).collect();
    let weights = |tokens: Tokens| {
        let gpt = Gpt::new(&config.model, corpus.tokenizer.vocab_size(), 1, &Device::flex().autodiff());
        let mut trainer = Trainer::new(gpt, &config, Split::from(tokens));
        trainer.step();
        weights_of(&trainer)
    };
    assert_eq!(weights(Tokens::from_ids(&ids, text.bytes())), weights(text));
}

/// A change that should not affect numbers must keep these, the first losses of a fixed run.
#[test]
fn fixed_run_has_golden_losses() {
    let place = Place::new();
    let config = place.config(&["train.max_steps=8", "train.log_interval=1"]);
    let (_, losses) = place.train("run", config, Start::New, None).expect("the run trains");
    let golden = [3.4848318, 3.460958, 3.3932996, 3.3160253, 3.2107446, 3.1830971, 3.085939, 3.102891];
    expect_close("losses", &losses, &golden, 2e-4);
}
