//! The reference of all keys, made from the docs of their structs: `docs/config.md` and `tinderbox init --all`.

use std::fmt::Write as _;
use std::path::Path;

use tinderbox_model::section::{Section, paragraphs};
use toml::{Table, Value};

use super::commented::{comment, comment_start, literal, section_lines, sets};
use super::load::known_keys;
use super::{
    Config, ConfigError, DataConfig, DistributedConfig, FinetuneConfig, GenerateConfig, ModelConfig, OptimizerConfig,
    ScheduleConfig, TokenizerConfig, TrainConfig,
};

/// A section of the config file, with the paragraphs about each of its keys.
struct Documented {
    name: &'static str,
    /// The subject of the section, without its name.
    about: String,
    keys: Vec<(&'static str, Vec<String>)>,
}

fn documented<S: Section>(name: &'static str) -> Documented {
    let about = paragraphs(S::ABOUT).remove(0);
    let about = about.split_once(": ").map_or(about.as_str(), |(_, about)| about).trim_end_matches('.').to_owned();
    Documented { name, about, keys: S::keys().into_iter().map(|(key, docs)| (key, paragraphs(docs))).collect() }
}

fn sections() -> [Documented; 9] {
    [
        documented::<DataConfig>("data"),
        documented::<TokenizerConfig>("tokenizer"),
        documented::<ModelConfig>("model"),
        documented::<TrainConfig>("train"),
        documented::<OptimizerConfig>("optimizer"),
        documented::<ScheduleConfig>("schedule"),
        documented::<FinetuneConfig>("finetune"),
        documented::<GenerateConfig>("generate"),
        documented::<DistributedConfig>("distributed"),
    ]
}

/// The defaults that do not follow from other keys, in their sections.
fn defaults() -> Table {
    let mut config = Config::default();
    let derived = config.derive_defaults(&Table::new());
    let mut table = table_of(&config);
    for (key, _) in derived {
        let (section, key) = key.split_once('.').expect("keys are written section.key");
        table[section].as_table_mut().expect("every section is a table").remove(key);
    }
    table
}

fn table_of(config: &Config) -> Table {
    let mut table = Table::try_from(config).expect("a config can be written as TOML");
    // Left out of a saved config if they have their defaults.
    let can_be = "a section can be written as TOML";
    table.insert("distributed".to_owned(), Table::try_from(&config.distributed).expect(can_be).into());
    table.insert("finetune".to_owned(), Table::try_from(&config.finetune).expect(can_be).into());
    table
}

fn inline(value: &Value) -> String {
    if matches!(value, Value::String(_)) { literal(value) } else { value.to_string() }
}

/// A shipped config with every key that it lacks, commented out with the value that it has, and what each key means.
pub fn with_every_key(text: &str, origin: &Path) -> Result<String, ConfigError> {
    let (config, examples, defaults) = (table_of(&Config::from_toml(text, origin, &[])?), known_keys(), defaults());
    let (head, _) = text.split_once("\n[").unwrap_or_default();
    let mut page = format!("{}\n", head.trim_end());
    for section in sections() {
        let _ = write!(page, "\n{}[{}]\n", comment(&format!("{}.", capitalized(&section.about))), section.name);
        for (i, (key, docs)) in section.keys.into_iter().enumerate() {
            page += if i > 0 { "\n" } else { "" };
            page.extend(docs.iter().map(|paragraph| comment(paragraph)));
            if let Some(default) = defaults[section.name].get(key) {
                page += &comment(&format!("Default {}.", inline(default)));
            }
            if let Some(lines) = lines_of(text, section.name, key) {
                page += &lines;
            } else {
                let value = [&config, &examples].into_iter().find_map(|table| table[section.name].get(key));
                let _ = writeln!(page, "# {key} = {}", inline(value.expect("the table holds every key")));
            }
        }
    }
    Ok(page)
}

/// The line that sets a key in a section, below the comment about its value.
fn lines_of(text: &str, section: &str, key: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = section_lines(&lines, section)?.find(|&at| sets(lines[at], "", key))?;
    Some(lines[comment_start(&lines, at)..=at].join("\n") + "\n")
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::SourceConfig;

    fn to_markdown() -> String {
        let defaults = defaults();
        let mut page = String::from(
            "# Every key of a config\n\n\
             A config is a TOML file. It needs `data.path` alone; every key that is left out has its default. `--set \
             section.key=value` overrides a key for one run. `tinderbox init --all` prints a config with all of this in \
             its comments.\n\n\
             This page is made from the source: the docs of each key stand beside its default.\n",
        );
        for section in sections() {
            add_table(&mut page, &section, &format!("[{}]", section.name), |key| defaults[section.name].get(key));
            if section.name == "data" {
                add_table(&mut page, &documented::<SourceConfig>("data.sources"), "[[data.sources]]", |_| None);
            }
        }
        page
    }

    fn add_table<'a>(
        page: &mut String,
        section: &Documented,
        title: &str,
        default: impl Fn(&str) -> Option<&'a Value>,
    ) {
        let _ = write!(page, "\n## `{title}`: {}\n\n| key | default | meaning |\n|---|---|---|\n", section.about);
        for (key, docs) in &section.keys {
            let default = default(key).map(|value| format!("`{}`", inline(value))).unwrap_or_default();
            let _ = writeln!(page, "| `{key}` | {default} | {} |", docs.join("<br>").replace('|', "\\|"));
        }
    }

    #[test]
    fn reference_page_of_keys_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
        let page = to_markdown();
        if std::env::var_os("TINDERBOX_WRITE_DOCS").is_some() {
            fs::write(&path, &page).unwrap();
        }
        let is_current = fs::read_to_string(&path).unwrap() == page;
        assert!(is_current, "docs/config.md is out of date: run this test with TINDERBOX_WRITE_DOCS=1");
    }

    #[test]
    fn every_key_is_documented() {
        let known = known_keys();
        assert_eq!(sections().len(), known.len());
        assert!(sections().iter().all(|section| !section.about.is_empty()));
        for section in sections() {
            let mut names: Vec<&str> = section.keys.iter().map(|(key, _)| *key).collect();
            names.sort_unstable();
            assert_eq!(names, known[section.name].as_table().unwrap().keys().collect::<Vec<_>>(), "{}", section.name);
            assert!(section.keys.iter().all(|(_, docs)| docs[0].ends_with('.')), "{}", section.name);
        }
    }

    #[test]
    fn reference_comments_do_not_change_shipped_configs() {
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        for file in fs::read_dir(configs).unwrap() {
            let path = file.unwrap().path();
            let all = with_every_key(&fs::read_to_string(&path).unwrap(), &path).unwrap();
            let config = Config::from_toml(&all, &path, &[]).unwrap();
            assert_eq!(config, Config::load(&path, &[]).unwrap(), "{all}");
            let uncommented = all.lines().map(|line| match line.strip_prefix("# ") {
                Some(key) if key.split_once(" = ").is_some_and(|(name, _)| !name.contains(' ')) => key,
                _ => line,
            });
            let uncommented = uncommented.collect::<Vec<_>>().join("\n");
            let table: Table = uncommented.parse().unwrap_or_else(|error| panic!("{error}: {uncommented}"));
            assert_eq!(table.keys().collect::<Vec<_>>(), known_keys().keys().collect::<Vec<_>>());
        }
    }
}
