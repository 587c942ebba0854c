//! Finds the question in a prompt that a chat template made.

use serde_json::Map;

use crate::tokenizer::{ChatRenderer, Message, Tokenizer};

/// The texts that a chat template puts around a question.
pub(super) struct Turn {
    /// Before the first question, without a system message.
    first: String,
    /// Between an answer and the next question.
    next: String,
    /// The common end of both.
    begin: String,
    /// Between a question and its answer.
    end: String,
}

impl Turn {
    /// Those of a tokenizer's template; `None` if it has none, or does not take a plain conversation.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let renderer = ChatRenderer::of(tokenizer)?;
        let [question, answer] = ["Which question is it?", "It is this answer."];
        let messages = [("user", question), ("assistant", answer), ("user", question)];
        let messages = messages.map(|(role, text)| Message::new(role, text));
        let render = |n: usize| renderer.render(&messages[..n], true, &Map::new()).ok();
        let (one, two) = (render(1)?, render(3)?);
        let (first, end) = one.rsplit_once(question)?;
        let (_, next) = two.rsplit_once(question)?.0.rsplit_once(answer)?;
        let pairs = first.chars().rev().zip(next.chars().rev());
        let n_common: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let begin = &next[next.len() - n_common..];
        let [first, next, begin, end] = [first, next, begin, end].map(str::to_owned);
        Some(Self { first, next, begin, end })
    }

    /// The last question of a prompt; the whole of one that the template did not make.
    pub(super) fn question<'a>(&self, prompt: &'a str) -> &'a str {
        let Some(rest) = prompt.strip_suffix(&*self.end) else { return prompt };
        let after = |mark: &str| Some(rest.rsplit_once(mark).filter(|_| !mark.is_empty())?.1);
        let first = || rest.strip_prefix(&*self.first);
        after(&self.next).or_else(first).or_else(|| after(&self.begin)).unwrap_or(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_has_no_texts_of_the_template() {
        let chatml = "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n\
                      {% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let inst = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>\
                    {% endif %}{% endfor %}";
        for template in [chatml, inst] {
            let tokenizer =
                Tokenizer::byte().with_chat_template(template, &["</s>"], "</s>").expect("it is one more token");
            let (renderer, turn) = (ChatRenderer::of(&tokenizer), Turn::of(&tokenizer).expect("it takes questions"));
            let renderer = renderer.expect("it has a template");
            let messages =
                [("user", "Is it 3?"), ("assistant", "yes"), ("user", "Why?\n")].map(|(r, t)| Message::new(r, t));
            for (n, expected) in [(1, "Is it 3?"), (3, "Why?")] {
                let prompt = renderer.render(&messages[..n], true, &Map::new()).expect("it takes them");
                assert_eq!(turn.question(&prompt).trim(), expected);
            }
            let given = [Message::new("system", "Be short."), messages[0].clone()];
            let prompt = renderer.render(&given, true, &Map::new()).expect("it takes them");
            assert!(turn.question(&prompt).ends_with("Is it 3?") && !turn.question(&prompt).contains("<|"), "{prompt}");
            assert_eq!(turn.question("Once upon a time"), "Once upon a time");
        }
    }
}
