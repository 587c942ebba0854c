//! `train.matmul_precision`: runs in bf16, and everything that stays in f32.

use burn::tensor::{Device, Int, Tensor};
use insta::assert_snapshot;
use serde_json::Value;
use tinderbox::config::PrecisionChoice;
use tinderbox::data::{Corpus, OpenOptions};
use tinderbox::model::Gpt;
use tinderbox::run::Checkpoint;
use tinderbox::train::{Start, TrainError, evaluate};
use tinderbox_kernels::MatmulPrecision;

use crate::devices::ndarray;
use crate::fixtures::{Folder, Place, host, trainer};

const BF16: &str = "train.matmul_precision=bf16";

#[test]
fn a_run_in_bf16_learns_and_its_last_losses_are_in_f32() {
    let place = Place::new();
    let config = place.config(&[
        BF16,
        "train.max_steps=150",
        "model.dropout=0.0",
        "train.eval_interval=50",
        "train.checkpoint_interval=50",
        "train.log_interval=1",
    ]);
    let trained = place.train("run", config.clone(), Start::New, None);
    let (summary, losses) = trained.expect("trains");
    assert!(losses[0] > 3.0 && losses[149] < 1.5, "from {} to {}", losses[0], losses[149]);
    let run = place.run("run");
    assert_eq!(run.config().expect("its config"), Place::resolved(config.clone()));

    // As computed by `eval`, which does not know how the weights were trained.
    let corpus = Corpus::open(&config, OpenOptions::default()).expect("a corpus");
    let zeros = Gpt::zeros(&config.model, corpus.tokenizer.vocab_size(), &Device::flex());
    let model = Checkpoint::load_model(&run.last().expect("a checkpoint"), zeros).expect("weights");
    let loss = evaluate::full(&model, &corpus.val, config.train.batch_size).expect("computed");
    assert_eq!(summary.val_loss, Some(loss.nats_per_token));
}

#[test]
fn a_run_goes_on_in_another_precision_and_a_new_one_starts_from_it() {
    let place = Place::new();
    let f32 = place.config(&[]);
    place.train("run", place.config(&[BF16]), Start::New, Some(5)).expect("trains");
    let precision = |run: &str| {
        let run = place.run(run);
        run.config().expect("its config").train.matmul_precision
    };
    assert_eq!(precision("run"), PrecisionChoice::Bf16);
    let (summary, _) = place.train("run", f32.clone(), Start::Resume, None).expect("continues, as on another device");
    assert_eq!(summary.steps, 10);
    assert_eq!(precision("run"), PrecisionChoice::F32);
    for (run, config) in [("f32", f32), ("bf16", place.config(&[BF16]))] {
        place.train_from(Some("run"), run, config, Start::New, None).expect("trains further");
    }
    assert_eq!(precision("bf16"), PrecisionChoice::Bf16);
}

#[test]
fn a_trainer_steps_in_the_precision_of_its_config() {
    let place = Place::new();
    let first_loss = |settings: &[&str]| {
        let config = place.config(&[&["model.d_model=64", "model.n_heads=2"], settings].concat());
        host(trainer(&config, &Device::flex()).0.step().loss)[0]
    };
    let (exact, rounded) = (first_loss(&[]), first_loss(&[BF16]));
    assert!((1e-12..0.01).contains(&((exact - rounded).abs() / exact)), "{exact} and {rounded}");
}

#[test]
#[should_panic(expected = "only flex multiplies in bf16")]
fn a_loss_in_bf16_is_refused_off_flex() {
    let place = Place::new();
    let config = place.config(&[]);
    let gpt = Gpt::new(&config.model, 40, 1, &ndarray());
    let tokens = Tensor::<2, Int>::zeros([1, 4], &ndarray());
    let _loss = gpt.loss(tokens.clone(), tokens, MatmulPrecision::Bf16, None);
}

#[test]
fn another_device_than_burns_cpu_backend_is_refused_before_anything_is_done() {
    let place = Place::new();
    let config = place.config(&[BF16, "train.device=ndarray"]);
    std::fs::remove_file(place.path("text.txt")).expect("removed");
    for start in [Start::New, Start::Overwrite, Start::Resume] {
        let error = place.train("run", config.clone(), start, None);
        assert!(matches!(error, Err(TrainError::Precision(_))), "{error:?}");
    }
    assert!(!place.path("run").exists());
}

