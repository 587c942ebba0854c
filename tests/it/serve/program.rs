//! `tinderbox serve`, with the examples from the docs.

use std::io::BufRead;

use serde_json::{Value, json};

use super::{ask, ask_with, http, text};
use crate::finetune;
use crate::flags;

use crate::fixtures::{Folder, Started, list};

/// Starts the program with these arguments; returns it with the port that it listens on.
pub fn program(folder: &Folder, args: &[&str]) -> (Started, u16) {
    let mut server = folder.start(&[&["serve", "--port", "0"], args].concat());
    let line = server.wait_for("serving ");
    let port = line.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    (server, port.unwrap_or_else(|| panic!("{line}")))
}

/// What a server of the run writes greedily after each of these prompts.
pub fn completions(folder: &Folder, run: &str, prompts: &[&str], max_tokens: usize) -> Vec<String> {
    let (server, port) = program(folder, &[run]);
    let body = |prompt: &str| json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0});
    let answers: Vec<_> = prompts.iter().map(|it| ask(port, "POST", "/v1/completions", &body(it))).collect();
    server.kill();
    answers.into_iter().map(|answer| text(&answer.json(200), 0).to_owned()).collect()
}

#[test]
#[cfg(unix)]
fn examples_of_the_docs_work() {
    let docs = std::fs::read_to_string("docs/serve.md").expect("docs/serve.md is readable");
    let examples: Vec<&str> = docs
        .split("```sh\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .filter(|block| block.starts_with("curl "))
        .collect();
    assert!(examples.len() >= 6, "the docs have examples");
    let folder = Folder::with_run(&["tokenizer.kind=\"byte\""]); // its tokens can spell any JSON
    std::fs::rename(folder.path("runs/tiny"), folder.path("runs/quickstart")).expect("the run can be renamed");
    let (server, port) = program(&folder, &["runs/quickstart"]);
    let has_curl = std::process::Command::new("curl").arg("--version").output().is_ok();
    if has_curl {
        for example in examples {
            let example = example.replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
            let example = example.replacen("curl ", "curl -sS --fail-with-body ", 1);
            let ran = std::process::Command::new("sh").args(["-c", &example]).output().expect("sh starts");
            let (said, error) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
            assert!(ran.status.success() && !said.is_empty(), "{example}\n{said}{error}");
        }
    } else {
        crate::skip("there is no curl", "TINDERBOX_REQUIRE_CURL");
    }
    server.press_ctrl_c();
    let ran = server.finish();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("finishing requests in progress"), "{}", ran.stderr);
}

#[test]
fn invalid_arguments_are_explained() {
    let folder = Folder::with_run(&["train.max_steps=2"]);
    let open = folder.misuse(&["serve", "runs/tiny", "--host", "0.0.0.0", "--port", "0"]);
    assert!(open.contains("--api-key-file") && open.contains("--no-auth"), "{open}");
    folder.write("keys", "# none\n");
    let no_keys = folder.fail(&["serve", "runs/tiny", "--api-key-file", "keys"]);
    assert!(no_keys.contains("has no keys\n  hint: "), "{no_keys}");
    folder.write("keys", "secret\ntwo words\n");
    let unusable = folder.fail(&["serve", "runs/tiny", "--api-key-file", "keys"]);
    assert!(unusable.contains("no request can send, in line 2\n  hint: ") && !unusable.contains("words"), "{unusable}");
    let twice = folder.fail(&["serve", "runs/tiny", "runs/tiny", "--port", "0"]);
    assert!(twice.contains("two models are called `tiny`\n  hint: "), "{twice}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("the system has a free port");
    let port = taken.local_addr().expect("the listener has an address").port().to_string();
    let busy = folder.fail(&["serve", "runs/tiny", "--port", &port]);
    assert!(busy.contains("another program listens there"), "{busy}");
    folder.misuse(&["serve", "runs/tiny", "--parallel", "0"]);
    let two = folder.misuse(&["serve", "runs/tiny", "runs/tiny/last", "--adapter", "theirs", "--port", "0"]);
    assert!(two.contains("--adapter is for one RUN"), "{two}");
    let large = folder.fail(&["serve", "runs/tiny", "--parallel", "1000000000"]);
    assert!(large.contains("lower --parallel"), "{large}");
    folder.write("keys", "secret\n");
    let (server, port) = program(&folder, &["runs/tiny/last", "runs/tiny", "--api-key-file", "keys"]);
    let get = |headers: &str| ask_with(port, &http("GET", "/v1/models", headers, b""));
    get("").error(401);
    let models = get("Authorization: Bearer secret\r\n").json(200);
    let names: Vec<&Value> = list(&models["data"]).iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["tiny/last", "tiny"]);
    server.kill();
    let (server, port) = program(&folder, &["--runs", "runs"]);
    ask(port, "GET", "/v1/models/tiny", &Value::Null).json(200);
    server.kill();
}

