//! Runs with damaged files, killed while saving, or in formats of other versions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tinderbox::config::Config;
use tinderbox::data::{Corpus, OpenOptions, Tokens};
use tinderbox::run::{Checkpoint, RunDir, RunError, Trained};
use tinderbox::train::Start;

use crate::fixtures::{Folder, Place, Ran, Started, TEN_STEPS, copy, files, fs, set};

/// The tokenizer of a config, and the token ids of its training texts.
pub fn tokenizer_and_tokens(config: &Config) -> (String, Vec<Vec<i32>>) {
    let corpus = Corpus::open(config, OpenOptions::default()).expect("it opens");
    let ids = |tokens: &Tokens| {
        let mut ids = vec![0; tokens.len()];
        tokens.read(0, &mut ids);
        ids
    };
    (corpus.tokenizer.to_json(), corpus.train.texts().map(ids).collect())
}

#[test]
fn resume_skips_damaged_checkpoints() {
    let place = Place::new();
    let config = || place.config(&["train.keep_checkpoints=5"]);
    place.train("whole", config(), Start::New, None).expect("the run trains");
    place.train("stopped", config(), Start::New, Some(8)).expect("the run stops as asked");
    let names = ["model.safetensors", "optimizer.safetensors", "state.json"];
    for (n, name) in names.into_iter().enumerate() {
        for damage in [40, usize::MAX] {
            let run = format!("run-{n}-{damage}");
            copy(&place.path("stopped"), &place.path(&run));
            let path = place.path(&format!("{run}/checkpoints/step-000008/{name}"));
            let mut contents = fs::read(&path);
            match damage {
                usize::MAX => contents.truncate(contents.len() / 2),
                at => contents[at] ^= 4,
            }
            fs::write(&path, contents);
            if n != 1 {
                let last = place.path(&format!("{run}/last"));
                let error = Trained::open(&last, None).expect_err("damaged").to_string();
                assert!(error.contains("step-000006` is whole"), "{error}");
            }
            place.train(&run, config(), Start::Resume, None).expect("the run resumes from step 6");
            place.assert_same("whole", &run, &TEN_STEPS);
        }
    }
    // A damaged best checkpoint is forgotten.
    place.train("best", config(), Start::New, Some(6)).expect("the run stops as asked");
    assert_eq!(place.read("best/best"), b"step-000004\n");
    fs::write(place.path("best/checkpoints/step-000004/model.safetensors"), "");
    let (summary, _) = place.train("best", config(), Start::Resume, None).expect("the run resumes from step 6");
    assert_ne!(summary.best_step, Some(4));
    // Nor does a dangling pointer lose anything.
    fs::write(place.path("stopped/last"), "step-0000\u{1}8\n");
    place.train("stopped", config(), Start::Resume, None).expect("the run resumes from step 8");
    place.assert_same("whole", "stopped", &TEN_STEPS);
}

#[test]
fn unusable_checkpoints_are_refused_with_reason() {
    let place = Place::new();
    place.trained("run", &["train.max_steps=2"]);
    let path = |step: usize| place.path(&format!("run/checkpoints/step-00000{step}"));
    let state = place.read("run/checkpoints/step-000002/state.json");
    let resume = || place.train("run", place.config(&[]), Start::Resume, None).expect_err("unusable").to_string();

    let newer = String::from_utf8(state.clone())
        .expect("the bytes are UTF-8")
        .replace("\"version\": 2", "\"version\": 3, \"novel\": []");
    fs::write(path(2).join("state.json"), newer);
    let open = Trained::open(&place.path("run"), None).expect_err("newer").to_string();
    for error in [open, resume()] {
        assert!(error.contains("newer version of the program") && error.contains("hint: use the newer"), "{error}");
    }
    fs::write(path(2).join("state.json"), "{}");
    let error = resume();
    assert!(error.contains("no other checkpoint of the run is whole"), "{error}");
    fs::write(path(2).join("state.json"), state);
    fs::rename(path(2), path(7));
    let error = Checkpoint::read_state(&path(7)).expect_err("of step 2").to_string();
    assert!(error.contains("it is of step 2, and its directory of step 7"), "{error}");
    resume();
}

#[test]
fn pointers_out_of_run_are_refused() {
    let place = Place::new();
    for run in ["run", "other"] {
        place.trained(run, &["train.max_steps=2"]);
    }
    let run = place.run("run");
    let absolute = place.path("other/checkpoints/step-000002").display().to_string();
    for target in ["../../other/checkpoints/step-000002", &absolute, "./step-000002", ".."] {
        fs::write(place.path("run/best"), target);
        assert!(matches!(run.best(), Err(RunError::Pointer { .. })), "{target}");
    }
}

#[cfg(unix)]
#[test]
fn only_owner_reads_caches() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let config = place.config(&["tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=300"]);
    Corpus::open(&config, OpenOptions::default()).expect("it opens");
    for (path, contents) in files(&place.path("cache")) {
        let mode = fs::metadata(place.path("cache").join(&path)).expect("a file").permissions().mode() & 0o777;
        assert!(mode == 0o600 || contents.is_empty(), "{} has mode {mode:o}", path.display());
    }
}

