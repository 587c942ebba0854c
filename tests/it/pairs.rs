//! Whole runs with every pair of options, and what must be true of any of them; and random models.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;
use serde_json::{Value, json};
use tinderbox::config::reference::with_every_key;
use tinderbox::config::{Base, Config, GenerateConfig, ModelConfig};
use tinderbox::data::{BatchSource, open_text};
use tinderbox::finetune::ChatFormat;
use tinderbox::generate::{Generator, LanguageModel};
use tinderbox::model::Gpt;
use tinderbox::model::probe::{Point, Probe, Site};
use tinderbox::optimizer::Gradients;
use tinderbox::run::{Trained, locate};
use tinderbox::train::{Event, Start, Summary};
use tinderbox_kernels::{DropoutKey, MatmulPrecision};

use crate::devices::{ndarray, wgpu};
use crate::fixtures::{Folder, Place, Ran, copy, expect_close, files, fs, host, list, number, observed_on, set, text};
use crate::optimizers::check_muon;
use crate::properties::{VOCAB_SIZE, any_model, lively, tensor, tokens};

/// A level of an option, with its settings.
type Level = (&'static str, &'static [&'static str]);

/// The options of a run with their levels, the default first.
const OPTIONS: [(&str, &[Level]); 28] = [
    (
        "method",
        &[
            ("scratch", &[]),
            ("full", &["finetune.method=\"full\""]),
            ("lora", &[]),
            ("dora", &["finetune.method=\"dora\""]),
            ("dpo", &[]),
            ("orpo", &["finetune.preference=\"orpo\"", "finetune.beta=0.3"]),
            ("full orpo", &["finetune.preference=\"orpo\"", "finetune.method=\"full\""]),
        ],
    ),
    (
        "family",
        &[
            ("gpt2", &[]),
            ("llama", &[ROPE, RMS_NORM, SWIGLU]),
            ("qwen2", &[ROPE, RMS_NORM, SWIGLU, "model.qkv_bias=true"]),
            ("qwen3", &[ROPE, RMS_NORM, SWIGLU, "model.qk_norm=true"]),
            (
                "yarn",
                &[
                    ROPE,
                    RMS_NORM,
                    SWIGLU,
                    "model.qk_norm=true",
                    "model.rope_scaling={kind=\"yarn\", factor=4.0, original_context_length=8}",
                ],
            ),
            ("smollm3", &[ROPE, RMS_NORM, SWIGLU, "model.rope_layers=[true, false]", "model.rope_theta=500.0"]),
            (
                "granite",
                &[
                    ROPE,
                    RMS_NORM,
                    SWIGLU,
                    "model.embedding_scale=12.0",
                    "model.residual_scale=0.22",
                    "model.logit_scale=0.125",
                    "model.attention_scale=0.0625",
                ],
            ),
            (
                "gemma2",
                &[
                    ROPE,
                    RMS_NORM,
                    "model.mlp=\"geglu\"",
                    "model.post_norm=true",
                    "model.attention_window=[5, 0]",
                    "model.attention_softcap=2.0",
                    "model.logit_softcap=8.0",
                    "model.embedding_scale=4.0",
                ],
            ),
            (
                "gemma3",
                &[
                    ROPE,
                    RMS_NORM,
                    "model.mlp=\"geglu\"",
                    "model.qk_norm=true",
                    "model.post_norm=true",
                    "model.rope_local_theta=1000.0",
                    "model.attention_window=[5, 0]",
                    "model.embedding_scale=4.0",
                ],
            ),
            (
                "olmo2",
                &[
                    ROPE,
                    RMS_NORM,
                    SWIGLU,
                    "model.qk_norm=true",
                    "model.qk_norm_across_heads=true",
                    "model.pre_norm=false",
                    "model.post_norm=true",
                ],
            ),
            ("gpt_neox", &[ROPE, "model.rotary_fraction=0.5", "model.parallel_residual=true", "model.bias=true"]),
            (
                "none",
                &[
                    "model.value_residual=true",
                    "model.embedding_skip=true",
                    "model.norm_weights=false",
                    "model.zero_init_projections=true",
                    "model.head_dim=12",
                ],
            ),
        ],
    ),
    ("heads", &[("2", &[]), ("4 on 2", &["model.n_heads=4", "model.n_kv_heads=2"])]),
    ("output", &[("tied", &[]), ("own", &["model.tie_embeddings=false"])]),
    (
        "tokenizer",
        &[
            ("byte", &["tokenizer.kind=\"byte\"", "tokenizer.end_of_text=true"]),
            ("char", &["tokenizer.kind=\"char\"", "tokenizer.end_of_text=true"]),
            ("bpe", &["tokenizer.kind=\"bpe\"", "tokenizer.vocab_size=300"]),
        ],
    ),
    // The end of an answer is the end of a text, or another token.
    ("template", &[("ends texts", &[]), ("chatml", &[]), ("zephyr", &[])]),
    (
        "optimizer",
        &[
            ("adamw", &[]),
            ("muon", &[MUON]),
            ("normuon", &[MUON, "optimizer.normuon_beta2=0.9", "optimizer.newton_schulz=\"polar_express\""]),
            (
                "muon alone",
                &[
                    MUON,
                    "optimizer.muon_momentum=0.0",
                    "optimizer.newton_schulz_steps=4",
                    "optimizer.muon_learning_rate=0.01",
                ],
            ),
        ],
    ),
    ("betas", &[("0.9, 0.99", &[]), ("0.8, 0.95", &["optimizer.betas=[0.8, 0.95]"])]),
    ("decay", &[("0.1", &[]), ("0", &["optimizer.weight_decay=0.0"])]),
    ("clip", &[("0.05", &["optimizer.grad_clip_norm=0.05"]), ("none", &["optimizer.grad_clip_norm=0.0"])]),
    ("average", &[("none", &[]), ("0.7", &["optimizer.ema_decay=0.7"])]),
    (
        "schedule",
        &[
            ("constant", &["schedule.kind=\"constant\""]),
            ("cosine", &["schedule.kind=\"cosine\""]),
            ("linear", &["schedule.kind=\"linear\"", "schedule.min_learning_rate=0.0"]),
            ("wsd", &["schedule.kind=\"wsd\"", "schedule.decay_fraction=0.9"]),
        ],
    ),
    ("batches", &[("equal", &[]), ("growing", &["schedule.initial_batch_size=1", "schedule.ramp_fraction=0.7"])]),
    ("windows", &[("equal", &[]), ("growing", &["schedule.initial_context_length=4", "schedule.ramp_fraction=0.7"])]),
    // Only after 64 steps.
    (
        "spikes",
        &[("kept", &[]), ("skipped", &["train.skip_loss_spikes=0.1", "train.max_steps=70", "train.eval_interval=35"])],
    ),
    // Steps so long that the loss gets worse.
    ("patience", &[("none", &[]), ("1", &["train.early_stopping_patience=1", "optimizer.learning_rate=0.3"])]),
    ("precision", &[("f32", &[]), ("bf16", &["train.matmul_precision=\"bf16\""])]),
    ("dropout", &[("none", &["model.dropout=0.0"]), ("0.2", &["model.dropout=0.2"])]),
    ("accumulation", &[("1", &[]), ("2", &["train.grad_accumulation_steps=2"])]),
    ("replacement", &[("with", &[]), ("without", &["train.with_replacement=false"])]),
    ("views", &[("none", &[]), ("heads and samples", &["train.head_metrics=true", "train.sample_tokens=9"])]),
    (
        "ranks",
        &[
            ("1", &[]),
            ("2", &[]),
            ("2 local", &["distributed.sync=\"local\"", "distributed.local_steps=2", "distributed.outer_momentum=0.5"]),
        ],
    ),
    ("packing", &[("no", &[]), ("yes", &["finetune.packing=true"])]),
    (
        "base weights",
        &[("f32", &[]), ("bf16", &["finetune.base_weights=\"bf16\""]), ("int8", &["finetune.base_weights=\"int8\""])],
    ),
    (
        "adapters",
        &[
            ("everywhere", &[]),
            ("few", &["finetune.targets=[\"q\", \"v\", \"down\"]", "finetune.rank=3", "finetune.alpha=6.0"]),
            ("last block", &["finetune.last_blocks=1", "finetune.use_rslora=true"]),
        ],
    ),
    ("adapter dropout", &[("none", &[]), ("0.2", &["finetune.dropout=0.2"])]),
    ("tokens", &[("frozen", &[]), ("trained", &["finetune.trained_tokens=[3, 20]"])]),
    (
        "counted",
        &[("answers", &[]), ("last", &["finetune.train_on=\"last\""]), ("all", &["finetune.train_on=\"all\""])],
    ),
];

const ROPE: &str = "model.position=\"rope\"";
const RMS_NORM: &str = "model.norm=\"rms_norm\"";
const SWIGLU: &str = "model.mlp=\"swiglu\"";
const MUON: &str = "optimizer.kind=\"muon\"";

/// Keys that are no options here: sizes, rates and intervals that every run has, and what other tests vary.
const OTHER_KEYS: [&str; 25] = [
    "tokenizer.path",
    "model.context_length",
    "model.d_model",
    "model.n_layers",
    "model.d_ff",
    "model.norm_eps",
    "model.vocab_size",
    "train.seed",
    "train.device",
    "train.batch_size",
    "train.log_interval",
    "train.eval_batches",
    "train.checkpoint_interval",
    "train.keep_checkpoints",
    "train.sample_prompt",
    "train.skip_non_finite",
    "train.tensorboard",
    "schedule.warmup_steps",
    "finetune.base",
    "finetune.ignored_fields",
    "finetune.map",
    "finetune.max_tokens",
    "distributed.outer_learning_rate",
    "distributed.gradient_dtype",
    "distributed.timeout_s",
];

/// The options of the model, which a fine-tuning inherits from its base.
const INHERITED: std::ops::Range<usize> = 1..5;

/// Whether a level of an option excludes all levels of another one but the default.
fn excludes(option: &str, level: &str, other: &str) -> bool {
    let of_adapters = ["base weights", "adapters", "adapter dropout", "tokens"];
    match (option, level) {
        ("method", "scratch") => ["template", "packing", "counted"].contains(&other) || of_adapters.contains(&other),
        ("method", method) => {
            let is_preference = ["dpo", "orpo", "full orpo"].contains(&method);
            // Each pass has every record once, in rows of their own lengths.
            ["windows", "replacement"].contains(&other)
                || method.starts_with("full") && of_adapters.contains(&other)
                || method == "dora" && other == "adapter dropout"
                || is_preference && ["packing", "counted"].contains(&other)
        }
        ("ranks", "2 local") => ["average", "spikes", "patience", "base weights"].contains(&other),
        ("ranks", "2") => other == "base weights",
        _ => false,
    }
}

/// An option with a level, by their places in [`OPTIONS`].
type Choice = (usize, usize);

fn are_compatible(one: Choice, other: Choice) -> bool {
    let excludes = |(option, level): Choice, (other, other_level): Choice| {
        other_level > 0 && excludes(OPTIONS[option].0, OPTIONS[option].1[level].0, OPTIONS[other].0)
    };
    !excludes(one, other) && !excludes(other, one)
}

/// A generator of pseudorandom numbers that is the same with every version of a library (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A run: a level of each option.
#[derive(Clone)]
struct AnyRun([usize; OPTIONS.len()]);

/// Runs that together have every pair of compatible levels. Each is the best of a few tries to have many new pairs.
///
/// Source: Cohen et al. 1997, "The AETG System: An Approach to Testing Based on Combinatorial Design", section 4.
fn covering_runs(seed: u64) -> Vec<AnyRun> {
    let levels = |option: usize| (0..OPTIONS[option].1.len()).map(move |level| (option, level));
    let fits = |method: Choice, choice: Choice| method == choice || choice.0 > 0 && are_compatible(method, choice);
    let methods =
        |one, other| levels(0).filter(|method| fits(*method, one) && fits(*method, other)).collect::<Vec<_>>();
    let choices: Vec<Choice> = (0..OPTIONS.len()).flat_map(levels).collect();
    let pairs = choices.iter().flat_map(|one| choices.iter().map(move |other| (*one, *other)));
    let is_possible = |(one, other): &(Choice, Choice)| {
        one.0 < other.0 && are_compatible(*one, *other) && !methods(*one, *other).is_empty()
    };
    let mut missing: BTreeSet<(Choice, Choice)> = pairs.filter(is_possible).collect();
    let (mut random, mut runs) = (Random(seed), Vec::new());
    while !missing.is_empty() {
        let candidates = (0..20).map(|_| {
            let &(one, other) = missing.iter().nth(random.below(missing.len())).expect("a pair is missing");
            let methods = methods(one, other);
            let mut chosen = vec![methods[random.below(methods.len())]];
            chosen.extend([one, other].into_iter().filter(|choice| choice.0 > 0));
            let is_chosen = |option: &usize| chosen.iter().any(|choice| choice.0 == *option);
            let mut left: Vec<usize> = (0..OPTIONS.len()).filter(|option| !is_chosen(option)).collect();
            while !left.is_empty() {
                let option = left.swap_remove(random.below(left.len()));
                let allowed = levels(option).filter(|it| chosen.iter().all(|chosen| are_compatible(*it, *chosen)));
                let is_new = |it: Choice, chosen: Choice| missing.contains(&(it.min(chosen), it.max(chosen)));
                let n_new = |it: Choice| chosen.iter().filter(|chosen| is_new(it, **chosen)).count();
                // The runs with spikes are long.
                let chance = |random: &mut Random| random.below(1 << 16) * usize::from(OPTIONS[option].0 != "spikes");
                let best = allowed.map(|it| (n_new(it), chance(&mut random), Reverse(it))).max();
                chosen.push(best.expect("the default is allowed").2.0);
            }
            let has = |(one, other): &&(Choice, Choice)| chosen.contains(one) && chosen.contains(other);
            (missing.iter().filter(has).count(), chosen)
        });
        let (_, chosen) = candidates.max().expect("there are candidates");
        missing.retain(|(one, other)| !(chosen.contains(one) && chosen.contains(other)));
        let mut run = AnyRun([0; OPTIONS.len()]);
        for (option, level) in chosen {
            run.0[option] = level;
        }
        runs.push(run);
    }
    runs
}

/// A template of few letters that ends an answer with the end of a text.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>\
    {% endif %}\n{% endfor %}{% if add_generation_prompt %}a {% endif %}";

impl AnyRun {
    /// The level of an option.
    fn level(&self, option: &str) -> &'static str {
        let idx = OPTIONS.iter().position(|(name, _)| *name == option).expect("the option exists");
        OPTIONS[idx].1[self.0[idx]].0
    }

    /// The levels that are not the default.
    fn name(&self) -> String {
        let given = OPTIONS.iter().zip(self.0).filter(|(_, level)| *level > 0);
        given.map(|((name, levels), level)| format!("{name}: {}", levels[level].0)).collect::<Vec<_>>().join(", ")
    }

    /// The settings of the model, or all others.
    fn settings(&self, are_inherited: bool) -> Vec<&'static str> {
        let options = (0..OPTIONS.len()).filter(|option| INHERITED.contains(option) == are_inherited);
        options.flat_map(|option| OPTIONS[option].1[self.0[option]].1).copied().collect()
    }

    fn is_tuned(&self) -> bool {
        self.level("method") != "scratch"
    }

    /// A folder with the base of the run and its records.
    fn place(&self) -> Place {
        let place = Place::new();
        if !self.is_tuned() {
            return place;
        }
        let settings = ["train.max_steps=2", "train.sample_tokens=0", "model.context_length=64", "model.dropout=0.0"];
        place.trained("plain", &[&settings[..], &self.settings(true)[..]].concat());
        let format = match self.level("template") {
            "chatml" => Some(ChatFormat::Chatml),
            "zephyr" => Some(ChatFormat::Zephyr),
            _ => None,
        };
        if let Some(format) = format {
            let plain = locate(&place.path("plain")).expect("a run");
            format.give(&plain, &place.path("base")).expect("the base gets a template");
        } else {
            copy(&place.path("plain"), &place.path("base"));
            let companion = json!({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"});
            fs::write(place.path("base/tokenizer_config.json"), companion.to_string());
        }
        let (animals, ages) = (["the cat", "a dog", "the old owl"], ["3", "12", "1 and 0"]);
        let turn = |role: &str, content: &str| json!({"role": role, "content": content});
        let record = |i: usize| match self.level("method") {
            "dpo" | "orpo" | "full orpo" => {
                json!({"prompt": animals[i % 3], "chosen": ages[i % 2], "rejected": animals[(i + 1) % 3]})
            }
            _ => json!({"messages": [
                turn("user", animals[i % 3]), turn("assistant", ages[i % 2]),
                turn("user", ages[i % 3]), turn("assistant", animals[i % 2]),
            ]}),
        };
        let records: Vec<String> = (0..14).map(|i| format!("{}\n", record(i))).collect();
        fs::write(place.path("records.jsonl"), records.concat());
        place
    }

    /// The config of the run, or the reason why it is refused.
    fn config(&self, place: &Place) -> Result<Config, String> {
        let common = ["train.max_steps=6", "train.eval_interval=2", "train.log_interval=1", "train.sample_tokens=0"];
        let sizes = ["model.context_length=16", "model.d_model=16", "model.n_layers=2", "model.n_heads=2"];
        let mut overrides: Vec<String> =
            [&common[..], &self.settings(false)[..]].concat().iter().map(ToString::to_string).collect();
        let base = self.is_tuned().then(|| place.run("base").config().expect("the base has a config"));
        if self.is_tuned() {
            let paths = [("data.path", "records.jsonl"), ("finetune.base", "base")];
            overrides.extend(paths.map(|(key, name)| format!("{key}={:?}", place.path(name))));
        } else {
            overrides.extend([&sizes[..], &self.settings(true)[..]].concat().iter().map(ToString::to_string));
        }
        let mut toml: toml::Table = toml::from_str(&place.config(&[]).to_toml()).expect("TOML");
        for inherited in ["model", "tokenizer"] {
            toml.remove(inherited);
        }
        let (toml, base) = (toml.to_string(), base.as_ref().map(Base::Weights));
        Config::from_toml_inheriting(&toml, Path::new("any.toml"), &overrides, base).map_err(|error| error.to_string())
    }

    /// Trains in the folder `run`, until it is stopped after a step; the message if it is refused.
    fn try_train(&self, place: &Place, run: &str, start: Start, stop_after: Option<usize>) -> Result<Summary, String> {
        let config = self.config(place)?;
        loop {
            let job = place.job(run, config.clone(), start);
            let others = vec![job.device.clone(); usize::from(self.level("ranks") != "1")];
            let trained = observed_on(job, &others, move |event, interrupter| match event {
                Event::Stepped { step, .. } if Some(*step) == stop_after => interrupter.stop(None),
                _ => {}
            });
            let trained = trained.map_err(|error| error.to_string());
            // A process that another test starts at this moment has the lock until it begins.
            if !trained.as_ref().is_err_and(|error| error.starts_with("another process is training")) {
                return trained;
            }
        }
    }

    fn train(&self, place: &Place, run: &str, start: Start, stop_after: Option<usize>) -> Summary {
        self.try_train(place, run, start, stop_after).unwrap_or_else(|error| panic!("{run} is not trained: {error}"))
    }

    /// The files that the options of a run change, except its config.
    fn outputs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let place = self.place();
        self.train(&place, "run", Start::New, None);
        let mut outputs = files(&place.path("run"));
        outputs.retain(|path, _| !["config.toml", "timings.jsonl"].contains(&path.to_str().expect("UTF-8")));
        outputs.retain(|path, _| !path.ends_with("state.json"));
        outputs
    }

    /// Checks everything that must be true of any run.
    fn check(&self) {
        let place = self.place();
        let summary = self.train(&place, "whole", Start::New, None);
        let steps = summary.steps;
        // Local steps are averaged at each checkpoint, so both have to save after the same steps.
        let [first, second] =
            if self.level("ranks") == "2 local" { [steps - 4, steps - 2] } else { [steps - 3, steps - 1] };
        self.train(&place, "parts", Start::New, Some(first));
        self.train(&place, "parts", Start::Resume, Some(second));
        self.train(&place, "parts", Start::Resume, None);
        assert_same(&place, "whole", "parts");
        let folder = Folder::new();
        let path = |name: &str| place.path(name).to_str().expect("UTF-8").to_owned();
        let whole = path("whole");
        check_losses(&folder, &whole, &path(""), &summary);
        check_texts(&folder, &whole);
        self.check_exports(&folder, &whole);
        if self.level("ranks") != "1" {
            return;
        }
        let config = path("whole/config.toml");
        let plan = folder.json(&["plan", &config, "--no-measure", "--json"]);
        let last = place.run("whole").last().expect("a checkpoint");
        let files = ["model.safetensors", "optimizer.safetensors"].map(|file| fs::read(last.join(file)).len());
        let of_text = |file: &str| number(&plan["disk"][file]);
        let planned = match self.is_tuned() {
            true => number(&plan["checkpoint_bytes"]), // without headers
            false => of_text("model") + of_text("optimizer"),
        };
        let headers = (files[0] + files[1]) as f64 - planned;
        assert!((0.0..20_000.0).contains(&headers), "planned {planned}, and the files have {files:?}");
        // The saved config trains the same run, and the commands that the program names work.
        let trained = folder.run(&["train", &config, "--run-dir", &path("again"), "--json"]).exits(0);
        assert_same(&place, "whole", "again");
        // Nearly all of it is the program; `runs_of_all_pairs_need_planned_memory` has larger models.
        let peak = serde_json::from_str::<Value>(&trained.stdout).expect("JSON")["peak_rss_mib"].as_f64();
        if let (Some(planned), Some(peak)) = (plan["memory"]["peak"].as_f64(), peak) {
            assert!((0.3..1.3).contains(&(peak / planned * MIB)), "{peak} MiB, and {planned} bytes were planned");
        }
        let next = trained.stderr.lines().rev().find_map(|line| line.strip_prefix("    ")).expect("a next command");
        let words = shell_words::split(next).expect("it is quoted correctly");
        let mut command = folder.program(&words[0]);
        command.args(&words[1..]).args(["--max-new-tokens", "3"]);
        Ran::of(command).exits(0);
    }

    /// Checks that exports in both formats are the model of the run, as files and imported, or refused with a reason.
    /// Keeps them for `scripts/interop/any_runs.py`, if `TINDERBOX_KEEP_EXPORTS` names a folder.
    fn check_exports(&self, folder: &Folder, run: &str) {
        let loss = |run: &str| number(&folder.json(&["eval", run, "--text", "text.txt", "--json"])["loss"]);
        let own = loss(run);
        for (format, output) in [("hf", "out"), ("gguf", "out.gguf")] {
            let exported = folder.run(&["export", run, "--to", format, "--output", output]);
            if exported.code != Some(0) {
                assert!(exported.stderr.contains("hint") || exported.stderr.contains("model."), "{}", exported.stderr);
                continue;
            }
            let imported = format!("imported-{format}");
            folder.succeed(&["import", output, "--run-dir", &imported]);
            for run in [run, &imported] {
                folder.succeed(&["verify", run, "--against", output]);
            }
            let found = loss(&imported);
            assert!((found - own).abs() < 2e-5, "{found} after {format}, and {own} before");
            if format == "hf" {
                let best = number(&list(&folder.json(&["runs", run, "--json"]))[0]["val_loss"]);
                assert!(
                    folder.read("out/README.md").contains(&format!("{best:.4}")),
                    "the card does not show {best:.4}"
                );
            }
        }
        if let Some(kept) = std::env::var_os("TINDERBOX_KEEP_EXPORTS") {
            static N: AtomicUsize = AtomicUsize::new(0);
            folder.write("short.txt", &text()[..200]);
            let Trained { config, tokenizer, .. } = Trained::open(Path::new(run), None).expect("it opens");
            let tokens = open_text(&folder.path("short.txt"), &config.data, &tokenizer).expect("the text is known");
            let windows = tokens.windows(config.model.context_length, 1).map(|it| (it.inputs, it.targets));
            let loss = number(&folder.json(&["eval", run, "--text", "short.txt", "--json"])["loss"]);
            let windows = json!({"name": self.name(), "loss": loss, "windows": windows.collect::<Vec<_>>()});
            folder.write("windows.json", windows.to_string());
            copy(&folder.path(""), &Path::new(&kept).join(N.fetch_add(1, Ordering::Relaxed).to_string()));
        }
    }
}

const MIB: f64 = 1_048_576.0;

/// Checks that the last checkpoint of two runs and their other files without clock values are the same.
fn assert_same(place: &Place, one: &str, other: &str) {
    let [last, found] = [one, other].map(|run| place.run(run).last().expect("a checkpoint"));
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        assert!(fs::read(last.join(file)) == fs::read(found.join(file)), "{other}: {file} differs");
    }
    place.assert_same(one, other, &["metrics.jsonl", "config.toml", "tokenizer.json", "best", "last"]);
}

