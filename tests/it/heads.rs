//! `tinderbox inspect heads` and `head_metrics` on small runs.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fixtures::{Folder, assert_transcript, list, number};

const HEADS: [&str; 3] = ["inspect", "heads", "runs/tiny"];

#[test]
fn every_head_has_its_scores() {
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
    let first = text.lines().nth(1).expect("a head");
    let bits = number(&heads["heads"][0][0]["entropy_bits"]);
    assert!(first.starts_with("0.0") && first.contains(&format!(" {bits:.2} ")), "{text}");
    assert_snapshot!(text.lines().skip(6).take(6).collect::<Vec<_>>().join("\n"), @r"

    32 windows of 16 tokens of the validation split
    induction: 16 sequences of 8 random tokens, each twice
    even: the scores of a head that looks at all tokens equally

    What each head looks at most, and its strongest look, from {this} token to [this] one
    ");
    let strongest = number(&heads["evidence"][1][1]["snippets"][0]["weight"]);
    let last = text.lines().last().expect("a snippet");
    assert!(last.trim_start().starts_with(&format!("{strongest:.2} ")) && last.contains('{'), "{text}");
    assert_eq!(folder.succeed(&[&HEADS[..], &["--output", "heads.txt"]].concat()), "");
    assert_eq!(folder.read("heads.txt"), text);
}

#[test]
fn a_run_logs_at_each_evaluation_what_is_measured_of_its_checkpoints() {
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

/// A text of two stories, the second of which is the validation split, with annotated references.
fn annotate(folder: &Folder) {
    let story = "Ann met Bob. She hit him. Ann ran to Bob.\n";
    let place = |text: &str, nth: usize| {
        let (at, found) = story.match_indices(text).nth(nth).expect(text);
        [at, found.len()]
    };
    let line = |start: usize| {
        let pair = |a: [usize; 2], b: [usize; 2]| [a[0] + start, a[1], b[0] + start, b[1]];
        let [ann, bob] = [place("Ann", 0), place("Bob", 0)];
        json!({
            "start": start, "end": start + story.len(),
            "pronouns": [pair(place("She", 0), ann), pair(place("him", 0), bob)],
            "names": [pair(place("Ann", 1), ann), pair(place("Bob", 1), bob)],
        })
    };
    let header = json!({"validation_start": story.len()});
    folder.write("known.txt", story.repeat(2));
    folder.write("known.jsonl", format!("{header}\n{}\n{}\n", line(0), line(story.len())));
}

fn trained_to_read_bytes(context_length: &str) -> Folder {
    let folder = Folder::with_run(&["tokenizer.kind=byte", "data.val_fraction=0.5", context_length]);
    annotate(&folder);
    folder
}

#[test]
fn heads_are_asked_where_the_answer_is_known() {
    let folder = trained_to_read_bytes("model.context_length=64");
    let ask = [&HEADS[..], &["--annotations", "known.jsonl"]].concat();
    let known = folder.json(&[&ask[..], &["--format", "json"]].concat());
    assert_eq!((&known["stories"], &known["context_length"]), (&json!(1), &json!(64)));
    let [pronoun, name] = list(&known["questions"]) else {
        panic!("no `it` in the text: {known}");
    };
    assert_eq!((&pronoun["question"], &name["question"]), (&json!("pronoun"), &json!("name")));
    // For `She`, the only earlier noun of the other gender is Bob; for `him` it is Ann.
    assert_eq!([&pronoun["found"], &pronoun["cases"], &name["cases"]], [2, 2, 2]);
    assert_eq!((&pronoun["nearer"], &pronoun["longer"]), (&json!(0.5), &json!(0.5)));
    for model in ["untrained", "trained"] {
        assert_eq!(list(&pronoun[model]["heads"]).len(), 2);
        for answer in list(&pronoun[model]["heads"]).iter().flat_map(list) {
            let [right, other, accuracy] = ["right", "other", "accuracy"].map(|key| number(&answer[key]));
            assert!(right + other < 1.0 && [0.0, 0.5, 1.0].contains(&accuracy));
        }
    }
    assert_ne!(pronoun["trained"], pronoun["untrained"]);
    let text = folder.succeed(&ask);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.starts_with("1 story of"), "{text}");
    assert!(text.contains("2 of 2 cases; baselines: a coin 50.0 %, always the nearer 50.0 %"), "{text}");
}

#[test]
fn mistakes_with_annotations_are_explained() {
    let folder = trained_to_read_bytes("model.context_length=8");
    folder.write("alone.jsonl", "{\"validation_start\":0}\n");
    folder.write("short.txt", "");
    folder.write("short.jsonl", "{\"validation_start\":0}\n{\"start\":0,\"end\":7}\n");
    assert_transcript!(folder, @r"
    $ inspect heads runs/tiny --annotations known.jsonl
    error: none of what is annotated in the validation split fits the context of 8 tokens
      hint: use a run with a longer model.context_length
    $ inspect heads runs/tiny --annotations nope.jsonl
    error: cannot read `nope.jsonl`: No such file or directory (os error 2)
      hint: annotations are a file like data/stories.jsonl, with their text beside them under the same name, as data/stories.txt
    $ inspect heads runs/tiny --annotations alone.jsonl
    error: cannot read `alone.txt`: No such file or directory (os error 2)
      hint: annotations are a file like data/stories.jsonl, with their text beside them under the same name, as data/stories.txt
    $ inspect heads runs/tiny --annotations short.jsonl
    error: line 2 of the annotations `short.jsonl` cannot be used: the story ends at 7, and the text at 0
      hint: data/README.md describes the format
    ");
}
