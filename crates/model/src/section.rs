//! The sections of a config: structs with their defaults, and the rules that they check. Each section stands in the
//! module that reads it.

use std::fmt::Display;

/// The largest length, width or count: more than fits any machine, yet a product of two does not overflow.
pub const MAX_SIZE: usize = 1 << 24;

/// The largest integer of TOML.
const MAX_SEED: u64 = i64::MAX as u64;

/// Defines the sections of a config: structs with the default of each key next to its type. A default is not repeated
/// in the docs of its key, unless it follows from other keys. A field without a default is a section whose keys stand
/// in this one (`#[serde(flatten)]`).
#[macro_export]
macro_rules! sections {
    (@default $type:ty) => { <$type>::default() };
    (@default $type:ty, $default:expr) => { $default };
    (@keys $key:expr, $type:ty) => { <$type as $crate::section::Section>::keys() };
    (@keys $key:expr, $type:ty, $default:expr) => { vec![$key] };
    ($($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$key_doc:meta])* pub $key:ident: $type:ty $(= $default:expr)?,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$key_doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $crate::sections!(@default $type $(, $default)?),)* }
            }
        }

        impl $crate::section::Section for $name {
            const ABOUT: &'static str = concat!($(stringify!($doc), "\u{1e}"),*);

            fn keys() -> Vec<(&'static str, &'static str)> {
                [$($crate::sections!(
                    @keys (stringify!($key), concat!($(stringify!($key_doc), "\u{1e}"),*)), $type $(, $default)?
                ),)*].concat()
            }
        }
    )*};
}

/// A section of a config that knows the documentation of its keys, as [`sections!`] defines them.
pub trait Section {
    /// The attributes of the struct, each followed by a record separator; [`paragraphs`] reads them.
    const ABOUT: &'static str;

    /// Each key with its attributes, in the order of the struct.
    fn keys() -> Vec<(&'static str, &'static str)>;
}

/// The paragraphs of the doc comments among attributes.
pub fn paragraphs(attributes: &str) -> Vec<String> {
    let docs = attributes.split('\u{1e}').filter_map(|attribute| attribute.strip_prefix("doc ="));
    let lines =
        docs.map(|literal| literal.trim().trim_start_matches(['r', '#']).trim_end_matches('#').trim_matches('"'));
    let lines: Vec<&str> = lines.map(str::trim).collect();
    lines.split(|line| line.is_empty()).map(|paragraph| paragraph.join(" ")).collect()
}

/// The broken rules of a config so far, each as a message that names its key and value.
#[derive(Debug, Default)]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// Adds the problem `KEY = VALUE must RULE`, unless the rule `holds`.
    pub fn must(&mut self, holds: bool, key: &str, value: impl Display, rule: &str) {
        if !holds {
            self.0.push(format!("{key} = {value} must {rule}"));
        }
    }

    /// Checks a length, width or count.
    pub fn size(&mut self, key: &str, value: usize) {
        let rule = format!("be at least 1 and at most {MAX_SIZE}");
        self.must((1..=MAX_SIZE).contains(&value), key, value, &rule);
    }

    /// Checks a count without an upper limit.
    pub fn at_least_one(&mut self, key: &str, value: usize) {
        self.must(value >= 1, key, value, "be at least 1");
    }

    /// Checks a positive number; NaN fails too.
    pub fn above_zero(&mut self, key: &str, value: f64) {
        self.must(value.is_finite() && value > 0.0, key, value, "be a finite number above 0");
    }

    /// Checks a number that is not negative; NaN fails too.
    pub fn not_negative(&mut self, key: &str, value: f64) {
        self.must(value.is_finite() && value >= 0.0, key, value, "be a finite number, 0 or more");
    }

    /// Checks a share that must be below 1; NaN fails too.
    pub fn below_one(&mut self, key: &str, value: f64) {
        self.must((0.0..1.0).contains(&value), key, value, "be at least 0 and below 1");
    }

    /// Checks a seed, which TOML must be able to hold.
    pub fn seed(&mut self, key: &str, value: u64) {
        self.must(value <= MAX_SEED, key, value, &format!("be at most {MAX_SEED}, the largest integer of TOML"));
    }
}

/// Rules broken by settings from a config and from arguments.
#[derive(Debug, thiserror::Error)]
#[error("the settings have {}", listed(.0))]
pub struct BrokenRules(pub Vec<String>);

/// The number of problems, followed by the problems, one per line.
pub fn listed(problems: &[String]) -> String {
    let count = match problems.len() {
        1 => "a problem:".to_owned(),
        n => format!("{n} problems:"),
    };
    problems.iter().fold(count, |list, problem| list + "\n  - " + problem)
}
