//! The report of a run: what it contains, when it is written, and that it works in a browser.

use insta::assert_snapshot;
use serde_json::json;

use crate::browser::{Browser, SCREENS};
use crate::fixtures::{Folder, Model, files, fs, number, set};

const HEADS: &str = "train.head_metrics=true";

/// The text between the first `start` and the `end` after it.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start} in {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end} after {start}")).0
}

fn headings(html: &str) -> Vec<&str> {
    let sections = html.split("<section ").skip(1);
    sections.map(|section| between(section, "<h2>", "</h2>")).collect()
}

fn lead(html: &str) -> &str {
    between(html, "lead\">", "</p>")
}

#[test]
fn report_shows_whole_run() {
    let folder = Folder::new();
    let ran = folder.train(&[HEADS]);
    assert!(ran.stderr.contains("\nreport: `runs/tiny/report.html`\n"), "{}", ran.stderr);
    let html = folder.read("runs/tiny/report.html");
    assert_eq!(
        headings(&html),
        ["Numbers", "Curves", "Samples", "Heads", "Head scores during training", "Attention", "Details", "Config"]
    );
    assert!(lead(&html).starts_with("Done: 40 steps on flex in "), "{}", lead(&html));
    let facts = folder.json(&["runs", "runs/tiny", "--json"]);
    let (loss, bits) = (number(&facts[0]["val_loss"]), number(&facts[0]["val_bits_per_byte"]));
    for number in [
        format!("<dt>Best validation loss</dt><dd class=\"value\">{loss:.4}<"),
        format!(">best {loss:.4}, whole split</text>"),
        format!("<dt>Perplexity</dt><dd class=\"value\">{:.2}<", loss.exp()),
        format!("<dt>Bits per byte</dt><dd class=\"value\">{bits:.4}<"),
        "<dt>Tokens seen</dt><dd class=\"value\">2,560<".to_owned(),
        format!("<dt>Version</dt><dd>Tinderbox {}<", env!("CARGO_PKG_VERSION")),
        "<dt>Device</dt><dd>flex<".to_owned(),
        "<tr class=\"chosen\"><th scope=\"row\">max_steps</th><td>40<small>default 2000".to_owned(),
        "<tr class=\"default\"><th scope=\"row\">grad_clip_norm</th><td>1.0<".to_owned(),
    ] {
        assert!(html.contains(&number), "{number}");
    }
    if cfg!(target_os = "linux") {
        assert!(html.contains("<dt>Peak memory</dt>"));
    }
    // The heads of the best checkpoint are those of `inspect heads`.
    let heads = folder.json(&["inspect", "heads", "runs/tiny", "--format", "json"]);
    let drawn = between(&html, "<h2>Heads</h2>", "</section>");
    for at in 0..4 {
        let [layer, head] = [at / 2, at % 2];
        let scores = &heads["heads"][layer][head];
        let kind = scores["kind"].as_str().expect("a kind").replace('_', " ").replace("diagonal", "self");
        let local = number(&scores["local"]);
        assert!(drawn.contains(&format!("local of {layer}.{head} {kind}: {local:.4}<")), "{layer}.{head}: {drawn}");
        let weight = number(&heads["evidence"][layer][head]["snippets"][0]["weight"]);
        assert!(drawn.contains(&format!(" {weight:.2}   ")), "{layer}.{head}: {drawn}");
    }
    for file in ["loss.svg", "learning-rate.svg", "heads.svg"] {
        let svg = folder.read(&format!("runs/tiny/{file}"));
        assert!(svg.starts_with("<svg xmlns") && svg.trim_end().ends_with("</svg>"), "{file}");
        assert!(svg.contains("@media (prefers-color-scheme: dark)"), "{file}");
    }
}

