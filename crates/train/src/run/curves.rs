//! The curves of a run: its metrics and timings, joined by step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};

use super::layout::{METRICS, TIMINGS};
use super::log::{COLUMNS, GRADIENT_NORM_OF, read_lines};
use super::{RunDir, RunError};
use crate::optimizer::place_of;

/// The values logged at one step, by column. A long run has a hundred thousand rows: maps would need twice the memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogRow {
    /// Sorted by name.
    values: Vec<(Box<str>, Scalar)>,
}

/// A logged value in a third of the memory of [`Value`], which has room for objects.
#[derive(Clone, Debug, PartialEq)]
enum Scalar {
    Number(Number),
    Other(Box<Value>),
}

impl From<Value> for Scalar {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => Self::Number(number),
            other => Self::Other(other.into()),
        }
    }
}

impl From<&Scalar> for Value {
    fn from(scalar: &Scalar) -> Self {
        match scalar {
            Scalar::Number(number) => number.clone().into(),
            Scalar::Other(value) => (**value).clone(),
        }
    }
}

impl LogRow {
    /// The value of a column; `None` if none was logged.
    pub fn get(&self, column: &str) -> Option<Value> {
        self.find(column).ok().map(|at| (&self.values[at].1).into())
    }

    fn find(&self, column: &str) -> Result<usize, usize> {
        self.values.binary_search_by(|(name, _)| (**name).cmp(column))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(name, _)| &**name)
    }

    /// Adds values, replacing existing ones of the same name.
    fn add(&mut self, values: impl IntoIterator<Item = (Box<str>, Scalar)>) {
        for (name, value) in values {
            match self.find(&name) {
                Ok(at) => self.values[at].1 = value,
                Err(at) => self.values.insert(at, (name, value)),
            }
        }
        self.values.shrink_to_fit();
    }
}

impl FromIterator<(String, Value)> for LogRow {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(values: I) -> Self {
        let mut row = Self::default();
        row.add(values.into_iter().map(|(name, value)| (name.into(), value.into())));
        row
    }
}

impl Serialize for LogRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.values.iter().map(|(name, value)| (name, Value::from(value))))
    }
}

/// Reads a line of a log, except for lists and objects: these describe the process, not the step.
impl<'de> Deserialize<'de> for LogRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let line = Map::<String, Value>::deserialize(deserializer)?;
        Ok(line.into_iter().filter(|(_, value)| !value.is_object() && !value.is_array()).collect())
    }
}

/// All values that a run logged.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// The columns that occur: known ones first, then those of other versions.
    pub columns: Vec<String>,
    /// One row for each step with a value, in order.
    pub rows: Vec<LogRow>,
    /// Lines that could not be read.
    pub broken_lines: usize,
}

impl Curves {
    /// Reads the curves of a run, which may be incomplete.
    pub fn read(run: &RunDir) -> Result<Self, RunError> {
        let mut rows: BTreeMap<u64, LogRow> = BTreeMap::new();
        let mut broken_lines = 0;
        for name in [METRICS, TIMINGS] {
            let lines = read_lines::<LogRow>(&run.join(name))?;
            broken_lines += lines.broken;
            for line in lines.lines {
                let Some(step) = step_of(&line) else {
                    broken_lines += 1;
                    continue;
                };
                if line.values.len() > 1 {
                    rows.entry(step).or_default().add(line.values);
                }
            }
        }
        let rows: Vec<LogRow> = rows.into_values().collect();
        Ok(Self { columns: columns(&rows), rows, broken_lines })
    }

    /// The finite numbers of a column, with their steps.
    pub fn column(&self, name: &str) -> Vec<(u64, f64)> {
        let of_row = |row: &LogRow| {
            let number = row.get(name)?.as_f64().filter(|number| number.is_finite())?;
            Some((step_of(row)?, number))
        };
        self.rows.iter().filter_map(of_row).collect()
    }

    /// The gradient norm of each layer, with its name, in the order of the model; empty for a run of an older version.
    pub fn gradient_norms(&self) -> Vec<(&str, Vec<(u64, f64)>)> {
        let names = self.columns.iter().filter_map(|column| Some((column, column.strip_prefix(GRADIENT_NORM_OF)?)));
        let mut layers: Vec<_> = names.map(|(column, layer)| (layer, self.column(column))).collect();
        layers.sort_by_key(|(layer, _)| place_of(layer));
        layers
    }

