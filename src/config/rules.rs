//! The rules of a config, section by section, and the few rules that involve several sections.
//!
//! Each section is destructured without `..`, so that a new key does not compile until its rule is decided. A message
//! names the key with its section and value, and all problems are reported at once.

use std::fmt::Display;
use std::path::Path;

use super::load::Text;
use super::{
    Config, ConfigError, DataConfig, DistributedConfig, GenerateConfig, GradientDtype, ModelConfig, OptimizerConfig,
    PositionKind, RopeScaling, ScheduleConfig, SourceConfig, SyncKind, TokenizerConfig, TokenizerKind, TrainConfig,
};

/// The largest length, width or count: more than fits any machine, yet a product of two does not overflow.
const MAX_SIZE: usize = 1 << 24;

/// The most layers of a model.
const MAX_LAYERS: usize = 1 << 16;

/// The smallest vocabulary of byte-level BPE: all bytes and the end-of-text token.
const MIN_BPE_SIZE: usize = 257;

/// The most tokens in a batch, since backends use 32-bit indices.
const MAX_BATCH_TOKENS: usize = i32::MAX as usize;

/// The largest weight of a text: large enough to be its length in bytes, and small enough that sums of weights stay
/// finite.
const MAX_WEIGHT: f64 = 1e15;

/// The largest integer of TOML.
const MAX_SEED: u64 = i64::MAX as u64;

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    /// Adds the problem `KEY = VALUE must RULE`, unless the rule `holds`.
    fn must(&mut self, holds: bool, key: &str, value: impl Display, rule: &str) {
        if !holds {
            self.0.push(format!("{key} = {value} must {rule}"));
        }
    }

    fn size(&mut self, key: &str, value: usize) {
        let rule = format!("be at least 1 and at most {MAX_SIZE}");
        self.must((1..=MAX_SIZE).contains(&value), key, value, &rule);
    }

    fn at_least_one(&mut self, key: &str, value: usize) {
        self.must(value >= 1, key, value, "be at least 1");
    }

    fn above_zero(&mut self, key: &str, value: f64) {
        self.must(value.is_finite() && value > 0.0, key, value, "be a finite number above 0");
    }

    fn not_negative(&mut self, key: &str, value: f64) {
        self.must(value.is_finite() && value >= 0.0, key, value, "be a finite number, 0 or more");
    }

    /// Checks a share that must be below 1; NaN fails too.
    fn below_one(&mut self, key: &str, value: f64) {
        self.must((0.0..1.0).contains(&value), key, value, "be at least 0 and below 1");
    }

    fn text_field(&mut self, key: &str, value: &str) {
        let rule = "name the field of a JSON Lines record that holds its text";
        self.must(!value.is_empty(), key, "\"\"", rule);
    }

    fn document_separator(&mut self, key: &str, value: Option<&str>) {
        self.must(value != Some(""), key, "\"\"", "hold a text; leave it out for files of one document each");
    }

    fn patterns(&mut self, key: &str, patterns: &[String]) {
        let rule = "hold no empty text; a pattern of files is such as \"*.txt\"";
        self.must(patterns.iter().all(|pattern| !pattern.is_empty()), key, format!("{patterns:?}"), rule);
    }

    fn seed(&mut self, key: &str, value: u64) {
        self.must(value <= MAX_SEED, key, value, &format!("be at most {MAX_SEED}, the largest integer of TOML"));
    }
}

