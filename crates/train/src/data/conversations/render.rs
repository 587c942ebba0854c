//! Tokens of a record, and which of them count.
//!
//! The tokens of an answer are those that the chat template adds for it after the start of the model's reply (prefix
//! rendering). This needs no marks in the template, and text that starts every reply does not count. A conversation is one
//! example as long as each rendered text begins with the one before, and else several, so that each answer follows what
//! the model is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::Example;
use super::record::{Conversation, Record};
use crate::config::{GenerateConfig, TrainOn};
use tinderbox_model::tokenizer::{ChatRenderer, REASONING, RenderError, Tokenizer, TokenizerError};

/// The most text of the prefixes of a conversation that is rendered besides the whole: each answer needs two of them.
const MAX_RENDERED_BYTES: usize = 1 << 28;

/// The most answers of a conversation, and its most bytes, whose prefixes are rendered at once.
const MAX_ANSWERS_AT_ONCE: usize = 4;
const MAX_BYTES_AT_ONCE: usize = 1 << 16;

/// The most text that is encoded at once. A cut where the tokenizer has no safe one is far behind what is kept.
const MAX_ENCODED_BYTES: usize = 1 << 20;

/// An example, and the token that ends its last answer.
pub(super) type Rendered = (Example, Option<u32>);

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
    /// The texts of those of them that are added tokens.
    stops: Vec<String>,
    /// The tokens that are kept of a record.
    max_tokens: usize,
    max_encoded_bytes: usize,
    max_rendered_bytes: usize,
}

