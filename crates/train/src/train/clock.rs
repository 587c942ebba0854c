//! Measures how long training steps and exchanges between ranks take.

use std::time::{Duration, Instant};

use super::observer::Exchange;
use super::thinned::Thinned;
use crate::distributed::{Exchanged, Ranks};
use tinderbox_model::measure::median;

/// The number of first steps that the median of a run skips, since they tune kernels and warm caches.
const WARM_UP_STEPS: usize = 5;

/// Fewer times than this are kept; they take at most 32 KiB.
const MAX_TIMES: usize = 1 << 12;

/// Measures the time of steps. The training loop synchronizes with a GPU only now and then; the time between two
/// synchronizations is divided evenly among the steps.
#[derive(Debug)]
pub(super) struct StepClock {
    since: Option<Instant>,
    steps: usize,
    interval: Thinned<f64>,
    all: Thinned<f64>,
    total: Duration,
}

impl Default for StepClock {
    fn default() -> Self {
        let [interval, all] = [times(), times()];
        Self { since: None, steps: 0, interval, all, total: Duration::ZERO }
    }
}

impl StepClock {
    pub(super) fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
        self.steps += 1;
    }

    /// Discards the step that began last.
    pub(super) fn cancel(&mut self) {
        self.steps -= 1;
        if self.steps == 0 {
            self.since = None;
        }
    }

    /// Records that all steps begun so far are done.
    pub(super) fn done(&mut self) {
        let Some(since) = self.since.take() else { return };
        let elapsed = since.elapsed();
        self.total += elapsed;
        let each = elapsed.as_secs_f64() * 1e3 / self.steps as f64;
        for _ in 0..std::mem::take(&mut self.steps) {
            self.interval.push(each);
            self.all.push(each);
        }
    }

    /// Median time of the steps since the last call, in milliseconds.
    pub(super) fn interval_median_ms(&mut self) -> f64 {
        median_after(0, &std::mem::replace(&mut self.interval, times()))
    }

    /// Median time of all steps after the first five, in milliseconds.
    pub(super) fn median_ms(&self) -> f64 {
        median_after(WARM_UP_STEPS, &self.all)
    }

    pub(super) fn total(&self) -> Duration {
        self.total
    }
}

/// Measures the share of step time that goes into exchanges with other ranks.
#[derive(Debug, Default)]
pub(super) struct ExchangeClock {
    all: Exchanged,
    /// The readings at the end of the last interval, and the total step time up to then.
    before: (Exchanged, Duration),
}

impl ExchangeClock {
    /// Adds the exchanges of a step, which lie between the readings `before` and `after`.
    pub(super) fn add(&mut self, before: Exchanged, after: Exchanged) {
        self.all.waiting += after.waiting.saturating_sub(before.waiting);
        self.all.communicating += after.communicating.saturating_sub(before.communicating);
    }

    /// The shares since the last call, given the total step time so far; `None` without other ranks.
    pub(super) fn of_interval(&mut self, ranks: &Ranks, total: Duration) -> Option<Exchange> {
        let (exchanged, steps) = std::mem::replace(&mut self.before, (self.all, total));
        Exchange::new(ranks, exchanged, self.all, total.saturating_sub(steps))
    }

    /// The shares over all steps.
    pub(super) fn of_all(&self, ranks: &Ranks, total: Duration) -> Option<Exchange> {
        Exchange::new(ranks, Exchanged::default(), self.all, total)
    }
}

/// No step times yet; of a long run, the first of each group is kept.
fn times() -> Thinned<f64> {
    Thinned::new(MAX_TIMES, |group| group[0])
}

/// The median without the first `skipped` times, or without the first half if there are fewer than twice as many.
fn median_after(skipped: usize, times: &Thinned<f64>) -> f64 {
    median(&times[skipped.div_ceil(times.group()).min(times.len() / 2)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(each: impl IntoIterator<Item = f64>) -> Thinned<f64> {
        let mut sample = times();
        each.into_iter().for_each(|time| sample.push(time));
        sample
    }

    #[test]
    fn steps_between_waits_share_time() {
        let mut clock = StepClock::default();
        for _ in 0..4 {
            clock.begin();
        }
        clock.done();
        assert_eq!(clock.all.len(), 4);
        let sum: f64 = clock.all.iter().sum();
        assert!((sum - clock.total().as_secs_f64() * 1e3).abs() < 1e-6);
        assert!((4.0 * clock.interval_median_ms() - sum).abs() < 1e-6, "each has a quarter");
        assert!(clock.interval_median_ms().abs() < f64::EPSILON, "a new interval has no steps yet");
    }

    #[test]
    fn median_skips_first_steps() {
        let times = [100.0; WARM_UP_STEPS].into_iter().chain([2.0, 1.0, 3.0, 1.0, 2.0, 2.0]);
        assert!((median_after(WARM_UP_STEPS, &sample(times)) - 2.0).abs() < f64::EPSILON);
        assert!((median_after(WARM_UP_STEPS, &sample([9.0, 9.0, 1.0, 1.0])) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn median_of_long_runs_is_within_a_group_of_exact() {
        let exact = sample((0..4_001).map(f64::from));
        assert!((median_after(0, &exact) - 2_000.0).abs() < f64::EPSILON);
        let million = sample((0..1_000_000).map(f64::from));
        assert!((MAX_TIMES / 4..MAX_TIMES).contains(&million.len()));
        let warm_up = sample((0..1_000_000).map(|i| if i < 5 { 1e9 } else { f64::from(i) }));
        for sample in [million, warm_up] {
            assert!((median_after(WARM_UP_STEPS, &sample) - 500_000.0).abs() < sample.group() as f64);
        }
    }
}
