//! The forms of a record, recognized by its fields. Every field is known, known to mean nothing, or refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tinderbox_model::json;
use tinderbox_model::tokenizer::messages::of_text;

use super::fields::Fields;
use super::message::{MESSAGE, Message, tools, without_nulls};
use crate::data::record::not_json;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Messages(Conversation),
    /// A question and its answer; for a model without a chat template, the answer continues the question.
    Completion {
        prompt: String,
        completion: String,
    },
    /// Text without parts.
    Text(String),
    /// Two answers to the same question, the better one first, each as a separate record.
    Preference([Box<Record>; 2]),
}

/// A conversation as a chat template reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Value>,
    /// Variables of the template, such as the tools that the messages may name.
    pub(super) variables: Map<String, Value>,
    /// The indices of answers that do not count.
    pub(super) uncounted: BTreeSet<usize>,
}

impl Conversation {
    /// The conversation of one question and answer.
    pub(super) fn question_and_answer(prompt: &str, completion: &str) -> Self {
        let messages =
            vec![json!({"role": "user", "content": prompt}), json!({"role": "assistant", "content": completion})];
        Self { messages, ..Self::default() }
    }

    fn add(&mut self, message: Message) {
        if !message.counts {
            self.uncounted.insert(self.messages.len());
        }
        self.messages.push(message.fields.into());
    }

    /// Adds messages; a system's message may be repeated at their start.
    fn extend(&mut self, messages: Vec<Message>) -> Result<(), String> {
        if let ([known], [first, ..]) = (&self.messages[..], &messages[..])
            && [&known["role"], &first.fields["role"]].into_iter().all(|role| role == "system")
        {
            if known["content"] != first.fields["content"] {
                let problem =
                    "has two messages of the role \"system\" that differ, in a field of its own and among the others";
                return Err(format!("{problem}\n  hint: leave one out"));
            }
            self.messages.clear();
        }
        for message in messages {
            self.add(message);
        }
        Ok(())
    }
}

/// The forms, as an error lists them.
const FORMS: &str = "hint: a record has \"messages\", \"prompt\" and \"completion\", \"instruction\" and \"output\", \
                     \"question\" and \"answer\", \"conversations\", \"text\", or \"chosen\" and \"rejected\"; \
                     --map prompt=FIELD,completion=FIELD names the fields of another form";

/// The names of a question and of its answer, of which a record has one each.
const QUESTIONS: [&str; 5] = ["prompt", "instruction", "question", "query", "input"];
const ANSWERS: [&str; 4] = ["completion", "output", "answer", "response"];
const CONVERSATIONS: [&str; 3] = ["messages", "conversations", "conversation"];

/// A question or an answer.
enum Part {
    Text(String),
    Messages(Vec<Message>),
}

type Object = Map<String, Value>;