impl Config {
    /// All problems of this config; empty if it can be used.
    pub(super) fn problems(&self, text: Text) -> Vec<String> {
        let Self { data, tokenizer, model, train, optimizer, schedule, generate, distributed } = self;
        let mut problems = Problems::default();
        data.check_into(text, &mut problems);
        tokenizer.check_into(&mut problems);
        model.check_into(&mut problems);
        train.check_into(&mut problems);
        optimizer.check_into(&mut problems);
        schedule.check_into(&mut problems);
        generate.check_into(&mut problems);
        distributed.check_into(&mut problems);
        if distributed.sync == SyncKind::Local && optimizer.ema_decay > 0.0 {
            let rule = "be 0 with distributed.sync = \"local\", which averages weights in its own way";
            problems.must(false, "optimizer.ema_decay", optimizer.ema_decay, rule);
        }
        let (highest, lowest) = (optimizer.learning_rate, schedule.min_learning_rate);
        if highest > 0.0 && lowest > highest {
            let rule = format!("be at most optimizer.learning_rate = {highest}");
            problems.must(false, "schedule.min_learning_rate", lowest, &rule);
        }
        for (key, initial, end_key, end) in [
            ("initial_context_length", schedule.initial_context_length, "model.context_length", model.context_length),
            ("initial_batch_size", schedule.initial_batch_size, "train.batch_size", train.batch_size),
        ] {
            let Some(initial) = initial else { continue };
            let rule = format!("be at least 1 and at most {end_key} = {end}");
            problems.must((1..=end.max(1)).contains(&initial), &format!("schedule.{key}"), initial, &rule);
        }
        let (rows, columns) = (train.batch_size, model.context_length);
        if rows.saturating_mul(columns) > MAX_BATCH_TOKENS {
            problems.0.push(format!(
                "train.batch_size = {rows} times model.context_length = {columns} must be at most {MAX_BATCH_TOKENS} \
                 tokens; use train.grad_accumulation_steps for larger updates"
            ));
        }
        problems.0
    }

    /// Checks a config that was built in code, for a run that may have no text.
    ///
    /// # Errors
    /// If any rule is broken, with all problems.
    pub(crate) fn check_saved(&self) -> Result<(), Vec<String>> {
        let problems = self.problems(Text::MayBeMissing);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

impl DataConfig {
    fn check_into(&self, text: Text, problems: &mut Problems) {
        let Self {
            path,
            format: _,
            text_field,
            document_separator,
            include,
            exclude,
            val_fraction,
            cache_dir,
            cache_limit_gib,
            sources,
        } = self;
        match (path.as_os_str().is_empty(), sources.is_empty()) {
            (true, true) if text == Text::Required => problems.0.push(
                "data.path is missing or empty: name a text file or a folder of them, such as path = \
                 \"data/stories.txt\" under [data], or several under [[data.sources]]"
                    .to_owned(),
            ),
            (false, false) => problems.0.push(format!(
                "data.path = \"{}\" must not be there beside [[data.sources]]: name it as one of them, or leave them \
                 out",
                path.display()
            )),
            _ => {}
        }
        problems.text_field("data.text_field", text_field);
        problems.document_separator("data.document_separator", document_separator.as_deref());
        problems.patterns("data.include", include);
        problems.patterns("data.exclude", exclude);
        let is_share = *val_fraction > 0.0 && *val_fraction < 1.0;
        problems.must(is_share, "data.val_fraction", val_fraction, "be above 0 and below 1");
        let has_name = cache_dir.as_ref().is_none_or(|dir| !dir.as_os_str().is_empty());
        problems.must(has_name, "data.cache_dir", "\"\"", "name a folder; leave it out for the default one");
        problems.above_zero("data.cache_limit_gib", *cache_limit_gib);
        for (idx, source) in sources.iter().enumerate() {
            source.check_into(&format!("data.sources[{idx}]"), problems);
            if let Some(first) = sources[..idx].iter().position(|it| it.path == source.path)
                && !source.path.as_os_str().is_empty()
            {
                problems.0.push(format!(
                    "data.sources[{idx}].path = \"{}\" is data.sources[{first}] already: raise its weight instead",
                    source.path.display()
                ));
            }
        }
    }
}

impl SourceConfig {
    /// Checks one source, which messages call `key`.
    fn check_into(&self, key: &str, problems: &mut Problems) {
        let Self { path, weight, format: _, text_field, document_separator, include, exclude } = self;
        if path.as_os_str().is_empty() {
            problems.0.push(format!("{key}.path is missing or empty: name a text file or a folder of them"));
        }
        if path == Path::new("-") {
            problems.0.push(format!(
                "{key}.path = \"-\": standard input can only be the one text of data.path; save it to a file first"
            ));
        }
        let rule = format!("be above 0 and at most {MAX_WEIGHT:e}: only how weights compare matters");
        problems.must(*weight > 0.0 && *weight <= MAX_WEIGHT, &format!("{key}.weight"), weight, &rule);
        if let Some(text_field) = text_field {
            problems.text_field(&format!("{key}.text_field"), text_field);
        }
        problems.document_separator(&format!("{key}.document_separator"), document_separator.as_deref());
        problems.patterns(&format!("{key}.include"), include.as_deref().unwrap_or_default());
        problems.patterns(&format!("{key}.exclude"), exclude.as_deref().unwrap_or_default());
    }
}

impl TokenizerConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self { kind, vocab_size, end_of_text: _, path } = self;
        let name = toml::Value::try_from(kind).expect("a kind has a name"); // in quotes
        match (kind, vocab_size) {
            (TokenizerKind::Bpe, Some(size)) => {
                let rule =
                    format!("be at least {MIN_BPE_SIZE}, the 256 bytes and the end of a text, and at most {MAX_SIZE}");
                problems.must((MIN_BPE_SIZE..=MAX_SIZE).contains(size), "tokenizer.vocab_size", size, &rule);
            }
            (_, Some(size)) => problems.0.push(format!(
                "tokenizer.vocab_size = {size} is only for tokenizer.kind = \"bpe\": with {name} it cannot \
                 be chosen; leave it out, or use kind = \"bpe\""
            )),
            (_, None) => {}
        }
        match (kind, path) {
            (TokenizerKind::File, Some(path)) if !path.as_os_str().is_empty() => {}
            (TokenizerKind::File, _) => problems.0.push(
                "tokenizer.path is missing or empty: with tokenizer.kind = \"file\" it names a tokenizer.json"
                    .to_owned(),
            ),
            (_, Some(path)) => problems.0.push(format!(
                "tokenizer.path = \"{}\" is only for tokenizer.kind = \"file\", and the kind is {name}; leave it \
                 out, or use kind = \"file\"",
                path.display()
            )),
            (_, None) => {}
        }
    }
}

