//! The rules of a config, section by section, and the few that tie sections together.
//!
//! Each section is destructured without `..`, so that a new key does not compile until its rule is decided. A problem
//! names its key with section and value, and all problems are reported at once.

use std::fmt::Display;
use std::path::Path;

use super::{
    Config, ConfigError, DataConfig, GenerateConfig, ModelConfig, OptimizerConfig, PositionKind, ScheduleConfig,
    SourceConfig, TokenizerConfig, TokenizerKind, TrainConfig,
};

/// The largest length, width or count of a model and of a batch: far above what fits any machine, and low enough that
/// a product of two of them does not overflow.
const MAX_SIZE: usize = 1 << 24;

/// The smallest vocabulary of byte-level BPE: every byte, and the end of a text.
const MIN_BPE_SIZE: usize = 257;

/// The most tokens in a batch: backends index with 32 bits.
const MAX_BATCH_TOKENS: usize = i32::MAX as usize;

/// The largest weight of a text: room for its length in bytes, and sums of weights stay finite.
const MAX_WEIGHT: f64 = 1e15;

/// The largest integer of TOML.
const MAX_SEED: u64 = i64::MAX as u64;

/// Adds the problem `KEY = VALUE must RULE`, unless the rule `holds`.
fn must(problems: &mut Vec<String>, key: &str, value: impl Display, holds: bool, rule: &str) {
    if !holds {
        problems.push(format!("{key} = {value} must {rule}"));
    }
}

fn size(problems: &mut Vec<String>, key: &str, value: usize) {
    let rule = format!("be at least 1 and at most {MAX_SIZE}");
    must(problems, key, value, (1..=MAX_SIZE).contains(&value), &rule);
}

fn at_least_one(problems: &mut Vec<String>, key: &str, value: usize) {
    must(problems, key, value, value >= 1, "be at least 1");
}

fn above_zero(problems: &mut Vec<String>, key: &str, value: f64) {
    let holds = value.is_finite() && value > 0.0;
    must(problems, key, value, holds, "be a finite number above 0");
}

fn not_negative(problems: &mut Vec<String>, key: &str, value: f64) {
    let holds = value.is_finite() && value >= 0.0;
    must(problems, key, value, holds, "be a finite number, 0 or more");
}

/// A share below 1; NaN is refused too.
fn below_one(problems: &mut Vec<String>, key: &str, value: f64) {
    must(problems, key, value, (0.0..1.0).contains(&value), "be at least 0 and below 1");
}

fn text_field_name(problems: &mut Vec<String>, key: &str, value: &str) {
    let rule = "name the field of a JSON Lines record that holds its text";
    must(problems, key, "\"\"", !value.is_empty(), rule);
}

fn seed(problems: &mut Vec<String>, key: &str, value: u64) {
    let rule = format!("be at most {MAX_SEED}, the largest integer of TOML");
    must(problems, key, value, value <= MAX_SEED, &rule);
}

impl Config {
    /// Everything that is wrong with this config; empty if it can be used.
    pub(super) fn problems(&self) -> Vec<String> {
        let Self { data, tokenizer, model, train, optimizer, schedule, generate } = self;
        let sections = [
            data.problems(),
            tokenizer.problems(),
            model.problems(),
            train.problems(),
            optimizer.problems(),
            schedule.problems(),
            generate.problems(),
        ];
        let mut problems = sections.concat();
        let (highest, lowest) = (optimizer.learning_rate, schedule.min_learning_rate);
        if highest > 0.0 && lowest > highest {
            problems.push(format!(
                "schedule.min_learning_rate = {lowest} must be at most \
                 optimizer.learning_rate = {highest}"
            ));
        }
        let (rows, columns) = (train.batch_size, model.context_length);
        if rows.saturating_mul(columns) > MAX_BATCH_TOKENS {
            problems.push(format!(
                "train.batch_size = {rows} times model.context_length = {columns} must be at \
                 most {MAX_BATCH_TOKENS} tokens; use train.grad_accumulation_steps for larger updates"
            ));
        }
        problems
    }
}

