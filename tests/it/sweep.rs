//! Sweeps as users run them, killed along the way.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

#[cfg(unix)]
use crate::browser::{Browser, SCREENS};
use crate::fixtures::{Folder, files};

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
    "train.max_steps=300",
    "--json",
];

/// The JSON object without the folder's name.
fn table(stdout: &str) -> serde_json::Value {
    let mut object: serde_json::Value = serde_json::from_str(stdout).expect("JSON");
    object.as_object_mut().expect("an object").remove("sweep_dir").expect("the folder");
    object
}

/// Lets the sweep in `new` start with the measurements of the one in `old`, everything that depends on the clock.
/// Returns their number of log lines.
fn begin_as(folder: &Folder, old: &str, new: &str) -> usize {
    let log = folder.read(&format!("{old}/log.jsonl"));
    let is_measured = |line: &&str| line.contains("\"planned\"") || line.contains("\"prepared\"");
    let measured: Vec<&str> = log.split_inclusive('\n').filter(is_measured).collect();
    fs::create_dir_all(folder.path(new)).expect("the folder can be made");
    folder.write(format!("{new}/log.jsonl"), measured.concat());
    folder.write(format!("{new}/sweep.json"), folder.read(&format!("{old}/sweep.json")));
    measured.len()
}

#[test]
fn killed_sweep_resumes_to_same_table() {
    let folder = Folder::new();
    // Killed while measuring, within runs and between them, after some bytes were written.
    let n_bytes = || n_bytes_in(&folder.path("sweeps"));
    let mut n_killed = 0;
    for n_more in [0, 0, 1, 1000, 100, 3000, 500] {
        let mut started = folder.start(&SWEEP);
        let said = if n_killed == 0 { "up to" } else { "trial " };
        let has_more = started.find(said).is_ok();
        let n_then = n_bytes();
        while n_bytes() < n_then + n_more && started.child.try_wait().expect("a status").is_none() {
            sleep(Duration::from_millis(1));
        }
        n_killed += usize::from(started.kill() && has_more);
    }
    assert!(n_killed >= 4, "only {n_killed} were killed before their end");
    let half = ["sweeps/tiny", "sweeps/tiny/runs/trial-000"];
    for dir in half {
        folder.write(format!("{dir}/.best.0123456789abcdef.partial"), "half");
    }
    let killed = folder.succeed(&SWEEP);
    let is_half = |path: &PathBuf| path.to_string_lossy().ends_with(".partial");
    assert!(!files(&folder.path("sweeps")).keys().any(is_half), "a finished sweep has whole files only");

    assert_eq!(begin_as(&folder, "sweeps/tiny", "whole"), 1 + 4, "each line is there once");
    let whole = folder.succeed(&[&SWEEP[..], &["--sweep-dir", "whole"]].concat());
    assert_eq!(table(&killed), table(&whole));
    let (found, expected) = (kept(&folder, "sweeps/tiny"), kept(&folder, "whole"));
    assert!(found.keys().eq(expected.keys()), "{:?} {:?}", found.keys(), expected.keys());
    assert!(found.keys().filter(|path| path.ends_with("model.safetensors")).count() >= 2, "{:?}", found.keys());
    for (path, bytes) in &found {
        assert!(*bytes == expected[path], "{} differs", path.display());
    }

    let table = table(&killed);
    assert_eq!(table["trials"].as_array().map(Vec::len), Some(4));
    let diverged = table["trials"].as_array().and_then(|rows| rows.iter().find(|row| row["values"][0] == "1e30"));
    let why = diverged.expect("a row")["reason"].as_str().expect("a reason");
    assert!(why.contains("of step"), "{why}");
    let error = folder.fail(&[&SWEEP[..], &["--method", "grid"]].concat());
    assert!(error.contains("--method") && error.contains("--overwrite"), "{error}");
    let text = folder.succeed(&SWEEP[..10]);
    assert!(text.contains("learning_rate  PARAMS") && text.contains("1e30"), "{text}");
    folder.succeed(&["plan", "sweeps/tiny/best.toml", "--no-measure"]);
    #[cfg(unix)]
    check_page(&folder, &table);
}

/// The bytes of all files in a folder, in which files come and go.
fn n_bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let n_bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => n_bytes_in(&entry.path()),
        metadata => metadata.map_or(0, |it| it.len()),
    };
    entries.map(n_bytes).sum()
}

/// Every setting and its loss are on the page, which fits every screen.
#[cfg(unix)]
fn check_page(folder: &Folder, table: &serde_json::Value) {
    let Some(mut browser) = Browser::start() else { return };
    let trials = table["trials"].as_array().expect("the table lists trials");
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&folder.path("sweeps/tiny/sweep.html"));
        let headings = ["What was found", "Curves", "Each key", "Importance", "Settings", "The best config"];
        assert_eq!(browser.texts("h2"), headings);
        let rows = browser.texts("[aria-label='The settings'] tr");
        assert_eq!(rows.len(), 1 + trials.len());
        for (row, trial) in rows[1..].iter().zip(trials) {
            assert!(row.contains(trial["values"][0].as_str().expect("a value")), "{row}");
            if let Some(loss) = trial["bits_per_byte"].as_f64() {
                assert!(row.contains(&format!("{loss:.4}")), "{row}");
            }
        }
        // No curve reaches the edge of its chart, where what is cut would be.
        let size = if screen.0 < 600 { "narrow" } else { "wide" };
        let tops = browser.all(
            &format!("figure[data-chart=loss] > svg.{size} .drawing > .line"),
            "Math.min(...it.getAttribute('d').match(/[\\d.]+ [\\d.]+/g).map((point) => Number(point.split(' ')[1])))",
        );
        let edge = "Number(document.querySelector('figure[data-chart=loss] > svg').dataset.y.split(' ')[3])";
        let edge = browser.evaluate(edge).as_f64().expect("a place");
        assert!(tops.len() >= 3 && tops.iter().all(|top| top.as_f64() > Some(edge)), "{tops:?} {edge}");
        let keys = table["importance"].as_array().expect("the table lists keys");
        let groups = keys.iter().flat_map(|key| key["groups"].as_array().expect("a key has groups"));
        assert_eq!(browser.texts(".cells [role=rowheader]").len(), groups.count());
        let found = browser.texts("section.sweep p").concat();
        assert!(found.contains("Seeds of one setting differ by up to 0."), "{found}");
        // The config is there to be copied, and does not fill the page.
        assert_eq!(browser.all("details", "it.open"), [false]);
        assert_eq!(browser.texts("section.sweep p button"), ["Copy the config"]);
        browser.check("sweep", screen);
    }
}

/// The weights and curves of all runs of a sweep.
fn kept(folder: &Folder, root: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_kept = |path: &Path| path.ends_with("metrics.jsonl") || path.iter().any(|part| part == "checkpoints");
    files(&folder.path(root).join("runs")).into_iter().filter(|(path, _)| is_kept(path)).collect()
}

#[test]
fn mistakes_are_reported_before_files_are_written() {
    let folder = Folder::new();
    let fails = |space: &str, more: &[&str]| {
        let error = folder.fail(&[&["sweep", "tiny.toml", "--space", space, "--budget", "1m"], more].concat());
        assert!(!folder.path("sweeps").exists(), "{error}");
        error
    };
    assert!(fails("model.mlpp=gelu,swiglu", &[]).contains("did you mean `model.mlp`?"));
    assert!(fails("model.dropout=0..0.3", &["--method", "grid"]).contains("--method random"));
}
