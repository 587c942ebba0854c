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
