//! The numbers behind the kind of a head, in words: the same for the page and for the terminal.

use crate::inspect::{HeadEvidence, HeadKind, HeadScores, SeenToken};
use crate::tokenizer::visible;

/// The scores shown, as keys and names. Entropy in bits would duplicate entropy.
pub(crate) const SCORES: [(&str, &str); 9] = [
    ("entropy", "entropy"),
    ("uniform", "uniform"),
    ("focused", "focused"),
    ("diagonal", "self"),
    ("previous_token", "previous token"),
    ("first_token", "first token"),
    ("local", "local"),
    ("duplicate_token", "same token"),
    ("induction", "induction"),
];

pub(crate) fn score(scores: &HeadScores, key: &str) -> Option<f64> {
    scores.named().into_iter().find(|(name, _)| *name == key)?.1
}

/// A share as the pages write it: `33 %`, `3.1 %`.
fn percent(share: f64) -> String {
    match share {
        _ if share >= 0.0995 || share == 0.0 => format!("{:.0} %", 100.0 * share),
        _ if share >= 0.00995 => format!("{:.1} %", 100.0 * share),
        _ => format!("{:.2} %", 100.0 * share),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lead {
    /// In a word or two, such as `itself` or `“,”`.
    pub what: String,
    /// The share of attention, and that of an even head.
    pub share: f64,
    pub even: f64,
}

impl Lead {
    fn new(what: &str, share: Option<f64>, even: Option<f64>) -> Option<Self> {
        Some(Self { what: what.to_owned(), share: share?, even: even? })
    }

    pub fn share(&self) -> String {
        percent(self.share)
    }

    /// `33 % the token before`
    pub fn short(&self) -> String {
        format!("{} {}", percent(self.share), self.what)
    }

    /// `the token before has 33 % of its attention, with an even head 3 %`
    fn sentence(&self) -> String {
        let Self { what, share, even } = self;
        format!("{what} has {} of its attention; an even head gives it {}", percent(*share), percent(*even))
    }
}

/// The main target of a head. Near tokens are named only for a local head: they contain the others.
pub(crate) fn lead(scores: &HeadScores, even: &HeadScores, evidence: Option<&HeadEvidence>) -> Option<Lead> {
    if scores.kind() == HeadKind::Local {
        return Lead::new("near", scores.local, even.local);
    }
    let places = [
        Lead::new("itself", scores.diagonal, even.diagonal),
        Lead::new("the token before", scores.previous_token, even.previous_token),
        Lead::new("the first token", scores.first_token, even.first_token),
        Lead::new("the same token", scores.duplicate_token, even.duplicate_token),
    ];
    let tokens = evidence.into_iter().flat_map(|evidence| &evidence.tokens).map(token);
    let all = places.into_iter().flatten().chain(tokens);
    all.max_by(|a, b| (a.share - a.even).total_cmp(&(b.share - b.even)))
}

/// The kind of a head; of a mixed one, its main target.
pub(crate) fn name(scores: &HeadScores, lead: Option<&Lead>) -> String {
    match (scores.kind(), lead) {
        (HeadKind::Mixed, Some(Lead { what, .. })) => {
            what.replace("the token before", "previous token").trim_start_matches("the ").to_owned()
        }
        (kind, _) => kind.to_string(),
    }
}

pub(crate) fn token(SeenToken { token, share, even }: &SeenToken) -> Lead {
    Lead { what: format!("“{}”", visible(token)), share: *share, even: *even }
}

/// Why a head has its kind: the number that reaches the threshold, or, of a mixed one, what it looks at most.
pub(crate) fn because(scores: &HeadScores, even: &HeadScores, evidence: Option<&HeadEvidence>) -> String {
    let mass = |what, share, even| Some(Lead::new(what, share, even)?.sentence());
    let shown = |score: Option<f64>| percent(score.unwrap_or_default());
    let known = match scores.kind() {
        HeadKind::Diagonal => mass("The token itself", scores.diagonal, even.diagonal),
        HeadKind::PreviousToken => mass("The token before", scores.previous_token, even.previous_token),
        HeadKind::FirstToken => mass("The first token", scores.first_token, even.first_token),
        HeadKind::DuplicateToken => mass("The same token, earlier,", scores.duplicate_token, even.duplicate_token),
        HeadKind::Induction => {
            mass("The token after the same token in repeated sequences", scores.induction, even.induction)
        }
        HeadKind::Local => mass("The part up to 4 tokens away", scores.local, even.local),
        HeadKind::Uniform => Some(format!("{} of its attention is spread evenly", shown(scores.uniform))),
        HeadKind::Focused => Some(format!("Its largest weight is {} on average", shown(scores.focused))),
        HeadKind::Mixed => lead(scores, even, evidence)
            .map(|lead| format!("No score reaches the threshold of a kind. Its main target: {}", lead.sentence())),
    };
    known.map(|sentence| sentence + ".").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(diagonal: f64, previous: f64, local: f64) -> HeadScores {
        HeadScores {
            diagonal: Some(diagonal),
            previous_token: Some(previous),
            local: Some(local),
            ..HeadScores::default()
        }
    }

    #[test]
    fn kinds_are_explained_by_numbers() {
        let even = scores(0.03, 0.03, 0.13);
        let own = |scores: HeadScores| because(&scores, &even, None);
        let itself = "The token itself has 77 % of its attention; an even head gives it 3.0 %.";
        assert_eq!(own(scores(0.77, 0.05, 0.85)), itself);
        let near = "The part up to 4 tokens away has 82 % of its attention; an even head gives it 13 %.";
        assert_eq!(own(scores(0.07, 0.31, 0.82)), near);
        let mixed = scores(0.1, 0.33, 0.7);
        let most = lead(&mixed, &even, None).expect("a mixed head has a main target");
        assert_eq!(most.short(), "33 % the token before");
        assert_eq!(name(&mixed, Some(&most)), "previous token");
        assert_eq!(name(&scores(0.77, 0.05, 0.85), Some(&most)), "self");
        let seen = SeenToken { token: " \"".to_owned(), share: 0.4, even: 0.02 };
        let evidence = HeadEvidence { tokens: vec![seen], snippets: Vec::new() };
        assert_eq!(
            because(&mixed, &even, Some(&evidence)),
            "No score reaches the threshold of a kind. Its main target: “·\"” has 40 % of its attention; an even head gives \
             it 2.0 %."
        );
    }
}
