//! The search space of a sweep: the keys that vary, the values they may take, and the settings to try.
//!
//! `KEY=VALUES`, where VALUES is a list (`gelu,swiglu`), a range (`0..0.3`) or a logarithmic range (`log(1e-4..1e-2)`).
//! Ranges include both ends; for an integer key they consist of integers.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use toml::Value;

use crate::config::Key;

/// The values of a setting, in the order of the keys.
pub type Setting = Vec<Value>;

/// The reason why a `--space` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--space {text}: {reason}\n  hint: write KEY=VALUES, such as \"optimizer.learning_rate=log(1e-4..1e-2)\", \
     \"model.dropout=0..0.3\" or \"model.mlp=gelu,swiglu\""
)]
pub struct SpaceError {
    text: String,
    reason: String,
}

/// A key and the values it may take.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// The key.
    pub key: Key,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    List(Vec<Value>),
    Range { low: f64, high: f64, is_log: bool, is_whole: bool },
}

/// The end of the values that were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The lowest value.
    Lowest,
    /// The highest value.
    Highest,
}

/// The values of a key to search next: around the best one, or beyond the range if it lies at an end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NextRange {
    /// The key.
    pub key: String,
    /// The end of the range, if the best value lies there; `None` if it has values on both sides.
    pub edge: Option<Edge>,
    /// The argument of `--space`.
    pub space: String,
}

/// The share of a range at each end: a best value there suggests that the range ends too early.
const NEAR_EDGE: f64 = 0.1;

/// Keys and sections that cannot vary, with the reason.
const TAKEN: [(&str, &str); 12] = [
    ("data.", "all runs of a sweep are compared on the same text"),
    ("generate.", "it does not change how a model is trained"),
    ("distributed.", "each run of a sweep is trained by one process"),
    ("train.max_steps", "a run gets as many steps as fit its time"),
    ("train.seed", "--seeds says how many there are"),
    ("train.device", "all runs are made on one device, which --device chooses"),
    ("train.eval_", "all runs are evaluated at the same times"),
    ("train.checkpoint_interval", "runs are saved when they are compared"),
    ("train.keep_checkpoints", "runs are saved when they are compared"),
    ("train.sample_", "the runs of a sweep generate no samples"),
    ("train.early_stopping_patience", "runs are compared after all of their steps"),
    ("train.log_interval", "it does not change how a model is trained"),
];

impl Dimension {
    /// Reads `KEY=VALUES`.
    pub fn parse(text: &str) -> Result<Self, SpaceError> {
        let dimension = text.split_once('=').ok_or_else(|| "there is no `=`".to_owned()).and_then(|(path, values)| {
            let key = Key::find(path.trim())?;
            if let Some((_, why)) = TAKEN.iter().find(|(taken, _)| key.path.starts_with(taken)) {
                return Err(format!("`{}` cannot vary: {why}", key.path));
            }
            let values = Values::parse(values.trim(), &key)?;
            Ok(Self { key, values })
        });
        dimension.map_err(|reason| SpaceError { text: text.to_owned(), reason })
    }
}

impl Dimension {
    /// The values to search next, given the best of this dimension; `None` without numbers.
    pub(super) fn next(&self, best: &Value) -> Option<NextRange> {
        let best = number(best)?;
        let (edge, values) = match &self.values {
            Values::Range { low, high, is_log, is_whole } => next_range([*low, *high], best, *is_log, *is_whole)?,
            Values::List(values) => {
                let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
                let is_whole = values.iter().all(Value::is_integer);
                next_list(numbers?, best, is_whole)?
            }
        };
        Some(NextRange { key: self.key.path.clone(), edge, space: format!("{}={values}", self.key.path) })
    }
}

/// The value as a number; `None` if it is not numeric.
pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

/// A number with the two digits that a range needs, or a whole one.
fn rounded(number: f64, is_whole: bool) -> f64 {
    if is_whole { number.round() } else { format!("{number:.1e}").parse().expect("a formatted number parses") }
}

