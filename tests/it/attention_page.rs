//! The page of `tinderbox inspect attention --format html` in a browser: every view shows the model's numbers, on wide
//! and narrow screens, in the light and dark theme.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::browser::{Browser, SCREENS, Theme};
use crate::fixtures::{Folder, list, number};
use crate::inspect::{self, MODELS, trained};

const PROMPT: &str = "The cat sat";

fn page(folder: &Folder, prompt: &str, args: &[&str]) -> std::path::PathBuf {
    inspect::page(folder, &[&["attention", "runs/tiny", "--prompt", prompt], args].concat())
}

/// The weights `[L][H][T][T]` from the program's JSON.
fn weights(folder: &Folder, prompt: &str) -> Value {
    inspect::inspect(folder, "attention", &["--prompt", prompt])["weights"].take()
}

/// The row of one query, with each number exactly as in the model.
fn row(weights: &Value, [layer, head, query]: [usize; 3]) -> Vec<f64> {
    list(&weights[layer][head][query]).iter().map(|weight| f64::from(number(weight) as f32)).collect()
}

fn strongest(row: &[f64], n: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<(usize, f64)> = row.iter().copied().enumerate().collect();
    order.retain(|(_, weight)| *weight > 0.0);
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(n);
    order
}

fn tab(browser: &mut Browser, name: &str) {
    let titles = browser.texts(".tab");
    let index = titles.iter().position(|title| title == name);
    let index = index.unwrap_or_else(|| panic!("no tab `{name}` among {titles:?}"));
    browser.click(&format!(".tab:nth-child({})", index + 1));
    assert_eq!(browser.texts(".tab[aria-selected=true]"), [name]);
}

fn choose(browser: &mut Browser, label: &str, index: usize) {
    let label = json!(label);
    let chosen = browser.evaluate(&format!(
        "(() => {{
            const named = [...document.querySelectorAll('.panel .chooser')].filter((it) => it.textContent.startsWith({label}));
            const list = named[0].querySelector('select');
            list.value = '{index}';
            list.dispatchEvent(new Event('change'));
            return list.value;
        }})()"
    ));
    assert_eq!(chosen, json!(index.to_string()), "{label}");
}

/// Red, green, blue and opacity at `[x, y]` of each canvas that `selector` finds; read from a copy, because reading
/// slows a canvas down, and the browser warns about it.
fn pixels(browser: &mut Browser, selector: &str, [x, y]: [usize; 2]) -> Vec<[f64; 4]> {
    let read = format!(
        "(() => {{
            const copy = new OffscreenCanvas(it.width, it.height).getContext('2d', {{ willReadFrequently: true }});
            copy.drawImage(it, 0, 0);
            return [...copy.getImageData({x}, {y}, 1, 1).data];
        }})()"
    );
    let pixels = browser.all(selector, &read).into_iter();
    let channels = |pixel: Value| [0, 1, 2, 3].map(|n| number(&pixel[n]));
    pixels.map(channels).collect()
}

/// Waits until every small map is drawn, which happens in batches, and the page is rendered with them.
fn wait_for_maps(browser: &mut Browser) {
    browser.evaluate(
        "(async () => {
            const maps = () => [...document.querySelectorAll('.thumbnail canvas')];
            do {
                await new Promise((done) => setTimeout(done, 50));
            } while (maps().some((it) => it.width === 300)); // the width of a canvas before it is drawn
        })()",
    );
}

/// The head, query and key of each line drawn.
fn lines(browser: &mut Browser) -> Vec<[u64; 3]> {
    let drawn = browser.evaluate("document.querySelector('.lines').pairs.map((it) => [it.head, it.query, it.key])");
    let of_line = |line: &Value| [0, 1, 2].map(|n| line[n].as_u64().expect("a number"));
    list(&drawn).iter().map(of_line).collect()
}

