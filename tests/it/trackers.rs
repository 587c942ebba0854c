//! `TensorBoard` events, and the commands `metrics` and `runs`.

use std::path::Path;

use insta::assert_snapshot;
use prost::Message;
use serde_json::Value;
use tinderbox::run::RunDir;
use tinderbox::train::Start;

use crate::fixtures::{Folder, Place, assert_transcript, fs, list, number};

const EVENTS: &str = "tensorboard/events.out.tfevents.tinderbox";

#[derive(Debug, PartialEq)]
enum Logged {
    Number(u64, String, f32),
    Text(u64, String, String),
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(uint64, tag = "2")]
    step: u64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    number: Option<f32>,
    #[prost(message, optional, tag = "8")]
    text: Option<Texts>,
}

#[derive(Clone, PartialEq, Message)]
struct Texts {
    #[prost(string, repeated, tag = "8")]
    texts: Vec<String>,
}

/// Reads an event file. Unit tests compare the bytes of its records, checksums included, with Python's.
fn read_events(path: &Path) -> Vec<Logged> {
    let file = fs::read(path);
    let mut rest = &file[..];
    let mut logged = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let Event { step, summary } = Event::decode(&rest[12..12 + length]).expect("an event");
        for Entry { tag, number, text } in summary.into_iter().flat_map(|summary| summary.values) {
            logged.push(match (number, text) {
                (Some(number), None) => Logged::Number(step, tag, number),
                (None, Some(Texts { texts })) => Logged::Text(step, tag, texts.concat()),
                other => panic!("{tag}: {other:?}"),
            });
        }
        rest = &rest[16 + length..];
    }
    logged
}

/// The numbers of `metrics.jsonl` in the order of the events, except for timings.
fn expected_numbers(metrics: &str) -> Vec<Logged> {
    let tags = [
        ("train_loss", "loss/train"),
        ("learning_rate", "learning_rate"),
        ("gradient_norm", "gradient_norm"),
        ("gradient_norm.position_embedding", "gradient_norm/position_embedding"),
        ("gradient_norm.token_embedding", "gradient_norm/token_embedding"),
        ("gradient_norm.blocks.0", "gradient_norm/blocks.0"),
        ("gradient_norm.blocks.1", "gradient_norm/blocks.1"),
        ("gradient_norm.norm", "gradient_norm/norm"),
        ("train_loss_estimate", "loss/train_estimate"),
        ("val_loss_estimate", "loss/val_estimate"),
        ("val_bits_per_byte_estimate", "bits_per_byte/val_estimate"),
        ("val_loss", "loss/val"),
        ("val_bits_per_byte", "bits_per_byte/val"),
    ];
    let mut numbers = Vec::new();
    for line in metrics.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let step = line["step"].as_u64().expect("a step");
        for (key, tag) in tags {
            numbers.extend(line[key].as_f64().map(|value| Logged::Number(step, tag.to_owned(), value as f32)));
        }
    }
    numbers
}

/// Leaves out the numbers that depend on the clock.
fn without_speed(events: Vec<Logged>) -> Vec<Logged> {
    let is_speed = |event: &Logged| matches!(event, Logged::Number(_, tag, _) if tag == "tokens_per_s");
    assert!(events.iter().any(is_speed));
    events.into_iter().filter(|event| !is_speed(event)).collect()
}

#[test]
fn tensorboard_repeats_metrics() {
    let place = Place::new();
    let config = place.config(&["train.tensorboard=true"]);
    place.train("run", config, Start::New, None).expect("the run trains");
    let events = without_speed(read_events(&place.path("run").join(EVENTS)));
    let (numbers, texts): (Vec<Logged>, Vec<Logged>) =
        events.into_iter().partition(|event| matches!(event, Logged::Number(..)));
    let metrics = String::from_utf8(place.read("run/metrics.jsonl")).expect("the bytes are UTF-8");
    // The metrics have four digits of the norms by layer.
    let rounded = numbers.into_iter().map(|event| match event {
        Logged::Number(step, tag, value) if tag.starts_with("gradient_norm/") => {
            Logged::Number(step, tag, format!("{value:.3e}").parse().expect("a number"))
        }
        other => other,
    });
    assert_eq!(rounded.collect::<Vec<_>>(), expected_numbers(&metrics));
    for (event, at) in texts.iter().zip([4, 8, 10]) {
        let is_sample = matches!(event, Logged::Text(step, tag, text) if *step == at && tag == "sample" && text.starts_with("    "));
        assert!(is_sample, "{event:?}");
    }
    assert_eq!(texts.len(), 3);
    place.train("plain", place.config(&[]), Start::New, None).expect("the run trains");
    assert!(!place.path("plain/tensorboard").exists(), "only where it is asked for");
}