    /// The rows of steps that are multiples of `n`, and the last row.
    pub fn every(&self, n: u64) -> Vec<&LogRow> {
        let is_wanted =
            |row: &LogRow| step_of(row).is_some_and(|step| step.is_multiple_of(n)) || Some(row) == self.rows.last();
        self.rows.iter().filter(|row| is_wanted(row)).collect()
    }

    /// At most `most` rows: the last one, evaluations up to half of `most`, and others, evenly spaced.
    pub fn thinned(&self, most: usize) -> Vec<&LogRow> {
        let n = self.rows.len();
        if n <= most {
            return self.rows.iter().collect();
        }
        let is_evaluation = |&at: &usize| self.rows[at].get("val_loss_estimate").is_some();
        let mut kept: BTreeSet<usize> = spread(&(0..n).filter(is_evaluation).collect::<Vec<_>>(), most / 2);
        kept.insert(n - 1);
        let others: Vec<usize> = (0..n).filter(|at| !kept.contains(at)).collect();
        kept.extend(spread(&others, most - kept.len()));
        kept.into_iter().map(|at| &self.rows[at]).collect()
    }
}

fn step_of(row: &LogRow) -> Option<u64> {
    row.get("step")?.as_u64()
}

/// At most `most` of the items, evenly spaced, including the last.
fn spread(items: &[usize], most: usize) -> BTreeSet<usize> {
    let n = most.min(items.len());
    (1..=n).map(|i| items[i * items.len() / n - 1]).collect()
}

/// The columns that occur in the rows, in display order.
fn columns(rows: &[LogRow]) -> Vec<String> {
    let mut left: BTreeSet<&str> = rows.iter().flat_map(LogRow::names).collect();
    let known: Vec<&str> = COLUMNS.into_iter().filter(|name| left.remove(name)).collect();
    known.into_iter().chain(left).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(metrics: &str, timings: &str) -> Curves {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.toml"), "").unwrap();
        fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
        fs::write(dir.path().join("timings.jsonl"), timings).unwrap();
        Curves::read(&RunDir::open(dir.path()).unwrap()).unwrap()
    }

    fn steps(rows: &[&LogRow]) -> Vec<u64> {
        rows.iter().map(|row| step_of(row).unwrap()).collect()
    }

    #[test]
    fn log_lines_of_one_step_form_one_row() {
        let curves = read(
            "{\"step\":5,\"train_loss\":3.0}\n{\"step\":10,\"train_loss\":2.5}\n\
             {\"step\":10,\"val_loss_estimate\":2.75,\"novel\":1}\n{\"step\":15,\"tr",
            "{\"step\":0,\"session\":{\"device\":\"flex\"}}\n{\"step\":10,\"tokens_per_s\":7.0}\n",
        );
        assert_eq!(curves.columns, ["step", "train_loss", "val_loss_estimate", "tokens_per_s", "novel"]);
        assert_eq!(curves.rows.len(), 2, "no row for a session or for half a line");
        assert_eq!(curves.rows[0].values.len(), 2);
        assert_eq!(curves.rows[1].get("val_loss_estimate"), Some(Value::from(2.75)));
        assert_eq!(curves.rows[1].get("tokens_per_s"), Some(Value::from(7.0)));
        assert_eq!(curves.broken_lines, 0);
        assert_eq!(curves.column("train_loss"), [(5, 3.0), (10, 2.5)]);
        assert_eq!(curves.column("nowhere"), []);
    }

    #[test]
    fn thinning_keeps_evaluations() {
        let line = |step: u64| match step % 70 {
            0 => format!("{{\"step\":{step},\"val_loss_estimate\":1.0}}\n"),
            _ => format!("{{\"step\":{step},\"train_loss\":1.0}}\n"),
        };
        let curves = read(&(1..=300).map(line).collect::<String>(), "");
        let thinned = steps(&curves.thinned(20));
        assert_eq!(thinned.len(), 20);
        for step in [70, 140, 210, 280, 300] {
            assert!(thinned.contains(&step), "{step} in {thinned:?}");
        }
        assert!(thinned.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 25));
        assert_eq!(curves.thinned(300).len(), 300);
        assert_eq!(steps(&curves.every(90)), [90, 180, 270, 300]);
    }
}