/// Red, green and blue of a colour token of the pages.
fn token(name: &str, theme: Theme) -> [f64; 3] {
    const TOKENS: &str = include_str!("../../src/view/assets/tokens.css");
    let (_, pair) = TOKENS.split_once(&format!("--{name}: light-dark(")).expect("a token");
    let (light, dark) = pair.split_once(')').expect("an end").0.split_once(", ").expect("two");
    let hex = if theme == Theme::Light { light } else { dark };
    [1, 3, 5].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).expect("#rrggbb")))
}

/// The colours of the head switches, which are also those of their lines.
fn head_colors(browser: &mut Browser) -> Vec<Value> {
    browser.all(".chip", "getComputedStyle(it, '::before').borderTopColor.match(/\\d+/g).map(Number)")
}

/// The colour of a weight, by the tokens of the pages.
fn heat(theme: Theme, weight: f64) -> [f64; 3] {
    let at = weight.sqrt() * 9.0;
    let below = (at as usize).min(8);
    let [one, next] = [below, below + 1].map(|at| token(&format!("heat-{at}"), theme));
    [0, 1, 2].map(|channel| one[channel] + (next[channel] - one[channel]) * (at - below as f64))
}

/// Whether a colour is that of a weight, with a tolerance for rounded numbers.
fn is_heat(color: &[f64], theme: Theme, weight: f64) -> bool {
    (0..3).all(|channel| (color[channel] - heat(theme, weight)[channel]).abs() <= 4.0)
}

/// The page opens on a head and the token that it looks at most, whose weight its sentence and its bars show.
fn headline(browser: &mut Browser, weights: &Value) {
    let [head, query, key] = ["head", "query", "key"].map(|name| {
        let found = browser.all(".telling", &format!("it.dataset.{name}"));
        found[0].as_str().expect("an attribute").to_owned()
    });
    let [query, key]: [usize; 2] = [query, key].map(|at| at.parse().expect("a token"));
    let (layer, head_idx) = head.split_once('.').expect("a layer and a head");
    let [layer, head_idx]: [usize; 2] = [layer, head_idx].map(|at| at.parse().expect("a number"));
    let of_query = row(weights, [layer, head_idx, query]);
    assert_eq!(strongest(&of_query, 1)[0].0, key, "{of_query:?}");
    let text = browser.texts(".telling")[0].clone();
    let share = format!("gives {} of its", percent(of_query[key]));
    assert!(text.starts_with(&format!("Head {head}: ")) && text.contains(&share), "{text}");
    let looks_there = |at: &usize| strongest(&row(weights, [layer, head_idx, *at]), 1)[0].0 == key;
    let n_after = PROMPT.len() - key - 1;
    let n = (key + 1..PROMPT.len()).filter(looks_there).count();
    assert_eq!(text.contains(&format!("{n} of the {n_after} tokens after")), n > 1 && n < n_after, "{text}");
    assert_eq!(browser.texts(".flow .token.present"), [PROMPT[query..=query].to_owned()]);
    let title = browser.texts(".partners h3")[0].clone();
    assert!(title.starts_with(&format!("Head {head}: ")), "{title}");
    assert_eq!(browser.texts(".partners .shares .number")[0], percent(of_query[key]));
    // The lines of this token in this head are those that the tab of heads begins with.
    tab(browser, "Heads");
    let is_drawn = |key: &u64| of_query[*key as usize] > 0.001;
    let expected: Vec<[u64; 3]> =
        (0..=query as u64).filter(is_drawn).map(|key| [head_idx as u64, query as u64, key]).collect();
    let mut drawn = lines(browser);
    drawn.sort_unstable();
    assert_eq!(drawn, expected);
    tab(browser, "Text");
    browser.press("Escape"); // releases the token
}

/// A share as pages show it: without digits after the point from 10 % on, or else with two digits.
pub fn percent(share: f64) -> String {
    let exponent = format!("{:.1e}", 100.0 * share).rsplit('e').next().and_then(|it| it.parse().ok());
    let n_digits = exponent.map_or(0, |exponent: i32| usize::try_from(1 - exponent).unwrap_or(0));
    format!("{:.*} %", if share < 0.1 { n_digits } else { 0 }, 100.0 * share)
}

