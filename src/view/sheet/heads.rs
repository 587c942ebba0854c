//! What each head does as a sheet: its kind with what it looks at most, and every score.

use crate::format::counted;
use crate::inspect::{HeadEvidence, HeadScores, ScoredHeads};
use crate::view::html::head_history::{SCORES, score};
use crate::view::kinds::{because, lead};
use crate::view::sheet::{Cell, ColorScale, Figure, Grid, Sheet};

/// A map of kinds, coloured by the share of what each head looks at most, and all scores; `evidence` is `[L][H]`.
#[must_use]
pub fn scored_heads_sheet(heads: &ScoredHeads, evidence: &[Vec<HeadEvidence>]) -> Sheet {
    let kind = |layer: usize, head: usize, scores: &HeadScores| {
        let seen = evidence.get(layer).and_then(|layer| layer.get(head));
        let most = lead(scores, &heads.even, seen);
        let snippet = seen.and_then(|seen| seen.snippets.first()).map(|it| {
            let text = format!("{}[{}]{}{{{}}}{}", it.before, it.key, it.between, it.query, it.after);
            format!(" Its strongest look, {:.2}, is from {{this}} to [this]: {}", it.weight, text.replace('\n', "↵"))
        });
        let because = because(scores, &heads.even, seen);
        Some(Cell {
            value: most.as_ref().map_or(0.0, |most| most.share),
            label: scores.kind().to_string(),
            note: most.map(|most| most.short()).unwrap_or_default(),
            about: format!("Head {layer}.{head}: {because}{}", snippet.unwrap_or_default()),
        })
    };
    let n_heads = heads.scores.first().map_or(0, Vec::len);
    let of_layer = |(layer, scores): (usize, &Vec<HeadScores>)| {
        scores.iter().enumerate().map(|(head, scores)| kind(layer, head, scores)).collect()
    };
    let kinds = Grid {
        title: "What each head mostly does; the colour is the share of what it looks at most".to_owned(),
        rows: (0..heads.scores.len()).map(|layer| format!("layer {layer}")).collect(),
        columns: (0..n_heads).map(|head| format!("head {head}")).collect(),
        cells: heads.scores.iter().enumerate().map(of_layer).collect(),
        scale: ColorScale::Fraction,
    };
    let named = heads.scores.iter().enumerate().flat_map(|(layer, scores)| {
        scores.iter().enumerate().map(move |(head, scores)| (format!("{layer}.{head}"), scores))
    });
    let rows: Vec<(String, &HeadScores)> = named.chain([("even".to_owned(), &heads.even)]).collect();
    let number = |name: &str, scores: &HeadScores, (key, title): (&str, &str)| {
        let value = score(scores, key)?;
        let about = format!("{title} of {name}: {value:.4}");
        Some(Cell { value, label: format!("{value:.2}"), note: String::new(), about })
    };
    let scores = Grid {
        title: "Every score; even is a head that looks at all tokens equally".to_owned(),
        rows: rows.iter().map(|(name, _)| name.clone()).collect(),
        columns: SCORES.iter().map(|(_, title)| (*title).to_owned()).collect(),
        cells: rows.iter().map(|(name, of)| SCORES.iter().map(|it| number(name, of, *it)).collect()).collect(),
        scale: ColorScale::Fraction,
    };
    Sheet {
        heading: "What each head does".to_owned(),
        lead: format!(
            "Measured on {} of {} tokens. A head has the name of the first score that reaches its threshold.",
            counted(heads.n_windows as u64, "window"),
            heads.window_tokens
        ),
        figures: vec![Figure::Grid(kinds), Figure::Grid(scores)],
    }
}
