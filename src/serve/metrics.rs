//! `/metrics`: the counters of all models, in Prometheus's text format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::counters::{Metrics, total};
use super::loaded_model::LoadedModel;

/// A name, a help, and where the value is.
type Counter = (&'static str, &'static str, fn(&Metrics) -> &AtomicU64);
type Gauge = (&'static str, &'static str, fn(&LoadedModel) -> usize);

const COUNTERS: [Counter; 3] = [
    ("prompt_tokens_total", "Tokens of prompts.", |it| &it.prompt_tokens),
    ("prompt_tokens_shared_total", "Prompt tokens whose keys and values were cached.", |it| &it.cached_tokens),
    ("written_tokens_total", "Tokens generated.", |it| &it.generated_tokens),
];

const GAUGES: [Gauge; 4] = [
    ("waiting_texts", "Sequences that wait for a slot.", |it| it.queue.n_waiting()),
    ("busy_places", "Slots in use.", |it| it.queue.n_busy()),
    ("places", "All slots.", |it| it.slots.n),
    ("cache_bytes", "Memory of keys and values.", |it| it.queue.cache_bytes()),
];

/// The page `/metrics`: the models, and the number of responses by status.
pub(super) fn page(models: &[Arc<LoadedModel>], responses: &BTreeMap<u16, u64>) -> String {
    let mut page = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, lines: Vec<(String, String)>| {
        page.extend([format!("# HELP tinderbox_{name} {help}\n# TYPE tinderbox_{name} {kind}\n")]);
        page.extend(lines.iter().map(|(labels, value)| format!("tinderbox_{name}{labels} {value}\n")));
    };
    let responses = responses.iter().map(|(status, n)| (format!("{{status=\"{status}\"}}"), n.to_string()));
    metric("responses_total", "counter", "Responses, by status.", responses.collect());
    let label = |model: &LoadedModel| format!("{{model={}}}", quoted(&model.name));
    for (name, help, counter) in COUNTERS {
        let line = |model: &Arc<LoadedModel>| (label(model), total(counter(&model.metrics)));
        metric(name, "counter", help, models.iter().map(line).collect());
    }
    // Adapters share the thread of their base.
    let bases: Vec<&Arc<LoadedModel>> = models.iter().filter(|model| model.adapters.is_none()).collect();
    for (name, help, gauge) in GAUGES {
        metric(name, "gauge", help, bases.iter().map(|model| (label(model), gauge(model).to_string())).collect());
    }
    let times = models.iter().flat_map(|model| model.metrics.first_token.lines(&quoted(&model.name)));
    metric("first_token_seconds", "histogram", "Time from a request to its first token.", times.collect());
    page
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
