//! Small but complete runs: trained, stopped, resumed, broken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use tinderbox::config::Config;
use tinderbox::data::{Corpus, OpenOptions, Split, Tokens};
use tinderbox::device;
use tinderbox::model::Gpt;
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::run::{Best, Checkpoint, RunDir, TrainState};
use tinderbox::train::{Event, Interrupter, Job, Observer, Start, Summary, TrainError, Trainer, train};

use crate::fixtures::expect_close;

/// A folder with a text and a cache, removed at the end.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("text.txt"), text()).expect("written");
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A config for a tiny model on the text, with `overrides`.
    pub fn config(&self, overrides: &[&str]) -> Config {
        let toml = format!(
            "data = {{ path = {:?}, cache_dir = {:?} }}
             model = {{ context_length = 16, d_model = 16, n_layers = 2, n_heads = 2, dropout = 0.1 }}
             optimizer = {{ learning_rate = 1e-2 }}
             schedule = {{ warmup_steps = 3 }}
             [train]
             device = \"flex\"
             max_steps = 10
             batch_size = 4
             log_interval = 3
             eval_interval = 4
             eval_batches = 2
             checkpoint_interval = 2
             sample_tokens = 20",
            self.path("text.txt"),
            self.path("cache"),
        );
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        Config::from_toml(&toml, Path::new("test.toml"), &overrides).expect("a valid config")
    }

    /// Trains in the folder `run`, and returns the logged losses; presses Ctrl-C in step `stop_after`.
    pub fn train(
        &self,
        run: &str,
        config: Config,
        start: Start,
        stop_after: Option<usize>,
    ) -> Result<(Summary, Vec<f32>), TrainError> {
        self.train_from(None, run, config, start, stop_after)
    }

    /// Like [`Place::train`], from the weights of the run or checkpoint `from` in this folder.
    pub fn train_from(
        &self,
        from: Option<&str>,
        run: &str,
        config: Config,
        start: Start,
        stop_after: Option<usize>,
    ) -> Result<(Summary, Vec<f32>), TrainError> {
        let device = device::open(&config.train.device.parse().expect("a device")).expect("opens");
        let interrupter = Interrupter::new();
        let losses = Arc::new(Mutex::new(Vec::new()));
        let watcher = Watcher { stop_after, interrupter: interrupter.clone(), losses: losses.clone() };
        let job = Job { config, run_dir: self.path(run), start, from: from.map(|from| self.path(from)), device };
        let summary = train(job, Box::new(watcher), &interrupter)?;
        let losses = losses.lock().expect("nobody panicked").clone();
        Ok((summary, losses))
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Asserts that two runs have the same bytes in each of these files.
    pub fn assert_same(&self, one: &str, other: &str, files: &[&str]) {
        for file in files {
            let (one, other) = (self.read(&format!("{one}/{file}")), self.read(&format!("{other}/{file}")));
            assert!(one == other, "{file} differs");
        }
    }
}

/// The files that runs of ten steps have in common, whatever happened along the way.
pub const TEN_STEPS: [&str; 8] = [
    "checkpoints/step-000010/model.safetensors",
    "checkpoints/step-000010/optimizer.safetensors",
    "checkpoints/step-000010/state.json",
    "metrics.jsonl",
    "samples.txt",
    "config.toml",
    "best",
    "last",
];

/// About 9 kB of sentences with something to learn.
pub fn text() -> String {
    let animals = ["cat", "dog", "fox", "owl", "hen"];
    let places = ["bank", "river", "house", "tree"];
    let sentence = |i: usize| {
        let (animal, place) = (animals[i * i % 5], places[i * 7 % 11 % 4]);
        format!("The {animal} sat by the {place} and was {} old.\n", i % 13)
    };
    (0..240).map(sentence).collect()
}

