//! Fine-tuning: adapters and all weights, exact resuming, what a checkpoint holds, and the commands.

use std::path::Path;
use std::sync::{Arc, Mutex};
#[cfg(unix)]
use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Value, json};
use tinderbox::config::{Config, MatmulPrecision, PreferenceLoss};
use tinderbox::data::{BatchSource, Corpus, OpenOptions};
use tinderbox::distributed::DistributedError;
use tinderbox::finetune::ChatFormat;
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::model::{Dtype, Gpt, LazyTensor, Lora, Target, tensor_file};
use tinderbox::optimizer::Gradients;
use tinderbox::run::{RunDir, Trained, locate};
use tinderbox::train::{Event, Interrupter, Start, Summary, TrainError, evaluate, train_on};
use tinderbox_kernels::Targets;

use crate::devices::{ndarray, wgpu};
#[cfg(unix)]
use crate::fixtures::signal;
use crate::fixtures::{Folder, Place, fs, largest_difference, losses_of, number, observed, silent};

/// A model of bytes that ends an answer with its end-of-text token.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\
    {% if m.role == 'assistant' %}<|endoftext|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

fn records() -> String {
    let record = |i: usize| {
        let (question, answer) = (i * 7 % 10, "yes ".repeat(i % 4 + 1));
        let messages = serde_json::json!({"messages": [
            {"role": "user", "content": format!("is it {question}?")},
            {"role": "assistant", "content": answer.trim_end()},
        ]});
        format!("{messages}\n")
    };
    (0..24).map(record).collect()
}

/// The settings of the run `base`.
const BASE: [&str; 7] = [
    "model.position=\"rope\"",
    "model.norm=\"rms_norm\"",
    "model.mlp=\"swiglu\"",
    "model.bias=false",
    "tokenizer.kind=\"byte\"",
    "tokenizer.end_of_text=true",
    "model.context_length=64",
];