impl DataConfig {
    fn problems(&self) -> Vec<String> {
        let Self {
            path,
            format: _, // an enum
            text_field,
            val_fraction,
            cache_dir,
            cache_limit_gib,
            sources,
        } = self;
        let mut problems = Vec::new();
        match (path.as_os_str().is_empty(), sources.is_empty()) {
            (true, true) => problems.push(
                "data.path is missing or empty: name a text file or a folder of them, such as \
                 path = \"data/stories.txt\" under [data], or several under [[data.sources]]"
                    .to_owned(),
            ),
            (false, false) => problems.push(format!(
                "data.path = \"{}\" must not be there beside [[data.sources]]: name it as one of \
                 them, or leave them out",
                path.display()
            )),
            _ => {}
        }
        text_field_name(&mut problems, "data.text_field", text_field);
        must(
            &mut problems,
            "data.val_fraction",
            val_fraction,
            *val_fraction > 0.0 && *val_fraction < 1.0,
            "be above 0 and below 1",
        );
        if cache_dir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
            problems.push("data.cache_dir = \"\" must name a folder; leave it out for the default one".to_owned());
        }
        above_zero(&mut problems, "data.cache_limit_gib", *cache_limit_gib);
        for (idx, source) in sources.iter().enumerate() {
            problems.extend(source.problems(&format!("data.sources[{idx}]")));
            if let Some(first) = sources[..idx].iter().position(|it| it.path == source.path)
                && !source.path.as_os_str().is_empty()
            {
                problems.push(format!(
                    "data.sources[{idx}].path = \"{}\" is data.sources[{first}] already: raise its \
                     weight instead",
                    source.path.display()
                ));
            }
        }
        problems
    }
}

impl SourceConfig {
    /// `key` is the name of this source in messages.
    fn problems(&self, key: &str) -> Vec<String> {
        let Self {
            path,
            weight,
            format: _, // an enum
            text_field,
        } = self;
        let mut problems = Vec::new();
        if path.as_os_str().is_empty() {
            problems.push(format!("{key}.path is missing or empty: name a text file or a folder of them"));
        }
        if path == Path::new("-") {
            problems.push(format!(
                "{key}.path = \"-\": standard input can only be the one text of data.path; save it \
                 to a file first"
            ));
        }
        must(
            &mut problems,
            &format!("{key}.weight"),
            weight,
            *weight > 0.0 && *weight <= MAX_WEIGHT,
            &format!("be above 0 and at most {MAX_WEIGHT:e}: only how weights compare matters"),
        );
        if let Some(text_field) = text_field {
            text_field_name(&mut problems, &format!("{key}.text_field"), text_field);
        }
        problems
    }
}

impl TokenizerConfig {
    fn problems(&self) -> Vec<String> {
        let Self { kind, vocab_size, path } = self;
        let mut problems = Vec::new();
        let name = match kind {
            TokenizerKind::Char => "char",
            TokenizerKind::Byte => "byte",
            TokenizerKind::Bpe => "bpe",
            TokenizerKind::File => "file",
        };
        match (kind, vocab_size) {
            (TokenizerKind::Bpe, Some(size)) => must(
                &mut problems,
                "tokenizer.vocab_size",
                size,
                (MIN_BPE_SIZE..=MAX_SIZE).contains(size),
                &format!("be at least {MIN_BPE_SIZE}, the 256 bytes and the end of a text, and at most {MAX_SIZE}"),
            ),
            (_, Some(size)) => problems.push(format!(
                "tokenizer.vocab_size = {size} is only for tokenizer.kind = \"bpe\": with \"{name}\" the \
                 size is given; leave it out, or use kind = \"bpe\""
            )),
            (_, None) => {}
        }
        match (kind, path) {
            (TokenizerKind::File, Some(path)) if !path.as_os_str().is_empty() => {}
            (TokenizerKind::File, _) => problems.push(
                "tokenizer.path is missing or empty: with tokenizer.kind = \"file\" it names a \
                 tokenizer.json"
                    .to_owned(),
            ),
            (_, Some(path)) => problems.push(format!(
                "tokenizer.path = \"{}\" is only for tokenizer.kind = \"file\", and the kind is \
                 \"{name}\"; leave it out, or use kind = \"file\"",
                path.display()
            )),
            (_, None) => {}
        }
        problems
    }
}

