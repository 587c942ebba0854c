//! Keys and sections that do not exist, and the ones that were probably meant.

use toml::{Table, Value};

/// Removes everything from the table that is not a known key of a known section, and adds it to `problems`.
pub(super) fn take(table: &mut Table, known: &Table, problems: &mut Vec<String>) {
    let mut kept = Table::new();
    for (name, value) in std::mem::take(table) {
        match (known.get(&name), value) {
            (Some(Value::Table(known_section)), Value::Table(section)) => {
                let (good, bad): (Vec<_>, Vec<_>) =
                    section.into_iter().partition(|(key, _)| known_section.contains_key(key));
                problems.extend(bad.iter().map(|(key, value)| unknown_key(&name, known_section, key, value, known)));
                kept.insert(name, Value::Table(good.into_iter().collect()));
            }
            (Some(_), value) => {
                problems.push(format!("{name} = {value}: `{name}` is a section; write its keys under [{name}]"));
            }
            (None, Value::Table(_)) => {
                let nearest = nearest(&name, known.keys());
                problems.push(format!("[{name}]: there is no such section; did you mean [{nearest}]?"));
            }
            (None, value) => problems.push(without_section(&name, &value, known)),
        }
    }
    *table = kept;
}

/// The sections that have a key of this name.
pub(super) fn sections_with<'a>(known: &'a Table, key: &str) -> Vec<&'a str> {
    let has_key = |section: &Value| section.as_table().is_some_and(|section| section.contains_key(key));
    known.iter().filter(|(_, section)| has_key(section)).map(|(name, _)| name.as_str()).collect()
}

fn unknown_key(section: &str, known_section: &Table, key: &str, value: &Value, known: &Table) -> String {
    let homes = sections_with(known, key);
    let advice = if homes.is_empty() {
        format!("did you mean `{section}.{}`?", nearest(key, known_section.keys()))
    } else {
        format!("it belongs in {}", bracketed(&homes))
    };
    format!("{section}.{key} = {value}: there is no such key in [{section}]; {advice}")
}

fn without_section(key: &str, value: &Value, known: &Table) -> String {
    let homes = sections_with(known, key);
    let advice = if homes.is_empty() {
        let all = known.values().filter_map(Value::as_table).flat_map(Table::keys);
        let nearest = nearest(key, all);
        format!("did you mean `{nearest}` in {}?", bracketed(&sections_with(known, nearest)))
    } else {
        format!("it belongs in {}", bracketed(&homes))
    };
    format!("{key} = {value}: there is no such key outside of a section; {advice}")
}

fn bracketed(sections: &[&str]) -> String {
    sections.iter().map(|section| format!("[{section}]")).collect::<Vec<_>>().join(" or ")
}

/// The most similar candidate.
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
        let known = "[model]\nd_model = 1\nd_ff = 1\nn_heads = 1\n[train]\nseed = 1\n[generate]\nseed = 1";
        let mut problems = Vec::new();
        let mut table = toml::from_str(text).unwrap();
        take(&mut table, &toml::from_str(known).unwrap(), &mut problems);
        problems
    }

    #[test]
    fn the_nearest_key_is_named() {
        for (wrong, right) in [("d_modell", "d_model"), ("dff", "d_ff"), ("num_heads", "n_heads")] {
            let found = problems(&format!("[model]\n{wrong} = 1"));
            assert!(found[0].ends_with(&format!("did you mean `model.{right}`?")), "{found:?}");
        }
    }

    #[test]
    fn a_key_in_the_wrong_section_is_told_where_it_belongs() {
        assert!(problems("[model]\nseed = 1")[0].ends_with("it belongs in [generate] or [train]"));
        assert!(problems("d_ff = 1")[0].ends_with("it belongs in [model]"));
        assert!(problems("d_fff = 1")[0].ends_with("did you mean `d_ff` in [model]?"));
    }

    #[test]
    fn sections_are_checked_like_keys() {
        assert!(problems("[trian]\nseed = 1")[0].ends_with("did you mean [train]?"));
        assert!(problems("train = 3")[0].contains("`train` is a section"));
        assert!(problems("[model.d_fg]\nx = 1")[0].contains("did you mean `model.d_ff`"));
        assert!(problems("[model]\nd_ff = 1\n[train]").is_empty());
    }
}
