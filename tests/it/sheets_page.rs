//! The figures of `inspect`, `tokenizer show` and `plan` as pages and pictures: their cells show the numbers of
//! `--format json`.

use serde_json::{Value, json};
use tinderbox::format::signed;

use crate::browser::Browser;
use crate::fixtures::{Folder, list, number};
use crate::inspect::{page, trained};

const PROMPT: &str = "The cat sat";
/// The grid of all tokens.
const ALL: &str = "figure:not([data-column]) .cells";

/// The JSON and the picture that `inspect` makes of a run.
fn measured(folder: &Folder, args: &[&str]) -> (Value, String) {
    let inspect = |format: &str| folder.succeed(&[&["inspect"], args, &["--format", format]].concat());
    let svg = inspect("svg");
    assert!(svg.starts_with("<svg ") && svg.contains("tiny · step ") && !svg.contains("var("), "{args:?}: {svg}");
    (serde_json::from_str(&inspect("json")).expect("JSON"), svg)
}

#[test]
fn lens_is_grid_of_layers_by_tokens() {
    let folder = trained(&[]);
    let args = ["lens", "runs/tiny", "--prompt", PROMPT];
    let (measured, svg) = measured(&folder, &args);
    assert!(svg.matches("<rect").count() > 3 * PROMPT.len());
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&page(&folder, &args), "lens", |browser, _| {
        assert!(browser.texts(".page-about")[0].starts_with("tiny · step "));
        let rows = browser.texts(&format!("{ALL} [role=rowheader] text"));
        assert_eq!(rows, ["embedding", "layer 0", "layer 1", "actual next"]);
        let cells = browser.texts(&format!("{ALL} [role=cell]"));
        assert_eq!(cells.len(), 4 * PROMPT.len());
        for (at, cell) in cells.iter().take(3 * PROMPT.len()).enumerate() {
            let (stage, position) = (at / PROMPT.len(), at % PROMPT.len());
            let best = &measured["positions"][position]["stages"][stage]["top"][0];
            let token = best["token"].as_str().expect("a token");
            let share = 100.0 * number(&best["probability"]);
            let share = if share < 0.5 { "<1 %".to_owned() } else { format!("{share:.0} %") };
            let shown: String = cell.chars().filter(|c| *c != '\n').collect();
            assert_eq!(shown, token.replace(' ', "·").replace('\n', "↵") + &share);
        }
        let place = format!("{ALL} [role=row]:nth-child(3) [role=cell]:nth-child(4)");
        // A narrow screen begins with the chosen token, the last one.
        browser.evaluate("document.querySelector('.scrolls').scrollLeft = 0");
        browser.evaluate("new Promise((done) => setTimeout(done, 50))");
        browser.point(&place);
        let came = &measured["positions"][2]["stages"][1]["came"];
        let said = browser.texts("figure output")[0].clone();
        assert!(said.starts_with("After “e”, token 2, layer 0: "), "{said}");
        assert!(said.contains(&format!("{:.3}, rank {}", number(&came["probability"]), came["rank"])), "{said}");
        browser.evaluate("document.querySelector('.cells').focus()");
        browser.press("ArrowRight");
        assert!(browser.texts("figure output")[0].starts_with("After “·”, token 3, layer 0: "));
        let marked = browser.all(&format!("{ALL} [role=cell]"), "it.querySelector('.marked') !== null");
        for (at, is_marked) in marked.iter().take(3 * PROMPT.len()).enumerate() {
            let came = &measured["positions"][at % PROMPT.len()]["stages"][at / PROMPT.len()]["came"];
            assert_eq!(*is_marked, came["rank"] == 1, "{at}: {came}");
        }
        let chosen = |browser: &mut Browser| browser.all(&format!("{ALL} .chosen text"), "it.textContent");
        assert_eq!(chosen(browser), ["t"], "the last token");
        let terms = browser.texts(".bars.wide [role=cell]");
        assert_eq!(terms.len(), list(&measured["attribution"]["terms"]).len() * PROMPT.len(), "of every token");
        let shown =
            |browser: &mut Browser| browser.all("figure[data-column]:not([hidden])", "Number(it.dataset.column)");
        assert_eq!(shown(browser), [PROMPT.len() - 1; 2], "ranks and contributions");
        browser.press("Enter");
        assert_eq!(shown(browser), [3; 2], "those of the token that was chosen");
        browser.click(&place);
        assert_eq!((shown(browser), chosen(browser)), (vec![json!(2); 2], vec![json!("e")]));
        assert_eq!(browser.evaluate("location.hash"), "#section-1&token=2");
        browser.evaluate("location.hash = '#section-1&token=5'");
        browser.wait_for("!document.querySelector('figure[data-column=\"5\"]').hidden");
        assert_eq!(chosen(browser), ["a"]);
        assert!(!browser.texts("section")[0].contains('`'), "no markup of other places");
    });
}

