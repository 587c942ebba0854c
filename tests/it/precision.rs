//! `train.matmul_precision`: runs in bf16, and everything that stays in f32.

use burn::tensor::{Int, Tensor};
use insta::assert_snapshot;
use serde_json::Value;
use tinderbox::config::PrecisionChoice;
use tinderbox::model::Gpt;
use tinderbox::run::Trained;
use tinderbox::train::{Start, evaluate};
use tinderbox_kernels::MatmulPrecision;

use crate::devices::ndarray;
use crate::fixtures::{Folder, Place};

const BF16: &str = "train.matmul_precision=bf16";

#[test]
fn resume_may_change_precision() {
    let place = Place::new();
    let f32 = place.config(&[]);
    place.train("run", place.config(&[BF16]), Start::New, Some(5)).expect("the run trains");
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

/// The losses of steps are those of products in bf16; the last evaluation is computed as `eval` does, in f32.
#[test]
fn steps_follow_precision_of_config_and_evaluations_are_in_f32() {
    let place = Place::new();
    let config = |settings: &[&str]| place.config(&[&["model.d_model=64", "train.log_interval=1"], settings].concat());
    let (_, exact) = place.train("f32", config(&[]), Start::New, None).expect("the run trains");
    let (summary, rounded) = place.train("bf16", config(&[BF16]), Start::New, None).expect("the run trains");
    assert!((1e-12..0.01).contains(&((exact[0] - rounded[0]).abs() / exact[0])), "{exact:?} and {rounded:?}");

    let opened = Trained::open(&place.path("bf16/last"), None).expect("a run");
    let val = opened.corpus().expect("its text").val;
    let loss = evaluate::full(&opened.model, &val, opened.config.train.batch_size).expect("the loss is finite");
    assert_eq!(summary.val_loss, Some(loss.nats_per_token));
}

#[test]
#[should_panic(expected = "only flex multiplies in bf16")]
fn loss_refuses_bf16_off_flex() {
    let gpt = Gpt::new(&Place::new().config(&[]).model, 40, 1, &ndarray());
    let tokens = Tensor::<2, Int>::zeros([1, 4], &ndarray());
    let _loss = gpt.loss(tokens.clone(), None, tokens, MatmulPrecision::Bf16, None);
}

#[test]
fn commands_refuse_bf16_off_flex() {
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
fn run_and_plan_name_their_precision() {
    let folder = Folder::new();
    let is_native = MatmulPrecision::Bf16.is_native();
    let native = if is_native { "bf16" } else { "f32" };
    for (device, choice, precision, said) in [
        ("flex", "auto", native, format!("matrices in {native} (auto)")),
        ("ndarray", "auto", "f32", "matrices in f32 (auto)".to_owned()),
        ("flex", "bf16", "bf16", "matrices in bf16".to_owned()),
    ] {
        let run = format!("{device}-{choice}");
        let set = ["tiny.toml", "--set", "train.max_steps=2", "--set", &format!("train.matmul_precision={choice}")];
        let trained = folder.run(&[&["train", "--run-dir", &run, "--device", device], &set[..]].concat()).exits(0);
        let first = format!("training `{run}` on {device}, {said}\n");
        assert!(trained.stderr.starts_with(&first), "{}", trained.stderr);
        let is_warned = trained.stderr.contains("warning: train.matmul_precision");
        assert_eq!(is_warned, choice == "bf16" && !is_native, "{}", trained.stderr);
        assert!(folder.read(&format!("{run}/train.log")).starts_with(&first));
        let saved = folder.read(&format!("{run}/config.toml"));
        assert!(saved.contains(&format!("\nmatmul_precision = \"{precision}\"\n")), "{saved}");
        let timings = folder.read(&format!("{run}/timings.jsonl"));
        assert!(timings.contains(&format!("\"matmul_precision\":\"{precision}\"")), "{timings}");
        let planned = folder.succeed(&[&["plan", "--device", device], &set[..]].concat());
        assert_eq!(planned.contains(&format!(" on {device}, matrices in bf16\n")), precision == "bf16", "{planned}");
        let measured = ["bench", "train", "--rounds=1", "--steps=1", "--json", "--device", device];
        assert_eq!(folder.json(&[&measured, &set[..]].concat())["matmul_precision"], precision);
    }
}
