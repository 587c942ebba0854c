//! Runs that start from the weights of another: `train --from`.

use std::path::Path;

use burn::tensor::Device;
use insta::assert_snapshot;
use tinderbox::config::{Base, Config};
use tinderbox::data::{BatchSource, Corpus, Draw, OpenOptions};
use tinderbox::model::LazyTensor;
use tinderbox::run::{Checkpoint, Trained};
use tinderbox::train::{Start, evaluate};
use tinderbox_kernels::MatmulPrecision;

use crate::fixtures::{Folder, Place, TEN_STEPS, assert_transcript, fs};

/// Different sentences in the alphabet of the first text.
fn other_text() -> String {
    let sentence = |i: usize| {
        let (animal, n) = (["hen", "owl", "fox"][i * i % 3], i % 11);
        format!("The river was {n} old and the {animal} sat by tree {n}.\n")
    };
    (0..200).map(sentence).collect()
}

/// A place with a run `base` of ten steps, and a second text.
fn place() -> Place {
    let place = Place::new();
    fs::write(place.path("other.txt"), other_text());
    let base = place.config(&["train.max_steps=30", "train.eval_interval=10"]);
    place.train("base", base, Start::New, None).expect("the run trains");
    place
}

/// A config for the second text without a model, which it inherits from `base`.
fn config(place: &Place, base: &str, overrides: &[&str]) -> Config {
    let toml = format!(
        "data = {{ path = {:?}, cache_dir = {:?} }}
         train = {{ device = \"flex\", max_steps = 10, batch_size = 4, log_interval = 1, eval_interval = 4,
                    eval_batches = 2, checkpoint_interval = 2, sample_tokens = 20 }}",
        place.path("other.txt"),
        place.path("cache"),
    );
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let base = place.run(base).config().expect("its config");
    let base = Some(Base::Weights(&base));
    Config::from_toml_inheriting(&toml, Path::new("fine.toml"), &overrides, base).expect("a config that fits")
}

#[test]
fn first_losses_are_those_of_base() {
    let place = place();
    let Trained { model, tokenizer, .. } = Trained::open(&place.path("base"), None).expect("a run");
    for context_length in [16, 8] {
        let length = format!("model.context_length={context_length}");
        let config = config(&place, "base", &[&length, "model.dropout=0.0"]);
        let run = format!("fine-{context_length}");
        let trained = place.train_from(Some("base"), &run, config.clone(), Start::New, None);
        let (_, losses) = trained.expect("the run trains");

        let options = OpenOptions { tokenizer: Some(tokenizer.clone()), ..OpenOptions::default() };
        let corpus = Corpus::open(&config, options).expect("a corpus");
        let seed = config.train.seed;
        let first = Draw { seed, step: 0, rows: 0..4, n_earlier_rows: 0, context_length, with_replacement: true };
        let (tokens, targets) = corpus.train.draw(first).to_device(&Device::flex());
        let loss = model.loss(tokens, None, targets, MatmulPrecision::F32, None);
        let loss: f32 = loss.into_scalar();
        assert!((losses[0] - loss).abs() < 1e-6, "the first step's loss is {} and the run's {loss}", losses[0]);
        let metrics = place.read(&format!("{run}/metrics.jsonl"));
        let first = metrics.split(|byte| *byte == b'\n').next().expect("the first line");
        let first: serde_json::Value = serde_json::from_slice(first).expect("JSON");
        assert_eq!(first["step"], 0);
        assert_eq!(first["is_best"], false, "what another run learned is no success of this one");
        if context_length == 16 {
            let estimate =
                evaluate::estimate(&model, &corpus.val, 4, 2, MatmulPrecision::F32).expect("the loss is finite");
            assert_eq!(first["val_loss_estimate"], estimate.nats_per_token);
        }
    }
    let positions = |run: &str, step: usize| {
        let dir = place.run(run).checkpoint(step);
        Checkpoint::read(&dir).expect("it is whole").model["position_embedding.weight"].shape().to_vec()
    };
    assert_eq!(positions("fine-16", 10), [16, 16]);
    assert_eq!(positions("fine-8", 10), [8, 16]);
}

#[test]
fn resume_needs_no_base() {
    let place = place();
    let train = |run: &str, config: Config, start, stop_after| {
        let from = (start == Start::New).then_some("base");
        place.train_from(from, run, config, start, stop_after).expect("the run trains")
    };
    let new = config(&place, "base", &[]);
    assert!(new.model.dropout > 0.0, "the run's own");
    train("whole", new.clone(), Start::New, None);
    let (stopped, _) = train("parts", new, Start::New, Some(5));
    assert!(stopped.interrupted);
    let on_top_of_itself = config(&place, "parts", &[]);
    fs::remove_dir_all(place.path("base"));
    train("parts", on_top_of_itself, Start::Resume, None);
    place.assert_same("whole", "parts", &TEN_STEPS);
    place.assert_same("whole", "parts", &["tokenizer.json"]);
    let last = place.run("parts").last().expect("a last");
    let parent = Checkpoint::read_state(&last).expect("it is whole").started_from.expect("written down");
    assert!(parent.contains("base") && parent.contains("step-0000"), "{parent}");
}

