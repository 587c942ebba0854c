//! `tinderbox bench` on tiny sizes: the contents of its tables and its JSON. No test checks how fast anything is.

use serde_json::Value;

use crate::fixtures::{Folder, list, number};

const ATTENTION: [&str; 13] = [
    "bench",
    "attention",
    "--shortest=8",
    "--longest=32",
    "--rounds=2",
    "--heads",
    "2",
    "--head-dim",
    "4",
    "--batch-size",
    "3",
    "--device",
    "cpu",
];

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite())
}

/// Fails unless the output fits the width of a terminal.
fn expect_narrow(page: &str) {
    let widest = page.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{page}");
}

#[test]
fn attention_is_measured_both_ways_with_ratios_to_the_row_above() {
    let found = Folder::new().json(&[&ATTENTION[..], &["--json"]].concat());
    assert_eq!(found["device"], "flex");
    let shape = &found["shape"];
    assert_eq!((&shape["n_heads"], &shape["head_dim"], &shape["batch_size"]), (&2.into(), &4.into(), &3.into()));
    let rows = list(&found["rows"]);
    let named: Vec<_> = rows
        .iter()
        .map(|row| {
            let name = |key: &str| row[key].as_str().expect("a name");
            (name("pass"), name("way"), row["tokens"].as_u64())
        })
        .collect();
    let mut expected = Vec::new();
    for pass in ["forward", "forward_backward"] {
        for way in ["explicit", "fused"] {
            expected.extend([8, 16, 32].map(|tokens| (pass, way, Some(tokens))));
        }
    }
    assert_eq!(named, expected);
    for rows in rows.chunks(3) {
        assert!(rows[0]["time_ratio"].is_null(), "nothing is above it");
        for (at, row) in rows.iter().enumerate() {
            let cost = &row["cost"];
            assert!(is_positive(&cost["median_ms"]), "{row}");
            assert_eq!(cost["rounds"], 2);
            assert!(row["left_out"].is_null(), "{row}");
            if at > 0 {
                let ratio = number(&cost["median_ms"]) / number(&rows[at - 1]["cost"]["median_ms"]);
                assert!((number(&row["time_ratio"]) - ratio).abs() < 1e-9 * ratio, "{row}");
            }
            #[cfg(target_os = "linux")]
            assert!(cost["extra_mib"].as_f64() >= Some(0.0), "{row}");
        }
    }
}

#[test]
fn steps_are_timed_on_made_up_tokens_or_on_the_own_text() {
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
fn steps_that_do_not_fit_the_memory_are_not_tried() {
    let said = Folder::new().fail(&["bench", "train", "tiny.toml", "--set", "train.batch_size=16777216"]);
    assert!(said.contains("training needs") && said.contains("hint: "), "{said}");
}

#[test]
fn a_run_writes_and_a_config_does_with_random_weights() {
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
fn what_cannot_be_written_is_said_with_what_to_do() {
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
fn the_machine_multiplies_what_a_model_does_and_moves_memory() {
    let folder = Folder::new();
    let args = ["bench", "machine", "tiny.toml", "--array=1", "--rounds=2", "--device=cpu"];
    let found = folder.json(&[&args[..], &["--json"]].concat());
    let sizes = |key: &str| -> Vec<_> {
        let size = |product: &Value| ["m", "k", "n"].map(|side| product[side].as_u64());
        list(&found[key]["products"]).iter().map(size).collect()
    };
    let vocab_size = folder.json(&["plan", "tiny.toml", "--no-measure", "--json"])["vocabulary"]["size"].as_u64();
    let size = |k, n| [Some(4 * 16), Some(k), n];
    let expected =
        [size(16, Some(48)), size(16, Some(16)), size(16, Some(64)), size(64, Some(16)), size(16, vocab_size)];
    let kernels = ["own_in_f32", "own_in_bf16", "burn_in_f32"];
    assert!(kernels.iter().all(|kernel| sizes(kernel) == expected), "{found}");
    let accesses: Vec<_> = list(&found["bandwidth"]).iter().map(|it| &it["access"]).collect();
    assert_eq!(accesses, ["read", "copy", "triad"]);
    let products = kernels.iter().flat_map(|kernel| list(&found[*kernel]["products"]));
    let limits = kernels[..2].iter().map(|kernel| &found[*kernel]["multiply_adds"]);
    for measured in products.chain(limits).chain(list(&found["bandwidth"])) {
        for key in ["one_thread", "all_threads"] {
            assert!(is_positive(&measured[key]), "{key} of {measured}");
        }
    }
    let page = folder.succeed(&args);
    expect_narrow(&page);
    assert_eq!(page.matches("[64, 64] x [64, 16]").count(), 3, "{page}");
    assert_eq!(page.matches("multiply-adds alone").count(), 2, "{page}");
    assert!(page.contains("\nburn's products in f32: GFLOP/s\n") && page.contains("arrays of 1 MiB"), "{page}");
}

#[test]
fn mistakes_are_named() {
    let folder = Folder::new();
    let said = folder.fail(&["bench", "attention", "--shortest=64", "--longest=32"]);
    assert!(said.contains("--shortest 64 is longer than --longest 32"), "{said}");
    let said = folder.fail(&["bench", "train", "none.toml"]);
    assert!(said.contains("none.toml"), "{said}");
    for wrong in [
        &["bench", "attention", "--heads", "0"][..],
        &["bench", "attention", "--device", "gpu"],
        &["bench", "machine", "--set", "model.n_layers=1"],
        &["bench", "--json", "train"],
    ] {
        assert_eq!(folder.run(wrong).code, Some(2), "{wrong:?}");
    }
}