impl ModelConfig {
    /// All problems of a model config that was not loaded from a file; empty if the model can be built.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Problems::default();
        self.check_into(&mut problems);
        problems.0
    }

    fn check_into(&self, problems: &mut Problems) {
        let Self {
            context_length,
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff,
            position: _,
            rope_theta,
            rotary_fraction,
            norm: _,
            norm_eps,
            mlp: _,
            bias: _,
            qkv_bias: _,
            qk_norm: _,
            parallel_residual: _,
            attention_window,
            attention_scale,
            tie_embeddings: _,
            zero_init_projections: _,
            norm_weights: _,
            value_residual: _,
            embedding_skip: _,
            vocab_size,
            logit_softcap,
            dropout,
            rope_scaling,
        } = self;
        problems.size("model.context_length", *context_length);
        problems.size("model.d_model", *d_model);
        let rule = format!("be at least 1 and at most {MAX_LAYERS}");
        problems.must((1..=MAX_LAYERS).contains(n_layers), "model.n_layers", n_layers, &rule);
        problems.size("model.n_heads", *n_heads);
        problems.size("model.n_kv_heads", *n_kv_heads);
        problems.size("model.d_ff", *d_ff);
        if *n_heads > 0 && *d_model > 0 {
            match head_dim {
                0 if d_model % n_heads != 0 => {
                    problems
                        .0
                        .push(format!("model.d_model = {d_model} must be divisible by model.n_heads = {n_heads}"));
                }
                _ => problems.size("model.head_dim", *head_dim),
            }
        }
        if *n_heads > 0 && *n_kv_heads > 0 && n_heads % n_kv_heads != 0 {
            problems.0.push(format!("model.n_heads = {n_heads} must be divisible by model.n_kv_heads = {n_kv_heads}"));
        }
        problems.above_zero("model.rope_theta", *rope_theta);
        let is_share = *rotary_fraction > 0.0 && *rotary_fraction <= 1.0;
        problems.must(is_share, "model.rotary_fraction", rotary_fraction, "be above 0 and at most 1");
        if is_share {
            self.check_rotation(problems);
        }
        problems.above_zero("model.norm_eps", *norm_eps);
        let are_sizes = attention_window.iter().all(|window| *window <= MAX_SIZE);
        let rule = format!("hold at most {MAX_SIZE} for each layer, or 0 for the whole context");
        problems.must(are_sizes, "model.attention_window", format!("{attention_window:?}"), &rule);
        if let Some(scale) = attention_scale {
            problems.above_zero("model.attention_scale", *scale);
        }
        if let Some(vocab_size) = vocab_size {
            problems.size("model.vocab_size", *vocab_size);
        }
        if let Some(cap) = logit_softcap {
            problems.above_zero("model.logit_softcap", *cap);
        }
        problems.below_one("model.dropout", *dropout);
        if let Some(scaling) = rope_scaling {
            self.check_scaling(*scaling, problems);
        }
    }

    /// Checks that the rotated dimensions form pairs.
    fn check_rotation(&self, problems: &mut Problems) {
        let Self { d_model, n_heads, head_dim, rotary_fraction, .. } = *self;
        let n = self.rotary_dim();
        let is_rotated = self.position == PositionKind::Rope && head_dim > 0;
        if !is_rotated || n >= 2 && n.is_multiple_of(2) {
            return;
        }
        let n_heads = n_heads.max(1);
        let of = if rotary_fraction < 1.0 {
            format!("model.rotary_fraction = {rotary_fraction} of model.head_dim = {head_dim}")
        } else if head_dim == d_model / n_heads {
            format!("model.d_model = {d_model} over model.n_heads = {n_heads}")
        } else {
            format!("model.head_dim = {head_dim}")
        };
        problems.0.push(format!("model.position = \"rope\" rotates pairs: {of} must be even, and is {n}"));
    }

    fn check_scaling(&self, scaling: RopeScaling, problems: &mut Problems) {
        if self.position != PositionKind::Rope {
            problems
                .0
                .push("model.rope_scaling is only for model.position = \"rope\": leave it out, or use rope".to_owned());
        }
        let (RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. }) = scaling;
        let is_factor = factor.is_finite() && factor >= 1.0;
        problems.must(is_factor, "model.rope_scaling.factor", factor, "be a finite number, 1 or more");
        if let RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, original_context_length, .. } =
            scaling
        {
            problems.above_zero("model.rope_scaling.low_freq_factor", low);
            let rule = format!("be a finite number above low_freq_factor = {low}");
            problems.must(high.is_finite() && high > low, "model.rope_scaling.high_freq_factor", high, &rule);
            problems.size("model.rope_scaling.original_context_length", original_context_length);
        }
    }
}

