//! A flag that is given changes something, or is refused by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::finetune;
use crate::fixtures::{Folder, files, set};

/// A command with arguments, and flags.
type Row = (&'static str, &'static str, &'static [&'static [&'static str]]);

/// A flag, and what it shows, prints or leaves.
type Shown = (&'static str, &'static str);

/// Flags of commands that generate.
const SAMPLING: &[&str] = &[
    "--temperature 0",
    "--top-k 1",
    "--top-p 0.01",
    "--min-p 0.9",
    "--repetition-penalty 9",
    "--seed 5",
    "--weights int8",
    "--adapter runs/tuned",
];

/// Flags of commands that draw.
const DRAWN: &[&str] =
    &["--adapter runs/tuned", "--format json", "--format svg", "--format html --output new.html", "--output new.txt"];

/// Flags of commands that read a folder.
const SELECTED: &[&str] = &["--include a*", "--exclude a*"];

/// Flags of commands that read a folder, where there is none.
const UNSELECTED: &[&str] = &["--include a*", "--exclude a*", "--skip-bad-files"];

/// Training, and what follows. Each flag changes what the command prints or the files that it leaves.
static MODELS: [Row; 15] = [
    (
        "train",
        "tiny.toml --set train.max_steps=2",
        &[&["--set train.seed=1", "--run-dir runs/new", "--from runs/base", "--json"]],
    ),
    (
        "finetune",
        "runs/base --data my.jsonl --set train.max_steps=2",
        &[&[
            "--run-dir runs/new",
            "--method full",
            "--template chatml",
            "--set train.seed=1",
            "--general-text some.txt",
            "--no-comparison",
            "--print-config",
            "--json",
            "--skip-bad-files",
        ]],
    ),
    (
        "finetune",
        "runs/base --data my.jsonl --print-config",
        &[&["--epochs 3", "--device ndarray", "--map prompt=question"]],
    ),
    ("finetune", "runs/base --data recs --print-config", &[SELECTED]),
    (
        "generate",
        "runs/base --max-new-tokens 9",
        &[
            SAMPLING,
            &["--prompt The", "--prompt-file some.txt", "--num-samples 2", "--json-schema schema.json", "--raw"],
        ],
    ),
    ("generate", "runs/plain --prompt The --max-new-tokens 60", &[&["--stop e"]]),
    ("generate", "runs/base --weights int8 --max-new-tokens 60", &[&["--activations int8"]]),
    ("chat", "runs/base --max-new-tokens 6", &[SAMPLING, &["--system no"]]),
    ("chat", "runs/base --weights int8 --max-new-tokens 40", &[&["--activations int8"]]),
    ("eval", "runs/plain --json", &[UNSELECTED, &["--split train", "--text some.txt"]]),
    ("eval", "runs/base --text some.txt --json", &[UNSELECTED, &["--weights int8", "--adapter runs/tuned"]]),
    ("eval", "runs/base --text some.txt --weights int8 --json", &[&["--activations int8"]]),
    ("eval", "runs/plain", &[&["--json"]]),
    ("eval", "runs/base --data alpaca.jsonl --json", &[&["--map input=source"]]),
    ("eval", "runs/base --data recs --json", &[SELECTED, &["--map prompt=question"]]),
];

static FILES: [Row; 21] = [
    ("export", "runs/tuned --to hf", &[&["--dtype bf16", "--adapter", "--output new"]]),
    ("merge", "runs/base --run-dir runs/new --adapter runs/tuned", &[]),
    ("import", "theirs --run-dir runs/new", &[&["--base runs/base"]]),
    ("verify", "runs/base --against theirs", &[&["--prompt hen", "--text one.txt", "--json"]]),
    ("tokenizer encode", "runs/base", &[&["--file some.txt", "--ids", "--json"]]),
    (
        "tokenizer show",
        "runs/base",
        &[&["--file some.txt", "--color always", "--format json", "--format svg", "--output new.txt"]],
    ),
    ("tokenizer show", "runs/base --format html", &[&["--color always"]]),
    ("tokenizer info", "runs/base", &[&["--json"]]),
    (
        "data preview",
        "runs/base --data my.jsonl",
        &[UNSELECTED, &["--n-shown 1", "--set finetune.max_tokens=20", "--json", "--map prompt=question"]],
    ),
    ("data preview", "runs/base --data alpaca.jsonl", &[&["--map input=source"]]),
    ("data preview", "runs/base --data recs", &[SELECTED]),
    (
        "data preview",
        "runs/tuned",
        &[&[
            "--data alpaca.jsonl",
            "--format json",
            "--format svg",
            "--format html --output new.html",
            "--output new.txt",
        ]],
    ),
    ("cache clear", "--cache-dir other", &[&["--texts", "--json"]]),
    ("runs", "--json", &[&["--sort time"]]),
    ("metrics", "runs/plain", &[&["--csv", "--json", "--every 7", "--all"]]),
    ("metrics", "runs/plain --csv", &[&["--every 7", "--all"]]),
    ("metrics", "runs/plain --json", &[&["--every 7", "--all"]]),
    ("report", "runs/plain", &[&["--output new.html"]]),
    ("report", "runs/plain runs/base", &[&["--output new.html", "--device ndarray"]]),
    ("man", "", &[&["--output new"]]),
    (
        "init",
        "",
        &[
            UNSELECTED,
            &["--preset gpt2", "--all", "--output new.toml", "--overwrite"],
            &["--minutes 5", "--tokenizer char", "--text-field a", "--device cpu"],
        ],
    ),
];

static INSPECTED: [Row; 18] = [
    (
        "inspect attention",
        "runs/base --prompt the.hen.sat.by.the.tree",
        &[DRAWN, &["--layer 1", "--head 1", "--color always", "--width 40"]],
    ),
    ("inspect attention", "runs/base --prompt hen --prompt the", &[&["--prompt cat"]]),
    ("inspect attention", "runs/base --prompt hen --format json", &[&["--color always", "--width 40"]]),
    ("inspect attention", "runs/base --prompt-file some.txt --format svg", &[&["--color always", "--width 40"]]),
    (
        "inspect explain",
        "runs/base --prompt hen",
        &[DRAWN, &["--prompt cat", "--token 0", "--layer 0 --head 0", "--head 1 --layer 1"]],
    ),
    ("inspect explain", "runs/base --prompt-file one.txt", &[]),
    ("inspect embeddings", "runs/base --word e --prompt hen --prompt men", &[DRAWN, &["--context n", "--positions"]]),
    ("inspect embeddings", "runs/base --word e --context n --prompt-file one.txt", &[]),
    ("inspect embeddings", "runs/base --word e --prompt hen --prompt men --format json", &[&["--positions"]]),
    ("inspect heads", "runs/base", &[DRAWN, UNSELECTED, &["--text some.txt", "--windows 2"]]),
    ("inspect heads", "runs/base --text texts", &[SELECTED]),
    ("inspect map", "runs/base", &[DRAWN, UNSELECTED, &["--text some.txt", "--tokens 9"]]),
    (
        "inspect ablate",
        "runs/base --max-batches 2",
        &[DRAWN, UNSELECTED, &["--text some.txt", "--method zero", "--color always"]],
    ),
    ("inspect ablate", "runs/base --max-batches 1 --format json", &[&["--color always"]]),
    ("inspect compare", "runs/base runs/plain --prompt hen", &[DRAWN, &["--prompt cat", "--color always"]]),
    ("inspect compare", "runs/base runs/plain --prompt-file one.txt --format svg", &[&["--color always"]]),
    (
        "inspect lens",
        "runs/base --prompt hen",
        &[DRAWN, &["--prompt cat", "--token 0", "--top 2", "--answer x", "--against y", "--color always", "--graph"]],
    ),
    (
        "inspect lens",
        "runs/base --prompt-file one.txt --answer x --against y --format json",
        &[&["--patch-from men", "--color always"]],
    ),
];

/// Commands whose output is another each time, with flags, each with what it shows, prints or leaves.
static SHOWN: [(&str, &str, &[Shown]); 14] = [
    (
        "plan",
        "tiny.toml --no-measure",
        &[
            ("--set model.d_model=32", "26,304"),
            ("--from runs/base", "the tokenizer of `runs/base`"),
            ("--ranks 2", "2 ranks"),
            ("--json", "{\""),
            ("--json --output new.json", "new.json"),
            ("--format svg", "<svg"),
            ("--output new.txt", "new.txt"),
        ],
    ),
    (
        "init",
        "--from-text texts --device cpu --minutes 0.01",
        &[
            ("--text-field body", "text_field = \"body\""),
            ("--include *.txt", "include = ["),
            ("--exclude *.md", "exclude = ["),
            ("--skip-bad-files", "skip_bad_files = true"),
            ("--tokenizer byte", "kind = \"byte\""),
        ],
    ),
    (
        "sweep",
        "tiny.toml --space optimizer.learning_rate=1e-3,1e-2 --budget 1s --set train.max_steps=2",
        &[
            ("--seeds 2", "trial-000-seed-1"),
            ("--method grid --space model.dropout=0..0.5", "a grid takes lists only"),
            ("--max-parameters 7007", "7,008 parameters are more than"),
            ("--sweep-dir new", "new/sweep.html"),
            ("--json", "{\"sweep_dir\""),
        ],
    ),
    (
        "bench train",
        "tiny.toml --steps 1 --rounds 1 --warm-up 1 --json --set train.batch_size=1",
        &[("--set train.batch_size=2", "\"tokens_per_step\":32"), ("--own-text", "\"text\":\"own\"")],
    ),
    ("bench train", "tiny.toml --steps 1 --rounds 1 --warm-up 1", &[("--json", "{\"")]),
    ("bench train", "tiny.toml", &[("--rounds 1 --steps 2 --warm-up 1", "1 rounds of 2 steps each after 1 ")]),
    (
        "bench generate",
        "runs/base --rounds 1 --new-tokens 2 --prompt-tokens 3 --json",
        &[
            ("--batch-size 2", "\"batch_size\":2,"),
            ("--set model.d_model=32", "--set"),
            ("--weights int8", "\"weights\":\"int8\""),
            ("--weights int8 --activations int8", "\"activations\":\"int8\""),
        ],
    ),
    ("runs", "runs/plain", &[("--json", "\"run\":")]),
    ("cache", "", &[("--cache-dir other", "in `other`"), ("--json", "{\"")]),
    ("cache list", "", &[("--cache-dir other", "in `other`"), ("--json", "{\"")]),
    ("devices", "", &[("--json", "{\"")]),
    ("eval", "runs/plain --text bad", &[("--skip-bad-files", "bits per byte")]),
    ("inspect heads", "runs/plain --text bad", &[("--skip-bad-files", "entropy")]),
    ("data preview", "runs/base --data badrecs", &[("--skip-bad-files", "record 1 ")]),
];

/// Flags that change nothing here: other devices compute the same, proposals are kept only if they are right, the memory
/// is enough, and standard output is no terminal. Tests of their own have them, and those that replace or continue.
const SAME: [&str; 8] =
    ["--device", "--speculate", "--force", "--tui", "--overwrite", "--resume", "--help", "--version"];

/// Flags of the server, each with what it shows, prints or responds then; nothing: something else than without.
pub static SERVED: [Shown; 11] = [
    ("--host 0.0.0.0", "--no-auth"),
    ("--host 0.0.0.0 --no-auth", "everybody who can reach"),
    ("--adapter runs/tuned", "base+tuned"),
    ("--parallel 3", "\"slots\":3"),
    ("--weights int8", ""),
    ("--weights int8 --activations int8", ""),
    ("--activations int8", "--activations int8 needs"),
    ("--api-key-file keys", "this server needs an API key"),
    ("--allow-origin http://localhost:3000", "access-control-allow-origin: http://localhost:3000"),
    ("--runs runs", "--runs"),
    ("--device ndarray --speculate 2", "--speculate"),
];

/// A folder with what the commands read.
pub static PLACE: LazyLock<BTreeMap<PathBuf, Vec<u8>>> = LazyLock::new(|| {
    let folder = finetune::folder();
    // Its text is here, too.
    let config = folder.read("runs/base/config.toml");
    let here = config.lines().map(|line| match line.split_once(" = ") {
        Some(("path", _)) => "path = \"text.txt\"",
        Some(("cache_dir", _)) => "cache_dir = \"cache\"",
        _ => line,
    });
    folder.write("runs/base/config.toml", here.collect::<Vec<_>>().join("\n"));
    folder.train_as("runs/plain", &["train.max_steps=30", "train.log_interval=1"]);
    let tune = ["--set", "train.max_steps=4", "--set", "optimizer.learning_rate=0.1", "--no-comparison"];
    folder.succeed(&[&["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", "runs/tuned"], &tune[..]].concat());
    // The last run is the worst, and its text came from standard input.
    let piped = set(&["data.path=-", "data.cache_dir=other", "train.max_steps=1"]);
    let ran =
        folder.pipe(&[&["train", "tiny.toml", "--run-dir", "runs/worst"], &*piped].concat(), folder.read("text.txt"));
    ran.exits(0);
    folder.succeed(&["export", "runs/base", "--to", "hf", "--output", "theirs"]);
    folder.write("said.txt", "hi\n");
    folder.write("one.txt", "hen");
    folder.write("keys", "secret\n");
    for path in ["some.txt", "texts/a.txt", "bad/a.txt"] {
        folder.write(path, "The hen was 7 old.\n".repeat(9));
    }
    folder.write("texts/b.md", "The cat sat by the tree.\n".repeat(9));
    let alpaca = "{\"instruction\": \"is it\", \"output\": \"yes\", \"source\": \"3\"}\n".repeat(9);
    folder.write("alpaca.jsonl", &alpaca);
    folder.write("recs/a.jsonl", folder.read("my.jsonl"));
    folder.write("recs/b.jsonl", alpaca.replace("source", "input"));
    folder.write("badrecs/a.jsonl", folder.read("my.jsonl"));
    for path in ["bad/c.png", "badrecs/c.png"] {
        folder.write(path, b"\x89PNG\r\n\x1a\n");
    }
    folder.write("schema.json", r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}}}"#);
    files(&folder.path(""))
});

