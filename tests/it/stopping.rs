//! Runs that are stopped when there is nothing more to learn.

use std::fs;

use tinderbox::device;
use tinderbox::train::{Event, Interrupter, Job, Observer, Start, Summary, TrainError, train};

use crate::runs::Place;

/// Stops a run as its last evaluation begins.
struct StopsLastEvaluation(Interrupter);

impl Observer for StopsLastEvaluation {
    fn observe(&mut self, event: &Event<'_>) {
        if matches!(event, Event::FinalEvaluation) {
            self.0.stop(None);
        }
    }
}

struct Silent;

impl Observer for Silent {
    fn observe(&mut self, _: &Event<'_>) {}
}

fn go(place: &Place, run: &str, start: Start, stops: bool) -> Summary {
    let interrupter = Interrupter::new();
    let observer: Box<dyn Observer> = if stops {
        Box::new(StopsLastEvaluation(interrupter.clone()))
    } else {
        Box::new(Silent)
    };
    let job = Job {
        config: place.config(&[]),
        run_dir: place.path(run),
        start,
        device: device::open(&"flex".parse().expect("a device")).expect("opens"),
        from: None,
    };
    train(job, observer, &interrupter).expect("trains")
}

#[test]
fn a_last_evaluation_that_was_stopped_is_made_up_for() {
    let place = Place::new();
    let whole = go(&place, "whole", Start::New, false);
    let stopped = go(&place, "parts", Start::New, true);
    assert!(stopped.interrupted && stopped.steps == 10, "{stopped:?}");
    assert_eq!((stopped.val_loss, stopped.val_bits_per_byte), (None, None));
    let resumed = go(&place, "parts", Start::Resume, false);
    assert!(!resumed.interrupted && resumed.steps == 10, "{resumed:?}");
    assert_eq!(
        (resumed.val_loss, resumed.best_val_loss, resumed.best_step),
        (whole.val_loss, whole.best_val_loss, whole.best_step)
    );
    assert!(whole.val_loss.is_some());
    for file in ["metrics.jsonl", "samples.txt", "best", "last"] {
        let read = |run: &str| fs::read(place.path(run).join(file)).expect(file);
        assert!(read("whole") == read("parts"), "{file} differs");
    }
}

#[test]
fn a_run_does_not_end_before_where_it_is() {
    let place = Place::new();
    let new = place.config(&[]);
    place.train("run", new, Start::New, Some(6)).expect("stops");
    let resumed = |max_steps: &str| {
        let config = place.config(&[max_steps]);
        place.train("run", config, Start::Resume, None)
    };
    let error = resumed("train.max_steps=4").unwrap_err();
    assert!(
        matches!(error, TrainError::PastEnd { step: 6, .. }),
        "{error}"
    );
    let (summary, _) = resumed("train.max_steps=6").expect("ends it where it is");
    assert!(
        summary.steps == 6 && summary.val_loss.is_some(),
        "{summary:?}"
    );
}
