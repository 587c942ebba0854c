//! How long steps take.

use std::time::{Duration, Instant};

use crate::measure::median;

/// The first steps tune kernels and warm caches; they are left out of the median.
const WARM_UP_STEPS: usize = 5;

/// Times of steps. A device that works on its own is waited for only now and then, so the time from one
/// wait to the next is shared out evenly among the steps between.
#[derive(Debug)]
pub(super) struct StepClock {
    since: Option<Instant>,
    steps: usize,
    times_ms: Vec<f64>,
    interval_from: usize,
    total: Duration,
}

impl StepClock {
    pub(super) fn new() -> Self {
        Self {
            since: None,
            steps: 0,
            times_ms: Vec::new(),
            interval_from: 0,
            total: Duration::ZERO,
        }
    }

    /// A step begins.
    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
        self.steps += 1;
    }

    /// Everything that was begun is done.
    pub(super) fn done(&mut self) {
        let Some(since) = self.since.take() else {
            return;
        };
        let elapsed = since.elapsed();
        self.total += elapsed;
        #[allow(clippy::cast_precision_loss, reason = "a handful of steps")]
        let each = elapsed.as_secs_f64() * 1e3 / self.steps as f64;
        self.times_ms.extend(std::iter::repeat_n(each, self.steps));
        self.steps = 0;
    }

    /// Median time of the steps since the last call, milliseconds.
    pub(super) fn interval_median_ms(&mut self) -> f64 {
        let from = std::mem::replace(&mut self.interval_from, self.times_ms.len());
        median(&self.times_ms[from..])
    }

    /// Median time of all steps after the first few, milliseconds.
    pub(super) fn median_ms(&self) -> f64 {
        median(&self.times_ms[WARM_UP_STEPS.min(self.times_ms.len() / 2)..])
    }

    /// Time of all steps together.
    pub(super) fn total(&self) -> Duration {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_between_two_waits_share_the_time() {
        let mut clock = StepClock::new();
        for _ in 0..4 {
            clock.begin();
        }
        std::thread::sleep(Duration::from_millis(8));
        clock.done();
        assert_eq!(clock.times_ms.len(), 4);
        assert!(
            (clock.times_ms.iter().sum::<f64>() - clock.total().as_secs_f64() * 1e3).abs() < 1e-6
        );
        assert!(clock.interval_median_ms() >= 2.0);
        assert!(clock.interval_median_ms().abs() < f64::EPSILON, "a new interval has no steps yet");
    }

    #[test]
    fn the_first_steps_do_not_count() {
        let mut clock = StepClock::new();
        clock.times_ms = vec![100.0; 5];
        clock.times_ms.extend([2.0, 1.0, 3.0, 1.0, 2.0, 2.0]);
        assert!((clock.median_ms() - 2.0).abs() < f64::EPSILON);
    }
}