/// A copy of the place.
pub fn placed() -> Folder {
    let folder = Folder::new();
    PLACE.iter().for_each(|(path, contents)| folder.write(path, contents));
    folder
}

/// What a command says, and the files that it leaves but those with the time in them.
type Outputs = (Vec<u8>, BTreeMap<PathBuf, Vec<u8>>);

/// Runs a command; returns its exit code, its outputs and its standard error.
fn run(command: &str) -> (Option<i32>, Outputs, String) {
    let folder = placed();
    let mut command = folder.command(&command.split_whitespace().collect::<Vec<_>>());
    let said = File::open(folder.path("said.txt")).expect("it was written");
    let output = command.stdin(said).output().expect("the program starts");
    let mut left = files(&folder.path(""));
    let has_time = ["timings.jsonl", "train.log", "report.html", "state.json"];
    let is_cache = |path: &PathBuf| path.starts_with("cache") || path.starts_with(".cache");
    left.retain(|path, _| !is_cache(path) && !has_time.iter().any(|name| path.ends_with(name)));
    (output.status.code(), (output.stdout, left), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn name_of(flag: &str) -> &str {
    flag.split(' ').next().expect("a flag")
}

fn check(rows: &[Row]) {
    let mut ignored = Vec::new();
    for (command, args, flags) in rows {
        let command_line = format!("{command} {args}");
        let (code, plain, stderr) = run(&command_line);
        assert_eq!(code, Some(0), "{command_line}: {stderr}");
        if flags.is_empty() {
            continue; // these would be given twice
        }
        assert!(plain == run(&command_line).1, "{command_line} does something else each time");
        for flag in flags.iter().copied().flatten() {
            let (code, outputs, stderr) = run(&format!("{command_line} {flag}"));
            let is_refused = matches!(code, Some(1 | 2)) && stderr.contains(name_of(flag));
            let is_used = code == Some(0) && outputs != plain;
            if !is_refused && !is_used {
                ignored.push(format!("{command_line} {flag}: {code:?} {stderr}"));
            }
        }
    }
    assert!(ignored.is_empty(), "{}", ignored.join("\n"));
}

#[test]
fn every_flag_of_models_changes_something_or_is_refused() {
    check(&MODELS);
}

#[test]
fn every_flag_of_files_changes_something_or_is_refused() {
    check(&FILES);
}

#[test]
fn every_flag_of_inspections_changes_something_or_is_refused() {
    check(&INSPECTED);
}

#[test]
fn every_flag_of_measurements_shows() {
    let everything = |command_line: &str| {
        let (_, (stdout, left), mut text) = run(command_line);
        text += &String::from_utf8_lossy(&stdout);
        for (path, contents) in left.iter().filter(|(path, contents)| PLACE.get(*path) != Some(*contents)) {
            writeln!(text, "{}\n{}", path.display(), String::from_utf8_lossy(contents)).expect("a string");
        }
        text
    };
    for (command, args, flags) in SHOWN {
        let plain = everything(&format!("{command} {args}"));
        for (flag, shown) in flags {
            let command_line = format!("{command} {args} {flag}");
            let text = everything(&command_line);
            assert!(!plain.contains(shown) && text.contains(shown), "{command_line}: no {shown} in {text}");
        }
    }
}

/// The words after the heading `Commands:`, and the flags.
fn listed(help: &str) -> (Vec<&str>, Vec<&str>) {
    let names = help.split("\nCommands:\n").nth(1).into_iter().flat_map(str::lines).take_while(|line| !line.is_empty());
    let names = names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let flags = lines.filter_map(|line| line.split([' ', ',', ']']).find(|word| word.starts_with("--")));
    (names.filter(|name| *name != "help").collect(), flags.collect())
}

#[test]
fn every_flag_of_every_command_is_in_a_table() {
    let folder = Folder::new();
    let mut given: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let rows = [&MODELS[..], &FILES, &INSPECTED].concat();
    for (command, args, flags) in rows {
        let words = args.split(' ').chain(flags.iter().copied().flatten().map(|flag| name_of(flag)));
        given.entry(command.to_owned()).or_default().extend(words);
    }
    let shown = SHOWN.iter().flat_map(|(command, args, flags)| {
        [*args].into_iter().chain(flags.iter().map(|(flag, _)| *flag)).map(move |words| (*command, words))
    });
    for (command, words) in shown.chain(SERVED.map(|(flag, _)| ("serve", flag))).chain([("serve", "--port 0")]) {
        given.entry(command.to_owned()).or_default().extend(words.split(' '));
    }
    let mut commands = vec![String::new()];
    while let Some(command) = commands.pop() {
        let help = folder.succeed(&command.split_whitespace().chain(["--help"]).collect::<Vec<_>>());
        let (names, flags) = listed(&help);
        commands.extend(names.into_iter().map(|name| format!("{command} {name}").trim_start().to_owned()));
        let is_known = |flag: &&str| SAME.contains(flag) || given.get(&command).is_some_and(|it| it.contains(*flag));
        let missing: Vec<&str> = flags.into_iter().filter(|flag| !is_known(flag)).collect();
        assert!(missing.is_empty(), "{command}: add {missing:?} to a table");
    }
}
