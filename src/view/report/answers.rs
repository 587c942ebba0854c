//! The effect of a fine-tuning: the losses and answers of the base and of the new model, side by side.

use crate::format::{grouped, without_control};
use crate::run::{Answers, BeforeAndAfter};
use crate::view::escape::escape;
use crate::view::html::Fragment;

const STYLE: &str = include_str!("../assets/answers.css");

pub(super) fn answers(compared: &BeforeAndAfter) -> Fragment {
    let BeforeAndAfter { held_out_loss, general_loss, general_tokens, answers } = compared;
    let losses = |about: &str, [before, after]: [f64; 2]| {
        format!("<tr><th>{about}</th><td>{before:.4}</td><td>{after:.4}</td></tr>\n")
    };
    let mut body = "<table>\n<tr><th>Loss, nats per token</th><th>before</th><th>after</th></tr>\n".to_owned();
    body += &losses("on held-out records", *held_out_loss);
    if let Some(general_loss) = general_loss {
        body += &losses(&format!("on {} tokens of general text", grouped(*general_tokens)), *general_loss);
    }
    body += "</table>\n";
    for Answers { prompt, expected, before, after } in answers {
        body += "<table>\n";
        for (name, text) in [("prompt", prompt), ("expected", expected), ("before", before), ("after", after)] {
            body += &format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(&without_control(text.trim())));
        }
        body += "</table>\n";
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
        let answers = vec![Answers { prompt, expected: text("yes"), before, after: text("yes") }];
        let compared = BeforeAndAfter { held_out_loss: [2.0, 1.5], general_loss: None, general_tokens: 0, answers };
        let html = super::answers(&compared).body;
        assert!(!html.contains("<script") && !html.contains("<b>") && !html.contains('\u{1b}'), "{html}");
        assert!(html.contains("&lt;|im_start|&gt;user\n&lt;b&gt;") && !html.contains("general"), "{html}");
    }
}
