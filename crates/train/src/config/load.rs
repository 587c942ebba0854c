//! Loads a [`Config`] from a TOML file and `--set` overrides, and reports all mistakes at once.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use tinderbox_model::Target;
use tinderbox_model::section::{BrokenRules, listed};

use super::inherit::{self, Base};
use super::{
    Config, FinetuneConfig, ModelConfig, SourceConfig, SyncKind, TokenizerConfig, TokenizerKind, ValSplit, overrides,
    unknown_keys,
};

/// The size of the largest config that is read. The parser needs up to 80 times that; the shipped configs have 14 KiB.
const LONGEST: u64 = 1 << 17;

/// The reason why a config cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the variants and their fields")]
pub enum ConfigError {
    #[error("cannot read the config file `{}`: {}\n  hint: {}", .0.display(), .1, read_hint(.1))]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot read the config file `{}`: {}", .0.display(), .1)]
    Syntax(PathBuf, #[source] Box<toml::de::Error>),
    #[error("the config `{}` has {}", .0.display(), listed(.1))]
    Invalid(PathBuf, Vec<String>),
    #[error(transparent)]
    Settings(#[from] BrokenRules),
}

impl Config {
    /// Loads a config file with `section.key=value` overrides. All broken rules are in one error.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::from_toml(&Self::read(path)?, path, overrides)
    }

    /// The text of a config file.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        let fail = |error| ConfigError::Read(path.to_owned(), error);
        let mut text = String::new();
        File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text)).map_err(fail)?;
        match text.len() as u64 > LONGEST {
            true => Err(fail(io::Error::new(
                ErrorKind::FileTooLarge,
                format!("a config has at most {} KiB", LONGEST >> 10),
            ))),
            false => Ok(text),
        }
    }

    /// The `finetune.base` of the text of a config, whose model the config inherits.
    pub fn finetune_base(text: &str, overrides: &[String]) -> Option<PathBuf> {
        let mut table: Table = toml::from_str(text).unwrap_or_default(); // what is wrong with it is said later
        overrides::apply(&mut table, overrides, &known_keys());
        table.get("finetune").and_then(|section| section.get("base")?.as_str()).map(PathBuf::from)
    }

    /// Loads the config of a run, which has no text if its model was imported.
    pub fn load_saved(path: &Path) -> Result<Self, ConfigError> {
        Self::saved_from_toml(&Self::read(path)?, path)
    }

    /// Does the same as [`Config::load_saved`] with the text of a config.
    pub fn saved_from_toml(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::parse(text, origin, &[], None, false)
    }

    /// Does the same as [`Config::load`] with the text of a config; `origin` is its name in errors.
    pub fn from_toml(text: &str, origin: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        Self::from_toml_inheriting(text, origin, overrides, None)
    }

    /// Does the same as [`Config::from_toml`] for the model of an existing run: keys of `[model]`, `[tokenizer]` and
    /// `[generate]` that neither the text nor the overrides set are inherited from `base`.
    pub fn from_toml_inheriting(
        text: &str,
        origin: &Path,
        overrides: &[String],
        base: Option<Base<'_>>,
    ) -> Result<Self, ConfigError> {
        Self::parse(text, origin, overrides, base, true)
    }

    fn parse(
        text: &str,
        origin: &Path,
        overrides: &[String],
        base: Option<Base<'_>>,
        needs_text: bool,
    ) -> Result<Self, ConfigError> {
        let path = origin.to_owned();
        let mut table: Table = match toml::from_str(text) {
            Ok(table) => table,
            Err(error) => return Err(ConfigError::Syntax(path, Box::new(error))),
        };
        // The file's values come first, then the overrides, then the base's values for keys that are still missing.
        let known = known_keys();
        let mut problems = overrides::apply(&mut table, overrides, &known);
        unknown_keys::take(&mut table, &known, &mut problems);
        if let Some(base) = base {
            inherit::fill_in(&mut table, base.config());
        }
        let given = table.clone();
        let mut mistyped = Vec::new();
        let mut config = Self {
            data: section(&mut table, "data", &mut mistyped),
            tokenizer: section(&mut table, "tokenizer", &mut mistyped),
            model: section(&mut table, "model", &mut mistyped),
            train: section(&mut table, "train", &mut mistyped),
            optimizer: section(&mut table, "optimizer", &mut mistyped),
            schedule: section(&mut table, "schedule", &mut mistyped),
            finetune: section(&mut table, "finetune", &mut mistyped),
            generate: section(&mut table, "generate", &mut mistyped),
            distributed: section(&mut table, "distributed", &mut mistyped),
        };
        let derived = config.derive_defaults(&given);
        // A key that could not be read has its default, which the user did not write, so no rule is checked for it.
        let is_readable = |problem: &String| !mistyped.iter().any(|(key, _)| problem.contains(key.as_str()));
        if let Some(Base::Weights(base)) = base {
            let derived = |problem: &String| derived.iter().any(|(key, _)| problem.contains(key));
            let disagreements = config.disagreements(base).into_iter();
            problems.extend(disagreements.filter(|it| is_readable(it) && !derived(it)));
            config.adopt(base); // a rule would only repeat a disagreement
        }
        let broken = config.problems(needs_text).into_iter().filter(is_readable).collect();
        problems.extend(explain_derived(broken, &derived));
        problems.extend(mistyped.into_iter().map(|(_, problem)| problem));
        if problems.is_empty() { Ok(config) } else { Err(ConfigError::Invalid(path, problems)) }
    }

    /// The whole config as TOML, defaults included. It loads back to an equal config.
    ///
    /// # Panics
    /// If the config was not loaded but built in code, with a path that is not UTF-8 or a seed of 2^63 or more.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a config that passed its rules can be written as TOML")
    }

    /// Fills in the missing keys whose defaults follow from other keys, and returns each with the key it follows from.
    pub(super) fn derive_defaults(&mut self, given: &Table) -> Vec<(&'static str, &'static str)> {
        let missing = |section: &str, key: &str| given.get(section).and_then(|table| table.get(key)).is_none();
        let mut derived = self.model.derive_defaults(|key| missing("model", key));
        if missing("schedule", "min_learning_rate") {
            self.schedule.min_learning_rate = self.optimizer.learning_rate / 10.0;
            derived.push(("schedule.min_learning_rate", "optimizer.learning_rate"));
        }
        if self.tokenizer.kind == TokenizerKind::Bpe {
            self.tokenizer.vocab_size = Some(self.tokenizer.bpe_vocab_size());
        }
        derived
    }
}

