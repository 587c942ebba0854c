//! The rules of a config, section by section, and the few rules that involve several sections.
//!
//! Each section is destructured without `..`, so that a new key does not compile until its rule is decided. A message
//! names the key with its section and value, and all problems are reported at once.

use tinderbox_model::section::Problems;

use super::{Config, SyncKind};

/// The most tokens in a batch, since backends use 32-bit indices.
const MAX_BATCH_TOKENS: usize = i32::MAX as usize;

impl Config {
    /// All problems of this config; empty if it can be used. An imported model has no training text.
    pub(super) fn problems(&self, needs_text: bool) -> Vec<String> {
        let Self { data, tokenizer, model, train, optimizer, schedule, finetune, generate, distributed } = self;
        let mut problems = Problems::default();
        data.check_into(needs_text, &mut problems);
        tokenizer.check_into(&mut problems);
        model.check_into(&mut problems);
        train.check_into(&mut problems);
        optimizer.check_into(&mut problems);
        schedule.check_into(&mut problems);
        finetune.check_into(&mut problems);
        if finetune.base.is_some() {
            let initial = schedule.initial_context_length;
            let rule = "be left out with finetune.base, whose rows are records of any length";
            problems.must(initial.is_none(), "schedule.initial_context_length", initial.unwrap_or(0), rule);
        }
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

    /// Checks a config that was built in code, for a run that may have no text; returns all problems.
    pub fn check_saved(&self) -> Result<(), Vec<String>> {
        let problems = self.problems(false);
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::{self, SMALLEST};
    use super::*;

    /// The problems of an otherwise valid config with these overrides.
    fn problems(overrides: &[&str]) -> Vec<String> {
        tests::problems(SMALLEST, overrides)
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
            ("generate.", "max_new_tokens=0 | num_samples=0 | temperature=-1 | top_p=-0.1 | top_p=1.1 | min_p=1.1"),
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
    fn sources_replace_path() {
        let found = |sources: &str| problems(&["data.path=", &format!("data.sources={sources}")]);
        let good = r#"[{path="a", weight=3}, {path="b", text_field="body"}]"#;
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
            (
                r#"[{path="a", document_separator=""}]"#,
                "data.sources[0].document_separator is gone; set data.document_separator",
            ),
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
    fn range_limits_are_allowed() {
        let allowed = "train.eval_interval=0 train.checkpoint_interval=0 train.log_interval=1000000 \
                       schedule.warmup_steps=0 schedule.decay_fraction=1 schedule.min_learning_rate=0.001 \
                       schedule.ramp_fraction=1 schedule.initial_batch_size=1 \
                       model.n_kv_heads=1 model.dropout=0 optimizer.betas=[0.0,0.0] optimizer.kind=muon \
                       optimizer.muon_momentum=0 generate.temperature=0 generate.top_k=1000000 generate.min_p=1 \
                       generate.top_p=0 generate.speculate=1000000";
        let allowed: Vec<&str> = allowed.split_whitespace().collect();
        assert_eq!(problems(&allowed), Vec::<String>::new());
    }

    #[test]
    fn rules_of_several_keys_name_their_fault() {
        let (bf16, averaged) = ("distributed.gradient_dtype=bf16", "optimizer.ema_decay=0.9");
        let (narrow, rope) = ("model.d_model=12", "model.position=rope"); // heads of width 3
        for (overrides, expected) in [
            (&[bf16, "distributed.timeout_s=0"][..], None),
            (&[bf16, "distributed.sync=local"], Some("distributed.gradient_dtype = \"bf16\" must ")),
            (&[averaged, "distributed.sync=step"], None),
            (&[averaged, "distributed.sync=local"], Some("optimizer.ema_decay = 0.9 must be 0")),
            (&[narrow], None),
            (&[narrow, rope], Some("model.position = \"rope\" ")),
            (
                &["model.head_dim=5", rope],
                Some("model.position = \"rope\" rotates pairs: model.head_dim = 5 must be even, and is 5"),
            ),
            (&["model.d_model=130", "model.head_dim=64"], None),
            (&["train.sample_prompt=", "train.sample_tokens=0"], None),
            (&["train.eval_interval=1000000", "schedule.warmup_steps=1000000"], None),
        ] {
            let found = problems(overrides);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected)), "{found:?}");
        }
    }

    #[test]
    fn invalid_rope_scaling_names_its_fault() {
        let found = |scaling: &str| problems(&["model.position=rope", &format!("model.rope_scaling={scaling}")]);
        let llama3 = |rest: &str| format!("{{kind=\"llama3\", factor=8, original_context_length=8192, {rest}}}");
        assert_eq!(found(&llama3("low_freq_factor=1, high_freq_factor=4")), Vec::<String>::new());
        let yarn = |rest: &str| format!("{{kind=\"yarn\", factor=4, original_context_length=32768, {rest}}}");
        assert_eq!(found(&yarn("beta_slow=2")), Vec::<String>::new());
        for (scaling, problem) in [
            ("{kind=\"linear\", factor=0.5}", "model.rope_scaling.factor = 0.5 must be a finite number, 1 or more"),
            ("{kind=\"linear\"}", "missing field `factor`"),
            ("{kind=\"linear\", factor=2, x=1}", "unknown field `x`"),
            ("{kind=\"ntk\", factor=2}", "unknown variant `ntk`, expected one of `linear`, `llama3`, `yarn`"),
            ("{kind=\"yarn\", factor=2}", "missing field `original_context_length`"),
            (&yarn("beta_fast=1"), "beta_fast = 1 must be a finite number above beta_slow = 1"),
            (&yarn("attention_factor=0"), "attention_factor = 0"),
            (&llama3("low_freq_factor=4, high_freq_factor=4"), "high_freq_factor = 4 must be a finite number above"),
        ] {
            let found = found(scaling);
            assert!(found.len() == 1 && found[0].contains(problem), "{found:?}");
        }
    }

    #[test]
    fn seed_beyond_toml_range_is_refused() {
        let mut config = Config::default();
        config.data.path = "a.txt".into();
        config.train.seed = u64::MAX;
        assert_eq!(config.problems(true).len(), 1);
    }
}