/// A place with the run `base`, of ten steps, and records.
fn place() -> Place {
    let place = Place::new();
    place.trained("base", &BASE);
    let companion = serde_json::json!({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"});
    fs::write(place.path("base/tokenizer_config.json"), companion.to_string());
    fs::write(place.path("records.jsonl"), records());
    place
}

/// A fine-tuning of `base` in ten steps.
fn config(place: &Place, overrides: &[&str]) -> Config {
    let base = place.run("base").config().expect("it can be read");
    let mut all = vec![
        format!("data.path={:?}", place.path("records.jsonl")),
        format!("finetune.base={:?}", place.path("base")),
        "train.batch_size=4".to_owned(),
        "train.sample_tokens=0".to_owned(),
        "train.head_metrics=false".to_owned(),
        "model.dropout=0.0".to_owned(),
        "optimizer.learning_rate=0.01".to_owned(),
    ];
    all.extend(overrides.iter().map(ToString::to_string));
    let mut toml: toml::Table = toml::from_str(&place.config(&[]).to_toml()).expect("TOML");
    for section in ["model", "tokenizer"] {
        toml.remove(section);
    }
    let base = Some(tinderbox::config::Base::Weights(&base));
    Config::from_toml_inheriting(&toml.to_string(), "test.toml".as_ref(), &all, base).expect("a valid config")
}

#[test]
fn adapters_learn_records_and_keep_base() {
    let place = place();
    let before = place.read("base/checkpoints/step-000010/model.safetensors");
    let (summary, losses) = place
        .train("tuned", config(&place, &["optimizer.learning_rate=0.1"]), Start::New, None)
        .expect("the run trains");
    assert!(losses[losses.len() - 1] < 0.95 * losses[0], "{losses:?}");
    assert!(summary.val_loss.expect("the run was evaluated") < f64::from(losses[0]));
    assert!(before == place.read("base/checkpoints/step-000010/model.safetensors"));
    // Only the adapters are in the file, and whoever opens the run sees the weights that they make.
    let checkpoint = place.path("tuned/checkpoints/step-000010");
    let saved = tinderbox::model::tensor_file::open(&checkpoint.join("model.safetensors")).expect("it opens");
    assert!(saved.keys().all(|name| name.contains(".adapters.")), "{:?}", saved.keys());
    let tensor = |name: &str| saved[name].read().expect("it can be read");
    let [a, b] = ["a", "b"].map(|it| tensor(&format!("blocks.1.attention.qkv.adapters.2.{it}")));
    let weights = |run: &str| parameters::read(&Trained::open(&place.path(run), None).expect("it opens").model);
    let (old, new) = (weights("base"), weights("tuned"));
    let [old, new] = [&old, &new].map(|weights| &weights["blocks.1.attention.qkv.weight"]);
    let (HostTensor { shape, values }, rank) = (new, b.shape[0]);
    let width = b.shape[1]; // values are the last columns
    for row in 0..shape[0] {
        for column in 0..width {
            let sum: f32 = (0..rank).map(|i| a.values[row * rank + i] * b.values[i * width + column]).sum();
            let at = row * shape[1] + shape[1] - width + column;
            let expected = old.values[at] + 2.0 * sum; // alpha / rank
            assert!((values[at] - expected).abs() < 1e-6, "{} is not {expected}", values[at]);
        }
    }
    // A tuned run is tuned again.
    let again = format!("finetune.base={:?}", place.path("tuned"));
    let (_, more) = place.train("twice", config(&place, &[&again]), Start::New, None).expect("the run trains");
    assert!(more[0] < 1.5 * losses[losses.len() - 1], "{more:?} after {losses:?}");
    Trained::open(&place.path("twice"), None).expect("it opens");
}

/// Trains the run `parts`, stopped after 5 of 10 steps and resumed: all its files are those of the run `whole`.
fn assert_resumed(place: &Place, parts: &str, config: impl Fn() -> Config, whole: &str) {
    place.train(parts, config(), Start::New, Some(5)).expect("the run stops as asked");
    place.train(parts, config(), Start::Resume, None).expect("the run resumes");
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
    let files = files.map(|file| format!("checkpoints/step-000010/{file}"));
    place.assert_same(whole, parts, &files.each_ref().map(String::as_str));
    place.assert_same(whole, parts, &["metrics.jsonl", "best", "last"]);
}

#[test]
fn stopped_finetuning_resumes_exactly() {
    let place = place();
    for (name, overrides) in [
        ("lora", &["finetune.dropout=0.2", "finetune.targets=[\"q\", \"v\", \"down\"]"][..]),
        ("dora", &["finetune.method=\"dora\"", "finetune.trained_tokens=[65, 256]"][..]),
        ("full", &["finetune.method=\"full\"", "train.grad_accumulation_steps=2"][..]),
        ("packed", &["finetune.packing=true", "finetune.base_weights=\"int8\"", "train.batch_size=2"][..]),
        ("averaged", &["optimizer.ema_decay=0.7", "optimizer.weight_decay=0.1"][..]),
    ] {
        let [whole, parts] = ["whole", "parts"].map(|it| format!("{name}-{it}"));
        let config = || config(&place, overrides);
        place.train(&whole, config(), Start::New, None).expect("the run trains");
        assert_resumed(&place, &parts, config, &whole);
    }
}

#[test]
fn several_devices_train_adapters_alone() {
    let place = place();
    let settings = ["train.log_interval=1", "optimizer.weight_decay=0.5"];
    let trained = |run: &str, more: &[&str]| {
        let job = place.job(run, config(&place, &[&settings[..], more].concat()), Start::New);
        let others = vec![job.device.clone(); usize::from(run != "one")];
        train_on(job, &others, silent(), &Interrupter::new(), |_, _, _| panic!("no step is skipped"))
    };
    trained("one", &[]).expect("the run trains");
    trained("both", &[]).expect("the run trains");
    let [one, both] = ["one", "both"].map(|run| losses_of(&place.read(&format!("{run}/metrics.jsonl"))));
    assert!(largest_difference(&one, &both) < 1e-5, "{one:?} {both:?}");
    trained("local", &["distributed.sync=\"local\"", "distributed.local_steps=2"]).expect("the run trains");
    for run in ["both", "local"] {
        let state = place.path(run).join("checkpoints/step-000010/optimizer.safetensors");
        let state = tinderbox::model::tensor_file::open(&state).expect("it opens");
        assert!(state.keys().all(|name| name.contains(".adapters.")), "{run}: {:?}", state.keys());
    }
    let refused = trained("rounded", &["finetune.base_weights=\"int8\""]).expect_err("rank 0 sends exact weights");
    assert!(matches!(refused, TrainError::Distributed(DistributedError::RoundedBase)), "{refused}");
}

#[test]
fn unequal_micro_batches_equal_one_batch() {
    let place = place();
    let at_once = config(&place, &["train.max_steps=1", "optimizer.kind=\"adamw\""]);
    let one_by_one = config(&place, &["train.max_steps=1", "train.batch_size=1", "train.grad_accumulation_steps=4"]);
    // The order of a pass follows the batch size, so the records of the first step are named here.
    let records: String = records().split_inclusive('\n').take(5).collect();
    fs::write(place.path("records.jsonl"), records);
    // Four rows hold all of them, with several in one of them.
    let packed = config(&place, &["train.max_steps=1", "optimizer.kind=\"adamw\"", "finetune.packing=true"]);
    let losses = [("all", at_once), ("each", one_by_one), ("packed", packed)].map(|(name, config)| {
        let (summary, losses) = place.train(name, config, Start::New, None).expect("the run trains");
        (losses[0], summary.val_loss.expect("the run was evaluated"))
    });
    for other in &losses[1..] {
        assert!((losses[0].0 - other.0).abs() < 1e-6, "{losses:?}");
        assert!((losses[0].1 - other.1).abs() < 1e-5, "{losses:?}");
    }
}

#[test]
fn packed_records_restart_learned_positions() {
    let place = Place::new();
    let settings =
        ["tokenizer.kind=\"byte\"", "model.context_length=64", "model.position=\"learned\"", "model.dropout=0.0"];
    let config = place.config(&settings);
    let model = Gpt::new(&config.model, 256, 3, &Device::flex());
    let lengths = [20, 1, 64, 7];
    let ids: Vec<i32> = (0..92).map(|i| i * 7 % 256).collect();
    let loss = |ids: &[i32], lengths: Option<&[usize]>| {
        let tokens = Tensor::from_data(TensorData::new(ids.to_vec(), [1, ids.len()]), &Device::flex());
        let targets = Targets::new(ids.to_vec(), &Device::flex());
        let loss = model.loss(tokens, lengths.map(Into::into), targets, MatmulPrecision::F32, None);
        loss.try_into_vec_as::<f32>().expect("a CPU")[0]
    };
    let mut rest = &ids[..];
    let mut sum = 0.0;
    for length in lengths {
        let alone = rest.split_off(..length).expect("as many");
        sum += loss(alone, None) * length as f32;
    }
    let packed = loss(&ids, Some(&lengths));
    assert!((packed - sum / 92.0).abs() < 1e-5, "{packed} is not {}", sum / 92.0);
}

#[test]
fn rounded_base_trains_alike_and_merges_exactly() {
    let place = place();
    let losses = ["f32", "bf16", "int8"].map(|precision| {
        let set = format!("finetune.base_weights=\"{precision}\"");
        let config = config(&place, &[&set, "finetune.targets=[\"q\", \"v\"]", "train.log_interval=1"]);
        let (summary, losses) = place.train(precision, config, Start::New, None).expect("the run trains");
        let saved = Trained::open(&place.path(precision).join("last"), None).expect("it opens");
        let records = saved.corpus().expect("the records are there").records.expect("a fine-tuning has records");
        let exact = evaluate::full(&saved.model, &records.val, 4).expect("a CPU").nats_per_token;
        assert!((summary.val_loss.expect("the run was evaluated") - exact).abs() < 1e-6, "{precision}");
        losses
    });
    for other in &losses[1..] {
        let away: Vec<f32> = losses[0].iter().zip(other).map(|(a, b)| (a - b).abs()).collect();
        assert!(away[0] > 0.0 && away.iter().all(|away| *away < 0.02), "{losses:?}");
    }
    // Only the adapters are saved, and they are merged with the exact weights.
    let weights = |run: &str| parameters::read(&Trained::open(&place.path(run), None).expect("it opens").model);
    let (base, tuned) = (weights("base"), weights("int8"));
    assert_eq!(base["blocks.0.mlp.expand.weight"], tuned["blocks.0.mlp.expand.weight"]);
    assert_ne!(base["blocks.0.attention.qkv.weight"], tuned["blocks.0.attention.qkv.weight"]);
}

fn lora() -> Lora {
    let targets = Target::ALL.to_vec();
    Lora {
        rank: 3,
        alpha: 6.0,
        use_rslora: true,
        use_dora: false,
        dropout: 0.0,
        targets,
        last_blocks: None,
        tokens: vec![],
    }
}

/// The gradients of all adapters of a model for one batch.
fn gradients(place: &Place, mlp: &str, device: &Device) -> Vec<(String, Vec<f32>)> {
    let mlp = format!("model.mlp=\"{mlp}\"");
    let config = place.config(&["tokenizer.kind=\"byte\"", "model.dropout=0.0", &mlp]);
    let corpus = Corpus::open(&config, OpenOptions::default()).expect("a corpus");
    let model = Gpt::new(&config.model, corpus.tokenizer.vocab_size(), 3, &device.clone().autodiff());
    let model = model.adapted(&lora(), 5);
    // Adapters whose second matrix is zero have no gradient for the first.
    let model = parameters::assign(model, |name, shape| {
        let n: usize = shape.iter().product();
        let value = |i: usize| ((i * 7 + name.len() * 5) % 11) as f32 * 0.02 - 0.1;
        Some(HostTensor { shape: shape.to_vec(), values: (0..n).map(value).collect() })
    });
    let model = model.expect("every parameter has a value");
    let batch = corpus.train.spread(16, 2, 1).next().expect("a batch");
    let (tokens, targets) = batch.to_device(&model.device());
    let loss = model.loss(tokens, None, targets, MatmulPrecision::F32, None);
    let gradients = Gradients::take(&model, loss.backward());
    let numbers = |x: &Tensor<1>| x.clone().try_into_vec_as::<f32>().expect("the device works");
    gradients.iter().map(|(name, gradient)| (name.to_owned(), numbers(gradient))).collect()
}

#[test]
fn only_adapters_have_gradients_equal_on_all_devices() {
    let place = Place::new();
    let devices = [Some(("ndarray", ndarray())), wgpu().map(|device| ("wgpu", device))];
    for mlp in ["gelu", "swiglu"] {
        let fused = gradients(&place, mlp, &Device::flex());
        let n_layers = if mlp == "swiglu" { 7 } else { 6 };
        assert_eq!(fused.len(), 2 * 2 * n_layers, "two matrices in each layer of two blocks");
        for (device_name, device) in devices.iter().flatten() {
            let composed = gradients(&place, mlp, device);
            for ((name, fused), (other, composed)) in fused.iter().zip(&composed) {
                assert!(name == other && name.contains(".adapters."));
                let largest = composed.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                assert!(largest > 0.0, "{name}");
                assert!(largest_difference(fused, composed) < 1e-4 * f64::from(largest), "{name} on {device_name}");
            }
        }
    }
}

#[test]
fn merged_weights_repeat_logits_of_adapters() {
    let place = place();
    for (name, overrides) in [
        ("lora", &["finetune.use_rslora=true", "finetune.last_blocks=1"][..]),
        ("dora", &["finetune.method=\"dora\"", "finetune.targets=[\"q\", \"v\", \"up\", \"down\"]"]),
        ("tokens", &["finetune.trained_tokens=[58, 256]"]),
    ] {
        let config = config(&place, overrides);
        place.train(name, config.clone(), Start::New, None).expect("the run trains");
        let merged = Trained::open(&place.path(name).join("last"), None).expect("it opens");
        let device = Device::flex();
        let zeros = Gpt::zeros(&config.model, merged.tokenizer.vocab_size(), &device);
        let lora = config.finetune.lora().expect("the config asks for adapters");
        let base = Trained::open(&place.path("base"), None).expect("it opens").model;
        let mut weights = parameters::read(&base);
        let saved = place.path(name).join("checkpoints/step-000010/model.safetensors");
        for (name, tensor) in tinderbox::model::tensor_file::open(&saved).expect("it opens") {
            weights.insert(name, tensor.read().expect("it can be read"));
        }
        let beside = parameters::assign(zeros.adapted(&lora, 1), |name, _| weights.remove(name))
            .expect("every parameter has a value");
        assert_eq!(weights.len(), 0, "{name}");
        let options = OpenOptions { tokenizer: Some(merged.tokenizer.clone()), ..Default::default() };
        let batch = Corpus::open(&config, options).expect("records").val_batches().windows(64, 2).next();
        let (tokens, targets) = batch.expect("a batch").to_device(&device);
        let losses = [&base, &merged.model, &beside].map(|model| {
            let loss = model.loss(tokens.clone(), None, targets.clone(), MatmulPrecision::F32, None);
            loss.try_into_vec_as::<f32>().expect("a CPU")[0]
        });
        assert!((losses[1] - losses[2]).abs() < 1e-5 && losses[0] - losses[1] > 1e-3, "{name}: {losses:?}");
        let logits = [&merged.model, &beside]
            .map(|model| model.forward(tokens.clone()).into_data().try_to_vec::<f32>().expect("f32"));
        assert!(largest_difference(&logits[0], &logits[1]) < 1e-5, "{name}");
    }
}

#[test]
fn adapters_survive_export_import_and_merge() {
    let folder = folder();
    let arguments = [&["finetune", "runs/base", "--data", "my.jsonl"][..], &SETTINGS].concat();
    folder.succeed(&arguments);
    let loss = |arguments: &[&str]| {
        number(&folder.json(&[&["eval"][..], arguments, &["--data", "my.jsonl", "--json"]].concat())["loss"])
    };
    let (base, tuned) = (loss(&["runs/base"]), loss(&["runs/base-my"]));
    assert!(tuned < base - 0.01, "{tuned} after {base}");
    folder.succeed(&["export", "runs/base-my", "--adapter", "--to", "hf", "--output", "adapter"]);
    folder.succeed(&["import", "adapter", "--base", "runs/base", "--run-dir", "runs/again"]);
    folder.succeed(&["merge", "runs/base-my", "--run-dir", "runs/merged"]);
    folder.succeed(&["merge", "runs/base", "--adapter", "adapter", "--run-dir", "runs/merged-too"]);
    for arguments in [
        &["runs/base", "--adapter", "runs/base-my"][..],
        &["runs/base", "--adapter", "adapter"],
        &["runs/again"],
        &["runs/merged"],
        &["runs/merged-too"],
    ] {
        assert!((loss(arguments) - tuned).abs() < 1e-6, "{arguments:?}");
    }
    // Without their base, adapters say what is missing.
    let alone = folder.fail(&["import", "adapter", "--run-dir", "runs/none"]);
    assert!(alone.contains("it holds adapters of the model `") && alone.contains("--base RUN"), "{alone}");
    // A merged run needs its base no more, and is tuned like any other.
    fs::rename(folder.path("runs/base"), folder.path("runs/gone"));
    assert!((loss(&["runs/merged"]) - tuned).abs() < 1e-6);
    let refused = folder.fail(&["merge", "runs/merged", "--run-dir", "runs/none"]);
    assert!(refused.contains("has no adapter"), "{refused}");
    fs::rename(folder.path("runs/gone"), folder.path("runs/base"));
    let other = folder.fail(&["eval", "runs/merged", "--adapter", "runs/base-my", "--data", "my.jsonl"]);
    assert!(other.contains("has an adapter for other weights") && other.matches("SHA-256").count() == 1, "{other}");
    // The names and shapes of llama.cpp.
    folder.succeed(&["export", "runs/base-my", "--adapter", "--to", "gguf", "--output", "adapter.gguf"]);
    let file = fs::read(folder.path("adapter.gguf"));
    let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
    for text in ["general.type", "adapter.lora.alpha", "blk.1.attn_q.weight.lora_a", "blk.0.ffn_down.weight.lora_b"] {
        assert!(has(text), "{text}");
    }
    assert!(!has("token_embd"), "nothing of the base is in it");
    folder.succeed(&["import", "adapter.gguf", "--base", "runs/base", "--run-dir", "runs/from-gguf"]);
    for arguments in [&["runs/base", "--adapter", "adapter.gguf"][..], &["runs/from-gguf"]] {
        assert!((loss(arguments) - tuned).abs() < 1e-6, "{arguments:?}");
    }
    let alone = folder.fail(&["import", "adapter.gguf", "--run-dir", "runs/none"]);
    assert!(alone.contains("it holds adapters, without the model") && alone.contains("--base RUN"), "{alone}");
    for (from, to, said) in [
        ("adapter", "adaptor", "general.type = \"adaptor\": supported are \"adapter\""),
        ("llama", "llamb", "general.architecture = \"llamb\": supported are adapters of the base's family, llama"),
        ("adapter.lora.alpha", "adapter.lora.gamma", "adapter.lora.gamma = ...: supported are adapters without it"),
        ("ffn_down.weight.lora_b", "ffn_down.weight.lora_c", "`blk.0.ffn_down.weight.lora_c` is no part of an adapter"),
    ] {
        let at = file.windows(from.len()).position(|part| part == from.as_bytes()).expect("it is there");
        let changed = [&file[..at], to.as_bytes(), &file[at + from.len()..]].concat();
        folder.write("changed.gguf", changed);
        let refused = folder.fail(&["generate", "runs/base", "--adapter", "changed.gguf"]);
        assert!(refused.contains(said), "{refused}");
    }
    // No key is ignored: each is at a value that changes nothing, or is named.
    let mut keys = folder.read_json("adapter/adapter_config.json");
    let refused = |keys: &Value| {
        let before = folder.read("adapter/adapter_config.json");
        folder.write("adapter/adapter_config.json", keys.to_string());
        let refused = folder.fail(&["generate", "runs/base", "--adapter", "adapter"]);
        folder.write("adapter/adapter_config.json", before);
        refused
    };
    let changes = json!({
        "init_lora_weights": "pissa_niter_4", "alora_invocation_tokens": [1], "bias": "all", "task_type": "SEQ_CLS",
        "modules_to_save": ["lm_head"], "use_dora": true, "r": 3, "key_of_tomorrow": 1, "another": {}, "eva_config": {"rho": 2},
    });
    keys.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
    let said = refused(&keys);
    for reason in [
        "has bias = \"all\": \"none\" is supported",
        "has task_type = \"SEQ_CLS\": \"CAUSAL_LM\" is supported",
        "has init_lora_weights = \"pissa_niter_4\": it changes the base by more than is saved; PEFT converts",
        "has modules_to_save = [\"lm_head\"]: it is not supported",
        "has alora_invocation_tokens = [1]: it is not supported",
        "has key_of_tomorrow = 1: it is not supported",
        "has a rank that neither r nor rank_pattern in adapter_config.json has",
        "has no lengths, and adapter_config.json has use_dora = true",
    ] {
        assert!(said.contains(reason), "{reason}: {said}");
    }
    assert_eq!(said.matches("\n  - ").count(), 8, "{said}");
    // PiSSA and OLoRA of full rank leave nothing of a weight, which adapters of zeros do not bring back.
    let name = "base_model.model.model.layers.1.self_attn.o_proj";
    let shape = [16, 16];
    let zeros = |name: String| (name, LazyTensor::computed(shape.to_vec(), |sink| sink(&[0.0; 256])));
    let tensors = ["A", "B"].map(|matrix| zeros(format!("{name}.lora_{matrix}.weight")));
    let of_zeros = |init: &str| {
        let path = folder.path(format!("{init}/adapter_model.safetensors"));
        let config = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 16, "init_lora_weights": init});
        folder.write(format!("{init}/adapter_config.json"), config.to_string());
        tensor_file::write_as(&path, &tensors.clone().into(), Dtype::F32).expect("it can be written");
        loss(&["runs/base", "--adapter", init])
    };
    let [plain, pissa, olora] = ["gaussian", "pissa", "olora"].map(of_zeros);
    assert!((plain - base).abs() < 1e-6 && (pissa - base).abs() > 1e-4, "{base} {plain} {pissa}");
    assert!((pissa - olora).abs() < 1e-5, "{pissa} {olora}");
    // Adapters of other methods are named.
    let config = folder.read("adapter/adapter_config.json").replace("LORA", "IA3");
    folder.write("adapter/adapter_config.json", config);
    let refused = folder.fail(&["generate", "runs/base", "--adapter", "adapter"]);
    assert!(refused.contains("peft_type = IA3"), "{refused}");
}