#[test]
fn every_flag_of_server_changes_something_or_is_refused() {
    let seen = |flags: &str| {
        let folder = flags::placed();
        let args = ["serve", "--port", "0", "runs/base"].into_iter().chain(flags.split_whitespace());
        let mut server = folder.start(&args.collect::<Vec<_>>());
        let mut seen = String::new();
        while !seen.lines().last().is_some_and(|line| line.starts_with("serving ")) {
            if server.stderr.read_line(&mut seen).expect("it can be read") == 0 {
                return seen; // it has ended
            }
        }
        let port = seen.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        let origin = "Origin: http://localhost:3000\r\n";
        let body = json!({"prompt": "The", "max_tokens": 3, "temperature": 0, "logprobs": 1}).to_string();
        for request in [
            http("GET", "/health", "", b""),
            http("GET", "/health", origin, b""),
            http("GET", "/v1/models", "", b""),
            http("POST", "/v1/completions", "", body.as_bytes()),
        ] {
            let response = ask_with(port, &request);
            let headers = response.headers.lines().filter(|line| !line.starts_with("date:"));
            seen += &[headers.collect(), without_ids(&response.body)].concat();
        }
        server.kill();
        seen.replace(&format!(":{port}"), "")
    };
    let plain = seen("");
    assert_eq!(plain, seen(""), "without flags");
    for (flags, shown) in flags::SERVED {
        let seen = seen(flags);
        let is_shown = if shown.is_empty() { seen != plain } else { !plain.contains(shown) && seen.contains(shown) };
        assert!(is_shown, "{flags}: {seen}");
    }
}

/// A body without what differs each time.
fn without_ids(body: &str) -> String {
    let is_other = |part: &&str| ["\"id\":\"cmpl", "\"created\":"].iter().all(|name| !part.contains(name));
    body.split_inclusive(',').filter(is_other).collect()
}

/// Fine-tunes `runs/base` as `runs/NAME`.
fn tune(folder: &Folder, name: &str, settings: &[&str]) {
    let run_dir = format!("runs/{name}");
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    let arguments = ["finetune", "runs/base", "--data", "my.jsonl", "--run-dir", &run_dir];
    folder.succeed(&[&arguments[..], &finetune::SETTINGS, &settings].concat());
}