#[test]
fn resumed_run_has_same_pictures() {
    let folder = Folder::new();
    folder.train_as("half", &[HEADS, "train.max_steps=20"]);
    assert!(folder.read("half/report.html").contains("20 steps on flex"));
    // The same schedule as in the whole run: constant.
    let constant = |max_steps: &str, run: &str, more: &[&str]| {
        let steps = format!("train.max_steps={max_steps}");
        let settings = set(&[HEADS, &steps, "schedule.kind=constant"]);
        folder.succeed(&[&["train", "tiny.toml", "--run-dir", run], &*settings, more].concat());
    };
    constant("40", "whole", &[]);
    constant("20", "parts", &[]);
    constant("40", "parts", &["--resume"]);
    let html = folder.read("parts/report.html");
    assert!(lead(&html).starts_with("Done: 40 steps"), "{}", lead(&html));
    assert!(html.contains("<dt>Resumed</dt><dd>once</dd>"));
    for file in ["loss.svg", "learning-rate.svg", "heads.svg"] {
        let (whole, parts) = (folder.read(&format!("whole/{file}")), folder.read(&format!("parts/{file}")));
        // Each says which run it is of.
        assert_eq!(whole.replace("whole, step", "parts, step"), parts, "{file}");
    }
    // A new run leaves nothing of the one it replaces.
    folder.succeed(&["train", "tiny.toml", "--run-dir", "parts", "--overwrite"]);
    assert!(!folder.path("parts/heads.svg").exists());
    assert!(!folder.read("parts/report.html").contains("Resumed"));
}

#[cfg(unix)]
#[test]
fn report_says_how_run_ended() {
    let folder = Folder::new();
    let mut training = folder.start(&["train", "tiny.toml", "--set", "train.max_steps=1000000"]);
    training.wait_for("saved `");
    folder.succeed(&["report", "runs/tiny", "--output", "live.html"]);
    let live = folder.read("live.html");
    assert!(lead(&live).starts_with("In progress: "), "{}", lead(&live));
    assert!(lead(&live).contains(" of 1,000,000 steps on flex"), "{}", lead(&live));
    assert!(live.contains("<dt>Best validation loss</dt><dd class=\"value\">~"));
    assert!(live.contains(">best ~") && live.contains(", an estimate</text>"));
    training.press_ctrl_c();
    let ran = training.finish().exits(130);
    assert!(ran.stderr.contains("\nreport: `runs/tiny/report.html`\n"), "{}", ran.stderr);
    assert!(ran.stderr.trim_end().ends_with("--resume"), "{}", ran.stderr);
    let html = folder.read("runs/tiny/report.html");
    assert!(lead(&html).starts_with("Stopped after "), "{}", lead(&html));
    // Who waits for its end does not wait for measurements.
    assert!(!headings(&html).contains(&"Attention"));
    folder.succeed(&["report", "runs/tiny"]);
    assert!(headings(&folder.read("runs/tiny/report.html")).contains(&"Attention"));

    let wild = set(&["optimizer.learning_rate=1e30", "schedule.warmup_steps=0", "optimizer.grad_clip_norm=0"]);
    let stderr = folder.fail(&[&["train", "tiny.toml", "--run-dir", "wild"], &*wild].concat());
    assert!(stderr.contains("report: `wild/report.html`"), "{stderr}");
    folder.succeed(&["report", "wild", "--output", "again.html"]);
    for html in ["wild/report.html", "again.html"].map(|name| folder.read(name)) {
        assert!(lead(&html).starts_with("Stopped after "), "{}", lead(&html));
        let notes = between(&html, "<ul class=\"notes\">", "</ul>");
        assert!(notes.contains("<li>The run broke off: the "), "{notes}");
    }
}

