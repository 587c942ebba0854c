//! One word in several texts, as tables of cosines.

use std::fmt::Write as _;

use super::columns::flow;
use super::grid::{PAGE, Row, grid, three_digits};
use crate::inspect::{Embeddings, Prompt, Stage};

/// The texts, how alike the word's vectors are in each two of them, how alike the word and other words are, and what
/// attention does to it, at every position if `all_positions`. Every line ends with a line break.
#[must_use]
pub fn embeddings(it: &Embeddings, prompts: &[Prompt], all_positions: bool) -> String {
    let mut text = format!("`{}`, by the vector of its last token\n", it.word);
    for (index, (prompt, place)) in prompts.iter().zip(&it.places).enumerate() {
        for (line, part) in flow(&prompt.whole_pieces(), PAGE - 20).iter().enumerate() {
            let name = match line {
                0 => format!("  text {index}, token {}:", place.position),
                _ => String::new(),
            };
            writeln!(text, "{name:<19} {part}").expect("a string");
        }
    }
    text.push('\n');
    similarities(&mut text, it);
    if !it.context.is_empty() {
        text.push_str("\nHow alike the word and others of the same text are\n");
        let columns: Vec<String> = it
            .context
            .iter()
            .map(|other| format!("`{}` in {}", other.word, other.prompt))
            .collect();
        let cells = |stage: usize| {
            let cells = it.context.iter().map(|other| other.similarity[stage]);
            cells.map(three_digits).collect()
        };
        grid(&mut text, &columns, &by_stage(it, cells));
    }
    text.push_str("\nHow alike what an attention layer reads and what it writes are\n");
    attention(&mut text, it, prompts, all_positions);
    text
}

fn similarities(text: &mut String, it: &Embeddings) {
    text.push_str(
        "How alike the word's vectors are: 1 the same direction, 0 unrelated, -1 opposite\n",
    );
    let n = it.places.len();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let mut columns: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} and {b}")).collect();
    columns.push("other tokens".to_owned());
    let cells = |stage: usize| {
        let of_pairs = pairs.iter().map(|&(a, b)| it.similarity[stage][a][b]);
        let mut cells: Vec<String> = of_pairs.map(three_digits).collect();
        cells.push(it.others[stage].map_or("-".to_owned(), three_digits));
        cells
    };
    grid(text, &columns, &by_stage(it, cells));
    text.push_str("other tokens: the word and every other token of its text, on average\n");
    for (a, b) in pairs {
        if it.have_same_past(a, b) {
            writeln!(
                text,
                "{a} and {b} are the same up to the word: no token sees what comes later, so nothing tells them apart"
            )
            .expect("a string");
        }
    }
}

fn by_stage(it: &Embeddings, cells: impl Fn(usize) -> Vec<String>) -> Vec<Row> {
    let named = it.stages.iter().enumerate();
    named.map(|(index, stage)| (stage_name(*stage), cells(index))).collect()
}

fn stage_name(stage: Stage) -> String {
    match stage {
        Stage::Token => "token embedding".to_owned(),
        Stage::Embedding => "embedding + position".to_owned(),
        Stage::Layer(layer) => format!("after layer {layer}"),
        Stage::Norm => "final norm".to_owned(),
    }
}

fn attention(text: &mut String, it: &Embeddings, prompts: &[Prompt], all_positions: bool) {
    let n_layers = it.attention.first().map_or(0, Vec::len);
    let columns: Vec<String> = (0..n_layers).map(|layer| format!("layer {layer}")).collect();
    let mut rows = Vec::new();
    for (index, (prompt, place)) in prompts.iter().zip(&it.places).enumerate() {
        for at in 0..prompt.len() {
            if all_positions || at == place.position {
                let of_layers = it.attention[index].iter().map(|of_layer| of_layer[at]);
                let name = format!("text {index}, token {at:>3} {}", prompt.pieces[at]);
                rows.push((name, of_layers.map(three_digits).collect()));
            }
        }
    }
    grid(text, &columns, &rows);
}