impl TrainConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self {
            seed,
            device,
            matmul_precision: _, // checked against the device when it is opened
            max_steps,
            batch_size,
            grad_accumulation_steps,
            with_replacement: _,
            log_interval,
            eval_interval: _, // 0 is only at the end, and it may exceed the run
            eval_batches,
            checkpoint_interval: _, // same as eval_interval
            keep_checkpoints,
            sample_prompt,
            sample_tokens,
            skip_non_finite: _,
            skip_loss_spikes,
            early_stopping_patience: _, // 0 is off
            tensorboard: _,
            head_metrics: _,
        } = self;
        problems.seed("train.seed", *seed);
        let rule = "name a device, such as \"auto\" or \"cpu\"; `tinderbox devices` lists them";
        problems.must(!device.trim().is_empty(), "train.device", format!("{device:?}"), rule);
        problems.at_least_one("train.max_steps", *max_steps);
        problems.size("train.batch_size", *batch_size);
        problems.size("train.grad_accumulation_steps", *grad_accumulation_steps);
        problems.at_least_one("train.log_interval", *log_interval);
        problems.at_least_one("train.eval_batches", *eval_batches);
        problems.at_least_one("train.keep_checkpoints", keep_checkpoints.limit());
        problems.not_negative("train.skip_loss_spikes", *skip_loss_spikes);
        let rule = "not be empty: the model needs something to write on; train.sample_tokens = 0 turns samples off";
        problems.must(*sample_tokens == 0 || !sample_prompt.is_empty(), "train.sample_prompt", "\"\"", rule);
    }
}

