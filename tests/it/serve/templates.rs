//! Chat templates that overflow the stack, fill the memory or never end: only the process that renders them ends.

use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rayon::prelude::*;
use serde_json::json;
use tinderbox::serve::Options;
use tinderbox::tokenizer::Limits;

use super::{Host, beside, chatting_with, letters, model};
use crate::damage::{damaged, damages};

/// The number of nested parts or values.
const DEEP: usize = 100_000;

/// Limits that no template here exceeds, besides the one that is set.
const GENEROUS: Limits = Limits { time: Duration::from_mins(5), memory_mib: 1 << 20, stack: 8 << 20, text: 1 << 20 };

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

/// The result of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A value that contains itself, one step deeper or twice as large each time.
fn grown(n: usize, first: &str, next: &str, last: &str) -> String {
    let set = format!("{{% set ns = namespace(a={first}) %}}{{% for i in range({n}) %}}{{% set ns.a = {next} %}}");
    format!("{set}{{% endfor %}}{{{{ {last} }}}}")
}

fn printed(expression: &str) -> String {
    format!("{{{{ {expression} }}}}")
}

/// Expressions, branches and values that nest too deeply for the parser, the printer or the drop of a value.
fn deep() -> Vec<String> {
    let prefixes = ["not ", "-"].map(|part| printed(&(part.repeat(DEEP) + "1")));
    let suffixes = [
        " + 1",
        " * 1",
        " ** 1",
        " ~ 1",
        " or 1",
        " and 1",
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
    let suffixes = suffixes.map(|part| printed(&format!("1{}", part.repeat(DEEP))));
    let branches = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(DEEP));
    let values =
        ["1", "ns.a", "ns.a | tojson"].map(|last| ["[ns.a]", "{'a': ns.a}"].map(|next| grown(DEEP, "[]", next, last)));
    [&prefixes[..], &suffixes, &[branches], values.as_flattened()].concat()
}

/// Values twice as large each time, of few parts.
fn slow() -> Vec<String> {
    let mut templates = Vec::new();
    for last in [
        "ns.a",
        "ns.a | tojson",
        "ns.a | string | length",
        "ns.a | sort",
        "ns.a | unique",
        "ns.a | join(', ')",
        "{ns.a: 1}",
    ] {
        templates.extend(["[ns.a, ns.a]", "ns.a + ns.a"].map(|next| grown(60, "[1]", next, last)));
    }
    templates.extend(["ns.a == [ns.a, ns.a]", "1 in ns.a"].map(|last| grown(60, "[1]", "ns.a + ns.a", last)));
    templates.push(grown(60, "{}", "{'a': ns.a, 'b': ns.a}", "ns.a"));
    templates
}

/// Texts that are larger each time.
fn large() -> Vec<String> {
    let doubled = ["ns.a + ns.a", "[ns.a, ns.a] | join(ns.a)"].map(|next| grown(60, "'a'", next, "ns.a | length"));
    [&doubled[..], &[grown(DEEP, "[]", "[ns.a, 'a' * 1000000]", "1")]].concat()
}

/// What Jinja, the limit on its steps, or the template itself rejects.
fn refused() -> Vec<String> {
    let prefixes = ["(", "[", "{'a': ", "x(", "[[]] + [", "'a' ~ ("].map(|part| printed(&(part.repeat(DEEP) + "1")));
    let blocks = ["if 1", "if 0 %}{% else", "for i in [1]", "set a", "filter upper", "macro f()", "with a = 1", "raw"];
    let blocks = blocks.map(|block| {
        let name = block.split(' ').next().expect("a block has a name");
        format!("{{% {block} %}}").repeat(DEEP) + &format!("{{% end{name} %}}").repeat(DEEP)
    });
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
        "raise_exception('x' * 100000000)",
        "strftime_now('%Y' * 1000000)",
    ];
    let expressions = expressions.map(printed);
    let statements = [
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
        "{% include 'chat_template' %}",
        "{% extends 'chat_template' %}",
    ];
    [&prefixes[..], &blocks, &expressions, &statements.map(str::to_owned)].concat()
}

/// Serves these templates and asks each for a prompt. Meanwhile the server must stay healthy, and stop afterwards. Returns
/// also how often it said so.
fn ask_all(templates: &[String], render: Limits) -> (Vec<Outcome>, usize) {
    let gpt = letters();
    let named = |(idx, template): (usize, &String)| model(&format!("m{idx}"), &gpt, chatting_with(template));
    let models = templates.iter().enumerate().map(named).collect();
    let host = Host::with(models, 1, None, |options| Options { render, ..options });
    let ask = |idx: usize| {
        let message = json!({"role": "user", "content": "abc"});
        let body = json!({"model": format!("m{idx}"), "messages": [message], "max_tokens": 1});
        let response = host.post("/v1/chat/completions", &body);
        match response.status {
            200 => Outcome::Rendered,
            _ => Outcome::of(response.error(400)["message"].as_str().expect("an error has a message")),
        }
    };
    beside(host.address, || (0..templates.len()).into_par_iter().map(ask).collect())
}

#[test]
fn hostile_template_ends_only_its_own_process() {
    let kinds = [
        (Outcome::Rendered, GENEROUS, USUAL.map(str::to_owned).to_vec()),
        (Outcome::Refused, GENEROUS, refused()),
        (Outcome::TooDeep, Limits { stack: 1 << 20, ..GENEROUS }, deep()),
        (Outcome::TooLarge, Limits { memory_mib: 128, ..GENEROUS }, large()),
        (Outcome::TooSlow, Limits { time: Duration::from_millis(50), ..GENEROUS }, slow()),
    ];
    let mut n_healthy = 0;
    for (expected, limits, templates) in kinds {
        let (outcomes, n) = ask_all(&templates, limits);
        for (template, outcome) in templates.iter().zip(outcomes) {
            assert_eq!(outcome, expected, "{template:.200}");
        }
        n_healthy += n;
    }
    assert!(n_healthy > 10, "templates kept the server from answering: {n_healthy}");
}

#[test]
#[ignore = "renders 1,000 templates: scripts/soak.sh templates"]
fn thousand_damaged_templates_leave_server_alive() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..20 {
        let templates = (0..50).map(|_| {
            let tree = (0..USUAL.len(), damages()).new_tree(&mut runner).expect("nothing is filtered");
            let (usual, damages) = tree.current();
            String::from_utf8_lossy(&damaged(USUAL[usual].as_bytes(), &damages)).into_owned()
        });
        ask_all(&templates.collect::<Vec<_>>(), Limits::default());
    }
}