#[test]
fn run_takes_model_and_tokenizer_but_no_optimizer_of_base() {
    let place = place();
    let tokenizer = place.read("base/tokenizer.json");
    let config = config(&place, "base", &["train.max_steps=1", "train.eval_interval=0"]);
    assert_eq!(config.model.d_model, 16);
    place
        .train_from(Some("base/checkpoints/step-30"), "fine", config.clone(), Start::New, None)
        .expect("the run trains");
    let run = place.run("fine");
    assert_eq!(run.config().expect("its config"), Place::resolved(config), "resolved, the model included");
    assert!(place.read("fine/tokenizer.json") == tokenizer);
    let saved = Checkpoint::read(&run.checkpoint(1)).expect("the first step is step 1");
    let base = Checkpoint::read(&place.path("base/checkpoints/step-000030")).expect("it is whole");
    let host = |tensor: &LazyTensor| tensor.read().expect("it is whole").values;
    let moved_on = |key: &String| host(&saved.optimizer[key]) != host(&base.optimizer[key]);
    assert!(saved.optimizer.keys().any(moved_on), "its own running means");
    assert_ne!(saved.state.text_sha256, base.state.text_sha256);
    let moved = |name: &str| {
        let (new, old) = (host(&saved.model[name]), host(&base.model[name]));
        let differences = new.iter().zip(&old).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, f32::max)
    };
    let far = moved("blocks.0.attention.qkv.weight");
    assert!(far > 0.0 && far < 1e-3, "one small step away, not {far}");
}

/// The shortest config for further training.
const FINE: &str = r#"
data = { path = "other.txt", cache_dir = "cache" }
train = { max_steps = 12, batch_size = 4, eval_batches = 2, device = "cpu" }
optimizer.learning_rate = 3e-3
"#;

/// A folder with a finished run, a second text and a short config for it.
fn folder() -> Folder {
    let folder = Folder::trained();
    folder.write("other.txt", other_text());
    folder.write("fine.toml", FINE);
    folder
}

#[test]
fn short_config_starts_from_base_and_resumes() {
    let folder = folder();
    let ran = folder.run(&["train", "fine.toml", "--from", "runs/tiny"]).exits(0);
    assert!(ran.stderr.contains("starting from the weights of `runs/tiny/checkpoints/step-0000"), "{}", ran.stderr);
    assert!(ran.stderr.contains("step  0/12  estimates: "), "{}", ran.stderr);
    fs::remove_dir_all(folder.path("runs/tiny"));
    let longer = ["train", "fine.toml", "--resume", "--json", "--set", "train.max_steps=14"];
    assert_eq!(folder.json(&longer)["steps"], 14);
    folder.succeed(&["generate", "runs/fine", "--max-new-tokens", "5"]);
}

#[test]
fn base_mistakes_are_explained() {
    let folder = folder();
    fs::create_dir(folder.path("empty"));
    assert_transcript!(folder, @r#"
    $ train fine.toml --from runs/nope
    error: there is no run at `runs/nope`
      hint: found there: `runs/tiny`
    $ train fine.toml --from empty
    error: `empty` is not a run
      hint: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`; `tinderbox import` makes one of another model
    $ train fine.toml --from runs/tiny --set model.d_model=30 --set model.mlp=swiglu --set tokenizer.kind=byte --set model.context_length=64
    error: the config `fine.toml` has 4 problems:
      - tokenizer.kind = "byte": the run that it starts from has "char"; leave the key out
      - model.d_model = 30: the run that it starts from has 16; leave the key out
      - model.mlp = "swiglu": the run that it starts from has "gelu"; leave the key out
      - model.context_length = 64: the run that it starts from has learned 16 positions; use at most 16, or start from a run with model.position = "rope"
    "#);
    let from = ["train", "fine.toml", "--from", "runs/tiny"];
    folder.write("other.txt", other_text() + "caf\u{e9} \u{2014} ol\u{e9}\n");
    assert_snapshot!(folder.fail(&from), @r#"
    error: the text `other.txt` cannot be read by the tokenizer of `runs/tiny`, which does not know 3 characters: 'f' (U+0066), 'é' (U+00E9), '—' (U+2014)
      hint: leave out or replace these, or start from a run with kind = "byte" under [tokenizer], which knows every character
    "#);
    folder.write("other.txt", other_text());
    let itself = ["train", "fine.toml", "--from", "runs/tiny/last", "--run-dir", "./runs/tiny"];
    let message = folder.fail(&itself);
    assert_snapshot!(message, @r"
    error: the new run would replace the run that it starts from, `./runs/tiny`
      hint: choose another place with --run-dir; to continue the run itself, use --resume
    ");
    assert_eq!(folder.fail(&[&itself[..], &["--overwrite"]].concat()), message);
    assert!(folder.path("runs/tiny/checkpoints/step-000040").is_dir());
    folder.misuse(&[&from[..], &["--resume"]].concat());
    fs::remove_dir_all(folder.path("runs/tiny/checkpoints/step-000040"));
    assert_transcript!(folder, @r"
    $ train fine.toml --from runs/tiny/last
    error: `runs/tiny/last` is damaged: it names `step-000040`, which is not there
      hint: write the name of one of the run's checkpoints into it, such as step-000100; --resume continues from the last one in any case
    $ train fine.toml --from runs/tiny/checkpoints/step-40
    error: there is no run at `runs/tiny/checkpoints/step-40`
      hint: found there: `runs/tiny/checkpoints/step-000030`
    ");
    assert!(!folder.path("runs/fine").exists(), "nothing was begun");
}