/// Checks that every place that shows the best validation loss of a run in a folder shows that of `summary`.
fn check_losses(folder: &Folder, run: &str, runs: &str, summary: &Summary) {
    let [Some(last), Some(best)] = [summary.val_loss, summary.best_val_loss] else {
        panic!("the run was not evaluated: {summary:?}")
    };
    // The loss of preferences is not that of a text, which eval measures.
    let of_text = [("last", last), ("best", best)].into_iter().filter(|_| summary.preferred.is_none());
    for (of, expected) in of_text {
        let measured = folder.json(&["eval", &format!("{run}/{of}"), "--json"]);
        assert!((number(&measured["loss"]) - expected).abs() < 2e-5, "{of} is {expected}, and eval says {measured}");
    }
    let listed = folder.json(&["runs", runs, "--json"]);
    let listed = list(&listed).iter().find(|it| it["run"] == run).expect("the run is listed");
    assert!((number(&listed["val_loss"]) - best).abs() < 1e-9, "{listed} is {best}");
    let bits = summary.val_bits_per_byte.map(|bits| bits / last * best);
    let listed_bits = listed["val_bits_per_byte"].as_f64();
    assert_eq!(listed_bits.is_some(), bits.is_some(), "{listed}");
    let is_same = listed_bits.zip(bits).is_none_or(|(listed, bits)| (listed - bits).abs() < 1e-6);
    assert!(is_same, "{listed} has {bits:?} bits per byte");
    folder.succeed(&["report", run, "--output", "report.html"]);
    assert!(folder.read("report.html").contains(&format!("{best:.4}")), "the report does not show {best:.4}");
}