#[test]
fn preview_marks_counted_and_truncated_tokens() {
    let folder = folder();
    let shown = folder.succeed(&["data", "preview", "runs/base", "--data", "my.jsonl", "--n-shown", "1"]);
    assert!(shown.contains("records   24: 22 for training, 2 for validation"), "{shown}");
    assert!(shown.contains("u:is it ") && shown.contains("a:⟦yes") && shown.contains("<|endoftext|>⟧"), "{shown}");
    let arguments = ["data", "preview", "runs/base", "--data", "my.jsonl", "--json", "--n-shown", "2"];
    let cut = folder.json(&[&arguments[..], &["--set", "finetune.max_tokens=20"]].concat());
    assert_eq!(cut["shown"].as_array().expect("records").len(), 2);
    assert!(number(&cut["cut"]) > 0.0 && number(&cut["longest"]) > 20.0, "{cut}");
    assert_eq!(cut["lengths"]["longest"], 20);
    let counts = cut["shown"][0]["counts"].as_array().expect("a list");
    assert_eq!(counts.len(), cut["shown"][0]["pieces"].as_array().expect("a list").len());
    // The page colours the tokens that count.
    let page = [&arguments[..5], &["--n-shown", "1", "--format", "html"]].concat();
    let page = folder.succeed(&page);
    let (first, _) = page.split_once("</figure>").expect("a record is a figure");
    let coloured = first.split("<svg class=\"pieces wide").nth(1).and_then(|it| it.split("</svg>").next());
    let n_coloured = coloured.expect("the tokens").matches("class=\"p16 piece\"").count();
    let whole = folder.json(&arguments);
    let counts = whole["shown"][0]["counts"].as_array().expect("a list").iter().skip(1);
    assert_eq!(n_coloured, counts.filter(|counts| counts.as_bool() == Some(true)).count());
    folder.write("c.toml", "data = { path = \"text.txt\" }");
    let refused = folder.fail(&["data", "preview", "c.toml"]);
    assert!(refused.contains("`c.toml` has a text, not records\n  hint: name records with --data"), "{refused}");
}

