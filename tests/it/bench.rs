//! `tinderbox bench` on tiny sizes: the contents of its tables and its JSON. No test checks how fast anything is.

use serde_json::Value;

use crate::fixtures::{Folder, list};

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite())
}

/// Fails unless the output fits the width of a terminal.
fn expect_narrow(page: &str) {
    let widest = page.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{page}");
}

#[test]
fn bench_train_times_steps_on_synthetic_tokens_or_own_text() {
    let folder = Folder::new();
    let plan = folder.json(&["plan", "tiny.toml", "--no-measure", "--json"]);
    let args = ["bench", "train", "tiny.toml", "--rounds=2", "--steps=3"];
    for (own_text, text) in [(&["--json"][..], "made_up"), (&["--json", "--own-text"], "own")] {
        let found = folder.json(&[&args[..], own_text].concat());
        assert_eq!(found["text"], text);
        assert_eq!(found["parameters"], plan["parameters"]["total"]);
        assert_eq!(found["vocab_size"], plan["vocabulary"]["size"]);
        assert_eq!(found["tokens_per_step"], 4 * 16);
        assert_eq!((list(&found["rounds_ms"]).len(), &found["rounds"]), (2, &2.into()));
        for key in ["median_ms", "tokens_per_s", "flops_per_s"] {
            assert!(is_positive(&found[key]), "{key} of {found}");
        }
        #[cfg(target_os = "linux")]
        assert!(is_positive(&found["peak_rss_mib"]));
        let is_left = folder.path("cache").exists();
        assert_eq!(is_left, text == "own", "made-up tokens leave nothing behind");
    }
    assert!(!folder.path("runs").exists());
    let page = folder.succeed(&args);
    expect_narrow(&page);
    assert!(page.contains("2 rounds of 3 steps each after 5 to warm up"), "{page}");
}

#[test]
fn bench_train_refuses_steps_beyond_free_memory() {
    let said = Folder::new().fail(&["bench", "train", "tiny.toml", "--set", "train.batch_size=16777216"]);
    assert!(said.contains("training needs") && said.contains("hint: "), "{said}");
}

#[test]
fn bench_generate_takes_runs_and_configs() {
    let folder = Folder::trained();
    for model in ["runs/tiny", "runs/tiny/last", "tiny.toml"] {
        let args = ["bench", "generate", model, "--rounds=2", "--batch-size=1,3"];
        let found = folder.json(&[&args[..], &["--json"]].concat());
        assert_eq!((&found["device"], &found["context_length"]), (&"flex".into(), &16.into()));
        let cases = list(&found["cases"]);
        let batch_sizes: Vec<_> = cases.iter().map(|case| case["batch_size"].as_u64()).collect();
        assert_eq!(batch_sizes, [Some(1), Some(3)]);
        for case in cases {
            assert_eq!((&case["prompt_tokens"], &case["new_tokens"]), (&8.into(), &4.into()));
            for key in ["prompt_tokens_per_s", "tokens_per_s", "weight_bytes_per_s"] {
                assert!(is_positive(&case[key]), "{key} of {case}");
            }
            assert_eq!(case["token"]["rounds"], 2);
        }
        let page = folder.succeed(&args);
        expect_narrow(&page);
        assert!(page.contains("a prompt of 8 tokens, then 4 tokens one by one"), "{page}");
    }
}

#[test]
fn bench_generate_errors_have_hints() {
    let folder = Folder::trained();
    let generate = |args: &[&str]| folder.fail(&[&["bench", "generate"], args].concat());
    let said = generate(&["runs/tiny", "--prompt-tokens", "15", "--new-tokens", "2"]);
    assert!(
        said.contains("a prompt of 15 tokens and 2 new ones do not fit a context of 16")
            && said.contains("hint: lower --prompt-tokens"),
        "{said}"
    );
    let said = generate(&["runs/tiny", "--set", "model.n_layers=3"]);
    assert!(said.contains("hint: name a .toml file"), "{said}");
    let said = generate(&["runs/none"]);
    assert!(said.contains("runs/none"), "{said}");
}

#[test]
fn mistakes_and_removed_benchmarks_are_reported() {
    let folder = Folder::new();
    let said = folder.fail(&["bench", "train", "none.toml"]);
    assert!(said.contains("none.toml"), "{said}");
    assert_eq!(folder.run(&["bench", "--json", "train"]).code, Some(2));
    let said = folder.misuse(&["bench", "machine", "--rounds", "3"]);
    assert!(said.starts_with("error: `bench machine` no longer exists\n  hint: `cargo bench -p"), "{said}");
}