struct Watcher {
    stop_after: Option<usize>,
    interrupter: Interrupter,
    losses: Arc<Mutex<Vec<f32>>>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Stepped { step, .. } if Some(*step) == self.stop_after => {
                self.interrupter.stop(None);
            }
            Event::Logged(logged) => {
                let mut losses = self.losses.lock().expect("nobody panicked");
                losses.push(logged.train_loss as f32);
            }
            _ => {}
        }
    }
}

#[test]
fn a_stopped_and_resumed_run_ends_with_the_same_bytes() {
    let place = Place::new();
    place.train("whole", place.config(&[]), Start::New, None).expect("trains");
    let (stopped, _) = place.train("parts", place.config(&[]), Start::New, Some(5)).expect("trains");
    assert!(stopped.interrupted && stopped.steps == 5 && stopped.val_loss.is_none());
    let (resumed, _) = place.train("parts", place.config(&[]), Start::Resume, None).expect("trains");
    assert!(!resumed.interrupted && resumed.steps == 10);
    place.assert_same("whole", "parts", &TEN_STEPS);
}

#[test]
fn a_run_that_died_goes_on_from_its_last_checkpoint_with_its_logs_cut_back() {
    let place = Place::new();
    place.train("whole", place.config(&[]), Start::New, None).expect("trains");
    let config = place.config(&["train.keep_checkpoints=5"]);
    place.train("died", config.clone(), Start::New, Some(8)).expect("trains");
    // As if the process had been killed between steps 6 and 8, in mid-line and mid-save.
    fs::write(place.path("died/last"), "step-000006\n").expect("written");
    let half = fs::read_to_string(place.path("died/metrics.jsonl")).expect("read") + "{\"step\":9,\"tr";
    fs::write(place.path("died/metrics.jsonl"), half).expect("written");
    fs::create_dir(place.path("died/checkpoints/.step-000010.partial")).expect("made");
    place.train("died", config, Start::Resume, None).expect("trains");
    place.assert_same("whole", "died", &["checkpoints/step-000010/model.safetensors", "metrics.jsonl", "samples.txt"]);
    assert!(!place.path("died/checkpoints/.step-000010.partial").exists());
}

#[test]
fn two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not() {
    let place = Place::new();
    let weights = |run: &str, overrides: &[&str]| {
        place.train(run, place.config(overrides), Start::New, None).expect("trains");
        place.read(&format!("{run}/checkpoints/step-000010/model.safetensors"))
    };
    let one = weights("one", &[]);
    assert!(one == weights("two", &[]), "the same seed");
    assert!(one != weights("three", &["train.seed=4"]), "another seed");
}

#[test]
fn a_run_learns_and_its_summary_adds_up() {
    let place = Place::new();
    let config =
        place.config(&["train.max_steps=150", "model.dropout=0.0", "train.eval_interval=50", "train.log_interval=1"]);
    let (summary, losses) = place.train("run", config.clone(), Start::New, None).expect("trains");
    assert_eq!(losses.len(), 150);
    assert!(losses[0] > 3.0 && losses[149] < 1.5, "from {} to {}", losses[0], losses[149]);
    assert_eq!(summary.tokens, 150 * 4 * 16);
    assert!(summary.best_val_loss <= summary.val_loss && summary.val_loss < Some(1.6), "{summary:?}");
    assert!(summary.train_s > 0.0 && summary.train_s < summary.wall_s);
    let run = RunDir::open(&place.path("run")).expect("a run");
    assert_eq!(run.config().expect("its config"), config);
    assert_eq!(run.checkpoint(summary.best_step.expect("evaluated")), run.best().expect("a best"));
    let kept = fs::read_dir(place.path("run/checkpoints")).expect("read").count();
    assert!((2..=3).contains(&kept), "{kept} checkpoints are kept, not the last two and the best");
}

/// A learning rate that works for a few steps and then diverges.
const EXPLODING: [&str; 4] = [
    "optimizer.learning_rate=1e9",
    "optimizer.grad_clip_norm=0.0",
    "schedule.warmup_steps=1000000000000",
    "train.sample_tokens=0",
];

