//! The six steps of attention for one token in one head, as a sheet.

use crate::format::signed;
use crate::inspect::{Explanation, Projection, Prompt};
use crate::view::sheet::{Cell, ColorScale, Figure, Grid, Sheet};
use crate::view::terminal::columns::short;
use crate::view::terminal::explanation::{LATER, NAMED, wide};

/// The number of elements of a vector that are shown.
const SHOWN: usize = 16;
/// The most columns of a token label.
const LONGEST: usize = 8;

/// The numbers of `inspect explain`: the first numbers of vectors, and the token's product with every key.
#[must_use]
pub fn explanation_sheet(it: &Explanation, prompt: &Prompt) -> Sheet {
    let Explanation { layer, head, token, .. } = *it;
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead: format!(
            "Layer {layer}, head {head}: how “{}”, token {token}, gathers from the tokens that it sees.",
            prompt.pieces[token]
        ),
        figures: [read(it), projected(it), matched(it, prompt), weighted(it, prompt), gathered(it, prompt)]
            .map(Figure::Grid)
            .into(),
    }
}

/// Step 1: the vector that the layer reads.
fn read(it: &Explanation) -> Grid {
    let mut rows = vec![("x, its embedding".to_owned(), wide(&it.embedding))];
    if it.layer > 0 {
        rows.push((format!("x before layer {}", it.layer), wide(&it.residual)));
    }
    rows.push(("x after the norm".to_owned(), wide(&it.normed)));
    vectors("1. The token's vector", rows)
}

/// Step 2: its query, key and value.
fn projected(it: &Explanation) -> Grid {
    let of = |(letter, projection): (&str, &Projection)| {
        let Projection { projected, normed, rotated } = projection;
        let first = (format!("{letter} = x W_{letter}"), wide(projected));
        let normed = normed.as_ref().map(|vector| (format!("{letter} after its norm"), wide(vector)));
        let rotated = rotated.as_ref().map(|vector| (format!("{letter} rotated"), wide(vector)));
        [Some(first), normed, rotated].into_iter().flatten().collect::<Vec<_>>()
    };
    let rows = [("q", &it.query), ("k", &it.key), ("v", &it.value)].into_iter().flat_map(of).collect();
    vectors("2. Its query, key and value", rows)
}

/// Steps 3 to 5: the products with every key, scaled and masked.
fn matched(it: &Explanation, prompt: &Prompt) -> Grid {
    let scaled = match it.scale {
        None => format!("divided by the root of {}", it.head_dim),
        Some(scale) => format!("times {scale}"),
    };
    let scaled = it.softcap.map_or(scaled.clone(), |cap| format!("{scaled}, capped at {cap}"));
    let some = |numbers: &[f64]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
    let rows = vec![
        ("3. q · k".to_owned(), some(&it.scores)),
        ("4. scaled".to_owned(), some(&it.scaled)),
        ("5. masked".to_owned(), it.masked.clone()),
    ];
    let title = format!("3. The query times every key; 4. {scaled}; 5. without later tokens");
    by_token(title, rows, ColorScale::signed(it.scores.iter().chain(&it.scaled).copied()), prompt, it.token)
}

/// Step 5: the softmax.
fn weighted(it: &Explanation, prompt: &Prompt) -> Grid {
    let weights = it.weights.iter().copied().map(Some).collect();
    let title = "5. The softmax of these: weights, which sum to 1".to_owned();
    by_token(title, vec![("weight".to_owned(), weights)], ColorScale::Fraction, prompt, it.token)
}

/// Step 6: the weighted sum of the values.
fn gathered(it: &Explanation, prompt: &Prompt) -> Grid {
    let part = |at: usize| it.values[at].iter().map(|v| it.weights[at] * f64::from(*v)).collect::<Vec<f64>>();
    let mut order: Vec<usize> = (0..=it.token).filter(|at| it.masked[*at].is_some()).collect();
    order.sort_by(|a, b| it.weights[*b].total_cmp(&it.weights[*a]));
    let (named, others) = order.split_at(NAMED.min(order.len()));
    let name = |at: usize| format!("{:.3} × v of {} {}", it.weights[at], at, short(LONGEST, &prompt.pieces[at]));
    let mut rows: Vec<(String, Vec<f64>)> = named.iter().map(|at| (name(*at), part(*at))).collect();
    if !others.is_empty() {
        rows.push((format!("{} others", others.len()), it.gathered_from(others.iter().copied())));
    }
    rows.push(("the sum".to_owned(), it.context.clone()));
    vectors("6. The values, each times its weight, and their sum", rows)
}

