//! One word in several texts: how similar its vectors are, layer by layer.

use crate::format::fixed;
use crate::inspect::{Embeddings, Prompt, Stage};
use crate::view::sheet::{Cell, ColorScale, ColumnKind, Content, Figure, Grid, Sheet};
use crate::view::terminal::columns::named_flow;

const TEXT_COLUMNS: usize = 78;

/// The similarity of the word's vectors in each pair of texts and to other tokens, that to other words, and the change
/// by attention at the word, or at every token if `all_positions`.
pub fn embeddings_sheet(it: &Embeddings, prompts: &[Prompt], all_positions: bool) -> Sheet {
    let stages: Vec<String> = it.stages.iter().map(stage_name).collect();
    let mut texts = Vec::new();
    for (at, (prompt, occurrence)) in prompts.iter().zip(&it.occurrences).enumerate() {
        let name = format!("text {at}, token {}:", occurrence.position);
        texts.extend(named_flow(&name, 17, &prompt.whole_pieces(), TEXT_COLUMNS).lines().map(str::to_owned));
    }
    let n = it.occurrences.len();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let columns = pairs.iter().map(|(a, b)| format!("{a} and {b}")).chain(["other tokens".to_owned()]).collect();
    let word = grid(&stages, columns, |stage, at| match pairs.get(at) {
        Some(&(a, b)) => Some(cosine(it.similarity[stage][a][b], &format!("texts {a} and {b}, {}", stages[stage]))),
        None => Some(cosine(it.others[stage]?, &format!("the word and other tokens of its text, {}", stages[stage]))),
    });
    let mut figures = vec![
        Figure::new("The texts", Content::Lines(texts)),
        Figure::grid(
            "How similar the word's vectors are in two texts, and to the other tokens of its text, on average",
            word,
        ),
    ];
    if !it.context.is_empty() {
        let columns = it.context.iter().map(|other| format!("“{}” in {}", other.word, other.prompt)).collect();
        let context = grid(&stages, columns, |stage, at| {
            let other = &it.context[at];
            let about = format!("“{}” in text {}, {}", other.word, other.prompt, stages[stage]);
            Some(cosine(other.similarity[stage], &about))
        });
        figures.push(Figure::grid("How similar the word and others of the same text are", context));
    }
    figures.push(Figure::grid(
        "How similar the input and the output of an attention layer are",
        change(it, prompts, all_positions),
    ));
    let same_past = pairs.iter().filter(|(a, b)| it.have_same_past(*a, *b));
    let same_past = same_past.map(|(a, b)| {
        format!(" {a} and {b} are the same up to the word: no token sees later ones, so its vectors are the same.")
    });
    Sheet {
        heading: format!("“{}”, by the vector of its last token", it.word),
        lead: format!("1 is the same direction, 0 unrelated, -1 opposite.{}", same_past.collect::<String>()),
        figures,
    }
}

fn change(it: &Embeddings, prompts: &[Prompt], all_positions: bool) -> Grid {
    let n_layers = it.attention.first().map_or(0, Vec::len);
    let columns: Vec<String> = (0..n_layers).map(|layer| format!("layer {layer}")).collect();
    let places = prompts.iter().zip(&it.occurrences).enumerate().flat_map(|(text, (prompt, occurrence))| {
        (0..prompt.len()).filter(move |at| all_positions || *at == occurrence.position).map(move |at| (text, at))
    });
    let places: Vec<(usize, usize)> = places.collect();
    let rows: Vec<String> =
        places.iter().map(|&(text, at)| format!("text {text}, token {at:>3} {}", prompts[text].pieces[at])).collect();
    grid(&rows, columns, |row, layer| {
        let (text, at) = places[row];
        Some(cosine(it.attention[text][layer][at], &format!("{}, layer {layer}", rows[row])))
    })
}

fn grid(rows: &[String], columns: Vec<String>, cell: impl Fn(usize, usize) -> Option<Cell>) -> Grid {
    Grid::new(rows.to_vec(), columns, ColumnKind::Named, ColorScale::Signed(1.0), cell)
}

fn cosine(value: f64, about: &str) -> Cell {
    Cell::new(value, fixed(value, 3), format!("{about}: {}", fixed(value, 4)))
}

fn stage_name(stage: &Stage) -> String {
    match stage {
        Stage::Token => "token embedding".to_owned(),
        Stage::Embedding => "embedding + position".to_owned(),
        Stage::Layer(layer) => format!("after layer {layer}"),
        Stage::Norm => "final norm".to_owned(),
    }
}