#[test]
fn report_replaces_only_pages() {
    let folder = Folder::trained();
    folder.write("notes.html", "<html><head></head>mine</html>");
    folder.write("comparison.html", "mine");
    let before = files(&folder.path(""));
    folder.expect(
        r"
    $ report runs/tiny --output runs/tiny/config.toml
    error: cannot write `runs/tiny/config.toml`: it belongs to a run
      hint: choose another name
    $ report runs/tiny --output notes.html
    error: `notes.html` is not a page that Tinderbox wrote, so it is not replaced
      hint: choose another name, or move the file away
    $ report runs/tiny runs/tiny
    error: `comparison.html` is not a page that Tinderbox wrote, so it is not replaced
      hint: choose another name, or move the file away
    $ inspect heads runs/tiny --format json --output runs/tiny/checkpoints/step-000040/state.json
    error: cannot write `runs/tiny/checkpoints/step-000040/state.json`: it belongs to a run
      hint: choose another name
    ",
    );
    assert!(files(&folder.path("")) == before);
    fs::remove_file(folder.path("comparison.html"));
    for _ in 0..2 {
        folder.succeed(&["report", "runs/tiny", "--output", "runs/tiny/report.html"]);
        folder.succeed(&["report", "runs/tiny", "runs/tiny"]);
    }
}

#[test]
fn unwritable_report_does_not_fail_run() {
    let folder = Folder::trained();
    // A folder with content is never replaced.
    fs::remove_file(folder.path("runs/tiny/report.html"));
    fs::create_dir_all(folder.path("runs/tiny/report.html/x"));
    let longer = ["train", "tiny.toml", "--resume", "--set", "train.max_steps=50"];
    let ran = folder.run(&longer).exits(0);
    assert!(ran.stderr.contains("warning: no report: cannot write the report `runs/tiny/"), "{}", ran.stderr);
    assert!(ran.stderr.contains("report runs/tiny`\n"), "{}", ran.stderr);
    assert!(folder.path("runs/tiny/checkpoints/step-000050").is_dir());
}

#[test]
fn report_shows_what_files_allow() {
    let folder = Folder::trained();
    for file in ["metrics.jsonl", "timings.jsonl", "samples.txt", "train.log", "report.html"] {
        fs::remove_file(folder.path(format!("runs/tiny/{file}")));
    }
    let report = || {
        let ran = folder.run(&["report", "runs/tiny"]);
        assert_eq!((ran.code, &*ran.stdout), (Some(0), ""), "{}", ran.stderr);
        (ran.stderr, folder.read("runs/tiny/report.html"))
    };
    let (stderr, html) = report();
    assert_snapshot!(stderr, @"wrote `runs/tiny/report.html`");
    assert_eq!(headings(&html), ["Numbers", "Heads", "Attention", "Details", "Config"]);
    // A missing text is reported, and everything else is there.
    fs::remove_file(folder.path("text.txt"));
    let (stderr, html) = report();
    assert!(
        stderr.starts_with("note: Heads and attention could not be measured: there is no file or folder"),
        "{stderr}"
    );
    assert_eq!(headings(&html), ["Numbers", "Details", "Config"]);
    fs::remove_dir_all(folder.path("runs/tiny/checkpoints"));
    folder.write("runs/tiny/config.toml", "[model]\nnovel = 1\n");
    let (_, html) = report();
    assert!(html.contains("<tr class=\"unknown\"><th scope=\"row\">novel</th><td>1<"), "{html}");
}

#[test]
fn report_of_imported_model_says_what_it_is() {
    let (folder, model) = (Folder::new(), Model::of("llama"));
    model.write("tokenizer_config.json", json!({"chat_template": "{{ messages }}"}).to_string());
    let origin = model.path().display().to_string();
    folder.succeed(&["import", &origin, "--run-dir", "run"]);
    folder.succeed(&["report", "run"]);
    let html = folder.read("run/report.html");
    assert_eq!(headings(&html), ["Numbers", "Details", "Config"]);
    let context = model.open().config.context_length;
    for (name, value) in [
        ("Family", "llama".to_owned()),
        ("Context", format!("{context} tokens")),
        ("Vocabulary", format!("{} tokens", model.open().vocab_size())),
        ("Chat template", "yes".to_owned()),
        ("Imported from", origin.clone()),
    ] {
        assert!(html.contains(&format!("<dt>{name}</dt><dd>{value}</dd>")), "{name}: {value}");
    }
    assert!(html.contains("<code>tinderbox chat run</code>") && lead(&html).contains(&origin), "{html}");
    // Its config is that of a model: no key is unknown, and none says how it would be trained.
    assert!(!html.contains("does not know") && !html.contains("class=\"unknown\""), "{html}");
    let sections: Vec<&str> = html.split("<h3>[").skip(1).filter_map(|rest| Some(rest.split_once(']')?.0)).collect();
    assert_eq!(sections, ["tokenizer", "model", "generate"]);
}