impl ModelConfig {
    fn problems(&self) -> Vec<String> {
        let Self {
            context_length,
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            d_ff,
            position,
            norm: _,
            mlp: _,
            bias: _,
            qk_norm: _,
            tie_embeddings: _,
            dropout,
        } = self;
        let mut problems = Vec::new();
        size(&mut problems, "model.context_length", *context_length);
        size(&mut problems, "model.d_model", *d_model);
        size(&mut problems, "model.n_layers", *n_layers);
        size(&mut problems, "model.n_heads", *n_heads);
        size(&mut problems, "model.n_kv_heads", *n_kv_heads);
        size(&mut problems, "model.d_ff", *d_ff);
        if *n_heads > 0 && *d_model > 0 {
            if d_model % n_heads != 0 {
                problems.push(format!("model.d_model = {d_model} must be divisible by model.n_heads = {n_heads}"));
            } else if *position == PositionKind::Rope && (d_model / n_heads) % 2 != 0 {
                problems.push(format!(
                    "model.position = \"rope\" rotates pairs: model.d_model = {d_model} over \
                     model.n_heads = {n_heads} must be even, and is {}",
                    d_model / n_heads
                ));
            }
        }
        if *n_heads > 0 && *n_kv_heads > 0 && n_heads % n_kv_heads != 0 {
            problems.push(format!("model.n_heads = {n_heads} must be divisible by model.n_kv_heads = {n_kv_heads}"));
        }
        below_one(&mut problems, "model.dropout", *dropout);
        problems
    }
}

impl TrainConfig {
    fn problems(&self) -> Vec<String> {
        let Self {
            seed: seed_value,
            device,
            matmul_precision: _, // checked against the device when that is opened
            max_steps,
            batch_size,
            grad_accumulation_steps,
            log_interval,
            eval_interval: _, // 0 is only at the end, and it may be longer than the run
            eval_batches,
            checkpoint_interval: _, // as eval_interval
            keep_checkpoints,
            sample_prompt,
            sample_tokens,
            early_stopping_patience: _, // 0 is off
            tensorboard: _,
            head_metrics: _,
        } = self;
        let mut problems = Vec::new();
        seed(&mut problems, "train.seed", *seed_value);
        if device.trim().is_empty() {
            problems.push(format!(
                "train.device = {device:?} must name a device, such as \"auto\" or \"cpu\"; `tinderbox \
                 devices` lists them"
            ));
        }
        at_least_one(&mut problems, "train.max_steps", *max_steps);
        size(&mut problems, "train.batch_size", *batch_size);
        size(&mut problems, "train.grad_accumulation_steps", *grad_accumulation_steps);
        at_least_one(&mut problems, "train.log_interval", *log_interval);
        at_least_one(&mut problems, "train.eval_batches", *eval_batches);
        at_least_one(&mut problems, "train.keep_checkpoints", *keep_checkpoints);
        if *sample_tokens > 0 && sample_prompt.is_empty() {
            problems.push(
                "train.sample_prompt = \"\" must not be empty: the model needs something to write \
                 on; train.sample_tokens = 0 turns samples off"
                    .to_owned(),
            );
        }
        problems
    }
}

impl OptimizerConfig {
    fn problems(&self) -> Vec<String> {
        let Self { kind: _, learning_rate, betas, weight_decay, grad_clip_norm, muon_learning_rate, muon_momentum } =
            self;
        let mut problems = Vec::new();
        above_zero(&mut problems, "optimizer.learning_rate", *learning_rate);
        above_zero(&mut problems, "optimizer.muon_learning_rate", *muon_learning_rate);
        if !betas.iter().all(|beta| (0.0..1.0).contains(beta)) {
            problems.push(format!("optimizer.betas = {betas:?} must each be at least 0 and below 1"));
        }
        not_negative(&mut problems, "optimizer.weight_decay", *weight_decay);
        not_negative(&mut problems, "optimizer.grad_clip_norm", *grad_clip_norm);
        below_one(&mut problems, "optimizer.muon_momentum", *muon_momentum);
        problems
    }
}

