//! Finds unknown keys and sections, and suggests the nearest known ones.

use toml::{Table, Value};

/// Removes everything except known keys of known sections from the table, and adds a message for each to `problems`.
pub(super) fn take(table: &mut Table, known: &Table, problems: &mut Vec<String>) {
    let mut kept = Table::new();
    for (name, value) in std::mem::take(table) {
        match (known.get(&name), value) {
            (Some(Value::Table(known_section)), Value::Table(section)) => {
                let (good, bad): (Vec<_>, Vec<_>) =
                    section.into_iter().partition(|(key, _)| known_section.contains_key(key));
                let unknown = |(key, value): &(String, Value)| {
                    format!("{name}.{key} = {value}: {}", no_key(&name, known_section, key, known))
                };
                problems.extend(bad.iter().map(unknown));
                kept.insert(name, Value::Table(good.into_iter().collect()));
            }
            (Some(_), value) => {
                problems.push(format!("{name} = {value}: `{name}` is a section; write its keys under [{name}]"));
            }
            (None, Value::Table(_)) => problems.push(no_section(&name, known)),
            (None, value) => {
                let advice = advice_without_section(&name, known);
                problems.push(format!("{name} = {value}: there is no such key outside of a section; {advice}"));
            }
        }
    }
    take_moved(&mut kept, problems);
    *table = kept;
}

/// Keys that moved from `[[data.sources]]` to `[data]`.
const MOVED: [&str; 5] = ["format", "record_limit_mib", "document_separator", "include", "exclude"];

fn take_moved(table: &mut Table, problems: &mut Vec<String>) {
    let sources = table.get_mut("data").and_then(|data| data.get_mut("sources")?.as_array_mut());
    for (idx, source) in sources.into_iter().flatten().enumerate() {
        let Some(source) = source.as_table_mut() else { continue };
        for key in MOVED.into_iter().filter(|key| source.remove(*key).is_some()) {
            problems.push(format!("data.sources[{idx}].{key} is gone; set data.{key}, which holds for all sources"));
        }
    }
}

/// The value of a known key, `section.key`; for any other key an error that suggests the nearest one.
pub(super) fn known_value<'a>(path: &str, known: &'a Table) -> Result<&'a Value, String> {
    let Some((section, key)) = path.split_once('.') else {
        return Err(format!("`{path}` has no section; {}", advice_without_section(path, known)));
    };
    let Some(keys) = known.get(section).and_then(Value::as_table) else { return Err(no_section(section, known)) };
    keys.get(key).ok_or_else(|| no_key(section, keys, key, known))
}

fn sections_with<'a>(known: &'a Table, key: &str) -> Vec<&'a str> {
    let has_key = |section: &Value| section.as_table().is_some_and(|section| section.contains_key(key));
    known.iter().filter(|(_, section)| has_key(section)).map(|(name, _)| name.as_str()).collect()
}

fn no_section(name: &str, known: &Table) -> String {
    format!("[{name}]: there is no such section; did you mean [{}]?", nearest(name, known.keys()))
}

fn no_key(section: &str, known_section: &Table, key: &str, known: &Table) -> String {
    let advice =
        home(key, known).unwrap_or_else(|| format!("did you mean `{section}.{}`?", nearest(key, known_section.keys())));
    format!("there is no such key in [{section}]; {advice}")
}

fn advice_without_section(key: &str, known: &Table) -> String {
    home(key, known).unwrap_or_else(|| {
        let nearest = nearest(key, known.values().filter_map(Value::as_table).flat_map(Table::keys));
        format!("did you mean `{nearest}` in {}?", bracketed(&sections_with(known, nearest)))
    })
}

/// Advice that names the sections that have this key, if there are any.
fn home(key: &str, known: &Table) -> Option<String> {
    let homes = sections_with(known, key);
    (!homes.is_empty()).then(|| format!("it belongs in {}", bracketed(&homes)))
}

fn bracketed(sections: &[&str]) -> String {
    sections.iter().map(|section| format!("[{section}]")).collect::<Vec<_>>().join(" or ")
}

fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a String>) -> &'a str {
    candidates
        .into_iter()
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)))
        .expect("there are known keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let known =
            "[model]\nd_model = 1\nd_ff = 1\nn_heads = 1\n[train]\nseed = 1\n[generate]\nseed = 1\n[data]\nsources = 1";
        let mut problems = Vec::new();
        let mut table = toml::from_str(text).unwrap();
        take(&mut table, &toml::from_str(known).unwrap(), &mut problems);
        problems
    }

    #[test]
    fn unknown_keys_suggest_nearest_key_or_section() {
        for (text, advice) in [
            ("[model]\nd_modell = 1", "did you mean `model.d_model`?"),
            ("[model]\ndff = 1", "did you mean `model.d_ff`?"),
            ("[model]\nnum_heads = 1", "did you mean `model.n_heads`?"),
            ("[model.d_fg]\nx = 1", "did you mean `model.d_ff`?"),
            ("[model]\nseed = 1", "it belongs in [generate] or [train]"),
            ("d_ff = 1", "it belongs in [model]"),
            ("d_fff = 1", "did you mean `d_ff` in [model]?"),
            ("[trian]\nseed = 1", "did you mean [train]?"),
            ("train = 3", "`train` is a section; write its keys under [train]"),
        ] {
            let found = problems(text);
            assert!(found.len() == 1 && found[0].ends_with(advice), "{text}: {found:?}");
        }
        assert!(problems("[model]\nd_ff = 1\n[train]").is_empty());
        let moved = problems("[[data.sources]]\npath = \"a\"\ninclude = [\"*.txt\"]");
        assert_eq!(moved, ["data.sources[0].include is gone; set data.include, which holds for all sources"]);
    }
}