#[test]
fn report_escapes_text() {
    let folder = Folder::new();
    let evil = "</script><script>alert(1)</script><b>\"'&amp;<!--\n";
    folder.write("<b>text.txt", evil.repeat(200));
    folder.train_as("runs/<b>&x", &["data.path=\"<b>text.txt\"", "train.sample_prompt=\"</script><b>\""]);
    let html = folder.read("runs/<b>&x/report.html");
    assert!(!html.contains("<b>") && !html.contains("<!--") && !html.contains("alert(1)</"));
    assert!(html.contains("<title>&lt;b&gt;&amp;x</title>"));
    assert!(html.contains("&lt;b&gt;text.txt") && html.contains("&lt;/script&gt;&lt;b&gt;"));
    assert_eq!(html.matches("<script").count(), html.matches("</script").count());
}

#[test]
fn reader_clicks_through_report() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::with_run(&[HEADS]);
    let file = |name: &str| folder.path("runs/tiny").join(name);
    browser.read(&file("report.html"), "report", |browser, screen| click_through(browser, screen.0 < 600));
    for (screen, name) in
        SCREENS.into_iter().flat_map(|screen| ["loss", "learning-rate", "heads"].map(|it| (screen, it)))
    {
        browser.look(screen);
        browser.open(&file(&format!("{name}.svg")));
        browser.picture(&format!("report-{name}-{}-{}", screen.0, screen.1.name()));
        assert_eq!(browser.take_problems(), [""; 0], "{name}: {screen:?}");
    }
}

/// Zooms with buttons, keys and dragging, and switches to a logarithmic axis.
fn zoom(browser: &mut Browser, size: &str) {
    let ticks = |browser: &mut Browser, chart: &str, size: &str, anchor: &str| {
        browser.texts(&format!("figure[data-chart={chart}] > svg.{size} .tick[text-anchor={anchor}]"))
    };
    let steps = |browser: &mut Browser| ticks(browser, "loss", size, "middle");
    let whole = steps(browser);
    assert_eq!(whole.last().map(String::as_str), Some("40"), "{whole:?}");
    browser.click(".tools button:nth-of-type(2)");
    let half = steps(browser);
    assert!(half != whole && !half.contains(&"0".to_owned()), "{half:?}");
    let of_speed = ticks(browser, "speed", "small", "middle");
    assert!(!of_speed.contains(&"0".to_owned()), "all charts show the same steps: {of_speed:?}");
    let read = |browser: &mut Browser| browser.texts("figure[data-chart=loss] output")[0].clone();
    let inside = read(browser);
    assert!(!inside.starts_with("step 5 "), "a step that is shown: {inside}");
    browser.click(".tools button:nth-of-type(3)");
    assert_eq!(steps(browser), whole);
    assert!(read(browser).starts_with("step 40"), "after a reset the last: {}", read(browser));
    let resets = browser.all(".tools button:nth-of-type(3)", "it.disabled");
    assert!(!resets.is_empty() && resets.iter().all(|it| it == true), "they stay where they are: {resets:?}");
    browser.drag(&format!("figure[data-chart=loss] > svg.{size}"), [0.6, 0.9]);
    assert_ne!(steps(browser), whole);
    browser.press("Escape");
    assert_eq!(steps(browser), whole);
    let heights = ticks(browser, "loss", size, "end");
    browser.click(".tools button:nth-of-type(1)");
    assert_eq!(browser.all(".tools button", "it.ariaPressed")[0], json!("true"));
    let line = format!("figure[data-chart=loss] > svg.{size} .line.train");
    assert!(!browser.all(&line, "it.getAttribute('d')")[0].to_string().contains("NaN"));
    assert!(!ticks(browser, "loss", size, "end").is_empty());
    browser.click(".tools button:nth-of-type(1)");
    assert_eq!(ticks(browser, "loss", size, "end"), heights);
    browser.evaluate("document.activeElement.blur()");
    browser.point_away();
}