/// Tokens are coloured by their weights, in both directions, and predictions are those of the lens.
fn text(browser: &mut Browser, weights: &Value, lens: &Value, theme: Theme) {
    assert_eq!(browser.texts(".tab[aria-selected=true]"), ["Text"], "the text comes first");
    headline(browser, weights);
    let flow: String = browser.texts(".flow .token").concat();
    assert_eq!(flow, PROMPT);
    browser.click(".small-map:last-of-type"); // layer 1, head 3
    browser.click(".flow .token[data-token='7']");
    browser.point_away();
    let colors = "getComputedStyle(it).backgroundColor.match(/[\\d.]+/g).map(Number)";
    let glow = |browser: &mut Browser| -> Vec<Vec<f64>> {
        let colors = browser.all(".flow .token", colors).into_iter();
        colors.map(|color| list(&color).iter().map(number).collect()).collect()
    };
    let seen = glow(browser);
    let of_query = row(weights, [1, 3, 7]);
    for (token, color) in seen.iter().enumerate() {
        match token <= 7 {
            true => assert!(is_heat(color, theme, of_query[token]), "{token}: {color:?} {}", of_query[token]),
            false => assert_eq!(color[3..], [0.0], "later tokens do not glow"),
        }
    }
    let stages = |token: usize| &lens["positions"][token]["stages"];
    let last = |token: usize| list(stages(token)).last().expect("the model's own");
    let shown = browser.texts(".guesses .shares .number");
    let top = list(&last(7)["top"]).iter();
    let rounded = |share: f64| (share * 1e6).round() / 1e6;
    let expected: Vec<String> = top.map(|it| percent(rounded(number(&it["probability"])))).collect();
    assert_eq!(shown, expected);
    let bars = browser.all(".chance", "Number(it.style.getPropertyValue('--share'))");
    assert_eq!(bars.len(), 10, "nothing came before the first");
    for (token, bar) in (1..).zip(bars) {
        assert!((number(&bar) - number(&last(token - 1)["came"]["probability"])).abs() < 1e-6, "{token}");
    }

    browser.click(".switch [data-side=key]");
    browser.point_away();
    let seen = glow(browser);
    for (token, color) in seen.iter().enumerate() {
        match token >= 7 {
            true => assert!(is_heat(color, theme, row(weights, [1, 3, token])[7]), "{token}: {color:?}"),
            false => assert_eq!(color[3..], [0.0], "earlier tokens cannot look"),
        }
    }
    let address = browser.evaluate("location.hash");
    assert_eq!(address, json!("#section-1&view=text&layer=1&head=3&token=7&side=key"));
    browser.click(".switch [data-side=query]");
    browser.press("Escape");
}

/// Without the first token, the others have all of the attention.
fn without_first(browser: &mut Browser, weights: &Value) {
    browser.click(".small-map:last-of-type"); // layer 1, head 3
    browser.click(".flow .token[data-token='7']");
    browser.point_away();
    browser.click(".without input");
    let row = row(weights, [1, 3, 7]);
    let rest = row.iter().sum::<f64>() - row[0];
    let shared = |(at, weight): (usize, &f64)| if at == 0 { 0.0 } else { f64::from((weight / rest) as f32) };
    let others: Vec<f64> = row.iter().enumerate().map(shared).collect();
    let expected: Vec<String> = strongest(&others, 5).iter().map(|(_, weight)| percent(*weight)).collect();
    assert_eq!(browser.texts(".partners .number"), expected);
    assert!(browser.texts(".telling")[0].contains("of its attention but for the first token"));
    browser.click(".without input");
    browser.press("Escape");
}

