//! The server over real sockets: a server in a thread, and a client that reads whole responses.

mod chat;
mod checkpoints;
mod completions;
mod inside;
mod json;
mod load;
mod page;
pub mod program;
mod refused;
mod responses;
mod schemas;
mod templates;
mod tools;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use serde_json::{Value, json};
use tinderbox::config::{GenerateConfig, ModelConfig, PositionKind};
use tinderbox::generate::Generator;
use tinderbox::model::Gpt;
use tinderbox::serve::{ApiKeys, Model, Options, Server, Slots, Stop};
use tinderbox::tokenizer::{Limits, Tokenizer};

use crate::properties::{letters as tokenizer, lively};

fn config(context_length: usize) -> ModelConfig {
    let config =
        ModelConfig { context_length, d_model: 16, n_layers: 2, n_heads: 2, n_kv_heads: 2, ..ModelConfig::default() };
    ModelConfig { position: PositionKind::Rope, ..config }.with_derived()
}

fn letters() -> Gpt {
    lively(&config(32), 7, &Device::flex())
}

fn model(name: &str, model: &Gpt, tokenizer: Tokenizer) -> Model {
    let tensors = Mutex::new(model.clone());
    let tensors = Box::new(move || Ok(tensors.lock().expect("no thread panicked").clone()));
    let (name, model, stop_token_ids) = (name.to_owned(), model.into(), Vec::new());
    Model { name, model, tensors, tokenizer, stop_token_ids, created_unix_s: 1, run: None, adapted: Vec::new() }
}

/// A server in its own thread, stopped on drop.
struct Host {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn of(models: Vec<Model>, n_slots: usize, keys: Option<ApiKeys>) -> Self {
        Self::with(models, n_slots, keys, |options| options)
    }

    /// A server with changed options.
    fn with(
        models: Vec<Model>,
        n_slots: usize,
        keys: Option<ApiKeys>,
        change: impl FnOnce(Options) -> Options,
    ) -> Self {
        let options = change(Options {
            address: ([127, 0, 0, 1], 0).into(),
            slots: Slots { n: n_slots, speculate: 0 },
            keys,
            origins: Vec::new(),
            keep_alive: Duration::from_mins(1),
            folder: None,
            open: Box::new(|_| panic!("there are no runs")),
            program: assert_cmd::cargo::cargo_bin!("tinderbox").into(),
            render: Limits::default(),
        });
        let server = Server::bind(models, options).expect("the system has a free port");
        let (address, stop) = (server.address(), server.stop());
        Self { address, stop, thread: Some(thread::spawn(|| server.run())) }
    }

    /// A server with the letters model.
    fn new(n_slots: usize) -> Self {
        Self::of(vec![model("letters", &letters(), tokenizer())], n_slots, None)
    }

    /// Sends raw bytes.
    fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_mins(1))).expect("a minute is a valid timeout");
        stream.write_all(bytes).ok(); // it may respond before it has read everything
        stream
    }

    fn request(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        Response::read(self.send(&http(method, path, headers, body)))
    }

    fn get(&self, path: &str) -> Response {
        self.request("GET", path, "", b"")
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.request("POST", path, "", body.to_string().as_bytes())
    }

    fn complete(&self, body: &Value) -> Value {
        self.post("/v1/completions", body).json(200)
    }

    /// Checks that a field with this value is rejected by an error that names it.
    fn refuse(&self, path: &str, valid: &Value, field: &str, value: Value) -> Value {
        let body = changed(valid, json!({field: value}));
        let error = self.post(path, &body).error(400);
        assert_eq!(error["param"], field, "{path} {body:.300}: {error}");
        error
    }

    /// The value of a line in `/metrics`.
    fn metric(&self, line: &str) -> u64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|found| found.strip_prefix(line)).unwrap_or_else(|| panic!("{line}:\n{page}"));
        line.trim().parse().expect("the value is a number")
    }

    /// Waits until no sequence is active or waiting.
    fn wait_until_idle(&self) {
        self.wait_until("waiting_texts", |n| n == 0);
        self.wait_until("busy_places", |n| n == 0);
    }

    /// Waits until a gauge of the letters model passes the test; fails after a minute.
    fn wait_until(&self, gauge: &str, test: impl Fn(u64) -> bool) {
        let line = format!("tinderbox_{gauge}{{model=\"letters\"}}");
        let start = Instant::now();
        while !test(self.metric(&line)) {
            assert!(start.elapsed() < Duration::from_mins(1), "{line} does not change");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().expect("the server runs").join();
        if !thread::panicking() {
            ended.expect("no thread panicked");
        }
    }
}

