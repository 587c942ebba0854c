//! The elementary functions of the C library differ in their last bits between systems: `c_library.c` changes them, and
//! weights, losses and completions stay the same.

use std::path::Path;
use std::process::Command;

use crate::fixtures::{Folder, Ran, files, set};

const SETTINGS: [&str; 9] = [
    "train.max_steps=6",
    "model.position=rope",
    "model.norm=rms_norm",
    "model.mlp=geglu",
    "model.qk_norm=true",
    "model.dropout=0.1",
    "model.logit_softcap=20.0",
    "optimizer.kind=muon",
    "schedule.kind=cosine",
];

/// The completion of a new model, and the weights, metrics and samples of it and of its fine-tunings.
fn outcome(library: Option<&Path>) -> Vec<(String, Vec<u8>)> {
    let folder = Folder::new();
    let pair =
        |animal: &str| format!("{{\"prompt\": \"The {animal} was \", \"chosen\": \"old\", \"rejected\": \"by\"}}\n");
    folder.write("pairs.jsonl", ["cat", "dog", "hen"].map(pair).concat().repeat(4));
    let run = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.envs(library.map(|library| ("LD_PRELOAD", library)));
        Ran::of(command).exits(0).stdout
    };
    run(&[&["train", "tiny.toml"][..], &*set(&SETTINGS)].concat());
    let text = run(&["generate", "runs/tiny", "--prompt", "The", "--max-new-tokens", "60", "--top-k", "0"]);
    let mut outcome = vec![("text".to_owned(), text.into_bytes())];
    for [loss, run_dir] in [["dpo", "runs/dpo"], ["orpo", "runs/orpo"]] {
        let preference = format!("finetune.preference={loss}");
        let settings = set(&[&preference, "train.max_steps=3", "train.device=cpu"]);
        run(&[&["finetune", "runs/tiny", "--data", "pairs.jsonl", "--run-dir", run_dir][..], &*settings].concat());
    }
    let of_runs = files(&folder.path("runs")).into_iter().map(|(path, bytes)| (path.display().to_string(), bytes));
    let ends = [".safetensors", "metrics.jsonl", "samples.txt"];
    outcome.extend(of_runs.filter(|(path, _)| ends.iter().any(|end| path.ends_with(end))));
    outcome
}

#[test]
fn c_library_changes_no_bits() {
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let library = elsewhere.path().join("c_library.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/c_library.c");
    let mut compile = Command::new("cc");
    compile.args(["-fno-builtin", "-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]);
    assert!(compile.status().expect("Rust needs a C compiler, too").success());
    let (usual, other) = (outcome(None), outcome(Some(&library)));
    assert!(usual.len() > 8, "{} files", usual.len());
    for ((name, usual), (_, other)) in usual.iter().zip(&other) {
        assert!(usual == other, "{name} differs");
    }
}
