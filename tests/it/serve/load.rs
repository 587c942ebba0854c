//! The server under load and with slow clients: it stays reachable, and its limits hold.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::program::program;
use super::{Host, Response, ask, beside, http};
use crate::fixtures::{Folder, copy};

#[test]
fn long_work_does_not_delay_health() {
    let host = Host::new(4);
    let (n, n_healthy) = beside(host.address, || {
        let scored = || {
            let body = json!({"prompt": vec!["abcdefghi"; 1024], "echo": true, "logprobs": 20, "max_tokens": 20});
            host.complete(&body)["choices"].as_array().expect("the value is a list").len()
        };
        let split = || {
            let tokens = host.post("/tokenize", &json!({"content": "abcdefgh".repeat(1 << 17)})).json(200);
            tokens["tokens"].as_array().expect("the value is a list").len()
        };
        thread::scope(|scope| {
            let tasks = [scope.spawn(scored), scope.spawn(split)];
            tasks.map(|task| task.join().expect("the request succeeds"))
        })
    });
    assert_eq!(n, [1024, 1 << 20]);
    assert!(n_healthy > 2, "{n_healthy}");
}

#[test]
fn half_a_body_does_not_delay_stopping() {
    let host = Host::new(1);
    let whole = http("POST", "/v1/completions", "", b"{\"prompt\": \"abc\"}");
    let clients = [&whole[..20], &whole[..whole.len() - 5]].map(|half| host.send(half));
    host.get("/health").json(200);
    drop(host);
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).ok(); // the connection may be reset
        assert!(!answer.contains("408"), "the server waited for the rest: {answer}");
    }
}

#[test]
fn health_tells_memory_of_slots() {
    let host = Host::new(4);
    // Keys and values of two heads, each padded to 32 scalars, in two layers.
    let told = |cache_bytes: usize| {
        let slots = json!({"slots": 4, "slot_bytes_per_token": 1024, "slot_bytes_per_context": 32 * 1024});
        let expected = super::changed(&slots, json!({"cache_bytes": cache_bytes}));
        assert_eq!(host.get("/health").json(200)["models"], json!([expected]));
    };
    told(0);
    host.complete(&json!({"prompt": "abc", "n": 3, "max_tokens": 4}));
    host.wait_until_idle();
    told(3 * 32 * 1024);
    assert_eq!(host.metric("tinderbox_cache_bytes{model=\"letters\"}"), 3 * 32 * 1024);
}

/// The memory of a process in MiB.
#[cfg(target_os = "linux")]
fn memory(server: &crate::fixtures::Started) -> u64 {
    crate::endurance::rss_kib(server.id()).expect("the server runs") / 1024
}