impl Fields<'_> {
    /// Reads a record; fails with the reason, which continues a sentence about it.
    pub(super) fn record(&self, line: &[u8]) -> Result<Record, String> {
        let value = json::parse(line).map_err(|error| not_json(&error, line, "JSON Lines is one object a line"))?;
        let Value::Object(sent) = without_nulls(value) else { return Err(format!("is not an object\n  {FORMS}")) };
        let mut fields = Object::new();
        for (name, value) in sent.into_iter().filter(|(name, _)| !self.ignored.contains(name)) {
            let mapped = self.map.iter().find(|(_, sent)| *sent == name);
            let ours = mapped.map_or(&*name, |(ours, _)| *ours).to_owned();
            if fields.insert(ours.clone(), value).is_some() {
                return Err(format!(
                    "has a field \"{ours}\" of its own besides the one that --map calls so\n  hint: --set \
                     'finetune.ignored_fields=[\"{ours}\"]' leaves it out"
                ));
            }
        }
        let record = self.form(&mut fields)?;
        self.check_rest(&fields)?;
        Ok(record)
    }

    /// Takes the fields that make a form.
    fn form(&self, fields: &mut Object) -> Result<Record, String> {
        if fields.contains_key("chosen") || fields.contains_key("rejected") {
            return self.preference(fields);
        }
        if let Some(name) = CONVERSATIONS.into_iter().find(|name| fields.contains_key(*name)) {
            let mut conversation = context(fields)?;
            let Some(Part::Messages(messages)) = self.part(fields, name, "user")? else {
                return Err(format!("has no list in its field \"{name}\"\n  hint: a message is {MESSAGE}"));
            };
            conversation.extend(messages)?;
            // Some data sets repeat the question beside the messages.
            let is_repeated =
                |prompt: &Value| conversation.messages.iter().any(|message| message["content"] == *prompt);
            take_if(fields, "prompt", is_repeated);
            return Ok(Record::Messages(conversation));
        }
        if QUESTIONS.iter().chain(&ANSWERS).any(|name| fields.contains_key(*name)) {
            let before = context(fields)?;
            let question = self.question(fields)?;
            let Some(name) = ANSWERS.into_iter().find(|name| fields.contains_key(*name)) else {
                return Err(format!("has no field \"{}\"\n  {FORMS}", ANSWERS[0]));
            };
            let answer = self.part(fields, name, "assistant")?.expect("the field is there");
            if let Part::Text(answer) = &answer {
                // Alpaca's data repeat both as one text.
                take_if(fields, "text", |text| text.as_str().is_some_and(|text| text.contains(&**answer)));
            }
            return joined(before, question, answer);
        }
        match fields.remove("text") {
            Some(Value::String(text)) => Ok(Record::Text(text)),
            Some(_) => Err(no_text("text")),
            None => Err(format!("has only the fields {}\n  {FORMS}", quoted(fields.keys()))),
        }
    }

    /// The question, with what it is about.
    fn question(&self, fields: &mut Object) -> Result<Part, String> {
        let Some(name) = QUESTIONS.into_iter().find(|name| fields.contains_key(*name)) else {
            return Err(format!("has no field \"{}\"\n  {FORMS}", QUESTIONS[0]));
        };
        let mut question = self.part(fields, name, "user")?.expect("the field is there");
        let about: &[&str] = if name == "instruction" { &["input", "context"] } else { &["input"] };
        if let Part::Text(question) = &mut question {
            for name in about {
                if let Some(about) = text(fields, name)?.filter(|about| !about.is_empty()) {
                    *question += "\n\n";
                    *question += &about;
                }
            }
        }
        Ok(question)
    }

    /// Both answers are either whole conversations or what follows the question.
    fn preference(&self, fields: &mut Object) -> Result<Record, String> {
        // Some data sets repeat the better conversation.
        let chosen = fields.get("chosen").cloned().unwrap_or_default();
        take_if(fields, "messages", |messages| *messages == chosen);
        let before = context(fields)?;
        let mut question = None;
        if let Some(name) = CONVERSATIONS.into_iter().find(|name| fields.contains_key(*name)) {
            question = self.part(fields, name, "user")?;
        } else if QUESTIONS.iter().any(|name| fields.contains_key(*name)) {
            question = Some(self.question(fields)?);
        }
        let mut answer = |name: &str| -> Result<Box<Record>, String> {
            let Some(answer) = self.part(fields, name, "assistant")? else {
                return Err(format!("has no field \"{name}\"\n  {FORMS}"));
            };
            let before = before.clone();
            let record = match (&question, answer) {
                (Some(question), answer) => joined(before, after(question, &answer, name)?, answer),
                (None, Part::Text(text)) => self.dialogue(before, &text).ok_or_else(|| {
                    format!(
                        "has no field \"prompt\", and its field \"{name}\" is neither a list of messages nor a dialogue of \
                         \"\\n\\nHuman: \" and \"\\n\\nAssistant: \"\n  {FORMS}"
                    )
                }),
                (None, answer) => joined(before, Part::Messages(Vec::new()), answer),
            };
            record.map(Box::new)
        };
        Ok(Record::Preference([answer("chosen")?, answer("rejected")?]))
    }

    /// Takes a field: a text, a list of messages or its JSON, or one message.
    fn part(&self, fields: &mut Object, name: &str, role: &str) -> Result<Option<Part>, String> {
        let is_list = CONVERSATIONS.contains(&name);
        let Some(value) = fields.remove(name).map(|value| if is_list { of_text(value) } else { value }) else {
            return Ok(None);
        };
        let list = match value {
            Value::String(text) => return Ok(Some(Part::Text(text))),
            Value::Array(list) if list.is_empty() => {
                return Err(format!("has an empty list in its field \"{name}\"\n  hint: remove the line"));
            }
            Value::Array(list) => list,
            one @ Value::Object(_) if role == "assistant" => vec![one],
            _ => return Err(no_text(name)),
        };
        let message = |(idx, message): (usize, Value)| {
            Message::read(message, self).map_err(|problem| {
                format!("has {} in message {} of its field \"{name}\"\n  hint: {}", problem.what, idx + 1, problem.hint)
            })
        };
        list.into_iter().enumerate().map(message).collect::<Result<_, _>>().map(|list| Some(Part::Messages(list)))
    }

    /// A dialogue in one text, as in hh-rlhf; for a model without a chat template, its last answer continues the rest.
    fn dialogue(&self, mut conversation: Conversation, text: &str) -> Option<Record> {
        const QUESTION: &str = "\n\nHuman:";
        const ANSWER: &str = "\n\nAssistant:";
        let turns = text.strip_prefix(QUESTION)?;
        let at = text.rfind(ANSWER)? + ANSWER.len();
        if self.template.is_none() && conversation.messages.is_empty() {
            let [prompt, completion] = [&text[..at], &text[at..]].map(str::to_owned);
            return Some(Record::Completion { prompt, completion });
        }
        for turn in turns.split(QUESTION) {
            let mut turn = turn.split(ANSWER);
            conversation.add(Message::new("user", turn.next()?.trim()));
            turn.for_each(|answer| conversation.add(Message::new("assistant", answer.trim())));
        }
        Some(Record::Messages(conversation))
    }

    /// Refuses fields that are left, unless they mean nothing.
    fn check_rest(&self, fields: &Object) -> Result<(), String> {
        const SWITCHES: [&str; 3] = ["label", "train", "weight"];
        for name in SWITCHES {
            let Some(value) = fields.get(name).filter(|value| **value != true) else { continue };
            let hint = match name {
                "label" => {
                    "unpaired preferences and classes are not supported: remove the records of bad answers, or pair them as \
                     \"chosen\" and \"rejected\""
                }
                _ if name == "weight" && value.as_f64() == Some(1.0) => continue,
                _ => "remove the record if it should not count; a message may have \"weight\": 0",
            };
            return Err(format!("has {value} in its field \"{name}\"\n  hint: {hint}"));
        }
        let unknown = fields.keys().filter(|name| !SWITCHES.contains(&name.as_str()) && !self.is_neutral(name));
        match quoted(unknown) {
            names if names.is_empty() => Ok(()),
            names => Err(format!(
                "has fields that are not used beside the others: {names}\n  hint: --set \
                 'finetune.ignored_fields=[{names}]' leaves them out; --map prompt=FIELD,completion=FIELD names those that \
                 are read"
            )),
        }
    }
}

