//! The tables of `inspect heads`.

use crate::format::{counted, or_dash};
use crate::inspect::{HeadAnswer, HeadEvidence, HeadScores, Question, References, ScoredHeads, Snippet};
use crate::view::kinds::{lead, token};
use crate::view::terminal::columns::short;
use crate::view::terminal::table::table;

/// The number of heads that are shown per question.
const SHOWN: usize = 3;

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

/// The heads that answer each question best, before and after training.
#[must_use]
pub fn head_answers(references: &References, n_columns: usize) -> String {
    let sections = references.questions.iter().map(|asked| {
        let what = match asked.question {
            Question::Pronoun => "she, her, he, him: the person meant, or the last one of the other gender",
            Question::It => "it: the noun that is meant, or the other candidate, before the sentence decides",
            Question::ItDecided => "it, from the end of its sentence, once that is decided",
            Question::Name => "a repeated name: the token that followed the last time, or that of another name",
        };
        let headings = "HEAD | >RIGHT | >OTHER | >PICKS RIGHT | >UNTRAINED: RIGHT | >OTHER | >PICKS RIGHT";
        let row = |[layer, head]: [usize; 2]| {
            let mark = match [layer, head] {
                head if head == asked.trained.best => " best",
                head if head == asked.untrained.best => " best untrained",
                _ => "",
            };
            let mut cells = vec![format!("{layer}.{head}{mark}")];
            for heads in [&asked.trained.heads, &asked.untrained.heads] {
                let HeadAnswer { right, other, accuracy } = heads[layer][head];
                cells.extend([format!("{right:.3}"), format!("{other:.3}"), format!("{:.1} %", 100.0 * accuracy)]);
            }
            cells
        };
        let mut shown = ranked(&asked.trained.heads);
        shown.retain(|head| *head != asked.trained.best);
        shown.truncate(SHOWN - 1);
        shown.insert(0, asked.trained.best);
        if !shown.contains(&asked.untrained.best) {
            shown.push(asked.untrained.best);
        }
        format!(
            "\n{what}\n{} of {} cases; baselines: a coin 50.0 %, always the nearer {:.1} %, \
             always the longer {:.1} %\n{}",
            asked.cases,
            asked.found,
            100.0 * asked.nearer,
            100.0 * asked.longer,
            table(headings, &shown.into_iter().map(row).collect::<Vec<_>>(), n_columns)
        )
    });
    format!(
        "{} of the validation split; the model sees {} tokens\n{}\n\
         best: chosen on stories of the training split; the figures are those of the validation split\n",
        if references.stories == 1 { "1 story".to_owned() } else { format!("{} stories", references.stories) },
        references.context_length,
        sections.collect::<Vec<_>>().concat()
    )
}

/// The heads as layer and head, in descending order of accuracy.
fn ranked(heads: &[Vec<HeadAnswer>]) -> Vec<[usize; 2]> {
    let all = heads.iter().enumerate().flat_map(|(layer, heads)| (0..heads.len()).map(move |head| [layer, head]));
    let mut all: Vec<[usize; 2]> = all.collect();
    all.sort_by(|&[a, b], &[c, d]| heads[c][d].accuracy.total_cmp(&heads[a][b].accuracy));
    all
}
