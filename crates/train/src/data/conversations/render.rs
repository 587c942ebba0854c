//! Tokens of a record, and which of them count.
//!
//! The tokens of an answer are those that the chat template adds for it after the start of the model's reply (prefix
//! rendering). This needs no marks in the template, and text before every answer, such as an empty `<think>` block,
//! does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Example;
use super::record::Record;
use crate::config::{GenerateConfig, TrainOn};
use tinderbox_model::tokenizer::{ChatRenderer, RenderError, Tokenizer, TokenizerError};

/// The most text of the prefixes of a conversation that is rendered besides the whole: each answer needs two of them.
const MAX_RENDERED_BYTES: usize = 1 << 28;

/// The most answers of a conversation, and its most bytes, whose prefixes are rendered at once.
const MAX_ANSWERS_AT_ONCE: usize = 4;
const MAX_BYTES_AT_ONCE: usize = 1 << 16;

/// The most text that is encoded at once. A cut where the tokenizer has no safe one is far behind what is kept.
const MAX_ENCODED_BYTES: usize = 1 << 20;

/// Turns records into tokens.
#[derive(Debug)]
pub(super) struct Renderer<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<ChatRenderer>,
    train_on: TrainOn,
    /// The ids of added tokens, such as `<|im_end|>`.
    added: BTreeSet<u32>,
    /// The ids of the tokens at which the model stops.
    ends: Arc<[u32]>,
    /// The tokens that are kept of a record.
    max_tokens: usize,
    max_encoded_bytes: usize,
    max_rendered_bytes: usize,
}

/// The refusal of a conversation whose text before an answer changes when the answer is there.
fn cannot_be_divided(answer: usize) -> String {
    format!(
        "cannot be divided: the chat template writes what stands before message {} in another way once the message, or \
         one after it, is there\n  hint: finetune.train_on = \"last\" needs this of the last answer alone, and \"all\" \
         of none",
        answer + 1
    )
}

fn not_rendered(error: RenderError) -> String {
    match error {
        RenderError::Refused(why) => format!(
            "does not suit the chat template: {why}\n  hint: the template of the model decides which roles may follow \
             each other"
        ),
        RenderError::Unusable(why) => format!(
            "is too much for the chat template: {why}\n  hint: remove the line if others are read, and else give the \
             model another template"
        ),
    }
}

/// The prefixes of a conversation that dividing it begins with, to be rendered at once: the whole, and if it is short those
/// before and after the first answers.
fn first_prefixes(messages: &[Value], train_on: TrainOn) -> Vec<(usize, bool)> {
    let is_answer = |idx: &usize| messages[*idx]["role"] == "assistant";
    let n_bytes: usize = messages.iter().map(|message| message["content"].as_str().map_or(0, str::len)).sum();
    let mut answers: Vec<usize> = match train_on {
        TrainOn::All => Vec::new(),
        TrainOn::Last => (0..messages.len()).rfind(is_answer).into_iter().collect(),
        TrainOn::Assistant => (0..messages.len()).filter(is_answer).collect(),
    };
    answers.truncate(if n_bytes > MAX_BYTES_AT_ONCE { 0 } else { MAX_ANSWERS_AT_ONCE });
    let around = answers.into_iter().flat_map(|answer| [(answer, true), (answer + 1, false)]);
    let whole = (messages.len(), false);
    [whole].into_iter().chain(around.filter(|prefix| *prefix != whole)).collect()
}

