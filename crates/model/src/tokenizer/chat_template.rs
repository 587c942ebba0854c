//! Chat templates: a conversation becomes the text that a model was trained to continue.
//!
//! A template is Jinja as Hugging Face's `apply_chat_template` renders it, with the parts of Python that templates use.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind, merge_maps};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;
use time::format_description::parse_strftime_owned;

use super::config_json::{DEFAULT, TOOL_USE};
use super::{Tokenizer, python};

/// The limit on the steps of a template: a damaged one may not terminate.
const FUEL: u64 = 10_000_000;

/// The names of a message's reasoning; templates know it by one of the first two.
pub const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The chat templates of a tokenizer as they were written, with the tokens that they may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChatTemplateSource {
    /// By name; one of them is `default`.
    templates: BTreeMap<String, String>,
    /// By the name that templates give them, such as `bos_token`, which is empty if there is none.
    tokens: BTreeMap<String, String>,
}

/// Chat templates that can be rendered.
///
/// The steps of a template are limited, but not its depth nor the size of its values: parsing or rendering one that is
/// not trusted may overflow the stack, fill the memory or never end.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    tokens: BTreeMap<String, String>,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// A role that the template knows, such as `user`.
    pub role: String,
    /// The text.
    pub content: String,
    /// The name of the participant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the model thought before an answer, for templates that show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The tool calls in an answer, with their arguments as objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<serde_json::Value>>,
    /// The id of the tool call that this message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            name: None,
            reasoning_content: None,
            tool_calls: None,
            tool_call_id: None,
        }
    }
}

impl ChatTemplateSource {
    /// The chat templates of a tokenizer; `None` if it has none.
    pub(super) fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        tokenizer.chat_template()?;
        let config = tokenizer.config_json.as_ref()?;
        let piece = |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.piece(id));
        let mut tokens = config.tokens.clone();
        tokens.insert("bos_token".to_owned(), piece(tokenizer.bos_token()));
        tokens.insert("eos_token".to_owned(), piece(tokenizer.end_of_text()));
        Some(Self { templates: config.chat_templates.clone(), tokens })
    }

    /// Parses them; fails if one is not valid Jinja.
    pub(super) fn parse(self) -> Result<ChatTemplate, String> {
        let environment = environment(self.templates).map_err(|error| format!("{error:#}"))?;
        Ok(ChatTemplate { environment, tokens: self.tokens })
    }
}