#[test]
fn resume_truncates_all_logs() {
    let place = Place::new();
    let all = ["train.tensorboard=true", "train.head_metrics=true", "train.keep_checkpoints=9"];
    let config = || place.config(&all);
    place.train("whole", config(), Start::New, None).expect("the run trains");
    place.train("died", config(), Start::New, Some(9)).expect("the run trains");
    let path = place.path("died").join(EVENTS);
    let file = fs::read(&path);
    // As if the process had been killed between steps 6 and 9, in mid-line and mid-save.
    fs::write(&path, &file[..file.len() - 5]);
    let half = [&place.read("died/metrics.jsonl")[..], b"{\"step\":9,\"tr"].concat();
    fs::write(place.path("died/metrics.jsonl"), half);
    fs::create_dir(place.path("died/checkpoints/.step-000010.partial"));
    fs::write(place.path("died/last"), "step-000006\n");
    place.train("died", config(), Start::Resume, None).expect("the run resumes");
    let read = |run: &str| without_speed(read_events(&place.path(run).join(EVENTS)));
    assert_eq!(read("died"), read("whole"));
    let is_of_heads = |event: &Logged| matches!(event, Logged::Number(_, tag, _) if tag == "heads/induction/1.0");
    assert!(read("whole").iter().any(is_of_heads));
    let weights = "checkpoints/step-000010/model.safetensors";
    place.assert_same("whole", "died", &[weights, "metrics.jsonl", "samples.txt", "head_metrics.jsonl"]);
    assert!(!place.path("died/checkpoints/.step-000010.partial").exists());
    let finished = fs::metadata(&path).expect("the log exists").len();
    let fewer = place.config(&["train.tensorboard=true", "train.max_steps=4"]);
    place.train("died", fewer, Start::Overwrite, None).expect("the run trains");
    assert!(fs::metadata(&path).expect("the log exists").len() < finished, "a new file");
    assert!(!place.path("died/head_metrics.jsonl").exists(), "only where it is asked for");
}

