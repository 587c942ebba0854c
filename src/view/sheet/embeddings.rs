//! One word in several texts as a sheet: how similar its vectors are, layer by layer.

use crate::format::fixed;
use crate::inspect::{Embeddings, Prompt};
use crate::view::sheet::{Cell, ColorScale, Figure, Grid, Sheet};
use crate::view::terminal::tables::embedding_stage;

/// The similarity of the word's vectors in each pair of texts and to other tokens, that to other words, and the change
/// by attention.
#[must_use]
pub fn embeddings_sheet(it: &Embeddings, prompts: &[Prompt]) -> Sheet {
    let rows: Vec<String> = it.stages.iter().map(embedding_stage).collect();
    let cosine = |value: f64, about: String| {
        Some(Cell {
            value,
            label: fixed(value, 2),
            note: String::new(),
            about: format!("{about}: {}", fixed(value, 4)),
        })
    };
    let grid = |title: &str, columns: Vec<String>, cell: &dyn Fn(usize, usize) -> Option<Cell>| {
        let cells = (0..rows.len()).map(|stage| (0..columns.len()).map(|at| cell(stage, at)).collect()).collect();
        Grid { title: title.to_owned(), rows: rows.clone(), columns, cells, scale: ColorScale::Signed(1.0) }
    };
    let n = it.occurrences.len();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let columns = pairs.iter().map(|(a, b)| format!("{a} and {b}")).chain(["other tokens".to_owned()]).collect();
    let word = grid("How similar the word's vectors are in two texts, and to other tokens", columns, &|stage, at| {
        let (value, what) = match pairs.get(at) {
            Some(&(a, b)) => (it.similarity[stage][a][b], format!("texts {a} and {b}")),
            None => (it.others[stage]?, "the word and other tokens of its text".to_owned()),
        };
        cosine(value, format!("{what}, {}", rows[stage]))
    });
    let mut figures = vec![Figure::Grid(word)];
    if !it.context.is_empty() {
        let columns = it.context.iter().map(|other| format!("{} in {}", other.word, other.prompt)).collect();
        let context = grid("How similar the word and others of the same text are", columns, &|stage, at| {
            let other = &it.context[at];
            cosine(other.similarity[stage], format!("“{}” in text {}, {}", other.word, other.prompt, rows[stage]))
        });
        figures.push(Figure::Grid(context));
    }
    let texts = prompts.iter().enumerate().map(|(at, prompt)| format!("{at}: {}", prompt.whole_pieces().concat()));
    Sheet {
        heading: format!("“{}”, by the vector of its last token", it.word),
        lead: format!(
            "1 is the same direction, 0 unrelated, -1 opposite. The texts: {}.",
            texts.collect::<Vec<_>>().join("; ")
        ),
        figures,
    }
}