#[test]
fn graph_leads_from_tokens_to_answer() {
    let folder = trained(&[]);
    let args = ["lens", "runs/tiny", "--prompt", PROMPT, "--graph"];
    let (measured, svg) = measured(&folder, &args);
    let parts = list(&measured["graph"]);
    assert_eq!(parts.len(), 2 * (2 + 1), "two layers of two heads and a feed-forward layer");
    assert!(svg.matches("class=\"link ").count() > parts.len(), "{svg}");
    let text = folder.succeed(&[&["inspect"], &args[..]].concat());
    let mut sentences = Vec::new();
    for part in parts {
        let [predicted, effect] = ["predicted", "measured"].map(|key| signed(number(&part[key]), 2));
        sentences.push([format!(" adds {predicted}"), format!("switched off, it takes {effect} away")]);
        let of_heads: Vec<f64> = list(&part["from"]).iter().map(number).collect();
        let sum: f64 = of_heads.iter().sum();
        assert!(part["part"] == "mlp" && of_heads.is_empty() || (sum - number(&part["predicted"])).abs() < 1e-4);
    }
    let is_said = |about: &str, [one, other]: &[String; 2]| about.contains(one) && about.contains(other);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(sentences.iter().all(|said| is_said(&words, said)), "{text}");
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&page(&folder, &args), "graph", |browser, (width, _)| {
        let about = browser.all(".graph.wide [data-node]", "it.dataset.about");
        let about: Vec<&str> = about.iter().map(|about| about.as_str().expect("a text")).collect();
        assert!(sentences.iter().all(|said| about.iter().any(|about| is_said(about, said))), "{about:?}");
        if width < 1000 {
            return;
        }
        // The links of a part stand out, and stay when it is pinned.
        let links =
            |browser: &mut Browser| browser.all(".graph.wide .link:not(.off)", "it.dataset.from + it.dataset.to");
        browser.click(".graph.wide [data-node='1-0']");
        let of_part = links(browser);
        assert!(of_part.iter().all(|link| link.as_str().is_some_and(|link| link.contains("1-0"))), "{of_part:?}");
        browser.point(".graph.wide [data-node='2-0']");
        assert_eq!(links(browser), of_part);
    });
}

#[test]
fn heads_steps_and_embeddings_show_numbers_of_json() {
    let folder = trained(&[]);
    let heads = ["heads", "runs/tiny"];
    let explain = ["explain", "runs/tiny", "--prompt", PROMPT, "--layer", "1", "--head", "1"];
    let words = ["embeddings", "runs/tiny", "--word", "cat", "--prompt", PROMPT, "--prompt", "The cat at"];
    let [scores, steps, similar] = [&heads[..], &explain, &words].map(|args| measured(&folder, args).0);
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&page(&folder, &heads), "heads-sheet", |browser, _| {
        // A mixed head is called by what it looks at most.
        let kinds = browser.texts("figure:first-of-type .cells [role=cell] text:first-of-type");
        let kind = scores["heads"][1][1]["kind"].as_str().expect("a kind");
        let kind = kind.replace('_', " ").replace("diagonal", "self");
        assert!(kinds.len() == 4 && (kind == "mixed" || kinds[3] == kind), "{kinds:?}");
        assert!(kinds.iter().all(|kind| kind != "mixed"), "{kinds:?}");
        let about = browser.all("figure:first-of-type [data-about]", "it.dataset.about");
        let snippet = &scores["evidence"][1][1]["snippets"][0];
        let weight = format!(" Its largest weight, {:.2}: ", number(&snippet["weight"]));
        assert!(about[3].as_str().expect("a text").contains(&weight), "{about:?}");
        // Nothing moves under the pointer.
        let top = "scrollY + document.querySelector('.cells').getBoundingClientRect().top";
        let before = browser.evaluate(top);
        browser.point("figure:first-of-type .cells [role=cell]");
        assert_eq!(browser.evaluate(top), before);
    });
    browser.read(&page(&folder, &explain), "explain-sheet", |browser, _| {
        assert!(browser.texts("h2")[0].contains("·\u{200b}"), "lines break between words");
        let weights = browser.texts("figure:nth-of-type(5) .cells [role=cell] text");
        let expected = list(&steps["weights"]).iter().map(|it| format!("{:.4}", number(it)));
        assert_eq!(weights, expected.collect::<Vec<_>>());
        // The largest weight comes first, as a bar and in the sentence.
        let largest = list(&steps["weights"]).iter().map(number).fold(0.0, f64::max);
        let largest = format!("{:.1} %", 100.0 * largest);
        assert_eq!(browser.texts("figure:nth-of-type(1) .bars.wide [role=cell] text")[0], largest);
        let lead = browser.texts(".lead")[0].clone();
        assert!(lead.contains(&format!("gives {largest} of its attention to ")), "{lead}");
    });
    browser.read(&page(&folder, &words), "embeddings-sheet", |browser, _| {
        let cells = browser.texts("figure:nth-of-type(2) .cells [role=row]:last-child [role=cell] text");
        let last = list(&similar["similarity"]).last().expect("a stage");
        assert_eq!(cells[0], format!("{:.3}", number(&last[0][1])));
    });
}

