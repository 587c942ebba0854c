//! A flag that is given changes something, or is refused by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use crate::finetune;
use crate::fixtures::{Folder, files};

/// Commands with their flags, each of which changes what the command prints or the files that it leaves.
const COMMANDS: [(&str, &str, &[&str]); 15] = [
    (
        "train",
        "tiny.toml --set train.max_steps=2",
        &["--set train.seed=1", "--run-dir runs/new", "--from runs/base", "--json"],
    ),
    (
        "finetune",
        "runs/base --data my.jsonl --set train.max_steps=2",
        &[
            "--run-dir runs/new",
            "--method full",
            "--template chatml",
            "--set train.seed=1",
            "--general-text some.txt",
            "--no-comparison",
            "--print-config",
            "--json",
        ],
    ),
    (
        "finetune",
        "runs/base --data my.jsonl --print-config",
        &["--epochs 3", "--device ndarray", "--map prompt=question"],
    ),
    (
        "generate",
        "runs/base --max-new-tokens 9",
        &[
            "--prompt The",
            "--prompt-file some.txt",
            "--num-samples 2",
            "--temperature 0",
            "--top-k 1",
            "--top-p 0.01",
            "--min-p 0.9",
            "--repetition-penalty 9",
            "--seed 5",
            "--json-schema schema.json",
            "--raw",
            "--weights int8",
            "--adapter runs/tuned",
        ],
    ),
    ("generate", "runs/plain --prompt The --max-new-tokens 60", &["--stop e"]),
    ("generate", "runs/base --weights int8 --max-new-tokens 60", &["--activations int8"]),
    (
        "chat",
        "runs/base --max-new-tokens 6",
        &[
            "--system no",
            "--temperature 0",
            "--top-k 1",
            "--top-p 0.01",
            "--min-p 0.9",
            "--repetition-penalty 9",
            "--seed 5",
            "--weights int8",
            "--adapter runs/tuned",
        ],
    ),
    ("eval", "runs/plain --json", &["--split train", "--text some.txt"]),
    ("eval", "runs/base --text some.txt --json", &["--weights int8", "--adapter runs/tuned"]),
    ("chat", "runs/base --weights int8 --max-new-tokens 40", &["--activations int8"]),
    ("eval", "runs/plain", &["--json"]),
    ("eval", "runs/base --data alpaca.jsonl --json", &["--map input=source"]),
    ("eval", "runs/base --text some.txt --weights int8 --json", &["--activations int8"]),
    ("export", "runs/tuned --to hf", &["--dtype bf16", "--adapter", "--output new"]),
    ("merge", "runs/base --run-dir runs/new --adapter runs/tuned", &[]),
];

/// Flags that change nothing here: other devices compute the same, proposals are kept only if they are right, the memory
/// is enough, and standard output is no terminal. Tests of their own have them, and those that replace or continue.
const SAME: [&str; 7] = ["--device", "--speculate", "--force", "--tui", "--overwrite", "--resume", "--help"];

/// What a command says, and the files that it leaves but those with the time in them.
type Outputs = (Vec<u8>, BTreeMap<PathBuf, Vec<u8>>);

/// Runs a command; returns its exit code, its outputs and its standard error.
fn run(place: &BTreeMap<PathBuf, Vec<u8>>, command: &str) -> (Option<i32>, Outputs, String) {
    let folder = Folder::new();
    for (path, contents) in place {
        folder.write(path, contents);
    }
    let mut command = folder.command(&command.split_whitespace().collect::<Vec<_>>());
    let said = File::open(folder.path("said.txt")).expect("it was written");
    let output = command.stdin(said).output().expect("the program starts");
    let mut left = files(&folder.path(""));
    let has_time = ["timings.jsonl", "train.log", "report.html", "state.json"];
    let is_cache = |path: &PathBuf| path.starts_with("cache") || path.starts_with(".cache");
    left.retain(|path, _| !is_cache(path) && !has_time.iter().any(|name| path.ends_with(name)));
    (output.status.code(), (output.stdout, left), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_flag_changes_something_or_is_refused() {
    let folder = finetune::folder();
    folder.train_as("runs/plain", &["train.max_steps=20"]);
    let tune = ["--set", "train.max_steps=4", "--set", "optimizer.learning_rate=0.1", "--no-comparison"];
    folder.succeed(&[&["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", "runs/tuned"], &tune[..]].concat());
    folder.write("said.txt", "hi\n");
    folder.write("some.txt", "The hen was 7 old.\n".repeat(9));
    folder.write("alpaca.jsonl", "{\"instruction\": \"is it\", \"output\": \"yes\", \"source\": \"3\"}\n".repeat(9));
    folder.write("schema.json", r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}}}"#);
    let place = files(&folder.path(""));
    let mut given: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (command, args, flags) in COMMANDS {
        let command_line = format!("{command} {args}");
        let (code, plain, stderr) = run(&place, &command_line);
        assert_eq!(code, Some(0), "{command_line}: {stderr}");
        assert!(plain == run(&place, &command_line).1, "{command_line} does something else each time");
        for flag in flags {
            let (code, outputs, stderr) = run(&place, &format!("{command_line} {flag}"));
            let name = flag.split(' ').next().expect("a flag");
            let is_refused = code == Some(2) && stderr.contains(name);
            let is_used = code == Some(0) && outputs != plain;
            assert!(is_refused || is_used, "{command_line} {flag}: {code:?} {stderr}");
        }
        let words = args.split(' ').chain(flags.iter().filter_map(|flag| flag.split(' ').next()));
        given.entry(command).or_default().extend(words.filter(|word| word.starts_with("--")));
    }
    for (command, given) in given {
        let help = folder.succeed(&[command, "--help"]);
        let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        let flags = lines.filter_map(|line| line.split([' ', ',', ']']).find(|word| word.starts_with("--")));
        let is_known = |flag: &&str| given.contains(flag) || SAME.contains(flag);
        let missing: Vec<&str> = flags.filter(|flag| !is_known(flag)).collect();
        assert!(missing.is_empty(), "{command}: add {missing:?} to COMMANDS");
    }
}