/// The lines and the colours of heads are those of the token that is pointed at, or of all.
fn heads(browser: &mut Browser, weights: &Value, n_heads: usize, theme: Theme) {
    tab(browser, "Heads");
    let series = (0..n_heads).map(|head| json!(token(&format!("series-{head}"), theme).map(|c| c as u8)));
    assert_eq!(head_colors(browser), series.collect::<Vec<_>>());
    browser.click(".chips > button:not(.chip)"); // all heads
    let n_lines = lines(browser).len();
    choose(browser, "Layer", 1);
    let token = ".column.query .token:nth-child(7)";
    let place = "scrollY + it.getBoundingClientRect().top";
    let before = browser.all(token, place);
    browser.point(token);
    assert_eq!(browser.all(token, place), before, "nothing moves under the mouse");
    let of_query = lines(browser);
    assert!(of_query.len() < n_lines && of_query.iter().all(|line| line[1] == 6), "{of_query:?}");
    for head in 0..n_heads {
        let row = row(weights, [1, head, 6]);
        let expected: Vec<String> = strongest(&row, 3).iter().map(|(_, weight)| format!("{weight:.3}")).collect();
        assert_eq!(browser.texts(&format!(".readout tr[data-head='{head}'] .bar")), expected, "head {head}");
        let of_head = of_query.iter().filter(|line| line[0] == head as u64).count();
        assert_eq!(of_head, row.iter().filter(|weight| **weight > 0.001).count());
    }
    // The canvas has colour where a head's block meets a token that it looks at.
    for (head, token) in (0..n_heads).flat_map(|head| (0..PROMPT.len()).map(move |token| (head, token))) {
        let size = browser.all(".blocks canvas", "[it.width, it.height]")[0].clone();
        let at = |share: f64, side: usize| (share * number(&size[side])) as usize;
        let middle = (token as f64 + 0.5) / PROMPT.len() as f64;
        let [.., opacity] =
            pixels(browser, ".blocks canvas", [at((head as f64 + 0.45) / n_heads as f64, 0), at(middle, 1)])[0];
        let is_partner = of_query.iter().any(|line| (line[0], line[2]) == (head as u64, token as u64));
        assert_eq!(opacity > 0.0, is_partner, "head {head}, token {token}");
    }
    // Lines begin at the token that looks, and at no other.
    let size = browser.all(".lines canvas", "[it.width, it.height]")[0].clone();
    let mut begins = |token: f64| {
        let [x, y] = [(0.001, 0), (token / PROMPT.len() as f64, 1)]
            .map(|(share, side): (f64, usize)| share * number(&size[side]));
        let [.., opacity] = pixels(browser, ".lines canvas", [x as usize, y as usize])[0];
        opacity > 0.0
    };
    assert!((0..100).any(|step| begins(6.0 + f64::from(step) / 100.0)), "no line begins at token 6");
    for other in (0..PROMPT.len()).filter(|token| *token != 6) {
        let is_empty = [0.3, 0.5, 0.7].iter().all(|shift| !begins(other as f64 + shift));
        assert!(is_empty, "a line begins at token {other}");
    }

    browser.click(".chip:first-of-type");
    browser.point(token);
    let others = lines(browser);
    assert!(!others.is_empty() && others.iter().all(|line| line[0] != 0));
    browser.click(".chip:first-of-type");
    browser.click(token);
    browser.point_away();
    assert_eq!(lines(browser), of_query, "a click keeps the token");
    browser.press("Escape");
    browser.point(".column.key .token:nth-child(3)");
    let of_key = lines(browser);
    assert!(!of_key.is_empty() && of_key.iter().all(|line| line[2] == 2));
    browser.point_away();
}

