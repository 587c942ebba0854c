//! The pages and pictures of `tinderbox inspect lens` and `ablate`: their cells show the numbers of `--format json`.

use serde_json::{Value, json};

use crate::browser::{Browser, SCREENS};
use crate::fixtures::{list, number};
use crate::inspect::{page, trained};

const PROMPT: &str = "The cat sat";

#[test]
fn a_lens_is_a_grid_of_layers_by_tokens() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&[]);
    let args = ["lens", "runs/tiny", "--prompt", PROMPT];
    let measured = folder.json(&[&["inspect"], &args[..], &["--format", "json"]].concat());
    let page = page(&folder, &args);
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&page);
        assert!(browser.texts(".page-about")[0].starts_with("tiny · step "));
        let rows = browser.texts(".cells tbody th");
        assert_eq!(rows, ["embedding", "layer 0", "layer 1"]);
        let cells = browser.texts(".cells td[data-about]");
        assert_eq!(cells.len(), 3 * PROMPT.len());
        for (at, cell) in cells.iter().enumerate() {
            let (stage, position) = (at / PROMPT.len(), at % PROMPT.len());
            let best = &measured["positions"][position]["stages"][stage]["top"][0];
            let token = best["token"].as_str().expect("a token");
            let share = 100.0 * number(&best["probability"]);
            let share = if share < 0.5 { "<1 %".to_owned() } else { format!("{share:.0} %") };
            let shown: String = cell.chars().filter(|c| *c != '\n').collect();
            assert_eq!(shown, token.replace(' ', "·").replace('\n', "↵") + &share);
        }
        browser.point(".cells tbody tr:nth-child(2) td:nth-child(4)");
        let came = &measured["positions"][2]["stages"][1]["came"];
        let said = browser.texts("figure output")[0].clone();
        assert!(said.starts_with("After “e”, token 2, layer 0: "), "{said}");
        assert!(said.contains(&format!("{:.3}, rank {}", number(&came["probability"]), came["rank"])), "{said}");
        browser.evaluate("document.querySelector('.cells').focus()");
        browser.press("ArrowRight");
        assert!(browser.texts("figure output")[0].starts_with("After “·”, token 3, layer 0: "));
        let terms = browser.texts(".terms .number");
        assert_eq!(terms.len(), list(&measured["attribution"]["terms"]).len() * PROMPT.len(), "of every token");
        let shown =
            |browser: &mut Browser| browser.all("figure[data-column]:not([hidden])", "Number(it.dataset.column)");
        assert_eq!(shown(&mut browser), [PROMPT.len() - 1]);
        browser.press("Enter");
        assert_eq!(shown(&mut browser), [3], "those of the token that was chosen");
        browser.click(".cells tbody tr:nth-child(2) td:nth-child(4)");
        assert_eq!(shown(&mut browser), [2]);
        assert_eq!(browser.texts(".scale span").len(), 6, "a legend");
        assert!(!browser.texts("section")[0].contains('`'), "no markup of other places");
        browser.check("lens", screen);
    }
    let picture = folder.succeed(&[&["inspect"], &args[..], &["--format", "svg"]].concat());
    assert!(picture.starts_with("<svg ") && picture.contains("tiny · step "), "{picture}");
    assert!(picture.matches("<rect").count() > 3 * PROMPT.len());
}

/// What the other commands measure is drawn too, with the numbers of their JSON.
#[test]
fn heads_steps_and_words_are_pages_and_pictures() {
    let folder = trained(&[]);
    let heads = ["heads", "runs/tiny"];
    let explain = ["explain", "runs/tiny", "--prompt", PROMPT, "--layer", "1", "--head", "1"];
    let words = ["embeddings", "runs/tiny", "--word", "cat", "--prompt", PROMPT, "--prompt", "The cat at"];
    let inspect = |args: &[&str], format: &str| folder.succeed(&[&["inspect"], args, &["--format", format]].concat());
    for args in [&heads[..], &explain, &words] {
        let svg = inspect(args, "svg");
        assert!(svg.starts_with("<svg ") && svg.contains("tiny · step ") && !svg.contains("var("), "{args:?}");
    }
    let Some(mut browser) = Browser::start() else { return };
    let json = |args: &[&str]| -> Value { serde_json::from_str(&inspect(args, "json")).expect("JSON") };
    let [scores, steps, similar] = [&heads[..], &explain, &words].map(json);
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&page(&folder, &heads));
        let kinds = browser.texts("figure:first-of-type .cells td[data-about]");
        let kind =
            scores["heads"][1][1]["kind"].as_str().expect("a kind").replace('_', " ").replace("diagonal", "self");
        assert!(kinds.len() == 4 && kinds[3].starts_with(&kind), "{kinds:?}");
        browser.check("heads-sheet", screen);

        browser.open(&page(&folder, &explain));
        assert!(browser.texts("h2")[0].contains("·\u{200b}"), "lines break between words");
        let weights = browser.texts("figure:nth-of-type(4) .cells td[data-about]");
        let expected = list(&steps["weights"]).iter().map(|it| format!("{:.3}", number(it)));
        assert_eq!(weights, expected.collect::<Vec<_>>());
        browser.check("explain-sheet", screen);

        browser.open(&page(&folder, &words));
        let cells = browser.texts("figure:first-of-type .cells tbody tr:last-child td");
        let last = list(&similar["similarity"]).last().expect("a stage");
        assert_eq!(cells[0], format!("{:.2}", number(&last[0][1])));
        browser.check("embeddings-sheet", screen);
    }
}