/// The refusal of a conversation in which an answer cannot be found.
fn cannot_be_divided(answer: usize) -> String {
    format!(
        "cannot be divided: the chat template writes what stands before message {} in another way once the message is \
         there\n  hint: finetune.train_on = \"all\" does not need to find answers",
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

/// The indices of the answers that count.
fn counted_answers(conversation: &Conversation, train_on: TrainOn) -> Vec<usize> {
    let Conversation { messages, uncounted, .. } = conversation;
    let mut answers: Vec<usize> = (0..messages.len()).filter(|idx| messages[*idx]["role"] == "assistant").collect();
    match train_on {
        TrainOn::All => answers.clear(),
        TrainOn::Last => drop(answers.drain(..answers.len().saturating_sub(1))),
        TrainOn::Assistant => {}
    }
    answers.retain(|idx| !uncounted.contains(idx));
    answers
}

/// The prefixes of a conversation that dividing it begins with, to be rendered at once: the whole, and if it is short those
/// before and after the first answers.
fn first_prefixes(conversation: &Conversation, train_on: TrainOn) -> Vec<(usize, bool)> {
    let messages = &conversation.messages;
    let n_bytes: usize = messages.iter().map(|message| message["content"].as_str().map_or(0, str::len)).sum();
    let mut answers = counted_answers(conversation, train_on);
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
        let ends = generate.ends(tokenizer);
        let added: Vec<(u32, String)> = tokenizer.added_tokens();
        let stops = added.iter().filter(|(id, _)| ends.contains(id)).map(|(_, text)| text.clone()).collect();
        let added = added.into_iter().map(|(id, _)| id).collect();
        Ok(Self {
            tokenizer,
            template,
            train_on,
            added,
            ends,
            stops,
            max_tokens,
            max_encoded_bytes: MAX_ENCODED_BYTES,
            max_rendered_bytes: MAX_RENDERED_BYTES,
        })
    }

    /// The tokens of a record, those of a conversation in one or more examples, each with the token that ends its last
    /// answer if the model does not stop at it; fails with the reason, which continues a sentence about its line.
    pub(super) fn render(&self, record: &Record) -> Result<Vec<Rendered>, String> {
        let examples = self.render_for(record, self.train_on)?;
        Ok(examples.into_iter().map(|(example, end)| (example, end.filter(|end| !self.ends.contains(end)))).collect())
    }

    /// The tokens of a record, and the ones that end the last answers.
    fn render_for(&self, record: &Record, train_on: TrainOn) -> Result<Vec<Rendered>, String> {
        match (record, &self.template) {
            (Record::Preference(answers), _) => {
                let [chosen, rejected] = answers.each_ref().map(|answer| -> Result<Rendered, String> {
                    Ok(self.render_for(answer, TrainOn::Last)?.pop().expect("the last answer is in an example"))
                });
                let ((chosen, end), (rejected, _)) = (chosen?, rejected?);
                Ok(vec![(Example { rejected: Some(Box::new(rejected)), ..chosen }, end)])
            }
            (Record::Messages(conversation), Some(template)) => self.conversation(template, conversation, train_on),
            (Record::Completion { prompt, completion }, Some(template)) => {
                self.conversation(template, &Conversation::question_and_answer(prompt, completion), train_on)
            }
            (Record::Messages(_), None) => Err("has messages, and the model has no chat template\n  hint: `finetune \
                 --template chatml` gives it one; records with \"prompt\" and \"completion\" need none"
                .to_owned()),
            (Record::Completion { prompt, completion }, None) => {
                let mut draft = Draft::new(self);
                draft.add_text(prompt, false)?;
                Ok(vec![draft.add_ended(completion, !completion.is_empty())?])
            }
            (Record::Text(text), _) => Ok(vec![Draft::new(self).add_ended(text, true)?]),
        }
    }

    fn conversation(
        &self,
        template: &ChatRenderer,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Vec<Rendered>, String> {
        let Conversation { messages, variables, uncounted } = conversation;
        if let Some(idx) = uncounted.first().filter(|_| train_on == TrainOn::All) {
            return Err(format!(
                "has a message {} that does not count, and finetune.train_on = \"all\" counts every token\n  hint: leave out \
                 its \"weight\" or \"train\", or finetune.train_on",
                idx + 1
            ));
        }
        let prefixes = first_prefixes(conversation, train_on);
        let rendered = template.render_prefixes(messages, prefixes.clone(), variables).map_err(not_rendered)?;
        let mut rendered: BTreeMap<_, _> = prefixes.into_iter().zip(rendered).collect();
        self.divided(conversation, train_on, |n, begins_answer| {
            let known = rendered.remove(&(n, begins_answer));
            known.unwrap_or_else(|| template.render(&messages[..n], begins_answer, variables)).map_err(not_rendered)
        })
    }

    /// The tokens of a conversation, an answer in the same example as the one before if the text up to its reply begins
    /// with the text up to that one. `render` has the text of the first messages, and of the start of a reply to them: it
    /// is called once for the whole and at most twice for each answer up to the longest length, and once more.
    fn divided(
        &self,
        conversation: &Conversation,
        train_on: TrainOn,
        mut render: impl FnMut(usize, bool) -> Result<String, String>,
    ) -> Result<Vec<Rendered>, String> {
        let messages = &conversation.messages;
        let whole = render(messages.len(), false)?;
        let mut draft = Draft::new(self);
        if train_on == TrainOn::All {
            draft.add_text(&whole, true)?;
            draft.end_answer();
            return Ok(vec![draft.finished()]);
        }
        if messages.iter().all(|message| message["role"] != "assistant") {
            return Err("has no message of the role \"assistant\"\n  hint: remove the line, or count everything with \
                        finetune.train_on = \"all\""
                .to_owned());
        }
        let mut n_rendered = 0;
        let mut prefix = |n: usize, begins_answer: bool| -> Result<String, String> {
            if n == messages.len() {
                return Ok(whole.clone());
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
                false => Ok(text),
            }
        };
        let mut examples = Vec::new();
        let mut text = String::new(); // that has tokens in `draft`
        let mut has_room = true;
        for answer in counted_answers(conversation, train_on) {
            let before = prefix(answer, true)?;
            let goes_on = before.starts_with(&text);
            if draft.is_full() && (goes_on || !has_room) {
                break; // the rest is cut off
            }
            let after = prefix(answer + 1, false)?;
            let asked = match after.strip_prefix(&*before) {
                Some(completion) => Some((before, completion.to_owned())),
                None => self.asked(&before, &after, messages, answer),
            };
            let (before, completion) = asked.ok_or_else(|| cannot_be_divided(answer))?;
            if !(goes_on && before.starts_with(&text)) {
                examples.push(std::mem::replace(&mut draft, Draft::new(self)).finished());
                text.clear();
            }
            draft.add_after_answer(&before[text.len()..])?;
            has_room = !draft.is_full();
            let content = messages[answer]["content"].as_str();
            let has_text = content.is_none_or(|content| !content.trim().is_empty())
                || messages[answer].get("tool_calls").is_some();
            draft.add_answer(&completion, content.unwrap_or_default(), has_text)?;
            text = before + &completion;
        }
        if let Some(rest) = whole.strip_prefix(&*text) {
            draft.add_after_answer(rest)?;
        }
        examples.push(draft.finished());
        Ok(examples)
    }

    /// A prompt and an answer to it, where the text `after` an answer does not begin with the text `before` it, which
    /// ends with the start of the reply: most templates then start a thought that they leave out of the answer. `None` if
    /// the texts differ earlier.
    fn asked(&self, before: &str, after: &str, messages: &[Value], answer: usize) -> Option<(String, String)> {
        let n_common: usize =
            before.chars().zip(after.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let tag = before[..n_common].rfind('<').filter(|tag| !before[*tag..n_common].contains('>'));
        let (same, start) = before.split_at(tag.unwrap_or(n_common));
        let last = messages.get(answer.checked_sub(1)?)?["content"].as_str()?.trim();
        if !same.contains(last) || self.stops.iter().any(|stop| start.contains(&**stop)) {
            return None; // more than the start of a reply
        }
        let rest = &after[same.len()..];
        let content = messages[answer]["content"].as_str().unwrap_or_default();
        let follows = |completion: &str| Some((before.to_owned(), completion.to_owned()));
        match start.trim_end() {
            "" => follows(rest),
            "<think>" if rest.starts_with("</think>") => follows(rest),
            "<think>" => {
                let reasoning = REASONING.iter().find_map(|name| messages[answer][*name].as_str());
                let (thought, space) = match (content.rsplit_once("</think>"), reasoning) {
                    (Some((thought, said)), _) => {
                        let thought = thought.trim_start();
                        let space = &said[..said.len() - said.trim_start().len()];
                        (thought.strip_prefix("<think>").unwrap_or(thought).to_owned(), space)
                    }
                    (None, Some(reasoning)) => (format!("\n{}\n", reasoning.trim()), "\n\n"),
                    (None, None) => ("\n\n".to_owned(), "\n\n"),
                };
                let thought = thought.strip_prefix(&start["<think>".len()..]).unwrap_or(&thought);
                let space = if rest.starts_with(char::is_whitespace) { "" } else { space };
                follows(&format!("{thought}</think>{space}{rest}"))
            }
            start if start.ends_with("</think>") && rest.starts_with("</think>") => follows(&rest["</think>".len()..]),
            _ if rest.trim_start().starts_with(content.trim()) => follows(rest),
            _ => Some((same.to_owned(), rest.to_owned())),
        }
    }
}

/// A record that is being made. Tokens beyond the longest length are only counted.
struct Draft<'a> {
    renderer: &'a Renderer<'a>,
    example: Example,
    /// The last token of the text that was added last.
    last: Option<u32>,
    /// The last added token of this text, such as `<|im_end|>`, and its position. In an answer, none is looked for behind
    /// the one that ends it.
    stop: Option<(usize, u32)>,
    /// The tokens up to this end at which the model stops: the others stand in the answer.
    more_stops: usize,
    /// The token that ends the last answer.
    end: Option<u32>,
    /// Whether the text that was added last is an answer at whose end the model does not stop.
    is_endless: bool,
}

impl<'a> Draft<'a> {
    fn new(renderer: &'a Renderer<'a>) -> Self {
        let example = Example::default();
        Self { renderer, example, last: None, stop: None, more_stops: usize::MAX, end: None, is_endless: false }
    }

    fn is_full(&self) -> bool {
        self.example.ids.len() >= self.renderer.max_tokens
    }

    fn finished(self) -> Rendered {
        (self.example, self.end)
    }

    fn add_text(&mut self, text: &str, counts: bool) -> Result<(), String> {
        self.add(text, counts, usize::MAX)
    }

    /// Adds the tokens of a text, a part of a long one at a time: the tokenizer needs a hundred bytes for each token.
    fn add(&mut self, mut text: &str, counts: bool, more_stops: usize) -> Result<(), String> {
        let Renderer { tokenizer, max_encoded_bytes, .. } = self.renderer;
        (self.last, self.stop, self.more_stops, self.is_endless) = (None, None, more_stops, false);
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
        for (at, id) in (start..).zip(ids).filter(|(_, id)| self.renderer.added.contains(*id)) {
            if self.more_stops == 0 {
                break;
            }
            self.stop = Some((at, *id));
            self.more_stops -= usize::from(self.renderer.ends.contains(id));
        }
        self.last = ids.last().copied().or(self.last);
    }

    /// Adds a text and the end-of-text token, if there is one.
    fn add_ended(mut self, text: &str, counts: bool) -> Result<Rendered, String> {
        self.add_text(text, counts)?;
        let end = self.renderer.tokenizer.end_of_text().filter(|end| self.last != Some(*end)); // the text may have it
        self.add_ids(end.as_slice(), counts);
        self.end_answer();
        Ok(self.finished())
    }

    /// Adds text that no answer is in. If it begins with a token at which the model stops, as in GLM's templates, that ends
    /// an answer without one.
    fn add_after_answer(&mut self, text: &str) -> Result<(), String> {
        let (at, is_endless) = (self.example.ids.len(), self.is_endless);
        self.add_text(text, false)?;
        let first = self.example.ids.get(at).copied().filter(|id| is_endless && self.renderer.ends.contains(id));
        if first.is_some() {
            self.end = first;
            self.example.counts[at] = true;
        }
        Ok(())
    }

    /// Adds an answer with this content. Text behind the token at which the model stops does not count, nor behind the last
    /// added token if it stops at none.
    fn add_answer(&mut self, text: &str, content: &str, counts: bool) -> Result<(), String> {
        let said = content.rsplit("</think>").next().unwrap_or_default().trim(); // a thought may be written otherwise
        let behind = text.find(said).filter(|_| !said.is_empty()).map_or(0, |at| at + said.len());
        let n_said: usize = self.renderer.stops.iter().map(|stop| text[..behind].matches(&**stop).count()).sum();
        self.add(text, counts, n_said.saturating_add(1))?;
        if let Some(rest) = self.stop.and_then(|(at, _)| self.example.counts.get_mut(at + 1..)) {
            rest.fill(false);
        }
        if counts {
            self.end_answer();
            self.is_endless = self.end.is_some_and(|end| !self.renderer.ends.contains(&end));
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

    use super::super::fields::Fields;
    use super::*;
    use crate::config::FinetuneConfig;

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

    fn parsed(tokenizer: &Tokenizer, line: &str) -> Result<Record, String> {
        Fields::new(&FinetuneConfig::default(), "text", tokenizer.chat_template()).record(line.as_bytes())
    }

    /// The texts of the examples of a record, with what counts in brackets.
    fn marked(tokenizer: &Tokenizer, train_on: TrainOn, line: &str) -> Result<String, String> {
        let record = parsed(tokenizer, line)?;
        let marked = |(Example { ids, counts, .. }, _): Rendered| {
            assert_eq!(ids.len(), counts.len());
            let mut text = String::new();
            let mut was_counted = false;
            for (id, counted) in ids.iter().zip(counts) {
                text += if counted && !was_counted { "[" } else { "" };
                text += if was_counted && !counted { "]" } else { "" };
                text += &tokenizer.decode(&[*id]);
                was_counted = counted;
            }
            text + if was_counted { "]" } else { "" }
        };
        let examples = renderer(tokenizer, train_on).render(&record)?;
        Ok(examples.into_iter().map(marked).collect::<Vec<_>>().join("|"))
    }

    /// The only example of a record.
    fn only(examples: Result<Vec<Rendered>, String>) -> Rendered {
        let [example]: [Rendered; 1] = examples.expect("it renders").try_into().expect("it is one example");
        example
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
        let weightless = |answer: &str| line.replace(answer, &format!("{answer}, \"weight\": 0"));
        let expected = "u:hi\na:()\nyes<|endoftext|>\nu:so\na:()\n[no<|endoftext|>]\n";
        assert_eq!(marked(&tokenizer, TrainOn::Assistant, &weightless("\"yes\"")).expect("it renders"), expected);
        assert!(
            !marked(&tokenizer, TrainOn::Last, &weightless("\"no\"")).expect("it renders").contains('['),
            "the last has none"
        );
        let error = marked(&tokenizer, TrainOn::All, &weightless("\"yes\"")).expect_err("all count, but one does not");
        assert!(error.starts_with("has a message 2 that does not count") && error.contains("\n  hint: "), "{error}");
        let empty = r#"{"prompt": "hi", "completion": " "}"#;
        assert_eq!(marked(&tokenizer, TrainOn::Assistant, empty).expect("the line renders").matches('[').count(), 0);
    }

    #[test]
    fn tools_and_calls_keep_their_order() {
        let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\
            {% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}\
            {{ '\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";
        let line = r#"{"messages": [{"role": "user", "content": "seat?"}, {"role": "assistant", "tool_calls": [{"function":
            {"name": "book", "arguments": {"title": "Hamlet", "row": 4}}}, {"name": "now"}]}], "tools":
            "[{\"name\": \"book\", \"parameters\": {\"title\": {}, \"row\": {}}}]"}"#;
        let expected = "[{\"type\": \"function\", \"function\": {\"name\": \"book\", \"parameters\": {\"title\": {}, \
                        \"row\": {}}}}]u:seat?\na:[book({\"title\": \"Hamlet\", \"row\": 4})now({})\n]";
        assert_eq!(marked(&tokenizer(template), TrainOn::Assistant, line).expect("it renders"), expected);
    }

    #[test]
    fn answers_without_stop_token_are_endless() {
        let line = TWO_TURNS.replace('\n', " ");
        let endless = |template: &str, train_on| {
            let tokenizer = tokenizer(template);
            let renderer = renderer(&tokenizer, train_on);
            let record = parsed(&tokenizer, &line).expect("a record");
            only(renderer.render(&record)).1
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
        assert_eq!(only(renderer.render(&record)).1, Some(u32::from(b'b')));
    }

    #[test]
    fn only_prefixes_that_are_kept_are_rendered() {
        let tokenizer = Tokenizer::byte().with_end_of_text();
        let roles = ["user", "assistant"];
        let message = |idx: usize| json!({"role": roles[idx % 2], "content": "ab"});
        let messages: Vec<Value> = (0..4000).map(message).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        let divided = |max_tokens, max_rendered_bytes| {
            let renderer = Renderer { max_tokens, max_rendered_bytes, ..renderer(&tokenizer, TrainOn::Assistant) };
            let mut n_renders = 0;
            let example = renderer.divided(&conversation, TrainOn::Assistant, |n, begins_answer| {
                n_renders += 1;
                let [turn, reply] = [["", "u:ab\n"][n % 2], ["", "a:"][usize::from(begins_answer)]];
                Ok("u:ab\na:ab\n".repeat(n / 2) + turn + reply)
            });
            (example, n_renders)
        };
        let [(all, n_all), (some, n_some)] = [1 << 20, 100].map(|max_tokens| divided(max_tokens, 1 << 30));
        assert_eq!(
            (n_all, n_some),
            (4000, 22),
            "the whole, two for each answer but the last, and the first that is cut"
        );
        let [(all, _), (some, _)] = [all, some].map(only);
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
                records.each_ref().map(|record| only(renderer.render(record)).0)
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
            (r#"{"text": "once<|endoftext|>"}"#, "[once<|endoftext|>]"),
            (r#"{"prompt": "hi ", "completion": "yes<|endoftext|>"}"#, "hi [yes<|endoftext|>]"),
        ] {
            assert_eq!(marked(&tokenizer, TrainOn::Assistant, line).expect("the line renders"), expected);
        }
        let error = marked(&tokenizer, TrainOn::Assistant, &TWO_TURNS.replace('\n', " ")).expect_err("no template");
        assert!(error.starts_with("has messages, and the model has no chat template"), "{error}");
    }

    /// Turns of which each template writes earlier ones otherwise than later ones.
    #[test]
    fn answers_follow_what_the_model_is_asked() {
        let begin = "{% for m in messages %}{{ m.role[0] }}:";
        let end = "\n{% endfor %}{% if add_generation_prompt %}a:";
        let thinks = "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}\
            <|end|>{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}a:<think>\n{% endif %}";
        let user = |text: &str| json!({"role": "user", "content": text});
        let answer = |text: &str| json!({"role": "assistant", "content": text});
        let plain = json!([user("hi"), answer("yes"), user("so"), answer("no")]);
        let thought = json!([user("hi"), answer("<think>\nhm\n</think>\n\nyes"), user("so"), answer("no")]);
        let named = json!([user("hi"), answer("the <|end|>"), user("so"), answer("")]);
        for (template, messages, expected) in [
            // Qwen3: an empty thought in the last answer alone.
            (
                format!(
                    "{begin}{{% if m.role == 'assistant' and loop.last %}}()\n{{% endif %}}{{{{ m.content }}}}<|end|>{end}{{% endif %}}"
                ),
                &plain,
                "u:hi<|end|>\na:[()\nyes<|end|>]\n|u:hi<|end|>\na:yes<|end|>\nu:so<|end|>\na:[()\nno<|end|>]\n",
            ),
            // Phi-3: a token behind all turns, at which the model stops, too.
            (
                format!("{begin}{{{{ m.content }}}}<|end|>{end}{{% else %}}<|endoftext|>{{% endif %}}"),
                &plain,
                "u:hi<|end|>\na:[yes<|end|>]\n<|endoftext|>|u:hi<|end|>\na:yes<|end|>\nu:so<|end|>\na:[no<|end|>]\n<|endoftext|>",
            ),
            // An end within an answer does not end it, and an empty answer counts nowhere.
            (
                format!("{begin}{{{{ m.content }}}}<|end|>{end}{{% else %}}<|endoftext|>{{% endif %}}"),
                &named,
                "u:hi<|end|>\na:[the <|end|><|end|>]\n<|endoftext|>|u:hi<|end|>\na:the <|end|><|end|>\nu:so<|end|>\na:<|end|>\n<|endoftext|>",
            ),
            // R1: a reply starts with a thought, which earlier turns do not have.
            (
                thinks.to_owned(),
                &plain,
                "u:hi\na:<think>\n[\n</think>\n\nyes<|end|>]\n|u:hi\na:yes<|end|>\nu:so\na:<think>\n[\n</think>\n\nno<|end|>]\n",
            ),
            (
                thinks.to_owned(),
                &thought,
                "u:hi\na:<think>\n[hm\n</think>\n\nyes<|end|>]\n|u:hi\na:\n\nyes<|end|>\nu:so\na:<think>\n[\n</think>\n\nno<|end|>]\n",
            ),
            // GLM: the next turn ends an answer, and nothing the last.
            (
                "{% for m in messages %}{{ '<|end|>' if m.role == 'user' else 'a:' }}{{ m.content }}{% endfor %}\
                 {% if add_generation_prompt %}a:{% endif %}"
                    .to_owned(),
                &plain,
                "<|end|>hia:[yes<|end|>]soa:[no]",
            ),
            // Thoughts that a reply starts with and an answer ends at once, or that it ends at once.
            (
                format!(
                    "{begin}{{{{ '</think>' if m.role == 'assistant' }}}}{{{{ m.content }}}}<|end|>{end}<think>\n{{% endif %}}"
                ),
                &plain,
                "u:hi<|end|>\na:<think>\n[</think>yes<|end|>]\n|u:hi<|end|>\na:</think>yes<|end|>\nu:so<|end|>\na:<think>\n[</think>no<|end|>]\n",
            ),
            (
                format!("{begin}{{{{ m.content }}}}<|end|>{end}<x></x>{{% endif %}}"),
                &plain,
                "u:hi<|end|>\na:<x></x>[yes<|end|>]\n|u:hi<|end|>\na:yes<|end|>\nu:so<|end|>\na:<x></x>[no<|end|>]\n",
            ),
        ] {
            let tokenizer = Tokenizer::byte().with_end_of_text();
            let tokenizer =
                tokenizer.with_chat_template(&template, &["<|end|>"], "<|end|>").expect("it has a template");
            let line = json!({"messages": messages}).to_string();
            assert_eq!(marked(&tokenizer, TrainOn::Assistant, &line).expect("it renders"), expected, "{template}");
            let last = marked(&tokenizer, TrainOn::Last, &line).expect("it renders");
            assert!(expected.ends_with(&last) || !expected.contains("\n|"), "{template}: {last}");
        }
    }

    #[test]
    fn conversations_that_suit_no_template_are_refused() {
        // The question changes once it is answered.
        let changes = "{{ messages | length }}{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}";
        let line = TWO_TURNS.replace('\n', " ");
        let error = marked(&tokenizer(changes), TrainOn::Assistant, &line).expect_err("it changes");
        assert!(error.contains("before message 2 ") && error.contains("hint: "), "{error}");
        assert_eq!(
            marked(&tokenizer(changes), TrainOn::All, &line).expect("the whole text renders"),
            "[4hi<|endoftext|>yes<|endoftext|>so<|endoftext|>no<|endoftext|>]"
        );
        let tool = r#"{"messages": [{"role": "tool", "content": "1"}, {"role": "assistant", "content": "2"}]}"#;
        let error = marked(&tokenizer(TEMPLATE), TrainOn::Assistant, tool).expect_err("it raises");
        assert!(error.contains("does not suit the chat template: ") && error.contains("no tools here"), "{error}");
        let silent = r#"{"messages": [{"role": "user", "content": "1"}]}"#;
        let error = marked(&tokenizer(TEMPLATE), TrainOn::Assistant, silent).expect_err("no answer");
        assert!(error.starts_with("has no message of the role"), "{error}");
    }
}