/// A key of the config, as named by an argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key as `section.key`.
    pub path: String,
    /// A value of the key's type.
    example: Value,
}

impl Key {
    /// Finds the key at `section.key`; for any other key the error suggests one.
    pub fn find(path: &str) -> Result<Self, String> {
        let known = known_keys();
        let example = unknown_keys::known_value(path, &known)?.clone();
        Ok(Self { path: path.to_owned(), example })
    }

    /// Whether the values of the key are whole numbers; `None` if they are not numbers.
    pub fn takes_whole_numbers(&self) -> Option<bool> {
        match self.example {
            Value::Integer(_) => Some(true),
            Value::Float(_) => Some(false),
            _ => None,
        }
    }

    /// Parses a value in the same way as `--set`.
    pub fn value(&self, text: &str) -> Value {
        overrides::parse_value(text, &self.example)
    }
}

/// Adds to the problem of a derived key the key that its value follows from, or drops it if that key has a problem too.
fn explain_derived(problems: Vec<String>, derived: &[(&str, &str)]) -> Vec<String> {
    let starts = |problem: &String, key: &str| problem.strip_prefix(key).is_some_and(|rest| rest.starts_with(' '));
    let explain = |problem: &String| match derived.iter().find(|(key, _)| starts(problem, key)) {
        None => Some(problem.clone()),
        Some((_, from)) if problems.iter().any(|other| starts(other, from)) => None,
        Some((_, from)) => Some(format!("{problem}; left out, it follows from {from}")),
    };
    problems.iter().filter_map(explain).collect()
}

/// All sections with all keys, each with a value of its type.
pub(super) fn known_keys() -> Table {
    let mut config = Config::default();
    // Keys without a default value would be left out.
    config.data.path = PathBuf::from(".");
    config.data.cache_dir = Some(PathBuf::from("tokens"));
    config.data.sources = vec![SourceConfig { path: PathBuf::from("data"), ..SourceConfig::default() }];
    config.data.val_split = Some(ValSplit::Documents);
    config.data.document_separator = Some("\n\n".to_owned());
    (config.data.include, config.data.exclude) = (vec!["*.txt".to_owned()], vec!["*.png".to_owned()]);
    config.tokenizer = TokenizerConfig::with_every_key();
    config.model = ModelConfig::with_every_key();
    config.schedule.initial_context_length = Some(1);
    config.schedule.initial_batch_size = Some(1);
    config.distributed.sync = SyncKind::Local; // a section of defaults would be left out
    config.finetune = FinetuneConfig {
        trained_tokens: vec![0],
        base: Some(PathBuf::from("runs/base")),
        targets: Target::ALL.to_vec(),
        last_blocks: Some(1),
        map: vec!["prompt=question".to_owned()],
        ignored_fields: vec!["id".to_owned()],
        ..FinetuneConfig::default()
    };
    Table::try_from(config).expect("the defaults can be written as TOML")
}

