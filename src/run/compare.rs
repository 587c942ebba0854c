//! What sets runs apart: the keys of their configs that are not the same.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::RunDir;
use super::{RunsError, facts};

/// A key of the config that is not the same in all of some runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The key with its section.
    pub key: String,
    /// Its value in each run; none where a run does not have it.
    pub values: Vec<Option<Value>>,
}

/// The keys in which the configs of `runs` differ, section by section, each with its values in the order
/// of the runs.
///
/// # Errors
/// If a config cannot be read.
pub fn differences(runs: &[RunDir]) -> Result<Vec<Difference>, RunsError> {
    let tables = runs.iter().map(facts::settings).collect::<Result<Vec<_>, _>>()?;
    Ok(between(&tables))
}

fn between(tables: &[Table]) -> Vec<Difference> {
    let keys: BTreeSet<(&str, &str)> = tables
        .iter()
        .flatten()
        .flat_map(|(name, section)| {
            let keys = section.as_table().into_iter().flat_map(Table::keys);
            keys.map(move |key| (name.as_str(), key.as_str()))
        })
        .collect();
    let of_key = |(section, key): (&str, &str)| Difference {
        key: format!("{section}.{key}"),
        values: tables.iter().map(|table| Some(table.get(section)?.get(key)?.clone())).collect(),
    };
    let differs =
        |of_key: &Difference| of_key.values.iter().any(|value| value != &of_key.values[0]);
    keys.into_iter().map(of_key).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_the_same_is_a_difference() {
        let table = |text: &str| toml::from_str::<Table>(text).unwrap();
        let tables = [
            table("[train]\nseed = 1\nmax_steps = 5\n[model]\nbias = true"),
            table("[train]\nseed = 2\nmax_steps = 5\n[model]\nbias = true\nnovel = 1"),
        ];
        let found = between(&tables);
        let keys: Vec<&str> = found.iter().map(|difference| difference.key.as_str()).collect();
        assert_eq!(keys, ["model.novel", "train.seed"]);
        assert_eq!(found[0].values, [None, Some(Value::Integer(1))]);
        assert_eq!(found[1].values, [Some(Value::Integer(1)), Some(Value::Integer(2))]);
        assert_eq!(between(&tables[..1]), []);
    }
}
