//! `tinderbox plan`, compared with actual runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use proptest::prelude::*;
use serde_json::Value;
use tinderbox::device;
use tinderbox::model::{Gpt, Parameter, parameters};
use tinderbox::plan::{self, Parameters};

use crate::allocations::allocations;
use crate::fixtures::{Folder, Place, files, number, set, text};
use crate::properties::any_model;

/// A small run with everything that a plan covers.
const CONFIG: &str = r#"
data = { path = "text.txt", cache_dir = "cache" }
tokenizer = { kind = "byte" }
model = { context_length = 32, d_model = 32, n_layers = 2, n_heads = 2, bias = true, qk_norm = true }

[train]
device = "cpu"
max_steps = 12
batch_size = 4
grad_accumulation_steps = 2
eval_interval = 5
eval_batches = 2
checkpoint_interval = 4
keep_checkpoints = 2
sample_tokens = 10
"#;

/// A folder with a text and the config above, in which the program is started.
pub fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("small.toml", CONFIG);
    folder
}

pub fn json(folder: &Folder, args: &[&str]) -> Value {
    folder.json(&[args, &["--json"]].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn parameters_match_built_model(config in any_model(), vocab_size in 2_usize..50) {
        let real = Gpt::zeros(&config, vocab_size, &Device::flex());
        let shapes = parameters::shapes(&real);
        let table: Vec<Parameter> = Parameter::all(&config, vocab_size).collect();
        let listed: BTreeMap<String, Vec<usize>> = table.iter().map(|it| (it.path.clone(), it.shape.clone())).collect();
        prop_assert_eq!((&listed, listed.len()), (&shapes, table.len()));

        let counted = plan::parameters(&config, vocab_size);
        prop_assert_eq!(counted.total, real.num_params() as u64);
        let sum = |is_part: &dyn Fn(&str) -> bool| -> u64 {
            let part = shapes.iter().filter(|(name, _)| is_part(name));
            part.map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
        };
        let of_first_block = |start: &str| sum(&|name| name.starts_with(&format!("blocks.0.{start}")));
        let Parameters { token_embedding, position_embedding, block, final_norm, output, .. } = counted;
        prop_assert_eq!(token_embedding, sum(&|name| name.starts_with("token_embedding")));
        prop_assert_eq!(position_embedding, sum(&|name| name.starts_with("position_embedding")));
        prop_assert_eq!(final_norm, sum(&|name| name.starts_with("norm.")));
        prop_assert_eq!(output, sum(&|name| name.starts_with("output.")));
        prop_assert_eq!(block.attention_qkv, of_first_block("attention.qkv"));
        prop_assert_eq!(block.attention_output, of_first_block("attention.output"));
        prop_assert_eq!(block.mlp, of_first_block("mlp."));
        let of_attention = ["attention_norm", "attention.q_norm", "attention.k_norm", "post_attention_norm"];
        let norms = of_attention.into_iter().chain(["mlp_norm", "post_mlp_norm"]);
        prop_assert_eq!(block.norms, norms.map(of_first_block).sum::<u64>());
    }
}

#[test]
fn plan_matches_run_and_writes_nothing() {
    let folder = folder();
    let before = files(&folder.path(""));
    let plan = json(&folder, &["plan", "small.toml"]);
    assert!(files(&folder.path("")) == before, "a plan must not write");

    let text_bytes = text().len() as u64;
    let n_train = (0.9 * text_bytes as f64) as u64;
    assert_eq!(plan["device"], "flex");
    assert_eq!(plan["vocabulary"]["size"], 256);
    assert_eq!(plan["text"]["train_tokens"], n_train);
    assert_eq!(plan["text"]["val_tokens"], text_bytes - n_train);
    assert_eq!(plan["run"]["tokens_per_step"], 2 * 4 * 32);
    assert_eq!(plan["run"]["tokens"], 12 * 2 * 4 * 32);
    assert_eq!(plan["run"]["evaluations"], 3);
    assert_eq!(plan["run"]["checkpoints"], 5); // after 4, 5, 8, 10 and 12 steps
    assert_eq!(plan["warnings"].as_array().map(Vec::len), Some(0), "{plan}");
    let time = &plan["time"];
    for part in ["steps_s", "evaluations_s", "last_evaluation_s", "samples_s", "checkpoints_s"] {
        assert!(time[part].as_f64().is_some_and(|s| s > 0.0), "{part} of {time}");
    }
    assert!(time["measured"]["step_ms"].as_f64() > Some(0.0));

    let trained = json(&folder, &["train", "small.toml"]);
    assert_eq!(plan["parameters"]["total"], trained["parameters"]);
    assert_eq!(plan["run"]["tokens"], trained["tokens"]);
}

#[test]
fn planned_checkpoint_sizes_are_exact() {
    let folder = folder();
    for (kind, option) in [("adamw", "ema_decay=0"), ("muon", "normuon_beta2=0.9"), ("muon", "ema_decay=0.9")] {
        let (set, option) = (format!("optimizer.kind={kind}"), format!("optimizer.{option}"));
        let set = ["--set", &set, "--set", &option, "--set", "train.max_steps=2"];
        let plan = json(&folder, &[&["plan", "small.toml", "--no-measure"], &set[..]].concat());
        json(&folder, &[&["train", "small.toml", "--run-dir", kind, "--overwrite"], &set[..]].concat());
        let checkpoint = folder.path(kind).join("checkpoints/step-000002");
        for (part, file) in [("model", "model"), ("optimizer", "optimizer")] {
            let bytes = fs::metadata(checkpoint.join(file).with_extension("safetensors")).expect("it is saved").len();
            assert_eq!(plan["disk"][part], bytes, "{file} of {kind} with {option}");
        }
    }
}

/// A config for `train --from` is planned as it would be trained: with the run's model and tokenizer.
#[test]
fn plan_from_run_uses_its_model_and_tokenizer() {
    let folder = folder();
    let char = ["--set", "tokenizer.kind=char", "--set", "train.max_steps=2"];
    let base = json(&folder, &[&["train", "small.toml", "--run-dir", "base"], &char[..]].concat());
    folder.write("other.txt", "the cat ".repeat(500));
    let fine = r#"
        data = { path = "other.txt", cache_dir = "cache" }
        train = { device = "cpu", max_steps = 2, batch_size = 4, eval_interval = 0, sample_tokens = 0 }
    "#;
    folder.write("fine.toml", fine);
    let plan = json(&folder, &["plan", "fine.toml", "--from", "base", "--no-measure"]);
    let trained = json(&folder, &["train", "fine.toml", "--from", "base"]);
    assert_eq!(plan["parameters"]["total"], trained["parameters"]);
    assert_eq!(plan["parameters"]["total"], base["parameters"]);
    let source = &plan["vocabulary"]["source"];
    assert_eq!(source, "the tokenizer of `base`");

    let other = ["--from", "base", "--set", "model.d_model=64", "--no-measure"];
    let said = folder.fail(&[&["plan", "fine.toml"], &other[..]].concat());
    assert!(said.contains("the run that it starts from has 32"), "{said}");
}

/// The process's peak, as measured by the system: kept activations, gradients, temporaries and the allocator.
#[cfg(target_os = "linux")]
#[test]
fn planned_memory_is_within_15_percent_of_run() {
    let modern = ["model.mlp=swiglu", "model.position=rope", "model.dropout=0.1"];
    let modern = [&["model.context_length=128", "train.batch_size=16"], &modern[..]].concat();
    let folder = folder();
    for (i, options) in [&["model.context_length=256", "train.batch_size=8"][..], &modern].into_iter().enumerate() {
        let small = ["model.d_model=128", "model.n_heads=4", "train.max_steps=8"];
        let rhythm = ["train.grad_accumulation_steps=1", "train.eval_interval=4"];
        let settings = [options, &small, &rhythm].concat();
        let set = set(&settings);
        let plan = json(&folder, &[&["plan", "small.toml", "--no-measure"], &set[..]].concat());
        assert_eq!(plan["time"], Value::Null);
        let planned = plan["memory"]["peak"].as_f64().expect("the peak is a number") / 1_048_576.0;
        // Next to other tests, threads wait for each other, and one frees what another could have used: the same run
        // varies by a fifth. The minimum of several is that of an idle machine; a single thread never waits.
        let mut measured = f64::INFINITY;
        for attempt in 0..4 {
            let run_dir = format!("run-{i}-{attempt}");
            let args = [&["train", "small.toml", "--json", "--run-dir", &run_dir], &set[..]].concat();
            let mut train = folder.command(&args);
            if attempt >= 2 {
                train.env("RAYON_NUM_THREADS", "1");
            }
            let output = train.output().expect("the binary starts").stdout;
            let trained: Value = serde_json::from_slice(&output).expect("a document");
            measured = measured.min(trained["peak_rss_mib"].as_f64().expect("MiB"));
            if planned > 0.85 * measured {
                break;
            }
        }
        let ratio = planned / measured;
        assert!((0.85..1.15).contains(&ratio), "{options:?}: planned {planned:.0} MiB, measured {measured:.0} MiB");
    }
}

#[test]
fn shipped_configs_can_be_planned() {
    let (folder, root) = (folder(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let mut n_configs = 0;
    for entry in fs::read_dir(root.join("configs")).expect("the configs") {
        let path = entry.expect("an entry").path();
        let path = path.to_str().expect("a name in UTF-8");
        let args = ["plan", path, "--no-measure", "--device", "cpu"];
        let mut command = folder.command(&args);
        let output = command.current_dir(root).output().expect("the binary starts");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{path}: {stderr}");
        for word in ["model: ", "FLOPs per token: ", "run: ", "memory: ", "disk: "] {
            assert!(stdout.contains(word), "{path} has no `{word}`: {stdout}");
        }
        n_configs += 1;
    }
    assert_eq!(n_configs, 7);
}

#[test]
fn plan_states_assumptions_without_text() {
    let folder = folder();
    let args = ["plan", "small.toml", "--no-measure", "--set", "data.path=gone.txt"];
    let plan = json(&folder, &args);
    assert_eq!(plan["text"], Value::Null);
    assert_eq!(plan["run"]["epochs"], Value::Null);
    assert_eq!(plan["vocabulary"]["size"], 256);
    let said = plan["notes"].to_string();
    assert!(said.contains("`gone.txt` is not there"), "{said}");
    let said = folder.run(&[&args[..], &["--set", "tokenizer.kind=char"]].concat()).exits(0).stderr;
    assert!(said.contains("note: a vocabulary of 128 characters was assumed"), "{said}");
}

#[test]
fn plan_warns_with_keys_to_change() {
    let folder = folder();
    let plan = |settings: &[&str]| json(&folder, &[&["plan", "small.toml"], &*set(settings)].concat());
    let large = plan(&["train.batch_size=16384", "model.context_length=4096", "train.grad_accumulation_steps=1"]);
    let said = large["warnings"].to_string();
    assert!(said.contains("and this machine has"), "{said}");
    assert!(said.contains("train.grad_accumulation_steps = "), "{said}");
    assert_eq!(large["time"], Value::Null, "what does not fit is not tried");
    let short = plan(&["model.context_length=16777216", "model.d_model=4096", "train.batch_size=1"]);
    let said = short["warnings"].to_string();
    assert!(said.contains("too short"), "{said}");
    assert!(said.contains("even one row at a time is too much"), "{said}");
    let said = folder.fail(&["plan", "small.toml", "--set", "model.d_model=4194304", "--set", "model.n_layers=60000"]);
    assert!(said.contains("fits no machine\n  hint: lower model.d_model"), "{said}");
}

#[test]
fn ranks_share_rows_and_exchange_gradients() {
    let folder = folder();
    let plan = |more: &[&str]| json(&folder, &[&["plan", "small.toml", "--ranks", "4"], more].concat());
    let f32 = plan(&["--no-measure"]);
    let bytes = f32["parameters"]["total"].as_u64().expect("a number") * 4;
    let exchanges = |bytes: u64, steps| serde_json::json!({ "bytes": bytes, "steps": steps });
    let distributed = &f32["distributed"];
    assert_eq!(distributed["step"], exchanges(bytes * 3 / 2, 1), "2 (N - 1) / N");
    assert_eq!(distributed["local"], exchanges(bytes * 3 / 2, 50));
    assert_eq!((&distributed["rows"], &distributed["compute_ms"]), (&Value::from(1), &Value::Null));
    let half = plan(&["--no-measure", "--set", "distributed.gradient_dtype=bf16"]);
    assert_eq!(half["distributed"]["step"], exchanges(bytes * 3 / 4, 1));
    assert!(number(&plan(&[])["distributed"]["compute_ms"]) > 0.0);

    let words = folder.succeed(&["plan", "small.toml", "--no-measure", "--ranks", "4"]);
    let (_, words) = words.split_once("\ndistributed: ").expect("a part on machines");
    insta::assert_snapshot!(words, @r#"
    4 ranks
      sync = "step"                    0.2 MiB  each way and rank, every step
      sync = "local"                   0.2 MiB  each way and rank, every 50 steps
    "#);
    assert!(!folder.succeed(&["plan", "small.toml", "--no-measure"]).contains("distributed"));
    let found = folder.misuse(&["plan", "small.toml", "--ranks", "1"]);
    assert!(found.contains("it must be at least 2"), "{found}");
}

#[test]
fn plan_prints_tables() {
    let folder = folder();
    let text = folder.succeed(&["plan", "small.toml", "--no-measure"]);
    let (model, rest) = text.split_once("\n\nrun: ").expect("a part on the run");
    insta::assert_snapshot!(model, @r"
    model: 2 layers, 2 heads, 32 wide, context 32, 256 tokens (bytes)
      token embedding                    8,192  for the output layer too
      position embedding                 1,024
      blocks                            25,472  12,736 in each block:
        queries, keys, values                           3,168
        attention's output                              1,056
        MLP                                             8,352
        norms                                             160
      last norm                             64
      parameters                        34,752

    portable: no
      model.qk_norm = true: gpt2 has false

    FLOPs per token: matrix products only; a multiplication and an addition count as two
      queries, keys, values             12.3 k
      attention's output                4.10 k
      MLPs                              32.8 k
      output layer                      16.4 k
      attention                         4.22 k  over the positions it may see; over all 32 positions 8.19 k
      forward                           69.8 k
      forward and backward               211 k  the rule of thumb, 6 for each parameter, gives 209 k
        as MFU counts                    221 k  with attention over all 32 positions
    ");
    let qwen = ["--set", "model.position=rope", "--set", "model.norm=rms_norm", "--set", "model.mlp=swiglu"];
    let qwen = [&["plan", "small.toml", "--no-measure", "--set", "model.bias=false"], &qwen[..]].concat();
    assert!(folder.succeed(&qwen).contains("\n\nportable: yes (qwen3)\n\n"));
    let portable = folder.json(&[&qwen[..], &["--json"]].concat())["portable"].clone();
    assert_eq!(portable, serde_json::json!({ "family": "qwen3", "obstacles": [] }));
    let capped = folder.json(&[&qwen[..], &["--set", "model.logit_softcap=30", "--json"]].concat())["portable"].clone();
    let why = "model.logit_softcap = 30.0: qwen3 has none";
    assert_eq!(capped, serde_json::json!({ "family": null, "obstacles": [why] }));
    let odd = ["--set", "model.norm_weights=false", "--set", "model.value_residual=true", "--json"];
    let odd = folder.json(&[&qwen[..], &odd].concat())["portable"].clone();
    assert_eq!(odd["obstacles"][0], "model.norm_weights = false: qwen3 has true");
    assert_eq!(odd["obstacles"][1], "model.value_residual = true: qwen3 has false");
    assert!(rest.contains("in 3 checkpoints"), "{rest}");
    // Fused attention and the fused loss hold neither, so these rows would always be 0.
    for row in ["attention weights", "logits", "the square"] {
        assert!(!rest.contains(row), "{row} in {rest}");
    }
    assert!(!rest.contains("time: "), "{rest}");
}

/// Keys whose extreme values make tables, batches and counts long, with values to try.
const EXTREMES: [(&str, &[&str]); 24] = [
    ("model.context_length", &["1", "8", "4096", "1000000", "1000000000"]),
    ("model.d_model", &["2", "128", "65536", "1000000"]),
    ("model.n_layers", &["1", "2", "1000", "65536"]),
    ("model.n_heads", &["1", "2", "64"]),
    ("model.head_dim", &["1", "64"]),
    ("model.d_ff", &["1", "1000000"]),
    ("model.position", &["learned", "rope"]),
    ("model.mlp", &["gelu", "swiglu"]),
    ("model.tie_embeddings", &["true", "false"]),
    ("model.vocab_size", &["300", "10000000"]),
    ("train.max_steps", &["0", "1", "1000000", "1000000000", "1000000000000000"]),
    ("train.batch_size", &["1", "5", "1000", "720720", "16777216"]),
    ("train.grad_accumulation_steps", &["1", "8", "1000000000"]),
    ("train.eval_interval", &["0", "1", "7"]),
    ("train.eval_batches", &["1", "1000000000"]),
    ("train.checkpoint_interval", &["0", "1", "13"]),
    ("train.sample_tokens", &["0", "1000000000"]),
    ("train.keep_checkpoints", &["1", "1000000"]),
    ("train.head_metrics", &["true", "false"]),
    ("optimizer.kind", &["adamw", "muon"]),
    ("schedule.initial_batch_size", &["1", "100"]),
    ("schedule.initial_context_length", &["1", "8"]),
    ("schedule.ramp_fraction", &["0.01", "0.5", "1.0"]),
    ("tokenizer.kind", &["char", "byte", "bpe"]),
];

/// Plans `n` configs with such values, or refuses them with an error.
fn plan_extremes(n: usize) {
    let folder = Folder::new();
    let mut state = 1_u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % n
    };
    let (mut n_planned, mut n_refused) = (0, 0);
    for _ in 0..n {
        let settings: Vec<String> = (0..=below(10))
            .map(|_| {
                let (key, values) = EXTREMES[below(EXTREMES.len())];
                format!("{key}={}", values[below(values.len())])
            })
            .collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let mut args = vec!["plan", "tiny.toml", "--no-measure"];
        if below(4) == 0 {
            args.extend(["--ranks", "1000000"]);
        }
        args.extend(set(&settings));
        let ran = folder.run(&args);
        match ran.code {
            Some(0) => n_planned += 1,
            Some(1) if ran.stderr.contains("error: ") => n_refused += 1,
            code => panic!("{code:?} {args:?}: {}", ran.stderr),
        }
    }
    println!("{n_planned} planned, {n_refused} refused");
    assert!(n_planned > n / 4 && n_refused > 0, "{n_planned} planned, {n_refused} refused");
}

#[test]
fn extreme_configs_are_planned() {
    plan_extremes(40);
}

#[test]
#[ignore = "takes minutes"]
fn two_thousand_random_configs_are_planned() {
    plan_extremes(2000);
}

/// Equal layers are planned once, and not every divisor of a batch is tried.
#[test]
fn extreme_sizes_do_not_multiply_work() {
    let place = Place::new();
    let device = device::open(&"flex".parse().expect("a device")).expect("it opens");
    let allocations_of = |settings: &[&str]| {
        let config = place.config(settings);
        let before = allocations();
        plan::plan(&config, None, &device, false).expect("the config can be planned");
        allocations() - before
    };
    let thousand_layers = allocations_of(&["model.n_layers=1024"]);
    for settings in [
        &["model.n_layers=65536", "train.batch_size=720720"][..],
        &["train.batch_size=16777216", "train.max_steps=1000000000", "schedule.initial_batch_size=1"],
    ] {
        let found = allocations_of(settings);
        assert!(found < 8 * thousand_layers, "{settings:?}: {found}, and {thousand_layers} for 1024 layers");
    }
}
