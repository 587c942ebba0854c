//! Special tokens of a model in the texts of records, which the chat template would write once more.

use super::record::Record;
use tinderbox_model::tokenizer::Tokenizer;

/// The special tokens that a chat template writes, and those at the ends of texts.
#[derive(Debug, Default)]
pub(super) struct TemplateTokens(Vec<(u32, String)>);

impl TemplateTokens {
    /// Those of a tokenizer; none without a chat template, where nothing is written.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let Some(template) = tokenizer.chat_template() else { return Self::default() };
        let special: Vec<u32> = tokenizer.special_tokens().collect();
        let ends = [tokenizer.bos_token(), tokenizer.end_of_text()];
        let is_written = |(id, token): &(u32, String)| {
            special.contains(id) && (ends.contains(&Some(*id)) || template.contains(&**token))
        };
        Self(tokenizer.added_tokens().into_iter().filter(is_written).collect())
    }

    /// The first of them that a text of a conversation holds.
    pub(super) fn in_record(&self, record: &Record) -> Option<u32> {
        let find = |text: &str| self.0.iter().find(|(_, token)| text.contains(&**token)).map(|(id, _)| *id);
        match record {
            Record::Text(_) => None,
            Record::Completion { prompt, completion } => find(prompt).or_else(|| find(completion)),
            Record::Messages(conversation) => {
                conversation.messages.iter().find_map(|message| message["content"].as_str().and_then(find))
            }
            Record::Preference(answers) => answers.iter().find_map(|answer| self.in_record(answer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_tokens_of_the_template_are_found() {
        let plain = Tokenizer::byte().with_end_of_text();
        let config = r#"{"chat_template": "{{ messages[0].content }}<|endoftext|>", "eos_token": "<|endoftext|>"}"#;
        let chatting = plain.clone().with_config(config.to_owned(), "c.json".as_ref()).expect("a config");
        let record = |prompt: &str, completion: &str| Record::Completion {
            prompt: prompt.to_owned(),
            completion: completion.to_owned(),
        };
        let end = plain.end_of_text();
        let written = record("a", "b<|endoftext|>");
        for (tokenizer, record, expected) in [
            (&chatting, written.clone(), end),
            (&chatting, Record::Preference([record("a", "b"), written.clone()].map(Box::new)), end),
            (&chatting, record("a", "<|end|>"), None),
            (&chatting, Record::Text("a<|endoftext|>".to_owned()), None),
            (&plain, written, None),
        ] {
            assert_eq!(TemplateTokens::of(tokenizer).in_record(&record), expected, "{record:?}");
        }
    }
}
