//! The config of a run, key by key, with the explicitly chosen values marked.

use std::path::Path;

use toml::{Table, Value};

use crate::config::Config;
use crate::view::escape::escape;
use crate::view::html::Fragment;

const STYLE: &str = include_str!("../assets/settings.css");

#[derive(Clone, Debug)]
pub(super) struct Section {
    pub name: String,
    pub settings: Vec<Setting>,
}

#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub key: String,
    pub value: String,
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The value would be the same without the key.
    Default,
    /// The value was chosen; with its default in TOML, if it has one.
    Chosen(Option<String>),
    /// The config is from another version, whose defaults are unknown.
    Unknown,
}

/// The sections of a run's config, and their keys, in the order of a written config. To find the default of a key,
/// which may depend on other keys, the config is loaded without it.
pub(super) fn sections(config: &Table) -> Vec<Section> {
    let known = load(config).map(|config| config.to_toml());
    let of_section = |(name, section): (&String, &Value)| {
        let keys = section.as_table().into_iter().flatten();
        let settings: Vec<Setting> = keys
            .map(|(key, value)| Setting {
                key: key.clone(),
                value: shown(value),
                origin: match known {
                    Some(_) => origin(config, name, key, value),
                    None => Origin::Unknown,
                },
            })
            .collect();
        Section { name: name.clone(), settings }
    };
    let mut sections: Vec<Section> = config.iter().map(of_section).collect();
    sections.retain(|section| !section.settings.is_empty());
    // Tables are sorted by name; unknown keys come last.
    let written = known.unwrap_or_default();
    let keys = keys(&written);
    let rank = |is_it: &dyn Fn(&(&str, &str)) -> bool| keys.iter().position(is_it).unwrap_or(usize::MAX);
    sections.sort_by_key(|section| rank(&|(name, _)| *name == section.name));
    for Section { name, settings } in &mut sections {
        settings.sort_by_key(|setting| rank(&|(section, key)| *section == name.as_str() && *key == setting.key));
    }
    sections
}

pub(super) fn settings(sections: &[Section]) -> Fragment {
    let mut settings = sections.iter().flat_map(|section| &section.settings);
    let is_known = settings.all(|setting| setting.origin != Origin::Unknown);
    let mut body = match is_known {
        true => "<p>A dot marks a value that is not the default.</p>\n",
        false => "<p>This version does not know all of these keys, so their defaults are unknown.</p>\n",
    }
    .to_owned();
    body += "<div class=\"sections\">\n";
    for section in sections {
        body += &format!("<div>\n<h3>[{}]</h3>\n<table>\n", escape(&section.name));
        for setting in &section.settings {
            let (class, default) = match &setting.origin {
                Origin::Default => ("default", None),
                Origin::Chosen(default) => ("chosen", default.as_ref()),
                Origin::Unknown => ("unknown", None),
            };
            let default = default.map(|default| format!("<small>default {}</small>", escape(default)));
            body += &format!(
                "<tr class=\"{class}\"><th scope=\"row\">{}</th><td>{}{}</td></tr>\n",
                escape(&setting.key),
                escape(&setting.value),
                default.unwrap_or_default()
            );
        }
        body += "</table>\n</div>\n";
    }
    body += "</div>";
    Fragment { body, ..Fragment::empty("settings", &[STYLE], &[]) }
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

fn origin(config: &Table, section: &str, key: &str, value: &Value) -> Origin {
    let mut without = config.clone();
    if let Some(keys) = without.get_mut(section).and_then(Value::as_table_mut) {
        keys.remove(key);
    }
    // If other keys need this one, the rest may be invalid without it; then the key's own default counts.
    let whole = load(&without).unwrap_or_default().to_toml();
    let whole: Option<Table> = toml::from_str(&whole).ok();
    let default = whole.and_then(|whole| Some(whole.get(section)?.get(key)?.clone()));
    match default {
        Some(default) if default == *value => Origin::Default,
        other => Origin::Chosen(other.as_ref().map(shown)),
    }
}

/// The full config that a partial one stands for, if valid.
fn load(part: &Table) -> Option<Config> {
    let text = toml::to_string(part).ok()?;
    Config::from_toml(&text, Path::new("config.toml"), &[]).ok()
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

    fn of(text: &str) -> Vec<Section> {
        let part: Table = toml::from_str(text).unwrap();
        let whole = load(&part).map(|config| toml::from_str(&config.to_toml()).unwrap());
        sections(&whole.unwrap_or(part))
    }

    fn setting<'a>(sections: &'a [Section], name: &str, key: &str) -> &'a Setting {
        let section = sections.iter().find(|section| section.name == name).unwrap();
        section.settings.iter().find(|setting| setting.key == key).unwrap()
    }

    #[test]
    fn chosen_settings_are_marked() {
        let sections = of("data.path = 'a.txt'\nmodel = { n_heads = 8, d_ff = 512 }\ntrain.max_steps = 7");
        let origin = |name, key| setting(&sections, name, key).origin.clone();
        let chosen = |default: &str| Origin::Chosen(Some(default.to_owned()));
        assert_eq!(origin("data", "path"), Origin::Chosen(None), "there is no default");
        assert_eq!(origin("train", "max_steps"), chosen("2000"));
        assert_eq!(origin("model", "n_heads"), chosen("4"));
        assert_eq!(origin("model", "n_kv_heads"), Origin::Default, "it follows n_heads");
        assert_eq!(origin("model", "d_ff"), Origin::Default, "it is 4 * 128 anyway");
        assert_eq!(origin("optimizer", "betas"), Origin::Default);
        assert_eq!(setting(&sections, "optimizer", "betas").value, "[0.9, 0.99]");
        assert_eq!(setting(&sections, "data", "path").value, "\"a.txt\"");
        assert_eq!(setting(&sections, "train", "sample_prompt").value, r#""\n""#);
        let names: Vec<&str> = sections.iter().map(|section| &*section.name).collect();
        assert_eq!(names[..4], ["data", "tokenizer", "model", "train"]);
        assert_eq!(sections[2].settings[1].key, "d_model");
        // Without a key that others need, the config is invalid.
        let sections = of("data.path = 'a.txt'\nmodel = { n_heads = 6, n_kv_heads = 6, d_model = 96 }");
        assert_eq!(setting(&sections, "model", "n_heads").origin, chosen("4"));
    }

    #[test]
    fn floats_are_rounded() {
        for (number, expected) in [(0.1 * 0.003, "0.0003"), (0.1 + 0.2, "0.3"), (1.0, "1.0")] {
            assert_eq!(shown(&Value::Float(number)), expected);
        }
    }

    #[test]
    fn unknown_config_has_unknown_origins() {
        let sections = of("[model]\nnovel = 1\n[[data.sources]]\npath = 'a'\nweight = 2.0");
        assert_eq!(setting(&sections, "model", "novel").origin, Origin::Unknown);
        let sources = &setting(&sections, "data", "sources").value;
        assert_eq!(sources, "[{ path = \"a\", weight = 2.0 }]");
    }
}
