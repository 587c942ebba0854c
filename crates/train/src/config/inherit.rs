//! A config that uses the model of an existing run: missing keys of the model and of generation are inherited, and given
//! keys of the model must agree with it.

use toml::{Table, Value};

use super::{Config, ModelConfig, PositionKind};

/// The keys of `[model]` that may change while the weights stay the same, since no parameter depends on them.
const FREE: [&str; 3] = ["context_length", "dropout", "zero_init_projections"];

const CAN_BE_TOML: &str = "sizes, names and switches can be written as TOML";

/// The run that a config inherits its model from.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    /// The run is resumed. Changes to the model are refused later, with every other change that resuming forbids.
    Resumed(&'a Config),
    /// A new run starts from the weights of this run: given keys of the model must agree with its config.
    Weights(&'a Config),
}

impl<'a> Base<'a> {
    pub(super) fn config(self) -> &'a Config {
        match self {
            Self::Resumed(config) | Self::Weights(config) => config,
        }
    }
}

/// Adds the values of `base` for all keys of the model, and of how it generates, that `table` lacks: the tokens that end
/// its turns are known to no other file.
pub(super) fn fill_in(table: &mut Table, base: &Config) {
    let generate = Table::try_from(&base.generate).expect(CAN_BE_TOML);
    for (name, of_base) in base.model_sections().into_iter().chain([("generate", generate)]) {
        let section = table
            .entry(name)
            .or_insert_with(|| Table::new().into())
            .as_table_mut()
            .expect("anything but sections was taken out before");
        // Keys for the base's kind of tokenizer would contradict another kind.
        let is_other_kind = section.get("kind").is_some_and(|kind| Some(kind) != of_base.get("kind"));
        if !is_other_kind {
            of_base.into_iter().for_each(|(key, value)| _ = section.entry(key).or_insert(value));
        }
    }
}

impl Config {
    /// The keys, with their values, that prevent this config from starting with the weights of a run of `base`; empty
    /// if it can.
    ///
    /// Dropout may differ. The context may be shorter, and longer only with rotary positions.
    pub fn disagreements(&self, base: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        let pairs = self.model_sections().into_iter().zip(base.model_sections());
        for ((name, ours), (_, theirs)) in pairs {
            let is_free = |key: &str| FREE.contains(&key) || key == "end_of_text" && !self.tokenizer.kind.is_table();
            for (key, value) in ours.iter().filter(|(key, _)| !is_free(key)) {
                let theirs = theirs.get(key);
                if theirs != Some(value) {
                    let theirs = theirs.map_or_else(|| "no such key".to_owned(), Value::to_string);
                    problems.push(format!(
                        "{name}.{key} = {value}: the run that it starts from has {theirs}; leave the key out"
                    ));
                }
            }
        }
        let (ours, theirs) = (self.model.context_length, base.model.context_length);
        if base.model.position == PositionKind::Learned && ours > theirs {
            problems.push(format!(
                "model.context_length = {ours}: the run that it starts from has learned {theirs} positions; use \
                 at most {theirs}, or start from a run with model.position = \"rope\""
            ));
        }
        problems
    }

    /// Copies the model of `base`, except for the keys that may differ.
    pub(super) fn adopt(&mut self, base: &Self) {
        self.tokenizer = base.tokenizer.clone();
        self.model = ModelConfig {
            dropout: self.model.dropout,
            context_length: self.model.context_length,
            zero_init_projections: self.model.zero_init_projections,
            ..base.model.clone()
        };
    }

    /// The sections that define a model, with their names.
    fn model_sections(&self) -> [(&'static str, Table); 2] {
        let tokenizer = Table::try_from(&self.tokenizer).expect(CAN_BE_TOML);
        [("tokenizer", tokenizer), ("model", Table::try_from(&self.model).expect(CAN_BE_TOML))]
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests;
    use super::*;
    use crate::config::{ConfigError, GenerateConfig, TokenizerConfig, TokenizerKind};

    fn read(text: &str, base: Option<Base<'_>>) -> Result<Config, Vec<String>> {
        let text = format!("data = {{ path = \"a.txt\" }}\n{text}");
        tests::read(&text, &[], base).map_err(|error| match error {
            ConfigError::Invalid(_, problems) => problems,
            other => panic!("{other}"),
        })
    }

    fn base(model: &str) -> Config {
        let text = format!("model = {{ {model} }}\ntokenizer = {{ kind = \"byte\" }}\ntrain = {{ seed = 7 }}");
        read(&text, None).unwrap()
    }

    #[test]
    fn only_missing_keys_of_model_and_generation_are_inherited() {
        let mut base = base("d_model = 96, n_heads = 6, n_kv_heads = 2, mlp = \"swiglu\", dropout = 0.2");
        (base.generate.stop_token_ids, base.generate.temperature, base.generate.top_p) = (vec![2, 7], 0.3, 0.9);
        for how in [Base::Weights(&base), Base::Resumed(&base)] {
            let config = read("model = { dropout = 0.0 }\ngenerate = { temperature = 0.5 }", Some(how)).unwrap();
            assert_eq!(config.generate, GenerateConfig { temperature: 0.5, ..base.generate.clone() });
            assert_eq!(config.tokenizer.kind, TokenizerKind::Byte);
            assert_eq!(config.train.seed, 1337);
            let expected = ModelConfig { dropout: 0.0, ..base.model.clone() };
            assert_eq!(config.model, expected);
        }
    }

    #[test]
    fn other_tokenizer_kind_inherits_nothing() {
        let with = |tokenizer: &str| format!("tokenizer = {{ {tokenizer} }}");
        let bpe = read(&with("kind = \"bpe\", vocab_size = 270"), None).unwrap();
        let file = read(&with("kind = \"file\", path = \"a.json\""), None).unwrap();
        for base in [&bpe, &file] {
            let config = read(&with("kind = \"char\""), Some(Base::Resumed(base))).unwrap();
            let TokenizerConfig { kind, vocab_size, path, end_of_text: _ } = config.tokenizer;
            assert_eq!((kind, vocab_size, path), (TokenizerKind::Char, None, None), "resuming refuses it later");
            let problems = read(&with("kind = \"char\""), Some(Base::Weights(base))).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:#?}");
            assert!(problems[0].starts_with("tokenizer.kind = \"char\": the run"));
        }
        let config = read(&with("kind = \"bpe\""), Some(Base::Resumed(&bpe))).unwrap();
        assert_eq!(config.tokenizer.vocab_size, Some(270));
    }

    #[test]
    fn mistyped_inherited_key_is_reported_once() {
        let base = base("d_model = 96, n_heads = 6");
        let problems = read("model = { d_model = \"96\" }", Some(Base::Weights(&base))).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(problems[0].contains("expected a whole number"), "{problems:#?}");
    }

    #[test]
    fn only_rope_allows_longer_context() {
        let learned = base("context_length = 64");
        let rope = base("context_length = 64, position = \"rope\"");
        let read = |length: usize, base| read(&format!("model.context_length = {length}"), Some(Base::Weights(base)));
        for base in [&learned, &rope] {
            assert_eq!(read(16, base).unwrap().model.context_length, 16);
        }
        assert_eq!(read(128, &rope).unwrap().model.context_length, 128);
        let problems = read(128, &learned).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(problems[0].contains("at most 64") && problems[0].contains("rope"), "{problems:#?}");
    }
}
