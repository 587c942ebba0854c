//! Fine-tuning: adapters and all weights, exact resuming, what a checkpoint holds, and the commands.

use std::fs;

use burn::tensor::{Device, Tensor};
use serde_json::Value;
use tinderbox::config::Config;
use tinderbox::config::MatmulPrecision;
use tinderbox::data::{BatchSource, Corpus, OpenOptions};
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::model::{Gpt, Lora, Target};
use tinderbox::optimizer::Gradients;
use tinderbox::run::{Checkpoint, Trained};
use tinderbox::train::Start;

use crate::devices::{ndarray, wgpu};
use crate::fixtures::{Folder, Place, largest_difference, number};

/// A model of bytes that ends an answer with its end-of-text token.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\
    {% if m.role == 'assistant' %}<|endoftext|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// Questions with answers of different lengths.
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

/// A place with the run `base`, of ten steps, and records.
fn place() -> Place {
    let place = Place::new();
    let llama = ["model.position=\"rope\"", "model.norm=\"rms_norm\"", "model.mlp=\"swiglu\"", "model.bias=false"];
    let settings = ["tokenizer.kind=\"byte\"", "tokenizer.end_of_text=true", "model.context_length=64"];
    place.trained("base", &[&llama[..], &settings].concat());
    let companion = serde_json::json!({"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"});
    fs::write(place.path("base/tokenizer_config.json"), companion.to_string()).expect("written");
    fs::write(place.path("records.jsonl"), records()).expect("written");
    place
}

