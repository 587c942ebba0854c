//! Tokens of a record, and which of them count.
//!
//! An answer is what the chat template adds when the answer is added to the conversation before it, up to where the
//! model's reply begins (prefix rendering). This needs no marks in the template, and what the template puts before every
//! answer, such as an empty `<think>` block, does not count.

use serde_json::Value;

use super::Example;
use super::record::Record;
use crate::config::TrainOn;
use tinderbox_model::tokenizer::{ChatTemplate, ChatTemplateError, ChatTemplateSource, Tokenizer, TokenizerError};

/// Turns records into tokens.
#[derive(Debug)]
pub(super) struct Renderer<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<ChatTemplate>,
    train_on: TrainOn,
    /// The ids of added tokens, such as `<|im_end|>`.
    added: Vec<u32>,
}

impl<'a> Renderer<'a> {
    /// A renderer with the tokenizer's chat template, if it has one.
    pub(super) fn new(tokenizer: &'a Tokenizer, train_on: TrainOn) -> Result<Self, ChatTemplateError> {
        let template = ChatTemplateSource::of(tokenizer).map(ChatTemplateSource::parse).transpose()?;
        let added = tokenizer.added_tokens().into_iter().map(|(id, _)| id).collect();
        Ok(Self { tokenizer, template, train_on, added })
    }

    /// The tokens of a record; fails with the reason, which continues a sentence about its line.
    pub(super) fn render(&self, record: &Record) -> Result<Example, String> {
        match (record, &self.template) {
            (Record::Messages { messages, tools }, Some(template)) => {
                self.conversation(template, messages, tools.as_ref())
            }
            (Record::Completion { prompt, completion }, Some(template)) => {
                self.conversation(template, &Record::question_and_answer(prompt, completion), None)
            }
            (Record::Messages { .. }, None) => {
                Err("has messages, and the model has no chat template\n  hint: use records \
                 with \"prompt\" and \"completion\", or fine-tune a model for conversations"
                    .to_owned())
            }
            (Record::Completion { prompt, completion }, None) => {
                let mut example = Example::default();
                self.extend(&mut example, prompt, false)?;
                self.extend(&mut example, completion, !completion.is_empty())?;
                Ok(self.ended(example, !completion.is_empty()))
            }
            (Record::Text(text), _) => {
                let mut example = Example::default();
                self.extend(&mut example, text, true)?;
                Ok(self.ended(example, true))
            }
        }
    }

    fn conversation(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        tools: Option<&Value>,
    ) -> Result<Example, String> {
        let render = |n: usize, begins_answer: bool| {
            template.render_values(&messages[..n], tools, begins_answer).map_err(|error| {
                format!(
                    "does not suit the chat template: {error}\n  hint: the template of the model decides which roles \
                         may follow each other"
                )
            })
        };
        let is_answer = |message: &Value| message["role"] == "assistant";
        let answers: Vec<usize> = (0..messages.len()).filter(|idx| is_answer(&messages[*idx])).collect();
        let counted = match self.train_on {
            TrainOn::Assistant | TrainOn::All => &answers[..],
            TrainOn::Last => answers.last().map_or(&[][..], std::slice::from_ref),
        };
        if answers.is_empty() && self.train_on != TrainOn::All {
            return Err("has no message of the role \"assistant\"\n  hint: remove the line, or count everything with \
                        finetune.train_on = \"all\""
                .to_owned());
        }
        let whole = render(messages.len(), false)?;
        let mut example = Example::default();
        // Where the part of the text begins that has no tokens yet.
        let mut at = 0;
        for &answer in counted {
            let (before, after) = (render(answer, true)?, render(answer + 1, false)?);
            if !after.starts_with(&before) || !whole.starts_with(&after) || before.len() < at {
                return Err(format!(
                    "cannot be divided: the chat template writes what stands before message {} in another way once the \
                     message, or one after it, is there\n  hint: finetune.train_on = \"last\" needs this of the last \
                     answer alone",
                    answer + 1
                ));
            }
            self.extend(&mut example, &whole[at..before.len()], self.train_on == TrainOn::All)?;
            let has_text = messages[answer]["content"].as_str().is_none_or(|content| !content.trim().is_empty())
                || messages[answer].get("tool_calls").is_some();
            let first = example.ids.len();
            self.extend(&mut example, &whole[before.len()..after.len()], has_text)?;
            self.end_at_stop(&mut example, first);
            at = after.len();
        }
        self.extend(&mut example, &whole[at..], self.train_on == TrainOn::All)?;
        Ok(example)
    }

    /// Appends the tokens of a piece of text.
    fn extend(&self, example: &mut Example, text: &str, counts: bool) -> Result<(), String> {
        let encoded = match example.ids.is_empty() {
            true => self.tokenizer.encode_prompt(text), // with a BOS token, as when the model is asked
            false => self.tokenizer.encode(text),
        };
        let ids = encoded.map_err(|error: TokenizerError| format!("cannot be encoded: {error}"))?;
        example.ids.extend(ids);
        example.counts.resize(example.ids.len(), counts);
        Ok(())
    }

    /// Of an answer from `first` on, what follows the last added token does not count: the model has stopped there.
    fn end_at_stop(&self, example: &mut Example, first: usize) {
        if self.train_on == TrainOn::All {
            return;
        }
        let is_stop = |id: &u32| self.added.contains(id);
        if let Some(stop) = example.ids[first..].iter().rposition(is_stop) {
            example.counts[first + stop + 1..].fill(false);
        }
    }

    /// Appends the end-of-text token, if there is one.
    fn ended(&self, mut example: Example, counts: bool) -> Example {
        example.ids.extend(self.tokenizer.end_of_text());
        example.counts.resize(example.ids.len(), counts);
        example
    }
}