fn model(browser: &mut Browser, weights: &Value, n_heads: usize, theme: Theme) {
    tab(browser, "Model");
    assert_eq!(browser.all(".thumbnail", "1").len(), 2 * n_heads);
    wait_for_maps(browser);
    let seen = pixels(browser, ".thumbnail canvas", [3, 10]);
    for (index, color) in seen.into_iter().enumerate() {
        let weight = row(weights, [index / n_heads, index % n_heads, 10])[3];
        assert!(is_heat(&color, theme, weight), "{color:?} {weight}");
    }
    let later = pixels(browser, ".thumbnail canvas", [10, 3]);
    assert!(later.iter().all(|[.., opacity]| *opacity == 0.0), "it cannot be seen");
    browser.click(&format!(".thumbnail:nth-of-type({})", n_heads + 2));
    assert!(browser.all(".thumbnail", "it.checkVisibility()").iter().all(|it| *it == json!(false)));
    let expected = |query: usize, key: usize| format!("{:.4}", row(weights, [1, 1, query])[key]);
    let (strongest, _) = strongest(&row(weights, [1, 1, 10]), 1)[0];
    assert_eq!(browser.texts(".large .readout strong"), [expected(10, strongest)]);
    // Zooming moves nothing but the map's own cells.
    let place = "(({ top, width, height }) => [top, width, height, document.documentElement.scrollHeight].join())\
                 (document.querySelector('.large .map').getBoundingClientRect())";
    let before = browser.evaluate(place);
    browser.press("+");
    assert_eq!(browser.evaluate(place), before);
    browser.press("0");
    assert_eq!(browser.evaluate(place), before);
    for _ in 0..10 {
        browser.press("ArrowLeft"); // to the first, and no further
    }
    for key in ["ArrowUp", "ArrowRight", "ArrowRight"] {
        browser.press(key);
    }
    assert_eq!(browser.texts(".large .readout strong"), [expected(9, 2)]);
    assert_eq!(browser.texts(".large .readout .position"), ["9", "2"]);
}

fn neurons(browser: &mut Browser, weights: &Value, explained: &Value) {
    let keys = ".row[role=option]:not(.masked)";
    tab(browser, "Neurons");
    choose(browser, "Layer", 1);
    choose(browser, "Head", 1);
    browser.click(".panel .strip .token:nth-child(8)");
    let shown_as = |list: &str| -> Vec<String> {
        (0..8).map(|key| format!("{:.3}", number(&explained[list][key])).replace('-', "−")).collect()
    };
    let row = row(weights, [1, 1, 7]);
    assert_eq!(browser.texts(&format!("{keys} .sum")), shown_as("scores"));
    assert_eq!(browser.texts(&format!("{keys} .scaled")), shown_as("scaled"));
    let expected: Vec<String> = row[..8].iter().map(|weight| format!("{weight:.4}")).collect();
    assert_eq!(browser.texts(&format!("{keys} .bar")), expected);

    // The terms of the dimensions add up to the sum.
    browser.evaluate("document.querySelector('.row[role=option][data-key=\"4\"]').focus()");
    // The numbers cover no row that is read.
    let below = "document.activeElement.getBoundingClientRect().top - \
                 document.querySelector('.neuron-view .readout').getBoundingClientRect().bottom";
    assert!(number(&browser.evaluate(below)) >= -1.0);
    let mut sum = 0.0;
    let n = explained["head_dim"].as_u64().expect("a number");
    for _ in 0..n {
        let lines = browser.texts(".neuron-view .readout p");
        let (_, product) = lines[1].rsplit_once(" = ").expect("a product");
        sum += product.replace('−', "-").parse::<f64>().expect("a number");
        browser.press("ArrowRight");
    }
    assert!((sum - number(&explained["scores"][4])).abs() < 0.001 * n as f64, "{sum}");
    let lines = browser.texts(".neuron-view .readout p");
    assert!(lines[3].ends_with(&format!("the model's weight: {:.4}", row[4])), "{lines:?}");

    browser.click(".neuron-view input[type=checkbox]");
    assert_eq!(browser.all(".row.masked", "1").len(), 3);
    let mut shown = browser.all(keys, "[it.offsetTop, Number(it.dataset.key)]");
    shown.sort_by_key(|place| place[0].as_i64());
    let order: Vec<&Value> = shown.iter().map(|place| &place[1]).collect();
    let expected: Vec<usize> = strongest(&row, 8).iter().map(|(key, _)| *key).collect();
    assert_eq!(json!(order), json!(expected));
    browser.click(".neuron-view input[type=checkbox]");
}