/// Checks that the engine, the tensors and the server complete prompts alike.
fn check_texts(folder: &Folder, run: &str) {
    let trained = Trained::open(Path::new(run), None).expect("it opens");
    let greedy = GenerateConfig { temperature: 0.0, max_new_tokens: 12, ..trained.config.generate };
    let write = |model: LanguageModel, prompt: &str| {
        let generator = Generator::new(model, &trained.tokenizer, &greedy, prompt, 0).expect("the prompt is known");
        generator.collect::<Result<String, _>>().expect("the model generates")
    };
    let prompts = ["The cat ", "\n", "the old owl"];
    let [engine, tensors] =
        [LanguageModel::from(&trained.model), LanguageModel::Tensors(Box::new(trained.model.clone()))]
            .map(|model| prompts.map(|prompt| write(model.clone(), prompt)));
    assert_eq!(engine, tensors, "after {prompts:?}");
    #[cfg(feature = "serve")]
    assert_eq!(engine[..], crate::serve::program::completions(folder, run, &prompts, 12), "after {prompts:?}");
    #[cfg(not(feature = "serve"))]
    let _ = folder;
}

/// The message of a check that fails.
fn failure(run: &AnyRun) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run.check())).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

/// The run with as few options as fail, and the message.
fn shrunk(mut run: AnyRun, mut message: String) -> (AnyRun, String) {
    for option in (0..OPTIONS.len()).rev().filter(|option| run.0[*option] > 0).collect::<Vec<_>>() {
        let mut simpler = run.clone();
        simpler.0[option] = 0;
        let choices = || simpler.0.iter().copied().enumerate();
        if !choices().all(|one| choices().all(|other| one.0 == other.0 || are_compatible(one, other))) {
            continue;
        }
        if let Some(found) = failure(&simpler) {
            (run, message) = (simpler, found);
        }
    }
    (run, message)
}