impl ScheduleConfig {
    fn problems(&self) -> Vec<String> {
        let Self {
            kind: _,
            warmup_steps: _, // may be longer than the run
            min_learning_rate,
            decay_fraction,
        } = self;
        let mut problems = Vec::new();
        not_negative(&mut problems, "schedule.min_learning_rate", *min_learning_rate);
        must(
            &mut problems,
            "schedule.decay_fraction",
            decay_fraction,
            *decay_fraction > 0.0 && *decay_fraction <= 1.0,
            "be above 0 and at most 1",
        );
        problems
    }
}

impl GenerateConfig {
    /// Checks the rules again, after arguments have replaced keys.
    ///
    /// # Errors
    /// If any rule is broken; all broken rules are in one error.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.problems() {
            problems if problems.is_empty() => Ok(()),
            problems => Err(ConfigError::Settings { problems }),
        }
    }

    fn problems(&self) -> Vec<String> {
        let Self {
            max_new_tokens,
            num_samples,
            temperature,
            top_k: _, // 0 is off, and more than the vocabulary is all of it
            top_p,
            min_p,
            repetition_penalty,
            stop,
            seed: seed_value,
        } = self;
        let mut problems = Vec::new();
        at_least_one(&mut problems, "generate.max_new_tokens", *max_new_tokens);
        at_least_one(&mut problems, "generate.num_samples", *num_samples);
        not_negative(&mut problems, "generate.temperature", *temperature);
        must(
            &mut problems,
            "generate.top_p",
            top_p,
            *top_p > 0.0 && *top_p <= 1.0,
            "be above 0 and at most 1 (1 turns it off)",
        );
        must(
            &mut problems,
            "generate.min_p",
            min_p,
            (0.0..=1.0).contains(min_p),
            "be at least 0 and at most 1 (0 turns it off)",
        );
        must(
            &mut problems,
            "generate.repetition_penalty",
            repetition_penalty,
            repetition_penalty.is_finite() && *repetition_penalty > 0.0,
            "be a finite number above 0 (1 turns it off)",
        );
        if stop.iter().any(String::is_empty) {
            problems.push(format!(
                "generate.stop = {stop:?} must not hold an empty text, at which nothing would \
                 be written"
            ));
        }
        seed(&mut problems, "generate.seed", *seed_value);
        problems
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::ConfigError;

    /// The problems of an otherwise good config with these overrides.
    fn problems(overrides: &[&str]) -> Vec<String> {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let text = "[data]\npath = \"a.txt\"\n";
        match Config::from_toml(text, Path::new("a.toml"), &overrides) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Invalid { problems, .. }) => problems,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn each_rule_names_its_key() {
        let broken = [
            "data.path=",
            "data.val_fraction=0",
            "data.val_fraction=1.0",
            "data.val_fraction=nan",
            "data.cache_dir=",
            "tokenizer.vocab_size=512",
            "tokenizer.path=a.json",
            "data.cache_limit_gib=0",
            "data.cache_limit_gib=nan",
            "data.text_field=",
            "model.context_length=0",
            "model.d_model=0",
            "model.d_model=9000000000",
            "model.n_layers=0",
            "model.n_heads=0",
            "model.n_heads=3",
            "model.n_kv_heads=3",
            "model.n_kv_heads=8",
            "model.n_kv_heads=0",
            "model.d_ff=0",
            "model.dropout=1",
            "model.dropout=-0.1",
            "model.dropout=nan",
            "train.device= ",
            "train.max_steps=0",
            "train.batch_size=0",
            "train.batch_size=16777216",
            "train.grad_accumulation_steps=0",
            "train.log_interval=0",
            "train.eval_batches=0",
            "train.keep_checkpoints=0",
            "train.sample_prompt=",
            "optimizer.learning_rate=0",
            "optimizer.learning_rate=inf",
            "optimizer.betas=[0.9, 1.0]",
            "optimizer.weight_decay=-1",
            "optimizer.grad_clip_norm=nan",
            "optimizer.muon_learning_rate=0",
            "optimizer.muon_learning_rate=nan",
            "optimizer.muon_momentum=1",
            "optimizer.muon_momentum=-0.1",
            "schedule.min_learning_rate=1",
            "schedule.min_learning_rate=-1",
            "schedule.decay_fraction=0",
            "generate.max_new_tokens=0",
            "generate.num_samples=0",
            "generate.temperature=-1",
            "generate.top_p=0",
            "generate.top_p=1.1",
            "generate.min_p=1.1",
            "generate.repetition_penalty=0",
            "generate.stop=[\"\"]",
        ];
        for setting in broken {
            let key = setting.split_once('=').unwrap().0;
            let found = problems(&[setting]);
            assert_eq!(found.len(), 1, "{setting}: {found:?}");
            assert!(found[0].contains(key), "{setting}: {found:?}");
        }
    }

    #[test]
    fn sources_stand_instead_of_a_path() {
        let found = |sources: &str| problems(&["data.path=", &format!("data.sources={sources}")]);
        let good = r#"[{path="a", weight=3}, {path="b", text_field="body", format="jsonl"}]"#;
        assert_eq!(found(good), Vec::<String>::new());
        let broken = [
            ("[{weight=1}]", "data.sources[0].path is missing"),
            (r#"[{path="-"}]"#, "data.sources[0].path = \"-\""),
            (r#"[{path="a"}, {path="a"}]"#, "data.sources[1].path = \"a\" is data.sources[0]"),
            (r#"[{path="a", weight=0}]"#, "data.sources[0].weight = 0 must"),
            (r#"[{path="a", weight=-1}]"#, "data.sources[0].weight = -1 must"),
            (r#"[{path="a", weight=nan}]"#, "data.sources[0].weight = NaN must"),
            (r#"[{path="a", weight=inf}]"#, "data.sources[0].weight = inf must"),
            (
                r#"[{path="a", weight=2e15}]"#, // many of the largest double would have no sum
                "data.sources[0].weight = 2000000000000000 must be above 0 and at most 1e15",
            ),
            (r#"[{path="a", text_field=""}]"#, "data.sources[0].text_field = \"\" must"),
            (r#"[{path="a", wieght=1}]"#, "unknown field `wieght`"),
        ];
        for (sources, problem) in broken {
            let found = found(sources);
            assert_eq!(found.len(), 1, "{sources}: {found:?}");
            assert!(found[0].contains(problem), "{sources}: {found:?}");
        }
        let both = problems(&[r#"data.sources=[{path="b"}]"#]);
        assert_eq!(both.len(), 1, "{both:?}");
        assert!(both[0].contains("data.path = \"a.txt\" must not"), "{both:?}");
    }

    #[test]
    fn the_edges_of_each_range_are_allowed() {
        let allowed = [
            "train.eval_interval=0",
            "train.checkpoint_interval=0",
            "train.eval_interval=1000000",
            "train.log_interval=1000000",
            "schedule.warmup_steps=1000000",
            "schedule.warmup_steps=0",
            "schedule.decay_fraction=1",
            "schedule.min_learning_rate=0.001",
            "model.n_kv_heads=1",
            "model.dropout=0",
            "optimizer.betas=[0.0, 0.0]",
            "optimizer.kind=muon",
            "optimizer.muon_momentum=0",
            "generate.temperature=0",
            "generate.top_k=1000000",
            "generate.min_p=1",
            "generate.top_p=1",
        ];
        assert_eq!(problems(&allowed), Vec::<String>::new());
    }

    #[test]
    fn rope_needs_heads_of_even_width() {
        let found = problems(&["model.d_model=12", "model.n_heads=4", "model.position=rope"]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("model.position = \"rope\""), "{found:?}");
        assert!(problems(&["model.d_model=12", "model.n_heads=4"]).is_empty());
    }

    #[test]
    fn samples_may_be_off_without_a_prompt() {
        assert!(problems(&["train.sample_prompt=", "train.sample_tokens=0"]).is_empty());
    }

    #[test]
    fn a_seed_that_toml_cannot_hold_is_refused() {
        let mut config = Config::default();
        config.data.path = "a.txt".into();
        config.train.seed = u64::MAX;
        assert_eq!(config.problems().len(), 1);
    }
}