fn click_through(browser: &mut Browser, is_narrow: bool) {
    let size = if is_narrow { "narrow" } else { "wide" };
    let shown = browser.all("figure > svg", "it.checkVisibility() ? it.getAttribute('class') : ''");
    let count = |size: &str| shown.iter().filter(|class| **class == json!(size)).count();
    assert_eq!([count(size), count("small")], [1, 4 + 9], "{shown:?}");
    assert_eq!(shown.iter().filter(|class| **class != json!("")).count(), 14, "{shown:?}");

    // A chart reads out what is under the pointer, and the arrow keys continue from there.
    let readout = "figure[data-chart=loss] output";
    let before = browser.texts(readout);
    assert!(before[0].starts_with("step 40"), "{before:?}");
    browser.point(&format!("figure[data-chart=loss] > svg.{size}"));
    let pointed = browser.texts(readout);
    assert!(pointed[0].starts_with("step 20"), "{pointed:?}");
    assert!(pointed[0].contains("training") && pointed[0].contains("validation"), "{pointed:?}");
    assert_eq!(browser.all(&format!("figure[data-chart=loss] > svg.{size} .rule"), "it.checkVisibility()"), [true]);
    browser.evaluate("document.querySelector('figure[data-chart=loss]').focus()");
    browser.press("ArrowRight");
    assert!(browser.texts(readout)[0].starts_with("step 25"), "{:?}", browser.texts(readout));
    browser.press("ArrowLeft");
    browser.press("ArrowLeft");
    assert!(browser.texts(readout)[0].starts_with("step 15"), "{:?}", browser.texts(readout));
    browser.evaluate("document.activeElement.blur()");
    browser.point_away();
    zoom(browser, size);

    // The latest sample is next to the loss.
    assert!(browser.texts(".curves aside h3")[0].ends_with("step 40"));

    // One sample at a time.
    let samples = ".samples ol > li";
    let visible = |browser: &mut Browser| {
        let visible = browser.all(samples, "it.checkVisibility()");
        visible.iter().position(|is_visible| *is_visible == json!(true)).expect("a sample")
    };
    assert_eq!(browser.all(samples, "it.checkVisibility()").len(), 4);
    assert_eq!(visible(browser), 3);
    browser.evaluate("document.querySelector('.scrubber input').focus()");
    browser.press("ArrowLeft");
    assert_eq!(visible(browser), 2);

    // A cell says why a head has its kind, and a click opens its maps.
    let cell = "section.sheet .cells [role=row]:nth-child(3) [role=cell]:nth-child(2)";
    browser.point(cell);
    assert!(browser.texts("section.sheet output")[0].starts_with("Head 1.0: "));
    browser.click(cell);
    let address = browser.evaluate("location.hash");
    assert!(address.as_str().is_some_and(|hash| hash.contains("layer=1&head=0")), "{address}");

    // The head nearest to the pointer is highlighted and read out in all charts.
    let local = "figure[data-chart=heads-local]";
    browser.point(&format!("{local} > svg"));
    let picked = browser.all(".picked", "it.dataset.curve");
    assert!(picked.len() >= 9 && picked.iter().all(|head| *head == picked[0]), "{picked:?}");
    let output = browser.texts(&format!("{local} output"))[0].clone();
    assert!(output.starts_with("step ") && output.contains("head "), "{output}");
    browser.point_away();
    assert_eq!(browser.all(".picked", "1"), [0; 0]);

    // The same with the keyboard alone.
    browser.evaluate(&format!("document.querySelector('{local}').focus()"));
    browser.press("ArrowDown");
    browser.press("ArrowLeft");
    let output = browser.texts("figure[data-chart=heads-entropy] output")[0].clone();
    assert!(output.starts_with("step ") && output.contains("head 0.0 "), "{output}");
    assert!(browser.all(".picked", "1").len() >= 9);
    browser.evaluate("document.activeElement.blur()");
    assert_eq!(browser.all(".picked", "1"), [0; 0]);

    assert!(!browser.texts("section.attention").is_empty());
    browser.click(".page-theme");
    browser.click(".page-theme");
}