/// Checks runs, two at once, and panics with the smallest set of options of each that fails.
fn check_all(runs: &[AnyRun]) {
    let next = AtomicUsize::new(0);
    let check = || {
        let mut failed = Vec::new();
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(message) = failure(run) {
                let (smallest, message) = shrunk(run.clone(), message);
                failed.push(format!("{}\n    {message}\n", smallest.name()));
            }
        }
        failed
    };
    let failed: BTreeSet<String> = thread::scope(|scope| {
        let both = [scope.spawn(check), scope.spawn(check)];
        both.into_iter().flat_map(|it| it.join().expect("a check does not panic")).collect()
    });
    let failed: Vec<String> = failed.into_iter().collect();
    assert!(failed.is_empty(), "runs with these options fail:\n{}", failed.concat());
}

#[test]
fn runs_of_many_pairs_of_options_keep_every_promise() {
    check_all(&covering_runs(49)[..16]);
}

/// The run with these levels of options, and with the first method that they are compatible with.
fn run_with(choices: &[Choice]) -> Option<AnyRun> {
    let mut run = AnyRun([0; OPTIONS.len()]);
    for (option, level) in choices {
        run.0[*option] = *level;
    }
    let is_fixed = choices.iter().any(|(option, _)| *option == 0);
    let mut methods = (0..OPTIONS[0].1.len()).filter(|method| !is_fixed || *method == run.0[0]);
    run.0[0] = methods.find(|method| choices.iter().all(|it| it.0 == 0 || are_compatible((0, *method), *it)))?;
    Some(run)
}

