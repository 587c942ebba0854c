//! The config of a run, key by key, with the explicitly chosen values marked.

use std::path::Path;

use toml::{Table, Value};

use crate::config::Config;
use crate::view::escape::escape;
use crate::view::html::Fragment;

const STYLE: &str = include_str!("../assets/settings.css");

/// Every key of a run's config and its value, in the order of a written config, with the default beside another value.
pub(super) fn settings(config: &Table) -> Fragment {
    let known = load(config).map(|config| config.to_toml());
    let remark = match known {
        Some(_) => "A dot marks a value that is not the default.",
        None => "This version does not know all of these keys, so their defaults are unknown.",
    };
    let mut body = format!("<p>{remark}</p>\n<div class=\"sections\">\n");
    // Tables are sorted by name; unknown keys come last.
    let keys = keys(known.as_deref().unwrap_or_default());
    let rank = |is_it: &dyn Fn(&(&str, &str)) -> bool| keys.iter().position(is_it).unwrap_or(usize::MAX);
    let sections = config.iter().filter_map(|(name, section)| Some((name.as_str(), section.as_table()?)));
    let mut sections: Vec<(&str, &Table)> = sections.filter(|(_, section)| !section.is_empty()).collect();
    sections.sort_by_key(|(name, _)| rank(&|(section, _)| section == name));
    for (name, section) in sections {
        body += &format!("<div>\n<h3>[{}]</h3>\n<table>\n", escape(name));
        let mut settings: Vec<(&String, &Value)> = section.iter().collect();
        settings.sort_by_key(|(key, _)| rank(&|of| *of == (name, key.as_str())));
        for (key, value) in settings {
            let (class, default) = match known.is_some().then(|| default(config, name, key)) {
                None => ("unknown", None),
                Some(Some(default)) if default == *value => ("default", None),
                Some(default) => ("chosen", default),
            };
            let default = default.map(|default| format!("<small>default {}</small>", escape(&shown(&default))));
            body += &format!(
                "<tr class=\"{class}\"><th scope=\"row\">{}</th><td>{}{}</td></tr>\n",
                escape(key),
                escape(&shown(value)),
                default.unwrap_or_default()
            );
        }
        body += "</table>\n</div>\n";
    }
    Fragment { body: body + "</div>", ..Fragment::empty("settings", &[STYLE], &[]) }
}

/// The keys of a written config, with their sections.
fn keys(config: &str) -> Vec<(&str, &str)> {
    let mut section = "";
    let mut keys = Vec::new();
    for line in config.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if let Some((key, _)) = line.split_once(" = ") {
            keys.push((section, key));
        }
    }
    keys
}

/// The default of a key, which may depend on others: its value in the config that is loaded without it.
fn default(config: &Table, section: &str, key: &str) -> Option<Value> {
    let mut without = config.clone();
    without.get_mut(section)?.as_table_mut()?.remove(key);
    // If other keys need this one, the rest may be invalid without it; then the key's own default counts.
    let whole: Table = toml::from_str(&load(&without).unwrap_or_default().to_toml()).ok()?;
    whole.get(section)?.get(key).cloned()
}

/// The full config that a partial one stands for, if valid. That of an imported model names no text.
fn load(part: &Table) -> Option<Config> {
    let text = toml::to_string(part).ok()?;
    Config::saved_from_toml(&text, Path::new("config.toml")).ok()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(shown).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Table(table) => {
            let pairs = table.iter().map(|(key, value)| format!("{key} = {}", shown(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => format!("{text:?}"), // TOML would write some on several lines
        // A default may be a product of others, as 0.1 * 0.003: without the last digits, which nobody wrote.
        Value::Float(number) if number.is_finite() => {
            let rounded: f64 = format!("{number:.11e}").parse().expect("a formatted number parses");
            Value::Float(rounded).to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(text: &str) -> String {
        let part: Table = toml::from_str(text).expect("the text is TOML");
        let whole = load(&part).map(|config| toml::from_str(&config.to_toml()).expect("a written config is TOML"));
        settings(&whole.unwrap_or(part)).body
    }

    #[track_caller]
    fn assert_row(html: &str, class: &str, key: &str, value: &str) {
        let row = format!("<tr class=\"{class}\"><th scope=\"row\">{key}</th><td>{value}</td></tr>");
        assert!(html.contains(&row), "{row} is not in {html}");
    }

    #[test]
    fn chosen_settings_are_marked() {
        let shown = html("data.path = 'a.txt'\nmodel = { n_heads = 8, d_ff = 512 }\ntrain.max_steps = 7");
        assert_row(&shown, "chosen", "path", "&quot;a.txt&quot;");
        assert_row(&shown, "chosen", "max_steps", "7<small>default 2000</small>");
        assert_row(&shown, "chosen", "n_heads", "8<small>default 4</small>");
        assert_row(&shown, "default", "n_kv_heads", "8"); // it follows n_heads
        assert_row(&shown, "default", "d_ff", "512"); // it is 4 * 128 anyway
        assert_row(&shown, "default", "betas", "[0.9, 0.99]");
        assert_row(&shown, "default", "sample_prompt", "&quot;\\n&quot;");
        let places =
            ["[data]", "[tokenizer]", "[model]", ">d_model<", ">d_ff<", "[train]"].map(|name| shown.find(name));
        assert!(places.is_sorted() && places[0].is_some(), "{places:?}");
        // Without a key that others need, the config is invalid.
        let shown = html("data.path = 'a.txt'\nmodel = { n_heads = 6, n_kv_heads = 6, d_model = 96 }");
        assert_row(&shown, "chosen", "n_heads", "6<small>default 4</small>");
    }

    #[test]
    fn floats_are_rounded() {
        for (number, expected) in [(0.1 * 0.003, "0.0003"), (0.1 + 0.2, "0.3"), (1.0, "1.0")] {
            assert_eq!(shown(&Value::Float(number)), expected);
        }
    }

    #[test]
    fn unknown_config_has_no_defaults() {
        let shown = html("[model]\nnovel = 1\n[[data.sources]]\npath = 'a'\nweight = 2.0");
        assert_row(&shown, "unknown", "novel", "1");
        assert_row(&shown, "unknown", "sources", "[{ path = &quot;a&quot;, weight = 2.0 }]");
    }
}