impl<'a> Renderer<'a> {
    /// A renderer with the tokenizer's chat template, if it has one.
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        train_on: TrainOn,
        generate: &GenerateConfig,
        max_tokens: usize,
    ) -> Result<Self, RenderError> {
        let template = ChatRenderer::of(tokenizer);
        template.as_ref().map_or(Ok(()), ChatRenderer::parse)?;
        let added = tokenizer.added_tokens().into_iter().map(|(id, _)| id).collect();
        Ok(Self {
            tokenizer,
            template,
            train_on,
            added,
            ends: generate.ends(tokenizer),
            max_tokens,
            max_encoded_bytes: MAX_ENCODED_BYTES,
            max_rendered_bytes: MAX_RENDERED_BYTES,
        })
    }

    /// The tokens of a record, and the one that ends its last answer if the model does not stop at it; fails with the
    /// reason, which continues a sentence about its line.
    pub(super) fn render(&self, record: &Record) -> Result<(Example, Option<u32>), String> {
        let (example, end) = self.render_for(record, self.train_on)?;
        Ok((example, end.filter(|end| !self.ends.contains(end))))
    }

    /// The tokens of a record, and the one that ends its last answer.
    fn render_for(&self, record: &Record, train_on: TrainOn) -> Result<(Example, Option<u32>), String> {
        match (record, &self.template) {
            (Record::Preference(answers), _) => {
                let [chosen, rejected] = answers.each_ref().map(|answer| self.render_for(answer, TrainOn::Last));
                let ((chosen, end), (rejected, _)) = (chosen?, rejected?);
                Ok((Example { rejected: Some(Box::new(rejected)), ..chosen }, end))
            }
            (Record::Messages { messages, tools }, Some(template)) => {
                self.conversation(template, messages, tools.as_ref(), train_on)
            }
            (Record::Completion { prompt, completion }, Some(template)) => {
                self.conversation(template, &Record::question_and_answer(prompt, completion), None, train_on)
            }
            (Record::Messages { .. }, None) => {
                Err("has messages, and the model has no chat template\n  hint: `finetune \
                 --template chatml` gives it one; records with \"prompt\" and \"completion\" need none"
                    .to_owned())
            }
            (Record::Completion { prompt, completion }, None) => {
                let mut draft = Draft::new(self);
                draft.add_text(prompt, false)?;
                draft.add_ended(completion, !completion.is_empty())
            }
            (Record::Text(text), _) => Draft::new(self).add_ended(text, true),
        }
    }

    fn conversation(
        &self,
        template: &ChatRenderer,
        messages: &[Value],
        tools: Option<&Value>,
        train_on: TrainOn,
    ) -> Result<(Example, Option<u32>), String> {
        let variables: Map<String, Value> =
            tools.map(|tools| ("tools".to_owned(), tools.clone())).into_iter().collect();
        let prefixes = first_prefixes(messages, train_on);
        let rendered = template.render_prefixes(messages, prefixes.clone(), &variables).map_err(not_rendered)?;
        let mut rendered: BTreeMap<_, _> = prefixes.into_iter().zip(rendered).collect();
        self.divided(messages, train_on, |n, begins_answer| {
            let known = rendered.remove(&(n, begins_answer));
            known.unwrap_or_else(|| template.render(&messages[..n], begins_answer, &variables)).map_err(not_rendered)
        })
    }

    /// The tokens of a conversation. `render` has the text of the first messages, and of the start of a reply to them:
    /// it is called once for the whole and at most twice for each answer up to the longest length.
    fn divided(
        &self,
        messages: &[Value],
        train_on: TrainOn,
        mut render: impl FnMut(usize, bool) -> Result<String, String>,
    ) -> Result<(Example, Option<u32>), String> {
        let whole = render(messages.len(), false)?;
        let mut draft = Draft::new(self);
        if train_on == TrainOn::All {
            draft.add_text(&whole, true)?;
            draft.end_answer();
            return Ok((draft.example, draft.end));
        }
        let is_answer = |message: &Value| message["role"] == "assistant";
        let answers: Vec<usize> = (0..messages.len()).filter(|idx| is_answer(&messages[*idx])).collect();
        let counted = match train_on {
            TrainOn::Last => answers.last().map_or(&[][..], std::slice::from_ref),
            _ => &answers[..],
        };
        if answers.is_empty() {
            return Err("has no message of the role \"assistant\"\n  hint: remove the line, or count everything with \
                        finetune.train_on = \"all\""
                .to_owned());
        }
        let mut n_rendered = 0;
        // The length of the text of the first messages, if it is how the whole begins.
        let mut prefix = |n: usize, begins_answer: bool| -> Result<Option<usize>, String> {
            if n == messages.len() {
                return Ok(Some(whole.len()));
            }
            let text = render(n, begins_answer)?;
            n_rendered += text.len();
            match n_rendered > self.max_rendered_bytes.saturating_add(2 * whole.len()) {
                true => Err(format!(
                    "has so many messages that dividing it takes too long: {} of {} are done\n  hint: \
                     finetune.train_on = \"last\" or a smaller finetune.max_tokens, or divide it into several records",
                    n,
                    messages.len()
                )),
                false => Ok(whole.starts_with(&text).then_some(text.len())),
            }
        };
        // The start of the text without tokens so far.
        let mut at = 0;
        for &answer in counted {
            if draft.example.ids.len() >= self.max_tokens {
                break; // the rest is cut off
            }
            let (Some(before), Some(after)) = (prefix(answer, true)?, prefix(answer + 1, false)?) else {
                return Err(cannot_be_divided(answer));
            };
            if before < at || after < before {
                return Err(cannot_be_divided(answer));
            }
            draft.add_text(&whole[at..before], false)?;
            let has_text = messages[answer]["content"].as_str().is_none_or(|content| !content.trim().is_empty())
                || messages[answer].get("tool_calls").is_some();
            draft.add_answer(&whole[before..after], has_text)?;
            at = after;
        }
        draft.add_text(&whole[at..], false)?;
        Ok((draft.example, draft.end))
    }
}

