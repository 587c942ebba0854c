//! Runs trained by several processes under `mpirun`, compared with runs of one process.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixtures::{Folder, Ran, Started, fs, largest_difference, losses_of, set, signal};

/// The options that let `mpirun` start more processes than cores, even as root.
const OPTIONS: [&str; 3] = ["--oversubscribe", "--bind-to", "none"];

/// Every step is logged, and nothing else happens until the last one; rows do not divide evenly. At higher learning
/// rates training itself amplifies rounding differences.
const STEPS: [&str; 13] = [
    "optimizer.muon_learning_rate=0.005",
    "optimizer.learning_rate=1e-3",
    "train.log_interval=1",
    "train.eval_interval=0",
    "train.checkpoint_interval=0",
    "train.sample_tokens=0",
    "train.batch_size=5",
    "train.grad_accumulation_steps=2",
    "train.with_replacement=false",
    "model.dropout=0.1",
    "schedule.kind=\"constant\"",
    "train.keep_checkpoints=9",
    "train.max_steps=200",
];

fn mpirun(folder: &Folder) -> Command {
    let mut command = folder.program("mpirun");
    command.args(OPTIONS);
    let variables = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_mpi_yield_when_idle"];
    command.envs(variables.map(|name| (name, "1"))).env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command
}

fn train(run: &str, settings: &[&str]) -> Vec<String> {
    [&["train", "tiny.toml", "--run-dir", run], &*set(settings)].concat().into_iter().map(str::to_owned).collect()
}

fn tinderbox() -> &'static Path {
    Path::new(assert_cmd::cargo::cargo_bin!("tinderbox"))
}

/// The command for `n_ranks` processes, or for one without a launcher.
fn command(folder: &Folder, n_ranks: usize, args: &[String]) -> Command {
    let mut command = match n_ranks {
        0 => folder.program(tinderbox()),
        n => {
            let mut command = mpirun(folder);
            command.args(["-n", &n.to_string()]).arg(tinderbox());
            command
        }
    };
    command.args(args);
    command
}

fn succeed(folder: &Folder, n_ranks: usize, args: &[String]) -> Ran {
    Ran::of(command(folder, n_ranks, args)).exits(0)
}

fn losses(folder: &Folder, run: &str) -> Vec<f64> {
    losses_of(folder.read(&format!("{run}/metrics.jsonl")).as_bytes())
}

fn weights(folder: &Folder, run: &str) -> Vec<u8> {
    std::fs::read(folder.path(format!("{run}/last")))
        .map(|last| String::from_utf8(last).expect("a name"))
        .and_then(|last| std::fs::read(folder.path(format!("{run}/checkpoints/{}/model.safetensors", last.trim()))))
        .expect("a checkpoint")
}

#[test]
fn ranks_repeat_losses_of_one_process() {
    let folder = Folder::new();
    for kind in ["adamw", "muon"] {
        let kind_is = format!("optimizer.kind=\"{kind}\"");
        let settings = [&STEPS[..], &[&kind_is]].concat();
        let run = |name: &str| train(&format!("{kind}-{name}"), &settings);
        succeed(&folder, 0, &run("one"));
        let expected = losses(&folder, &format!("{kind}-one"));
        assert_eq!(expected.len(), 201);
        assert!(expected[0] - expected[199] > 0.2, "it learns: {} to {}", expected[0], expected[199]);
        for n_ranks in [1, 2, 3, 4] {
            let name = n_ranks.to_string();
            let ran = succeed(&folder, n_ranks, &run(&name));
            let is_shared = n_ranks > 1;
            assert_eq!(ran.stderr.contains(&format!("{n_ranks} ranks of ")), is_shared, "{}", ran.stderr);
            assert_eq!(ran.stderr.contains(&format!(" tokens/s  {n_ranks} ranks: ")), is_shared, "{}", ran.stderr);
            let timings = folder.read(&format!("{kind}-{name}/timings.jsonl"));
            assert_eq!(timings.matches("\"communication_share\":0.").count(), if is_shared { 200 } else { 0 });
            let found = losses(&folder, &format!("{kind}-{name}"));
            let difference = largest_difference(&found, &expected);
            assert!(difference < 1e-5, "{kind}, {n_ranks} ranks: {difference}");
        }
    }
}

