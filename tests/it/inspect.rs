//! `tinderbox inspect` on small runs: what it shows is what the model did.

use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::Value;
use tinderbox::inspect::{Prompt, capture};
use tinderbox::model::probe::Point;
use tinderbox::run::Trained;

use crate::fixtures::{Folder, Ran, assert_transcript, fs, list, number};

const PROMPT: &str = "The cat sat";

/// The keys of models that treat queries and keys differently.
pub const MODELS: [&[&str]; 4] = [
    &["model.position=learned", "model.bias=true"],
    &["model.position=rope"],
    &["model.position=rope", "model.qk_norm=true", "model.n_heads=4", "model.n_kv_heads=2"],
    &["model.position=learned", "model.qk_norm=true", "model.n_kv_heads=1", "tokenizer.kind=byte"],
];

/// A folder with a short run of a two-layer model.
pub fn trained(keys: &[&str]) -> Folder {
    Folder::with_run(&[&["train.max_steps=10"], keys].concat())
}

pub fn inspect(folder: &Folder, subcommand: &str, args: &[&str]) -> Value {
    folder.json(&[&["inspect", subcommand, "runs/tiny", "--format", "json"], args].concat())
}

pub fn page(folder: &Folder, args: &[&str]) -> PathBuf {
    let html = ["--format", "html", "--output", "page.html"];
    assert_eq!(folder.succeed(&[&["inspect"], args, &html].concat()), "", "a file is written, and nothing else");
    folder.path("page.html")
}

#[test]
fn printed_attention_weights_are_exact() {
    for keys in MODELS {
        let folder = trained(keys);
        let shown = inspect(&folder, "attention", &["--prompt", PROMPT]);
        let tokens: Vec<&str> = list(&shown["tokens"]).iter().filter_map(Value::as_str).collect();
        assert_eq!(tokens.concat(), PROMPT);
        assert_eq!(shown.as_object().expect("an object").len(), 2);
        let t = tokens.len();

        let Trained { config, tokenizer, model, .. } = Trained::open(&folder.path("runs/tiny"), None).expect("a run");
        let prompt = Prompt::read(PROMPT, &tokenizer, config.model.context_length).expect("tokens");
        let maps = capture(&model, &prompt, &[Point::Weights]).expect("the prompt fits the model");

        assert_eq!(list(&shown["weights"]).len(), config.model.n_layers);
        for (layer, heads) in list(&shown["weights"]).iter().enumerate() {
            assert_eq!(list(heads).len(), config.model.n_heads);
            for (head, rows) in list(heads).iter().enumerate() {
                assert_eq!(list(rows).len(), t);
                for (query, row) in list(rows).iter().enumerate() {
                    let row: Vec<f64> = list(row).iter().map(number).collect();
                    assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-5);
                    assert!(row[query + 1..].iter().all(|weight| *weight == 0.0));
                    let row: Vec<f32> = row.iter().map(|weight| *weight as f32).collect();
                    assert_eq!(row, maps.row(layer, head, query));
                }
            }
        }
    }
}

#[test]
fn inspect_selects_layers_heads_and_tokens() {
    let folder = trained(&[]);
    let all = inspect(&folder, "attention", &["--prompt", PROMPT]);
    let layer = inspect(&folder, "attention", &["--prompt", PROMPT, "--layer", "1"]);
    assert_eq!(list(&layer["weights"]).len(), 1);
    assert_eq!(layer["weights"][0], all["weights"][1]);
    let one = inspect(&folder, "attention", &["--prompt", PROMPT, "--layer", "1", "--head", "0"]);
    assert_eq!(list(&one["weights"][0]).len(), 1);
    assert_eq!(one["weights"][0][0], all["weights"][1][0]);

    let both = inspect(&folder, "attention", &["--prompt", PROMPT, "--prompt", "The dog sat"]);
    assert_eq!(both[0], all);
    assert_ne!(both[1]["weights"], all["weights"], "another text is looked at otherwise");
    folder.write("prompt.txt", PROMPT);
    assert_eq!(inspect(&folder, "attention", &["--prompt-file", "prompt.txt"]), all);

    let token = |args: &[&str]| {
        let it = inspect(&folder, "explain", &[&["--prompt", PROMPT], args].concat());
        it["token"].as_u64().expect("a position")
    };
    assert_eq!(token(&[]), 10);
    assert_eq!(token(&["--token", "3"]), 3);
    assert_eq!(token(&["--token", "cat"]), 6);
    assert_eq!(token(&["--token", "at"]), 10);
}

