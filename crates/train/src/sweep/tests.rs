use std::fs;

use tempfile::TempDir;

use super::*;

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

#[test]
fn sweep_ranks_trials_after_equal_time() {
    let dir = tempfile::tempdir().unwrap();
    let request = Request { n_seeds: 2, ..request(&dir, &[RATES]) };
    let root = dir.path().join("sweep");
    let outcome = sweep(&request, &root);
    assert_eq!(outcome.plan.n_settings, 4, "{outcome:?}");
    let losses: Vec<f64> = outcome.trials.iter().map(|row| row.bits_per_byte.unwrap()).collect();
    assert!(losses.is_sorted() && outcome.trials.iter().all(|row| row.step == Some(36)), "{outcome:?}");
    assert!(outcome.trials.iter().all(|row| row.seeds.is_some_and(|[low, high]| low < high)), "{outcome:?}");

    // The best config is the base config with the best values.
    let best = outcome.best().unwrap();
    let toml = fs::read_to_string(root.join(BEST)).unwrap();
    let loaded = Config::from_toml(&toml, Path::new("best.toml"), &[]).unwrap();
    assert_eq!(loaded.optimizer.learning_rate.to_string(), best.values[0]);
    assert_eq!(loaded.train.max_steps, 36);
    assert!(toml.contains("# Chosen by the sweep.") && toml.contains("0.01:"), "{toml}");
    assert_eq!(sweep(&request, &root), outcome, "the same request shows the finished sweep again");
}

#[test]
fn earlier_random_sweeps_are_shown_and_halving_refused() {
    let dir = tempfile::tempdir().unwrap();
    let request = request(&dir, &["optimizer.learning_rate=1e-3,1e-2"]);
    let root = dir.path().join("sweep");
    let outcome = sweep(&request, &root);
    // As earlier versions logged a random sweep, in one rung.
    let log = fs::read_to_string(root.join("log.jsonl")).unwrap();
    let earlier =
        log.replace("\"n_seeds\":1", "\"n_rungs\":1,\"n_seeds\":1").replace("\"seed\":0", "\"seed\":0,\"rung\":0");
    assert!(earlier.contains("n_rungs") && earlier.contains("\"rung\""), "{log}");
    fs::write(root.join("log.jsonl"), earlier).unwrap();
    assert_eq!(sweep(&request, &root), outcome);
    let json = fs::read_to_string(root.join("sweep.json")).unwrap();
    fs::write(root.join("sweep.json"), json.replace("\"random\"", "\"halving\"")).unwrap();
    let error = run(&request, &root, false, &|_| (), &Interrupter::new()).unwrap_err();
    assert!(matches!(error, SweepError::Damaged(_)), "{error}");
}

#[test]
fn settings_of_the_same_run_are_trained_once() {
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
fn untrainable_settings_are_rows_with_reasons() {
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