/// A record that is being made. Tokens beyond the longest length are only counted.
struct Draft<'a> {
    renderer: &'a Renderer<'a>,
    example: Example,
    /// The last token of the text that was added last.
    last: Option<u32>,
    /// The last added token of this text, such as `<|im_end|>`, and its position.
    stop: Option<(usize, u32)>,
    /// The token that ends the last answer.
    end: Option<u32>,
}

impl<'a> Draft<'a> {
    fn new(renderer: &'a Renderer<'a>) -> Self {
        Self { renderer, example: Example::default(), last: None, stop: None, end: None }
    }

    /// Adds the tokens of a text, a part of a long one at a time: the tokenizer needs a hundred bytes for each token.
    fn add_text(&mut self, mut text: &str, counts: bool) -> Result<(), String> {
        let Renderer { tokenizer, max_encoded_bytes, .. } = self.renderer;
        (self.last, self.stop) = (None, None);
        loop {
            let part = &text[..text.floor_char_boundary(*max_encoded_bytes)];
            let at = match part.len() == text.len() {
                true => None,
                false => tokenizer.safe_split(part).or_else(|| Some(part.rfind('\n')? + 1)),
            };
            let part = &part[..at.unwrap_or(part.len())];
            let encoded = match self.example.ids.is_empty() {
                true => tokenizer.encode_prompt(part), // with a BOS token, as when the model is asked
                false => tokenizer.encode(part),
            };
            let ids = encoded.map_err(|error: TokenizerError| format!("cannot be encoded: {error}"))?;
            self.add_ids(&ids, counts);
            text = &text[part.len()..];
            if text.is_empty() {
                return Ok(());
            }
        }
    }

    fn add_ids(&mut self, ids: &[u32], counts: bool) {
        let Example { ids: kept, counts: all, n_cut, .. } = &mut self.example;
        let start = kept.len() + *n_cut;
        let n_kept = ids.len().min(self.renderer.max_tokens - kept.len());
        kept.extend(&ids[..n_kept]);
        all.resize(kept.len(), counts);
        *n_cut += ids.len() - n_kept;
        let stop = ids.iter().rposition(|id| self.renderer.added.contains(id));
        self.stop = stop.map(|at| (start + at, ids[at])).or(self.stop);
        self.last = ids.last().copied().or(self.last);
    }

    /// Adds a text and the end-of-text token, if there is one.
    fn add_ended(mut self, text: &str, counts: bool) -> Result<(Example, Option<u32>), String> {
        self.add_text(text, counts)?;
        self.add_ids(self.renderer.tokenizer.end_of_text().as_slice(), counts);
        self.end_answer();
        Ok((self.example, self.end))
    }

    /// Adds an answer. Text after its last added token does not count: the model has stopped there.
    fn add_answer(&mut self, text: &str, counts: bool) -> Result<(), String> {
        self.add_text(text, counts)?;
        if let Some(rest) = self.stop.and_then(|(at, _)| self.example.counts.get_mut(at + 1..)) {
            rest.fill(false);
        }
        if counts {
            self.end_answer();
        }
        Ok(())
    }

    /// The text that was added last ends an answer: with its last token if the model stops at it, or else with its last
    /// added token, if it has one.
    fn end_answer(&mut self) {
        let stops = self.last.filter(|last| self.renderer.ends.contains(last));
        self.end = stops.or(self.stop.map(|(_, stop)| stop)).or(self.last);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Roles by their first letters; an answer begins with an empty thought, and ends with a token.
    const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
        {{ m.role[0] }}:{% if m.role == 'assistant' %}()\n{% endif %}{{ m.content }}\
        {% if m.role == 'assistant' %}<|endoftext|>{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}a:()\n{% endif %}";

    fn tokenizer(template: &str) -> Tokenizer {
        let companion = json!({"chat_template": template, "eos_token": "<|endoftext|>"}).to_string();
        Tokenizer::byte()
            .with_end_of_text()
            .with_config(companion, "c.json".as_ref())
            .expect("the tokenizer config is valid")
    }

    fn renderer(tokenizer: &Tokenizer, train_on: TrainOn) -> Renderer<'_> {
        Renderer::new(tokenizer, train_on, &GenerateConfig::default(), 1 << 20).expect("the template parses")
    }