#[test]
fn explanation_has_every_step() {
    let folder = trained(MODELS[2]);
    let place = ["--token", "5", "--layer", "1", "--head", "3"];
    let page = folder.succeed(&[&["inspect", "explain", "runs/tiny", "--prompt", PROMPT], &place[..]].concat());
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    let is_heading = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit()) && line[1..].starts_with(". ");
    let headings: Vec<&str> = page.lines().filter(is_heading).collect();
    assert_snapshot!(headings.join("\n"), @r"
    1. The token's vector (the first of 16 numbers)
    2. Three learned matrices make a query, a key and a value of it (the first of 4 numbers)
    3. The query times every key: how well they match; 4. divided by sqrt(4) = 2.0000; 5. without later
    5. Softmax turns these into weights that sum to 1 (not shown: 1 later token)
    6. The sum of the values, each times its weight; those of all heads go through one more matrix and
    ");
    for words in [
        "q normed (qk_norm)",
        "k rotated by position 5",
        "k and v are those of key/value head 1, shared with head 2",
        "(not shown: 1 later token)",
        "= what the head gathers",
    ] {
        let flowed = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flowed.contains(words), "{words}: {page}");
    }
}

#[test]
fn output_replaces_only_generated_files() {
    let folder = trained(&[]);
    let write = |file: &str| {
        let args = ["inspect", "attention", "runs/tiny", "--prompt", PROMPT, "--format", "json", "--output", file];
        folder.succeed(&args)
    };
    for file in ["map.json", "runs/map.json"] {
        assert_eq!(write(file), "");
        let written = folder.read_json(file);
        assert_eq!(list(&written["tokens"]).len(), 11);
    }
    let write_as = |format: &str, file: &str| {
        let inspect = ["inspect", "attention", "runs/tiny", "--prompt", PROMPT];
        folder.run(&[&inspect[..], &["--format", format, "--output", file]].concat())
    };
    for (format, file) in [("svg", "map.svg"), ("html", "map.html")] {
        write_as(format, file).exits(0);
        write_as(format, file).exits(0); // it can be made again
    }
    folder.write("thesis.txt", "years of work");
    let drawn = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\"><title>by hand</title></svg>";
    folder.write("drawn.svg", drawn);
    for (format, file) in [("text", "thesis.txt"), ("svg", "drawn.svg")] {
        let said = write_as(format, file).exits(1).stderr;
        assert!(said.contains("is not a page or a picture that Tinderbox wrote, so it is not replaced"), "{said}");
    }
    assert_eq!((folder.read("thesis.txt").as_str(), folder.read("drawn.svg").as_str()), ("years of work", drawn));
    let names = fs::read_dir(folder.path("")).expect("a folder");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("partial")), "{names:?}");
}

#[test]
fn inspect_mistakes_are_explained() {
    let folder = trained(&[]);
    let attention = |args: &[&str]| folder.fail(&[&["inspect", "attention", "runs/tiny"], args].concat());
    assert_transcript!(folder, @r#"
    $ inspect attention runs/tiny --prompt cat --layer 2
    error: there is no layer 2: the model has 2, counted from 0
      hint: the last one is 1
    $ inspect attention runs/tiny --prompt cat --head 7
    error: there is no head 7: each layer of the model has 2, counted from 0
      hint: the last one is 1
    $ inspect explain runs/tiny --prompt cat --head 2
    error: there is no head 2: each layer of the model has 2, counted from 0
      hint: the last one is 1
    $ inspect explain runs/tiny --prompt cat --token 3
    error: there is no token 3: the prompt has 3, counted from 0
      hint: the last one is 2
    $ inspect explain runs/tiny --prompt cat --token dog
    error: `dog` is not in the part of the prompt that the model reads
      hint: name a part of it, or a token by its position, counted from 0
    $ inspect attention runs/tiny --prompt ''
    error: the prompt is empty
      hint: give the model a text to read, such as --prompt "The"
    $ inspect attention runs/tiny --prompt Über
    error: the prompt cannot be read by this model: the tokenizer does not know the character 'Ü' (U+00DC)
      hint: leave out or replace these characters; a model trained with kind = "byte" under [tokenizer] knows every character
    $ inspect attention runs/tiny --prompt-file nope.txt
    error: cannot read the prompt `nope.txt`: No such file or directory (os error 2)
    $ inspect attention runs/tiny --prompt cat --output no/where/map.txt
    error: cannot write `no/where/map.txt`: there is no folder `no/where`
      hint: create it first, or choose another
    $ inspect attention runs/tiny --prompt cat --output runs
    error: cannot write `runs`: it is a folder
      hint: name a file in it
    $ inspect attention runs/other --prompt cat
    error: there is no run at `runs/other`
      hint: found there: `runs/tiny`
    "#);

    let args = ["inspect", "attention", "runs/tiny", "--format", "html", "--prompt", "The cat sat by the bank."];
    let Ran { stdout: page, stderr, .. } = folder.run(&args).exits(0);
    assert_snapshot!(stderr, @"note: the prompt has 24 tokens and the model's context holds 16: only the last 16 are read");
    assert!(page.starts_with("<!doctype html>\n") && page.ends_with("</html>\n"));
    assert!(page.contains("the last of the prompt: 8 before them did not fit the context"));

    let config = folder.read("runs/tiny/config.toml");
    folder.write("runs/tiny/config.toml", config.replace("[model]", "[model]\nn_experts = 8"));
    let newer = attention(&["--prompt", "cat"]);
    assert!(newer.contains("model.n_experts = 8: there is no such key"), "{newer}");
}
