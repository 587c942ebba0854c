//! The server's page in a browser: it shows the numbers of the server and the commands, and its address keeps its state.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::ask;
use super::program::program;
use crate::attention_page::percent;
use crate::browser::{Browser, Theme};
use crate::fixtures::{Folder, copy, list, number, set};
use crate::inspect::trained;

/// The screens to check the page on.
const SCREENS: [(u32, Theme); 6] = [
    (360, Theme::Light),
    (500, Theme::Dark),
    (1280, Theme::Dark),
    (1280, Theme::Light),
    (1920, Theme::Light),
    (2560, Theme::Dark),
];

pub(super) fn post(port: u16, path: &str, body: &Value) -> Value {
    ask(port, "POST", path, body).json(200)
}

/// Checks the page on every screen.
pub(super) fn look_around(browser: &mut Browser, name: &str) {
    for screen in SCREENS {
        browser.look(screen);
        browser.check(&format!("serve-{name}"), screen);
    }
}

#[test]
fn write_view_scores_and_branches() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = trained(&["tokenizer.kind=byte"]);
    let (server, port) = program(&folder, &["runs/tiny"]);
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let prompt = "The <b>cat</b>";
    browser.visit(&at("/run/tiny/write?prompt=The+%3Cb%3Ecat%3C%2Fb%3E&temperature=0&tokens=8"));
    browser.wait_for("document.querySelectorAll('.flow .token').length === 14");
    // Text is not interpreted as HTML.
    assert_eq!(browser.texts(".flow b"), [""; 0]);
    let shown: Vec<String> = browser.texts(".flow .token");
    assert_eq!(shown.concat().replace('·', " "), prompt);
    // The log-probabilities are those of the server.
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 20});
    let scored = post(port, "/v1/completions", &body);
    let logprobs = &scored["choices"][0]["logprobs"];
    let own = browser.all(".flow .token", "it.dataset.logprob === undefined ? null : Number(it.dataset.logprob)");
    assert_eq!(json!(own), json!(list(&logprobs["token_logprobs"])[..14]));
    // A click on a token puts the caret there and shows its alternatives.
    let place = "document.querySelectorAll('.flow .token')[5].getBoundingClientRect()";
    let box_of = |side: &str| format!("{place}.{side}");
    let [left, width, top] = ["left", "width", "top"].map(|side| number(&browser.evaluate(&box_of(side))));
    browser.click_at([left + 0.25 * width, top + 8.0]);
    assert_eq!(browser.evaluate("document.querySelector('textarea').selectionStart"), 5);
    assert_eq!(browser.texts(".flow .token.present"), ["b"]);
    let mut top: Vec<(String, f64)> = logprobs["top_logprobs"][5]
        .as_object()
        .expect("the position has alternatives")
        .iter()
        .map(|(token, logprob)| (token.clone(), number(logprob)))
        .collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1));
    let options = browser.texts(".others .option code");
    assert_eq!(options.len(), top.len());
    let letter = top.iter().position(|(token, _)| token.chars().all(char::is_alphanumeric) && token != "b");
    let letter = letter.expect("an alternative is a letter");
    assert_eq!(options[letter], top[letter].0);
    // A click on an alternative continues from there, and the address keeps it.
    browser.click(&format!(".others .option:nth-of-type({})", letter + 1));
    let begun = format!("The <{}", top[letter].0);
    let written = post(port, "/v1/completions", &json!({"prompt": begun, "max_tokens": 8, "temperature": 0}));
    let expected = format!("{begun}{}", written["choices"][0]["text"].as_str().expect("the value is a string"));
    let area = "document.querySelector('textarea').value";
    browser.wait_for(&format!(
        "{area} === {} && document.querySelector('.main').textContent === 'Write'",
        json!(expected)
    ));
    browser.wait_for("document.querySelectorAll('.branches button').length === 2");
    browser.wait_for("document.querySelectorAll('.next .option').length === 20");
    // Generated tokens are marked, and no word is broken between its tokens.
    let n_written = expected.len() - "The <".len();
    browser.wait_for(&format!("document.querySelectorAll('.flow .token.written').length === {n_written}"));
    let is_whole = "/\\s$/.test(it.previousElementSibling.textContent) || /^\\s/.test(it.textContent) || \
                    it.previousElementSibling.getBoundingClientRect().bottom === it.getBoundingClientRect().bottom";
    assert!(browser.all(".flow .token + .token", is_whole).iter().all(|is_whole| *is_whole == json!(true)));
    assert_eq!(
        browser.texts(".flow")[0].trim_end_matches('\u{200b}'),
        expected,
        "the page shows the text of the field"
    );
    look_around(&mut browser, "write");
    browser.reload();
    browser.wait_for("document.querySelectorAll('.flow .token').length > 5");
    assert_eq!(browser.evaluate(area), expected);
    browser.wait_for("document.querySelectorAll('.branches button').length === 2");
    assert_eq!(browser.take_problems(), [""; 0]);
    // Without a template the chat view says so before anything is sent.
    browser.visit(&at("/run/tiny/chat"));
    browser.wait_for("document.querySelector('.status[role=alert]')?.textContent.includes('no chat template')");
    assert_eq!(browser.all(".main", "it.disabled"), [json!(true)]);
    server.kill();
}