/// The comparison is with the token that was selected before.
fn similarity(browser: &mut Browser, embeddings: &Value) {
    tab(browser, "Similarity");
    assert_eq!(browser.texts(".cosines .present .position"), ["7"]);
    let first = browser.texts(".cosines tbody tr:first-child td");
    let stages = list(&embeddings["stages"]).iter().zip(list(&embeddings["context"][0]["similarity"]));
    let stages = stages.filter(|(stage, _)| **stage != json!("norm"));
    let stages: Vec<String> =
        stages.map(|(_, cosine)| format!("{:.2}", number(cosine)).replace("-0.00", "0.00").replace('-', "−")).collect();
    assert_eq!(first, stages);
    let own = browser.texts(".cosines .present td");
    assert!(own.iter().all(|cosine| cosine == "1.00"), "{own:?}");
}

fn top(browser: &mut Browser, weights: &Value) {
    tab(browser, "Top three");
    for query in [0, 1, 10] {
        let strongest = strongest(&row(weights, [1, 1, query]), 3);
        let cells = format!(".top tbody tr:nth-child({}) td", query + 1);
        let keys: Vec<String> = strongest.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(browser.texts(&format!("{cells} .position")), keys);
        let shares: Vec<String> = strongest.iter().map(|(_, weight)| format!("{weight:.3}")).collect();
        assert_eq!(browser.texts(&format!("{cells} .bar")), shares);
    }
}

#[test]
fn every_view_shows_numbers_of_model() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(MODELS[2]); // rotated and normed queries and keys; pairs of heads share keys and values
    let page = page(&folder, PROMPT, &[]);
    let weights = weights(&folder, PROMPT);
    let measured = |of: &str, args: &[&str]| inspect::inspect(&folder, of, &[&["--prompt", PROMPT], args].concat());
    let explained = measured("explain", &["--layer", "1", "--head", "1", "--token", "7"]);
    let lens = measured("lens", &[]);
    let embeddings = measured("embeddings", &["--word", "The cat ", "--context", "T"]);
    for screen in SCREENS {
        browser.look(screen);
        browser.open(&page);
        let bottom = number(&browser.evaluate("document.querySelector('.flow').getBoundingClientRect().bottom"));
        assert!(bottom < 640.0, "the text ends at {bottom}, below the first screen of a phone");
        text(&mut browser, &weights, &lens, screen.1);
        without_first(&mut browser, &weights);
        browser.check("attention-text", screen);
        heads(&mut browser, &weights, 4, screen.1);
        browser.check("attention-heads", screen);
        model(&mut browser, &weights, 4, screen.1);
        browser.check("attention-model", screen);
        browser.click(".back");
        assert_eq!(browser.all(".large", "it.hidden"), [json!(true)]);
        neurons(&mut browser, &weights, &explained);
        browser.check("attention-neurons", screen);
        similarity(&mut browser, &embeddings);
        browser.check("attention-similarity", screen);
        top(&mut browser, &weights);
        browser.check("attention-top", screen);
    }
}

/// Eight line colours would not be distinguishable.
#[test]
fn one_of_many_heads_stands_out() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&["model.d_model=16", "model.n_heads=8", "model.n_kv_heads=8"]);
    browser.read(&page(&folder, PROMPT, &[]), "attention-many-heads", |browser, (_, theme)| {
        tab(browser, "Heads");
        let [chosen, other] = ["accent", "plain"].map(|name| json!(token(name, theme).map(|c| c as u8)));
        let expected = |head: usize| -> Vec<Value> {
            (0..8).map(|at| if at == head { chosen.clone() } else { other.clone() }).collect()
        };
        browser.point(".chip:nth-of-type(4)");
        assert_eq!(head_colors(browser), expected(3), "the head that is pointed at");
        let alone = lines(browser);
        assert!(!alone.is_empty() && alone.iter().all(|line| line[0] == 3), "its lines alone: {alone:?}");
        for _ in 0..2 {
            browser.click(".chip:nth-of-type(6)"); // off and on
        }
        browser.point_away();
        assert_eq!(head_colors(browser), expected(5), "the head that was switched on last");
    });
}