#[test]
fn equal_ranks_write_equal_bytes_even_without_rows() {
    let folder = Folder::new();
    let settings = [&STEPS[..], &["train.max_steps=20"]].concat();
    for run in ["a", "b"] {
        succeed(&folder, 2, &train(run, &settings));
    }
    assert!(weights(&folder, "a") == weights(&folder, "b"));
    assert_eq!(folder.read("a/metrics.jsonl"), folder.read("b/metrics.jsonl"));
    let settings = [&settings[..], &["train.batch_size=2"]].concat();
    succeed(&folder, 0, &train("one", &settings));
    succeed(&folder, 3, &train("three", &settings));
    let difference = largest_difference(&losses(&folder, "three"), &losses(&folder, "one"));
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn ranks_share_evaluations() {
    let folder = Folder::new();
    let settings = [&STEPS[..], &["train.max_steps=8", "train.eval_interval=4", "train.eval_batches=7"]].concat();
    succeed(&folder, 0, &train("one", &settings));
    let mut estimates = Vec::new();
    for n_ranks in [0, 2, 3, 4] {
        let run = format!("from-{n_ranks}");
        let mut args = train(&run, &settings);
        args.extend(["--from", "one/last"].map(str::to_owned));
        succeed(&folder, n_ranks, &args);
        let metrics = folder.read(&format!("{run}/metrics.jsonl"));
        estimates.push(metrics.lines().next().expect("the weights that it starts from").to_owned());
        let end: Value = serde_json::from_str(metrics.lines().last().expect("the end")).expect("JSON");
        let again = folder.json(&["eval", &format!("{run}/last"), "--json"]);
        assert_eq!(end["val_loss"], again["loss"], "{n_ranks} ranks, the last weights");
        let again = folder.json(&["eval", &run, "--json"]);
        assert_eq!(end["best_val_loss"], again["loss"], "{n_ranks} ranks, the best checkpoint");
    }
    assert!(estimates[0].contains("val_loss_estimate"), "{}", estimates[0]);
    assert!(estimates.iter().all(|estimate| *estimate == estimates[0]), "{estimates:#?}");
}

#[test]
fn ranks_with_other_config_or_text_end_run() {
    let folder = Folder::new();
    let both = |second: &[&str]| {
        let mut command = mpirun(&folder);
        command.args(["-n", "1"]).arg(tinderbox()).args(["train", "tiny.toml", ":", "-n", "1"]);
        let (options, args) = second.split_at(second.iter().position(|arg| *arg == "train").expect("a command"));
        command.args(options).arg(tinderbox()).args(args);
        Ran::of(command).exits(1).stderr
    };
    let said = both(&["train", "tiny.toml", "--set", "train.seed=7"]);
    assert!(said.contains(" has another config than rank 0 on "), "{said}");

    fs::create_dir(folder.path("elsewhere"));
    folder.write("elsewhere/text.txt", folder.read("text.txt") + "More.\n");
    folder.write("elsewhere/tiny.toml", folder.read("tiny.toml"));
    let elsewhere = folder.path("elsewhere");
    let said = both(&["-wdir", &elsewhere.to_string_lossy(), "train", "tiny.toml"]);
    assert!(said.contains(" has another text than rank 0 on "), "{said}");
    assert!(!folder.path("elsewhere/runs").exists(), "only rank 0 writes");
}

/// As if launched by another MPI.
#[test]
fn process_without_peers_is_refused() {
    let folder = Folder::new();
    let mut command = folder.program(tinderbox());
    command.args(["train", "tiny.toml"]).env("PMI_SIZE", "4");
    let said = Ran::of(command).exits(1).stderr;
    assert!(said.contains("the launcher started 4 processes, and MPI finds 1\n  hint: "), "{said}");
    assert!(!folder.path("runs").exists());
}

fn process_of_rank(mpirun: u32, rank: usize) -> u32 {
    let children = Command::new("pgrep").args(["-P", &mpirun.to_string()]).output().expect("pgrep is there");
    let children = String::from_utf8(children.stdout).expect("numbers");
    let is_rank = |id: &u32| {
        let variables = std::fs::read_to_string(format!("/proc/{id}/environ")).unwrap_or_default();
        variables.split('\0').any(|variable| variable == format!("OMPI_COMM_WORLD_RANK={rank}"))
    };
    children.lines().map(|line| line.parse().expect("a number")).find(is_rank).expect("the rank is there")
}

#[test]
fn interrupt_saves_and_killed_rank_ends_others() {
    let folder = Folder::new();
    let settings = [&STEPS[..], &["train.max_steps=100000"]].concat();
    let start = |args: &[String]| {
        let mut command = command(&folder, 2, args);
        command.stdin(Stdio::null());
        Started::of(command)
    };
    let args = train("long", &settings);
    let mut running = start(&args);
    running.wait_for(" 5/100,000");
    signal("-INT", process_of_rank(running.id(), 0));
    running.finish().exits(130);
    let before = weights(&folder, "long");

    let resumed = [&args[..], &["--resume".to_owned()]].concat();
    let mut running = start(&resumed);
    running.wait_for("resuming");
    running.wait_for("/100,000");
    signal("-KILL", process_of_rank(running.id(), 1));
    let ran = running.finish();
    assert!(ran.code.is_none_or(|code| code != 0), "{}", ran.stderr);
    assert!(weights(&folder, "long") == before, "the last checkpoint stands");
}

#[test]
fn hung_rank_is_named() {
    for hung in [1, 0] {
        let folder = Folder::new();
        let steps = ["train.max_steps=100000", "train.checkpoint_interval=5", "distributed.timeout_s=2"];
        let mut command = command(&folder, 4, &train("hung", &[&STEPS[..], &steps].concat()));
        command.stdin(Stdio::null());
        let mut running = Started::of(command);
        running.wait_for("saved ");
        signal("-STOP", process_of_rank(running.id(), hung));
        let ran = running.finish();
        assert!(ran.code.is_none_or(|code| code != 0), "{}", ran.stderr);
        let named = format!("rank {hung} on ");
        let line = ran.stderr.lines().find(|line| line.contains("kept the others waiting for 2 s"));
        let line = line.unwrap_or_else(|| panic!("{}", ran.stderr));
        assert!(line.contains(&named) && line.matches("rank ").count() == 1, "{line}");
        assert!(!weights(&folder, "hung").is_empty(), "the last checkpoint stands");
    }
}

#[test]
fn local_rank_reports_skipped_steps() {
    let folder = Folder::new();
    // Weights that hardly change: about every second loss is above the mean.
    let local = ["distributed.sync=\"local\"", "train.skip_loss_spikes=0.01", "train.max_steps=90"];
    let still = ["optimizer.learning_rate=1e-6", "optimizer.muon_learning_rate=1e-6"];
    let ran = succeed(&folder, 2, &train("run", &[&STEPS[..], &local, &still].concat()));
    let by_rank_1 = |line: &&str| line.contains("rank 1 on ") && line.contains("skipped: its loss ");
    assert!(ran.stderr.lines().any(|line| by_rank_1(&line)), "{}", ran.stderr);
}
