//! Renders conversations as prompts, with the model's Jinja chat template.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::error::ApiError;
use super::fields::Fields;
use crate::tokenizer::Tokenizer;

/// The most steps that a template may take: a damaged one may not terminate.
const FUEL: u64 = 10_000_000;

const NAME: &str = "chat_template";

/// The chat template of a model.
#[derive(Debug)]
pub(super) struct Chat {
    environment: Environment<'static>,
    /// The BOS token, or empty.
    bos_token: String,
    /// The EOS token, or empty.
    eos_token: String,
}

#[derive(Serialize)]
struct Message {
    role: String,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl Chat {
    /// The chat template of a tokenizer; `None` if it has none, and an error if it is not valid Jinja.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Result<Self, String>> {
        let template = tokenizer.chat_template()?;
        let piece = |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.piece(id));
        let chat = Self::new(template, [tokenizer.bos_token(), tokenizer.end_of_text()].map(piece));
        Some(chat.map_err(|error| format!("{error:#}")))
    }

    fn new(template: &str, [bos_token, eos_token]: [String; 2]) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, template.to_owned())?;
        Ok(Self { environment, bos_token, eos_token })
    }

    /// The text of a conversation, up to where the model's answer begins.
    fn render(&self, messages: &[Message]) -> Result<String, Error> {
        let template = self.environment.get_template(NAME)?;
        let Self { bos_token, eos_token, .. } = self;
        let messages = Value::from(Serde(messages));
        template.render(minijinja::context! { messages, add_generation_prompt => true, bos_token, eos_token })
    }
}

/// The prompt for a conversation with the model `name`.
pub(super) fn prompt(
    chat: Option<&Result<Chat, String>>,
    messages: Option<&Json>,
    name: &str,
) -> Result<String, ApiError> {
    let chat = match chat {
        Some(Ok(chat)) => chat,
        Some(Err(reason)) => {
            return Err(ApiError::bad_request(format!("the chat template of `{name}` cannot be used: {reason}")));
        }
        None => {
            let message = format!("`{name}` has no chat template; use /v1/completions");
            return Err(ApiError::field("model", message));
        }
    };
    let rule = "`messages` must be a list of objects with `role` and `content`, at least one";
    let list = messages.and_then(Json::as_array).filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", rule))?;
    let messages = list.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    chat.render(&messages).map_err(|error| {
        let reason = error.detail().unwrap_or("it has an error");
        ApiError::field("messages", format!("the chat template of `{name}` does not take these: {reason}"))
    })
}

fn message(json: &Json) -> Result<Message, ApiError> {
    let wrong = |rule: &str| ApiError::field("messages", format!("a message of `messages` must be {rule}"));
    let Json::Object(fields) = json else { return Err(wrong("an object")) };
    let mut fields = Fields::of(fields.clone());
    let role = fields.text("role")?.ok_or_else(|| wrong("an object with a `role`"))?;
    let content = match fields.take("content") {
        Some(Json::String(text)) => text,
        Some(Json::Array(parts)) => {
            let text =
                |part: &Json| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned)).flatten();
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.ok_or_else(|| wrong("text: its `content` may have parts of the type `text` only"))?.concat()
        }
        _ => return Err(wrong("an object with a `content`, a string or a list of texts")),
    };
    let name = fields.text("name")?;
    fields.finish()?;
    Ok(Message { role, content, name })
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
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

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time in UTC, in the `strftime` formats that templates use.
fn strftime(format: &str, time: SystemTime) -> Result<String, Error> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let name = |names: &[&str], i: u64| names[usize::try_from(i).expect("few")].to_owned();
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let part = match characters.next() {
            Some('Y') => year.to_string(),
            Some('m') => two_digits(month),
            Some('d') => two_digits(day),
            Some('B') => name(&MONTHS, month - 1),
            Some('b') => name(&MONTHS, month - 1)[..3].to_owned(),
            Some('A') => name(&DAYS, days % 7),
            Some('a') => name(&DAYS, days % 7)[..3].to_owned(),
            Some('H') => two_digits(seconds / 3600),
            Some('M') => two_digits(seconds / 60 % 60),
            Some('S') => two_digits(seconds % 60),
            Some('%') => "%".to_owned(),
            other => {
                let message = format!("strftime_now does not know %{}", other.unwrap_or_default());
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
        out.push_str(&part);
    }
    Ok(out)
}

