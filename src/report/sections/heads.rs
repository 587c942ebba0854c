//! What each head of the best weights mostly does, as a map.

use std::fmt::Write as _;

use serde_json::json;

use crate::format::grouped;
use crate::inspect::{Heads, Kind, Scores};
use crate::page::Fragment;
use crate::report::forming::{SCORES, score};

const STYLE: &str = include_str!("../assets/heads.css");
const SCRIPT: &str = include_str!("../assets/heads.js");

/// From so many heads in a layer on, a cell has no room for more than an abbreviation.
const MANY_HEADS: usize = 7;

/// Every kind, in the order of the legend.
const KINDS: [Kind; 9] = [
    Kind::PreviousToken,
    Kind::Local,
    Kind::Diagonal,
    Kind::FirstToken,
    Kind::DuplicateToken,
    Kind::Induction,
    Kind::Focused,
    Kind::Uniform,
    Kind::Mixed,
];

/// The heads of the weights after `step`.
pub(in crate::report) fn heads(step: u64, heads: &Heads) -> Fragment {
    let n_heads = heads.scores.first().map_or(0, Vec::len);
    let is_many = n_heads >= MANY_HEADS;
    let mut body = format!(
        "<p>What each head of the best checkpoint, step {}, mostly does with {} windows of {} tokens of the validation \
         split.</p>\n<div class=\"both\">\n<div>\n<div class=\"scrolls\">\n<table{}>\n<thead><tr><td></td>",
        grouped(step),
        heads.n_windows,
        heads.window_tokens,
        if is_many { " class=\"many\"" } else { "" }
    );
    let heading = if is_many { "" } else { "head " };
    for head in 0..n_heads {
        write!(body, "<th scope=\"col\">{heading}{head}</th>").expect("a string");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    for (layer, of_layer) in heads.scores.iter().enumerate() {
        write!(body, "<tr><th scope=\"row\">layer {layer}</th>").expect("a string");
        for (head, scores) in of_layer.iter().enumerate() {
            let kind = scores.kind();
            let (name, class) = (kind.to_string(), class(kind));
            let label = if is_many { abbreviation(kind) } else { &name };
            write!(
                body,
                "<td><button type=\"button\" class=\"cell {class}\" data-head=\"{layer}.{head}\" title=\"{}\" \
                 aria-label=\"head {layer}.{head}: {name}\">{label}</button></td>",
                summary(scores)
            )
            .expect("a string");
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody>\n</table>\n</div>\n<ul class=\"kinds\">\n");
    for kind in KINDS {
        let n = heads.scores.iter().flatten().filter(|scores| scores.kind() == kind).count();
        if n > 0 {
            let class = class(kind);
            writeln!(body, "<li><i class=\"{class}\"></i>{kind}: {n}</li>").expect("a string");
        }
    }
    body.push_str("</ul>\n</div>\n<div class=\"detail\" aria-live=\"polite\"></div>\n</div>");
    Fragment {
        kind: "heads",
        styles: &[STYLE],
        scripts: &[SCRIPT],
        body,
        data: Some(data(heads).to_string()),
    }
}

/// `{"names", "even": [..], "heads": [L * H]}`.
fn data(heads: &Heads) -> serde_json::Value {
    let values = |scores: &Scores| SCORES.map(|(key, _)| score(scores, key));
    let of_head = |scores: &Scores| {
        let kind = scores.kind();
        json!({"kind": kind.to_string(), "meaning": meaning(kind), "scores": values(scores)})
    };
    let of_heads: Vec<_> = heads.scores.iter().flatten().map(of_head).collect();
    json!({"names": SCORES.map(|(_, name)| name), "even": values(&heads.even), "heads": of_heads})
}

/// All scores in a line, for those who read without scripts.
fn summary(scores: &Scores) -> String {
    let known = SCORES.into_iter().filter_map(|(key, name)| {
        let score = score(scores, key)?;
        Some(format!("{name} {score:.2}"))
    });
    known.collect::<Vec<_>>().join(", ")
}

fn class(kind: Kind) -> String {
    kind.to_string().replace(' ', "-")
}

fn abbreviation(kind: Kind) -> &'static str {
    match kind {
        Kind::Uniform => "uni",
        Kind::Induction => "ind",
        Kind::DuplicateToken => "same",
        Kind::PreviousToken => "prev",
        Kind::FirstToken => "first",
        Kind::Diagonal => "self",
        Kind::Local => "local",
        Kind::Focused => "foc",
        Kind::Mixed => "mix",
    }
}

fn meaning(kind: Kind) -> &'static str {
    match kind {
        Kind::Uniform => "Looks at everything alike.",
        Kind::Induction => "Looks at what followed when the same token came before.",
        Kind::DuplicateToken => "Looks at where the same token came before.",
        Kind::PreviousToken => "Looks at the token before.",
        Kind::FirstToken => "Looks at the first token: often a head that has nothing to do here.",
        Kind::Diagonal => "Looks at the token itself.",
        Kind::Local => "Looks at what is near.",
        Kind::Focused => "Looks sharply, at no place that has a name.",
        Kind::Mixed => "Does none of these for the most part.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_colour_and_a_place_in_the_legend() {
        for kind in KINDS {
            assert!(STYLE.contains(&format!(".{} {{", class(kind))), "{kind}");
        }
        let mut names: Vec<String> = KINDS.iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