#[test]
fn every_option_changes_the_run() {
    let mut plain: BTreeMap<usize, BTreeMap<PathBuf, Vec<u8>>> = BTreeMap::new();
    for (option, (name, levels)) in OPTIONS.iter().enumerate().skip(1) {
        for level in 1..levels.len() {
            if (*name, levels[level].0) == ("ranks", "2") {
                continue; // but for rounding
            }
            let run = run_with(&[(option, level)]).expect("a method has the option");
            let method = run.0[0];
            let without = plain.entry(method).or_insert_with(|| run_with(&[(0, method)]).expect("a method").outputs());
            assert!(*without != run.outputs(), "{} changes nothing", run.name());
        }
    }
}

#[test]
fn options_without_effect_are_refused() {
    let choices =
        || OPTIONS.iter().enumerate().flat_map(|(idx, (_, levels))| (0..levels.len()).map(move |at| (idx, at)));
    for one in choices() {
        let (option, level) = (OPTIONS[one.0].0, OPTIONS[one.0].1[one.1].0);
        for other in choices().filter(|other| other.1 == 1 && excludes(option, level, OPTIONS[other.0].0)) {
            // A template is part of the base, `with_replacement` is documented, and where steps are local, both of the
            // others work unless a run is resumed.
            let kept = [("scratch", "template"), ("2 local", "spikes"), ("2 local", "patience")];
            if kept.contains(&(level, OPTIONS[other.0].0)) || OPTIONS[other.0].0 == "replacement" {
                continue;
            }
            // Ranks exclude formats of a base only where there is a base.
            let lora = [(0, 2)];
            let is_of_adapters = one.0 != 0 && !are_compatible((0, 0), other);
            let mut run = run_with(&lora[..usize::from(is_of_adapters)]).expect("a method");
            run.0[one.0] = one.1;
            run.0[other.0] = other.1;
            let refused = run.try_train(&run.place(), "run", Start::New, None);
            let message = refused.err().unwrap_or_else(|| panic!("{} trains", run.name()));
            let key = OPTIONS[other.0].1[other.1].1[0].split(['.', '=']).nth(1).expect("a key");
            assert!(message.contains(key) || message.contains("finetune.base = none"), "{}: {message}", run.name());
        }
    }
}