/// A fine-tuning of `base` in ten steps.
fn config(place: &Place, overrides: &[&str]) -> Config {
    let base = place.run("base").config().expect("read");
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
fn adapters_learn_the_records_and_the_base_stays() {
    let place = place();
    let before = place.read("base/checkpoints/step-000010/model.safetensors");
    let (summary, losses) =
        place.train("tuned", config(&place, &["optimizer.learning_rate=0.1"]), Start::New, None).expect("trains");
    assert!(losses[losses.len() - 1] < 0.95 * losses[0], "{losses:?}");
    assert!(summary.val_loss.expect("evaluated") < f64::from(losses[0]));
    assert!(before == place.read("base/checkpoints/step-000010/model.safetensors"));
    // Only the adapters are in the file, and whoever opens the run sees the weights that they make.
    let checkpoint = place.path("tuned/checkpoints/step-000010");
    let saved = tinderbox::model::tensor_file::open(&checkpoint.join("model.safetensors")).expect("opens");
    assert!(saved.keys().all(|name| name.contains(".adapters.")), "{:?}", saved.keys());
    let tensor = |name: &str| saved[name].read().expect("read");
    let [a, b] = ["a", "b"].map(|it| tensor(&format!("blocks.1.attention.qkv.adapters.2.{it}")));
    let weights = |run: &str| parameters::read(&Trained::open(&place.path(run), None).expect("opens").model);
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
}

#[test]
fn a_fine_tuning_that_was_stopped_continues_to_the_byte() {
    let place = place();
    for (name, overrides) in [
        ("lora", &["finetune.dropout=0.2", "finetune.targets=[\"q\", \"v\", \"down\"]"][..]),
        ("full", &["finetune.method=\"full\"", "train.grad_accumulation_steps=2"][..]),
    ] {
        let [whole, parts] = ["whole", "parts"].map(|it| format!("{name}-{it}"));
        let config = || config(&place, overrides);
        place.train(&whole, config(), Start::New, None).expect("trains");
        place.train(&parts, config(), Start::New, Some(5)).expect("stops");
        place.train(&parts, config(), Start::Resume, None).expect("continues");
        let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
        let files = files.map(|file| format!("checkpoints/step-000010/{file}"));
        place.assert_same(&whole, &parts, &files.each_ref().map(String::as_str));
        place.assert_same(&whole, &parts, &["metrics.jsonl", "best", "last"]);
    }
}

#[test]
fn micro_batches_of_unequal_records_are_one_batch() {
    let place = place();
    let at_once = config(&place, &["train.max_steps=1", "optimizer.kind=\"adamw\""]);
    let one_by_one = config(&place, &["train.max_steps=1", "train.batch_size=1", "train.grad_accumulation_steps=4"]);
    // The order of a pass follows the batch size, so the records of the first step are named here.
    let records: String = records().split_inclusive('\n').take(5).collect();
    fs::write(place.path("records.jsonl"), records).expect("written");
    let losses = [("all", at_once), ("each", one_by_one)].map(|(name, config)| {
        let (summary, losses) = place.train(name, config, Start::New, None).expect("trains");
        (losses[0], summary.val_loss.expect("evaluated"))
    });
    assert!((losses[0].0 - losses[1].0).abs() < 1e-6, "{losses:?}");
    assert!((losses[0].1 - losses[1].1).abs() < 1e-5, "{losses:?}");
}

fn lora() -> Lora {
    let targets = Target::ALL.to_vec();
    Lora { rank: 3, alpha: 6.0, use_rslora: true, dropout: 0.0, targets, last_blocks: None }
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
    let model = model.expect("all of them");
    let batch = corpus.train.spread(16, 2, 1).next().expect("a batch");
    let (tokens, targets) = batch.to_device(&model.device());
    let loss = model.loss(tokens, targets, MatmulPrecision::F32, None);
    let gradients = Gradients::take(&model, loss.backward());
    let numbers = |x: &Tensor<1>| x.clone().try_into_vec_as::<f32>().expect("the device works");
    gradients.iter().map(|(name, gradient)| (name.to_owned(), numbers(gradient))).collect()
}

#[test]
fn adapters_have_the_same_gradients_on_every_device_and_nothing_else_has_any() {
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
fn merged_weights_have_the_logits_of_adapters_beside_them() {
    let place = place();
    let config = config(&place, &["finetune.use_rslora=true", "finetune.last_blocks=1"]);
    place.train("tuned", config.clone(), Start::New, None).expect("trains");
    let merged = Trained::open(&place.path("tuned/last"), None).expect("opens");
    let device = Device::flex();
    let zeros = Gpt::zeros(&config.model, merged.tokenizer.vocab_size(), &device);
    let lora = config.finetune.lora().expect("adapters");
    let base = Trained::open(&place.path("base"), None).expect("opens").model;
    let mut weights = parameters::read(&base);
    let saved = place.path("tuned/checkpoints/step-000010/model.safetensors");
    for (name, tensor) in tinderbox::model::tensor_file::open(&saved).expect("opens") {
        weights.insert(name, tensor.read().expect("read"));
    }
    let beside = parameters::assign(zeros.adapted(&lora, 1), |name, _| weights.remove(name)).expect("all");
    let batch = Corpus::open(&config, OpenOptions { tokenizer: Some(merged.tokenizer.clone()), ..Default::default() })
        .expect("records")
        .val_batches()
        .windows(64, 2)
        .next();
    let (tokens, targets) = batch.expect("a batch").to_device(&device);
    let losses = [&merged.model, &beside].map(|model| {
        let loss = model.loss(tokens.clone(), targets.clone(), MatmulPrecision::F32, None);
        loss.try_into_vec_as::<f32>().expect("a CPU")[0]
    });
    assert!((losses[0] - losses[1]).abs() < 1e-5, "{losses:?}");
    let logits = [&merged.model, &beside]
        .map(|model| model.forward(tokens.clone()).into_data().try_to_vec::<f32>().expect("f32"));
    assert!(largest_difference(&logits[0], &logits[1]) < 1e-5);
}

/// A folder in which the commands run, with the base and the records of [`place`].
fn folder() -> Folder {
    let folder = Folder::new();
    crate::fixtures::copy(&place().path("base"), &folder.path("runs/base"));
    fs::write(folder.path("my.jsonl"), records()).expect("written");
    folder
}

const SETTINGS: [&str; 6] =
    ["--set", "train.max_steps=4", "--set", "train.device=\"flex\"", "--set", "optimizer.learning_rate=0.01"];

#[test]
fn the_command_trains_a_run_that_every_command_takes() {
    let folder = folder();
    let arguments = [&["finetune", "runs/base", "--data", "my.jsonl", "--json"][..], &SETTINGS].concat();
    let done: Value = serde_json::from_str(&folder.succeed(&arguments)).expect("JSON");
    assert_eq!(done["run_dir"], "runs/base-my");
    assert_eq!(done["skipped_records"], 0);
    assert!(number(&done["base_val_loss"]) > number(&done["best_val_loss"]));
    assert_eq!(done["base_sha256"].as_str().expect("a hash").len(), 64);
    assert!(number(&done["trained_parameters"]) < number(&done["parameters"]));
    let measured = folder.succeed(&["eval", "runs/base-my", "--data", "my.jsonl", "--json"]);
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    assert_eq!(measured["records"], 24);
    assert_eq!(measured["tokens"], done["counted_tokens"]);
    assert!(number(&measured["loss"]) < number(&done["base_val_loss"]));
    folder.succeed(&["generate", "runs/base-my", "--prompt", "u:is it 3?\na:", "--max-new-tokens", "5"]);
    folder.succeed(&["export", "runs/base-my", "--to", "hf", "--output", "out"]);
    folder.succeed(&["export", "runs/base-my", "--adapter", "--to", "hf", "--output", "adapter"]);
    let config: Value = serde_json::from_str(&folder.read("adapter/adapter_config.json")).expect("JSON");
    assert_eq!((&config["r"], &config["peft_type"]), (&16.into(), &"LORA".into()));
    let whole = folder.fail(&["export", "runs/base", "--adapter", "--to", "hf"]);
    assert!(whole.contains("has no adapter"), "{whole}");
    // Both runs can be moved together; without its base a tuned run is nothing.
    fs::rename(folder.path("runs"), folder.path("moved")).expect("moved");
    folder.succeed(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    let weights = folder.path("moved/base/checkpoints/step-000010/model.safetensors");
    let mut changed = fs::read(&weights).expect("read");
    *changed.last_mut().expect("bytes") ^= 1;
    fs::write(&weights, changed).expect("written");
    let other = folder.fail(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    assert!(other.contains("an adapter for other weights") && other.matches("SHA-256").count() == 1, "{other}");
    fs::remove_dir_all(folder.path("moved/base")).expect("removed");
    let gone = folder.fail(&["eval", "moved/base-my", "--data", "my.jsonl"]);
    assert!(gone.contains("its base `") && gone.contains("hint: put the base run back"), "{gone}");
}

#[test]
fn a_bad_record_is_named_with_its_line() {
    let folder = folder();
    for (line, expected) in [
        ("{\"messages\": [{\"role\": \"user\"}]}", "line 2 of `bad.jsonl` has no text in \"content\" in message 1"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "line 2 of `bad.jsonl` has no message of the role",
        ),
        ("{\"question\": \"a\"}", "line 2 of `bad.jsonl` has only the fields \"question\""),
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "records of `bad.jsonl` have no answer"),
    ] {
        let first = records().lines().next().expect("a record").to_owned();
        fs::write(folder.path("bad.jsonl"), format!("{first}\n{line}\n")).expect("written");
        let failed = folder.fail(&["finetune", "runs/base", "--data", "bad.jsonl"]);
        assert!(failed.contains(expected) && failed.contains("hint: "), "{line}: {failed}");
        assert!(!folder.path("runs/base-bad").exists(), "nothing is left");
    }
}

#[test]
fn a_conversation_goes_through_a_pipe() {
    let folder = folder();
    let arguments = ["chat", "runs/base", "--temperature", "0", "--max-new-tokens", "6"];
    let input = "is it 3?\n/temperature 0.5\n/retry\n/save talk.jsonl\n/quit\nnever\n";
    let talk = folder.pipe(&arguments, input).exits(0);
    assert_eq!(talk.stdout.lines().count(), 2, "two answers: {}", talk.stdout);
    let saved = fs::read_to_string(folder.path("talk.jsonl")).expect("saved");
    let saved: Value = serde_json::from_str(&saved).expect("a record");
    assert_eq!(
        (&saved["messages"][0]["content"], &saved["messages"][1]["role"]),
        (&"is it 3?".into(), &"assistant".into())
    );
    let wrong = folder.pipe(&arguments, "/dance\n").exits(1).stderr;
    assert!(wrong.contains("no command /dance") && wrong.contains("hint: /system"), "{wrong}");
    fs::remove_file(folder.path("runs/base/tokenizer_config.json")).expect("removed");
    let none = folder.fail(&arguments);
    assert!(none.contains("has no chat template"), "{none}");
}

#[test]
fn the_shipped_records_are_a_task_with_an_answer_that_can_be_checked() {
    let lines = include_str!("../../data/events.jsonl").lines();
    let records: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("a record")).collect();
    assert_eq!(records.len(), 300);
    for record in records {
        let answer: Value =
            serde_json::from_str(record["messages"][1]["content"].as_str().expect("text")).expect("JSON");
        let keys: Vec<&str> = answer.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys.len(), 5, "{keys:?}");
        let question = record["messages"][0]["content"].as_str().expect("text");
        assert!(
            ["who", "day", "time"].iter().all(|key| question.contains(answer[*key].as_str().expect("text"))),
            "{record}"
        );
    }
}

#[test]
fn a_tuned_run_can_be_tuned_again() {
    let place = place();
    place.train("once", config(&place, &[]), Start::New, None).expect("trains");
    let again = format!("finetune.base={:?}", place.path("once"));
    let (summary, losses) = place.train("twice", config(&place, &[&again]), Start::New, None).expect("trains");
    let first = Checkpoint::read_state(&place.path("once/checkpoints/step-000010")).expect("read");
    assert!(f64::from(losses[0]) < first.train_loss.expect("logged") * 1.5, "{losses:?}");
    assert!(summary.val_loss.is_some());
    Trained::open(&place.path("twice"), None).expect("opens");
}
