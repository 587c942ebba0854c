//! Counters, in Prometheus's text format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters of one model.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    pub(super) generated_tokens: AtomicU64,
    first_token: Histogram,
}

/// Upper bounds of the buckets in milliseconds.
const BOUNDS_MS: [u32; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20000];

/// The numbers of durations within each bound.
#[derive(Debug, Default)]
struct Histogram {
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
    fn lines(&self, model: &str) -> Vec<(String, String)> {
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

/// A model as shown by `/metrics`.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) name: &'a str,
    pub(super) metrics: &'a Metrics,
    /// The gauges of its thread; `None` for adapters, whose base shows them.
    pub(super) gauges: Option<Gauges>,
}

/// The state of a model's thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gauges {
    /// The number of waiting sequences.
    pub(super) n_waiting: usize,
    /// The number of slots in use.
    pub(super) busy_slots: usize,
    /// The number of slots.
    pub(super) n_slots: usize,
}

/// The value of a metric for a model.
type Value<'a> = &'a dyn Fn(&Shown<'_>) -> Option<String>;

/// The page `/metrics`: the models, and the number of responses by status.
pub(super) fn page(models: &[Shown<'_>], responses: &[(u16, u64)]) -> String {
    let mut page = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, lines: Vec<(String, String)>| {
        page.extend([format!("# HELP tinderbox_{name} {help}\n# TYPE tinderbox_{name} {kind}\n")]);
        page.extend(lines.iter().map(|(labels, value)| format!("tinderbox_{name}{labels} {value}\n")));
    };
    let responses = responses.iter().map(|(status, n)| (format!("{{status=\"{status}\"}}"), n.to_string()));
    metric("responses_total", "counter", "Responses, by status.", responses.collect());
    let gauge = |shown: &Shown<'_>, of: fn(Gauges) -> usize| shown.gauges.map(of).map(|n| n.to_string());
    let of_models: [(&str, &str, &str, Value<'_>); 6] = [
        ("prompt_tokens_total", "counter", "Tokens of prompts.", &|shown| Some(total(&shown.metrics.prompt_tokens))),
        ("prompt_tokens_shared_total", "counter", "Prompt tokens whose keys and values were cached.", &|shown| {
            Some(total(&shown.metrics.cached_tokens))
        }),
        ("written_tokens_total", "counter", "Tokens generated.", &|shown| Some(total(&shown.metrics.generated_tokens))),
        ("waiting_texts", "gauge", "Sequences that wait for a slot.", &|shown| gauge(shown, |it| it.n_waiting)),
        ("busy_places", "gauge", "Slots in use.", &|shown| gauge(shown, |it| it.busy_slots)),
        ("places", "gauge", "All slots.", &|shown| gauge(shown, |it| it.n_slots)),
    ];
    for (name, kind, help, value) in of_models {
        let line = |shown: &Shown<'_>| Some((format!("{{model={}}}", quoted(shown.name)), value(shown)?));
        metric(name, kind, help, models.iter().filter_map(line).collect());
    }
    let times = models.iter().flat_map(|shown| shown.metrics.first_token.lines(&quoted(shown.name)));
    metric("first_token_seconds", "histogram", "Time from a request to its first token.", times.collect());
    page
}

fn total(counter: &AtomicU64) -> String {
    counter.load(Ordering::Relaxed).to_string()
}

/// The quoted value of a label.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_every_metric_with_its_type() {
        let metrics = Metrics::default();
        metrics.read(10, 4);
        metrics.first_token(Duration::from_millis(3));
        metrics.first_token(Duration::from_secs(100));
        let gauges = Some(Gauges { n_waiting: 3, busy_slots: 1, n_slots: 16 });
        let shown = Shown { name: "a \"b\"", metrics: &metrics, gauges };
        let of_adapters = Shown { name: "adapters", metrics: &Metrics::default(), gauges: None };
        let page = page(&[shown, of_adapters], &[(200, 7)]);
        for line in [
            "tinderbox_responses_total{status=\"200\"} 7",
            "tinderbox_prompt_tokens_total{model=\"a \\\"b\\\"\"} 10",
            "tinderbox_prompt_tokens_shared_total{model=\"a \\\"b\\\"\"} 4",
            "tinderbox_waiting_texts{model=\"a \\\"b\\\"\"} 3",
            "tinderbox_places{model=\"a \\\"b\\\"\"} 16",
            "tinderbox_prompt_tokens_total{model=\"adapters\"} 0",
            "tinderbox_first_token_seconds_bucket{model=\"a \\\"b\\\"\",le=\"0.002\"} 0",
            "tinderbox_first_token_seconds_bucket{model=\"a \\\"b\\\"\",le=\"0.005\"} 1",
            "tinderbox_first_token_seconds_bucket{model=\"a \\\"b\\\"\",le=\"+Inf\"} 2",
            "tinderbox_first_token_seconds_sum{model=\"a \\\"b\\\"\"} 100.003",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        assert!(!page.contains("places{model=\"adapters\"}"), "{page}");
        let typed = page.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!((typed, page.lines().filter(|line| line.starts_with("# HELP")).count()), (8, 8));
    }
}
