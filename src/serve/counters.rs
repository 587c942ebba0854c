//! The counters of a model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    pub(super) first_token: Histogram,
}

/// Upper bounds of the buckets in milliseconds.
const BOUNDS_MS: [u32; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20000];

/// The numbers of durations within each bound.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_MS.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Metrics {
    /// Counts a prompt of `n_tokens` tokens, of them `n_cached` cached.
    pub(super) fn read(&self, n_tokens: usize, n_cached: usize) {
        self.prompt_tokens.fetch_add(n_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(n_cached as u64, Ordering::Relaxed);
    }

    /// Records the time from a request to its first token.
    pub(super) fn first_token(&self, time: Duration) {
        let histogram = &self.first_token;
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        for (bucket, bound) in histogram.buckets.iter().zip(BOUNDS_MS) {
            bucket.fetch_add(u64::from(us <= u64::from(bound) * 1000), Ordering::Relaxed);
        }
        histogram.count.fetch_add(1, Ordering::Relaxed);
        histogram.sum_us.fetch_add(us, Ordering::Relaxed);
    }
}

impl Histogram {
    /// Its lines, as what follows the name, and the value.
    pub(super) fn lines(&self, model: &str) -> Vec<(String, String)> {
        let bounds = BOUNDS_MS.map(|bound| (f64::from(bound) / 1000.0).to_string()).into_iter();
        let buckets = bounds.chain(["+Inf".to_owned()]).zip(self.buckets.iter().chain([&self.count]));
        let bucket = |(bound, n)| (format!("_bucket{{model={model},le=\"{bound}\"}}"), total(n));
        let mut lines: Vec<_> = buckets.map(bucket).collect();
        let sum_s = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        lines.push((format!("_sum{{model={model}}}"), sum_s.to_string()));
        lines.push((format!("_count{{model={model}}}"), total(&self.count)));
        lines
    }
}

pub(super) fn total(counter: &AtomicU64) -> String {
    counter.load(Ordering::Relaxed).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_shorter_times() {
        let metrics = Metrics::default();
        metrics.first_token(Duration::from_millis(3));
        metrics.first_token(Duration::from_secs(100));
        let lines = metrics.first_token.lines("m");
        let value = |name: &str| &*lines.iter().find(|(found, _)| found == name).expect("the line exists").1;
        let bucket = |bound: &str| value(&format!("_bucket{{model=m,le=\"{bound}\"}}"));
        assert_eq!(["0.002", "0.005", "20", "+Inf"].map(bucket), ["0", "1", "1", "2"]);
        assert_eq!(value("_sum{model=m}"), "100.003");
    }
}