#[test]
fn comparison_overlays_runs() {
    let folder = Folder::trained();
    folder.train_as("runs/<b>", &["optimizer.learning_rate=1e-3"]);
    let ran = folder.run(&["report", "runs/tiny", "runs/<b>"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), "wrote `comparison.html`\n"));
    let html = folder.read("comparison.html");
    assert_eq!(headings(&html), ["Runs", "Curves", "Samples", "Differing settings"]);
    let bits = |run: &str| number(&folder.json(&["runs", run, "--json"])[0]["val_bits_per_byte"]);
    let [tiny, slow] = ["runs/tiny", "runs/<b>"].map(bits);
    let first = if tiny <= slow { "tiny" } else { "&lt;b&gt;" };
    assert!(between(&html, "<th scope=\"row\">", "</th>").ends_with(first), "the best first");
    for bits in [tiny, slow] {
        assert!(html.contains(&format!("<td>{bits:.4}</td>")), "{bits}");
    }
    assert!(html.contains("<th scope=\"row\">optimizer.learning_rate</th>") && !html.contains("<b>"));
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&folder.path("comparison.html"), "comparison", |browser, (width, _)| {
        let size = if width < 600 { "narrow" } else { "wide" };
        assert_eq!(browser.all(&format!("figure[data-chart=loss] > svg.{size} .drawing > .line"), "1").len(), 2);
        compare(browser, size);
    });
}

/// Curves are listed as in the table, hidden by the legend in all charts, drawn over tokens and time, and smoothed.
fn compare(browser: &mut Browser, size: &str) {
    let legend = "figure[data-chart=loss] .legend button";
    let names = browser.texts(legend);
    assert_eq!(names, browser.texts("section.comparison tr th[scope=row]")[..2], "the order of the table");
    let drawn = |browser: &mut Browser, chart: &str, size: &str| {
        browser.all(&format!("figure[data-chart={chart}] > svg.{size} .drawing > .line"), "it.getAttribute('d')")
    };
    browser.click(&format!("{legend}:first-child"));
    assert_eq!([drawn(browser, "loss", size).len(), drawn(browser, "training", "small").len()], [1, 1]);
    let read = browser.texts("figure[data-chart=loss] output")[0].clone();
    assert!(!read.contains(&names[0]) && read.contains(&names[1]), "{read}");
    assert_eq!(browser.all(legend, "it.ariaPressed"), [json!("false"), json!("true")]);
    browser.click(&format!("{legend}:first-child"));
    assert_eq!(drawn(browser, "training", "small").len(), 2);

    // 64 tokens a step.
    let over = |browser: &mut Browser, axis: &str| {
        browser.evaluate(&format!(
            "(() => {{ const list = document.querySelector('.tools select'); list.value = '{axis}'; \
             list.dispatchEvent(new Event('change')); }})()"
        ));
        browser.texts("figure[data-chart=loss] output")[0].clone()
    };
    assert!(over(browser, "tokens").starts_with("tokens 2,560"));
    assert!(over(browser, "seconds").starts_with("seconds "));
    assert!(over(browser, "step").starts_with("step 40"));

    // All charts are read at one place.
    browser.point(&format!("figure[data-chart=loss] > svg.{size}"));
    let places = browser.all("figure output span:first-child b", "it.textContent");
    assert!(places.len() >= 5 && places.iter().all(|place| *place == places[0]), "{places:?}");
    browser.point_away();
}
