//! Sweeps as a user makes them, killed on the way.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::cli::Folder;

const SWEEP: [&str; 11] = [
    "sweep",
    "tiny.toml",
    "--space",
    "optimizer.learning_rate=1e-3,1e-2,2e-2,1e30",
    "--budget",
    "1h",
    "--seeds",
    "2",
    "--set",
    "train.max_steps=120",
    "--json",
];

/// The JSON object without the name of the folder.
fn table(stdout: &str) -> serde_json::Value {
    let mut object: serde_json::Value =
        serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    object.as_object_mut().expect("an object").remove("sweep_dir").expect("the folder");
    object
}

#[test]
fn a_sweep_that_is_killed_goes_on_and_ends_with_the_same_table() {
    let folder = Folder::new();
    // While it measures, within its runs and between them: each time it has done a little more.
    let mut n_killed = 0;
    for pause_ms in [0, 0, 10, 40, 5, 80, 20] {
        let mut started = folder.start(&SWEEP);
        let said = if n_killed == 0 { "up to" } else { "trial " };
        let has_more = started.find(said).is_ok();
        sleep(Duration::from_millis(pause_ms));
        n_killed += usize::from(started.kill() && has_more);
    }
    assert!(n_killed >= 4, "only {n_killed} were killed before their end");
    let killed = folder.succeed(&SWEEP);

    // What was measured is the only thing that depends on the clock: another sweep that begins with it.
    let log = fs::read_to_string(folder.path("sweeps/tiny/log.jsonl")).expect("a log");
    let measured: String = log
        .split_inclusive('\n')
        .filter(|line| line.contains("\"planned\"") || line.contains("\"prepared\""))
        .collect();
    assert_eq!(measured.lines().count(), 1 + 4, "{log}");
    fs::create_dir_all(folder.path("whole")).expect("made");
    folder.write("whole/log.jsonl", measured);
    folder.write("whole/sweep.json", folder.read("sweeps/tiny/sweep.json"));
    let whole = folder.succeed(&[&SWEEP[..], &["--sweep-dir", "whole"]].concat());
    assert_eq!(table(&killed), table(&whole));
    for run in ["trial-001", "trial-002"] {
        let metrics = |sweep: &str| folder.read(&format!("{sweep}/runs/{run}/metrics.jsonl"));
        assert_eq!(metrics("sweeps/tiny"), metrics("whole"), "{run}");
    }

    let table = table(&killed);
    assert_eq!(table["trials"].as_array().map(Vec::len), Some(4));
    let diverged = table["trials"].as_array().and_then(|rows| rows.iter().find(|row| row["values"][0] == "1e30"));
    let why = diverged.expect("a row")["reason"].as_str().expect("a reason");
    assert!(why.contains("of step"), "{why}");
    let error = folder.fail(&[&SWEEP[..], &["--method", "grid"]].concat());
    assert!(error.contains("--method") && error.contains("--overwrite"), "{error}");
    let text = folder.succeed(&SWEEP[..10]);
    assert!(text.contains("BITS/BYTE") && text.contains("learning_rate=1e30"), "{text}");
    folder.succeed(&["plan", "sweeps/tiny/best.toml", "--no-measure"]);
}

#[test]
fn a_mistake_is_told_before_anything_is_made() {
    let folder = Folder::new();
    let fails = |space: &str, more: &[&str]| {
        let error = folder.fail(&[&["sweep", "tiny.toml", "--space", space, "--budget", "1m"], more].concat());
        assert!(!folder.path("sweeps").exists(), "{error}");
        error
    };
    assert!(fails("model.mlpp=gelu,swiglu", &[]).contains("did you mean `model.mlp`?"));
    assert!(fails("model.dropout=0..0.3", &["--method", "grid"]).contains("--method random"));
}