fn http(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let n = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {n}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// The response of a server on this port.
fn ask(port: u16, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    ask_with(port, &http(method, path, "", body.as_bytes()))
}

fn ask_with(port: u16, request: &[u8]) -> Response {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.write_all(request).expect("the server reads the request");
    Response::read(stream)
}

/// A response, read to its end.
#[derive(Debug)]
struct Response {
    status: u16,
    headers: String,
    body: String,
}

impl Response {
    fn read(stream: TcpStream) -> Self {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("the response has a status line");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") && headers != "\r\n" {
            assert!(stream.read_line(&mut headers).expect("the response has headers") > 0, "{headers}");
        }
        let headers = headers.to_ascii_lowercase();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the body is complete");
        if headers.contains("transfer-encoding: chunked") {
            bytes = unchunked(&bytes);
        }
        Self { status, headers, body: String::from_utf8(bytes).expect("the body is UTF-8") }
    }

    fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.headers.contains("content-type: application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error of a rejected request; checks its format.
    fn error(&self, status: u16) -> Value {
        let json = self.json(status);
        let error = &json["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{json}");
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{json}");
        error.clone()
    }

    /// The message of the error of a rejected request.
    fn message(&self, status: u16) -> String {
        self.error(status)["message"].as_str().expect("an error has a message").to_owned()
    }

    /// The events of a stream except the last, `[DONE]`.
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert!(self.headers.contains("content-type: text/event-stream"), "{self:?}");
        let data = |event: &str| event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}")).to_owned();
        let mut events: Vec<String> = self.body.split_terminator("\n\n").map(data).collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).expect("the value is JSON")).collect()
    }
}

/// Runs `work`, and meanwhile asks for `/health`; returns the number of answers until the work was done.
fn beside<T>(address: SocketAddr, work: impl FnOnce() -> T) -> (T, usize) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let probe = scope.spawn(|| {
            let mut n = 0;
            while !is_done.load(Ordering::Relaxed) {
                ask(address.port(), "GET", "/health", &Value::Null).json(200);
                n += 1;
                thread::sleep(Duration::from_millis(5));
            }
            n
        });
        let worked = panic::catch_unwind(AssertUnwindSafe(work)); // so that the probe ends
        is_done.store(true, Ordering::Relaxed);
        let n_answers = probe.join().expect("the server stays healthy");
        (worked.unwrap_or_else(|panic| panic::resume_unwind(panic)), n_answers)
    })
}

/// The content of a chunked body.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").expect("a chunk has a size");
        let size = std::str::from_utf8(&bytes[..end]).expect("the value is a number");
        let size = usize::from_str_radix(size, 16).expect("the value is a number");
        content.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        if size == 0 {
            return content;
        }
        bytes = &bytes[end + 2 + size + 2..];
    }
}

/// A request with other fields.
fn changed(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    for (name, value) in fields.as_object().expect("the fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// The completion that the library generates with these settings.
fn generated(prompt: &str, settings: &GenerateConfig, sample: u64) -> String {
    let generator = Generator::new(&letters(), &tokenizer(), settings, prompt, sample).expect("the prompt is valid");
    generator.collect::<Result<_, _>>().expect("the model is valid")
}

fn text(response: &Value, choice: usize) -> &str {
    response["choices"][choice]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

/// Joins the chunks of a stream into the equivalent unstreamed response.
fn joined(events: &[Value], n_choices: usize, part: &str) -> Vec<(String, Vec<Value>, Value)> {
    let mut choices = vec![(String::new(), Vec::new(), Value::Null); n_choices];
    for event in events {
        for choice in event["choices"].as_array().expect("the value is a list") {
            let (text, logprobs, finish) =
                &mut choices[choice["index"].as_u64().expect("the choice has an index") as usize];
            assert!(finish.is_null(), "an event follows the end: {event}");
            text.push_str(choice.pointer(part).and_then(Value::as_str).unwrap_or_default());
            logprobs.extend(Some(choice["logprobs"].clone()).filter(|logprobs| !logprobs.is_null()));
            *finish = choice["finish_reason"].clone();
        }
    }
    choices
}

/// A letters tokenizer with a chat template and its two tokens.
fn chatting() -> Tokenizer {
    chatting_with(
        "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}\
         {{ '<|start|>' + m['content'].strip() + eos_token }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}",
    )
}

fn chatting_with(template: &str) -> Tokenizer {
    let letters = Tokenizer::char_from_alphabet("abcdefghi".chars()).expect("the alphabet is valid");
    letters.with_chat_template(template, &["<|start|>", "<|end|>"], "<|end|>").expect("the template is valid")
}