/// Every key of a run is an option here, or has tests of its own.
#[test]
fn new_keys_are_options() {
    let path = Path::new("configs/quickstart.toml");
    let page = with_every_key(&fs::read_to_string(path), path).expect("a valid config");
    let (mut section, mut keys) = ("", BTreeSet::new());
    for line in page.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            keys.insert(format!("{section}.{key}"));
        }
    }
    keys.retain(|key| !key.starts_with("data.") && !key.starts_with("generate."));
    let levels = OPTIONS.iter().flat_map(|(_, levels)| levels.iter());
    let settings = levels.flat_map(|(_, settings)| settings.iter().filter_map(|it| it.split('=').next()));
    let known: BTreeSet<String> = settings.chain(OTHER_KEYS).map(ToOwned::to_owned).collect();
    assert_eq!(keys.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "keys without an option");
    assert_eq!(known.difference(&keys).collect::<Vec<_>>(), Vec::<&String>::new(), "options without a key");
}

/// Each option of an optimizer is in a run of each kind, which is stopped and resumed.
#[test]
fn every_optimizer_option_meets_every_kind_of_run() {
    let kinds = [
        ("method", "scratch"),
        ("method", "full"),
        ("method", "lora"),
        ("method", "dora"),
        ("method", "dpo"),
        ("packing", "yes"),
        ("base weights", "int8"),
    ];
    let runs = covering_runs(49);
    let is_of_optimizer = |settings: &[&str]| settings.iter().any(|it| it.starts_with("optimizer."));
    let options = OPTIONS.iter().filter(|(_, levels)| levels.iter().any(|(_, settings)| is_of_optimizer(settings)));
    let mut n_pairs = 0;
    for (option, levels) in options {
        for (level, _) in *levels {
            for (name, kind) in kinds {
                let has_both = runs.iter().any(|run| run.level(option) == *level && run.level(name) == kind);
                assert!(has_both, "no run has {option}: {level} and {name}: {kind}");
                n_pairs += 1;
            }
        }
    }
    assert_eq!(n_pairs, 14 * kinds.len());
}

