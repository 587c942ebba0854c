//! The chat and the comparison of the server's page: answers are the API's, and what fails loses nothing.

use serde_json::{Value, json};

use super::page::{look_around, post};
use super::program::program;
use super::{ask, text};
use crate::browser::Browser;
use crate::fixtures::{Folder, Started, list, number};

const SAID: &str = "The cat";
const BUBBLES: &str = "JSON.stringify([...document.querySelectorAll('.bubble')].map((it) => it.textContent))";
const IS_DONE: &str = "document.querySelector('.main').textContent === 'Send'";

/// A chat template, which refuses a conversation that begins with "no".
fn give_template(folder: &Folder, run: &str) {
    let template = "{% if messages[0]['content'] == 'no' %}{{ raise_exception('it said no') }}{% endif %}\
                    {% for m in messages %}{{ m['content'] }}\n{% endfor %}";
    folder.write(format!("{run}/tokenizer_config.json"), json!({"chat_template": template}).to_string());
}

/// The API's response to the question, as the page asks it.
fn answered(port: u16, model: &str, said: &str) -> Value {
    let body = json!({
        "model": model, "messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 12,
        "logprobs": true, "top_logprobs": 5,
    });
    post(port, "/v1/chat/completions", &body)
}

fn content(answered: &Value) -> &str {
    answered["choices"][0]["message"]["content"].as_str().expect("an answer is a string")
}

fn open(browser: &mut Browser, port: u16, address: &str) {
    browser.visit(&format!("http://127.0.0.1:{port}/{address}"));
    browser.wait_for("document.querySelector('textarea[aria-label=Message]') !== null");
}

/// Opens a chat with a model that has a template: its folder, server and port, and the API's response to the question.
fn open_chat(browser: &mut Browser) -> (Folder, Started, u16, Value) {
    let folder = Folder::with_run(&["model.context_length=64"]);
    give_template(&folder, "runs/tiny");
    let (server, port) = program(&folder, &["runs/tiny"]);
    let response = answered(port, "tiny", SAID);
    open(browser, port, "run/tiny/chat?temperature=0&tokens=12");
    (folder, server, port, response)
}

fn say(browser: &mut Browser, message: &str) {
    browser.evaluate("document.querySelector('textarea[aria-label=Message]').focus()");
    browser.insert(message);
    browser.press("Enter");
}

/// Clicks on the last button with this name.
fn click(browser: &mut Browser, name: &str) {
    let named = format!("[...document.querySelectorAll('button')].filter((it) => it.textContent === '{name}')");
    browser.evaluate(&format!("{named}.at(-1).click()"));
}

fn wait_for(browser: &mut Browser, bubbles: &[&str]) {
    browser.wait_for(&format!("{BUBBLES} === {} && {IS_DONE}", json!(json!(bubbles).to_string())));
}

#[test]
fn chat_view_keeps_questions_that_fail() {
    let Some(mut browser) = Browser::start() else { return };
    let (_folder, server, _, response) = open_chat(&mut browser);
    let answer = content(&response);
    let system = |prompt: &str| {
        format!(
            "(() => {{ const it = document.querySelector('textarea[aria-label=\"System prompt\"]'); it.value = '{prompt}'; \
             it.dispatchEvent(new Event('input')); }})()"
        )
    };
    browser.evaluate(&system("no"));
    say(&mut browser, SAID);
    browser.wait_for("document.querySelector('.status').textContent.includes('it said no')");
    wait_for(&mut browser, &[SAID]);
    browser.take_problems(); // the refused request
    look_around(&mut browser, "chat-failed");
    // It is still there after a reload, with its system prompt, and can be sent again.
    browser.reload();
    browser.wait_for(&format!("{BUBBLES} === {}", json!(json!([SAID]).to_string())));
    browser.evaluate(&system(""));
    click(&mut browser, "Send again");
    wait_for(&mut browser, &[SAID, answer]);
    assert_eq!(browser.texts(".status"), [""]);
    // Something happens while a request waits; the comments of a stream are no events.
    browser.evaluate("window.fetch = () => new Promise((done) => (window.release = (it) => done(new Response(it))))");
    say(&mut browser, "more");
    browser.wait_for("/^waiting, \\d s$/.test(document.querySelector('.turn:last-child .hint')?.textContent)");
    assert_eq!(browser.texts(".turn:last-child .bubble.waiting"), [""]);
    assert_eq!(browser.texts(".main"), ["Stop"]);
    let events = ": waiting\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]\n\n";
    browser.evaluate(&format!("window.release({})", json!(events)));
    wait_for(&mut browser, &[SAID, answer, "more", "Hi"]);
    browser.reload();
    wait_for(&mut browser, &[SAID, answer, "more", "Hi"]);
    server.kill();
    say(&mut browser, "a");
    browser.wait_for("document.querySelector('.status').textContent.includes('does not answer')");
    wait_for(&mut browser, &[SAID, answer, "more", "Hi", "a"]);
    assert_eq!(browser.texts(".turn:last-child .tools button"), ["Copy", "Edit", "Send again"]);
}