#[test]
fn a_loss_that_is_not_finite_names_its_step_and_leaves_the_last_good_checkpoint() {
    let place = Place::new();
    let config = |more: &[&str]| place.config(&[&EXPLODING, more].concat());
    // Works for four steps: such a long warm-up leaves next to nothing of the learning rate.
    place.train("run", config(&["train.checkpoint_interval=1"]), Start::New, Some(4)).expect("trains");
    let explode = config(&["schedule.warmup_steps=0", "optimizer.learning_rate=1e30"]);
    let error = place.train("run", explode, Start::Resume, None).expect_err("it cannot go well");
    let TrainError::NotFinite { step, .. } = error else { panic!("{error}") };
    assert!(step > 4, "{step}");
    let run = RunDir::open(&place.path("run")).expect("a run");
    assert_eq!(run.last().expect("a checkpoint"), run.checkpoint(4), "nothing worse was kept");
    let sane = config(&["optimizer.learning_rate=1e-3", "schedule.warmup_steps=0"]);
    place.train("run", sane, Start::Resume, None).expect("it goes on from there");
}

#[test]
fn a_loss_that_is_not_finite_names_the_learning_rates_of_its_optimizer() {
    let place = Place::new();
    let hint = |kind: &str| {
        let config = place.config(&["optimizer.learning_rate=3e38", "schedule.warmup_steps=0", kind]);
        let error = place.train("run", config, Start::Overwrite, None);
        error.expect_err("it cannot go well").to_string()
    };
    let adamw = hint("optimizer.kind=\"adamw\"");
    assert!(adamw.contains("lower optimizer.learning_rate, or lengthen"), "{adamw}");
    let muon = hint("optimizer.kind=\"muon\"");
    assert!(muon.contains("lower optimizer.muon_learning_rate"), "{muon}");
}

#[test]
fn weights_that_the_last_update_broke_are_neither_best_nor_kept() {
    let place = Place::new();
    let config = place.config(&[
        "optimizer.learning_rate=3e38",
        "schedule.warmup_steps=0",
        "train.max_steps=1",
        "train.sample_tokens=0",
    ]);
    let error = place.train("run", config, Start::New, None).expect_err("no loss is a number any more");
    assert!(matches!(error, TrainError::NotFinite { step: 1, .. }), "{error}");
    let run = RunDir::open(&place.path("run")).expect("a run");
    assert!(run.last().is_err() && run.best().is_err(), "nothing was kept");
}

#[test]
fn only_the_last_few_checkpoints_and_the_best_are_kept() {
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
    place.train("run", config, Start::New, None).expect("trains");
    let run = RunDir::open(&place.path("run")).expect("a run");
    let best = Checkpoint::read_state(&run.last().expect("a last")).expect("whole").best.expect("evaluated");
    assert!(best.step < 12, "the test wants a best checkpoint that is not the last");
    let mut kept: Vec<PathBuf> = fs::read_dir(place.path("run/checkpoints"))
        .expect("read")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    kept.sort();
    assert_eq!(kept, [run.checkpoint(best.step), run.checkpoint(12)]);
    fs::write(place.path("run/best"), "step-000777\n").expect("written");
    assert!(run.best().is_err(), "a best that is not there is no reason to take another");
}

#[test]
fn every_checkpoint_is_kept_if_all_are_asked_for() {
    let place = Place::new();
    let config = place.config(&["train.keep_checkpoints=all", "train.checkpoint_interval=2", "train.max_steps=10"]);
    place.train("run", config, Start::New, None).expect("trains");
    let run = RunDir::open(&place.path("run")).expect("a run");
    let steps: Vec<usize> = run.kept().expect("read").into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [2, 4, 6, 8, 10]);
    assert!(fs::read_to_string(place.path("run/config.toml")).expect("read").contains("keep_checkpoints = \"all\""));
}

