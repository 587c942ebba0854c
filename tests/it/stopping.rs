//! Runs stopped while they do not train, and runs whose directories are moved or removed.

use std::path::Path;

use tinderbox::data::Purpose;
use tinderbox::train::{Event, Start, Summary, TrainError};

use crate::fixtures::{Place, TEN_STEPS, files, fs, observed};

fn whole(place: &Place, run: &str, start: Start) -> Summary {
    place.train(run, place.config(&[]), start, None).expect("the run trains").0
}

#[test]
fn resume_refuses_earlier_end() {
    let place = Place::new();
    let new = place.config(&[]);
    place.train("run", new, Start::New, Some(6)).expect("the run stops as asked");
    let resumed = |max_steps: &str| {
        let config = place.config(&[max_steps]);
        place.train("run", config, Start::Resume, None)
    };
    let error = resumed("train.max_steps=4").unwrap_err();
    assert!(matches!(error, TrainError::PastEnd { step: 6, .. }), "{error}");
    let (summary, _) = resumed("train.max_steps=6").expect("ends it where it is");
    assert!(summary.steps == 6 && summary.val_loss.is_some(), "{summary:?}");
}

#[test]
fn interrupted_reading_leaves_nothing() {
    let place = Place::new();
    let purposes = [Purpose::Scan, Purpose::CountWords, Purpose::FindMerges, Purpose::Encode];
    let job = |max_steps: &str, start| {
        place.job("run", place.config(&["tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=300", max_steps]), start)
    };
    let stopped_while = |purpose: Purpose, job| {
        let stopped = observed(job, move |event, interrupter| {
            if matches!(event, Event::Reading(reading) if reading.purpose == purpose) {
                interrupter.stop(None);
            }
        });
        stopped.expect_err("stopped")
    };
    let is_note = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|it| it == "note");
    let n_files = || {
        let entries = fs::read_dir(place.path("cache")).into_iter().flatten().flatten();
        entries.filter(|entry| !is_note(entry)).count()
    };
    for (n_kept, purpose) in [0, 0, 0, 1].into_iter().zip(purposes) {
        let error = stopped_while(purpose, job("train.max_steps=2", Start::New));
        assert!(matches!(error, TrainError::InterruptedEarly), "{error}");
        assert!(!place.path("run").exists(), "{purpose:?}");
        assert_eq!(n_files(), n_kept, "only a whole tokenizer is kept: {purpose:?}");
    }
    let whole = |job| observed(job, |_, _| {}).expect("the run trains");
    whole(job("train.max_steps=2", Start::New));

    // An existing run stays unchanged.
    let more = job("train.max_steps=4", Start::Resume);
    stopped_while(Purpose::Scan, more.clone());
    assert_eq!(whole(more).steps, 4);
}

/// The error of a run when `act` disturbs its directory once its first checkpoint is saved.
fn disturbed(place: &Place, run: &str, act: impl FnOnce() + Send + 'static) -> TrainError {
    let (config, mut act) = (place.config(&["train.checkpoint_interval=3"]), Some(act));
    let moved = observed(place.job(run, config, Start::New), move |event, _| {
        if matches!(event, Event::Saved { .. })
            && let Some(act) = act.take()
        {
            act();
        }
    });
    moved.expect_err("its directory is not there any more")
}

#[cfg(unix)]
#[test]
fn moved_run_stops_and_resumes_in_new_place() {
    let place = Place::new();
    whole(&place, "whole", Start::New);
    for other_follows in [false, true] {
        if other_follows {
            whole(&place, "other", Start::New);
        }
        let [run, moved, other] = ["run", "moved", "other"].map(|name| place.path(name));
        let error = disturbed(&place, "run", {
            let (run, moved, other) = (run.clone(), moved.clone(), other.clone());
            move || {
                fs::rename(&run, moved);
                if other_follows {
                    fs::rename(other, run);
                }
            }
        });
        assert!(error.to_string().contains("was moved, removed or replaced"), "{error}");
        if other_follows {
            let (expected, found) = (files(&place.path("whole")), files(&run));
            assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
            for (name, contents) in found {
                let is_same = name == Path::new("timings.jsonl") || expected[&name] == contents;
                assert!(is_same, "{} was written", name.display());
            }
        } else {
            assert!(!run.exists());
        }
        let resumed = whole(&place, "moved", Start::Resume);
        assert_eq!(resumed.steps, 10);
        place.assert_same("whole", "moved", &TEN_STEPS[..5]);
        fs::remove_dir_all(&moved);
        std::fs::remove_dir_all(&run).ok();
    }
}

#[cfg(unix)]
#[test]
fn removed_run_stops() {
    let place = Place::new();
    let run = place.path("run");
    let error = disturbed(&place, "run", {
        let run = run.clone();
        move || fs::remove_dir_all(run)
    });
    assert!(error.to_string().contains("was moved, removed or replaced"), "{error}");
    assert!(!run.exists());
}

#[test]
fn run_stopped_before_first_step_is_replaced() {
    let place = Place::new();
    for start in [Start::New, Start::New, Start::Overwrite] {
        let config = place.config(&["train.head_metrics=true"]);
        let stopped = observed(place.job("run", config, start), |event, interrupter| {
            if matches!(event, Event::Started(_)) {
                interrupter.stop(None);
            }
        });
        let summary = stopped.expect("the run stops as asked");
        assert!(summary.interrupted && summary.steps == 0, "{summary:?}");
    }
    assert_eq!(whole(&place, "run", Start::New).steps, 10);
}