/// A page so large that its numbers are rounded, and its rows are filled when they come near the viewport.
#[test]
fn long_prompts_have_rounded_numbers_and_all_rows() {
    let Some(mut browser) = Browser::start() else { return };
    let long = ["model.context_length=700", "tokenizer.kind=byte", "train.batch_size=1"];
    let folder = trained(&[&long[..], &["model.n_heads=4", "model.n_kv_heads=2"]].concat());
    let prompt: String = "The cat sat on the bank. ".chars().cycle().take(700).collect();
    let page = page(&folder, &prompt, &[]);
    let row_of_last = row(&weights(&folder, &prompt), [1, 1, 699]);
    let (_, weight) = strongest(&row_of_last, 1)[0];
    let is_close = |shown: &str| (shown.parse::<f64>().expect("a number") - weight).abs() < 0.0005 + 1.0 / 255.0;
    for screen in [SCREENS[0], SCREENS[3]] {
        browser.look(screen);
        browser.open(&page);
        assert!(browser.texts(".facts")[0].contains("within 1/255 of the model's"));
        assert!(!browser.texts(".tab").contains(&"Neurons".to_owned()), "a coarse page has no queries and keys");
        browser.click(".flow .token[data-token='699']"); // the other views go on with the token that is kept
        browser.point_away();
        browser.check("attention-long-text", screen);
        tab(&mut browser, "Heads");
        let n_lines = lines(&mut browser).len();
        assert!((1..=4000).contains(&n_lines), "{n_lines}");
        let heights = "it.getBoundingClientRect().height / it.parentNode.getBoundingClientRect().height";
        assert!(number(&browser.all(".lines canvas", heights)[0]) < 1.0, "the lines near the viewport");
        browser.evaluate("page.picture(document.querySelector('.panel'), []).svg.length");
        assert_eq!(browser.all(".lines canvas", heights), [json!(1)], "all lines are on a picture");
        tab(&mut browser, "Model");
        browser.click(".thumbnail:nth-of-type(6)");
        assert!(is_close(&browser.texts(".large .readout strong")[0]));
        let color = pixels(&mut browser, ".large canvas", [0, 699])[0];
        assert!(is_heat(&color, screen.1, row_of_last[0]), "{color:?}");
        browser.check("attention-long-map", screen);
        tab(&mut browser, "Top three");
        browser.evaluate("scrollTo(0, document.body.scrollHeight)");
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        assert!(is_close(&browser.texts(".top tr:last-child .bar")[0]));
        browser.check("attention-long-top", screen);
    }
}

/// The keyboard reaches everything, an address leads to what was shown, and the theme is the reader's.
#[test]
fn keyboard_address_and_theme_control_page() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&[]);
    let page = page(&folder, PROMPT, &[]);
    browser.look((1280, Theme::Light));
    browser.open(&page);
    let title = browser.evaluate("document.title");
    assert!(title.as_str().is_some_and(|title| title.contains("tiny · step ")), "{title}");
    let focused = |browser: &mut Browser| {
        let name = "document.activeElement.dataset.token ?? document.activeElement.textContent";
        browser.evaluate(name).as_str().expect("the field is a string").to_owned()
    };
    for (key, expected) in [("Tab", "Dark theme"), ("Tab", "Text"), ("ArrowRight", "Heads")] {
        browser.press(key);
        assert_eq!(focused(&mut browser), expected);
    }
    browser.press("Enter");
    for _ in 0..11 {
        browser.press("Tab"); // without the first token, link, two pictures, layer, two heads, all, none, slider, the first token
    }
    assert_eq!(focused(&mut browser), "0");
    browser.press("ArrowDown");
    let of_query = lines(&mut browser);
    assert!(!of_query.is_empty() && of_query.iter().all(|line| line[1] == 1));
    browser.press("Enter");
    assert_eq!(browser.all(".token[aria-pressed=true]", "it.dataset.token"), ["1"]);
    browser.press("ArrowRight");
    let of_key = lines(&mut browser);
    assert!(!of_key.is_empty() && of_key.iter().all(|line| line[2] == 1), "the other column");
    let ring = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.evaluate(ring), json!("solid"), "the focus can be seen");

    browser.evaluate("location.hash = '#section-1&view=top&layer=1&head=1&token=3'");
    browser.evaluate("new Promise((done) => setTimeout(done, 50))");
    assert_eq!(browser.texts(".tab[aria-selected=true]"), ["Top three"]);
    assert_eq!(browser.all(".chooser select", "it.value"), [json!("1"), json!("1")]);
    assert_eq!(browser.texts(".top .present .position").first().map(String::as_str), Some("3"));
    // Views that were never shown do not break a script that switches to them.
    for _ in 0..2 {
        browser.evaluate("document.querySelectorAll('.tab').forEach((it) => it.click())");
        browser.evaluate("document.querySelector('.page-theme').click()");
    }
    let saved = browser.evaluate("page.picture(document.querySelector('.panel'), ['caption']).svg");
    assert!(saved.as_str().is_some_and(|svg| svg.starts_with("<svg ") && svg.contains("caption")), "{saved}");

    let is_light = |browser: &mut Browser| {
        let color = browser.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)");
        number(&color[0]) + number(&color[1]) > 250.0
    };
    tab(&mut browser, "Model");
    let map = |browser: &mut Browser| {
        wait_for_maps(browser);
        pixels(browser, ".thumbnail:last-of-type canvas", [0, 0])
    };
    let light = map(&mut browser);
    assert!(is_light(&mut browser));
    browser.click(".page-theme");
    assert!(!is_light(&mut browser) && map(&mut browser) != light, "maps take the colours of the theme");
    // Browsers store page data asynchronously, and the next page may load before that.
    let is_remembered = (0..20).any(|_| {
        browser.open(&page);
        !is_light(&mut browser)
    });
    assert!(is_remembered, "the choice is remembered");
    assert_eq!(browser.take_problems(), [""; 0]);
}