#[test]
fn the_state_of_a_run_is_read_back_exactly() {
    let place = Place::new();
    let mut state = 1_u64;
    for step in 0..300 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let val_loss = 1.0 + 3.0 * (state >> 11) as f64 / (1_u64 << 53) as f64;
        let best = Some(Best { step, val_loss });
        let state = TrainState { step, best, train_loss: Some(val_loss), ..TrainState::default() };
        let saved = Checkpoint { model: Default::default(), optimizer: Default::default(), state };
        let dir = place.path(&format!("step-{step:06}"));
        saved.write(&dir).expect("written");
        assert_eq!(Checkpoint::read_state(&dir).expect("read"), saved.state);
    }
}

#[test]
fn one_process_trains_in_a_run_at_a_time() {
    let place = Place::new();
    let held = RunDir::lock(&place.path("run")).expect("free");
    let error = place.train("run", place.config(&[]), Start::New, None).expect_err("held");
    assert!(error.to_string().contains("another process is training"), "{error}");
    drop(held);
    place.train("run", place.config(&[]), Start::New, None).expect("free again");
}

#[test]
fn a_run_that_was_stopped_in_its_last_evaluation_can_be_finished() {
    let place = Place::new();
    place.train("run", place.config(&[]), Start::New, None).expect("trains");
    let metrics = fs::read_to_string(place.path("run/metrics.jsonl")).expect("read");
    let (all_but_last, _) = metrics.trim_end().rsplit_once('\n').expect("lines");
    fs::write(place.path("run/metrics.jsonl"), format!("{all_but_last}\n")).expect("written");
    let (summary, _) = place.train("run", place.config(&[]), Start::Resume, None).expect("finishes");
    assert!(summary.val_loss.is_some() && summary.steps == 10);
    assert_eq!(fs::read_to_string(place.path("run/metrics.jsonl")).expect("read"), metrics);
}

#[test]
fn a_run_is_never_silently_replaced() {
    let place = Place::new();
    let train = |start| place.train("run", place.config(&["train.max_steps=2"]), start, None);
    train(Start::New).expect("trains");
    let before = place.read("run/checkpoints/step-000002/state.json");
    let error = train(Start::New).expect_err("a run is there").to_string();
    assert!(error.contains("--resume") && error.contains("--overwrite"), "{error}");
    assert_eq!(before, place.read("run/checkpoints/step-000002/state.json"));
    assert!(matches!(train(Start::Resume), Err(TrainError::AlreadyDone { step: 2, .. })));
    train(Start::Overwrite).expect("trains");
    fs::create_dir(place.path("mine")).expect("made");
    fs::write(place.path("mine/thesis.txt"), "years of work").expect("written");
    place.train("mine", place.config(&[]), Start::Overwrite, None).expect_err("not a run");
    assert_eq!(place.read("mine/thesis.txt"), b"years of work");
}

#[test]
fn a_run_does_not_go_on_as_another_model() {
    let place = Place::new();
    place.train("run", place.config(&[]), Start::New, Some(2)).expect("trains");
    let other = place.config(&["model.d_model=32", "train.seed=9", "train.batch_size=5"]);
    let error = place.train("run", other, Start::Resume, None).expect_err("another model").to_string();
    assert!(error.contains("model.d_model was 16 and is now 32"), "{error}");
    assert!(error.contains("train.seed") && error.contains("train.batch_size"), "{error}");
    let longer = place.config(&["train.max_steps=12"]);
    place.train("run", longer, Start::Resume, None).expect("a longer run is the same model");
}

#[test]
fn accumulated_gradients_make_the_update_of_one_large_batch() {
    let place = Place::new();
    let weights = |batch_size: usize, n: usize| {
        let config = place.config(&[
            "model.dropout=0.0",
            &format!("train.batch_size={batch_size}"),
            &format!("train.grad_accumulation_steps={n}"),
        ]);
        let mut trainer = trainer(&config);
        let losses: Vec<f32> = (0..5).map(|_| trainer.step().loss.into_scalar()).collect();
        (losses, weights_of(&trainer))
    };
    let ((one_losses, one), (parts_losses, parts)) = (weights(8, 1), weights(2, 4));
    expect_close("losses", &parts_losses, &one_losses, 1e-5);
    for (name, tensor) in one {
        expect_close(&name, &parts[&name].values, &tensor.values, 2e-5);
    }
}