/// A text in its tokens, under one model and under two: every token has its bits, and they add up to the loss.
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
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&folder.path("tokens.html"));
        assert_eq!(browser.texts(".pieces span").concat().replace('·', " ").replace('↵', "\n"), text);
        assert!(browser.texts(".lead")[0].contains(&line));
        browser.evaluate("document.querySelector('.pieces').focus()");
        browser.press("ArrowRight");
        let said = browser.texts("figure output")[0].clone();
        assert!(said.starts_with("token 1 ") && said.contains(&format!("{:.2} bits", bits[0])), "{said}");
        browser.check("tokens", screen);

        browser.open(&page(&folder, &two));
        let said = browser.all("figure:last-of-type .pieces span:nth-of-type(3)", "it.dataset.about");
        let [a, b] = of_models.each_ref().map(|bits| number(&bits[2]));
        assert!(said[0].as_str().expect("text").contains(&format!("{a:.2} bits, then {b:.2}")), "{said:?}");
        let better = of_models[0].iter().zip(&of_models[1]).filter(|(a, b)| b.as_f64() < a.as_f64()).count();
        let lead = browser.texts(".lead")[0].clone();
        assert!(lead.contains(&format!("expects {better} of {} tokens better", n - 1)), "{lead}");
        browser.check("two-models", screen);
    }
}

/// The map has every token with those that its JSON says are the most similar.
#[test]
fn embeddings_are_a_map() {
    let folder = trained(&[]);
    let args = ["map", "runs/tiny", "--tokens", "12"];
    let map = folder.json(&[&["inspect"], &args[..], &["--format", "json"]].concat());
    let tokens = list(&map["tokens"]);
    assert!(tokens.len() <= 12 && tokens.windows(2).all(|pair| number(&pair[0]["count"]) >= number(&pair[1]["count"])));
    let svg = folder.succeed(&[&["inspect"], &args[..], &["--format", "svg"]].concat());
    assert!(svg.contains("tiny · step ") && svg.matches("Most similar: ").count() == 2 * tokens.len(), "{svg}");
    let Some(mut browser) = Browser::start() else { return };
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&page(&folder, &args));
        let about = browser.all(".map [data-about]", "it.dataset.about");
        assert_eq!(about.len(), tokens.len());
        for (about, token) in about.iter().zip(tokens) {
            let nearest = &token["nearest"][0];
            let expected =
                format!("Most similar: “{}” {:.2}", nearest[0].as_str().expect("a name"), number(&nearest[1]));
            assert!(about.as_str().expect("text").contains(&expected), "{about} {expected}");
        }
        browser.evaluate("document.querySelector('.map').focus()");
        browser.press("ArrowRight");
        assert!(about[1] == json!(browser.texts("figure output")[0]));
        browser.check("map", screen);
    }
}

/// A plan's bars and curve show the numbers of its JSON.
#[test]
fn a_plan_is_drawn() {
    let folder = trained(&[]);
    let args = ["plan", "tiny.toml", "--no-measure"];
    let plan = folder.json(&[&args[..], &["--json"]].concat());
    let parts = plan["memory"]["parts"].as_object().expect("parts");
    let parts: Vec<(String, f64)> = parts.iter().map(|(name, bytes)| (name.replace('_', " "), number(bytes))).collect();
    let largest = parts.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    let svg = folder.succeed(&[&args[..], &["--format", "svg"]].concat());
    assert!(svg.starts_with("<svg ") && svg.contains("Learning rate") && !svg.contains("NaN"), "{svg}");
    let Some(mut browser) = Browser::start() else { return };
    folder.succeed(&[&args[..], &["--format", "html", "--output", "plan.html"]].concat());
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&folder.path("plan.html"));
        assert_eq!(browser.texts("h2"), ["Memory", "Schedule"], "nothing is measured");
        let names = browser.texts(".terms dt");
        assert_eq!(names.len(), parts.iter().filter(|(_, bytes)| *bytes > 0.0).count());
        let share = "it.getBoundingClientRect().width / it.parentNode.getBoundingClientRect().width";
        for (name, share) in names.iter().zip(browser.all(".terms .track i", share)) {
            let (_, bytes) = parts.iter().find(|(part, _)| part == name).expect("a part of the plan");
            assert!((number(&share) - bytes / largest).abs() < 0.01, "{name}: {share}");
        }
        browser.check("plan", screen);
    }
}

#[test]
fn ablation_and_patching_are_maps_of_parts() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&[]);
    let ablate = ["ablate", "runs/tiny", "--max-batches", "2"];
    let patch =
        ["lens", "runs/tiny", "--prompt", PROMPT, "--patch-from", "The hen sat", "--answer", "a", "--against", "e"];
    let [measured, patched] =
        [&ablate[..], &patch].map(|args| folder.json(&[&["inspect"], args, &["--format", "json"]].concat()));
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&page(&folder, &ablate));
        let cells = browser.texts(".cells td[data-about]");
        assert_eq!(cells.len(), 2 * 4, "two layers of two heads, attention and mlp");
        let of = |part: &Value| part["part"] == "head" && part["layer"] == 1 && part["head"] == 1;
        let head = list(&measured["parts"]).iter().find(|part| of(part)).expect("measured");
        let rise = number(&head["mean"]) - number(&measured["loss"]);
        assert_eq!(cells[5].replace(['+', '\u{2212}'], "").replace('-', ""), format!("{:.3}", rise.abs()));
        browser.check("ablation", screen);

        browser.open(&page(&folder, &patch));
        let cells = browser.all("figure:first-of-type .cells tbody tr:last-child td", "it.textContent");
        let last = list(&patched["residual"][2]);
        assert_eq!(cells.len(), PROMPT.len() - 4, "from the first token that differs");
        assert_eq!(cells.last(), Some(&json!(format!("{:.1} %", 100.0 * number(&last[10])))));
        browser.check("patching", screen);
    }
}
