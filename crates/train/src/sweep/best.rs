//! Writes the best setting of a sweep as a config: the base config's own text, with its comments, and the sweep's
//! values with their reasons.

use toml::{Table, Value};

use super::pace::{steps_within, whole_steps};
use super::{Dimension, IsolatedStepTimes, Outcome, Request, overrides};
use crate::autoconfig;
use crate::config::Config;
use crate::config::commented::{comment, comment_start, section_lines, sets};
use crate::format::{duration, milliseconds};

/// A value to write, and the reason for it.
struct Change {
    path: String,
    value: Value,
    why: String,
}

/// The config of a setting for a run as long as the `base_steps` of the base config.
pub(super) fn toml(
    request: &Request,
    space: &[Dimension],
    setting: &[Value],
    IsolatedStepTimes { base_ms, step_ms }: IsolatedStepTimes,
    base_steps: usize,
    outcome: &Outcome,
) -> String {
    let load = |text: &str, overrides: &[String]| Config::from_toml(text, &request.config_name, overrides).ok();
    let mut overrides = overrides(request, space, setting);
    let [base, best] = [&request.overrides, &overrides].map(|it| load(&request.config, it).expect("it was trained"));
    let base_s = whole_steps(&base, base_steps) * base_ms / 1e3;
    let max_steps = steps_within(&best, base_s, step_ms).max(1);
    overrides.push(format!("train.max_steps={max_steps}"));
    let wanted = load(&request.config, &overrides).expect("it was trained with these settings");
    let mut changes = changes(request, space, setting, &wanted, outcome);
    let why = format!(
        "As many steps of {} as fit the time of the base config's own run, {}.",
        milliseconds(step_ms),
        duration(base_s)
    );
    let value = Value::Integer(i64::try_from(max_steps).unwrap_or(i64::MAX));
    changes.push(Change { path: "train.max_steps".to_owned(), value, why });
    let title = comment(&format!(
        "The best setting of `{}`. {} Comments that do not name the sweep are the base config's.",
        outcome.sweep_dir.display(),
        results(outcome)
    ));
    let of = |text: &str| format!("{title}\n{}", edited(text, &changes));
    let own = of(&request.config);
    // A text that does not set its keys line by line is rewritten.
    if load(&own, &[]).as_ref() == Some(&wanted) { own } else { of(&wanted.to_toml()) }
}

/// The results of the best setting in a sentence.
fn results(outcome: &Outcome) -> String {
    let Some((best, rung)) = outcome.best().and_then(|best| Some((best, best.rung?))) else { return String::new() };
    let number = |loss: Option<f64>| loss.map_or_else(|| "none".to_owned(), |loss| format!("{loss:.4}"));
    let mut text = format!(
        "After {} of training steps its validation loss is {} bits per byte",
        duration(outcome.rungs_s[rung]),
        number(best.bits_per_byte)
    );
    match outcome.base().and_then(|base| Some((base, base.rung?))) {
        Some((base, _)) if base.trial == best.trial => text += "; it is the base config itself.",
        Some((base, rung)) => {
            let after = duration(outcome.rungs_s[rung]);
            let loss = number(base.bits_per_byte);
            text.extend(["; the base config's is ", &loss, " after ", &after, "."]);
        }
        None => text.push('.'),
    }
    text
}

fn changes(
    request: &Request,
    space: &[Dimension],
    setting: &[Value],
    wanted: &Config,
    outcome: &Outcome,
) -> Vec<Change> {
    let table = Table::try_from(wanted).expect("a config can be written as TOML");
    let is_swept = |path: &str| space.iter().any(|dimension| dimension.key.path == path);
    let given = request.overrides.iter().filter_map(|text| Some(text.split_once('=')?.0.trim().to_owned()));
    let given = given.filter(|path| !is_swept(path) && path != "train.max_steps").filter_map(|path| {
        let (section, key) = path.split_once('.')?;
        let value = table.get(section)?.get(key)?.clone();
        Some(Change { path, value, why: "Given with --set, for all runs of the sweep.".to_owned() })
    });
    let mut changes: Vec<Change> = given.collect();
    for (dimension, value) in space.iter().zip(setting) {
        let path = dimension.key.path.clone();
        let importance = outcome.importance.iter().find(|importance| importance.key == path);
        let why = importance.map_or_else(String::new, |importance| {
            let groups: Vec<String> = importance.groups.iter().map(super::Group::label).collect();
            format!(
                "Chosen by the sweep. Importance {}; bits per byte in the first rung, and how many runs: {}.",
                importance.percent(),
                groups.join(", ")
            )
        });
        changes.push(Change { path, value: value.clone(), why });
    }
    changes
}

/// The text with values changed line by line: a missing key is inserted after its default in a comment, or at the end
/// of its section. The comment above a value that `init --from-text` has chosen says why, and goes with it.
fn edited(text: &str, changes: &[Change]) -> String {
    let is_generated = text.starts_with(autoconfig::TITLE);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for Change { path, value, why } in changes {
        let (section, key) = path.split_once('.').expect("a known key");
        let range = section_lines(&lines, section).unwrap_or_else(|| {
            lines.extend([String::new(), format!("[{section}]")]);
            lines.len()..lines.len()
        });
        let (start, own) = (range.start, &lines[range]);
        let find = |mark: &str| own.iter().position(|line| sets(line, mark, key)).map(|at| start + at);
        let filled = own.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |at| at + 1);
        let range = match (find(""), find("# ")) {
            (Some(at), _) if is_generated && !lines[at].ends_with(&format!("= {value}")) => {
                comment_start(&lines, at)..at + 1
            }
            (Some(at), _) => at..at + 1,
            (None, Some(at)) => at + 1..at + 1,
            (None, None) => start + filled..start + filled,
        };
        let why = comment(why);
        let new = why.lines().map(str::to_owned).chain([format!("{key} = {value}")]);
        lines.splice(range, new.collect::<Vec<_>>());
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_comments_and_gets_reasons() {
        let change = |path: &str, value: Value| Change { path: path.to_owned(), value, why: "Why.".to_owned() };
        let text = "[data]\npath = \"a.txt\"\n\n[model]\n# The width.\nd_model = 64 # wide\n# mlp = \"gelu\"\n\n[train]\nseed = 1\n";
        let changes = [
            change("model.d_model", 96.into()),
            change("model.mlp", "swiglu".into()),
            change("model.d_ff", 128.into()),
            change("optimizer.kind", "muon".into()),
        ];
        assert_eq!(
            edited(text, &changes),
            "[data]\npath = \"a.txt\"\n\n[model]\n# The width.\n# Why.\nd_model = 96\n# mlp = \"gelu\"\n# Why.\n\
             mlp = \"swiglu\"\n# Why.\nd_ff = 128\n\n[train]\nseed = 1\n\n[optimizer]\n# Why.\nkind = \"muon\"\n"
        );
        let generated = format!(
            "{}x\n\n[model]\n# 1 parameter,\n# so few\nd_model = 64\n# Good.\nbias = true\n",
            autoconfig::TITLE
        );
        let changes = [change("model.d_model", 96.into()), change("model.bias", true.into())];
        let rest = "x\n\n[model]\n# Why.\nd_model = 96\n# Good.\n# Why.\nbias = true\n";
        assert_eq!(edited(&generated, &changes).strip_prefix(autoconfig::TITLE), Some(rest));
    }
}