fn two_digits(n: u64) -> String {
    format!("{n:02}")
}

/// The year, month and day, `days` days after the beginning of 1970.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since March 1 of year 0
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153; // counted from March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn render(template: &str, messages: &[(&str, &str)]) -> Result<String, Error> {
        let message = |(role, content): &(&str, &str)| Message {
            role: (*role).to_owned(),
            content: (*content).to_owned(),
            name: None,
        };
        let messages: Vec<Message> = messages.iter().map(message).collect();
        Chat::new(template, ["<s>".to_owned(), "</s>".to_owned()])?.render(&messages)
    }

    /// The template of SmolLM2-135M-Instruct, from its `tokenizer_config.json`.
    const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
        {% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn a_template_makes_the_prompt() {
        let prompt = render(SMOLLM2, &[("user", "Hi <b>&"), ("assistant", "Yes?"), ("user", "Bye")]);
        let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
            <|im_start|>user\nHi <b>&<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
            <|im_start|>assistant\n";
        assert_eq!(prompt.expect("it renders"), expected);
        let prompt = render(SMOLLM2, &[("system", "Be brief."), ("user", "Hi")]).expect("it renders");
        assert!(prompt.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"), "{prompt}");
    }

    #[test]
    fn templates_may_use_what_python_has() {
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
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages | length) }}", "[1]"),
        ] {
            assert_eq!(render(template, &[("user", " hi ")]).expect(template), expected, "{template}");
        }
    }

    #[test]
    fn a_template_may_refuse_and_must_end() {
        let refusing = "{% if messages[0].role != 'user' %}{{ raise_exception('Only users begin') }}{% endif %}";
        let error = render(refusing, &[("system", "a")]).expect_err("refused");
        assert!(error.to_string().contains("Only users begin"), "{error}");
        for endless in
            ["{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}", "{{ a"]
        {
            render(endless, &[("user", "a")]).expect_err("no prompt");
        }
    }

    #[test]
    fn messages_are_checked() {
        let chat = Some(Chat::new(SMOLLM2, [String::new(), String::new()]).map_err(|_| String::new()));
        let of = |json: Json| prompt(chat.as_ref(), Some(&json), "it").map_err(|error| error.body());
        let parts = serde_json::json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert!(of(parts).expect("text").contains("user\nab<|im_end|>"));
        for wrong in [
            serde_json::json!([]),
            serde_json::json!("hi"),
            serde_json::json!(["hi"]),
            serde_json::json!([{"content": "a"}]),
            serde_json::json!([{"role": "user"}]),
            serde_json::json!([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
            serde_json::json!([{"role": "user", "content": "a", "tool_calls": []}]),
        ] {
            of(wrong.clone()).expect_err(&wrong.to_string());
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |days: u64| {
            strftime("%Y-%m-%d %a %b", UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399)).expect("known")
        };
        assert_eq!(at(0), "1970-01-01 Thu Jan");
        assert_eq!(at(11_016), "2000-02-29 Tue Feb");
        assert_eq!(at(11_017), "2000-03-01 Wed Mar");
        assert_eq!(at(20_779), "2026-11-22 Sun Nov");
        let time = UNIX_EPOCH + Duration::from_secs(20_779 * 86_400 + 3 * 3600 + 4 * 60 + 5);
        assert_eq!(strftime("%d %B %Y, %A %H:%M:%S %%", time).expect("known"), "22 November 2026, Sunday 03:04:05 %");
        strftime("%Q", time).expect_err("nobody knows it");
        strftime("%", time).expect_err("nothing follows");
    }
}