/// Half of a range around the best value, or a range of the same length around an end if it lies there. A range from 0
/// does not extend below 0.
fn next_range([low, high]: [f64; 2], best: f64, is_log: bool, is_whole: bool) -> Option<(Option<Edge>, String)> {
    let to = |number: f64| if is_log { libm::log(number) } else { number };
    let from = |number: f64| if is_log { libm::exp(number) } else { number };
    let [start, end] = [low, high].map(to);
    let place = (to(best) - start) / (end - start);
    let edge = match place {
        _ if place <= NEAR_EDGE && (is_log || low != 0.0) => Some(Edge::Lowest),
        _ if place >= 1.0 - NEAR_EDGE => Some(Edge::Highest),
        _ => None,
    };
    let half = (end - start) * if edge.is_some() { 0.5 } else { 0.25 };
    let [next_low, next_high] = [to(best) - half, to(best) + half].map(|number| rounded(from(number), is_whole));
    let least = if low >= 0.0 && !is_log { f64::from(u8::from(is_whole && low > 0.0)) } else { f64::NEG_INFINITY };
    let next_low = next_low.max(least);
    let values = if is_log { format!("log({next_low}..{next_high})") } else { format!("{next_low}..{next_high}") };
    (next_low < next_high).then_some((edge, values))
}

/// The end of a list, if it is the best, and one more value beyond it; `None` within the list.
fn next_list(mut numbers: Vec<f64>, best: f64, is_whole: bool) -> Option<(Option<Edge>, String)> {
    numbers.sort_by(f64::total_cmp);
    let [first, last] = [*numbers.first()?, *numbers.last()?];
    let (edge, neighbour) = match best {
        _ if best <= first => (Edge::Lowest, numbers[1]),
        _ if best >= last => (Edge::Highest, numbers[numbers.len() - 2]),
        _ => return None,
    };
    let more = if first > 0.0 && last >= 10.0 * first { best * best / neighbour } else { 2.0 * best - neighbour };
    let more = rounded(more, is_whole);
    let is_possible = (more - best).abs() > f64::EPSILON * best.abs() && (more > 0.0 || first < 0.0);
    is_possible.then(|| (Some(edge), if more < best { format!("{more},{best}") } else { format!("{best},{more}") }))
}

impl Values {
    fn parse(text: &str, key: &Key) -> Result<Self, String> {
        let in_log = text.strip_prefix("log(").map(|rest| rest.strip_suffix(')').ok_or("the `)` is missing"));
        let in_log = in_log.transpose()?;
        if let Some((low, high)) = in_log.unwrap_or(text).split_once("..") {
            return Self::range(low, high, in_log.is_some(), key);
        }
        if in_log.is_some() {
            return Err("there is no `..` in log(...)".to_owned());
        }
        let mut values = Vec::new();
        for value in elements(text).into_iter().map(|element| key.value(element.trim())) {
            if values.contains(&value) {
                return Err(format!("{value} is there twice"));
            }
            values.push(value);
        }
        match values.len() {
            1 => Err("one value is no choice; --set gives a key one".to_owned()),
            _ => Ok(Self::List(values)),
        }
    }

    fn range(low: &str, high: &str, is_log: bool, key: &Key) -> Result<Self, String> {
        let Some(is_whole) = key.takes_whole_numbers() else {
            return Err(format!("`{}` takes no numbers; list its values", key.path));
        };
        let end = |text: &str| -> Result<f64, String> {
            let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
            let number = number.ok_or_else(|| format!("`{}` is not a number", text.trim()))?;
            let is_right = !is_whole || number.fract() == 0.0;
            is_right.then_some(number).ok_or_else(|| format!("`{}` takes whole numbers, not {number}", key.path))
        };
        let (low, high) = (end(low)?, end(high)?);
        if low >= high {
            return Err(format!("a range goes from a lower to a higher number, not from {low} to {high}"));
        }
        if is_log && low <= 0.0 {
            return Err(format!("log(...) begins above 0, not at {low}"));
        }
        Ok(Self::Range { low, high, is_log, is_whole })
    }

    /// The value at a fraction, from 0 to 1, of the range or list.
    fn at(&self, place: f64) -> Value {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the number of values")]
        match self {
            Self::List(values) => values[((place * values.len() as f64) as usize).min(values.len() - 1)].clone(),
            Self::Range { low, high, is_log, is_whole } => {
                let room = if *is_whole && !is_log { 1.0 } else { 0.0 };
                let number = match is_log {
                    true => libm::exp(libm::log(*low) + place * (libm::log(*high) - libm::log(*low))),
                    false => low + place * (high + room - low),
                };
                match is_whole {
                    true if *is_log => Value::Integer(number.round() as i64),
                    true => Value::Integer(number.floor().min(*high) as i64),
                    // Rounded to a readable number of digits.
                    false => Value::Float(
                        format!("{number:.2e}").parse::<f64>().expect("a formatted number parses").clamp(*low, *high),
                    ),
                }
            }
        }
    }

