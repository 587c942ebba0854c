//! Chat templates for ollama, in Go's `text/template`: for those that put the same texts around the messages of each role.
//!
//! The texts are read off conversations of known words that the template in Jinja renders, and then compared on others, so
//! no template needs to be known. Tools are left out.
//!
//! Source: ollama, `docs/template.mdx`.

use serde_json::Map;
use tinderbox_model::config::GenerateConfig;
use tinderbox_model::tokenizer::{ChatRenderer, Message, Tokenizer};

/// Words that no template has: the system's, and questions and answers in turn.
const SYSTEM: &str = "zqsystem";
const TURNS: [&str; 5] = ["zqone", "zqyes", "zqtwo", "zqno", "zqthree"];

/// The texts around the messages of a conversation.
struct Layout {
    /// Before a conversation without a system message.
    head: String,
    place: Place,
    /// Around the system message.
    system: [String; 2],
    /// Before a question, and behind one that has an answer.
    question: [String; 2],
    /// Behind the last question, up to the reply.
    reply: String,
    /// Behind an answer.
    answer: String,
}

/// Where the system message stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    InFirstQuestion,
    InLastQuestion,
}

/// The chat template of a model that is used with these settings, in Go; `None` if it has none, or one that differs in more
/// than the texts around messages.
pub fn go_template(tokenizer: &Tokenizer, config: &GenerateConfig) -> Option<String> {
    let jinja = ChatRenderer::of(tokenizer)?;
    // ollama's runner puts it before the prompt
    let bos = tokenizer.bos().map(|id| tokenizer.piece(id)).unwrap_or_default();
    let rendered = |messages: &[Message]| -> Option<String> {
        let text = jinja.render(messages, true, &Map::new()).ok()?;
        Some(text.strip_prefix(&*bos).unwrap_or(&text).to_owned())
    };
    let stops: Vec<String> = config.ends(tokenizer).iter().map(|id| tokenizer.piece(*id)).collect();
    let layout = Layout::read(rendered, &stops)?;
    let has_system = rendered(&conversation(true, 1)).is_some();
    let is_written =
        [(false, 1), (false, 3), (false, 5), (true, 1), (true, 3), (true, 5)].into_iter().all(|(system, n)| {
            let messages = conversation(system, n);
            (system && !has_system) || rendered(&messages).is_some_and(|text| text == layout.written(&messages))
        });
    let go = layout.in_go();
    let texts = [&layout.head, &layout.reply, &layout.answer].into_iter().chain(&layout.system).chain(&layout.question);
    let can_be_quoted = !go.contains("\"\"\"") && texts.into_iter().all(|text| !text.contains("{{"));
    let repeats_none = TURNS.iter().chain(&[SYSTEM]).all(|word| !go.contains(*word));
    (is_written && can_be_quoted && repeats_none).then_some(go)
}

fn conversation(has_system: bool, n_turns: usize) -> Vec<Message> {
    let turns = TURNS[..n_turns].iter().zip(["user", "assistant"].into_iter().cycle());
    let system = has_system.then(|| Message::new("system", SYSTEM));
    system.into_iter().chain(turns.map(|(text, role)| Message::new(role, *text))).collect()
}

/// The texts around these words, if a text has them in this order.
fn around<'a>(mut text: &'a str, words: &[&str]) -> Option<Vec<&'a str>> {
    let mut parts = Vec::new();
    for word in words {
        let (before, after) = text.split_once(word)?;
        parts.push(before);
        text = after;
    }
    parts.push(text);
    Some(parts)
}

impl Layout {
    /// Reads it off what a template makes of two conversations, where the model stops at these texts.
    fn read(rendered: impl Fn(&[Message]) -> Option<String>, stops: &[String]) -> Option<Self> {
        let plain = rendered(&conversation(false, 3))?;
        let &[first, answered, between, reply] = &around(&plain, &TURNS[..3])?[..] else { return None };
        let n_common = first.chars().rev().zip(between.chars().rev()).take_while(|(a, b)| a == b);
        let n_common: usize = n_common.map(|(c, _)| c.len_utf8()).sum();
        // An answer ends with its stop token and space, unless questions would then begin differently.
        let stopped = stops.iter().filter_map(|stop| Some(between.find(&**stop)? + stop.len())).min();
        let stopped = stopped.map(|at| between.len() - between[at..].trim_start().len());
        let common = between.len() - n_common;
        let at = stopped.filter(|at| *at >= common).unwrap_or(common);
        let (answer, question) = between.split_at(at);
        let with_system = rendered(&conversation(true, 3));
        let words = [SYSTEM, TURNS[0], TURNS[1], TURNS[2]];
        let text = with_system.as_deref().unwrap_or_default();
        let (place, system) = if with_system.is_none() {
            (Place::InFirstQuestion, ["", "\n\n"])
        } else if let Some(parts) = around(text, &words) {
            match parts[1].strip_suffix(question) {
                Some(after) => (Place::Before, [parts[0], after]),
                None => (Place::InFirstQuestion, [parts[0].strip_prefix(first)?, parts[1]]),
            }
        } else {
            let parts = around(text, &[TURNS[0], TURNS[1], SYSTEM, TURNS[2]])?;
            (Place::InLastQuestion, [parts[2].strip_prefix(between)?, parts[3]])
        };
        Some(Self {
            head: first.strip_suffix(question)?.to_owned(),
            place,
            system: system.map(str::to_owned),
            question: [question, answered].map(str::to_owned),
            reply: reply.to_owned(),
            answer: answer.to_owned(),
        })
    }