/// The weights that a trainer would save at this point.
fn weights_of(trainer: &Trainer) -> BTreeMap<String, HostTensor> {
    let saved = trainer.checkpoint(Default::default());
    parameters::to_host(&saved.model).expect("its device works")
}

fn trainer(config: &Config) -> Trainer {
    let corpus = Corpus::open(config, OpenOptions::default());
    let corpus = corpus.expect("a corpus");
    let device = Device::flex().autodiff();
    let gpt = Gpt::new(&config.model, corpus.tokenizer.vocab_size(), config.train.seed, &device);
    Trainer::new(gpt, config, corpus.train)
}

#[test]
fn only_matrices_decay() {
    let place = Place::new();
    let config = place.config(&["optimizer.weight_decay=50.0", "model.bias=true"]);
    let mut trainer = trainer(&config);
    let norms = |trainer: &Trainer| {
        let model = weights_of(trainer);
        let norm = |name: &str| model[name].values.iter().map(|x| x * x).sum::<f32>().sqrt();
        [norm("blocks.0.mlp.expand.weight"), norm("norm.weight")]
    };
    let [matrix_before, scale_before] = norms(&trainer);
    for _ in 0..4 {
        trainer.step();
    }
    let [matrix_after, scale_after] = norms(&trainer);
    assert!(matrix_after < 0.6 * matrix_before, "{matrix_after} of {matrix_before}");
    assert!(scale_after > 0.95 * scale_before, "{scale_after} of {scale_before}");
}

#[test]
fn training_stops_early_when_nothing_gets_better() {
    let place = Place::new();
    let config = place.config(&[
        "train.max_steps=500",
        "train.early_stopping_patience=2",
        "train.eval_interval=2",
        "optimizer.learning_rate=0.5",
        "schedule.kind=constant",
    ]);
    let (summary, _) = place.train("run", config, Start::New, None).expect("trains");
    assert!(summary.steps < 500 && !summary.interrupted, "{summary:?}");
    let last = RunDir::open(&place.path("run")).expect("a run").last().expect("a checkpoint");
    let best = Checkpoint::read_state(&last).expect("whole").best.expect("evaluated");
    assert_eq!(summary.steps, best.step + 4, "two evaluations after the best one");
}

/// A change that should not affect numbers must keep these, the first losses of a fixed run.
#[test]
fn the_golden_losses_of_a_fixed_run() {
    let place = Place::new();
    let config = place.config(&["train.max_steps=8", "train.log_interval=1"]);
    let (_, losses) = place.train("run", config, Start::New, None).expect("trains");
    let golden = [3.4848318, 3.460958, 3.3932996, 3.3160253, 3.2107446, 3.1830971, 3.085939, 3.102891];
    expect_close("losses", &losses, &golden, 2e-4);
}

#[test]
fn a_text_in_memory_trains_like_one_on_the_disk() {
    let place = Place::new();
    let config = place.config(&[]);
    let corpus = Corpus::open(&config, OpenOptions::default());
    let corpus = corpus.expect("a corpus");
    let text = corpus.train.texts().next().expect("one text").clone();
    let mut ids = vec![0; text.len()];
    text.read(0, &mut ids);
    let ids: Vec<u32> = ids.into_iter().map(|id| u32::try_from(id).expect("an id")).collect();
    let tokens = Tokens::from_ids(&ids, text.bytes());
    let device = Device::flex().autodiff();
    let gpt = || Gpt::new(&config.model, corpus.tokenizer.vocab_size(), 1, &device);
    let weights = |tokens: Tokens| {
        let mut trainer = Trainer::new(gpt(), &config, Split::from(tokens));
        trainer.step();
        weights_of(&trainer)
    };
    assert_eq!(weights(tokens), weights(text.clone()));
    assert_ne!(parameters::read(&gpt()), weights(text), "a step changes weights");
}
