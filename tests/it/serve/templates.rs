//! Chat templates that overflow the stack, fill the memory or never end: only the process that renders them ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::{BESIDE_OTHER_TESTS, Host, beside, chatting_with, letters, model};
use crate::damage::{damaged, damages};

/// The number of models that render at once: each may need 256 MiB.
const N_AT_ONCE: usize = 8;

/// The number of nested parts or values.
const DEEP: usize = 100_000;

/// Templates as models have them.
const USUAL: [&str; 5] = [
    // ChatML with a default system message, as SmolLM2 has it.
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'be a helper' }}{% endif %}\
     {{'<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>' + '\n'}}{% endfor %}\
     {% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}",
    // Tools, and thoughts that only the last answer keeps.
    "{%- if tools %}\n    {{- '<|start|>system\\n' }}\n    {%- for tool in tools %}\n        {{- \"\\n\" }}\n        \
     {{- tool | tojson }}\n    {%- endfor %}\n    {{- '<|end|>\\n' }}\n{%- else %}\n    {%- if messages[0].role == \
     'system' %}\n        {{- '<|start|>system\\n' + messages[0].content + '<|end|>\\n' }}\n    {%- endif %}\n\
     {%- endif %}\n{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n\
     {%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if \
     ns.multi_step_tool and message.role == \"user\" and message.content is string and not(message.content.startswith(\
     '<tool>') and message.content.endswith('</tool>')) %}\n        {%- set ns.multi_step_tool = false %}\n        \
     {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n{%- for message in messages %}\n    \
     {%- set content = message.content if message.content is string else '' %}\n    {%- if '</think>' in content %}\n\
     {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n    {%- endif %}\n    {{- '<|start|>' + \
     message.role + '\\n' + content.strip('\\n') + '<|end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    \
     {{- '<|start|>assistant\\n' }}\n    {%- if enable_thinking is defined and enable_thinking is false %}\n        \
     {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}",
    // A date, a macro, and roles that have to alternate.
    "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}\
     {%- macro turn(role, content) -%}<|start|>{{ role }}\n\n{{ content | trim }}<|end|>{%- endmacro -%}\
     {%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}\
     {%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}\
     {{- turn('system', 'Today: ' ~ date_string ~ '\n' ~ system_message) }}{%- for message in messages %}\
     {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Roles must alternate') }}\
     {%- endif %}{{- turn(message.role, message.content) }}{%- endfor %}{{- '<|start|>' }}",
    // Only its own role names, and a mapping.
    "{% set names = {'user': 'USER: ', 'assistant': 'ASSISTANT: ', 'system': ''} %}{% for m in messages %}\
     {{ names[m.role] if m.role in names else m.role.title() + ': ' }}{{ m.content | replace('\r', '') }}\
     {{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}ASSISTANT:",
    // One line for each, joined.
    "{% set lines = namespace(all=[]) %}{% for m in messages if m.content %}{% set lines.all = lines.all + \
     [m.role ~ ': ' ~ m.content] %}{% endfor %}{{ lines.all | join('\n') }}{{ '\nassistant:' if \
     add_generation_prompt and messages | selectattr('role', 'equalto', 'user') | list | length > 0 else '' }}",
];

/// Deeply nested expressions and statements.
fn nested() -> Vec<String> {
    let prefixes = ["not ", "-", "(", "[", "{'a': ", "x(", "[[]] + [", "'a' ~ ("];
    let prefixes = prefixes.map(|part| format!("{{{{ {}1 }}}}", part.repeat(DEEP)));
    let suffixes = [
        " + 1",
        " * 1",
        " ** 1",
        " ~ 1",
        " or 1",
        " and 1",
        " == 1",
        " in 1",
        " not in 1",
        " if 1 else 1",
        ".a",
        "[0]",
        "[:1]",
        "()",
        "(1)",
        "|upper",
        "|default(1)",
        " is defined",
        " is not defined",
    ];
    let suffixes = suffixes.map(|part| format!("{{{{ 1{} }}}}", part.repeat(DEEP)));
    let blocks = ["if 1", "if 0 %}{% else", "for i in [1]", "set a", "filter upper", "macro f()", "with a = 1", "raw"]
        .map(|block| {
            let name = block.split(' ').next().expect("a block has a name");
            format!("{{% {block} %}}").repeat(DEEP) + &format!("{{% end{name} %}}").repeat(DEEP)
        });
    let branches = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(DEEP));
    let statements = "{% set a = 1 %}{{ a }}".repeat(DEEP);
    [&prefixes[..], &suffixes, &blocks, &[branches, statements]].concat()
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
    for last in [
        "ns.a",
        "ns.a | tojson",
        "ns.a == [ns.a, ns.a]",
        "ns.a | string | length",
        "ns.a | sort",
        "ns.a | unique",
        "ns.a | join(', ')",
        "1 in ns.a",
        "{ns.a: 1}",
    ] {
        templates.extend(["[ns.a, ns.a]", "ns.a + ns.a"].map(|next| grown(60, "[1]", next, last)));
    }
    templates.push(grown(60, "{}", "{'a': ns.a, 'b': ns.a}", "ns.a"));
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
        "[1] * 1000000000000",
        "range(1000000000000) | list",
        "'a'.center(1000000000000)",
        "'%1000000000d' | format(1)",
        "'a\n' | indent(1000000000)",
        "[1] | slice(1000000000) | list",
        "[1] | batch(1000000000, 1) | list",
        "9 ** 9 ** 9 ** 9",
        "1000000000000000000000 * 1000000000000000000000",
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

fn count(outcomes: &[Outcome]) -> BTreeMap<Outcome, usize> {
    let mut counts = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(*outcome).or_insert(0) += 1;
    }
    counts
}

#[test]
fn hostile_template_ends_only_its_own_process() {
    let (hostile, usual) = ([nested(), grown(), endless()].concat(), USUAL.map(str::to_owned));
    assert!(hostile.len() >= 64, "{}", hostile.len());
    let (outcomes, p99) = ask_all(&[&hostile[..], &usual].concat());
    let (of_hostile, of_usual) = outcomes.split_at(hostile.len());
    assert_eq!(of_usual, [Outcome::Rendered; USUAL.len()]);
    let counts = count(of_hostile);
    println!("{} hostile templates: {counts:?}", hostile.len());
    // On a loaded machine, a template is too slow before it is too large.
    let kinds = [Outcome::Rendered, Outcome::Refused, Outcome::TooDeep, Outcome::TooSlow];
    assert!(kinds.iter().all(|kind| counts.contains_key(kind)), "each outcome occurs: {counts:?}");
    assert!(p99 < BESIDE_OTHER_TESTS, "{p99:?}");
}

#[test]
#[ignore = "renders 1,000 templates: scripts/soak.sh templates"]
fn thousand_damaged_templates_leave_server_alive() {
    let (mut runner, how) = (TestRunner::deterministic(), (0..USUAL.len(), damages()));
    let mut template = || {
        let (which, damages) = how.new_tree(&mut runner).expect("any damage will do").current();
        String::from_utf8_lossy(&damaged(USUAL[which].as_bytes(), &damages)).into_owned()
    };
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        let templates: Vec<String> = (0..50).map(|_| template()).collect();
        let (next, p99) = ask_all(&templates);
        outcomes.extend(next);
        println!("{} templates: {:?}", outcomes.len(), count(&outcomes));
        assert!(p99 < Duration::from_millis(50), "{p99:?}");
    }
}
