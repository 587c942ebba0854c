//! Chat templates and tokenizers from elsewhere that would overflow the stack, fill the memory, never end or panic, with
//! each command that uses them: an error, and nothing worse.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::damage::{damaged, damages};
use crate::finetune::folder;
use crate::fixtures::{Folder, Ran, fs};

/// Templates: one that nests too deeply, one that needs too much memory, and one that takes too long.
fn templates() -> [String; 3] {
    let grown = |first, next| {
        format!(
            "{{% set ns = namespace(a={first}) %}}{{% for i in range(60) %}}{{% set ns.a = {next} %}}{{% endfor %}}\
             {{{{ ns.a }}}}"
        )
    };
    [format!("{{{{ {}1 }}}}", "not ".repeat(100_000)), grown("'a'", "ns.a + ns.a"), grown("[1]", "[ns.a, ns.a]")]
}

/// The commands that render templates, and their standard input.
const RENDERING: [(&[&str], &str); 7] = [
    (&["chat", "runs/base"], "hi\n"),
    (&["eval", "runs/base", "--data", "my.jsonl"], ""),
    (&["data", "preview", "runs/base", "--data", "my.jsonl"], ""),
    (&["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", "runs/tuned"], ""),
    (&["train", "tune.toml", "--run-dir", "runs/trained"], ""),
    (&["plan", "tune.toml", "--no-measure"], ""),
    (&["sweep", "tune.toml", "--space", "finetune.rank=2,4", "--method", "grid", "--budget", "20s"], ""),
];

/// A folder with `runs/base`, records, and the config of a fine-tuning.
fn tuning() -> Folder {
    let folder = folder();
    let config = folder.succeed(&["finetune", "runs/base", "--data", "my.jsonl", "--print-config"]);
    folder.write("tune.toml", config);
    folder
}

/// Every command in `commands` refuses every template in `attacks`.
fn refuse_templates(attacks: &[String], commands: &[(&[&str], &str)]) {
    let folder = tuning();
    // On a busy machine memory takes longer than the time allowed.
    let limits = ["it nests too deeply", "it needs more than 256 MiB of memory", "it takes longer than 2 s"];
    for template in attacks {
        let companion = json!({"chat_template": template, "eos_token": "<|endoftext|>"});
        folder.write("runs/base/tokenizer_config.json", companion.to_string());
        for (args, input) in commands {
            let ran = folder.pipe(args, input);
            let is_refused = is_error(&ran) && limits.iter().any(|limit| ran.stderr.contains(limit));
            assert!(is_refused, "{args:?}: {:?} {}", ran.code, ran.stderr);
        }
    }
}

/// Whether a command ended with a message of ours, instead of a panic or a signal.
fn is_error(ran: &Ran) -> bool {
    ran.code == Some(1) && ran.stderr.contains("error: ") && !is_bug(ran)
}

fn is_bug(ran: &Ran) -> bool {
    ["panicked", "overflow", "this is a bug"].iter().any(|word| ran.stderr.contains(word))
}

#[test]
fn every_command_survives_deep_template() {
    refuse_templates(&templates()[..1], &RENDERING);
}

#[test]
fn records_and_conversations_survive_templates_that_grow() {
    refuse_templates(&templates()[1..2], &RENDERING[..2]);
}

#[test]
#[ignore = "each endless template takes two seconds: scripts/soak.sh templates"]
fn every_command_survives_every_template() {
    refuse_templates(&templates(), &RENDERING);
}