    fn n_values(&self) -> Option<usize> {
        match self {
            Self::List(values) => Some(values.len()),
            Self::Range { .. } => None,
        }
    }
}

/// The elements of a list, separated by commas outside brackets and quotes.
fn elements(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0_i32, None, 0);
    let mut elements = Vec::new();
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                elements.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    elements.push(&text[start..]);
    elements
}

/// The number of settings in the space; `None` if a range has too many to count.
pub(super) fn n_settings(space: &[Dimension]) -> Option<usize> {
    space.iter().try_fold(1_usize, |n, dimension| n.checked_mul(dimension.values.n_values()?))
}

/// At most `n` distinct settings, the first of them `base`; a smaller space is tried completely.
///
/// They form a Latin hypercube: each dimension is divided into `n` equal parts, and every part is drawn from once.
///
/// Source: `McKay`, Beckman and Conover 1979, "A Comparison of Three Methods for Selecting Values of Input Variables".
pub(super) fn draw(space: &[Dimension], base: Setting, n: usize, seed: u64) -> Vec<Setting> {
    let mut settings = vec![base];
    let mut add = |setting: Setting| {
        if settings.len() < n && !settings.contains(&setting) {
            settings.push(setting);
        }
    };
    if let Some(all) = n_settings(space).filter(|all| *all <= n) {
        (0..all).for_each(|at| add(nth(space, at)));
        return settings;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut columns: Vec<Vec<Value>> = Vec::new();
    for dimension in space {
        // Sorting by random keys shuffles the parts.
        let mut parts: Vec<(f64, f64)> = (0..n).map(|part| (uniform(), (part as f64 + uniform()) / n as f64)).collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        columns.push(parts.into_iter().map(|(_, place)| dimension.values.at(place)).collect());
    }
    (0..n).for_each(|at| add(columns.iter().map(|column| column[at].clone()).collect()));
    settings
}

/// The setting with this index in a space of lists.
fn nth(space: &[Dimension], mut number: usize) -> Setting {
    let mut value = |dimension: &Dimension| {
        let Values::List(values) = &dimension.values else { unreachable!("a space with ranges is not counted") };
        let value = values[number % values.len()].clone();
        number /= values.len();
        value
    };
    // The last key changes first.
    let mut setting: Setting = space.iter().rev().map(&mut value).collect();
    setting.reverse();
    setting
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(text: &str) -> Dimension {
        Dimension::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn shown(space: &[&str], n: usize, seed: u64) -> Vec<String> {
        let space: Vec<Dimension> = space.iter().map(|text| dimension(text)).collect();
        let settings = draw(&space, vec![Value::Integer(-1); space.len()], n, seed);
        let line = |setting: &Setting| setting.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        settings.iter().map(line).collect()
    }

    #[test]
    fn list_values_parse_like_overrides() {
        for (text, values) in [
            ("model.mlp=gelu,swiglu", &["\"gelu\"", "\"swiglu\""][..]),
            ("model.d_model = 64, 128", &["64", "128"]),
            ("optimizer.betas=[0.9, 0.95],[0.9, 0.99]", &["[0.9, 0.95]", "[0.9, 0.99]"]),
            ("model.bias=true,false", &["true", "false"]),
        ] {
            let Values::List(found) = dimension(text).values else { panic!("{text} is a list") };
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), values);
        }
    }

    #[test]
    fn range_includes_ends_and_has_type_of_key() {
        let at = |text: &str, places: [f64; 3]| places.map(|place| dimension(text).values.at(place).to_string());
        let ends = [0.0, 0.5, 1.0 - f64::EPSILON];
        assert_eq!(at("model.dropout=0..0.3", ends), ["0.0", "0.15", "0.3"]);
        assert_eq!(at("model.n_layers=2..4", ends), ["2", "3", "4"]);
        assert_eq!(at("model.d_ff=log(64..1024)", ends), ["64", "256", "1024"]);
        assert_eq!(at("optimizer.learning_rate=log(1e-4..1e-2)", ends), ["0.0001", "0.001", "0.01"]);
    }

    #[test]
    fn next_range_surrounds_best_or_passes_edge() {
        let next = |text: &str, best: f64| {
            let whole = best.fract() == 0.0 && !text.contains("rate") && !text.contains("dropout");
            let best = if whole { Value::Integer(best as i64) } else { Value::Float(best) };
            dimension(text).next(&best).map(|next| (next.edge, next.space.split_once('=').unwrap().1.to_owned()))
        };
        let rate = "optimizer.learning_rate=log(1e-4..1e-2)";
        for (text, best, edge, values) in [
            (rate, 0.001, None, "log(0.00032..0.0032)"),
            (rate, 0.009, Some(Edge::Highest), "log(0.0009..0.09)"),
            (rate, 0.0001, Some(Edge::Lowest), "log(0.00001..0.001)"),
            ("model.dropout=0..0.4", 0.0, None, "0..0.1"),
            ("model.dropout=0..0.4", 0.4, Some(Edge::Highest), "0.2..0.6"),
            ("model.n_layers=2..10", 2.0, Some(Edge::Lowest), "1..6"),
            ("model.n_layers=2,4,6", 6.0, Some(Edge::Highest), "6,8"),
            ("optimizer.learning_rate=1e-4,1e-3,1e-2", 0.01, Some(Edge::Highest), "0.01,0.1"),
        ] {
            assert_eq!(next(text, best), Some((edge, values.to_owned())), "{text} {best}");
        }
        assert_eq!(next("model.n_layers=2,4,6", 4.0), None);
        assert_eq!(next("model.n_layers=1,2", 1.0), None, "there is no model without layers");
        assert_eq!(dimension("model.mlp=gelu,swiglu").next(&Value::String("gelu".to_owned())), None);
    }

    #[test]
    fn malformed_space_is_explained() {
        for (text, reason) in [
            ("model.mlp", "there is no `=`"),
            ("model.mlpp=gelu,swiglu", "did you mean `model.mlp`?"),
            ("learning_rate=1,2", "it belongs in [optimizer]"),
            ("optimiser.learning_rate=1,2", "did you mean [optimizer]?"),
            ("model.mlp=gelu", "one value is no choice"),
            ("model.mlp=gelu,gelu", "is there twice"),
            ("model.mlp=1..2", "takes no numbers"),
            ("model.n_layers=1..2.5", "takes whole numbers, not 2.5"),
            ("model.dropout=log(0..1)", "begins above 0"),
            ("model.dropout=log(0.1..1", "the `)` is missing"),
            ("model.dropout=log(0.1)", "there is no `..`"),
            ("model.dropout=0.3..0.1", "from a lower to a higher"),
            ("model.dropout=a..b", "`a` is not a number"),
            ("train.max_steps=10,20", "cannot vary"),
            ("data.path=a,b", "cannot vary"),
        ] {
            let error = Dimension::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("log(1e-4..1e-2)"), "{error}");
        }
    }

    #[test]
    fn settings_depend_on_seed_only() {
        let space = ["optimizer.learning_rate=log(1e-4..1e-2)", "model.mlp=gelu,swiglu", "model.n_layers=1..100"];
        let one = shown(&space, 20, 7);
        assert_eq!(one.len(), 20);
        assert_eq!(one, shown(&space, 20, 7));
        assert_ne!(one, shown(&space, 20, 8));
        let gelu = one.iter().filter(|line| line.contains("\"gelu\"")).count();
        assert!((9..=10).contains(&gelu), "each half of the space has half of the settings: {gelu}");
    }

    #[test]
    fn small_space_is_tried_completely_without_duplicates() {
        let space = ["model.mlp=gelu,swiglu", "model.bias=true,false"];
        let all = ["\"gelu\" true", "\"gelu\" false", "\"swiglu\" true", "\"swiglu\" false"];
        assert_eq!(shown(&space, 9, 1)[1..], all);
        let dimensions = space.map(dimension);
        let base = vec![Value::String("swiglu".to_owned()), Value::Boolean(true)];
        assert_eq!(draw(&dimensions, base, 9, 1).len(), 4);
    }
}