#[test]
#[ignore = "takes minutes"]
fn runs_of_all_pairs_of_options_keep_every_promise() {
    let runs = covering_runs(49);
    check_all(&runs);
    eprintln!("{} runs have every pair of options", runs.len());
}

/// Models that are large enough to be seen in a process, and fine-tunings, which `plan` has to try.
#[test]
#[ignore = "takes minutes"]
fn runs_of_all_pairs_need_planned_memory() {
    let large = ["model.d_model=128", "model.head_dim=32", "model.d_ff=512", "model.context_length=128"];
    let large = set(&[&large[..], &["train.batch_size=16"]].concat());
    let runs = covering_runs(49);
    let (mut failed, mut ratios) = (Vec::new(), Vec::new());
    for run in runs.iter().filter(|run| run.level("ranks") == "1") {
        let (place, folder) = (run.place(), Folder::new());
        folder.write("any.toml", run.config(&place).expect("a valid config").to_toml());
        let large = if run.is_tuned() { &[][..] } else { &large[..] };
        let settings = [&["any.toml", "--set", "train.max_steps=8"][..], large].concat();
        let plan = folder.json(&[&["plan", "--json"], &settings[..]].concat());
        let planned = if run.is_tuned() { &plan["measured"]["peak"] } else { &plan["memory"]["peak"] };
        let planned = number(planned) / MIB;
        // Next to other processes, threads wait for each other, and a run needs more.
        let ratio = |threads: &str| {
            let mut train =
                folder.command(&[&["train", "--json", "--overwrite", "--run-dir", "run"], &settings[..]].concat());
            train.env("RAYON_NUM_THREADS", threads);
            let trained: Value = serde_json::from_str(&Ran::of(train).exits(0).stdout).expect("JSON");
            number(&trained["peak_rss_mib"]) / planned
        };
        let ratio = ["2", "2", "1"].map(ratio).into_iter().fold(f64::INFINITY, f64::min);
        ratios.push(ratio);
        if !(0.6..1.6).contains(&ratio) {
            failed.push(format!("{}: {ratio:.2} of {planned:.0} MiB\n", run.name()));
        }
    }
    ratios.sort_by(f64::total_cmp);
    eprintln!("{} runs need {:.2} to {:.2} of the planned memory", ratios.len(), ratios[0], ratios[ratios.len() - 1]);
    assert!(failed.is_empty(), "runs need other memory than was planned:\n{}", failed.concat());
}