/// Takes one section out of the table. Each key is read separately, so that one mistake does not hide the next; keys
/// that cannot be read keep their defaults and are added to `mistyped` with a message.
fn section<S>(table: &mut Table, name: &str, mistyped: &mut Vec<(String, String)>) -> S
where
    S: Default + Serialize + DeserializeOwned,
{
    let Some(Value::Table(mut keys)) = table.remove(name) else { return S::default() };
    keys.retain(|key, value| {
        let alone = Table::from_iter([(key.to_owned(), value.clone())]).try_into::<S>();
        if let Err(error) = &alone {
            let problem = format!("{name}.{key} = {value}: {}", plain(error.message()));
            mistyped.push((format!("{name}.{key}"), problem));
        }
        alone.is_ok()
    });
    keys.try_into().expect("each key was read on its own before")
}

/// serde's message, with the types named in terms that the author of a config file knows.
fn plain(message: &str) -> String {
    let (found, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let expected = match expected {
        "usize" | "u64" => "a whole number, 0 or more",
        "f64" => "a number",
        "a string" | "path string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "an array of length 2" => "a list of two numbers",
        other => other,
    };
    if expected.is_empty() { found.to_owned() } else { format!("{found}, expected {expected}") }
}

fn read_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => {
            "give the path of a config file, or the name of a preset, such as quickstart; relative paths start at the \
             working directory"
        }
        ErrorKind::IsADirectory => "this is a folder; give the path of a config file in it",
        ErrorKind::InvalidData => "save the file as UTF-8",
        ErrorKind::FileTooLarge => "this is another file, or a damaged one; give the path of a config file",
        _ => "check that the file can be read",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{PositionKind, PrecisionChoice, RopeScaling};

    pub const SMALLEST: &str = "[data]\npath = \"a.txt\"\n";

    pub fn read(text: &str, overrides: &[&str], base: Option<Base<'_>>) -> Result<Config, ConfigError> {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        Config::from_toml_inheriting(text, Path::new("a.toml"), &overrides, base)
    }

    fn with(overrides: &[&str]) -> Config {
        read(SMALLEST, overrides, None).unwrap()
    }

    fn loaded_back(config: &Config) -> Config {
        read(&config.to_toml(), &[], None).unwrap()
    }

    /// The problems of a config; empty if it is valid.
    pub fn problems(text: &str, overrides: &[&str]) -> Vec<String> {
        match read(text, overrides, None) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Invalid(_, problems)) => problems,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn path_is_only_required_key() {
        let config = with(&[]);
        assert_eq!(config.data.path, Path::new("a.txt"));
        assert_eq!(config.tokenizer.kind, TokenizerKind::Char);
        let problems = problems("", &[]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("data.path is missing"), "{problems:?}");
    }

    #[test]
    fn defaults_follow_from_the_keys_that_are_given() {
        let model = with(&["model.mlp=swiglu", "model.d_model=100", "model.n_heads=2"]).model;
        assert_eq!((model.d_ff, model.n_kv_heads), (288, 2)); // 8/3 of 100 is 266.7, rounded up
        assert_eq!(with(&["model.d_model=96", "model.mlp=swiglu"]).model.d_ff, 256); // exactly 8/3 of 96
        let model = with(&["model.d_model=96", "model.norm=rms_norm", "model.bias=true"]).model;
        assert!(model.head_dim == 24 && model.qkv_bias && (model.norm_eps - 1e-6).abs() < 1e-18);
        assert_eq!(model, model.clone().with_derived());
        let schedule = with(&["optimizer.learning_rate=2e-4"]).schedule;
        assert!((schedule.min_learning_rate - 2e-5).abs() < 1e-18);
    }

    #[test]
    fn saved_config_loads_back_equal() {
        let settings = [
            "model.mlp=swiglu",
            "model.position=rope",
            "model.n_kv_heads=2",
            "optimizer.learning_rate=0.0003",
            "optimizer.betas=[0, 0.95]",
            "train.sample_prompt=a \"quoted\"\ttext\n\u{e9}",
            "train.seed=9223372036854775807",
            "train.matmul_precision=bf16",
            "data.cache_dir=/tmp/c",
            "generate.stop=[\"\\n\\n\", \"end\"]",
        ];
        let llama3 = "model.rope_scaling={kind=\"llama3\", factor=8, low_freq_factor=1, high_freq_factor=4, \
                      original_context_length=8192}";
        let foreign =
            ["model.position=rope", "model.head_dim=128", "model.norm_eps=1e-12", "model.qkv_bias=true", llama3];
        let foreign = with(
            &[&foreign[..], &["model.parallel_residual=true", "model.vocab_size=300", "model.logit_softcap=30"]]
                .concat(),
        );
        assert!(matches!(foreign.model.rope_scaling, Some(RopeScaling::Llama3 { .. })));
        let [config, bpe, file] =
            [&settings[..], &["tokenizer.kind=bpe"], &["tokenizer.kind=file", "tokenizer.path=2024"]].map(with);
        assert_eq!(config.model.position, PositionKind::Rope);
        assert_eq!(config.generate.stop, ["\n\n", "end"]);
        assert_eq!(config.train.matmul_precision, PrecisionChoice::Bf16);
        assert_eq!(bpe.tokenizer.vocab_size, Some(2048));
        assert_eq!(file.tokenizer.path.as_deref(), Some(Path::new("2024")));
        for config in [config, bpe, file, foreign, with(&[])] {
            assert_eq!(loaded_back(&config), config);
        }
    }

    proptest! {
        #[test]
        fn any_value_loads_back_equal(
            text in any::<String>(),
            stop in prop::collection::vec("(?s).{1,9}", 0..3),
            rate in 1e-12_f64..1e3,
            val_fraction in 1e-9_f64..1.0,
        ) {
            let mut config = with(&[]);
            config.train.sample_prompt = text.clone() + "\r\n";
            config.data.path = PathBuf::from("a/".to_owned() + &text);
            config.generate.stop = stop;
            config.optimizer.learning_rate = rate;
            config.schedule.min_learning_rate = rate / 3.0;
            config.data.val_fraction = val_fraction;
            prop_assert_eq!(loaded_back(&config), config);
        }
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let text = "[data]\npath = 3\n[modle]\nx = 1\n[model]\nd_modle = 64\nd_model = 130\nbias = 1\n\
                    learning_rate = 1\n[train]\nmax_steps = -1\nbatch_size = 0\n";
        let problems = problems(text, &["nonsense", "model.mlp=swish", "seed=1", "train.keep_checkpoints=most"]);
        let expected = [
            "--set nonsense: there is no `=`; write section.key=value, such as --set train.max_steps=100",
            "--set seed=1: `seed` has no section; it belongs in [generate] or [train]",
            "model.d_modle = 64: there is no such key in [model]; did you mean `model.d_model`?",
            "model.learning_rate = 1: there is no such key in [model]; it belongs in [optimizer]",
            "[modle]: there is no such section; did you mean [model]?",
            "model.d_model = 130 must be divisible by model.n_heads = 4",
            "train.batch_size = 0 must be at least 1 and at most 16777216",
            "data.path = 3: invalid type: integer `3`, expected a text in quotes",
            "model.bias = 1: invalid type: integer `1`, expected true or false",
            "model.mlp = \"swish\": unknown variant `swish`, expected one of `gelu`, `gelu_tanh`, `swiglu`, `geglu`, `relu_squared`",
            "train.keep_checkpoints = \"most\": expected a whole number, at least 1, or \"all\"",
            "train.max_steps = -1: invalid value: integer `-1`, expected a whole number, 0 or more",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn derived_default_is_not_blamed_beside_its_source() {
        let problems = problems(SMALLEST, &["model.d_model=0", "optimizer.learning_rate=-1"]);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    /// Otherwise the run would be created and then its saved config refused.
    #[test]
    fn derived_defaults_obey_rules() {
        let wide = ["model.d_model=16777216", "model.n_heads=1"];
        let expected = "model.d_ff = 67108864 must be at least 1 and at most 16777216; left out, it follows \
                        from model.d_model";
        assert_eq!(problems(SMALLEST, &wide), [expected]);
        let config = with(&[&wide[..], &["model.d_ff=16777216"]].concat());
        assert_eq!(loaded_back(&config), config);
    }

    #[test]
    fn shipped_configs_set_no_defaults() {
        let folder = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")).unwrap();
        let paths: Vec<PathBuf> = folder.map(|file| file.unwrap().path()).collect();
        assert!(paths.len() >= 3);
        for path in paths {
            let config = Config::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loaded_back(&config), config);
            let table: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            for (section, keys) in &table {
                for key in keys.as_table().unwrap().keys() {
                    let mut without = table.clone();
                    without[section].as_table_mut().unwrap().remove(key);
                    let without = Config::from_toml(&without.to_string(), &path, &[]);
                    assert!(without.ok() != Some(config.clone()), "{}: {section}.{key} is its default", path.display());
                }
            }
        }
    }
}
