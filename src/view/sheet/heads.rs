//! The kind, the scores and the main targets of each attention head.

use crate::format::counted;
use crate::inspect::{HeadEvidence, HeadScores, ScoredHeads, Snippet};
use crate::view::kinds::{SCORES, because, lead, name, score, token};
use crate::view::sheet::{Cell, ColorScale, ColumnKind, Content, Figure, Grid, Sheet};

/// The number of heads per layer from which a cell has room for one word only.
const MANY_HEADS: usize = 7;

/// The kind of each head, coloured by the share of its main target; all scores; and its largest weight.
/// `evidence` is `[L][H]`.
pub fn scored_heads_sheet(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>]) -> Sheet {
    let n_heads = heads.scores.first().map_or(0, Vec::len);
    let seen = |layer: usize, head: usize| evidence.get(layer).and_then(|of_layer| of_layer.get(head));
    let kind = |layer: usize, head: usize| {
        let scores = &heads.scores[layer][head];
        let most = lead(scores, &heads.even, seen(layer, head));
        let because = because(scores, &heads.even, seen(layer, head));
        let snippet = seen(layer, head).and_then(|seen| seen.snippets.first());
        let snippet = snippet.map(|it| format!(" Its largest weight, {:.2}: {}", it.weight, marked(it)));
        let about = format!("Head {layer}.{head}: {because}{}", snippet.unwrap_or_default());
        let value = most.as_ref().map_or(0.0, |most| most.share);
        let name = name(scores, most.as_ref());
        let label = if n_heads < MANY_HEADS { &name } else { name.split(' ').next().unwrap_or(&name) };
        let note = most.map_or(String::new(), |most| most.share());
        Some(Cell { note, ..Cell::new(value, label.to_owned(), about) })
    };
    let layers = (0..heads.scores.len()).map(|layer| format!("layer {layer}")).collect();
    let columns = (0..n_heads).map(|head| format!("head {head}")).collect();
    let kinds = Grid::new(layers, columns, ColumnKind::Heads, ColorScale::Fraction, kind);
    let repeated = match heads.n_repeated {
        0 => "The context is too short for repeated sequences: induction is not measured.".to_owned(),
        n => format!("Induction is measured on {n} sequences of {} random tokens, each twice.", heads.period),
    };
    Sheet {
        heading: "Attention heads".to_owned(),
        lead: format!(
            "Measured on {} of {} tokens. A head has the name of the first score that reaches its threshold; if none does, \
             that of its main target. {repeated}",
            counted(heads.n_windows as u64, "window"),
            heads.window_tokens
        ),
        figures: vec![
            Figure::grid("The kind of each head, and the share of attention on its main target", kinds),
            Figure::grid("All scores; even is a head with uniform attention", scores(heads)),
            Figure::new(
                "The main targets of each head, and its largest weight, from {this} token to [this] one",
                Content::Lines(looks(heads, evidence)),
            ),
        ],
    }
}

fn scores(heads: &ScoredHeads) -> Grid {
    let named = heads.scores.iter().enumerate().flat_map(|(layer, scores)| {
        scores.iter().enumerate().map(move |(head, scores)| (format!("{layer}.{head} {}", scores.kind()), scores))
    });
    let rows: Vec<(String, &HeadScores)> = named.chain([("even".to_owned(), &heads.even)]).collect();
    let labels = rows.iter().map(|(name, _)| name.clone()).collect();
    let columns = SCORES.iter().map(|(_, title)| title.trim_end_matches(" token").to_owned()).collect();
    Grid::new(labels, columns, ColumnKind::Named, ColorScale::Fraction, |row, column| {
        let ((name, scores), (key, title)) = (&rows[row], SCORES[column]);
        let value = score(scores, key)?;
        Some(Cell::new(value, format!("{value:.2}"), format!("{title} of {name}: {value:.4}")))
    })
}

/// One or two lines for each head.
fn looks(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>]) -> Vec<String> {
    let mut lines = Vec::new();
    for (layer, (scores, evidence)) in heads.scores.iter().zip(evidence).enumerate() {
        for (head, (scores, evidence)) in scores.iter().zip(evidence).enumerate() {
            let mut most: Vec<String> =
                lead(scores, &heads.even, Some(evidence)).map(|it| it.short()).into_iter().collect();
            let tokens = evidence.tokens.iter().map(|seen| token(seen).short());
            most.extend(tokens.filter(|seen| most.first() != Some(seen)).collect::<Vec<_>>());
            let name = format!("{layer}.{head}");
            lines.push(format!("{name:<5} {:<6} {}", scores.kind().to_string(), most.join(", ")));
            let snippet = evidence.snippets.first();
            lines.extend(snippet.map(|snippet| format!("      {:.2}   {}", snippet.weight, marked(snippet))));
        }
    }
    lines
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
