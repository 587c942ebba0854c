//! The `--set section.key=value` arguments, which override keys of a config file.

use toml::{Table, Value};

use super::unknown_keys::known_value;

/// Writes the overrides into the table of the file, where later ones replace earlier ones, and returns an error message
/// for each that is malformed or has no known key. Values are checked afterwards, together with those of the file.
pub(super) fn apply(table: &mut Table, overrides: &[String], known: &Table) -> Vec<String> {
    overrides.iter().filter_map(|text| apply_one(table, text, known).err()).collect()
}

fn apply_one(table: &mut Table, text: &str, known: &Table) -> Result<(), String> {
    let Some((path, value)) = text.split_once('=') else {
        return Err(format!(
            "--set {text}: there is no `=`; write section.key=value, such as --set train.max_steps=100"
        ));
    };
    let path = path.trim();
    let known_value = known_value(path, known).map_err(|why| format!("--set {text}: {why}"))?;
    let (section, key) = path.split_once('.').expect("a known key has a section");
    // A value of the file in place of the section is reported later.
    if let Value::Table(section) = table.entry(section).or_insert_with(|| Table::new().into()) {
        section.insert(key.to_owned(), parse_value(value, known_value));
    }
    Ok(())
}

/// The value as TOML, or as plain text if it is not TOML or the key takes a text, so that `--set model.position=rope`
/// and `--set data.path=2024` need no nested quotes.
pub(super) fn parse_value(text: &str, known: &Value) -> Value {
    match text.trim().parse::<Value>() {
        Ok(value) if value.is_str() || !known.is_str() => value,
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Table {
        toml::from_str("[data]\npath = \"\"\nval_fraction = 0.1\n[train]\nseed = 1\nbetas = [1.0]").unwrap()
    }

    fn set(text: &str, section: &str, key: &str) -> Value {
        let mut table = Table::new();
        assert_eq!(apply(&mut table, &[text.to_owned()], &known()), Vec::<String>::new());
        table[section][key].clone()
    }

    #[test]
    fn values_are_toml_or_strings() {
        assert_eq!(set("train.seed=3", "train", "seed"), Value::Integer(3));
        assert_eq!(set("train.seed = 3 ", "train", "seed"), Value::Integer(3));
        assert_eq!(set("data.val_fraction=2e-1", "data", "val_fraction"), Value::Float(0.2));
        assert_eq!(set("train.betas=[1,2]", "train", "betas").as_array().unwrap().len(), 2);
        for (value, text) in [
            ("\"a\\tb\"", "a\tb"),
            ("my file.txt", "my file.txt"),
            ("a=b", "a=b"),
            ("2024", "2024"),
            ("", ""),
            ("\n", "\n"),
        ] {
            assert_eq!(set(&format!("data.path={value}"), "data", "path"), Value::String(text.into()));
        }
        // A line break does not inject a second key.
        assert_eq!(set("train.seed=1\nx=2", "train", "seed"), Value::String("1\nx=2".into()));
    }

    #[test]
    fn last_override_wins() {
        let mut table = Table::new();
        let settings = ["train.seed=1".to_owned(), "train.seed=2".to_owned()];
        assert!(apply(&mut table, &settings, &known()).is_empty());
        assert_eq!(table["train"]["seed"], Value::Integer(2));
    }

    #[test]
    fn malformed_overrides_are_refused() {
        for text in ["", "seed", "seed=1", ".=1", "train.=1", ".seed=1", "a.b.c=1", "x=1"] {
            let problems = apply(&mut Table::new(), &[text.to_owned()], &known());
            assert!(problems.len() == 1 && problems[0].starts_with(&format!("--set {text}: ")), "{text}: {problems:?}");
        }
    }
}
