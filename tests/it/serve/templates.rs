//! Chat templates that overflow the stack, fill the memory or never end: only the process that renders them ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{BESIDE_OTHER_TESTS, Host, beside, chatting_with, letters, model};

/// The number of models that render at once: each may need 256 MiB.
const N_AT_ONCE: usize = 8;

/// The number of nested parts or values.
const DEEP: usize = 100_000;

/// `ChatML` with a default system message, as SmolLM2 has it.
const USUAL: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ 'be a helper' }}{% endif %}{{'<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>' + '\n'}}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}";

/// Deeply nested expressions and statements.
fn nested() -> Vec<String> {
    let prefixes = ["not ", "-", "(", "[", "{'a': ", "x("].map(|part| format!("{{{{ {}1 }}}}", part.repeat(DEEP)));
    let suffixes = [" + 1", " ** 1", " ~ 1", " or 1", " == 1", " in 1", ".a", "[0]", "()", "|upper", " is defined"];
    let suffixes = suffixes.map(|part| format!("{{{{ 1{} }}}}", part.repeat(DEEP)));
    let blocks = ["if 1", "for i in [1]", "set a", "filter upper", "macro f()", "with a = 1", "raw"].map(|block| {
        let name = block.split(' ').next().expect("a block has a name");
        format!("{{% {block} %}}").repeat(DEEP) + &format!("{{% end{name} %}}").repeat(DEEP)
    });
    let branches = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(DEEP));
    [&prefixes[..], &suffixes, &blocks, &[branches]].concat()
}

/// Values that contain themselves: one step deeper each time, or twice as large.
fn grown() -> Vec<String> {
    let grown = |n: usize, first: &str, next: &str, last: &str| {
        let set = format!("{{% set ns = namespace(a={first}) %}}{{% for i in range({n}) %}}{{% set ns.a = {next} %}}");
        format!("{set}{{% endfor %}}{{{{ {last} }}}}")
    };
    let mut templates = Vec::new();
    for last in ["1", "ns.a", "ns.a | tojson"] {
        templates.extend(["[ns.a]", "{'a': ns.a}"].map(|next| grown(DEEP, "[]", next, last)));
    }
    for last in ["ns.a", "ns.a | tojson", "ns.a == [ns.a, ns.a]", "ns.a | sort", "ns.a | join(', ')", "{ns.a: 1}"] {
        templates.extend(["[ns.a, ns.a]", "ns.a + ns.a"].map(|next| grown(60, "[1]", next, last)));
    }
    for next in ["ns.a + ns.a", "ns.a.replace('a', ns.a)", "[ns.a, ns.a] | join(ns.a)"] {
        templates.push(grown(60, "'a'", next, "ns.a | length"));
    }
    // Exceeds the memory long before the time, even on a slow machine.
    templates.push(grown(DEEP, "[]", "[ns.a, 'a' * 1000000]", "1"));
    templates
}

/// Large values, endless loops, and errors.
fn endless() -> Vec<String> {
    let expressions = [
        "'a' * 1000000000000",
        "range(1000000000000) | list",
        "'a'.center(1000000000000)",
        "'%1000000000d' | format(1)",
        "'a\n' | indent(1000000000)",
        "[1] | slice(1000000000) | list",
        "9 ** 9 ** 9 ** 9",
        "1 / 0",
        "{{",
        "a.b.c.d",
        "messages | tojson(indent=1000000000)",
        "raise_exception('x' * 100000000)",
        "strftime_now('%Y' * 1000000)",
    ];
    let statements = [
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
        "{% include 'chat_template' %}",
        "{% extends 'chat_template' %}",
    ];
    let expressions = expressions.into_iter().map(|expression| format!("{{{{ {expression} }}}}"));
    expressions.chain(statements.map(str::to_owned)).collect()
}

/// The result of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It made a prompt, which the model may still reject.
    Rendered,
    /// Jinja rejected it, or it rejected the messages.
    Refused,
    TooDeep,
    TooLarge,
    TooSlow,
}

impl Outcome {
    fn of(error: &str) -> Self {
        let outcomes = [
            ("nests too deeply", Self::TooDeep),
            ("MiB of memory", Self::TooLarge),
            ("takes longer than", Self::TooSlow),
            ("cannot be used", Self::Refused),
            ("does not take these", Self::Refused),
        ];
        outcomes.iter().find(|(part, _)| error.contains(part)).map_or(Self::Rendered, |(_, outcome)| *outcome)
    }
}

/// Serves these templates and asks each for a prompt. Meanwhile the server must stay healthy, and stop afterwards.
fn ask_all(templates: &[String]) -> (Vec<Outcome>, Duration) {
    let gpt = letters();
    let named = |(idx, template): (usize, &String)| model(&format!("m{idx}"), &gpt, chatting_with(template));
    let host = Host::of(templates.iter().enumerate().map(named).collect(), 1, None);
    let ask = |idx: usize| {
        let message = json!({"role": "user", "content": "abc"});
        let body = json!({"model": format!("m{idx}"), "messages": [message], "max_tokens": 1});
        let response = host.post("/v1/chat/completions", &body);
        match response.status {
            200 => Outcome::Rendered,
            _ => Outcome::of(response.error(400)["message"].as_str().expect("an error has a message")),
        }
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                idx if idx < templates.len() => answers.push((idx, ask(idx))),
                _ => return answers,
            }
        }
    };
    let (mut outcomes, p99) = beside(host.address, || {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..N_AT_ONCE).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no request panics")).collect::<Vec<_>>()
        })
    });
    let since = Instant::now();
    drop(host);
    assert!(since.elapsed() < Duration::from_secs(5), "the server stops slowly: {:?}", since.elapsed());
    outcomes.sort_unstable();
    (outcomes.into_iter().map(|(_, outcome)| outcome).collect(), p99)
}

#[test]
fn hostile_template_ends_only_its_own_process() {
    let hostile = [nested(), grown(), endless()].concat();
    assert!(hostile.len() >= 64, "{}", hostile.len());
    let (outcomes, p99) = ask_all(&[&hostile[..], &[USUAL.to_owned()]].concat());
    let (usual, of_hostile) = outcomes.split_last().expect("there are templates");
    assert_eq!(*usual, Outcome::Rendered);
    let mut counts = BTreeMap::new();
    for outcome in of_hostile {
        *counts.entry(*outcome).or_insert(0) += 1;
    }
    println!("{} hostile templates: {counts:?}", hostile.len());
    assert_eq!(counts.len(), 5, "each outcome occurs: {counts:?}");
    assert!(p99 < BESIDE_OTHER_TESTS, "{p99:?}");
}