fn environment(templates: BTreeMap<String, String>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime(format, OffsetDateTime::now_utc()));
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: &Value| python::float(value).unwrap_or_else(|| value.to_string()));
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.set_formatter(|out, state, value| match python::float(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    for (name, template) in templates {
        environment.add_template_owned(name, python::in_minijinja(&template))?;
    }
    Ok(environment)
}

impl ChatTemplate {
    /// The text of a conversation whose messages may be any values: up to where the model's reply begins, if
    /// `add_generation_prompt`, or up to where the last message ends. `variables` are more variables for the template, such
    /// as `tools` and `enable_thinking`; they replace none of the others. As in transformers, `chat_template` among them
    /// names the template, `tool_use` is the one for `tools`, and a message's reasoning has all of its names. Fails if the
    /// template does not take these messages.
    pub(super) fn render_with(
        &self,
        messages: &[impl Serialize],
        add_generation_prompt: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, String> {
        let Self { environment, tokens } = self;
        let has_tools = variables.get("tools").is_some_and(|tools| !tools.is_null());
        let name = match variables.get("chat_template").and_then(Json::as_str) {
            Some(name) => name,
            None if has_tools && environment.get_template(TOOL_USE).is_ok() => TOOL_USE,
            None => DEFAULT,
        };
        let template = environment.get_template(name).map_err(|_| {
            let mut names: Vec<&str> = environment.templates().map(|(name, _)| name).collect();
            names.sort_unstable();
            format!("there is no template of the name `{name}`: there is {}", names.join(", "))
        })?;
        let messages: Result<Vec<Json>, _> = messages.iter().map(|it| serde_json::to_value(it).map(reasoned)).collect();
        let messages = Value::from(Serde(messages.map_err(|error| error.to_string())?));
        let [tokens, variables] = [Value::from(Serde(tokens)), Value::from(Serde(variables))];
        let absent = context! { tools => (), documents => () }; // defined, as in transformers
        let others = merge_maps([absent, variables, tokens]); // the last one counts
        let context = context! { messages, add_generation_prompt, ..others };
        template.render(context).map_err(|error| error.detail().unwrap_or("it has an error").to_owned())
    }
}

/// A message with its reasoning under the names that templates know.
fn reasoned(mut message: Json) -> Json {
    if let Json::Object(fields) = &mut message
        && let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name).filter(|it| !it.is_null()).cloned())
    {
        fields.entry(REASONING[1]).or_insert_with(|| reasoning.clone());
        fields.insert(REASONING[0].to_owned(), reasoning);
    }
    message
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(format: &str, time: OffsetDateTime) -> Result<String, Error> {
    let unknown = |error: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    let format = parse_strftime_owned(format).map_err(|error| unknown(error.to_string()))?;
    time.format(&format).map_err(|error| unknown(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(templates: &[(&str, &str)]) -> ChatTemplateSource {
        let owned = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned())).collect()
        };
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")];
        ChatTemplateSource { templates: owned(templates), tokens: owned(&tokens) }
    }

    fn render(template: &str, messages: &[(&str, &str)]) -> Result<String, String> {
        let messages: Vec<Message> = messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
        source(&[(DEFAULT, template)]).parse()?.render_with(&messages, true, &Map::new())
    }

    /// The template of SmolLM2-135M-Instruct, from its `tokenizer_config.json`.
    const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
        {% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn template_renders_prompt() {
        let prompt = render(SMOLLM2, &[("user", "Hi <b>&"), ("assistant", "Yes?"), ("user", "Bye")]);
        let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
            <|im_start|>user\nHi <b>&<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
            <|im_start|>assistant\n";
        assert_eq!(prompt.expect("the template renders"), expected);
        let prompt = render(SMOLLM2, &[("system", "Be brief."), ("user", "Hi")]).expect("the template renders");
        assert!(prompt.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"), "{prompt}");
    }

    #[test]
    fn templates_use_features_of_python() {
        for (template, expected) in [
            ("{{ bos_token }}{{ messages[0].content.strip() | upper }}{{ eos_token }}", "<s>HI</s>"),
            (
                "{%- set ns = namespace(n=0) %}\n  {%- for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "1",
            ),
            ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}", "x\n"),
            ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
            ("{{ messages | tojson }}", r#"[{"role": "user", "content": " hi "}]"#),
            ("{{ {'a': [1, none, true], 'é': '<'} | tojson }}", r#"{"a": [1, null, true], "é": "<"}"#),
            ("{{ {'a': 1} | tojson(indent=2) }}", "{\n  \"a\": 1\n}"),
            (
                "{{ messages[0]['content'].split('h')[1].rstrip() }}{{ tools is defined }}{{ tools is iterable }}{{ tools }}",
                "iTrueFalseNone",
            ),
            ("a {%- generation %} b\n{%- endgeneration -%} c{% if add_generation_prompt %}d{% endif %}", "a bcd"),
            ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}{{ generation }}", "21"),
            (
                "{{ {'b': 'é\u{1f600}\x7f', 'a': {}} | tojson(ensure_ascii=True) }}",
                r#"{"b": "\u00e9\ud83d\ude00\u007f", "a": {}}"#,
            ),
            (
                "{{ {'b': [], 'a': {'d': 1, 'c': 'é'}} | tojson(sort_keys=True) }}",
                r#"{"a": {"c": "é", "d": 1}, "b": []}"#,
            ),
            ("{{ {'b': [1, [2]], 'a': {}} | tojson(separators=(',', ':')) }}", r#"{"b":[1,[2]],"a":{}}"#),
            (
                "{{ {'b': [1, []], 'a': {}} | tojson(ensure_ascii=False, indent=1) }}",
                "{\n \"b\": [\n  1,\n  []\n ],\n \"a\": {}\n}",
            ),
            ("{{ [1.0, 1e16, 1.5e-7, 0.0001, 12] | tojson(indent=none) }}", "[1.0, 1e+16, 1.5e-07, 0.0001, 12]"),
            ("{{ 1e16 }} {{ 1.5e-7 }} {{ 2.0 }} {{ 3 }} {{ 1e22 | string }}", "1e+16 1.5e-07 2.0 3 1e+22"),
            ("{{ messages is iterable }}{{ absent is iterable }}{{ bos_token is iterable }}", "TrueTrueTrue"),
            (
                "{{ pad_token }}{{ unk_token is defined }}{{ bos_token is callable }}{{ raise_exception is callable }}",
                "<pad>FalseFalseTrue",
            ),
            (
                "{{ '%s: %d' % (messages[0].role, 2) }}{{ \"%s!\" % messages[0]['content'].strip() | upper }}{{ 7 % 4 }}",
                "user: 2HI!3",
            ),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages | length) }}", "[1]"),
        ] {
            assert_eq!(render(template, &[("user", " hi ")]).expect(template), expected, "{template}");
        }
    }

    #[test]
    fn templates_are_chosen_by_name() {
        let templates =
            source(&[(DEFAULT, "D"), (TOOL_USE, "T{{ tools | length }}"), ("rag", "R")]).parse().expect("they parse");
        let render = |variables: Json| {
            let variables = variables.as_object().expect("an object").clone();
            templates.render_with(&[Message::new("user", "a")], true, &variables)
        };
        for (variables, expected) in [
            (json!({}), "D"),
            (json!({"tools": null}), "D"),
            (json!({"tools": [1]}), "T1"),
            (json!({"tools": [1], "chat_template": "default"}), "D"),
            (json!({"chat_template": "rag"}), "R"),
        ] {
            assert_eq!(render(variables).expect("the template renders"), expected);
        }
        let error = render(json!({"chat_template": "rog"})).expect_err("there is none");
        assert_eq!(error, "there is no template of the name `rog`: there is default, rag, tool_use");
    }

    #[test]
    fn reasoning_has_the_names_of_templates() {
        let template = source(&[(DEFAULT, "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}")]);
        let template = template.parse().expect("it parses");
        for name in REASONING {
            let rendered = template.render_with(&[json!({"role": "assistant", name: "why"})], true, &Map::new());
            assert_eq!(rendered.expect("the template renders"), "why why");
        }
    }

    #[test]
    fn templates_may_refuse_and_must_terminate() {
        let refusing = "{% if messages[0].role != 'user' %}{{ raise_exception('Only users begin') }}{% endif %}";
        let error = render(refusing, &[("system", "a")]).expect_err("the template refuses");
        assert!(error.contains("Only users begin"), "{error}");
        for endless in
            ["{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}", "{{ a"]
        {
            render(endless, &[("user", "a")]).expect_err("the template has no prompt");
        }
    }

    #[test]
    fn strftime_supports_formats_of_templates() {
        let time =
            OffsetDateTime::from_unix_timestamp(20_779 * 86_400 + 3 * 3600 + 4 * 60 + 5).expect("the time is valid");
        let written = strftime("%d %B %b %Y, %A %a %H:%M:%S %m %%", time).expect("the formats are known");
        assert_eq!(written, "22 November Nov 2026, Sunday Sun 03:04:05 11 %");
        strftime("%Q", time).expect_err("the format is unknown");
        strftime("%", time).expect_err("the format is incomplete");
    }
}