#[test]
fn prompts_are_never_markup() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&["tokenizer.kind=byte", "model.context_length=80"]);
    let evil = "</script><img src=x onerror=evil=1><script>evil=1</script>\n\"'&\u{202e}é";
    browser.look((400, Theme::Light));
    browser.open(&page(&folder, evil, &["--prompt", "b", "--layer", "1", "--head", "0"]));
    assert_eq!(browser.evaluate("typeof evil"), json!("undefined"));
    assert_eq!(browser.texts("h2").len(), 2);
    assert!(browser.texts("h2")[0].starts_with("</script><img·\u{200b}src=x"));
    browser.click("#section-1 .tab:nth-child(2)");
    let pieces = browser.texts("#section-1 .column.query .token");
    assert_eq!(pieces[..2].concat(), "</");
    assert!(pieces.contains(&"↵".to_owned()) && pieces.contains(&r"\xc3".to_owned()));
    assert_eq!(browser.all("#section-1 .chip", "it.textContent"), ["0"]);
    for tab in 1..=6 {
        browser.click(&format!("#section-1 .tab:nth-child({tab})"));
        browser.click(&format!("#section-2 .tab:nth-child({tab})")); // a single token has all views, too
    }
    assert_eq!(browser.texts("#section-2 .top .bar"), ["1.000"]);
    let of_second = strongest(&row(&weights(&folder, evil), [1, 0, 1]), 3);
    let shares: Vec<String> = of_second.iter().map(|(_, weight)| format!("{weight:.3}")).collect();
    assert_eq!(browser.texts("#section-1 .top tbody tr:nth-child(2) .bar"), shares, "of the layer that was chosen");
    let ids: Vec<String> = browser.all("[id]", "it.id").iter().map(ToString::to_string).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    assert!(browser.overflow() < 1.0);
    assert_eq!(browser.take_problems(), [""; 0]);
    for head in [&[][..], &["--layer", "1", "--head", "0"]] {
        let picture =
            ["inspect", "attention", "runs/tiny", "--prompt", evil, "--format", "svg", "--output", "evil.svg"];
        folder.succeed(&[&picture[..], head].concat());
        browser.open(&folder.path("evil.svg"));
        assert_eq!(browser.evaluate("document.querySelectorAll('parsererror, script').length"), json!(0));
        assert!(browser.texts("text").concat().contains('<'), "pieces of the prompt");
    }
}
