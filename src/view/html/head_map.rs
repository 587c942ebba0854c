//! A map of layers and heads, coloured by the main behaviour of each head.

use serde_json::json;

use crate::format::grouped;
use crate::inspect::{HeadEvidence, HeadKind, HeadScores, ScoredHeads};
use crate::view::html::head_history::{SCORES, score};
use crate::view::kinds::{because, lead, token};
use crate::view::{Fragment, escape};

const STYLE: &str = include_str!("../assets/heads.css");
const SCRIPT: &str = include_str!("../assets/heads.js");

/// The number of heads per layer from which a cell has room for an abbreviation only.
const MANY_HEADS: usize = 7;

/// Every kind, in legend order, with an abbreviation and what its number does not say.
const KINDS: [(HeadKind, &str, &str); 9] = [
    (HeadKind::PreviousToken, "prev", ""),
    (HeadKind::Local, "local", ""),
    (HeadKind::Diagonal, "self", ""),
    (HeadKind::FirstToken, "first", "Often a head that has nothing to do here."),
    (HeadKind::DuplicateToken, "same", ""),
    (HeadKind::Induction, "ind", ""),
    (HeadKind::Focused, "foc", "Looks sharply, at no place that has a name."),
    (HeadKind::Uniform, "uni", "Looks at all tokens equally."),
    (HeadKind::Mixed, "mix", ""),
];

/// The head map of the weights after `step`, and what each head looks at most, `[L][H]`.
pub(crate) fn head_map(step: u64, heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>]) -> Fragment {
    let n_heads = heads.scores.first().map_or(0, Vec::len);
    let is_many = n_heads >= MANY_HEADS;
    let (table_class, prefix) = if is_many { (" class=\"many\"", "") } else { ("", "head ") };
    let headings = (0..n_heads).map(|head| format!("<th scope=\"col\">{prefix}{head}</th>")).collect::<String>();
    let mut rows = String::new();
    for (layer, of_layer) in heads.scores.iter().enumerate() {
        rows += &format!("<tr><th scope=\"row\">layer {layer}</th>");
        for (head, scores) in of_layer.iter().enumerate() {
            let kind = scores.kind();
            let (name, class) = (kind.to_string(), class(kind));
            let most = lead(scores, &heads.even, evidence.get(layer).and_then(|layer| layer.get(head)));
            let most = escape(&most.map(|it| it.short()).unwrap_or_default());
            let (label, spoken) = match is_many {
                true => (describe(kind)[0].to_owned(), format!("{}, {name}", describe(kind)[0])),
                false => (format!("{name} <small>{most}</small>"), format!("{name} {most}")),
            };
            rows += &format!(
                "<td><button type=\"button\" class=\"cell {class}\" data-head=\"{layer}.{head}\" title=\"{}\" \
                 aria-label=\"head {layer}.{head}: {spoken}\">{label}</button></td>",
                summary(scores)
            );
        }
        rows += "</tr>\n";
    }
    let mut kinds = String::new();
    for (kind, ..) in KINDS {
        let n = heads.scores.iter().flatten().filter(|scores| scores.kind() == kind).count();
        if n > 0 {
            kinds += &format!("<li><i class=\"{}\"></i>{kind}: {n}</li>\n", class(kind));
        }
    }
    let body = format!(
        "<p>What each head of the best checkpoint, step {}, mostly does with {} windows of {} tokens of the validation \
         split.</p>\n<div class=\"both\">\n<div>\n<div class=\"scrolls\">\n<table{table_class}>\n\
         <thead><tr><td></td>{headings}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n\
         <ul class=\"kinds\">\n{kinds}</ul>\n</div>\n<div class=\"detail\" aria-live=\"polite\"></div>\n</div>",
        grouped(step),
        heads.n_windows,
        heads.window_tokens,
    );
    Fragment { body, data: Some(data(heads, evidence).to_string()), ..Fragment::empty("heads", &[STYLE], &[SCRIPT]) }
}

/// `{"names", "even": [..], "heads": [L * H]}`.
fn data(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>]) -> serde_json::Value {
    let values = |scores: &HeadScores| SCORES.map(|(key, _)| score(scores, key));
    let of_head = |(scores, evidence): (&HeadScores, Option<&HeadEvidence>)| {
        let kind = scores.kind();
        let tokens = evidence.into_iter().flat_map(|it| &it.tokens).map(|seen| token(seen).short());
        json!({
            "kind": kind.to_string(), "meaning": describe(kind)[1], "scores": values(scores),
            "because": because(scores, &heads.even, evidence), "tokens": tokens.collect::<Vec<_>>(),
            "snippets": evidence.map(|it| &it.snippets),
        })
    };
    let evidence = evidence.iter().flatten().map(Some).chain(std::iter::repeat(None));
    let of_heads: Vec<_> = heads.scores.iter().flatten().zip(evidence).map(of_head).collect();
    json!({"names": SCORES.map(|(_, name)| name), "even": values(&heads.even), "heads": of_heads})
}

/// All scores on one line, for readers without scripts.
fn summary(scores: &HeadScores) -> String {
    let shown = |(key, name)| score(scores, key).map(|score| format!("{name} {score:.2}"));
    SCORES.into_iter().filter_map(shown).collect::<Vec<_>>().join(", ")
}

fn class(kind: HeadKind) -> String {
    kind.to_string().replace(' ', "-")
}

/// The abbreviation and the sentence of a kind.
fn describe(kind: HeadKind) -> [&'static str; 2] {
    let known = KINDS.iter().find(|known| known.0 == kind);
    known.map(|(_, abbreviation, sentence)| [*abbreviation, *sentence]).expect("every kind is listed")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_colour_and_a_place_in_the_legend() {
        for (kind, ..) in KINDS {
            assert!(STYLE.contains(&format!(".{} {{", class(kind))), "{kind}");
        }
        let names: BTreeSet<String> = KINDS.iter().map(|(kind, ..)| kind.to_string()).collect();
        assert_eq!(names.len(), KINDS.len());
    }
}