#[cfg(unix)]
#[test]
fn resume_refuses_symlinked_runs() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    place.train("run", place.config(&[]), Start::New, Some(6)).expect("the run stops as asked");
    let thesis = place.path("thesis.txt");
    fs::write(&thesis, "years of work\n");
    for name in [".lock", "metrics.jsonl", "train.log", "tensorboard", "checkpoints/step-000006/state.json"] {
        let path = place.path("run").join(name);
        let before = std::fs::read(&path).ok();
        std::fs::remove_file(&path).ok();
        symlink(&thesis, &path).expect("the link can be made");
        let error = place.train("run", place.config(&[]), Start::Resume, None).expect_err("a link").to_string();
        assert!(error.contains(&format!("{}` is a link", path.display())), "{error}");
        assert_eq!(fs::read(&thesis), b"years of work\n");
        fs::remove_file(&path);
        if let Some(before) = before {
            fs::write(&path, before);
        }
    }
    place.train("run", place.config(&[]), Start::Resume, None).expect("the run resumes without them");
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_in_runs_are_refused() {
    use std::os::unix::fs::symlink;
    let folder = Folder::trained();
    let names = ["tokenizer.json", "metrics.jsonl", "samples.txt", "best"].map(str::to_owned);
    let of_checkpoint = ["state.json", "model.safetensors"].map(|name| format!("checkpoints/step-000040/{name}"));
    let commands = [
        &["generate", "runs/tiny"][..],
        &["runs", "runs"],
        &["report", "runs/tiny"],
        &["train", "tiny.toml", "--resume"],
    ];
    for path in names.iter().chain(&of_checkpoint).map(|name| folder.path("runs/tiny").join(name)) {
        let before = fs::read(&path);
        for is_pipe in [true, false] {
            fs::remove_file(&path);
            match is_pipe {
                true => assert!(Command::new("mkfifo").arg(&path).status().expect("is installed").success()),
                false => symlink("/dev/zero", &path).expect("the link can be made"),
            }
            for args in commands {
                let error = folder.fail(args);
                assert!(error.contains("is a device or a pipe"), "{args:?}, {}: {error}", path.display());
            }
        }
        fs::remove_file(&path);
        fs::write(&path, before);
    }
    folder.succeed(&["generate", "runs/tiny", "--max-new-tokens", "1"]);
}

#[test]
fn leftovers_of_killed_start_are_replaced() {
    let place = Place::new();
    let make = |dir: &str, names: &[(&str, &str)]| {
        fs::create_dir(place.path(dir));
        for (name, contents) in names {
            fs::write(place.path(dir).join(name), contents);
        }
    };
    let config = place.config(&["train.max_steps=2"]);
    let toml = config.to_toml();
    let partial = ".config.toml.0123456789abcdef.partial";
    let left: [&[(&str, &str)]; 4] = [
        &[],
        &[(".lock", "")],
        &[(".lock", ""), (partial, "[da")],
        &[(".lock", ""), ("config.toml", &toml), (".tokenizer.json.0.partial", "")],
    ];
    for (n, names) in left.into_iter().enumerate() {
        for start in [Start::New, Start::Overwrite] {
            let run = format!("run-{n}-{start:?}");
            make(&run, names);
            place.train(&run, config.clone(), start, None).expect("the program starts");
            let hidden =
                files(&place.path(&run)).into_keys().filter(|path| path.extension() == Some("partial".as_ref()));
            assert_eq!(hidden.count(), 0);
        }
    }
}

