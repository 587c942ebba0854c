//! The state of a run in a sentence, and its numbers.

use super::{Imported, Report};
use crate::format::{duration, grouped, shell_word, short, whole};
use crate::measure;
use crate::run::{Curves, Status};
use crate::view::escape::escape;
use crate::view::html::Fragment;
use crate::view::terminal::runs::marked_loss;

const STYLE: &str = include_str!("../assets/numbers.css");

/// The state of the run in a sentence.
pub(super) fn lead(report: &Report) -> String {
    let facts = &report.facts;
    let step = grouped(facts.step);
    let steps = match facts.max_steps {
        Some(max_steps) if max_steps != facts.step => {
            format!("{step} of {} steps", grouped(max_steps))
        }
        _ => format!("{step} steps"),
    };
    let device = facts.device.as_ref();
    let on = device.map_or_else(String::new, |device| format!(" on {device}"));
    let time = |before: &str| facts.wall_s.map_or_else(String::new, |s| format!("{before} {}", duration(s)));
    match facts.status {
        Status::Done => format!("Done: {steps}{on}{}", time(" in")),
        Status::Running => format!("In progress: {steps}{on}{}", time(", after")),
        Status::Stopped => format!("Stopped after {steps}{on}"),
        Status::Imported => {
            let from = facts.started_from.as_ref().map_or_else(String::new, |from| format!(" from {from}"));
            format!("Imported{from}: it was not trained here")
        }
    }
}

/// The numbers of the run, the most important ones large.
pub(super) fn numbers(report: &Report) -> Fragment {
    let mut body = "<dl class=\"tiles\">\n".to_owned();
    for (name, value, detail) in tiles(report) {
        body += &format!(
            "<div><dt>{name}</dt><dd class=\"value\">{}</dd><dd class=\"detail\">{}</dd></div>\n",
            escape(&value),
            escape(&detail)
        );
    }
    body += "</dl>\n";
    if !report.notes.is_empty() {
        let notes = report.notes.iter().map(|note| format!("<li>{}</li>\n", with_code(note)));
        body += &format!("<ul class=\"notes\">\n{}</ul>\n", notes.collect::<String>());
    }
    fragment(body)
}

/// The secondary numbers of the run, and how it was made.
pub(super) fn details(report: &Report) -> Fragment {
    let facts = facts(report).into_iter();
    let facts = facts.map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", linked(&value)));
    let mut body = format!("<dl class=\"facts\">\n{}</dl>\n", facts.collect::<String>());
    if let Some(Imported { tokenizer, .. }) = &report.imported {
        let run = shell_word(&report.facts.run);
        let write = if tokenizer.is_some_and(|(_, has_template)| has_template) { "chat" } else { "generate" };
        let next = [("serve", ""), ("inspect attention", " --prompt hello"), (write, "")];
        let next = next.map(|(command, more)| format!("`tinderbox {command} {run}{more}`"));
        body += &format!("<p>Use it: {}.</p>\n", with_code(&next.join(", ")));
    }
    fragment(body)
}

/// A value as HTML; a model of the Hugging Face hub as a link.
fn linked(value: &str) -> String {
    let shown = escape(value);
    let model = value.strip_prefix("hf:").and_then(|name| name.split('@').next());
    match model.map(|name| name.splitn(3, '/').take(2).collect::<Vec<_>>().join("/")) {
        Some(model) => format!("<a href=\"https://huggingface.co/{}\">{shown}</a>", escape(&model)),
        None => shown,
    }
}

/// Plain text as HTML; what stands between backticks is code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

fn fragment(body: String) -> Fragment {
    Fragment { body, ..Fragment::empty("numbers", &[STYLE], &[]) }
}

/// The name, value and remark of each known important number.
fn tiles(report: &Report) -> Vec<(&'static str, String, String)> {
    let facts = &report.facts;
    let (mark, extent) = if facts.is_estimate { ("~", "an estimate") } else { ("", "over the whole split") };
    let unit = format!("{}, {extent}", facts.loss_unit());
    let loss = |loss| marked_loss(loss, facts.is_estimate);
    let perplexity =
        facts.val_loss.filter(|_| facts.val_accuracy.is_none()).map(|loss| format!("{mark}{}", short(loss.exp())));
    let trained = report.processes.last().and_then(|process| process.train_tokens);
    let epochs = |tokens: u64| {
        let epochs = trained.map(|n| short(tokens as f64 / n.max(1) as f64));
        epochs.map(|epochs| format!("{epochs} times the training text")).unwrap_or_default()
    };
    let preferred = facts.val_accuracy.map(|share| format!("{mark}{:.0} %", 100.0 * share));
    let margin = facts.val_margin.map_or_else(String::new, |margin| format!(", by a margin of {mark}{margin:.4}"));
    let learned = facts.trained_parameters.filter(|n| Some(*n) != facts.parameters);
    let learned = learned.map_or_else(|| "learned numbers".to_owned(), |n| format!("{} of them learned", grouped(n)));
    let step_ms = median(&report.curves, "median_step_ms").map(|ms| format!("{} ms per step", short(ms)));
    let tiles = [
        ("Best validation loss", facts.val_loss.map(loss), unit),
        ("Perplexity", perplexity, "equally likely choices per token".to_owned()),
        ("Bits per byte", facts.val_bits_per_byte.map(loss), "of the validation text".to_owned()),
        ("Preferences", preferred, "of the chosen answers preferred".to_owned() + &margin),
        ("Parameters", facts.parameters.map(grouped), learned),
        ("Tokens seen", facts.tokens.map(grouped), facts.tokens.map(epochs).unwrap_or_default()),
        ("Tokens per second", median(&report.curves, "tokens_per_s").map(whole), step_ms.unwrap_or_default()),
    ];
    tiles.into_iter().filter_map(|(name, value, detail)| Some((name, value?, detail))).collect()
}

fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let facts = &report.facts;
    let last = report.processes.last();
    let peak_mib = report.processes.iter().filter_map(|process| process.peak_rss_mib).reduce(f64::max);
    let text = last.and_then(|process| Some([process.train_tokens?, process.val_tokens?].map(grouped)));
    let resumed = report.processes.len().saturating_sub(1);
    let imported = report.imported.as_ref();
    let tokenizer = imported.and_then(|it| it.tokenizer);
    let context = report.config.get("model").and_then(|model| model.get("context_length")?.as_integer());
    let context = context.filter(|_| imported.is_some()).and_then(|n| u64::try_from(n).ok());
    let tokens = |n: u64| format!("{} tokens", grouped(n));
    let vocabulary = last.and_then(|process| process.vocab_size).or(tokenizer.map(|(n, _)| n as u64));
    let rows = [
        ("Best checkpoint", facts.best_step.map(|step| format!("step {}", grouped(step)))),
        ("Last weights", last_weights(&report.curves, facts.loss_unit())),
        ("Total time", facts.wall_s.map(duration)),
        ("Training time", facts.train_s.map(duration)),
        ("Peak memory", peak_mib.map(|mib| format!("{} MiB", whole(mib)))),
        ("Device", facts.device.clone()),
        ("Text", text.map(|[train, val]| format!("{train} training and {val} validation tokens"))),
        ("Family", imported.and_then(|it| it.family.clone())),
        ("Context", context.map(tokens)),
        ("Vocabulary", vocabulary.map(tokens)),
        ("Chat template", tokenizer.map(|(_, has_template)| if has_template { "yes" } else { "none" }.to_owned())),
        (if imported.is_some() { "Imported from" } else { "Started from" }, facts.started_from.clone()),
        ("Resumed", (resumed > 0).then(|| times(resumed))),
        ("Version", last.and_then(|process| process.version.as_ref()).map(|version| format!("Tinderbox {version}"))),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The loss of the last weights: over the whole validation split, or the last estimate.
fn last_weights(curves: &Curves, unit: &str) -> Option<String> {
    let last = |column| curves.column(column).pop();
    let shown = |loss: f64, bits: Option<f64>, is_estimate: bool| {
        let bits = bits.map(|bits| format!(", {} bits per byte", marked_loss(bits, is_estimate)));
        format!("{} {unit}{}", marked_loss(loss, is_estimate), bits.unwrap_or_default())
    };
    let (estimate, whole) = (last("val_loss_estimate"), last("val_loss"));
    match whole {
        Some((step, loss)) if estimate.is_none_or(|estimate| estimate.0 <= step) => {
            Some(shown(loss, last("val_bits_per_byte").map(|bits| bits.1), false))
        }
        _ => Some(shown(estimate?.1, last("val_bits_per_byte_estimate").map(|bits| bits.1), true)),
    }
}

pub(super) fn median(curves: &Curves, column: &str) -> Option<f64> {
    let values: Vec<f64> = curves.column(column).into_iter().map(|(_, x)| x).collect();
    (!values.is_empty()).then(|| measure::median(&values))
}

fn times(n: usize) -> String {
    match n {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::terminal::runs::log_row;

    #[test]
    fn last_weights_have_last_evaluation() {
        let curves = |rows: &[serde_json::Value]| Curves {
            rows: rows.iter().cloned().map(log_row).collect(),
            ..Curves::default()
        };
        let done = json!({"step": 20, "val_loss": 1.5, "val_bits_per_byte": 2.0, "val_loss_estimate": 1.4});
        let estimate = json!({"step": 30, "val_loss_estimate": 1.25, "val_bits_per_byte_estimate": 1.75});
        let shown = last_weights(&curves(std::slice::from_ref(&done)), "nats per token");
        assert_eq!(shown.as_deref(), Some("1.5000 nats per token, 2.0000 bits per byte"));
        // A finished run that continues with more steps.
        let shown = last_weights(&curves(&[done, estimate]), "nats per token");
        assert_eq!(shown.as_deref(), Some("~1.2500 nats per token, ~1.7500 bits per byte"));
        assert_eq!(last_weights(&Curves::default(), "nats per token"), None);
    }
}