/// A server with a hundred runs, one of which has a longer context.
#[cfg(target_os = "linux")]
fn busy_folder() -> Folder {
    let folder = Folder::new();
    folder.train_as("runs/long", &["train.max_steps=2", "model.context_length=512", "tokenizer.kind=byte"]);
    folder.train_as("runs/run-0", &["train.max_steps=2"]);
    for n in 1..100 {
        copy(&folder.path("runs/run-0"), &folder.path(format!("runs/run-{n}")));
    }
    folder
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs 250 MiB of memory: scripts/soak.sh load"]
fn largest_requests_leave_the_server_reachable() {
    let folder = busy_folder();
    let (server, port) = program(&folder, &["--runs", "runs"]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let send = |path: &str, body: &Value| ask(port, "POST", path, body);
    let scored = |n_prompts: usize| {
        let ids: Vec<usize> = (0..512).map(|id| id % 256).collect();
        let prompts = vec![ids; n_prompts];
        json!({"model": "long", "prompt": prompts, "echo": true, "logprobs": 20, "max_tokens": 0})
    };
    send("/v1/completions", &scored(1)).json(200);
    let before = memory(&server);
    send("/v1/completions", &scored(1024)).error(400);
    let text = "The cat sat on the mat. ".repeat(40_000);
    let stops: Vec<String> = (0..16).map(|n| "a".repeat(240 + n) + "b").collect();
    let largest: [(&str, Value); 4] = [
        ("/v1/completions", scored(195)),
        ("/tokenize", json!({"model": "long", "content": text})),
        ("/v1/completions", json!({"model": "long", "prompt": "The", "n": 64, "max_tokens": 300, "stop": stops})),
        ("/v1/completions", json!({"model": "long", "prompt": "The", "n": 1024, "max_tokens": 2, "logprobs": 20})),
    ];
    let (sizes, n_healthy) = beside(address, || {
        thread::scope(|scope| {
            let tasks = largest.each_ref().map(|(path, body)| {
                scope.spawn(|| {
                    (0..4)
                        .map(|_| {
                            let response = send(path, body);
                            assert_eq!(response.status, 200, "{:.300}", response.body);
                            response.body.len()
                        })
                        .max()
                })
            });
            let listed = scope.spawn(|| {
                (0..100).for_each(|_| drop(ask(port, "GET", "/v1/models", &Value::Null).json(200)));
            });
            listed.join().expect("the models are listed");
            tasks.map(|task| task.join().expect("the requests succeed").expect("each task sends four requests"))
        })
    });
    assert!(n_healthy > 10, "{n_healthy}");
    println!("answers of {sizes:?} bytes; {before} MiB before, {} at the end", memory(&server));
    send("/v1/completions", &scored(1)).json(200);
    server.kill();
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "it opens 600 connections: scripts/soak.sh load"]
fn slow_clients_make_room() {
    let folder = Folder::trained();
    let whole = http("POST", "/v1/completions", "", b"{\"prompt\": \"The\"}");
    for n_bytes in [0, 20, whole.len() - 5] {
        let (server, port) = program(&folder, &["runs/tiny"]);
        let slow = || {
            let mut client = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
            client.write_all(&whole[..n_bytes]).expect("the server reads the request");
            client
        };
        let clients: Vec<TcpStream> = (0..600).map(|_| slow()).collect();
        ask(port, "POST", "/v1/completions", &json!({"prompt": "The", "max_tokens": 2})).json(200);
        // The latest of them are still connected.
        let mut last = clients.into_iter().next_back().expect("there are clients");
        last.write_all(&whole[n_bytes..]).expect("the server reads the request");
        Response::read(last).json(200);
        server.press_ctrl_c();
        server.finish();
    }
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "it makes a model of 135 million parameters: scripts/soak.sh memory"]
fn short_completions_take_little_memory() {
    let folder = Folder::new();
    let shape = ["d_model=576", "n_layers=30", "n_heads=9", "n_kv_heads=3", "d_ff=1536", "vocab_size=49152"];
    let kinds = ["position=\"rope\"", "norm=\"rms_norm\"", "mlp=\"swiglu\"", "context_length=64"];
    let model = shape.into_iter().chain(kinds).map(|setting| format!("model.{setting}"));
    let train = ["max_steps=1", "batch_size=1", "eval_batches=1", "sample_tokens=0"];
    let train = train.map(|setting| format!("train.{setting}"));
    let settings: Vec<String> = model.chain(train).chain(["tokenizer.kind=\"byte\"".to_owned()]).collect();
    folder.train_as("runs/smol", &settings.iter().map(String::as_str).collect::<Vec<_>>());
    // No weight depends on the context, and a step of 8192 tokens would take minutes.
    let config = folder.read("runs/smol/config.toml").replace("context_length = 64", "context_length = 8192");
    folder.write("runs/smol/config.toml", config);
    let (server, port) = program(&folder, &["runs/smol", "--weights", "int8"]);
    let settled = || {
        thread::sleep(Duration::from_secs(2)); // freed memory goes back to the system a little later
        memory(&server)
    };
    let before = settled();
    thread::scope(|scope| {
        for seed in 0..16 {
            let body = json!({"prompt": format!("Once upon a time {seed}"), "max_tokens": 8, "seed": seed});
            scope.spawn(move || ask(port, "POST", "/v1/completions", &body).json(200));
        }
    });
    let (after, health) = (settled(), ask(port, "GET", "/health", &Value::Null).json(200));
    println!("{before} MiB before, {after} MiB after 16 completions of 8 tokens; {health}");
    assert!(after < 400, "{after} MiB");
    server.kill();
}

/// Answers that nobody reads have a budget: the next ones wait for it, and others are answered meanwhile.
#[test]
fn unread_answers_delay_only_large_ones() {
    let host = Host::new(2);
    let body = json!({"content": "a".repeat(1 << 20), "with_pieces": true}).to_string();
    let large = http("POST", "/tokenize", "", body.as_bytes());
    let mut unread = host.send(&large);
    let mut beginning = [0; 100];
    unread.read_exact(&mut beginning).expect("the first answer begins");
    let next = host.send(&large);
    next.set_read_timeout(Some(Duration::from_millis(300))).expect("the time is valid");
    assert!((&next).read(&mut beginning).is_err(), "the next answer is made before the first one is read");
    host.complete(&json!({"prompt": "abc"}));
    drop(unread);
    next.set_read_timeout(Some(Duration::from_mins(1))).expect("the time is valid");
    assert_eq!(Response::read(next).json(200)["count"], 1 << 20);
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "it opens 500 connections: scripts/soak.sh unread"]
fn unread_answers_take_bounded_memory() {
    let folder = Folder::new();
    folder.train_as("runs/long", &["train.max_steps=2", "model.context_length=512", "tokenizer.kind=byte"]);
    let ids: Vec<usize> = (0..512).map(|id| id % 256).collect();
    let scored = json!({"prompt": vec![ids; 195], "echo": true, "logprobs": 20, "max_tokens": 0});
    let split = json!({"content": "The cat sat. ".repeat(8_000), "with_pieces": true});
    let inspected = json!({"prompt": "a".repeat(512), "attention": true});
    let streamed = json!({"prompt": "The", "n": 4, "max_tokens": 30_000, "stream": true});
    let with_scores = json!({"prompt": "The", "n": 16, "max_tokens": 5000, "stream": true, "logprobs": 20});
    for (n_clients, path, body) in [
        (40, "/v1/completions", scored),
        (40, "/tokenize", split),
        (8, "/v1/inspect", inspected),
        (500, "/v1/completions", streamed),
        (40, "/v1/completions", with_scores),
    ] {
        let (server, port) = program(&folder, &["runs/long"]);
        let request = http("POST", path, "", body.to_string().as_bytes());
        let send = || {
            let mut client = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
            client.write_all(&request).expect("the server reads the request");
            client
        };
        let before = memory(&server);
        let clients: Vec<TcpStream> = (0..n_clients).map(|_| send()).collect();
        let mut most = before;
        for _ in 0..200 {
            thread::sleep(Duration::from_millis(100));
            most = most.max(memory(&server));
        }
        println!("{n_clients} unread answers of {path}: {before} MiB before, up to {most} MiB");
        ask(port, "GET", "/health", &Value::Null).json(200); // completions have to wait for earlier ones
        drop(clients);
        server.kill();
        assert!(most < 200, "{most} MiB");
    }
}