impl OptimizerConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self {
            kind: _,
            learning_rate,
            betas,
            weight_decay,
            grad_clip_norm,
            muon_learning_rate,
            muon_momentum,
            newton_schulz: _,
            newton_schulz_steps,
            normuon_beta2,
            ema_decay,
        } = self;
        problems.above_zero("optimizer.learning_rate", *learning_rate);
        problems.above_zero("optimizer.muon_learning_rate", *muon_learning_rate);
        let are_shares = betas.iter().all(|beta| (0.0..1.0).contains(beta));
        problems.must(are_shares, "optimizer.betas", format!("{betas:?}"), "each be at least 0 and below 1");
        problems.not_negative("optimizer.weight_decay", *weight_decay);
        problems.not_negative("optimizer.grad_clip_norm", *grad_clip_norm);
        problems.below_one("optimizer.muon_momentum", *muon_momentum);
        let is_few = (1..=10).contains(newton_schulz_steps);
        problems.must(is_few, "optimizer.newton_schulz_steps", newton_schulz_steps, "be from 1 to 10");
        problems.below_one("optimizer.normuon_beta2", *normuon_beta2);
        problems.below_one("optimizer.ema_decay", *ema_decay);
    }
}

impl ScheduleConfig {
    fn check_into(&self, problems: &mut Problems) {
        // The warm-up may be longer than the run.
        let Self {
            kind: _,
            warmup_steps: _,
            min_learning_rate,
            decay_fraction,
            initial_context_length: _, // checked with the lengths that they grow to
            initial_batch_size: _,
            ramp_fraction,
        } = self;
        problems.not_negative("schedule.min_learning_rate", *min_learning_rate);
        let is_share = *decay_fraction > 0.0 && *decay_fraction <= 1.0;
        problems.must(is_share, "schedule.decay_fraction", decay_fraction, "be above 0 and at most 1");
        let is_share = *ramp_fraction > 0.0 && *ramp_fraction <= 1.0;
        problems.must(is_share, "schedule.ramp_fraction", ramp_fraction, "be above 0 and at most 1");
    }
}

impl DistributedConfig {
    fn check_into(&self, problems: &mut Problems) {
        let Self { sync, local_steps, outer_learning_rate, outer_momentum, gradient_dtype, timeout_s: _ } = self;
        problems.at_least_one("distributed.local_steps", *local_steps);
        problems.above_zero("distributed.outer_learning_rate", *outer_learning_rate);
        problems.below_one("distributed.outer_momentum", *outer_momentum);
        let is_used = *gradient_dtype == GradientDtype::F32 || *sync == SyncKind::Step;
        let rule = "be \"f32\" with distributed.sync = \"local\", which exchanges weights, in f32";
        problems.must(is_used, "distributed.gradient_dtype", "\"bf16\"", rule);
    }
}