#[test]
fn what_cannot_be_is_said_by_every_command_that_would_compute_it() {
    let folder = Folder::new();
    let on_ndarray = ["tiny.toml", "--device=ndarray", "--set", BF16];
    let said = folder.fail(&[&["train"], &on_ndarray[..]].concat());
    assert_snapshot!(said, @r#"
    error: train.matmul_precision = "bf16" is only for `flex`, burn's CPU backend, and `ndarray` computes in f32
      hint: compute there with --device flex, or in f32 with --set train.matmul_precision=f32
    "#);
    let measured = folder.fail(&[&["bench", "train"], &on_ndarray[..]].concat());
    assert_eq!(measured, said, "and nothing before it");
    let warning = said.replace("error: ", "warning: ");
    let unmeasured = "note: nothing was measured: the run cannot be made on this device\n";
    for (measures, note) in [(&["plan"][..], unmeasured), (&["plan", "--no-measure"], "")] {
        let planned = folder.run(&[measures, &on_ndarray[..]].concat()).exits(0);
        assert_eq!(planned.stderr, format!("{note}{warning}"));
        assert!(planned.stdout.contains("\ndisk: "), "{}", planned.stdout);
        assert!(!planned.stdout.contains("bf16"), "{}", planned.stdout);
        assert!(!planned.stdout.contains("time: "), "{}", planned.stdout);
    }
    let planned = folder.json(&[&["plan", "--json"], &on_ndarray[..]].concat());
    assert_eq!(planned["time"], Value::Null);
}

#[test]
fn the_automatic_precision_is_the_one_of_the_machine_and_is_written_down() {
    let folder = Folder::new();
    let auto = ["tiny.toml", "--set", "train.max_steps=2", "--set", "train.matmul_precision=auto"];
    let is_native = MatmulPrecision::Bf16.is_native();
    for (device, precision) in [("flex", if is_native { "bf16" } else { "f32" }), ("ndarray", "f32")] {
        let run = device;
        let trained = folder.run(&[&["train", "--run-dir", run, "--device", device], &auto[..]].concat()).exits(0);
        let first = format!("training `{run}` on {device}, matrices in {precision} (auto)\n");
        assert!(trained.stderr.starts_with(&first), "{}", trained.stderr);
        assert!(folder.read(&format!("{run}/train.log")).starts_with(&first));
        let saved = folder.read(&format!("{run}/config.toml"));
        assert!(saved.contains(&format!("\nmatmul_precision = \"{precision}\"\n")), "{saved}");
    }
    let planned = folder.succeed(&[&["plan"], &auto[..]].concat());
    assert_eq!(planned.contains(" on flex, matrices in bf16\n"), is_native, "{planned}");
    let measured = folder.json(&[&["bench", "train", "--rounds=1", "--steps=1", "--json"], &auto[..]].concat());
    assert_eq!(measured["matmul_precision"], if is_native { "bf16" } else { "f32" });
}

#[test]
fn a_run_and_a_plan_say_that_they_are_in_bf16() {
    let folder = Folder::new();
    let short = ["tiny.toml", "--set", "train.max_steps=5"];
    let bf16 = ["tiny.toml", "--set", "train.max_steps=5", "--set", BF16];
    let session = || -> Value {
        let timings = folder.read("runs/tiny/timings.jsonl");
        let line = timings.lines().next().expect("it began");
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["session"]["matmul_precision"].clone()
    };
    let said = folder.run(&[&["train"], &short[..]].concat()).stderr;
    assert!(!said.contains("bf16"), "{said}");
    assert_eq!(session(), "f32");
    let ran = folder.run(&[&["train", "--overwrite"], &bf16[..]].concat()).exits(0);
    let first = "training `runs/tiny` on flex, matrices in bf16\n";
    assert!(ran.stderr.starts_with(first), "{}", ran.stderr);
    assert!(folder.read("runs/tiny/train.log").starts_with(first));
    let is_warned = ran.stderr.contains("warning: train.matmul_precision");
    assert_eq!(is_warned, !MatmulPrecision::Bf16.is_native(), "{}", ran.stderr);
    assert_eq!(session(), "bf16");

    let plan = folder.succeed(&[&["plan"], &bf16[..]].concat());
    assert!(plan.contains(" on flex, matrices in bf16\n"), "{plan}");
}