/// Questions whose better answer is "yes".
fn preferences(n: usize) -> String {
    let pair = |i: usize| {
        let (prompt, rejected) = (format!("is it {}?", i * 7 % 10), "no ".repeat(i % 3 + 1));
        format!("{}\n", serde_json::json!({"prompt": prompt, "chosen": "yes", "rejected": rejected.trim_end()}))
    };
    (0..n).map(pair).collect()
}

/// Checks the last loss, accuracy and margin of a run by the saved models, as TRL defines them.
fn assert_preferred(place: &Place, run: &str, config: Config, summary: &Summary) {
    let tuned = Trained::open(&place.path(run).join("last"), None).expect("it opens");
    let base = Trained::open(&place.path("base"), None).expect("it opens");
    let pairs: Vec<_> = tuned.corpus().expect("a corpus").val_batches().spread_pairs(64, 1, 100).collect();
    let beta = config.finetune.beta;
    let rewards = |model: &Gpt, batch: &tinderbox::data::Batch| -> [f64; 2] {
        let (tokens, _) = batch.clone().to_device(&model.device());
        let means = model.row_losses(tokens, &batch.targets, MatmulPrecision::F32, None, &mut || true);
        let means = means.expect("nothing stops it").try_into_vec_as::<f32>().expect("two numbers");
        [0, 1].map(|row| {
            let n = batch.targets[row * batch.seq_len..][..batch.seq_len].iter().filter(|it| **it >= 0).count();
            -f64::from(means[row]) * if config.finetune.preference == PreferenceLoss::Dpo { n as f64 } else { 1.0 }
        })
    };
    let mut means = [0.0; 3];
    for batch in &pairs {
        let ([chosen, rejected], base) = (rewards(&tuned.model, batch), rewards(&base.model, batch));
        let (loss, margin) = match config.finetune.preference {
            PreferenceLoss::Dpo => {
                let margin = beta * (chosen - rejected - (base[0] - base[1]));
                ((-margin).exp().ln_1p(), margin)
            }
            PreferenceLoss::Orpo => {
                let log_odds = |log_p: f64| log_p - (-log_p.exp()).ln_1p();
                let likelier = log_odds(chosen) - log_odds(rejected);
                (-chosen + beta * (-likelier).exp().ln_1p(), beta * (chosen - rejected))
            }
        };
        for (mean, of_pair) in means.iter_mut().zip([loss, f64::from(u8::from(margin > 0.0)), margin]) {
            *mean += of_pair / pairs.len() as f64;
        }
    }
    let preferred = summary.preferred.expect("they are measured");
    let found = [summary.val_loss.expect("it was evaluated"), preferred.accuracy, preferred.margin];
    assert!(largest_difference(&found, &means) < 1e-5, "{run}: {found:?} are {means:?}");
}

#[test]
fn rising_losses_end_finetuning_and_resume_exactly() {
    let place = place();
    let stopping = ["train.max_steps=300", "train.early_stopping_patience=2", "train.eval_interval=1"];
    for (name, records, more) in [
        ("rows", records(), &["optimizer.learning_rate=0.3"][..]),
        ("packed", records(), &["optimizer.learning_rate=0.3", "finetune.packing=true", "train.batch_size=1"]),
        ("dpo", preferences(14), &["optimizer.learning_rate=1.0"]),
    ] {
        fs::write(place.path("records.jsonl"), records);
        let config = || config(&place, &[&stopping[..], more].concat());
        let [whole, parts] = ["whole", "parts"].map(|it| format!("{name}-{it}"));
        let (summary, _) = place.train(&whole, config(), Start::New, None).expect("the run trains");
        let (steps, best) = (summary.steps, summary.best_step.expect("it was evaluated"));
        assert!(steps < 300 && best < steps, "{name}: {summary:?}");
        // Stopped between the best step and the end.
        place.train(&parts, config(), Start::New, Some(steps - 1)).expect("the run stops as asked");
        place.train(&parts, config(), Start::Resume, None).expect("the run resumes");
        place.assert_same(&whole, &parts, &["metrics.jsonl", "best", "last"]);
        place.assert_same(&whole, &parts, &[&format!("checkpoints/step-{steps:06}/state.json")]);
    }
}