#[test]
fn look_view_switches_heads_off_and_on() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::with_run(&["model.position=rope", "train.max_steps=300"]);
    let (server, port) = program(&folder, &["runs/tiny"]);
    let prompt = "The cat sat";
    browser.look((1280, Theme::Light));
    browser.visit(&format!("http://127.0.0.1:{port}/run/tiny/look?prompt=The+"));
    browser.wait_for("document.querySelectorAll('section.attention .flow .token').length === 4");
    // Attention follows the typed text, and equals that of the command.
    browser.evaluate("document.querySelector('textarea').focus()");
    browser.insert("cat sat");
    browser.wait_for("document.querySelectorAll('section.attention .flow .token').length === 11");
    let args = ["inspect", "attention", "runs/tiny", "--prompt", prompt, "--format", "json"];
    let weights = folder.json(&args)["weights"].take();
    // The page opens on the most telling head and token.
    let at = browser.all(".telling", "[...it.dataset.head.split('.'), it.dataset.query].map(Number)")[0].clone();
    let [layer, head, query] = [0, 1, 2].map(|n| at[n].as_u64().expect("the value is a number") as usize);
    let mut strongest: Vec<f64> = list(&weights[layer][head][query]).iter().map(number).collect();
    strongest.sort_by(|a, b| b.total_cmp(a));
    let strongest: Vec<String> = strongest[..5].iter().map(|weight| percent(*weight)).collect();
    assert_eq!(browser.texts(".partners .number"), strongest);
    // The completion of the whole model, then also that without a head, then only the first again.
    let written = "[...document.querySelectorAll('.written .text')].map((it) => it.textContent)";
    let text =
        |read: &Value| format!("{prompt}{}", read["continuation"]["text"].as_str().expect("the value is a string"));
    let without =
        |head: [usize; 2]| post(port, "/v1/inspect", &json!({"prompt": prompt, "max_tokens": 40, "ablate": [head]}));
    let heads = [[0, 0], [0, 1], [1, 0], [1, 1]].map(|head| (head, without(head)));
    let matters = heads.into_iter().find(|(_, found)| text(found) != text(&found["ablation"]));
    let ([layer, head], whole) = matters.expect("some head changes the completion");
    let (head, off) = (format!("[data-head='{layer}.{head}']"), format!("{layer}.{head}"));
    let [one, other] = [text(&whole), text(&whole["ablation"])];
    browser.wait_for(&format!("JSON.stringify({written}) === {}", json!(json!([one]).to_string())));
    browser.click(&head);
    browser.wait_for(&format!("JSON.stringify({written}) === {}", json!(json!([one, other]).to_string())));
    let change = number(&whole["ablation"]["loss"]) - number(&whole["loss"]);
    let change = format!("{change:+.4}").replace('-', "−");
    assert_eq!(browser.texts(".change")[0].trim(), change);
    assert_eq!(browser.evaluate("new URLSearchParams(location.search).get('off')"), off);
    // Tab reaches one head, arrow keys the others.
    browser.evaluate("document.querySelector('.switches .head').focus()");
    browser.press("ArrowRight");
    assert_eq!(browser.evaluate("document.activeElement.dataset.head"), "0.1");
    assert_eq!(browser.all(".switches .head[tabindex='0']", "it.dataset.head"), ["0.1"]);
    look_around(&mut browser, "look");
    browser.reload();
    browser.wait_for(&format!("JSON.stringify({written}) === {}", json!(json!([one, other]).to_string())));
    browser.click(&head);
    browser.wait_for(&format!("JSON.stringify({written}) === {}", json!(json!([one]).to_string())));
    browser.visit(&format!("http://127.0.0.1:{port}/run/tiny/why?prompt=The+cat"));
    browser.wait_for("document.querySelectorAll('section.sheet .cells [role=cell]').length > 0");
    look_around(&mut browser, "why");
    // Several keys are one request for each section, and one that takes long says so.
    browser.evaluate("window.n = 0; window.fetch = () => ((window.n += 1), new Promise(() => {}))");
    let type_three = "(() => { const it = document.querySelector('textarea'); \
                      for (const c of 'abc') { it.value += c; it.dispatchEvent(new Event('input')); } })()";
    browser.evaluate(type_three);
    browser.wait_for("/^computing, \\d+ s$/.test(document.querySelector('.status').dataset.busy)");
    assert_eq!(browser.evaluate("window.n"), 2);
    server.kill();
}

