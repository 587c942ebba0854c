//! Chat templates: a conversation becomes the text that a model was trained to continue.
//!
//! A template is Jinja as Hugging Face's `apply_chat_template` renders it, with the parts of Python that templates use.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use time::OffsetDateTime;
use time::format_description::parse_strftime_owned;

use super::Tokenizer;

/// The limit on the steps of a template: a damaged one may not terminate.
const FUEL: u64 = 10_000_000;

const NAME: &str = "chat_template";

/// The chat template of a tokenizer as it was written, with the tokens that it may name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChatTemplateSource {
    template: String,
    /// The BOS token, or empty.
    bos_token: String,
    /// The EOS token, or empty.
    eos_token: String,
}

/// A chat template that can be rendered.
///
/// The steps of a template are limited, but not its depth nor the size of its values: parsing or rendering one that is
/// not trusted may overflow the stack, fill the memory or never end.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
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
    /// The chat template of a tokenizer; `None` if it has none.
    pub(super) fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        let piece = |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.piece(id));
        Some(Self {
            template: tokenizer.chat_template()?.to_owned(),
            bos_token: piece(tokenizer.bos_token()),
            eos_token: piece(tokenizer.end_of_text()),
        })
    }

    /// Parses it; fails if it is not valid Jinja.
    pub(super) fn parse(self) -> Result<ChatTemplate, String> {
        let Self { template, bos_token, eos_token } = self;
        let environment = environment(template).map_err(|error| format!("{error:#}"))?;
        Ok(ChatTemplate { environment, bos_token, eos_token })
    }
}

fn environment(template: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime(format, OffsetDateTime::now_utc()));
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(NAME, without_generation(template))?;
    Ok(environment)
}

/// Replaces each `{% generation %}`, a tag of transformers that marks an answer and prints nothing, by `{% if true %}`.
fn without_generation(template: String) -> String {
    if !template.contains("generation") {
        return template;
    }
    let mut parts = template.split("{%");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += "{%";
        let tag = part.split_once("%}").map(|(tag, _)| tag.trim_matches(['-', '+']).trim());
        text += &match tag {
            Some("generation") => part.replacen("generation", "if true", 1),
            Some("endgeneration") => part.replacen("endgeneration", "endif", 1),
            _ => part.to_owned(),
        };
    }
    text
}

impl ChatTemplate {
    /// The text of a conversation whose messages may be any values: up to where the model's reply begins, if
    /// `add_generation_prompt`, or up to where the last message ends. `variables` is an object with more
    /// variables for the template, such as `tools` and `enable_thinking`; they replace none of the others. Fails if the
    /// template does not take these messages.
    pub(super) fn render_with(
        &self,
        messages: &[impl Serialize],
        add_generation_prompt: bool,
        variables: &impl Serialize,
    ) -> Result<String, String> {
        let Self { environment, bos_token, eos_token } = self;
        let (messages, variables) = (Value::from(Serde(messages)), Value::from(Serde(variables)));
        let context = minijinja::context! { messages, add_generation_prompt, bos_token, eos_token, ..variables };
        let rendered = environment.get_template(NAME).and_then(|template| template.render(context));
        rendered.map_err(|error| error.detail().unwrap_or("it has an error").to_owned())
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(format: &str, time: OffsetDateTime) -> Result<String, Error> {
    let unknown = |error: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    let format = parse_strftime_owned(format).map_err(|error| unknown(error.to_string()))?;
    time.format(&format).map_err(|error| unknown(error.to_string()))
}

/// JSON as written by Python's `json.dumps`.
fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    kwargs.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent {
        Some(n) => {
            let indent = " ".repeat(n.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(indent.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(String::from_utf8(json).expect("JSON is UTF-8").into())
}

/// Puts a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, messages: &[(&str, &str)]) -> Result<String, String> {
        let messages: Vec<Message> = messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
        let [template, bos_token, eos_token] = [template, "<s>", "</s>"].map(str::to_owned);
        ChatTemplateSource { template, bos_token, eos_token }.parse()?.render_with(
            &messages,
            true,
            &serde_json::Map::new(),
        )
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
            ("{{ messages[0]['content'].split('h')[1].rstrip() }}{{ tools is defined }}", "iFalse"),
            ("a {%- generation %} b\n{%- endgeneration -%} c{% if add_generation_prompt %}d{% endif %}", "a bcd"),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages | length) }}", "[1]"),
        ] {
            assert_eq!(render(template, &[("user", " hi ")]).expect(template), expected, "{template}");
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
