//! The checkpoints that a run keeps: each is a model with its own name, and the page replays them.

use serde_json::{Value, json};

use super::page::{look_around, post};
use super::program::program;
use super::{ask, text};
use crate::attention_page::percent;
use crate::browser::{Browser, Theme};
use crate::fixtures::{Folder, list, number, set};

/// A run of 40 steps with a checkpoint every 10.
fn kept() -> Folder {
    Folder::with_run(&["train.keep_checkpoints=all"])
}

#[test]
fn checkpoints_are_served_by_name() {
    let folder = kept();
    for args in [&["runs/tiny"][..], &["--runs", "runs"]] {
        let (server, port) = program(&folder, args);
        for step in [10, 30] {
            let checkpoint = format!("step-{step:06}");
            let body = json!({
                "model": format!("tiny/{checkpoint}"), "prompt": "The", "temperature": 0, "max_tokens": 9, "echo": true,
            });
            let run = format!("runs/tiny/checkpoints/{checkpoint}");
            let settings = ["--prompt", "The", "--temperature", "0", "--max-new-tokens", "9"];
            let generated = folder.succeed(&[&["generate", &run][..], &settings].concat());
            assert_eq!(format!("{}\n", text(&ask(port, "POST", "/v1/completions", &body).json(200), 0)), generated);
        }
        for name in ["tiny/step-000011", "tiny/step-10", "tiny/", "tiny/..", "tiny/../tiny", "other/step-000010"] {
            let error = ask(port, "POST", "/v1/completions", &json!({"model": name, "prompt": "The"})).error(404);
            assert_eq!(error["code"], "model_not_found", "{name}");
        }
        server.kill();
    }
}

/// When a run is replaced while it is served, or its checkpoint removed, every response comes from one model.
#[test]
fn responses_never_mix_replaced_models() {
    let other_seed = ["--overwrite", "--set", "train.max_steps=10", "--set", "train.seed=2"];
    let other_sizes = ["train.max_steps=10", "model.n_layers=1", "model.n_heads=1", "model.d_model=8"];
    let other_sizes = [&["--overwrite"][..], &set(&other_sizes)].concat();
    let more_steps = [&["--resume"][..], &set(&["train.max_steps=60", "train.keep_checkpoints=1"])].concat();
    for changes in [&other_seed[..], &other_sizes, &more_steps] {
        let folder = Folder::new();
        folder.train(&["train.max_steps=10", "train.keep_checkpoints=1"]);
        let (named, port) = program(&folder, &["runs/tiny"]);
        let (inspected, seen) = program(&folder, &["runs/tiny"]);
        let (followed, other) = program(&folder, &["--runs", "runs"]);
        let looked = json!({"model": "tiny", "prompt": "The cat", "attention": true});
        let viewed = json!({"model": "tiny", "prompt": "The cat", "view": "attention"});
        let write = json!({"model": "tiny", "prompt": "The", "max_tokens": 9, "temperature": 0});
        let written = |port: u16| text(&ask(port, "POST", "/v1/completions", &write).json(200), 0).to_owned();
        let layers = |port: u16| ask(port, "GET", "/app/run/tiny", &Value::Null).json(200)["n_layers"].clone();
        let before = [port, seen, other].map(written);
        let inspection = ask(seen, "POST", "/v1/inspect", &looked).json(200);
        folder.succeed(&[&["train", "tiny.toml"][..], changes].concat());
        // A named model stays the one that was opened.
        assert_eq!([port, seen].map(written), before[..2]);
        assert_eq!([port, seen].map(layers), [2, 2]);
        for (path, body) in [("/v1/inspect", &looked), ("/app/view", &viewed)] {
            assert_eq!(ask(port, "POST", path, body).error(409)["code"], "checkpoint_removed");
        }
        assert_eq!(ask(seen, "POST", "/v1/inspect", &looked).json(200), inspection);
        // In a folder the name refers to the current run.
        let settings = ["--prompt", "The", "--temperature", "0", "--max-new-tokens", "9"];
        let generated = folder.succeed(&[&["generate", "runs/tiny"][..], &settings].concat());
        assert_eq!(format!("The{}\n", written(other)), generated);
        let shown = ask(other, "POST", "/v1/inspect", &looked).json(200);
        assert_eq!(json!(list(&shown["attention"]["weights"]).len()), layers(other));
        ask(other, "POST", "/app/view", &viewed).json(200);
        for server in [named, inspected, followed] {
            assert!(server.kill());
        }
    }
}