    /// The text of a record, with what counts in brackets.
    fn marked(tokenizer: &Tokenizer, train_on: TrainOn, line: &str) -> Result<String, String> {
        let record = Record::parse(line.as_bytes())?;
        let (Example { ids, counts, .. }, _) = renderer(tokenizer, train_on).render(&record)?;
        assert_eq!(ids.len(), counts.len());
        let mut text = String::new();
        let mut was_counted = false;
        for (id, counted) in ids.iter().zip(counts) {
            text += if counted && !was_counted { "[" } else { "" };
            text += if was_counted && !counted { "]" } else { "" };
            text += &tokenizer.decode(&[*id]);
            was_counted = counted;
        }
        Ok(text + if was_counted { "]" } else { "" })
    }

    const TWO_TURNS: &str = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "so"}, {"role": "assistant", "content": "no"}]}"#;

    #[test]
    fn only_answers_and_their_ends_count() {
        let tokenizer = tokenizer(TEMPLATE);
        let line = TWO_TURNS.replace('\n', " ");
        for (train_on, expected) in [
            (TrainOn::Assistant, "u:hi\na:()\n[yes<|endoftext|>]\nu:so\na:()\n[no<|endoftext|>]\n"),
            (TrainOn::Last, "u:hi\na:()\nyes<|endoftext|>\nu:so\na:()\n[no<|endoftext|>]\n"),
            (TrainOn::All, "[u:hi\na:()\nyes<|endoftext|>\nu:so\na:()\nno<|endoftext|>\n]"),
        ] {
            assert_eq!(marked(&tokenizer, train_on, &line).expect("the template can be divided"), expected);
        }
        let question = r#"{"prompt": "hi", "completion": "yes"}"#;
        let expected = "u:hi\na:()\n[yes<|endoftext|>]\n";
        assert_eq!(marked(&tokenizer, TrainOn::Assistant, question).expect("the line is a conversation"), expected);
        let empty = r#"{"prompt": "hi", "completion": " "}"#;
        assert_eq!(marked(&tokenizer, TrainOn::Assistant, empty).expect("the line renders").matches('[').count(), 0);
    }

    #[test]
    fn answers_without_stop_token_are_endless() {
        let line = TWO_TURNS.replace('\n', " ");
        let endless = |template: &str, train_on| {
            let tokenizer = tokenizer(template);
            let renderer = renderer(&tokenizer, train_on);
            let record = Record::parse(line.as_bytes()).expect("a record");
            renderer.render(&record).expect("the line renders").1
        };
        let silent = TEMPLATE.replace("<|endoftext|>", "");
        for train_on in [TrainOn::Assistant, TrainOn::Last, TrainOn::All] {
            assert_eq!(endless(TEMPLATE, train_on), None);
            assert_eq!(endless(&silent, train_on), Some(u32::from(b'\n')));
        }
        // The end of the first answer is not that of the last one.
        let first = TEMPLATE.replace("m.role == 'assistant' %}<|e", "loop.index == 2 %}<|e");
        assert_eq!(endless(&first, TrainOn::Assistant), Some(u32::from(b'\n')));
        let plain = Tokenizer::byte();
        let renderer = renderer(&plain, TrainOn::Assistant);
        let record = Record::Completion { prompt: "a".to_owned(), completion: "b".to_owned() };
        assert_eq!(renderer.render(&record).expect("it renders").1, Some(u32::from(b'b')));
    }

    #[test]
    fn only_prefixes_that_are_kept_are_rendered() {
        let tokenizer = Tokenizer::byte().with_end_of_text();
        let roles = ["user", "assistant"];
        let message = |idx: usize| json!({"role": roles[idx % 2], "content": "ab"});
        let messages: Vec<Value> = (0..4000).map(message).collect();
        let divided = |max_tokens, max_rendered_bytes| {
            let renderer = Renderer { max_tokens, max_rendered_bytes, ..renderer(&tokenizer, TrainOn::Assistant) };
            let mut n_renders = 0;
            let example = renderer.divided(&messages, TrainOn::Assistant, |n, begins_answer| {
                n_renders += 1;
                let [turn, reply] = [["", "u:ab\n"][n % 2], ["", "a:"][usize::from(begins_answer)]];
                Ok("u:ab\na:ab\n".repeat(n / 2) + turn + reply)
            });
            (example, n_renders)
        };
        let [(all, n_all), (some, n_some)] = [1 << 20, 100].map(|max_tokens| divided(max_tokens, 1 << 30));
        assert_eq!((n_all, n_some), (4000, 21), "the whole, and two for each answer but the last");
        let [(all, _), (some, _)] = [all, some].map(|example| example.expect("it can be divided"));
        assert_eq!((&all.ids[..100], &all.counts[..100]), (&*some.ids, &*some.counts));
        assert_eq!((all.n_cut, some.n_cut), (0, all.ids.len() - 100));
        let error = divided(1 << 20, 1 << 20).0.expect_err("too much is rendered");
        assert!(error.starts_with("has so many messages") && error.contains("\n  hint: "), "{error}");
    }

    #[test]
    fn long_texts_are_encoded_in_parts() {
        let text = "one two three\nfour 5 six, ".repeat(40);
        let bpe = Tokenizer::train_bpe(300, &text);
        let records = [text.clone(), text.replace([' ', '\n'], "")].map(Record::Text);
        for tokenizer in [bpe, Tokenizer::byte().with_end_of_text()] {
            let ids = |max_encoded_bytes| {
                let renderer = Renderer { max_encoded_bytes, ..renderer(&tokenizer, TrainOn::All) };
                records.each_ref().map(|record| renderer.render(record).expect("it can be encoded").0)
            };
            let [whole, parts] = [1 << 20, 40].map(ids);
            assert_eq!(whole[0], parts[0]);
            assert_eq!(tokenizer.decode(&whole[1].ids), tokenizer.decode(&parts[1].ids), "cuts may be anywhere");
        }
    }

    #[test]
    fn completions_and_whole_texts_count_without_template() {
        let tokenizer = Tokenizer::byte().with_end_of_text();
        for (line, expected) in [
            (r#"{"prompt": "hi ", "completion": "yes"}"#, "hi [yes<|endoftext|>]"),
            (r#"{"text": "once"}"#, "[once<|endoftext|>]"),
        ] {
            assert_eq!(marked(&tokenizer, TrainOn::Assistant, line).expect("the line renders"), expected);
        }
        let error = marked(&tokenizer, TrainOn::Assistant, &TWO_TURNS.replace('\n', " ")).expect_err("no template");
        assert!(error.starts_with("has messages, and the model has no chat template"), "{error}");
    }

    #[test]
    fn templates_that_cannot_be_divided_are_refused() {
        let line = TWO_TURNS.replace('\n', " ");
        // A thought only in the last answer, as some templates write it.
        let only_last = TEMPLATE.replace("m.role == 'assistant' %}()", "m.role == 'assistant' and loop.last %}()");
        let error = marked(&tokenizer(&only_last), TrainOn::Assistant, &line).expect_err("it changes");
        assert!(error.contains("before message 2 ") && error.contains("hint: "), "{error}");
        assert_eq!(
            marked(&tokenizer(&only_last), TrainOn::Last, &line).expect("the last answer stays"),
            "u:hi\na:yes<|endoftext|>\nu:so\na:()\n[no<|endoftext|>]\n"
        );
        assert_eq!(
            marked(&tokenizer(&only_last), TrainOn::All, &line).expect("the whole text renders"),
            "[u:hi\na:yes<|endoftext|>\nu:so\na:()\nno<|endoftext|>\n]"
        );
        let tool = r#"{"messages": [{"role": "tool", "content": "1"}, {"role": "assistant", "content": "2"}]}"#;
        let error = marked(&tokenizer(TEMPLATE), TrainOn::Assistant, tool).expect_err("it raises");
        assert!(error.contains("does not suit the chat template: ") && error.contains("no tools here"), "{error}");
        let silent = r#"{"messages": [{"role": "user", "content": "1"}]}"#;
        let error = marked(&tokenizer(TEMPLATE), TrainOn::Assistant, silent).expect_err("no answer");
        assert!(error.starts_with("has no message of the role"), "{error}");
    }
}