impl GenerateConfig {
    /// Checks the rules again, after arguments have replaced keys.
    ///
    /// # Errors
    /// If any rule is broken; all broken rules are in one error.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Problems::default();
        self.check_into(&mut problems);
        if problems.0.is_empty() { Ok(()) } else { Err(ConfigError::Settings(problems.0)) }
    }

    fn check_into(&self, problems: &mut Problems) {
        let Self {
            max_new_tokens,
            num_samples,
            temperature,
            top_k: _, // 0 is off, and more than the vocabulary is all of it
            top_p,
            min_p,
            repetition_penalty: penalty,
            stop,
            seed,
        } = self;
        problems.at_least_one("generate.max_new_tokens", *max_new_tokens);
        problems.at_least_one("generate.num_samples", *num_samples);
        problems.not_negative("generate.temperature", *temperature);
        let rule = "be above 0 and at most 1 (1 turns it off)";
        problems.must(*top_p > 0.0 && *top_p <= 1.0, "generate.top_p", top_p, rule);
        let rule = "be at least 0 and at most 1 (0 turns it off)";
        problems.must((0.0..=1.0).contains(min_p), "generate.min_p", min_p, rule);
        let rule = "be a finite number above 0 (1 turns it off)";
        problems.must(penalty.is_finite() && *penalty > 0.0, "generate.repetition_penalty", penalty, rule);
        let rule = "not hold an empty text, at which nothing would be written";
        problems.must(!stop.iter().any(String::is_empty), "generate.stop", format!("{stop:?}"), rule);
        problems.seed("generate.seed", *seed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::read;
    use super::*;

    /// The problems of an otherwise valid config with these overrides.
    fn problems(overrides: &[&str]) -> Vec<String> {
        match read("[data]\npath = \"a.txt\"\n", overrides, None) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Invalid(_, problems)) => problems,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn each_rule_names_its_key() {
        let broken = [
            (
                "data.",
                "path= | text_field= | document_separator= | cache_dir= | cache_limit_gib=0 | cache_limit_gib=nan",
            ),
            ("data.val_fraction=", "0 | 1.0 | nan"),
            ("data.", "include=[\"\"] | exclude=[\"a\", \"\"]"),
            ("tokenizer.", "vocab_size=512 | path=a.json"),
            ("model.", "context_length=0 | n_layers=0 | d_ff=0 | d_model=0 | d_model=9000000000"),
            ("model.", "n_heads=0 | n_heads=3 | n_kv_heads=0 | n_kv_heads=3 | n_kv_heads=8"),
            ("model.dropout=", "1 | -0.1 | nan"),
            (
                "model.",
                "head_dim=0 | rope_theta=0 | rotary_fraction=0 | rotary_fraction=nan | norm_eps=0 | norm_eps=inf",
            ),
            ("model.", "attention_window=[16777217] | attention_scale=0 | attention_scale=nan | vocab_size=0"),
            ("model.", "rope_scaling={kind=\"linear\", factor=2}"), // without rope
            ("train.", "device=  | max_steps=0 | batch_size=0 | batch_size=16777216 | grad_accumulation_steps=0"),
            ("train.", "log_interval=0 | eval_batches=0 | keep_checkpoints=0 | sample_prompt= | skip_loss_spikes=-1"),
            ("optimizer.", "learning_rate=0 | learning_rate=inf | betas=[0.9, 1.0] | weight_decay=-1"),
            ("optimizer.", "grad_clip_norm=nan | muon_learning_rate=0 | muon_learning_rate=nan"),
            ("optimizer.", "muon_momentum=1 | muon_momentum=-0.1"),
            ("schedule.", "min_learning_rate=1 | min_learning_rate=-1 | decay_fraction=0"),
            ("schedule.", "initial_context_length=0 | initial_batch_size=0 | initial_batch_size=1000000"),
            ("schedule.ramp_fraction=", "0 | 1.1 | nan"),
            ("generate.", "max_new_tokens=0 | num_samples=0 | temperature=-1 | top_p=0 | top_p=1.1 | min_p=1.1"),
            ("generate.", "repetition_penalty=0 | stop=[\"\"]"),
            ("distributed.", "local_steps=0 | outer_learning_rate=0 | outer_momentum=1"),
        ];
        for (start, ends) in broken {
            for setting in ends.split(" | ").map(|end| format!("{start}{end}")) {
                let key = setting.split_once('=').unwrap().0;
                let found = problems(&[&setting]);
                assert_eq!(found.len(), 1, "{setting}: {found:?}");
                assert!(found[0].contains(key), "{setting}: {found:?}");
            }
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
                r#"[{path="a", weight=2e15}]"#, // a sum of many largest doubles would overflow
                "data.sources[0].weight = 2000000000000000 must be above 0 and at most 1e15",
            ),
            (r#"[{path="a", text_field=""}]"#, "data.sources[0].text_field = \"\" must"),
            (r#"[{path="a", document_separator=""}]"#, "data.sources[0].document_separator = \"\" must"),
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
        let allowed = "train.eval_interval=0 train.checkpoint_interval=0 train.log_interval=1000000 \
                       schedule.warmup_steps=0 schedule.decay_fraction=1 schedule.min_learning_rate=0.001 \
                       schedule.ramp_fraction=1 schedule.initial_batch_size=1 \
                       model.n_kv_heads=1 model.dropout=0 optimizer.betas=[0.0,0.0] optimizer.kind=muon \
                       optimizer.muon_momentum=0 generate.temperature=0 generate.top_k=1000000 generate.min_p=1 \
                       generate.top_p=1";
        let allowed: Vec<&str> = allowed.split_whitespace().collect();
        assert_eq!(problems(&allowed), Vec::<String>::new());
        assert_eq!(problems(&["train.eval_interval=1000000", "schedule.warmup_steps=1000000"]), Vec::<String>::new());
        let without_samples = ["train.sample_prompt=", "train.sample_tokens=0"];
        assert_eq!(problems(&without_samples), Vec::<String>::new());
    }

    #[test]
    fn only_gradients_travel_in_bf16() {
        let bf16 = "distributed.gradient_dtype=bf16";
        assert_eq!(problems(&[bf16, "distributed.timeout_s=0"]), Vec::<String>::new());
        let found = problems(&[bf16, "distributed.sync=local"]);
        assert!(found.len() == 1 && found[0].starts_with("distributed.gradient_dtype = \"bf16\" must "), "{found:?}");
    }

    #[test]
    fn weights_are_averaged_in_one_way() {
        let averaged = "optimizer.ema_decay=0.9";
        assert_eq!(problems(&[averaged, "distributed.sync=step"]), Vec::<String>::new());
        let found = problems(&[averaged, "distributed.sync=local"]);
        assert!(found.len() == 1 && found[0].starts_with("optimizer.ema_decay = 0.9 must be 0"), "{found:?}");
    }

    #[test]
    fn rope_needs_heads_of_even_width() {
        let found = problems(&["model.d_model=12", "model.n_heads=4", "model.position=rope"]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("model.position = \"rope\""), "{found:?}");
        assert!(problems(&["model.d_model=12", "model.n_heads=4"]).is_empty());
        let found = problems(&["model.head_dim=5", "model.position=rope"]);
        assert_eq!(found, ["model.position = \"rope\" rotates pairs: model.head_dim = 5 must be even, and is 5"]);
    }

    #[test]
    fn heads_of_their_own_width_need_not_divide_the_model() {
        assert!(problems(&["model.d_model=130", "model.head_dim=64"]).is_empty());
    }

    #[test]
    fn a_scaling_of_rope_names_what_is_wrong_with_it() {
        let found = |scaling: &str| problems(&["model.position=rope", &format!("model.rope_scaling={scaling}")]);
        let llama3 = |rest: &str| format!("{{kind=\"llama3\", factor=8, original_context_length=8192, {rest}}}");
        assert_eq!(found(&llama3("low_freq_factor=1, high_freq_factor=4")), Vec::<String>::new());
        for (scaling, problem) in [
            ("{kind=\"linear\", factor=0.5}", "model.rope_scaling.factor = 0.5 must be a finite number, 1 or more"),
            ("{kind=\"linear\"}", "missing field `factor`"),
            ("{kind=\"linear\", factor=2, x=1}", "unknown field `x`"),
            ("{kind=\"yarn\", factor=2}", "unknown variant `yarn`, expected `linear` or `llama3`"),
            (&llama3("low_freq_factor=4, high_freq_factor=4"), "high_freq_factor = 4 must be a finite number above"),
        ] {
            let found = found(scaling);
            assert!(found.len() == 1 && found[0].contains(problem), "{found:?}");
        }
    }

    #[test]
    fn a_seed_that_toml_cannot_hold_is_refused() {
        let mut config = Config::default();
        config.data.path = "a.txt".into();
        config.train.seed = u64::MAX;
        assert_eq!(config.problems(Text::Required).len(), 1);
    }
}
