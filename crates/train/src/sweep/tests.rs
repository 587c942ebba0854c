use std::fs;

use tempfile::TempDir;

use super::*;
use crate::train::{self, Event, Job, Observer, Start};

/// A request for a tiny model on a text with something to learn.
fn request(dir: &TempDir, space: &[&str]) -> Request {
    let sentence = |i: usize| format!("The {} sat by {} old trees.\n", ["cat", "dog"][i % 2], i * i % 13);
    let text: String = (0..300).map(sentence).collect();
    fs::write(dir.path().join("text.txt"), text).unwrap();
    let config = format!(
        "data = {{ path = {:?}, cache_dir = {:?} }}\n\
         model = {{ context_length = 16, d_model = 16, n_layers = 1, n_heads = 2, dropout = 0.1 }}\n\
         optimizer = {{ learning_rate = 1e-3, grad_clip_norm = 0.0 }}\n\
         schedule = {{ warmup_steps = 2, min_learning_rate = 0.0 }}\n\
         [train]\ndevice = \"flex\"\nmax_steps = 36\nbatch_size = 4\neval_batches = 2\nlog_interval = 4\n",
        dir.path().join("text.txt"),
        dir.path().join("cache"),
    );
    Request {
        config,
        config_name: "tiny.toml".into(),
        space: space.iter().map(ToString::to_string).collect(),
        budget_s: 3600.0,
        n_seeds: 1,
        ..Request::default()
    }
}

fn sweep(request: &Request, root: &Path) -> Outcome {
    run(request, root, false, &|_| (), &Interrupter::new()).unwrap()
}

const RATES: &str = "optimizer.learning_rate=1e-3,1e-2,2e-2,3e-4";

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

#[test]
fn halving_promotes_the_best_whose_run_is_the_same_as_without_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let request = Request { n_seeds: 2, ..request(&dir, &[RATES]) };
    let root = dir.path().join("sweep");
    let outcome = sweep(&request, &root);
    assert_eq!((outcome.course.n_settings, outcome.course.n_rungs), (4, 2), "{outcome:?}");
    let [best, others @ ..] = &outcome.trials[..] else { panic!("no rows") };
    assert_eq!((best.rung, best.step), (Some(1), Some(36)));
    assert!(best.seeds.is_some_and(|[low, high]| low < high), "the last rung has two seeds: {best:?}");
    let base = outcome.base().unwrap();
    assert_eq!((base.rung, base.step, base.rungs.len()), (Some(1), Some(36), 2), "it is compared at the end: {base:?}");
    assert!(base.seeds.is_some() && base.bits_per_byte >= best.bits_per_byte, "with as many seeds");
    let out: Vec<&Row> = others.iter().filter(|row| row.trial != 0).collect();
    assert!(out.iter().all(|row| (row.rung, row.step) == (Some(0), Some(12))), "{outcome:?}");
    let of_first = |trial: usize| {
        let log = fs::read_to_string(root.join("log.jsonl")).unwrap();
        let entries = log.lines().map(|line| serde_json::from_str::<Entry>(line).unwrap());
        let mut of_trial = entries.filter_map(|entry| match entry {
            Entry::Reached { trial: found, rung: 0, bits_per_byte, .. } if found == trial => Some(bits_per_byte),
            _ => None,
        });
        of_trial.next().unwrap()
    };
    let log = fs::read_to_string(root.join("log.jsonl")).unwrap();
    assert_eq!(log.matches("the first rung compares settings after 12 steps").count(), 1, "{log}");
    assert!((0..4).all(|trial| of_first(best.trial) <= of_first(trial)), "the best of the first rung goes on");

    // The same config, trained without interruption.
    let promoted = root.join(&best.run);
    let config = Config::load_saved(&promoted.join("config.toml")).unwrap();
    let whole = dir.path().join("whole");
    let device = device::open(&"flex".parse().unwrap()).unwrap();
    let job = Job { config, run_dir: whole.clone(), start: Start::New, from: None, device };
    train::train(job, Box::new(Silent), &Interrupter::new()).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        let read = |root: &Path| fs::read(root.join("checkpoints/step-000036").join(file)).unwrap();
        assert!(read(&promoted) == read(&whole), "{file} differs");
    }
    let steps = fs::read_to_string(promoted.join("metrics.jsonl")).unwrap();
    assert_eq!(steps, fs::read_to_string(whole.join("metrics.jsonl")).unwrap(), "no step is repeated or left out");
    assert!(!root.join(&out[0].run).join("checkpoints").exists(), "what does not go on needs no checkpoint");

    // The best config is the base config with the best values.
    let toml = fs::read_to_string(root.join(BEST)).unwrap();
    let loaded = Config::from_toml(&toml, Path::new("best.toml"), &[]).unwrap();
    assert_eq!(loaded.optimizer.learning_rate.to_string(), best.values[0]);
    assert_eq!(loaded.train.max_steps, 36);
    assert!(toml.contains("# Chosen by the sweep.") && toml.contains("0.01:"), "{toml}");
    assert_eq!(sweep(&request, &root), outcome, "a sweep that is done is only shown again");
}

