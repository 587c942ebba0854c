//! The effect of a fine-tuning: the losses and answers of the base and of the new model, side by side.

use crate::format::{grouped, without_control};
use crate::run::{Answers, BeforeAndAfter};
use crate::view::escape::escape;
use crate::view::html::Fragment;

const STYLE: &str = include_str!("../assets/answers.css");

pub(super) fn answers(compared: &BeforeAndAfter) -> Fragment {
    let BeforeAndAfter { held_out_loss, general_loss, general_tokens, answers } = compared;
    let change = |[before, after]: [f64; 2]| {
        let verb = if after < before { "fell" } else { "rose" };
        format!("{verb} from {before:.4} to {after:.4}")
    };
    let mut body = format!("<p>The loss on held-out records {} nats per token", change(*held_out_loss));
    if let Some(general_loss) = general_loss {
        let (n, change) = (grouped(*general_tokens), change(*general_loss));
        body += &format!("; that on {n} tokens of general text, which shows what was forgotten, {change}");
    }
    body += ".</p>\n";
    if !answers.is_empty() {
        body += "<table>\n<thead><tr><th>question</th><th>expected</th><th>before</th><th>after</th></tr></thead>\n<tbody>\n";
    }
    for compared in answers {
        let Answers { expected, before, after, .. } = compared;
        let cells = [("question", compared.question()), ("expected", expected), ("before", before), ("after", after)];
        let cell = |(name, text): (&str, &str)| {
            format!("<td data-name=\"{name}\">{}</td>", escape(&without_control(text.trim())))
        };
        body += &format!("<tr>{}</tr>\n", cells.map(cell).concat());
    }
    if !answers.is_empty() {
        body += "</tbody>\n</table>\n";
    }
    Fragment { body, ..Fragment::empty("answers", &[STYLE], &[]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_escaped() {
        let text = |text: &str| text.to_owned();
        let [prompt, before] = ["<|im_start|>user\n<b>", "</td><script>x()</script>\u{1b}[31m"].map(text);
        let answers = vec![Answers { prompt, question: None, expected: text("yes"), before, after: text("yes") }];
        let compared = BeforeAndAfter { held_out_loss: [2.0, 1.5], general_loss: None, general_tokens: 0, answers };
        let html = super::answers(&compared).body;
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains('\u{1b}'), "{html}");
        assert!(html.contains("&lt;|im_start|&gt;user\n&lt;b&gt;") && !html.contains("general"), "{html}");
    }
}