#[cfg(unix)]
#[test]
fn concurrent_reports_do_not_collide() {
    let folder = Folder::trained();
    folder.write("runs/tiny/.report.html.0123456789abcdef.partial", "of a process that was killed");
    let started: Vec<_> = (0..4).map(|_| folder.start(&["report", "runs/tiny"])).collect();
    for report in started {
        report.finish().exits(0);
    }
    let left = files(&folder.path("runs/tiny")).into_keys().filter(|path| path.extension() == Some("partial".as_ref()));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

/// Kills a run `n` times, within a checkpoint, right after one and a step later, and checks that at most an interval is
/// lost.
fn killed_while_saving(n: u64) {
    let folder = Folder::new();
    let train = |max_steps: usize, run: &str, more: &[&str]| {
        let max_steps = format!("train.max_steps={max_steps}");
        let settings = [&*max_steps, "train.checkpoint_interval=1", "schedule.kind=constant", "train.log_interval=1"];
        folder.command(&[&["train", "tiny.toml", "--run-dir", run], &*set(&settings), more].concat())
    };
    let root = folder.path("run");
    let (mut step, mut n_saved) = (0, 0);
    for attempt in 0..n {
        // Without a checkpoint there is nothing to resume, and logged steps are only replaced on request.
        let is_saved = fs::read_dir(root.join("checkpoints"))
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|it| it.path().extension().is_none())));
        let more: &[&str] = if is_saved { &["--resume"] } else { &["--overwrite"] };
        let mut command = train(100_000, "run", more);
        let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary starts");
        let last = || std::fs::read(root.join("last")).ok();
        let n_logged = || std::fs::metadata(root.join("metrics.jsonl")).map_or(0, |it| it.len());
        let is_half = |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|it| it.path().extension().is_some());
        let (before, mut n_then) = (last(), None);
        let mut is_due = || match attempt % 3 {
            0 => std::fs::read_dir(root.join("checkpoints")).is_ok_and(|mut entries| entries.any(is_half)),
            1 => last() != before,
            _ => last() != before && n_logged() > *n_then.get_or_insert_with(n_logged),
        };
        while !is_due() {
            assert!(child.try_wait().expect("a status").is_none(), "it trains longer than any test runs");
            sleep(Duration::from_millis(1));
        }
        child.kill().expect("the process can be killed");
        let status = child.wait().expect("the process has ended");
        assert_eq!(status.code(), None, "it still ran, and said nothing against its start");
        if !root.join("last").is_file() {
            continue;
        }
        let run = RunDir::open(&root).expect("a run");
        let checkpoint = Checkpoint::read(&run.last().expect("a last")).expect("it is whole");
        assert!(checkpoint.state.step >= step, "step {step} was saved before");
        n_saved += usize::from(checkpoint.state.step > step);
        step = checkpoint.state.step;
        Checkpoint::read(&run.best().expect("a best")).expect("it is whole");
    }
    assert!(n_saved as u64 >= n / 2, "only {n_saved} of {n} processes saved anything");
    for (run, more) in [("run", &["--resume"][..]), ("whole", &[])] {
        Ran::of(train(step + 3, run, more)).exits(0);
    }
    for name in ["metrics.jsonl", "samples.txt", "last", "best"] {
        assert_eq!(folder.read(&format!("run/{name}")), folder.read(&format!("whole/{name}")), "{name}");
    }
    let end = format!("checkpoints/step-{:06}", step + 3);
    assert!(files(&folder.path("run").join(&end)).values().eq(files(&folder.path("whole").join(&end)).values()));
}

#[test]
fn killed_run_keeps_saved_checkpoints() {
    killed_while_saving(12);
}

#[test]
#[ignore = "takes minutes"]
fn two_hundred_kills_keep_saved_checkpoints() {
    killed_while_saving(200);
}

/// A run in each version of the format, made by the program of its time from `tests/fixtures/runs/tiny.toml`.
#[test]
fn runs_of_every_version_resume() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs");
    for version in ["version-1", "version-2"] {
        let folder = Folder::new();
        copy(&fixtures.join(version), &folder.path("run"));
        let written = folder.read("run/checkpoints/step-000002/state.json");
        assert!(written.contains(&format!("\"version\": {}", &version[8..])), "{written}");
        fs::copy(fixtures.join("text.txt"), folder.path("text.txt"));
        fs::copy(fixtures.join("tiny.toml"), folder.path("tiny.toml"));
        let loss = folder.json(&["eval", "run", "--json"])["loss"].as_f64().expect("a number");
        assert!((loss - 3.0554).abs() < 1e-3, "{version}: {loss}");
        folder.succeed(&["train", "tiny.toml", "--run-dir", "run", "--set", "train.max_steps=4", "--resume"]);
        let again = folder.read("run/checkpoints/step-000004/state.json");
        assert!(again.contains("\"version\": 2"), "{again}");
    }
}

/// Kills `n` fine-tunings while they compare the new model with its base, and resumes them: each ends with the same
/// comparison, and nothing half-written stays.
fn killed_while_comparing(n: usize) {
    let folder = crate::finetune::folder();
    let tuned = |run: &str, more: &[&str]| {
        let arguments = ["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", run];
        folder.command(&[&arguments[..], &crate::finetune::SETTINGS, more].concat())
    };
    Ran::of(tuned("whole", &[])).exits(0);
    let mut n_killed = 0;
    for attempt in 0..n {
        let run = format!("run-{attempt}");
        let mut started = Started::of(tuned(&run, &[]));
        started.wait_for(["base: held-out records", "base: a general text", "base: answers"][attempt % 3]);
        n_killed += usize::from(started.kill());
        let resumed = Ran::of(tuned(&run, &["--resume"]));
        assert!(resumed.code == Some(0) || resumed.stderr.contains("is done"), "{}", resumed.stderr);
        let compared = |run: &str| folder.read(&format!("{run}/before-and-after.json"));
        assert_eq!(compared(&run), compared("whole"));
        let mut left = files(&folder.path(&run)).into_keys();
        assert_eq!(left.find(|path| path.extension() == Some("partial".as_ref())), None);
    }
    assert!(n_killed > 0, "all had ended");
}

#[test]
fn killed_comparison_is_made_by_resume() {
    killed_while_comparing(3);
}

#[test]
#[ignore = "takes minutes"]
fn ninety_six_killed_comparisons_are_made() {
    killed_while_comparing(96);
}