    /// What the template in Go makes of a conversation that ends with a question.
    fn written(&self, messages: &[Message]) -> String {
        let Self { head, place, system: [before, after], question: [asks, asked], reply, answer } = self;
        let find = |role: &str| messages.iter().position(|message| message.role == role);
        let system = find("system").map_or("", |idx| &*messages[idx].content);
        let mut text = String::new();
        if *place != Place::Before || system.is_empty() {
            text += head;
        }
        for (idx, Message { role, content, .. }) in messages.iter().enumerate() {
            let is_last = idx + 1 == messages.len();
            let has_system = match place {
                Place::Before => role == "system",
                Place::InFirstQuestion => Some(idx) == find("user"),
                Place::InLastQuestion => is_last,
            };
            if role == "user" {
                text += asks;
            }
            if has_system && !system.is_empty() {
                text.extend([before.as_str(), system, after.as_str()]);
            }
            match role.as_str() {
                "user" => text.extend([content, if is_last { reply } else { asked }].map(String::as_str)),
                "assistant" => text.extend([content, answer].map(String::as_str)),
                _ => {}
            }
        }
        text
    }

    fn in_go(&self) -> String {
        let Self { head, place, system: [before, after], question: [asks, asked], reply, answer } = self;
        let is_last = "(eq (len (slice $.Messages $i)) 1)";
        let (head, own, within) = match place {
            Place::Before => {
                let head = if head.is_empty() {
                    String::new()
                } else {
                    format!("{{{{ if not .System }}}}{head}{{{{ end }}}}")
                };
                (
                    head,
                    format!("{{{{ if eq .Role \"system\" }}}}{before}{{{{ .Content }}}}{after}{{{{ else if"),
                    String::new(),
                )
            }
            Place::InFirstQuestion => (
                format!("{head}{{{{ $system := .System }}}}"),
                "{{ if".to_owned(),
                format!("{{{{ if $system }}}}{before}{{{{ $system }}}}{after}{{{{ $system = \"\" }}}}{{{{ end }}}}"),
            ),
            Place::InLastQuestion => (
                head.clone(),
                "{{ if".to_owned(),
                format!("{{{{ if and $.System {is_last} }}}}{before}{{{{ $.System }}}}{after}{{{{ end }}}}"),
            ),
        };
        let reply = match reply == asked {
            true => reply.clone(),
            false => format!("{{{{ if {is_last} }}}}{reply}{{{{ else }}}}{asked}{{{{ end }}}}"),
        };
        format!(
            "{head}{{{{ range $i, $_ := .Messages }}}}{own} eq .Role \"user\" }}}}{asks}{within}{{{{ .Content }}}}{reply}\
             {{{{ else if eq .Role \"assistant\" }}}}{{{{ .Content }}}}{answer}{{{{ end }}}}{{{{ end }}}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_around_messages_are_written_in_go() {
        let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
            {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let inst = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' \
            %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}";
        let with = |before: &str, template: &str| format!("{before}{template}");
        let in_first =
            "{% if loop.index0 == 1 and messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}";
        let in_last = "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}: {% endif %}";
        let refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}";
        let defaults = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}";
        let go_chatml = "{{ range $i, $_ := .Messages }}{{ if eq .Role \"system\" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n\
            {{ else if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n<|im_start|>assistant\n\
            {{ else if eq .Role \"assistant\" }}{{ .Content }}<|im_end|>\n{{ end }}{{ end }}";
        let go_inst = "{{ range $i, $_ := .Messages }}{{ if eq .Role \"user\" }}[INST] SYSTEM{{ .Content }}\
            {{ if (eq (len (slice $.Messages $i)) 1) }} [/INST]{{ else }} [/INST] {{ end }}\
            {{ else if eq .Role \"assistant\" }}{{ .Content }}<|im_end|>{{ end }}{{ end }}";
        let go_first = with("{{ $system := .System }}", go_inst);
        let go_last = "{{ if and $.System (eq (len (slice $.Messages $i)) 1) }}{{ $.System }}: {{ end }}";
        for (template, expected) in [
            (chatml.to_owned(), Some(go_chatml.to_owned())),
            (
                with(defaults, chatml),
                Some(with("{{ if not .System }}<|im_start|>system\nHelp.<|im_end|>\n{{ end }}", go_chatml)),
            ),
            (
                inst.replace("{{ m.content }} [", &with(in_first, "{{ m.content }} [")),
                Some(go_first.replace("SYSTEM", "{{ if $system }}<<{{ $system }}>>{{ $system = \"\" }}{{ end }}")),
            ),
            (
                inst.replace("{{ m.content }} [", &with(in_last, "{{ m.content }} [")),
                Some(go_inst.replace("SYSTEM", go_last)),
            ),
            (
                with(refuses, inst),
                Some(go_first.replace("SYSTEM", "{{ if $system }}{{ $system }}\n\n{{ $system = \"\" }}{{ end }}")),
            ),
            ("{{ messages | length }}".to_owned(), None),
            (with("{{ messages[0].content }}", chatml), None),
            ("{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}".to_owned(), None),
            (chatml.replace("+ '<|im_end|>", "+ '\"\"\"<|im_end|>"), None),
        ] {
            let tokenizer = Tokenizer::byte().with_chat_template(&template, &["<|im_end|>"], "<|im_end|>").unwrap();
            assert_eq!(go_template(&tokenizer, &GenerateConfig::default()), expected, "{template}");
        }
    }
}