#[test]
fn preferences_favor_chosen_answers_and_resume_exactly() {
    let place = place();
    fs::write(place.path("records.jsonl"), preferences(14));
    for (name, overrides) in [
        ("dpo", &["finetune.dropout=0.1"][..]),
        ("orpo", &["finetune.preference=\"orpo\"", "train.grad_accumulation_steps=2"]),
        ("rounded", &["finetune.base_weights=\"int8\""]),
    ] {
        let [whole, parts] = ["whole", "parts"].map(|it| format!("{name}-{it}"));
        let config = || config(&place, overrides);
        let (summary, losses) = place.train(&whole, config(), Start::New, None).expect("the run trains");
        if name != "orpo" {
            // The mean of the first steps; at the first one the model is the base.
            assert!((f64::from(losses[0]) - std::f64::consts::LN_2).abs() < 0.05, "{losses:?}");
        }
        assert!(losses[losses.len() - 1] < losses[0], "{losses:?}");
        let preferred = summary.preferred.expect("they are measured");
        assert!(summary.val_bits_per_byte.is_none(), "{summary:?}");
        let log = String::from_utf8(place.read(&format!("{whole}/metrics.jsonl"))).expect("text");
        let line = |key: &str| log.lines().rfind(|line| line.contains(key)).expect("a line").to_owned();
        let line = |key: &str| serde_json::from_str::<Value>(&line(key)).expect("JSON");
        let (estimate, end) = (line("val_loss_estimate"), line("\"val_loss\""));
        for key in ["val_loss", "val_margin"] {
            // Adapters beside the base, rounded or not, and merged with it.
            let most = if name == "rounded" { 0.02 } else { 1e-5 };
            assert!((number(&estimate[&format!("{key}_estimate")]) - number(&end[key])).abs() < most, "{key}: {end}");
        }
        assert_eq!(end["val_margin"], preferred.margin);
        assert_preferred(&place, &whole, config(), &summary);
        assert_resumed(&place, &parts, config, &whole);
    }
    let full = place.train("full", config(&place, &["finetune.method=\"full\""]), Start::New, None);
    let error = full.expect_err("there is no base beside it").to_string();
    assert!(error.contains("compares with the model without its adapters"), "{error}");
    fs::write(place.path("records.jsonl"), preferences(3) + &records());
    let error = place.train("mixed", config(&place, &[]), Start::New, None).expect_err("mixed").to_string();
    assert!(error.contains("line 4 of ") && error.contains("is a preference and others are not"), "{error}");
}

#[test]
fn finetune_adds_chat_template_and_tokens() {
    let folder = folder();
    fs::remove_file(folder.path("runs/base/tokenizer_config.json"));
    let arguments = ["finetune", "runs/base", "--data", "my.jsonl", "--template", "chatml", "--json"];
    let done = folder.json(&[&arguments[..], &SETTINGS].concat());
    assert_eq!((&done["run_dir"], &done["base"]), (&"runs/base-my".into(), &"runs/base-chatml".into()));
    let saved = folder.path("runs/base-my/checkpoints/step-000004/model.safetensors");
    let saved = tinderbox::model::tensor_file::open(&saved).expect("it opens");
    let rows = saved["token_embedding.token_rows"].read().expect("it can be read");
    assert_eq!(rows.shape[0], 2);
    assert!(rows.values.iter().any(|change| change.abs() > 1e-4), "the vectors of the roles are trained");
    let [before, after] = ["runs/base", "runs/base-my"].map(|run| {
        let run = Trained::open(&folder.path(run), None).expect("it opens");
        (run.tokenizer.n_ids(), run.tokenizer.end_of_text().map(|id| run.tokenizer.piece(id)), run.model)
    });
    assert_eq!((after.0, after.1.as_deref()), (before.0 + 2, Some("<|im_end|>")));
    assert_eq!(after.2.output.is_some(), before.2.output.is_some(), "it stays tied");
    let talk = folder.pipe(&["chat", "runs/base-my", "--max-new-tokens", "3"], "is it 3?\n").exits(0);
    assert_eq!(talk.stdout.lines().count(), 1);
    // The exports end a text with the new token, too.
    folder.succeed(&["export", "runs/base-my", "--to", "hf", "--output", "out"]);
    let config = folder.read_json("out/config.json");
    let generation = folder.read_json("out/generation_config.json");
    let tokenizer = folder.read_json("out/tokenizer_config.json");
    assert_eq!(config["eos_token_id"], after.0 - 1, "{config}");
    assert!(generation["eos_token_id"].to_string().contains(&(after.0 - 1).to_string()), "{generation}");
    assert_eq!(tokenizer["eos_token"], "<|im_end|>");
    let refused = folder.fail(&["export", "runs/base-my", "--adapter", "--to", "hf", "--output", "adapter"]);
    assert!(refused.contains("vectors of some tokens"), "{refused}");
}

/// A folder in which the commands run, with the base and the records of [`place`].
pub fn folder() -> Folder {
    let folder = Folder::new();
    crate::fixtures::copy(&place().path("base"), &folder.path("runs/base"));
    folder.write("my.jsonl", records());
    folder
}

pub const SETTINGS: [&str; 6] =
    ["--set", "train.max_steps=4", "--set", "train.device=\"flex\"", "--set", "optimizer.learning_rate=0.01"];

/// A folder with the imported run `runs/talker`, whose end of turn is not its end of text, and the ids of both.
pub fn talker() -> (Folder, [u32; 2]) {
    let folder = folder();
    fs::remove_file(folder.path("runs/base/tokenizer_config.json"));
    let base = locate(&folder.path("runs/base")).expect("a run");
    let end_of_text = base.run.tokenizer().expect("it has one").end_of_text().expect("it has a token for it");
    let chatml = ChatFormat::Chatml.give(&base, &folder.path("runs/chatml")).expect("it is a new run");
    let end_of_turn = chatml.tokenizer().expect("it has one").end_of_text().expect("the template has one");
    folder.succeed(&["export", "runs/chatml", "--to", "hf", "--output", "theirs"]);
    let set = |file: &str, fields: Value| {
        let mut theirs = folder.read_json(file);
        theirs.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        folder.write(file, theirs.to_string());
    };
    set("theirs/config.json", serde_json::json!({"eos_token_id": end_of_text}));
    set("theirs/tokenizer_config.json", serde_json::json!({"eos_token": "<|endoftext|>"}));
    let ends = [end_of_text, end_of_turn];
    set(
        "theirs/generation_config.json",
        serde_json::json!({"eos_token_id": ends, "do_sample": true, "temperature": 0.6, "top_p": 0.9}),
    );
    folder.succeed(&["import", "theirs", "--run-dir", "runs/talker"]);
    (folder, ends)
}