/// Completions of a base and its adapters are generated in one batch, and each equals that of `generate` with merged
/// weights. An adapter may be a run or an exported folder.
#[test]
fn base_and_adapters_share_a_batch() {
    let folder = finetune::folder();
    tune(&folder, "one", &["finetune.trained_tokens=[32, 58]", "optimizer.learning_rate=0.1"]);
    tune(&folder, "two", &["finetune.method=\"dora\"", "finetune.rank=3", "optimizer.learning_rate=0.05"]);
    folder.succeed(&["export", "runs/two", "--adapter", "--to", "hf", "--output", "theirs"]);
    let adapters = ["--adapter", "runs/one", "--adapter", "runs/two", "--adapter", "theirs"];
    let (server, port) = program(&folder, &[&["runs/base", "--parallel", "4"][..], &adapters].concat());
    let models = ["base", "base+one", "base+two", "base+theirs"];
    let listed = ask(port, "GET", "/v1/models", &Value::Null).json(200);
    assert_eq!(list(&listed["data"]).iter().map(|model| &model["id"]).collect::<Vec<_>>(), models);
    let prompts = ["u:is it 3?\na:", "u:is it 7?\na:", "u:"];
    let complete = |model: &str, prompt: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 30, "temperature": 0});
        let answer = ask(port, "POST", "/v1/completions", &body).json(200);
        assert_eq!(answer["model"], model);
        text(&answer, 0).to_owned()
    };
    let asked = models.iter().flat_map(|model| prompts.map(|prompt| (*model, prompt)));
    let together: Vec<String> = std::thread::scope(|scope| {
        let texts: Vec<_> = asked.clone().map(|(model, prompt)| scope.spawn(move || complete(model, prompt))).collect();
        texts.into_iter().map(|text| text.join().expect("the server responds")).collect()
    });
    let alone: Vec<String> = asked.map(|(model, prompt)| complete(model, prompt)).collect();
    assert_eq!(together, alone);
    let [base, one, two, theirs] = [0, 1, 2, 3].map(|i| &together[3 * i..3 * (i + 1)]);
    assert!(base != one && base != two && one != two);
    assert_eq!(two, theirs);
    let metrics = ask(port, "GET", "/metrics", &Value::Null).body;
    for line in [
        "tinderbox_prompt_tokens_total{model=\"base+one\"} 56",
        "tinderbox_prompt_tokens_total{model=\"base+two\"} 56",
        "tinderbox_places{model=\"base\"} 4",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in\n{metrics}");
    }
    assert!(!metrics.contains("places{model=\"base+"), "{metrics}");
    for model in models {
        let body = json!({"model": model, "prompt": prompts[0]});
        assert_eq!(ask(port, "POST", "/v1/inspect", &body).json(200)["model"], model);
        let slots = ask(port, "GET", &format!("/slots?model={}", model.replace('+', "%2B")), &Value::Null).json(200);
        assert_eq!(list(&slots).len(), 4);
    }
    server.kill();
    for (adapter, texts) in [&[][..], &adapters[..2], &adapters[2..4]].into_iter().zip(together.chunks(prompts.len())) {
        for (prompt, text) in prompts.iter().zip(texts) {
            let arguments =
                ["generate", "runs/base", "--prompt", prompt, "--max-new-tokens", "30", "--temperature", "0"];
            let generated = folder.succeed(&[&arguments[..], adapter].concat());
            assert_eq!(generated.trim_end(), format!("{prompt}{text}").trim_end());
        }
    }
    // An adapter's run has stop tokens of its own; ids are bytes.
    let mut texts = [("one", one), ("two", two)].into_iter().flat_map(|(name, texts)| {
        prompts.iter().zip(base).zip(texts).map(move |((prompt, base), text)| (name, *prompt, base, text))
    });
    let (name, prompt, base, text) =
        texts.find(|(.., text)| !text.is_empty() && text.is_ascii()).expect("an adapter writes something");
    let stop = *text.as_bytes().last().expect("the text is not empty");
    let (run, model) = (format!("runs/{name}"), format!("base+{name}"));
    let config = format!("{run}/config.toml");
    let stopping = folder.read(&config).replace("stop_token_ids = []", &format!("stop_token_ids = [{stop}]"));
    folder.write(config, stopping);
    let before = text.split(char::from(stop)).next().expect("a text has a first part");
    let arguments = ["generate", "runs/base", "--prompt", prompt, "--temperature", "0", "--adapter", &run];
    assert_eq!(folder.succeed(&arguments).trim_end(), format!("{prompt}{before}").trim_end());
    let (server, port) = program(&folder, &["runs/base", "--adapter", &run]);
    for (model, text) in [(&*model, before), ("base", base.as_str())] {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 30, "temperature": 0});
        assert_eq!(super::text(&ask(port, "POST", "/v1/completions", &body).json(200), 0), text);
    }
    server.kill();
}

/// A base scores a text differently with each adapter, and as the merged model does.
#[test]
fn adapter_scores_equal_merged_scores() {
    let folder = finetune::folder();
    tune(&folder, "one", &["finetune.rank=2"]);
    tune(&folder, "two", &["finetune.rank=5"]);
    folder.succeed(&["export", "runs/two", "--adapter", "--to", "hf", "--output", "theirs"]);
    let score = |port: u16, model: &str| {
        let prompt = "u:is it 3?\na:";
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 1});
        let answer = ask(port, "POST", "/v1/completions", &body).json(200);
        let scores = list(&answer["choices"][0]["logprobs"]["token_logprobs"]);
        scores.iter().filter_map(Value::as_f64).sum::<f64>()
    };
    let (server, port) = program(&folder, &["runs/base", "--adapter", "runs/one", "--adapter", "theirs"]);
    let [base, one, theirs] = ["base", "base+one", "base+theirs"].map(|model| score(port, model));
    assert!((base - one).abs() > 1e-3 && (base - theirs).abs() > 1e-3 && (one - theirs).abs() > 1e-4);
    server.kill();
    let (server, port) = program(&folder, &["runs/two"]);
    let merged = score(port, "two");
    assert!((merged - theirs).abs() < 1e-4, "{merged} is not {theirs}");
    server.kill();
}