/// What stands before the question: the system's message, earlier turns, and variables of the template.
fn context(fields: &mut Object) -> Result<Conversation, String> {
    let mut conversation = Conversation::default();
    if let Some(sent) = fields.remove("tools") {
        let tools = tools(sent)?;
        conversation.variables.extend((!tools.is_empty()).then(|| ("tools".to_owned(), tools.into())));
    }
    match fields.remove("chat_template_kwargs").map(of_text) {
        None => {}
        Some(Value::Object(variables)) => conversation.variables.extend(variables),
        Some(_) => {
            let hint = "it holds variables of the chat template, such as {\"enable_thinking\": false}";
            return Err(format!("has no object in its field \"chat_template_kwargs\"\n  hint: {hint}"));
        }
    }
    for name in ["system", "system_prompt"] {
        if let Some(system) = text(fields, name)?.filter(|system| !system.is_empty()) {
            conversation.add(Message::new("system", &system));
        }
    }
    let turns = fields.remove("history").map(of_text);
    let rule = "has no list of earlier turns, each [QUESTION, ANSWER], in its field \"history\"\n  hint: such as \
                [[\"Hi\", \"Hello!\"]]";
    for turn in turns.map_or(Some(Vec::new()), |turns| turns.as_array().cloned()).ok_or(rule)? {
        let [question, answer] = turn.as_array().map_or(&[][..], Vec::as_slice) else {
            return Err(rule.to_owned());
        };
        let (question, answer) = question.as_str().zip(answer.as_str()).ok_or(rule)?;
        conversation.add(Message::new("user", question));
        conversation.add(Message::new("assistant", answer));
    }
    Ok(conversation)
}