#[test]
fn derived_runs_stop_and_sample_like_their_base() {
    let (folder, ends) = talker();
    let generate = |run: &str| locate(&folder.path(run)).expect("a run").run.config().expect("it is valid").generate;
    let of_base = generate("runs/talker");
    assert_eq!(of_base.stop_token_ids, [ends[1]]);
    assert!(of_base.temperature < 0.7 && of_base.top_p < 1.0, "{of_base:?}");
    folder.write("pairs.jsonl", preferences(14));
    let tune = |run: &str, data: &str, more: &[&str]| {
        let arguments = ["finetune", "runs/talker", "--data", data, "--run-dir", run];
        folder.run(&[&arguments[..], &SETTINGS, more].concat()).exits(0).stderr
    };
    for (run, data, more) in [
        ("runs/lora", "my.jsonl", &[][..]),
        ("runs/dora", "my.jsonl", &["--method", "dora"]),
        ("runs/full", "my.jsonl", &["--method", "full"]),
        ("runs/dpo", "pairs.jsonl", &[]),
        ("runs/all", "my.jsonl", &["--set", "finetune.train_on=\"all\""]),
    ] {
        let said = tune(run, data, more);
        assert!(!said.contains("does not stop"), "{said}");
        assert_eq!(generate(run), of_base, "{run}");
    }
    folder.succeed(&["merge", "runs/lora", "--run-dir", "runs/merged"]);
    folder.succeed(&["finetune", "runs/talker", "--data", "my.jsonl", "--template", "zephyr", "--print-config"]);
    assert_eq!(generate("runs/talker-zephyr").stop_token_ids, ends, "those of before, besides the template's");
    for run in ["runs/merged", "runs/dpo"] {
        folder.succeed(&["export", run, "--to", "hf", "--output", "out", "--overwrite"]);
        let exported = folder.read_json("out/generation_config.json");
        assert_eq!(exported["eos_token_id"], serde_json::json!(ends), "{exported}");
        assert_eq!(exported["temperature"], 0.6, "{exported}");
    }
    // Without the token among those that stop it, the model would go on after its answers.
    let said = tune("runs/set", "my.jsonl", &["--set", "generate.stop_token_ids=[7]"]);
    let expected = format!(
        "note: 24 of 24 records end with a token at which the model does not stop, such as \"<|im_end|>\": it will not \
         stop after its answers\n  hint: if this token ends answers, --set 'generate.stop_token_ids=[7, {}]'",
        ends[1]
    );
    assert!(said.contains(&expected), "{said}");
    assert_eq!(generate("runs/set").stop_token_ids, [7]);
    let preview = ["data", "preview", "runs/talker", "--data", "my.jsonl", "--json"];
    assert_eq!(folder.json(&preview)["endless"], 0);
    let endless = folder.json(&[&preview[..], &["--set", "generate.stop_token_ids=[7]"]].concat());
    assert_eq!(endless["endless"], 24, "{endless}");
}

#[test]
fn records_may_be_longer_than_context_of_base() {
    let folder = folder();
    let record = serde_json::json!({"prompt": "is it?", "completion": "yes ".repeat(25)});
    folder.write("long.jsonl", format!("{record}\n").repeat(8));
    let arguments = ["finetune", "runs/base", "--data", "long.jsonl", "--set", "model.context_length=128"];
    let said = folder.run(&[&arguments[..], &SETTINGS].concat()).exits(0).stderr;
    assert!(said.contains("the longest has 111") && !said.contains("lose their ends"), "{said}");
    // Without it the context is the limit, and the hints name that.
    let cut = ["finetune", "runs/base", "--data", "long.jsonl", "--run-dir", "runs/cut", "--no-comparison"];
    let said = folder.run(&[&cut[..], &SETTINGS].concat()).exits(0).stderr;
    let expected =
        "8 records are longer than 65 tokens and lose their ends\n  hint: --set model.context_length=111 keeps";
    assert!(said.contains(expected), "{said}");
    let record = serde_json::json!({"prompt": "is it? ".repeat(20), "completion": "yes"});
    folder.write("late.jsonl", format!("{record}\n").repeat(8));
    let late = folder.fail(&["finetune", "runs/base", "--data", "late.jsonl"]);
    assert!(late.contains("within the first 65 tokens") && late.contains("--set model.context_length=N"), "{late}");
    let compared = folder.read_json("runs/base-long/before-and-after.json");
    assert!(number(&compared["held_out_loss"][0]) > number(&compared["held_out_loss"][1]), "{compared}");
}