/// A fixture with other parts.
fn tokenizer(fixture: &str, change: impl FnOnce(&mut Value)) -> String {
    let file = fs::read_to_string(format!("tests/fixtures/tokenizers/{fixture}.json"));
    let mut file: Value = serde_json::from_str(&file).expect("JSON");
    change(&mut file);
    file.to_string()
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn added(content: &str, normalized: bool) -> Value {
    json!({
        "id": 600, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "special": false,
        "normalized": normalized,
    })
}

/// Tokenizers, each with what the error says.
fn tokenizers() -> Vec<(String, &'static str)> {
    let doubled: Vec<Value> = vec![replace(json!({"String": "a"}), "aa"); 60];
    let of_parts = |normalizer: Value, decoder: Value| {
        tokenizer("llama2", |file| {
            file["normalizer"] = normalizer;
            file["decoder"] = decoder;
        })
    };
    let strips_spaces = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    vec![
        (
            tokenizer("llama3", |file| file["pre_tokenizer"] = split("a{0,30000}b")),
            "its pattern `a{0,30000}b` is refused",
        ),
        (
            of_parts(replace(json!({"Regex": "(?:a+(?!b))+c"}), "b"), Value::Null),
            "its pattern `(?:a+(?!b))+c` is refused",
        ),
        (of_parts(json!({"type": "Sequence", "normalizers": doubled}), Value::Null), "its normalizer is refused"),
        (of_parts(Value::Null, replace(json!({"String": "a"}), &"b".repeat(10_000))), "its decoder is refused"),
        (
            tokenizer("llama2", |file| {
                file["normalizer"] = strips_spaces;
                file["added_tokens"].as_array_mut().expect("a list").push(added("  ", true));
            }),
            "tokenizers library",
        ),
        // A table that leads nowhere.
        (of_parts(json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAEBAAA="}), Value::Null), "tokenizer"),
    ]
}

/// The commands that open a `tokenizer.json`, which is in the folder `theirs`.
const TOKENIZING: [&[&str]; 5] = [
    &["tokenizer", "info", "theirs/tokenizer.json"],
    &["tokenizer", "encode", "theirs/tokenizer.json", "The cat"],
    &["train", "tiny.toml", "--set", "tokenizer.kind=\"file\"", "--set", "tokenizer.path=\"theirs/tokenizer.json\""],
    &["plan", "tiny.toml", "--set", "tokenizer.kind=\"file\"", "--set", "tokenizer.path=\"theirs/tokenizer.json\""],
    &["import", "theirs", "--run-dir", "runs/theirs"],
];

#[test]
fn every_command_survives_tokenizers() {
    let folder = folder();
    folder.succeed(&["export", "runs/base", "--to", "hf", "--output", "theirs"]);
    for (file, expected) in tokenizers() {
        folder.write("theirs/tokenizer.json", file);
        for args in TOKENIZING {
            let ran = folder.run(args);
            let says = ran.stderr.contains(expected) && ran.stderr.contains("tokenizer.json");
            assert!(is_error(&ran) && says, "{args:?}, {expected}: {:?} {}", ran.code, ran.stderr);
        }
    }
}

/// Parts that tokenizers have, whole and strange.
fn parts() -> [Vec<Value>; 3] {
    let both = |parts: Vec<Value>, list: &str, kind: &str| {
        let mut sequence = json!({"type": kind});
        sequence[list] = parts.clone().into();
        parts.into_iter().chain([sequence, Value::Null]).collect()
    };
    let mut normalizers = vec![
        replace(json!({"String": ""}), "x"),
        replace(json!({"String": " "}), ""),
        replace(json!({"Regex": "a*"}), "\u{2581}"),
        replace(json!({"Regex": r"(?=(\w+))\s|$"}), ""),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAEBAAA="}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": true, "lowercase": true}),
    ];
    normalizers.extend(["NFKD", "Nmt", "StripAccents", "Lowercase", "ByteLevel"].map(|kind| json!({"type": kind})));
    let mut pre_tokenizers = vec![
        split(""),
        split("a{0,3}|$"),
        split(r"\b|(?<=a)b"),
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": true}),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": true}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Punctuation", "behavior": "MergedWithNext"}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
    ];
    pre_tokenizers.extend(["BertPreTokenizer", "Whitespace", "UnicodeScripts"].map(|kind| json!({"type": kind})));
    let decoders = vec![
        json!({"type": "Strip", "content": "a", "start": 0, "stop": 1_000_000}),
        json!({"type": "Strip", "content": " ", "start": 5, "stop": 5}),
        replace(json!({"Regex": ""}), "y"),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "BPEDecoder", "suffix": ""}),
        json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
    ];
    [
        both(normalizers, "normalizers", "Sequence"),
        both(pre_tokenizers, "pretokenizers", "Sequence"),
        both(decoders, "decoders", "Sequence"),
    ]
}

/// Opens `n` tokenizers with other parts, added tokens, and every second one with damaged bytes. Returns how many opened.
fn mutate_tokenizers(n: usize) -> usize {
    let folder = Folder::new();
    let mut runner = TestRunner::deterministic();
    let parts = parts();
    let contents = ["", " ", "\u{301}", "a", "\u{2581}", "The cat", "\u{fdfa}"];
    let strategy = (any::<[Index; 6]>(), any::<bool>(), damages());
    let mut n_opened = 0;
    for case in 0..n {
        let (at, normalized, damages) = strategy.new_tree(&mut runner).expect("nothing is filtered").current();
        let fixture = ["llama2", "llama3", "unigram", "wordpiece", "gpt2"][at[0].index(5)];
        let file = tokenizer(fixture, |file| {
            for ((name, parts), at) in ["normalizer", "pre_tokenizer", "decoder"].into_iter().zip(&parts).zip(&at[1..])
            {
                if at.index(3) > 0 {
                    file[name] = at.get(parts).clone();
                }
            }
            let tokens = file["added_tokens"].as_array_mut().expect("a list");
            tokens.push(added(contents[at[4].index(contents.len())], normalized));
        });
        let bytes = if case % 2 == 0 { file.into_bytes() } else { damaged(file.as_bytes(), &damages) };
        folder.write("tokenizer.json", &bytes);
        let ran = folder.run(&["tokenizer", "encode", "tokenizer.json", "The cat\u{301} sat  on 12 m\u{fdfa}ts.\n"]);
        assert!(!is_bug(&ran) && matches!(ran.code, Some(0 | 1)), "case {case}: {:?} {}", ran.code, ran.stderr);
        n_opened += usize::from(ran.code == Some(0));
    }
    n_opened
}

#[test]
fn mutated_tokenizers_open_or_are_refused() {
    let n_opened = mutate_tokenizers(16);
    assert!((1..16).contains(&n_opened), "{n_opened} opened");
}

#[test]
#[ignore = "starts the program 500 times: scripts/soak.sh tokenizers"]
fn five_hundred_mutated_tokenizers_never_panic() {
    println!("{} of 500 mutated tokenizers opened, and no other panicked", mutate_tokenizers(500));
}