#[test]
fn metrics_prints_table_csv_and_json() {
    let folder = Folder::trained();
    let table = folder.succeed(&["metrics", "runs/tiny"]);
    let mut lines = table.lines();
    assert!(lines.next().expect("a heading").trim_start().starts_with("STEP  TRAIN LOSS"));
    // Behind an empty line come the gradient norms of the layers.
    assert_eq!(lines.take_while(|line| !line.is_empty()).count(), 8, "each fifth step of forty");

    let csv = folder.succeed(&["metrics", "runs/tiny", "--csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let headings = reader.headers().expect("headings").clone();
    let records: Vec<csv::StringRecord> = reader.records().map(|record| record.expect("it is whole")).collect();
    let at = |name: &str| headings.iter().position(|heading| heading == name).expect(name);
    let cells: Vec<[&str; 3]> = records
        .iter()
        .map(|record| ["step", "val_loss_estimate", "tokens_per_s"].map(|name| &record[at(name)]))
        .collect();
    let steps: Vec<&str> = cells.iter().map(|row| row[0]).collect();
    assert_eq!(steps, ["5", "10", "15", "20", "25", "30", "35", "40"]);
    assert!(cells[0][1].is_empty() && !cells[1][1].is_empty() && !cells[0][2].is_empty());
    let first: Value =
        serde_json::from_str(folder.read("runs/tiny/metrics.jsonl").lines().next().expect("a line")).expect("JSON");
    assert_eq!(records[0][at("train_loss")], first["train_loss"].to_string(), "the very number");
    assert!(!records[7][at("best_val_loss")].is_empty() && !records[7][at("wall_s")].is_empty());

    let json: Value =
        serde_json::from_str(&folder.succeed(&["metrics", "runs/tiny/last", "--json", "--every", "20"])).expect("JSON");
    let steps: Vec<&Value> = list(&json).iter().map(|row| &row["step"]).collect();
    assert_eq!(steps, [20, 40]);
}

#[test]
fn metrics_reads_torn_or_missing_logs() {
    let folder = Folder::trained();
    let half = folder.read("runs/tiny/metrics.jsonl") + "{\"step\":45,\"trai";
    folder.write("runs/tiny/metrics.jsonl", &half);
    let ran = folder.run(&["metrics", "runs/tiny"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    folder.write("runs/tiny/metrics.jsonl", "7\n".to_owned() + &half);
    let ran = folder.run(&["metrics", "runs/tiny", "--csv"]).exits(0);
    assert_snapshot!(ran.stderr, @"note: one line of the logs cannot be read and is left out");
    for log in ["metrics.jsonl", "timings.jsonl"] {
        fs::remove_file(folder.path("runs/tiny").join(log));
    }
    let ran = folder.run(&["metrics", "runs/tiny"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    assert_snapshot!(ran.stderr, @"note: the run has not logged anything yet");
    assert_eq!(folder.succeed(&["metrics", "runs/tiny", "--json"]), "[]\n");
    folder.misuse(&["metrics", "runs/tiny", "--every", "0"]);
}

/// The array that `runs` prints with `--json`.
fn facts(printed: &str) -> Vec<Value> {
    serde_json::from_str(printed).expect("an array")
}

/// A folder with finished runs, a stopped one, one of an older and one of a newer version, and unrelated entries.
fn folder_of_runs() -> Folder {
    let folder = Folder::trained();
    for name in ["short", "stopped", "old", "newer"] {
        folder.train_as(&format!("runs/{name}"), &["train.max_steps=20"]);
    }
    // As if killed after its first checkpoint.
    let metrics = folder.read("runs/stopped/metrics.jsonl");
    let first_lines: String = metrics.split_inclusive('\n').take(4).collect();
    folder.write("runs/stopped/metrics.jsonl", first_lines);
    folder.write("runs/stopped/last", "step-000010\n");
    // As older versions wrote it.
    let metrics = folder.read("runs/old/metrics.jsonl");
    folder.write("runs/old/metrics.jsonl", metrics.replace("\"best_", "\"no_"));
    fs::remove_file(folder.path("runs/old/timings.jsonl"));
    // As later versions might write it.
    let newer = folder.read("runs/newer/config.toml") + "novelty = 1\n";
    folder.write("runs/newer/config.toml", newer);
    for other in ["notes", ".cache", "broken"] {
        fs::create_dir(folder.path("runs").join(other));
    }
    folder.write("runs/broken/config.toml", "[train");
    folder.write("runs/todo.txt", "train more");
    folder
}

#[test]
fn runs_lists_sorts_and_marks_runs() {
    let folder = folder_of_runs();
    let ran = folder.run(&["runs", "--json"]).exits(0);
    let runs = facts(&ran.stdout);
    let of = |name: &str| {
        let path = format!("runs/{name}");
        runs.iter().find(|facts| facts["run"] == path.as_str()).unwrap_or_else(|| panic!("{name}"))
    };
    assert_eq!(runs.len(), 5);
    let done = of("tiny");
    assert_eq!((&done["status"], &done["step"], &done["is_estimate"]), (&"done".into(), &40.into(), &false.into()));
    assert_eq!(done["tokens"], 40 * 4 * 16);
    assert_eq!(done["device"], "flex");
    assert!(done["parameters"].as_u64() > Some(1000) && done["train_s"].as_f64() > Some(0.0));
    assert!(done["wall_s"].as_f64() > done["train_s"].as_f64());
    let eval: Value = folder.json(&["eval", "runs/tiny", "--json"]);
    for (ours, theirs) in [("val_loss", "loss"), ("val_bits_per_byte", "bits_per_byte")] {
        let (ours, theirs) = (number(&done[ours]), number(&eval[theirs]));
        assert!((ours - theirs).abs() < 1e-9, "{ours} and {theirs} are of the best checkpoint");
    }
    let stopped = of("stopped");
    assert_eq!(
        (&stopped["status"], &stopped["step"], &stopped["is_estimate"]),
        (&"stopped".into(), &10.into(), &true.into())
    );
    assert!(stopped["val_bits_per_byte"].is_number());
    let old = of("old");
    assert_eq!((&old["status"], &old["parameters"], &old["train_s"]), (&"done".into(), &Value::Null, &Value::Null));
    assert!(old["val_loss"].is_number() && old["val_bits_per_byte"].is_number());
    assert_eq!(of("newer")["status"], "done");
    assert_eq!(of("newer")["max_steps"], 20);
    assert_snapshot!(ran.stderr, @r"
    note: skipped: cannot read the config file `runs/broken/config.toml`: TOML parse error at line 1, column 7
    note: skipped: `runs/notes` is not a run
    ");

    let bits: Vec<f64> = runs.iter().map(|facts| number(&facts["val_bits_per_byte"])).collect();
    assert!(bits.is_sorted(), "{bits:?}");
    let by_time = facts(&folder.succeed(&["runs", "runs", "--json", "--sort", "time"]));
    let names: Vec<&Value> = by_time.iter().map(|facts| &facts["run"]).collect();
    assert_eq!(names, ["runs/newer", "runs/stopped", "runs/short", "runs/tiny", "runs/old"]);
    let table = folder.succeed(&["runs"]);
    assert_eq!(table.lines().count(), 6);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");

    let held = RunDir::lock(&folder.path("runs/stopped")).expect("no other process holds the run");
    let status = || facts(&folder.succeed(&["runs", "runs/stopped", "--json"]))[0]["status"].clone();
    assert_eq!(status(), "running");
    drop(held);
    assert_eq!(status(), "stopped");
}

#[test]
fn resumed_run_sums_its_time() {
    let place = Place::new();
    let train = |start, stop_after| place.train("run", place.config(&[]), start, stop_after).expect("the run trains").0;
    let (first, second) = (train(Start::New, Some(5)), train(Start::Resume, None));
    let run = place.run("run");
    let facts = tinderbox::run::RunInfo::read(&run).expect("it can be read");
    let sum = first.train_s + second.train_s;
    assert!((facts.train_s.expect("the log has the time") - sum).abs() < 1e-9);
    assert!(facts.wall_s >= Some(first.wall_s + second.wall_s - 1e-9));
}

#[test]
fn runs_compares_differing_settings() {
    let folder = Folder::trained();
    folder.train_as("runs/other", &["train.seed=7", "train.max_steps=20"]);
    let table = folder.succeed(&["runs", "runs/tiny", "runs/other"]);
    let words: Vec<&str> = table.split_whitespace().collect();
    assert!(words.starts_with(&["tiny", "other"]) && table.contains("\n\ntrain.max_steps"), "{table}");
    assert!(words.ends_with(&["train.max_steps", "40", "20", "train.seed", "1337", "7"]), "{table}");
    let json = facts(&folder.succeed(&["runs", "runs/tiny", "runs/other", "--json"]));
    assert_eq!(json[1]["differing_settings"]["train.seed"], 7);
    assert_eq!(json[0]["step"], 40);
    let one = folder.succeed(&["runs", "runs/other"]);
    assert!(one.starts_with("               other\nstatus         done\n"), "{one}");
}

#[test]
fn folder_without_runs_is_explained() {
    let folder = Folder::new();
    assert_snapshot!(folder.fail(&["runs"]), @r"
    error: there is no folder `runs`
      hint: train a run with `tinderbox train CONFIG`, or name the folder that holds yours
    ");
    fs::create_dir_all(folder.path("runs/notes"));
    assert_transcript!(folder, @r"
    $ runs
    error: there are no runs in `runs`
      - `runs/notes` is not a run
      hint: train one with `tinderbox train CONFIG`, or name the folder that holds yours
    $ runs text.txt
    error: cannot read `text.txt`: Not a directory (os error 20)
      hint: a run is kept in a folder; name one, or one that can be made
    $ runs runs/notes runs/b
    error: `runs/notes` is not a run
      hint: name a run directory, its `best` or `last`, or one of its `checkpoints/step-N`; `tinderbox import` makes one of another model
    ");
}