/// Every token of a text has its bits, under one model and under two, and they add up to the loss.
#[test]
fn tokens_have_their_bits() {
    let folder = trained(&["train.eval_interval=5", "train.checkpoint_interval=5"]);
    let text = "one had\na bed";
    let show = |args: &[&str]| folder.succeed(&[&["tokenizer", "show", "runs/tiny", text], args].concat());
    let shown: Value = serde_json::from_str(&show(&["--format", "json"])).expect("JSON");
    let bits: Vec<f64> = list(&shown["bits"]).iter().filter_map(Value::as_f64).collect();
    let n = list(&shown["ids"]).len();
    assert_eq!((bits.len() + 1, &shown["bits"][0]), (n, &Value::Null), "all but the first are predicted");
    folder.write("mine.txt", text);
    let loss = number(&folder.json(&["eval", "runs/tiny", "--text", "mine.txt", "--json"])["loss"]);
    let mean = bits.iter().sum::<f64>() / bits.len() as f64;
    assert!((mean * 2.0_f64.ln() - loss).abs() < 1e-4, "{mean} bits, and a loss of {loss}");
    let line = format!("{mean:.2} bits per token");
    assert!(show(&[]).contains(&line), "{}", show(&[]));
    let of_file = folder.succeed(&["tokenizer", "show", "runs/tiny/tokenizer.json", text]);
    assert!(!of_file.contains("bits per token") && of_file.contains("bytes per token"), "no model: {of_file}");
    let svg = show(&["--format", "svg"]);
    assert!(svg.contains("tiny · step ") && svg.matches("<title>token ").count() == n, "{svg}");

    let two = ["compare", "runs/tiny/checkpoints/step-000005", "runs/tiny/last", "--prompt", text];
    let compared = folder.json(&[&["inspect"], &two[..], &["--format", "json"]].concat());
    let of_models = [0, 1].map(|at| list(&compared["models"][at]["bits"]).to_vec());
    assert_ne!(of_models[0], of_models[1]);
    let Some(mut browser) = Browser::start() else { return };
    show(&["--format", "html", "--output", "tokens.html"]);
    browser.read(&folder.path("tokens.html"), "tokens", |browser, _| {
        assert_eq!(browser.texts(".pieces.wide [data-about] text").concat().replace('·', " ").replace('↵', "\n"), text);
        assert!(browser.texts(".lead")[0].contains(&line));
        browser.evaluate("[...document.querySelectorAll('.pieces')].find((it) => it.clientWidth > 0).focus()");
        browser.press("ArrowRight");
        let said = browser.texts("figure output")[0].clone();
        assert!(said.starts_with("token 1 ") && said.contains(&format!("{:.2} bits", bits[0])), "{said}");
    });
    browser.read(&page(&folder, &two), "two-models", |browser, _| {
        let said = browser.all("figure:last-of-type .pieces.wide [data-about]", "it.dataset.about");
        let [a, b] = of_models.each_ref().map(|bits| number(&bits[2]));
        assert!(
            said[2].as_str().expect("the field is a string").contains(&format!("{a:.2} bits, then {b:.2}")),
            "{said:?}"
        );
        let better = of_models[0].iter().zip(&of_models[1]).filter(|(a, b)| b.as_f64() < a.as_f64()).count();
        let lead = browser.texts(".lead")[0].clone();
        assert!(lead.contains(&format!("expects {better} of {} tokens better", n - 1)), "{lead}");
        let sum = |bits: &Vec<Value>| bits.iter().filter_map(Value::as_f64).sum::<f64>();
        let saved = sum(&of_models[0]) - sum(&of_models[1]);
        let (verb, more) = if saved < 0.0 { ("needs", " more") } else { ("saves", "") };
        assert!(lead.contains(&format!(" {verb} {:.1} bits{more}, and expects", saved.abs())), "{lead}");
    });
}