#[test]
#[ignore = "takes minutes"]
fn two_hundred_killed_runs_resume_exactly() {
    let (runs, mut random) = (covering_runs(7), Random(7));
    let on_one_rank: Vec<&AnyRun> = runs.iter().filter(|run| run.level("ranks") == "1").collect();
    let (mut n_kills, mut n_before_checkpoints) = (0, 0);
    for (idx, run) in on_one_rank.iter().cycle().take(200).enumerate() {
        let (place, folder) = (run.place(), Folder::new());
        run.train(&place, "whole", Start::New, None);
        let [config, killed] =
            ["whole/config.toml", "killed"].map(|it| place.path(it).to_str().expect("UTF-8").to_owned());
        for n_left in (0..=1 + idx % 2).rev() {
            let has_checkpoint = place.path("killed/last").is_file();
            let start = if has_checkpoint { "--resume" } else { "--overwrite" };
            let mut process = folder.start(&["train", &config, "--run-dir", &killed, start]);
            if n_left == 0 {
                let ended = process.finish(); // perhaps it was killed at its very end
                assert!(ended.code == Some(0) || ended.stderr.contains("is done"), "{}", ended.stderr);
                break;
            }
            let mut line = String::new();
            for _ in 0..random.below(14) {
                process.stderr.read_line(&mut line).expect("it can be read");
            }
            if !process.kill() {
                break; // it is done
            }
            n_kills += 1;
            n_before_checkpoints += usize::from(!place.path("killed/last").is_file());
        }
        assert_same(&place, "whole", "killed");
        if idx % 20 == 19 {
            eprintln!("{} runs, {n_kills} kills", idx + 1);
        }
    }
    eprintln!(
        "200 runs, {n_kills} kills, {n_before_checkpoints} of them before a checkpoint; all ended with the same bytes"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ndarray_repeats_logits_loss_and_gradients(
        config in any_model(), seed in 0..1000_u64,
    ) {
        alike(&config, seed, &ndarray(), 1e-4);
    }

    #[test]
    fn probe_sees_and_changes_every_site(
        config in any_model(), seed in 0..1000_u64,
    ) {
        let device = Device::flex();
        let gpt = lively(&config, seed, &device);
        let input = || tensor(&tokens(config.context_length, 4), &device);
        let plain = host(gpt.forward(input()));
        let mut seen = Seen::default();
        let probed = host(gpt.forward_with(input(), None, &mut seen));
        expect_close("logits with a probe", &probed, &plain, 2e-5);
        prop_assert_eq!(&seen.0, &sites(&config));
        for (site, _) in seen.0 {
            let changed = host(gpt.forward_with(input(), None, &mut Shift(site)));
            // A single position attends to itself, whatever its query and key.
            let is_alone = site.block_idx.is_some_and(|block_idx| config.attention_window_of(block_idx) == Some(1));
            let is_deaf =
                (config.context_length == 1 || is_alone) && matches!(site.point, Point::Queries | Point::Keys);
            let apart = changed.iter().zip(&probed).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Apart from the change, both passes compute the same, to the byte.
            prop_assert!((apart > 0.0) != is_deaf, "{} moves logits by {}", site, apart);
        }
    }
}

/// Compares a model on a device with the same model on flex: logits, loss and gradients, dropout included.
fn alike(config: &ModelConfig, seed: u64, other: &Device, tolerance: f32) {
    let run = |device: &Device| {
        let gpt = lively(config, seed, &device.clone().autodiff());
        let device = gpt.device();
        let [input, target] = [6, 7].map(|seed| tensor(&tokens(config.context_length, seed), &device));
        let key = DropoutKey { seed, step: 3, micro_step: 1, first_row: 0 };
        let logits = host(gpt.forward(input.clone()));
        let loss = gpt.loss(input, None, target, MatmulPrecision::F32, Some(key));
        let gradients = Gradients::take(&gpt, loss.backward());
        let gradients: Vec<(String, Vec<f32>)> =
            gradients.iter().map(|(name, gradient)| (name.to_owned(), host(gradient.clone()))).collect();
        (logits, host(loss.inner()), gradients)
    };
    let (flex_logits, flex_loss, flex_gradients) = run(&Device::flex());
    let (logits, loss, gradients) = run(other);
    expect_close("logits", &logits, &flex_logits, tolerance);
    expect_close("loss", &loss, &flex_loss, tolerance);
    assert_eq!(gradients.len(), flex_gradients.len());
    // Rounding in one layer reaches all before it, so gradients are as exact as the largest of them.
    let largest = flex_gradients.iter().flat_map(|(_, flex)| flex).fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for ((name, gradient), (_, flex)) in gradients.iter().zip(&flex_gradients) {
        assert_eq!(gradient.len(), flex.len(), "size of {name}");
        for (i, (gradient, flex)) in gradient.iter().zip(flex).enumerate() {
            let close = (gradient - flex).abs() <= tolerance * (1.0 + largest); // false for NaN
            assert!(close, "{name}[{i}] is {gradient}, not {flex}; the largest gradient is {largest}");
        }
    }
}

/// The sites visited in a pass, with the shapes of their values.
#[derive(Default)]
struct Seen(Vec<(Site, Vec<usize>)>);

impl Probe for Seen {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        self.0.push((site, value.dims().to_vec()));
        value
    }
}

/// Adds a small, different amount to each number at one site.
struct Shift(Site);

impl Probe for Shift {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if site != self.0 {
            return value;
        }
        let n = value.shape().num_elements();
        let little: Vec<f32> = (1..=n).map(|i| (i as f32 * 1.7).sin()).collect();
        let little = Tensor::<D>::from_data(TensorData::new(little, value.dims()), &value.device());
        value + little
    }
}

/// Every site of a model with its documented shape, in the order of a pass.
fn sites(config: &ModelConfig) -> Vec<(Site, Vec<usize>)> {
    let (t, c, d) = (config.context_length, config.d_model, config.head_dim);
    let (h, kv) = (config.n_heads, config.n_kv_heads);
    let stream = || vec![1, t, c];
    let of_block = |block_idx| {
        let points = [
            (Point::Queries, vec![1, h, t, d]),
            (Point::Keys, vec![1, kv, t, d]),
            (Point::Values, vec![1, kv, t, d]),
            (Point::Weights, vec![1, h, t, t]),
            (Point::Heads, vec![1, h, t, d]),
            (Point::Attention, stream()),
            (Point::Mlp, stream()),
            (Point::Residual, stream()),
        ];
        points.map(|(point, shape)| (site(Some(block_idx), point), shape))
    };
    let mut sites = vec![(site(None, Point::Embedding), stream())];
    sites.extend((0..config.n_layers).flat_map(of_block));
    sites.push((site(None, Point::Norm), stream()));
    sites.push((site(None, Point::Logits), vec![1, t, VOCAB_SIZE]));
    sites
}

fn site(block_idx: Option<usize>, point: Point) -> Site {
    Site { block_idx, point }
}

/// The table in docs/models.md; the sizes of GPT-2 and of stories15M are those that were published.
#[test]
fn shipped_configs_have_documented_sizes() {
    for (name, vocab_size, parameters) in [
        ("quickstart", 2048, 1_066_368),
        ("shakespeare-fast", 1024, 430_944),
        ("shakespeare-laptop", 1024, 935_296),
        ("shakespeare-nanogpt", 65, 804_096),
        ("shakespeare-gpu", 65, 10_745_088),
        ("stories-15m", 32_000, 15_191_712),
        ("gpt2-124m", 50_257, 124_439_808),
    ] {
        let path = format!("configs/{name}.toml");
        let config = Config::load(Path::new(&path), &[]).expect("a valid config");
        let gpt = Gpt::zeros(&config.model, vocab_size, &Device::flex());
        assert_eq!(gpt.num_params(), parameters, "{name}");
    }
}

#[test]
fn gpu_makes_pytorch_updates_of_muon() {
    if let Some(device) = wgpu() {
        check_muon(&device);
    }
}
