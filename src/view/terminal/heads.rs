//! The tables of `inspect heads`.

use crate::format::{counted, or_dash};
use crate::inspect::{HeadEvidence, HeadScores, ScoredHeads, Snippet};
use crate::view::kinds::{lead, token};
use crate::view::terminal::columns::short;
use crate::view::terminal::table::table;

/// The scores of each head, those of a head with uniform attention, and what each head looks at most, `[L][H]`.
#[must_use]
pub fn scored_heads(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>], n_columns: usize) -> String {
    let headings = "HEAD | MOSTLY | >BITS | >ENTROPY | >UNIFORM | >FOCUSED | >SELF | >PREVIOUS | >FIRST | >LOCAL | >SAME | \
         >INDUCTION";
    let row = |name: String, mostly: String, scores: &HeadScores| {
        let number = |(_, score): (_, Option<f64>)| or_dash(score.map(|score| format!("{score:.2}")));
        [vec![name, mostly], scores.named().map(number).to_vec()].concat()
    };
    let mut rows = Vec::new();
    for (layer, scores) in heads.scores.iter().enumerate() {
        for (head, scores) in scores.iter().enumerate() {
            rows.push(row(format!("{layer}.{head}"), scores.kind().to_string(), scores));
        }
    }
    rows.push(row("even".to_owned(), String::new(), &heads.even));
    let repeated = match heads.n_repeated {
        0 => "the context is too short for repeated sequences: induction is not measured".to_owned(),
        n => format!("induction: {n} sequences of {} random tokens, each twice", heads.period),
    };
    format!(
        "{}\n{} of {} tokens of the validation split\n{repeated}\n\
         even: the scores of a head that looks at all tokens equally\n\n\
         What each head looks at most, and its strongest look, from {{this}} token to [this] one\n{}",
        table(headings, &rows, n_columns),
        counted(heads.n_windows as u64, "window"),
        heads.window_tokens,
        looks(heads, evidence, n_columns),
    )
}

/// Two lines for each head, of at most `n_columns`.
fn looks(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>], n_columns: usize) -> String {
    let mut text = String::new();
    for (layer, (scores, evidence)) in heads.scores.iter().zip(evidence).enumerate() {
        for (head, (scores, evidence)) in scores.iter().zip(evidence).enumerate() {
            let mut most: Vec<String> =
                lead(scores, &heads.even, Some(evidence)).map(|it| it.short()).into_iter().collect();
            let tokens = evidence.tokens.iter().map(|seen| token(seen).short());
            most.extend(tokens.filter(|seen| most.first() != Some(seen)).collect::<Vec<_>>());
            let name = format!("{layer}.{head}");
            text += &short(n_columns, &format!("{name:<5} {:<6} {}", scores.kind().to_string(), most.join(", ")));
            text.push('\n');
            if let Some(snippet) = evidence.snippets.first() {
                text += &short(n_columns, &format!("      {:.2}   {}", snippet.weight, marked(snippet)));
                text.push('\n');
            }
        }
    }
    text
}

fn marked(Snippet { before, key, between, query, after, .. }: &Snippet) -> String {
    // A blank that begins a token stays outside its brackets, where it separates words.
    let mark = |[open, close]: [char; 2], token: &str| {
        let word = token.trim_start_matches(' ');
        format!("{}{open}{word}{close}", " ".repeat(token.len() - word.len()))
    };
    let text = format!("{before}{}{between}{}{after}", mark(['[', ']'], key), mark(['{', '}'], query));
    text.replace('\n', "↵")
}