#[test]
fn runs_view_follows_training() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::trained();
    let (server, port) = program(&folder, &["--runs", "runs"]);
    browser.visit(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.querySelectorAll('.runs tbody tr').length === 1");
    let intervals = ["train.log_interval=100", "train.eval_interval=500", "train.checkpoint_interval=500"];
    let endless = set(&[&["train.max_steps=1000000"], &intervals[..]].concat());
    let mut training = folder.start(&[&["train", "tiny.toml", "--run-dir", "runs/new"], &*endless].concat());
    training.wait_for("step");
    browser.wait_for("document.querySelector('.badge.running')?.textContent === 'live'");
    let step = "Number(document.querySelector('.runs tr:has(.running) .number').textContent.split(' of')[0].replace(/\\D/g, ''))";
    let before = number(&browser.evaluate(step));
    browser.wait_for(&format!("{step} > {before}"));
    // The focus stays where it was when rows are updated.
    browser.evaluate("document.querySelector(\".runs .links a[href='/run/tiny/look']\").focus()");
    let focused = "document.activeElement.textContent + ' ' + document.activeElement.pathname";
    assert_eq!(browser.evaluate(focused), "look /run/tiny/look");
    let before = number(&browser.evaluate(step));
    browser.wait_for(&format!("{step} > {before}"));
    assert_eq!(browser.evaluate(focused), "look /run/tiny/look");
    // The settings in which runs differ are shown, and filtered by.
    let type_filter = |text: &str| {
        format!(
            "(() => {{ const it = document.querySelector('.filter'); it.value = '{text}'; \
             it.dispatchEvent(new Event('input')); }})()"
        )
    };
    browser.look((390, Theme::Light));
    let beyond =
        "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.scrolls:has(.runs)'))";
    assert!(number(&browser.evaluate(beyond)) < 1.0, "no column is beyond the edge of a phone");
    browser.evaluate(&type_filter("log_interval=100"));
    assert_eq!(browser.texts(".runs tbody tr td > div > a:first-child")[0], "new");
    assert_eq!(browser.texts(".runs tbody tr").len(), 1);
    browser.evaluate(&type_filter(""));
    assert_eq!(browser.texts(".runs tbody tr").len(), 2);
    browser.look((360, Theme::Light));
    assert!(browser.all(".runs .links a", "it.checkVisibility()").iter().all(|is_shown| *is_shown == json!(true)));
    look_around(&mut browser, "runs");
    // A model in training is available by name as soon as it has a checkpoint.
    let answered = (0..600).any(|_| {
        let body = json!({"model": "new", "prompt": "The", "max_tokens": 3});
        let is_there = ask(port, "POST", "/v1/completions", &body).status == 200;
        sleep(Duration::from_millis(if is_there { 0 } else { 100 }));
        is_there
    });
    assert!(answered, "it has a checkpoint within a minute");
    // Its report grows without a reload.
    browser.visit(&format!("http://127.0.0.1:{port}/run/new"));
    let curve = "document.querySelector('iframe.ready')?.contentDocument.querySelector('svg .drawing path.line')?.getAttribute('d')";
    browser.wait_for(&format!("Boolean({curve})"));
    let drawn = browser.evaluate(curve);
    browser.wait_for(&format!("{curve} && {curve} !== {drawn}"));
    look_around(&mut browser, "report");
    training.kill();
    // Runs of one model and length are a group, and a sweep has its page.
    copy(&folder.path("runs/tiny"), &folder.path("runs/twin"));
    folder.write(
        "sweep.html",
        "<!doctype html><head><meta name=\"generator\" content=\"tinderbox 1\"></head><h2>Found</h2>",
    );
    browser.visit(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.querySelectorAll('.runs tbody tr').length === 5");
    let groups = browser.texts(".runs .group th");
    assert!(groups[0].ends_with(" parameters, 1,000,000 steps") && groups[1].ends_with(" parameters, 40 steps"));
    look_around(&mut browser, "groups");
    assert_eq!(browser.all("#rail a[href='/sweep']", "it.textContent"), ["Sweep"]);
    browser.visit(&format!("http://127.0.0.1:{port}/sweep"));
    browser.wait_for(
        "document.querySelector('iframe.ready')?.contentDocument.querySelector('h2').textContent === 'Found'",
    );
    browser.visit(&format!("http://127.0.0.1:{port}/compare?runs=tiny,new&prompt=The&tokens=10"));
    browser.wait_for("document.querySelectorAll('.written').length === 2");
    browser.wait_for("document.querySelector('iframe.ready') !== null");
    look_around(&mut browser, "compare");
    let frame = "document.querySelector('iframe.ready')";
    browser.wait_for(&format!("{frame}.offsetHeight - {frame}.contentDocument.documentElement.offsetHeight < 2"));
    server.kill();
    browser.wait_for("document.querySelector('.main').click() ?? true");
    browser.wait_for(
        "[...document.querySelectorAll('.written')].every((it) => it.textContent.includes('does not answer'))",
    );
}

#[test]
fn report_frame_gets_the_key_briefly() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::trained();
    folder.write("keys", "secret\n");
    let (server, port) = program(&folder, &["runs/tiny", "--api-key-file", "keys"]);
    browser.visit(&format!("http://127.0.0.1:{port}/assets/app.js"));
    browser.evaluate("sessionStorage.setItem('tinderbox-key', 'secret')");
    browser.visit(&format!("http://127.0.0.1:{port}/run/tiny"));
    let frame = "document.querySelector('iframe.ready')";
    browser.wait_for(&format!("{frame}?.contentDocument.querySelector('svg') != null"));
    // The report says which sections it leaves out.
    let said = browser.evaluate(&format!("{frame}.contentDocument.body.textContent"));
    let said = said.as_str().expect("the value is a string");
    assert!(said.contains("Attention and the patterns of heads are measured with the model"), "{said}");
    let headings = format!("[...{frame}.contentDocument.querySelectorAll('h2')].map((it) => it.textContent).join()");
    let headings = browser.evaluate(&headings);
    assert!(!headings.as_str().expect("the value is a string").contains(",Attention"), "{headings}");
    let lent = format!("{frame}.contentWindow.cookieStore.get('tinderbox_key')");
    browser.evaluate(&format!("{lent}.then(({{ expires }}) => (window.left = expires - Date.now())) && 0"));
    browser.wait_for("window.left <= 10000");
    server.kill();
}
