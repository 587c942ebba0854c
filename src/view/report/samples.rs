//! The samples that the model generated at its evaluations.

use crate::format::{grouped, without_control};
use crate::run::{Curves, Sample};
use crate::view::escape::escape;
use crate::view::html::Fragment;
use crate::view::svg::plot::spread;

const STYLE: &str = include_str!("../assets/samples.css");
const SCRIPT: &str = include_str!("../assets/samples.js");

const MOST_SAMPLES: usize = 50;

/// The samples, with the estimated loss of the same weights; `None` if there are no samples.
pub(super) fn samples(samples: &[Sample], curves: &Curves) -> Option<Fragment> {
    if samples.is_empty() {
        return None;
    }
    let losses = curves.column("val_loss_estimate");
    let kept = spread(samples.len(), MOST_SAMPLES);
    let last = kept.len() - 1;
    let mut body = String::new();
    if kept.len() < samples.len() {
        let (kept, all) = (kept.len(), grouped(samples.len() as u64));
        body += &format!("<p>{kept} of {all} samples, at even distances.</p>\n");
    }
    body += &format!(
        "<div class=\"scrubber\" hidden><span>earlier</span><input type=\"range\" min=\"0\" max=\"{last}\" \
         value=\"{last}\" aria-label=\"Which sample\"><span>later</span></div>\n<ol>\n"
    );
    for Sample { step, text } in kept.into_iter().map(|at| &samples[at]) {
        let loss = losses.iter().find(|(of, _)| of == step);
        let loss = loss.map(|(_, loss)| format!("<small>validation loss ~{loss:.4}</small>"));
        // HTML drops a line break at the start of `pre`, and the text may begin with one.
        body += &format!(
            "<li><h3>Step {}{}</h3>\n<pre tabindex=\"0\">\n{}</pre></li>\n",
            grouped(*step),
            loss.unwrap_or_default(),
            shown(text)
        );
    }
    body += "</ol>";
    Some(Fragment { body, ..Fragment::empty("samples", &[STYLE], &[SCRIPT]) })
}

/// The latest sample below a heading; `None` if there are none.
pub(super) fn newest(heading: &str, samples: &[Sample]) -> Option<String> {
    let Sample { step, text } = samples.last()?;
    let (heading, step, text) = (escape(heading), grouped(*step), shown(text.trim()));
    Some(format!(
        "<aside>\n<h3>{heading} <small>step {step}</small></h3>\n<pre tabindex=\"0\">{text}</pre>\n</aside>\n"
    ))
}

/// The text as HTML, without control characters: an untrained model may generate anything.
fn shown(text: &str) -> String {
    escape(&without_control(&text.replace("\r\n", "\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_samples_are_thinned() {
        let sample = |step| Sample { step, text: format!("text {step}.") };
        let many: Vec<Sample> = (1..=300).map(sample).collect();
        let html = samples(&many, &Curves::default()).expect("there are samples").body;
        assert_eq!(html.matches("<li>").count(), MOST_SAMPLES);
        assert!(html.contains("text 1.<") && html.contains("text 300.<"));
        assert!(html.contains("50 of 300 samples"));
        assert_eq!(samples(&[], &Curves::default()), None);
    }
}