/// The question, or nothing if the answer is a whole conversation that begins with it.
fn after(question: &Part, answer: &Part, name: &str) -> Result<Part, String> {
    let kept = || match question {
        Part::Text(text) => Part::Text(text.clone()),
        Part::Messages(messages) => Part::Messages(messages.clone()),
    };
    let Part::Messages(answer) = answer else { return Ok(kept()) };
    let begins = match question {
        Part::Messages(question) => answer.starts_with(question),
        Part::Text(text) => {
            let first = answer.iter().find(|message| message.fields["role"] != "system");
            first.is_some_and(|first| first.fields["role"] == "user" && first.fields["content"] == **text)
        }
    };
    match answer[0].fields["role"].as_str() {
        _ if begins => Ok(Part::Messages(Vec::new())),
        Some("system" | "user") => Err(format!(
            "has another question in its field \"{name}\" than the one before it\n  hint: both answers are whole \
             conversations that begin with the question, or only what follows it"
        )),
        _ => Ok(kept()),
    }
}

fn joined(mut context: Conversation, question: Part, answer: Part) -> Result<Record, String> {
    let is_alone = context.messages.is_empty() && context.variables.is_empty();
    let parts = match (question, answer) {
        (Part::Text(prompt), Part::Text(completion)) if is_alone => {
            return Ok(Record::Completion { prompt, completion });
        }
        (question, answer) => [(question, "user"), (answer, "assistant")],
    };
    for (part, role) in parts {
        match part {
            Part::Text(text) => context.add(Message::new(role, &text)),
            Part::Messages(messages) => context.extend(messages)?,
        }
    }
    Ok(Record::Messages(context))
}

fn no_text(name: &str) -> String {
    format!("has something else than a text in its field \"{name}\"\n  {FORMS}")
}

/// Takes a text.
fn text(fields: &mut Object, name: &str) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(no_text(name)),
    }
}

fn take_if(fields: &mut Object, name: &str, is_known: impl Fn(&Value) -> bool) {
    if fields.get(name).is_some_and(is_known) {
        fields.remove(name);
    }
}

