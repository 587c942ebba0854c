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
            assert_eq!(cell, &token.replace(' ', "·").replace('\n', "↵"));
        }
        browser.point(".cells tbody tr:nth-child(2) td:nth-child(4)");
        let came = &measured["positions"][2]["stages"][1]["came"];
        let said = browser.texts("figure output")[0].clone();
        assert!(said.starts_with("After `e`, token 2, layer 0: "), "{said}");
        assert!(said.contains(&format!("{:.3}, rank {}", number(&came["probability"]), came["rank"])), "{said}");
        browser.evaluate("document.querySelector('.cells').focus()");
        browser.press("ArrowRight");
        assert!(browser.texts("figure output")[0].starts_with("After `·`, token 3, layer 0: "));
        let terms = browser.texts(".terms .number");
        assert_eq!(terms.len(), list(&measured["attribution"]["terms"]).len());
        browser.check("lens", screen);
    }
    let picture = folder.succeed(&[&["inspect"], &args[..], &["--format", "svg"]].concat());
    assert!(picture.starts_with("<svg ") && picture.contains("tiny · step "), "{picture}");
    assert!(picture.matches("<rect").count() > 3 * PROMPT.len());
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