/// The first numbers of vectors of equal length.
fn vectors(title: &str, rows: Vec<(String, Vec<f64>)>) -> Grid {
    let n = rows[0].1.len();
    let shown = n.min(SHOWN);
    let cell = |name: &str, at: usize, value: f64| {
        Some(Cell {
            value,
            label: signed(value, 2),
            note: String::new(),
            about: format!("{name}, number {at}: {}", signed(value, 6)),
        })
    };
    let cells = |(name, vector): &(String, Vec<f64>)| {
        vector.iter().take(shown).enumerate().map(|(at, x)| cell(name, at, *x)).collect()
    };
    Grid {
        title: match n > shown {
            true => format!("{title} (the first {shown} of {n} numbers)"),
            false => title.to_owned(),
        },
        columns: (0..shown).map(|at| at.to_string()).collect(),
        cells: rows.iter().map(cells).collect(),
        scale: ColorScale::signed(rows.iter().flat_map(|(_, vector)| vector.iter().take(shown).copied())),
        rows: rows.into_iter().map(|(name, _)| name).collect(),
    }
}

/// A number for each token up to `token`, and for a few later ones.
fn by_token(
    title: String,
    rows: Vec<(String, Vec<Option<f64>>)>,
    scale: ColorScale,
    prompt: &Prompt,
    token: usize,
) -> Grid {
    let shown = (token + 1 + LATER).min(prompt.len());
    let digits = if scale == ColorScale::Fraction { 3 } else { 2 };
    let label =
        |value: f64| if scale == ColorScale::Fraction { format!("{value:.digits$}") } else { signed(value, digits) };
    let cell = |name: &str, at: usize, value: Option<f64>| {
        let about = |value: f64| format!("{name} of “{}”, token {at}: {value:.6}", prompt.pieces[at]);
        value.map(|value| Cell { value, label: label(value), note: String::new(), about: about(value) })
    };
    let cells = |(name, numbers): &(String, Vec<Option<f64>>)| {
        numbers.iter().take(shown).enumerate().map(|(at, value)| cell(name, at, *value)).collect()
    };
    Grid {
        title,
        columns: prompt.pieces[..shown].iter().map(|piece| short(LONGEST, piece)).collect(),
        cells: rows.iter().map(cells).collect(),
        rows: rows.into_iter().map(|(name, _)| name).collect(),
        scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::testing::{louder, small_config};
    use crate::tokenizer::Tokenizer;

    #[test]
    fn the_parts_of_the_sum_add_up_and_later_tokens_are_masked() {
        let (model, tokenizer) = (louder(&small_config(), 256), Tokenizer::byte());
        let prompt = Prompt::read("abcabcabcab", &tokenizer, 16).expect("bytes");
        let it = Explanation::new(&model, &prompt, [1, 0, 7]).expect("explained");
        let sheet = explanation_sheet(&it, &prompt);
        let grids: Vec<&Grid> =
            sheet.figures.iter().filter_map(|it| if let Figure::Grid(it) = it { Some(it) } else { None }).collect();
        let [read, projected, matched, weighted, gathered] = grids[..] else { panic!("five grids") };
        assert_eq!(read.rows.len(), 3);
        assert!(projected.rows.len() >= 3);
        let values =
            |grid: &Grid, row: usize| -> Vec<f64> { grid.cells[row].iter().flatten().map(|it| it.value).collect() };
        assert_eq!(values(matched, 0).len(), 11);
        assert_eq!(values(matched, 2), it.scaled[..8], "of the token and those before it");
        assert!((values(weighted, 0).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let last = gathered.rows.len() - 1;
        assert_eq!((last, &*gathered.rows[last - 1]), (NAMED + 1, "3 others"));
        for (at, sum) in values(gathered, last).into_iter().enumerate() {
            let parts: f64 = (0..last).map(|row| values(gathered, row)[at]).sum();
            assert!((parts - sum).abs() < 1e-9, "{parts} {sum}");
        }
    }
}