/// The first names in quotes, sorted.
fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let mut names: Vec<String> = names.take(12).map(|name| format!("\"{name}\"")).collect();
    names.sort();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FinetuneConfig;

    fn parsed_with(config: &FinetuneConfig, template: Option<&str>, line: &str) -> Result<Record, String> {
        Fields::new(config, "text", template).record(line.as_bytes())
    }

    fn parsed(line: &str) -> Result<Record, String> {
        parsed_with(&FinetuneConfig::default(), Some("messages tools ipython message.plan"), line)
    }

    fn completion(prompt: &str, completion: &str) -> Record {
        Record::Completion { prompt: prompt.to_owned(), completion: completion.to_owned() }
    }

    /// A conversation of these messages in JSON, or in short `role: content`, and variables.
    fn conversation(messages: &[&str], variables: Value) -> Record {
        let message = |text: &&str| {
            let short = text.split_once(": ").filter(|_| !text.starts_with('{'));
            short.map_or_else(
                || serde_json::from_str(text).expect("JSON"),
                |(role, content)| json!({"role": role, "content": content}),
            )
        };
        let Value::Object(variables) = variables else { panic!("variables are an object") };
        let messages = messages.iter().map(message).collect();
        Record::Messages(Conversation { messages, variables, uncounted: BTreeSet::new() })
    }

    #[test]
    fn record_forms_follow_from_fields() {
        let none = || json!({});
        let talk = |messages: &[&str]| conversation(messages, json!({}));
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}});
        let call = r#"{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"z":1,"a":2}}}]}"#;
        for (line, expected) in [
            (r#"{"prompt": "a", "completion": "b", "id": 3}"#, completion("a", "b")),
            (r#"{"instruction": "a", "input": "", "output": "b", "text": "A: a\nB: b"}"#, completion("a", "b")),
            (r#"{"instruction": "a", "input": "x", "output": "b"}"#, completion("a\n\nx", "b")),
            (r#"{"instruction": "a", "context": "x", "response": "b", "category": "qa"}"#, completion("a\n\nx", "b")),
            (r#"{"question": "a", "answer": "b", "prompt_id": "z", "num_turns": 1}"#, completion("a", "b")),
            (r#"{"query": "a", "response": "b", "history": null}"#, completion("a", "b")),
            (r#"{"input": "a", "output": "b", "system": ""}"#, completion("a", "b")),
            (r#"{"text": "a"}"#, Record::Text("a".to_owned())),
            (
                r#"{"instruction": "a", "output": "b", "system": "s", "history": [["q", "r"]]}"#,
                talk(&["system: s", "user: q", "assistant: r", "user: a", "assistant: b"]),
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a", "name": null}], "tools": null, "prompt": "a"}"#,
                talk(&["user: a"]),
            ),
            (
                r#"{"messages": "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}]", "tools": []}"#,
                talk(&["user: a"]),
            ),
            (
                r#"{"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a", "weight": 0.0},
                    {"from": "gpt", "value": "b", "weight": 1}], "system": "s", "source": "x"}"#,
                talk(&["system: s", "user: a", "assistant: b"]),
            ),
            (
                r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
                talk(&["user: a", "assistant: b"]),
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls":
                    [{"type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}],
                    "tools": "[{\"name\": \"f\", \"parameters\": {\"z\": 1, \"a\": 2, \"n\": null}}]"}"#,
                conversation(
                    &["user: a", call],
                    json!({"tools": [{"type": "function", "function":
                    {"name": "f", "parameters": {"z": 1, "a": 2, "n": null}}}]}),
                ),
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value":
                    "{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 2}}"}, {"from": "observation", "value": "1"}],
                    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2, "n": null}}}],
                    "chat_template_kwargs": {"enable_thinking": false}}"#,
                conversation(&["user: a", call, "tool: 1"], json!({"tools": [tool], "enable_thinking": false})),
            ),
            (
                r#"{"messages": [{"role": "assistant", "content": "b", "plan": "p", "reasoning_content": "r"},
                    {"role": "ipython", "content": "3"}]}"#,
                conversation(
                    &[r#"{"role": "assistant", "content": "b", "plan": "p", "reasoning_content": "r"}"#, "ipython: 3"],
                    none(),
                ),
            ),
        ] {
            assert_eq!(format!("{:?}", parsed(line).expect(line)), format!("{expected:?}"), "in this order: {line}");
        }
    }

    #[test]
    fn preferences_have_questions_or_whole_conversations() {
        let talk = |messages: &[&str]| conversation(messages, json!({}));
        let pair = |answers: [Record; 2]| Record::Preference(answers.map(Box::new));
        for (line, expected) in [
            (
                r#"{"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 1, "chosen-rating": 2}"#,
                pair([completion("a", "b"), completion("a", "c")]),
            ),
            (
                r#"{"prompt": "a", "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                    "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}],
                    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
                pair([talk(&["user: a", "assistant: b"]), talk(&["user: a", "assistant: c"])]),
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "gpt", "value": "b"},
                    "rejected": {"from": "gpt", "value": "c"}}"#,
                pair([talk(&["user: a", "assistant: b"]), talk(&["user: a", "assistant: c"])]),
            ),
            (
                r#"{"system": "s", "question": "a", "chosen": "b", "rejected": "c"}"#,
                pair([
                    talk(&["system: s", "user: a", "assistant: b"]),
                    talk(&["system: s", "user: a", "assistant: c"]),
                ]),
            ),
            (
                r#"{"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d", "rejected": "\n\nHuman: a\n\nAssistant: e"}"#,
                pair([
                    talk(&["user: a", "assistant: b", "user: c", "assistant: d"]),
                    talk(&["user: a", "assistant: e"]),
                ]),
            ),
        ] {
            assert_eq!(parsed(line).expect(line), expected, "{line}");
        }
        let dialogue = r#"{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"}"#;
        let [chosen, rejected] = [" b", " c"].map(|answer| completion("\n\nHuman: a\n\nAssistant:", answer));
        let config = FinetuneConfig {
            map: vec!["prompt=problem".to_owned(), "completion=solution".to_owned()],
            ignored_fields: vec!["level".to_owned()],
            ..FinetuneConfig::default()
        };
        assert_eq!(parsed_with(&config, None, dialogue), Ok(pair([chosen, rejected])));
        let mapped = r#"{"problem": "a", "solution": "b", "level": 3}"#;
        assert_eq!(parsed_with(&config, None, mapped), Ok(completion("a", "b")));
        let both = parsed_with(&config, None, r#"{"problem": "a", "prompt": "b"}"#).expect_err("two prompts");
        assert!(both.starts_with("has a field \"prompt\" of its own"), "{both}");
    }

    #[test]
    fn answers_of_no_weight_do_not_count() {
        for (fields, expected) in [(r#""weight": 0"#, &[1][..]), (r#""train": false"#, &[1]), (r#""weight": 1"#, &[])] {
            let line = format!(
                r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b", {fields}}}]}}"#
            );
            let Ok(Record::Messages(conversation)) = parsed(&line) else { panic!("{line}") };
            assert!(conversation.uncounted.iter().eq(expected), "{fields}");
            assert!(
                conversation.messages[1].get("weight").is_none() && conversation.messages[1].get("train").is_none()
            );
        }
    }

    #[test]
    fn invalid_records_name_their_field() {
        for (line, expected) in [
            ("{", "is not JSON: EOF while parsing an object at column 1"),
            ("[1]", "is not an object"),
            (r#"{"prompt": "a", "prompt": "b"}"#, "is not JSON: an object has the name \"prompt\" twice"),
            (r#"{"title": "a", "body": "b"}"#, "has only the fields \"body\", \"title\""),
            (r#"{"prompt": "a"}"#, "has no field \"completion\""),
            (r#"{"prompt": "a", "completion": 3}"#, "has something else than a text in its field \"completion\""),
            (
                r#"{"prompt": "a", "completion": "b", "novel": 1}"#,
                "has fields that are not used beside the others: \"novel\"",
            ),
            (r#"{"text": "a", "label": 1}"#, "has 1 in its field \"label\""),
            (r#"{"prompt": "a", "completion": "b", "label": false}"#, "has false in its field \"label\""),
            (r#"{"prompt": "a", "completion": "b", "weight": 0}"#, "has 0 in its field \"weight\""),
            (
                r#"{"prompt": "a", "question": "q", "completion": "b"}"#,
                "has fields that are not used beside the others: \"question\"",
            ),
            (r#"{"prompt": "a", "completion": "b", "history": [["q"]]}"#, "has no list of earlier turns"),
            (r#"{"messages": "a"}"#, "has no list in its field \"messages\""),
            (r#"{"messages": []}"#, "has an empty list in its field \"messages\""),
            (r#"{"messages": [{"role": "user"}]}"#, "has no text in \"content\" in message 1"),
            (r#"{"messages": [{"content": "a"}]}"#, "has no role in message 1"),
            (
                r#"{"messages": [{"role": "asistant", "content": "a"}]}"#,
                "has the role \"asistant\", which the chat template",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a", "novel": 1}]}"#,
                "has the field \"novel\", which is not used, in",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
                "has a part that is not a text",
            ),
            (
                r#"{"messages": [{"role": "user", "content": "a", "weight": 1}]}"#,
                "has 1 as \"weight\" of the role \"user\" in",
            ),
            (
                r#"{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}"#,
                "has 0.5 as \"weight\" in message 1",
            ),
            (
                r#"{"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}"#,
                "has calls of tools that must be",
            ),
            (r#"{"messages": [{"role": "user", "content": "a"}], "prompt": "b"}"#, "has fields that are not used"),
            (
                r#"{"messages": [{"role": "system", "content": "a"}], "system": "b"}"#,
                "has two messages of the role \"system\"",
            ),
            (r#"{"messages": [{"role": "user", "content": "a"}], "tools": "f"}"#, "has a field \"tools\" that must be"),
            (r#"{"prompt": "a", "chosen": "b"}"#, "has no field \"rejected\""),
            (r#"{"chosen": "b", "rejected": "c"}"#, "has no field \"prompt\", and its field \"chosen\" is neither"),
            (
                r#"{"prompt": "a", "chosen": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "b"}], "rejected": "c"}"#,
                "has another question in its field \"chosen\"",
            ),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.starts_with(expected) && error.contains("\n  hint: "), "{line}: {error}");
        }
        for (line, hint) in [
            (r#"{"prompt": "a \ud83e", "completion": "b"}"#, "half a character"),
            (r#"{"prompt": "a", "completion": NaN}"#, "no NaN"),
            (r#"{"prompt": "a", "completion": -Infinity}"#, "no NaN"),
            ("{\0\"\0", "save it as UTF-8"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