#[test]
fn finetune_makes_run_for_every_command() {
    let folder = folder();
    let arguments = [&["finetune", "runs/base", "--data", "my.jsonl", "--json"][..], &SETTINGS].concat();
    let done = folder.json(&arguments);
    assert_eq!(done["run_dir"], "runs/base-my");
    assert_eq!(done["skipped_records"], 0);
    assert!(number(&done["base_val_loss"]) > number(&done["best_val_loss"]));
    assert_eq!(done["base_sha256"].as_str().expect("a hash").len(), 64);
    assert!(number(&done["trained_parameters"]) < number(&done["parameters"]));
    assert!(number(&done["general_tokens"]) > 1000.0 && number(&done["base_general_loss"]) > 0.0);
    let compared = folder.read_json("runs/base-my/before-and-after.json");
    assert_eq!(compared["general_loss"][1], done["general_loss"]);
    let page = folder.read("runs/base-my/report.html");
    // What changed comes first, in words, and without the texts of the template.
    let first = page.split("<h2>").nth(1).expect("a section");
    assert!(first.starts_with("Before and after<") && first.contains("tokens of general text"), "{first}");
    let answers = &compared["answers"][0];
    let question = answers["question"].as_str().expect("a question");
    assert!(records().contains(&format!("\"content\":\"{question}\"")), "{question}");
    for name in ["question", "expected", "before", "after"] {
        let text = answers[name].as_str().expect("a text").trim();
        let shown = text.chars().filter(|c| !c.is_control() || *c == '\n').collect::<String>();
        assert!(name != "expected" || shown.starts_with("yes") && shown.ends_with("yes"), "{shown}");
        let is_plain = shown == text && !text.contains(['&', '<', '>', '"', '\'']);
        assert!(!is_plain || first.contains(&format!("<td data-name=\"{name}\">{shown}</td>")), "{name}: {first}");
    }
    let learned = tinderbox::format::grouped(done["trained_parameters"].as_u64().expect("a number"));
    assert!(page.contains(&format!("{learned} of them learned")), "{learned}");
    let listed = folder.json(&["runs", "runs/base-my", "--json"]);
    assert_eq!(listed[0]["trained_parameters"], done["trained_parameters"]);
    // The list, the report and the log have one number of bits per byte.
    let bits = number(&done["val_bits_per_byte"]) / number(&done["val_loss"]) * number(&done["best_val_loss"]);
    assert!((number(&listed[0]["val_bits_per_byte"]) - bits).abs() < 1e-9, "{listed} {bits}");
    assert!(page.contains(&format!("{bits:.4}")), "{bits}");
    let measured = folder.json(&["eval", "runs/base-my", "--data", "my.jsonl", "--json"]);
    assert_eq!(measured["records"], 24);
    assert_eq!(measured["tokens"], done["counted_tokens"]);
    assert!(number(&measured["loss"]) < number(&done["base_val_loss"]));
    let held_out = folder.json(&["eval", "runs/base-my", "--json"]);
    assert_eq!(held_out["records"], 2);
    assert!((number(&held_out["loss"]) - number(&done["best_val_loss"])).abs() < 1e-6, "{held_out}, {done}");
    folder.succeed(&["generate", "runs/base-my", "--prompt", "u:is it 3?\na:", "--max-new-tokens", "5"]);
    folder.succeed(&["export", "runs/base-my", "--to", "hf", "--output", "out"]);
    folder.succeed(&["export", "runs/base-my", "--adapter", "--to", "hf", "--output", "adapter"]);
    let config = folder.read_json("adapter/adapter_config.json");
    assert_eq!((&config["r"], &config["peft_type"]), (&16.into(), &"LORA".into()));
    let whole = folder.fail(&["export", "runs/base", "--adapter", "--to", "hf"]);
    assert!(whole.contains("has no adapter"), "{whole}");
    // Both runs can be moved together; without its base a tuned run is nothing.
    fs::rename(folder.path("runs"), folder.path("moved"));
    folder.succeed(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    let weights = folder.path("moved/base/checkpoints/step-000010/model.safetensors");
    let mut changed = fs::read(&weights);
    *changed.last_mut().expect("bytes") ^= 1;
    fs::write(&weights, changed);
    let other = folder.fail(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    assert!(other.contains("an adapter for other weights") && other.matches("SHA-256").count() == 1, "{other}");
    fs::remove_dir_all(folder.path("moved/base"));
    let gone = folder.fail(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    assert!(gone.contains("its base `") && gone.contains("hint: put the base run back"), "{gone}");
}

#[test]
fn plan_predicts_finetuning() {
    let folder = folder();
    let print = |more: &[&str]| {
        let arguments = ["finetune", "runs/base", "--data", "my.jsonl", "--print-config"];
        folder.succeed(&[&arguments[..], more].concat())
    };
    let packed = print(&["--set", "finetune.packing=true", "--epochs", "2"]);
    // The epochs are those that were asked for, however many rows a step has.
    let steps = |config: &str| toml::from_str::<toml::Table>(config).expect("TOML")["train"]["max_steps"].as_integer();
    let two = |more: &[&str]| steps(&print(&[&["--epochs", "2"], more].concat()));
    assert_eq!(two(&[]), Some(6), "22 records, 8 rows, 2 passes");
    assert_eq!(two(&["--set", "train.batch_size=2"]), Some(22));
    assert_eq!(two(&["--set", "train.grad_accumulation_steps=2"]), Some(4));
    assert_eq!(two(&["--set", "data.val_fraction=0.5"]), Some(4), "12 records");
    // Without them there are 60 steps, which end when the validation loss rises.
    let default = print(&[]);
    assert_eq!(steps(&default), Some(60), "20 passes");
    assert!(default.contains("early_stopping_patience = 2 "), "{default}");
    assert!(!packed.contains("early_stopping_patience"), "{packed}");
    assert!(packed.contains("batch_size = 1\n"), "{packed}");
    folder.write("packed.toml", &packed);
    let plan =
        |more: &[&str]| folder.succeed(&[&["plan", "packed.toml", "--set", "finetune.packing=true"], more].concat());
    let planned: Value = serde_json::from_str(&plan(&["--json"])).expect("JSON");
    let done = ["train", "packed.toml", "--run-dir", "runs/tuned", "--json"];
    let done = folder.json(&done);
    assert_eq!(planned["steps"], done["steps"]);
    // The last token of a record is only predicted.
    let tokens = number(&planned["tokens_per_step"]) * number(&done["steps"]);
    assert!((0.9..1.0).contains(&(tokens / number(&done["tokens"]))), "{tokens}, {done}");
    let files = ["model", "optimizer"].map(|name| {
        let file = format!("runs/tuned/checkpoints/step-{:06}/{name}.safetensors", number(&done["steps"]));
        fs::metadata(folder.path(&file)).expect("a file").len() as f64
    });
    let headers = files.iter().sum::<f64>() - number(&planned["checkpoint_bytes"]);
    assert!((0.0..20_000.0).contains(&headers), "{planned}, {files:?}");
    assert!(number(&planned["measured"]["tokens_per_s"]) > 0.0 && number(&planned["measured"]["peak"]) > 1e7);
    let shown = plan(&["--no-measure"]);
    assert!(shown.contains("packed into") && !shown.contains("measured"), "{shown}");
    let refused = folder.fail(&["plan", "packed.toml", "--format", "html"]);
    assert!(refused.contains("has no pictures"), "{refused}");
}

#[test]
fn sweep_tries_finetuning_settings() {
    let folder = folder();
    folder.write("my.jsonl", preferences(20));
    let config = folder.succeed(&["finetune", "runs/base", "--data", "my.jsonl", "--print-config"]);
    folder.write("tune.toml", config);
    let sweep = ["sweep", "tune.toml", "--space", "finetune.rank=2,4", "--method", "grid", "--budget", "20s", "--json"];
    let outcome = folder.json(&sweep);
    assert!(outcome["trials"].as_array().is_some_and(|trials| trials.len() == 3), "{outcome}");
    assert_eq!(outcome["unit"], "nats per pair");
    let best = folder.read("sweeps/tune/best.toml");
    assert!(best.contains("[finetune]") && best.contains("rank = "), "{best}");
    let done = ["train", "sweeps/tune/best.toml", "--set", "train.max_steps=2", "--run-dir", "runs/best", "--json"];
    let done = folder.json(&done);
    assert_eq!(done["steps"], 2);
}

#[test]
fn bad_record_is_named_with_line() {
    let folder = folder();
    for (line, expected) in [
        ("{\"messages\": [{\"role\": \"user\"}]}", "line 2 of `bad.jsonl` has no text in \"content\" in message 1"),
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "records of `bad.jsonl` have no answer"),
    ] {
        let first = records().lines().next().expect("a record").to_owned();
        folder.write("bad.jsonl", format!("{first}\n{line}\n"));
        let failed = folder.fail(&["finetune", "runs/base", "--data", "bad.jsonl"]);
        assert!(failed.contains(expected) && failed.contains("hint: "), "{line}: {failed}");
        assert!(!folder.path("runs/base-bad").exists(), "nothing is left");
    }
}

#[test]
fn published_forms_are_read_and_what_is_left_out_is_said() {
    let folder = folder();
    let preview = |data: &str, more: &[&str]| {
        let mut found = folder.json(&[&["data", "preview", "runs/base", "--json", "--data", data], more].concat());
        let left_out = found.as_object_mut().expect("an object").remove("left_out").expect("it is there");
        (found, left_out)
    };
    let expected = preview("my.jsonl", &[]).0;
    folder.write("list.json", format!("[\n{}]", records().trim_end().replace('\n', ",\n")));
    fs::create_dir_all(folder.path("set/data"));
    folder.write("set/data/train.jsonl", records());
    folder.write("set/README.md", "---\nlicense: mit\n---\n");
    folder.write("set/.gitattributes", "*.jsonl text\n");
    let records: Vec<Value> = records().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let content = |record: &Value, at: usize| record["messages"][at]["content"].as_str().expect("a text").to_owned();
    let rows = records.iter().map(|record| format!("\"{}\",{},1\n", content(record, 0), content(record, 1)));
    folder.write("table.csv", format!("ask,reply,novel\n{}", rows.collect::<String>()));
    let mapped = ["--map", "prompt=ask,completion=reply", "--set", "finetune.ignored_fields=[\"novel\"]"];
    for (data, more) in [("list.json", &[][..]), ("set", &[]), ("table.csv", &mapped)] {
        let (found, left_out) = preview(data, more);
        assert_eq!(found, expected, "{data}");
        let names = if data == "set" { json!(["set/.gitattributes", "set/README.md"]) } else { json!([]) };
        assert_eq!(left_out, names);
    }
    let refused =
        folder.fail(&["finetune", "runs/base", "--data", "table.csv", "--map", "prompt=ask,completion=reply"]);
    assert!(
        refused.contains("row 1 of `table.csv` has fields that are not used beside the others: \"novel\""),
        "{refused}"
    );
    let config = [&["finetune", "runs/base", "--data", "table.csv", "--print-config"], &mapped[..]].concat();
    assert!(folder.succeed(&config).contains("prompt=ask"), "the config has the names");
    let refused = folder.misuse(&["eval", "runs/base", "--map", "prompt=ask"]);
    assert!(refused.contains("--data"), "{refused}");
    // Of Parquet, too; a column that says nothing may have any type.
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet");
    for name in ["talk.jsonl", "talk.parquet"] {
        fs::copy(fixtures.join(name), folder.path(name));
    }
    let (found, _) = preview("talk.parquet", &["--set", "finetune.ignored_fields=[\"n\"]"]);
    assert_eq!(found, preview("talk.jsonl", &[]).0);
    let refused = folder.fail(&["data", "preview", "runs/base", "--data", "talk.parquet"]);
    let expected = "row 1 of `talk.parquet` has fields that are not used beside the others: \"n\"";
    assert!(refused.contains(expected), "{refused}");
    folder.write("twice.jsonl", "{\"prompt\": \"a\", \"completion\": \"b<|endoftext|>\"}\n".repeat(3));
    let ran = folder.run(&["data", "preview", "runs/base", "--data", "twice.jsonl"]);
    assert!(ran.stderr.contains("the texts of 3 records hold tokens such as \"<|endoftext|>\""), "{}", ran.stderr);
}

/// The answer of each record is an object whose values the question names.
#[test]
fn shipped_records_have_checkable_answers() {
    let lines = include_str!("../../data/events.jsonl").lines();
    let records: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("a line is a record")).collect();
    assert_eq!(records.len(), 300);
    for record in records {
        let content = |at: usize| record["messages"][at]["content"].as_str().expect("a message has a text");
        let answer: Value = serde_json::from_str(content(1)).expect("the answer is JSON");
        assert_eq!(answer.as_object().expect("the answer is an object").len(), 5, "{answer}");
        let is_asked = |key: &str| content(0).contains(answer[key].as_str().expect("the field is a string"));
        assert!(["who", "day", "time"].into_iter().all(is_asked), "{record}");
    }
}

#[test]
fn chat_reads_pipe() {
    let folder = folder();
    let arguments = ["chat", "runs/base", "--temperature", "0", "--max-new-tokens", "6"];
    let input = "is it 3?\n/temperature 0.5\n/top-k 3\n/top-p 0\n/min-p 0.1\n/repetition-penalty 1.1\n/help\n/retry\n\
                 /save talk.jsonl\n/quit\nnever\n";
    let talk = folder.pipe(&arguments, input).exits(0);
    assert_eq!(talk.stdout.lines().count(), 2, "two answers: {}", talk.stdout);
    assert!(talk.stderr.contains("/top-p"), "{}", talk.stderr);
    let saved = folder.read("talk.jsonl");
    let saved: Value = serde_json::from_str(&saved).expect("a record");
    assert_eq!(
        (&saved["messages"][0]["content"], &saved["messages"][1]["role"]),
        (&"is it 3?".into(), &"assistant".into())
    );
    let long = "is it 3? ".repeat(20);
    for (line, code, expected) in [
        ("/dance", 1, "no command /dance\n  hint: /help"),
        ("/top-k -1", 1, "/top-k -1: it must be a whole number"),
        ("/min-p", 1, "/min-p : it must be a number"),
        ("/top-p 1.5", 2, "/top-p = 1.5 must be at least 0 and at most 1"),
        (long.as_str(), 1, "the context of the model holds 64\n  hint: ask something shorter"),
    ] {
        let wrong = folder.pipe(&arguments, format!("{line}\n")).exits(code).stderr;
        assert!(wrong.contains(expected), "{wrong}");
    }
    fs::remove_file(folder.path("runs/base/tokenizer_config.json"));
    let none = folder.fail(&arguments);
    assert!(none.contains("has no chat template") && none.contains(" generate runs/base` continues"), "{none}");
}

#[cfg(unix)]
#[test]
fn signals_end_chat_that_waits_for_line() {
    let folder = folder();
    for name in ["-INT", "-TERM", "-HUP"] {
        let mut command = folder.command(&["chat", "runs/base", "--max-new-tokens", "2"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("the stream is piped");
        stdin.write_all(b"is it 3?\n").expect("the program reads its input");
        let mut answer = String::new();
        let stdout = child.stdout.take().expect("the stream is piped");
        BufReader::new(stdout).read_line(&mut answer).expect("the program answers");
        signal(name, child.id());
        let status = child.wait().expect("the program ends while its input is open");
        assert_eq!(status.code(), Some(130), "{name}");
        drop(stdin);
    }
}

#[test]
fn checkpoints_that_adapters_need_are_kept() {
    let place = place();
    let trained_on = |run: &str| {
        let config = place.config(&[&BASE[..], &["train.max_steps=30", "train.keep_checkpoints=1"]].concat());
        let notes = Arc::new(Mutex::new(Vec::new()));
        let observed_notes = notes.clone();
        let summary = observed(place.job(run, config, Start::Resume), move |event, _| {
            if let Event::Started(started) = event {
                observed_notes.lock().expect("nobody panicked").extend(started.changed.clone());
            }
        });
        summary.expect("the run resumes");
        let notes = notes.lock().expect("nobody panicked");
        notes.iter().any(|note| note.contains("the adapters of"))
    };
    crate::fixtures::copy(&place.path("base"), &place.path("alone"));
    assert!(!trained_on("alone") && !place.path("alone/checkpoints/step-000010").exists(), "nothing needs it");
    let elsewhere = "elsewhere/too";
    for run in ["tuned", elsewhere] {
        place.train(run, config(&place, &["train.max_steps=1"]), Start::New, None).expect("the run trains");
    }
    assert!(trained_on("base"));
    let is_whole = |run: &str| Trained::open(&place.path(run), None).is_ok();
    assert!(is_whole("tuned") && is_whole(elsewhere));
    // A run is not replaced until nothing needs it.
    let replaced = || RunDir::check_new(&place.path("base"), true);
    for run in ["tuned", elsewhere] {
        let error = replaced().expect_err("adapters need it").to_string();
        assert!(error.contains("step-000010` is not removed") && error.contains("hint: "), "{error}");
        fs::remove_dir_all(place.path(run));
    }
    replaced().expect("nothing needs it");
}

#[test]
fn resume_makes_missing_comparison() {
    let folder = folder();
    let whole = [&["finetune", "runs/base", "--data", "my.jsonl", "--json"][..], &SETTINGS].concat();
    let done = folder.json(&whole);
    let later = |flag| [&whole[..], &["--run-dir", "runs/later", flag]].concat();
    let none = folder.json(&later("--no-comparison"));
    assert!(none["best_val_loss"] == done["best_val_loss"] && none.get("base_val_loss").is_none(), "{none}");
    // As a process leaves it that was killed while it wrote.
    let partial = folder.path("runs/later/.before-and-after.json.0123456789abcdef.partial");
    fs::write(&partial, "{");
    let made = folder.json(&later("--resume"));
    let keys = ["steps", "tokens", "val_loss", "best_step", "base_val_loss", "tuned_val_loss", "general_loss"];
    for key in keys {
        assert!(made[key] == done[key] && !made[key].is_null(), "{key}: {made}");
    }
    assert!(!partial.exists());
    let [first, second] = ["base-my", "later"].map(|run| folder.read(&format!("runs/{run}/before-and-after.json")));
    assert_eq!(first, second);
    let refused = folder.fail(&later("--resume"));
    assert!(refused.contains("`runs/later` is done"), "{refused}");
}

#[test]
fn resume_uses_or_refuses_every_argument() {
    let folder = folder();
    crate::fixtures::copy(&folder.path("runs/base"), &folder.path("runs/copy"));
    folder.write("same.jsonl", records());
    folder.write("other.jsonl", records().replace("is it", "is that"));
    for run in ["runs/tuned", "runs/other"] {
        let arguments = ["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", run, "--no-comparison"];
        folder.succeed(&[&arguments[..], &SETTINGS].concat());
    }
    let resumed = |base: &'static str, data: &'static str, more: &[&'static str]| {
        let arguments = ["finetune", base, "--data", data, "--run-dir", "runs/tuned", "--resume", "--json"];
        [&arguments[..], more].concat()
    };
    let more = ["--set", "train.max_steps=6"];
    for (arguments, expected) in [
        (resumed("runs/other", "my.jsonl", &more), "finetune.base was "),
        (resumed("runs/base", "my.jsonl", &["--method", "dora"]), "finetune.method was \"lora\" and is now \"dora\""),
        (resumed("runs/base", "other.jsonl", &more), "the text `other.jsonl` has changed"),
        (resumed("runs/base", "my.jsonl", &["--template", "chatml"]), "there is no run at `runs/base-chatml`"),
    ] {
        let refused = folder.fail(&arguments);
        assert!(refused.contains(expected) && refused.contains("hint: "), "{arguments:?}: {refused}");
    }
    // Records and weights that have moved are the same. All passes that are asked for are made.
    let further = folder.json(&resumed("runs/copy", "same.jsonl", &["--method", "lora", "--epochs", "3"]));
    assert_eq!(further["steps"], 9, "22 records, 8 rows, 3 passes");
    assert!(number(&further["base_val_loss"]) > number(&further["tuned_val_loss"]), "{further}");
}