#[test]
fn map_names_most_similar_tokens() {
    let folder = trained(&[]);
    let args = ["map", "runs/tiny", "--tokens", "12"];
    let (map, svg) = measured(&folder, &args);
    let tokens = list(&map["tokens"]);
    assert!(tokens.len() <= 12 && tokens.windows(2).all(|pair| number(&pair[0]["count"]) >= number(&pair[1]["count"])));
    assert_eq!(svg.matches("Most similar: ").count(), tokens.len(), "{svg}");
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&page(&folder, &args), "map", |browser, _| {
        let about = browser.all(".map [data-about]", "it.dataset.about");
        assert_eq!(about.len(), tokens.len());
        for (about, token) in about.iter().zip(tokens) {
            let (name, cosine) = (token["nearest"][0][0].as_str().expect("a name"), number(&token["nearest"][0][1]));
            let about = about.as_str().expect("the field is a string");
            assert!(about.contains(&format!("Most similar: “{name}” {cosine:.2}")), "{about}");
        }
        browser.evaluate("document.querySelector('.map').focus()");
        browser.press("ArrowRight");
        assert!(about[1] == json!(browser.texts("figure output")[0]));
        // A token is found by its name, and shown with the most similar ones.
        let last = tokens.last().expect("the map has tokens");
        let name = last["text"].as_str().expect("a name");
        browser.evaluate(&format!(
            "(() => {{ const it = document.querySelector('.find'); it.value = {}; it.dispatchEvent(new Event('input')); }})()",
            json!(name)
        ));
        assert!(browser.texts("figure output")[0].starts_with(&format!("“{name}”, ")));
        let mut named: Vec<&str> = list(&last["nearest"]).iter().map(|near| near[0].as_str().expect("a name")).collect();
        named.push(name);
        assert_eq!(browser.texts(".related text"), named);
        assert_eq!(browser.all(".related line", "1").len(), named.len() - 1);
    });
}

#[test]
fn plan_page_repeats_terminal() {
    let folder = trained(&[]);
    let args = ["plan", "tiny.toml", "--no-measure"];
    let plan = |more: &[&str]| folder.succeed(&[&args[..], more].concat());
    let svg = plan(&["--format", "svg"]);
    assert!(svg.starts_with("<svg ") && svg.contains("Learning rate") && !svg.contains("NaN"), "{svg}");
    let text = plan(&[]);
    let Some(mut browser) = Browser::start() else { return };
    plan(&["--format", "html", "--output", "plan.html"]);
    browser.read(&folder.path("plan.html"), "plan", |browser, _| {
        let shown = browser.texts(".lines.wide text").join(" ");
        let is_constant = |line: &&str| !line.contains("free now");
        let words = text.lines().filter(is_constant).flat_map(str::split_whitespace);
        for word in words {
            assert!(shown.contains(word), "{word}: {shown}");
        }
        let parts = browser.texts("figure:first-of-type .bars.wide [role=rowheader] text");
        assert_eq!(parts[..2], ["embeddings", "queries, keys, values"]);
        let planned: Value = serde_json::from_str(&plan(&["--json"])).expect("JSON");
        let total = planned["parameters"]["total"].to_string();
        let title = browser.texts("figcaption")[0].replace(',', "");
        assert_eq!(title, format!("Parameters: {total}"));
        assert_eq!(browser.all(".chart .line", "it.getAttribute('d').length > 100"), [true; 2], "wide and narrow");
    });
}

#[test]
fn ablation_and_patching_are_maps_of_parts() {
    let folder = trained(&[]);
    let ablate = ["ablate", "runs/tiny", "--max-batches", "2"];
    let patch =
        ["lens", "runs/tiny", "--prompt", PROMPT, "--patch-from", "The hen sat", "--answer", "a", "--against", "e"];
    let [ablated, patched] = [&ablate[..], &patch].map(|args| measured(&folder, args).0);
    let Some(mut browser) = Browser::start() else { return };
    browser.read(&page(&folder, &ablate), "ablation", |browser, _| {
        let cells = browser.texts("figure:first-of-type .cells [role=cell] text");
        assert_eq!(cells.len(), 2 * 4, "two layers of two heads, attention and mlp");
        let of = |part: &Value| part["part"] == "head" && part["layer"] == 1 && part["head"] == 1;
        let head = list(&ablated["parts"]).iter().find(|part| of(part)).expect("the head was ablated");
        let rise = number(&head["mean"]) - number(&ablated["loss"]);
        assert_eq!(cells[5].replace(['+', '\u{2212}'], "").replace('-', ""), format!("{:.3}", rise.abs()));
    });
    browser.read(&page(&folder, &patch), "patching", |browser, _| {
        let cells = browser.all("figure:first-of-type .cells [role=row]:last-child [role=cell] text", "it.textContent");
        let last = list(&patched["residual"][2]);
        assert_eq!(cells.len(), PROMPT.len() - 4, "from the first token that differs");
        assert_eq!(cells.last(), Some(&json!(format!("{:.1} %", 100.0 * number(&last[10])))));
        let legend = browser.texts("figure:first-of-type .cells .scale text");
        assert!(legend.len() == 5 && legend.iter().all(|label| label.ends_with(" %")), "one unit: {legend:?}");
        assert_eq!(browser.texts("h1"), ["What another text changes"]);
    });
}