#[test]
fn chat_view_shows_what_the_api_says_of_an_answer() {
    let Some(mut browser) = Browser::start() else { return };
    let (_folder, server, port, response) = open_chat(&mut browser);
    let answer = content(&response);
    say(&mut browser, SAID);
    wait_for(&mut browser, &[SAID, answer]);
    // Its length, and what is left of the context.
    let n = number(&response["usage"]["completion_tokens"]);
    let left = 64.0 - number(&response["usage"]["total_tokens"]);
    let facts = browser.texts(".turn .hint")[0].clone();
    assert!(
        facts.starts_with(&format!("{n} tokens, ")) && facts.contains(" per second; cut at the limit; "),
        "{facts}"
    );
    assert!(facts.ends_with(&format!("; {left} of 64 tokens are left")), "{facts}");
    // The probability of each token, and the likeliest at its place.
    click(&mut browser, "Tokens");
    let tokens = list(&response["choices"][0]["logprobs"]["content"]);
    let said: Vec<&str> = tokens.iter().filter_map(|it| it["token"].as_str()).collect();
    assert_eq!(browser.texts(".bubble .token"), said);
    let shares = browser.all(".bubble .token", "Number(it.style.getPropertyValue('--share'))");
    for (share, token) in shares.iter().zip(tokens) {
        assert!((number(share) - number(&token["logprob"]).exp()).abs() < 1e-6, "{token}");
    }
    browser.click(".bubble .token:nth-child(3)");
    let likeliest = browser.texts(".likeliest li code");
    let expected: Vec<String> = list(&tokens[2]["top_logprobs"])
        .iter()
        .map(|top| top["token"].as_str().expect("a token").replace('\n', "↵").replace(' ', "·"))
        .collect();
    assert_eq!(likeliest, expected);
    browser.press("ArrowRight");
    assert_eq!(browser.all(".bubble .token", "it.classList.contains('present')")[3], json!(true));
    look_around(&mut browser, "chat");
    // A line for a fine-tuning.
    click(&mut browser, "Save as a record");
    let record = browser.evaluate("document.querySelector('textarea[aria-label^=Records]').value");
    let record: Value = serde_json::from_str(record.as_str().expect("a text")).expect("one line of JSON");
    let messages = [json!({"role": "user", "content": SAID}), json!({"role": "assistant", "content": answer})];
    assert_eq!(record, json!({"messages": messages}));
    // The same again, and with another question.
    click(&mut browser, "Regenerate");
    wait_for(&mut browser, &[SAID, answer]);
    click(&mut browser, "Edit");
    assert_eq!(browser.all(".turn.stale", "1").len(), 2);
    browser.evaluate("document.querySelector('textarea[aria-label=Message]').value = ''");
    say(&mut browser, "The dog");
    let dog = answered(port, "tiny", "The dog");
    wait_for(&mut browser, &["The dog", content(&dog)]);
    // Inside it, with the text that the model read.
    click(&mut browser, "Look into this answer");
    browser.wait_for("location.pathname === '/run/tiny/look' && document.querySelector('textarea') !== null");
    let read = browser.evaluate("document.querySelector('textarea').value");
    assert_eq!(read, json!(format!("The dog\n{}\n", content(&dog))));
    assert_eq!(browser.take_problems(), [""; 0]);
    server.kill();
}

#[test]
fn base_and_tuned_answer_side_by_side() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = Folder::trained();
    let steps = ["--set", "train.max_steps=10"];
    folder.succeed(&[&["train", "tiny.toml", "--from", "runs/tiny", "--run-dir", "runs/tuned"], &steps[..]].concat());
    give_template(&folder, "runs/tuned");
    let (server, port) = program(&folder, &["--runs", "runs"]);
    let response = answered(port, "tuned", SAID);
    // The base has no template of its own, and reads the same prompt.
    let body = json!({"model": "tiny", "prompt": format!("{SAID}\n"), "temperature": 0, "max_tokens": 12});
    let of_base = ask(port, "POST", "/v1/completions", &body).json(200);
    let expected = [content(&response), text(&of_base, 0)];
    open(&mut browser, port, "run/tuned/chat?temperature=0&tokens=12&beside=tiny");
    assert!(browser.texts(".slider option").contains(&"tiny, its base".to_owned()));
    say(&mut browser, SAID);
    wait_for(&mut browser, &[SAID, expected[0], expected[1]]);
    assert_eq!(browser.texts(".turn.pair h3"), ["tuned", "tiny"]);
    look_around(&mut browser, "chat-pair");
    browser.visit(&format!("http://127.0.0.1:{port}/compare?runs=tuned,tiny&temperature=0&tokens=12&prompt=The+cat"));
    let written = "JSON.stringify([...document.querySelectorAll('.written .text')].map((it) => it.textContent))";
    browser.wait_for(&format!("{written} === {}", json!(json!(expected).to_string())));
    // Without the template the prompt is continued.
    browser.evaluate("document.querySelector('.tick:not(fieldset *) input').click()");
    let prompt = json!({"model": "tuned", "prompt": SAID, "temperature": 0, "max_tokens": 12, "echo": true});
    let continued = ask(port, "POST", "/v1/completions", &prompt).json(200);
    let begins = json!([text(&continued, 0)]).to_string();
    browser.wait_for(&format!("{written}.startsWith({})", json!(begins.trim_end_matches(']'))));
    // The list of runs links the chat of those that have a template.
    browser.visit(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.querySelectorAll('.runs tbody tr').length === 2");
    let links = browser.all(".runs .links a", "it.pathname");
    assert!(links.contains(&json!("/run/tuned/chat")) && !links.contains(&json!("/run/tiny/chat")), "{links:?}");
    server.kill();
}