#[test]
fn page_replays_checkpoints() {
    let (Some(mut browser), Some(mut other)) = (Browser::start(), Browser::start()) else { return };
    let folder = kept();
    let (server, port) = program(&folder, &["runs/tiny"]);
    let at = |path: &str| format!("http://127.0.0.1:{port}/run/tiny/{path}");
    let written = |step: usize| {
        let body = json!({"model": format!("tiny/step-{step:06}"), "prompt": "The cat", "max_tokens": 40});
        let found = post(port, "/v1/inspect", &body);
        format!("The cat{}", found["continuation"]["text"].as_str().expect("the value is a string"))
    };
    let shows =
        |step: usize| format!("document.querySelector('.written .text')?.textContent === {}", json!(written(step)));
    let choose = |place: usize| {
        let slider = "document.querySelector('.checkpoint input')";
        format!("{slider}.value = {place}; {slider}.dispatchEvent(new Event('input'))")
    };
    let step = "new URLSearchParams(location.search).get('step')";
    assert_ne!(written(10), written(40), "the run learned something");
    browser.look((1280, Theme::Light));
    browser.visit(&at("look?prompt=The+cat&step=10"));
    browser.wait_for(&shows(10));
    // Another tab shows another step, and stays there.
    other.visit(&at("look?prompt=The+cat&step=40"));
    other.wait_for(&shows(40));
    // A chosen head and token stay the same in every checkpoint, and the sentence is about them; without a token, too.
    let told = "document.querySelector('.telling')";
    let choice = |browser: &mut Browser| browser.all(".telling", "[it.dataset.head, it.dataset.query]")[0].clone();
    browser.wait_for(&format!("{told} !== null"));
    browser.click(".small-map:last-of-type");
    let token = if choice(&mut browser)[1] == "6" { 5 } else { 6 };
    browser.click(&format!(".flow .token[data-token='{token}']"));
    browser.point_away();
    assert_eq!(choice(&mut browser), json!(["1.1", token.to_string()]));
    for (at, key) in [(2, ""), (3, "Escape"), (2, "")] {
        if !key.is_empty() {
            browser.press(key);
        }
        let before = choice(&mut browser);
        let query: usize = before[1].as_str().and_then(|at| at.parse().ok()).expect("a token");
        browser.evaluate(&choose(at));
        browser.wait_for(&shows(10 * (at + 1)));
        let run = format!("runs/tiny/checkpoints/step-{:06}", 10 * (at + 1));
        let weights = folder.json(&["inspect", "attention", &run, "--prompt", "The cat", "--format", "json"]);
        let row = list(&weights["weights"][1][1][query]).iter().map(number);
        let gives = format!("gives {} of its attention", percent(row.fold(0.0, f64::max)));
        browser.wait_for(&format!("{told}.textContent.includes('{gives}')"));
        assert_eq!(choice(&mut browser), before);
    }
    assert_eq!(browser.evaluate(step), "30");
    assert_eq!(browser.texts(".checkpoint output")[0].split(',').next(), Some("step 30"));
    look_around(&mut browser, "look-step");
    browser.reload();
    browser.wait_for(&shows(30));
    assert_eq!(other.evaluate(step), "40");
    other.reload();
    other.wait_for(&shows(40));
    // One after another, to the last.
    browser.evaluate("[...document.querySelectorAll('button')].find((it) => it.textContent === 'Replay').click()");
    browser.wait_for(&format!("{step} === '10'"));
    browser.wait_for(&format!("{step} === '40'"));
    browser.wait_for(&shows(40));
    // The distribution is the checkpoint's.
    browser.visit(&at("write?prompt=The+cat&step=20"));
    browser.wait_for("document.querySelectorAll('.flow .token').length === 7");
    let body = json!({
        "model": "tiny/step-000020", "prompt": "The cat", "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 20,
    });
    let scored = post(port, "/v1/completions", &body);
    let own = browser.all(".flow .token", "it.dataset.logprob === undefined ? null : Number(it.dataset.logprob)");
    let expected = &scored["choices"][0]["logprobs"]["token_logprobs"];
    assert_eq!(json!(own), json!(list(expected)[..7]));
    look_around(&mut browser, "write-step");
    assert_eq!(other.take_problems(), [""; 0]);
    server.kill();
}

#[test]
fn why_view_equals_inspect_explain() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = kept();
    let (server, port) = program(&folder, &["runs/tiny"]);
    browser.visit(&format!("http://127.0.0.1:{port}/run/tiny/why?prompt=The+cat&token=4&layer=1&head=1"));
    browser.wait_for("document.querySelectorAll('#section-2 figure .cells').length === 5");
    let place = ["--layer", "1", "--head", "1", "--token", "c", "--format", "json"];
    let args = [&["inspect", "explain", "runs/tiny", "--prompt", "The cat"][..], &place].concat();
    let steps = folder.json(&args);
    assert_eq!(steps["token"], 4);
    let labels = |numbers: &Value, show: fn(f64) -> String| -> Vec<String> {
        list(numbers).iter().map(|x| x.as_f64().map(show).unwrap_or_default()).collect()
    };
    // The first figure is bars, and the first row of the others has the headings of their columns.
    let row = |browser: &mut Browser, figure: usize, row: usize| {
        let row = format!("[role=row]:nth-of-type({})", row + 1);
        let cells = format!("#section-2 figure:nth-of-type({figure}) .cells {row} [role=cell]");
        let labels = browser.all(&cells, "it.querySelector('text')?.textContent ?? ''");
        labels.iter().map(|label| label.as_str().expect("a label is a string").to_owned()).collect::<Vec<_>>()
    };
    let signed = |x: f64| format!("{x:+.2}").replace("-0.00", "+0.00");
    assert_eq!(row(&mut browser, 2, 1).len(), 16);
    assert_eq!(row(&mut browser, 4, 1), labels(&steps["scores"], signed));
    assert_eq!(row(&mut browser, 4, 3), labels(&steps["masked"], signed));
    assert_eq!(row(&mut browser, 5, 1), labels(&steps["weights"], |x| format!("{x:.4}")));
    let last = browser.all("#section-2 figure:nth-of-type(6) .cells [role=row]", "it.childElementCount").len() - 1;
    assert_eq!(row(&mut browser, 6, last), labels(&steps["context"], signed));
    look_around(&mut browser, "why-cell");
    server.kill();
}