#[test]
fn a_key_that_changes_nothing_makes_no_second_run() {
    let dir = tempfile::tempdir().unwrap();
    let space = ["schedule.ramp_fraction=0.3,0.6", "schedule.initial_batch_size=4,2"];
    let request = Request { method: Method::Grid, ..request(&dir, &space) };
    let outcome = sweep(&request, &dir.path().join("sweep"));
    let steps = |values: [&str; 2]| {
        let row = outcome.trials.iter().find(|row| row.values == values).unwrap();
        row.step.ok_or_else(|| row.reason.clone().unwrap_or_default())
    };
    // A batch of 4 is the whole one from the first step on.
    assert_eq!(outcome.trials.len(), 5);
    for ramp in ["0.3", "0.6"] {
        assert_eq!(steps([ramp, "4"]), Err("it makes the same run as trial 0".to_owned()), "{outcome:?}");
    }
    // The shorter steps of the ramp leave time for more, in which as many tokens are read.
    let [short, long] = ["0.3", "0.6"].map(|ramp| steps([ramp, "2"]).unwrap());
    assert!(36 < short && short < long, "{short} {long}");
}

#[test]
fn what_cannot_be_trained_is_a_row_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    // At this rate even the steps that measure a setting would diverge.
    let space = ["optimizer.learning_rate=1e-3,1e30", "model.n_heads=1,3"];
    let request = Request { method: Method::Grid, ..request(&dir, &space) };
    let outcome = sweep(&request, &dir.path().join("sweep"));
    let reason = |values: [&str; 2]| {
        let row = outcome.trials.iter().find(|row| row.values == values).unwrap();
        row.reason.clone().unwrap_or_default()
    };
    assert_eq!(outcome.base().unwrap().values, ["0.001", "2"]);
    assert!(reason(["1e30", "1"]).contains("NaN") || reason(["1e30", "1"]).contains("inf"), "{outcome:?}");
    assert!(reason(["0.001", "3"]).contains("model.d_model = 16"), "{outcome:?}");
    assert_eq!(outcome.trials.len(), 5);

    let small = Request { max_parameters: Some(100), ..request };
    let error = run(&small, &dir.path().join("small"), false, &|_| (), &Interrupter::new()).unwrap_err();
    assert!(error.to_string().contains("parameters are more than 100"), "{error}");
}

#[test]
fn runs_without_a_result_are_not_promoted() {
    let mut results = Results::default();
    let prepared = |trial| Entry::Prepared { trial, parameters: 1, step_ms: 1.0, max_steps: 9 };
    (0..9).for_each(|trial| results.add(prepared(trial)));
    results.add(Entry::LeftOut { trial: 9, reason: String::new() });
    assert_eq!(results.in_rung(0), (0..9).collect::<Vec<_>>());
    for (trial, loss) in [5.0, 4.0, 4.0, 1.0, 9.0, 8.0, 7.0, 3.5].into_iter().enumerate() {
        results.add(Entry::Reached { trial, seed: 0, rung: 0, step: 1, bits_per_byte: loss });
    }
    results.add(Entry::Failed { trial: 8, seed: 0, rung: 0, reason: String::new() });
    assert_eq!(results.in_rung(1), [3, 7, 1, 0], "of equal ones the first, and the base config");
    assert_eq!(results.in_rung(2), [0_usize; 0], "none has come so far");
}