/// A folder's runs are served as they appear, each at its current checkpoint.
#[test]
fn folder_of_runs_is_followed() {
    let folder = Folder::new();
    folder.fail(&["serve", "--runs", "nowhere", "--port", "0"]);
    std::fs::create_dir(folder.path("runs")).expect("the folder can be created");
    let (server, port) = program(&folder, &["--runs", "runs"]);
    let get = |path: &str| ask(port, "GET", path, &Value::Null);
    let complete = |body: &Value| ask(port, "POST", "/v1/completions", body);
    let names = || {
        let models = get("/v1/models").json(200);
        list(&models["data"])
            .iter()
            .map(|model| model["id"].as_str().expect("the value is a name").to_owned())
            .collect::<Vec<_>>()
    };
    let write = || complete(&json!({"model": "new", "prompt": "The", "temperature": 0, "max_tokens": 9}));
    let generate = || {
        let settings = ["--prompt", "The", "--temperature", "0", "--max-new-tokens", "9"];
        folder.succeed(&[&["generate", "runs/new"][..], &settings].concat())
    };
    assert_eq!(names(), [""; 0]);
    write().error(404);
    folder.train_as("runs/new", &["train.max_steps=2"]);
    assert_eq!(names(), ["new"]);
    for max_steps in ["train.max_steps=2", "train.max_steps=40"] {
        folder.succeed(&["train", "tiny.toml", "--run-dir", "runs/new", "--overwrite", "--set", max_steps]);
        let written = write().json(200);
        assert_eq!(format!("The{}\n", text(&written, 0)), generate(), "{max_steps}");
    }
    complete(&json!({"model": "../runs/new", "prompt": "The"})).error(404);
    let runs = get("/app/runs").json(200);
    assert_eq!(runs["runs"][0]["name"], "new");
    assert_eq!(runs["runs"][0]["step"], 40);
    assert!(runs["runs"][0]["curve"].as_array().is_some_and(|curve| curve.len() > 1), "{runs}");
    assert_eq!(get("/app/report/new").status, 200);
    get("/app/report/..%2Fnew").error(404);
    let page = get("/run/new/write");
    assert!(page.headers.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{page:?}");
    server.kill();
}

/// Requests of every kind, including invalid ones, one after another.
#[test]
#[cfg(target_os = "linux")]
fn memory_stays_constant_over_many_requests() {
    let folder = Folder::trained();
    let (server, port) = program(&folder, &["runs/tiny", "--parallel", "4"]);
    let kinds = [
        ("/v1/completions", json!({"prompt": "The", "max_tokens": 3}), 200),
        ("/v1/completions", json!({"prompt": "The cat", "max_tokens": 2, "stream": true}), 200),
        ("/v1/completions", json!({"prompt": "The cat", "max_tokens": 0, "echo": true, "logprobs": 3}), 200),
        ("/v1/inspect", json!({"prompt": "The", "attention": true, "ablate": [[0, 0]]}), 200),
        ("/tokenize", json!({"content": "The cat"}), 200),
        ("/v1/completions", json!({"prompt": "The", "temperature": -1}), 400),
        ("/nowhere", json!({}), 404),
    ];
    let ask_times = |n: usize| {
        for (path, body, status) in kinds.iter().cycle().take(n) {
            assert_eq!(ask(port, "POST", path, body).status, *status, "{path} {body}");
        }
        crate::endurance::rss_kib(server.id()).expect("the server runs")
    };
    let early = ask_times(700);
    let late = ask_times(2100);
    assert!(late < early + early / 20 + 2048, "from {early} to {late} KiB");
    server.kill();
}

#[test]
fn tuned_runs_stop_at_end_of_turn() {
    let (folder, _) = finetune::talker();
    folder.write("yes.jsonl", "{\"prompt\": \"is it?\", \"completion\": \"y\"}\n".repeat(20));
    let settings = ["--set", "train.max_steps=60", "--set", "optimizer.learning_rate=0.02", "--method", "full"];
    folder.succeed(&[&["finetune", "runs/talker", "--data", "yes.jsonl"][..], &settings].concat());
    let arguments = ["chat", "runs/talker-yes", "--temperature", "0", "--max-new-tokens", "9"];
    assert_eq!(folder.pipe(&arguments, "is it?\n").exits(0).stdout, "y\n");
    let (server, port) = program(&folder, &["runs/talker-yes"]);
    let messages = json!([{"role": "user", "content": "is it?"}]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 9});
    let answer = &ask(port, "POST", "/v1/chat/completions", &body).json(200)["choices"][0];
    assert_eq!((&answer["message"]["content"], &answer["finish_reason"]), (&json!("y"), &json!("stop")));
    server.kill();
}
