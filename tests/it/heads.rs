//! `tinderbox inspect heads` and `head_metrics` on small runs.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fixtures::{Folder, list, number};

const HEADS: [&str; 3] = ["inspect", "heads", "runs/tiny"];

#[test]
fn heads_have_scores() {
    let folder = Folder::trained();
    let args = [&HEADS[..], &["--format", "json"]].concat();
    let heads = folder.json(&args);
    assert_eq!(folder.json(&args), heads, "the same every time");
    assert_eq!([&heads["windows"], &heads["window_tokens"]], [&json!(32), &json!(16)]);
    assert_eq!([&heads["repeated"], &heads["period"]], [&json!(16), &json!(8)]);
    assert_eq!(list(&heads["heads"]).len(), 2);
    let mut n_scores = 0;
    for head in list(&heads["heads"]).iter().flat_map(list) {
        for (name, score) in head.as_object().expect("an object") {
            if name == "kind" {
                assert!(score.is_string());
                continue;
            }
            let most = if name == "entropy_bits" { 4.0 } else { 1.0 + 1e-6 };
            let score = number(score);
            assert!((0.0..=most).contains(&score), "{name}: {score}");
            n_scores += 1;
        }
    }
    assert_eq!(n_scores, 2 * 2 * 10);
    let fewer = folder.json(&[&args[..], &["--windows", "3"]].concat());
    assert_eq!(fewer["windows"], 3);
    assert_ne!(fewer["heads"], heads["heads"]);

    let text = folder.succeed(&HEADS);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let first = text.lines().find(|line| line.starts_with("0.0")).expect("a row for head 0.0");
    assert!(first.contains(&format!(" {:.2} ", number(&heads["heads"][0][0]["entropy"]))), "{text}");
    assert_snapshot!(text.lines().take(4).collect::<Vec<_>>().join("\n"), @r"
    Attention heads
    Measured on 32 windows of 16 tokens. A head has the name of the first score that reaches its
    threshold; if none does, that of its main target. Induction is measured on 16 sequences of 8 random
    tokens, each twice.
    ");
    let strongest = number(&heads["evidence"][1][1]["snippets"][0]["weight"]);
    let last = text.lines().rfind(|line| line.contains('{')).expect("a snippet");
    assert!(last.trim_start().starts_with(&format!("{strongest:.2} ")), "{text}");
    assert_eq!(folder.succeed(&[&HEADS[..], &["--output", "heads.txt"]].concat()), "");
    assert_eq!(folder.read("heads.txt"), text);
}

#[test]
fn evaluations_log_head_scores_of_checkpoints() {
    let folder = Folder::with_run(&["train.head_metrics=true"]);
    let log = folder.read("runs/tiny/head_metrics.jsonl");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let steps: Vec<&Value> = lines.iter().map(|line| &line["step"]).collect();
    assert_eq!(steps, [0, 10, 20, 30, 40]);
    assert_ne!(lines[0]["heads"], lines[4]["heads"]);
    let mut last = lines[4].clone();
    last.as_object_mut().expect("an object").remove("step");
    let measured = ["inspect", "heads", "runs/tiny/last", "--format", "json"];
    let mut measured = folder.json(&measured);
    assert_eq!(list(&measured["evidence"]).len(), 2, "what each head looks at, which is not logged");
    measured.as_object_mut().expect("an object").remove("evidence");
    assert_eq!(measured, last);
    assert_eq!(
        folder.read("runs/tiny/metrics.jsonl"),
        Folder::trained().read("runs/tiny/metrics.jsonl"),
        "looking changes nothing"
    );
}
