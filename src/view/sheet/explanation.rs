//! The six steps of attention for one token in one head.

use crate::format::{counted, percent, signed};
use crate::inspect::{Explanation, Projection, Prompt};
use crate::view::sheet::{Cell, ColorScale, ColumnKind, Figure, Grid, Sheet};
use crate::view::terminal::columns::short;

/// The number of elements of a vector that are shown.
const SHOWN: usize = 16;
const LONGEST: usize = 8;
const NAMED: usize = 5;
/// The number of tokens whose weights are bars.
const BARS: usize = 10;
/// The number of later tokens that are listed: enough to see the effect of the mask.
const LATER: usize = 4;

/// The numbers of `inspect explain`: the first numbers of vectors, and the token's product with every key.
pub fn explanation_sheet(it: &Explanation, prompt: &Prompt) -> Sheet {
    let Explanation { layer, head, .. } = *it;
    let shared: Vec<String> = it.kv_shared_by.iter().filter(|at| **at != head).map(ToString::to_string).collect();
    let shared = match &shared[..] {
        [] => String::new(),
        [one] => format!(" k and v are those of key/value head {}, shared with head {one}.", it.kv_head),
        heads => {
            format!(" k and v are those of key/value head {}, shared with heads {}.", it.kv_head, heads.join(", "))
        }
    };
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead: format!(
            "Layer {layer} head {head}: {}{shared} The model's own weights differ from these by at most {:.0e}.",
            sentence(it, prompt),
            it.largest_difference()
        ),
        figures: vec![
            divided(it, prompt),
            input(it),
            projected(it),
            matched(it, prompt),
            weighted(it, prompt),
            gathered(it, prompt),
        ],
    }
}

/// The tokens that it sees, the largest weight first.
fn ranked(it: &Explanation) -> Vec<usize> {
    let mut order: Vec<usize> = (0..=it.token).filter(|at| it.masked[*at].is_some()).collect();
    order.sort_by(|a, b| it.weights[*b].total_cmp(&it.weights[*a]));
    order
}

/// Whom the token attends to most.
fn sentence(it: &Explanation, prompt: &Prompt) -> String {
    let name = |at: usize| match it.token - at {
        0 => "itself".to_owned(),
        1 => format!("“{}”, the token before", prompt.pieces[at]),
        n => format!("“{}”, {n} tokens before", prompt.pieces[at]),
    };
    let order = ranked(it);
    let share = |at: usize| percent(it.weights[at]);
    let mut sentence = format!(
        "“{}”, token {}, gives {} of its attention to {}",
        prompt.pieces[it.token],
        it.token,
        share(order[0]),
        name(order[0])
    );
    if let [_, second, rest @ ..] = &order[..] {
        sentence += &format!(", and {} to {}", share(*second), name(*second));
        sentence += &match rest.len() {
            0 => String::new(),
            n => format!("; the rest goes to {}", counted(n as u64, "other token")),
        };
    }
    sentence + "."
}

/// The largest weights, and the sum of the others.
fn divided(it: &Explanation, prompt: &Prompt) -> Figure {
    let order = ranked(it);
    let (named, others) = order.split_at(BARS.min(order.len()));
    let mut rows: Vec<(String, f64)> =
        named.iter().map(|at| (format!("{at} {}", short(LONGEST, &prompt.pieces[*at])), it.weights[*at])).collect();
    if !others.is_empty() {
        rows.push((format!("{} others", others.len()), others.iter().map(|at| it.weights[*at]).sum()));
    }
    Figure::bars(format!("How “{}” divides its attention", prompt.pieces[it.token]), rows, percent)
}

/// Step 1: the vector that the layer reads.
fn input(it: &Explanation) -> Figure {
    let embedding = match it.query.rotated {
        Some(_) => "x, its embedding".to_owned(),
        None => format!("x, its embedding + position {}", it.token),
    };
    let before = match it.layer {
        0 => None,
        1 => Some("x after layer 0".to_owned()),
        n => Some(format!("x after layers 0 to {}", n - 1)),
    };
    let before = before.map(|name| (name, wide(&it.residual)));
    let first = (embedding, wide(&it.embedding));
    let normed = ("normed: what the layer reads".to_owned(), wide(&it.normed));
    let rows: Vec<_> = [Some(first), before, Some(normed)].into_iter().flatten().collect();
    vectors("1. The token's vector", &rows)
}

/// Step 2: its query, key and value.
fn projected(it: &Explanation) -> Figure {
    let of = |(letter, projection): (&str, &Projection)| {
        let steps = projection.steps(letter, it.token);
        steps.into_iter().map(|(name, vector)| (name, wide(vector))).collect::<Vec<_>>()
    };
    let rows: Vec<_> = [("q", &it.query), ("k", &it.key), ("v", &it.value)].into_iter().flat_map(of).collect();
    vectors("2. Three learned matrices make a query, a key and a value of it", &rows)
}

/// Steps 3 to 5: the products with every key, scaled and masked.
fn matched(it: &Explanation, prompt: &Prompt) -> Figure {
    let some = |numbers: &[f64]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
    let rows = [
        ("3. q · k".to_owned(), some(&it.scores)),
        ("4. scaled".to_owned(), some(&it.scaled)),
        ("5. masked".to_owned(), it.masked.clone()),
    ];
    let (scaling, masked) = (it.scaling(), it.masked_tokens());
    let title = format!("3. The query times every key: how well they match; 4. {scaling}; 5. without {masked}");
    by_token(title, &rows, ColorScale::signed(it.scores.iter().chain(&it.scaled).copied()), prompt, it.token)
}

/// Step 5: the softmax.
fn weighted(it: &Explanation, prompt: &Prompt) -> Figure {
    let weights = it.weights.iter().copied().map(Some).collect();
    let title = "5. Softmax turns these into weights that sum to 1".to_owned();
    by_token(title, &[("weight".to_owned(), weights)], ColorScale::Fraction, prompt, it.token)
}

/// Step 6: the weighted sum of the values.
fn gathered(it: &Explanation, prompt: &Prompt) -> Figure {
    let part = |at: usize| it.values[at].iter().map(|v| it.weights[at] * f64::from(*v)).collect::<Vec<f64>>();
    let order = ranked(it);
    let (named, others) = order.split_at(NAMED.min(order.len()));
    let name = |at: usize| format!("{:.3} × v of {} {}", it.weights[at], at, short(LONGEST, &prompt.pieces[at]));
    let mut rows: Vec<(String, Vec<f64>)> = named.iter().map(|at| (name(*at), part(*at))).collect();
    if !others.is_empty() {
        let weight: f64 = others.iter().map(|at| it.weights[*at]).sum();
        let name = format!("{weight:.3} in {} others", others.len());
        rows.push((name, it.gathered_from(others.iter().copied())));
    }
    rows.extend(it.outputs().into_iter().map(|(name, vector)| (name.to_owned(), vector)));
    let title = "6. The sum of the values, each times its weight; those of all heads go through one more matrix and are \
                 added to x";
    vectors(title, &rows)
}

fn wide(vector: &[f32]) -> Vec<f64> {
    vector.iter().copied().map(f64::from).collect()
}

/// The first numbers of vectors of equal length, with the norms of the vectors.
fn vectors(title: &str, rows: &[(String, Vec<f64>)]) -> Figure {
    let n = rows[0].1.len();
    let shown = n.min(SHOWN);
    let cell = |row: usize, at: usize| {
        let (name, vector) = &rows[row];
        let about = format!("{name}, number {at}: {}", signed(vector[at], 6));
        Some(Cell::new(vector[at], signed(vector[at], 2), about))
    };
    let name = |(name, vector): &(String, Vec<f64>)| {
        format!("{name} (length {:.3})", vector.iter().map(|x| x * x).sum::<f64>().sqrt())
    };
    let names = rows.iter().map(name).collect();
    let columns = (0..shown).map(|at| at.to_string()).collect();
    let scale = ColorScale::signed(rows.iter().flat_map(|(_, vector)| vector[..shown].iter().copied()));
    let grid = Grid::new(names, columns, ColumnKind::Elements, scale, cell);
    Figure::grid(format!("{title} (the first of {n} numbers)"), grid)
}

/// A number for each token up to `token`, and for a few later ones.
fn by_token(
    title: String,
    rows: &[(String, Vec<Option<f64>>)],
    scale: ColorScale,
    prompt: &Prompt,
    token: usize,
) -> Figure {
    let shown = (token + 1 + LATER).min(prompt.len());
    let title = match prompt.len() - shown {
        0 => title,
        n => format!("{title} (not shown: {})", counted(n as u64, "later token")),
    };
    let label = |value: f64| if scale == ColorScale::Fraction { format!("{value:.4}") } else { signed(value, 2) };
    let cell = |row: usize, at: usize| {
        let (name, numbers) = &rows[row];
        let value = numbers[at]?;
        let about = format!("{name} of “{}”, token {at}: {value:.6}", prompt.pieces[at]);
        Some(Cell::new(value, label(value), about))
    };
    let names = rows.iter().map(|(name, _)| name.clone()).collect();
    let columns = prompt.pieces[..shown].iter().map(|piece| short(LONGEST, piece)).collect();
    let grid = Grid::new(names, columns, ColumnKind::TokensFrom(0), scale, cell);
    Figure::grid(title, Grid { chosen: Some(token), ..grid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::testing::{louder, small_config};
    use crate::tokenizer::Tokenizer;
    use crate::view::sheet::Content;

    #[test]
    fn weighted_values_add_up_and_later_tokens_are_masked() {
        let (model, tokenizer) = (louder(&small_config(), 256), Tokenizer::byte());
        let prompt = Prompt::read("abcabcabcab", &tokenizer, 16).expect("the byte tokenizer encodes any text");
        let it = Explanation::new(&model, &prompt, [1, 0, 7]).expect("the flex device runs the model");
        let sheet = explanation_sheet(&it, &prompt);
        let grids: Vec<&Grid> = sheet
            .figures
            .iter()
            .filter_map(|it| if let Content::Grid(it) = &it.content { Some(it) } else { None })
            .collect();
        let [input, projected, matched, weighted, gathered] = grids[..] else { panic!("five grids") };
        let Content::Bars(bars) = &sheet.figures[0].content else { panic!("the weights come first") };
        assert!(bars.rows.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{bars:?}");
        assert!((bars.rows.iter().map(|(_, weight)| weight).sum::<f64>() - 1.0).abs() < 1e-9);
        let most = percent(bars.rows[0].1);
        assert!(
            sheet.lead.starts_with(&format!("Layer 1 head 0: “b”, token 7, gives {most} of its attention to ")),
            "{}",
            sheet.lead
        );
        assert_eq!(input.rows.len(), 3);
        assert!(projected.rows.len() >= 3);
        let values =
            |grid: &Grid, row: usize| -> Vec<f64> { grid.cells[row].iter().flatten().map(|it| it.value).collect() };
        assert_eq!(values(matched, 0).len(), 11);
        assert_eq!(values(matched, 2), it.scaled[..8], "of the token and those before it");
        assert!((values(weighted, 0).iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let last = gathered.rows.len() - 1;
        assert!(last == NAMED + 1 && gathered.rows[last - 1].contains("in 3 others"));
        for (at, sum) in values(gathered, last).into_iter().enumerate() {
            let parts: f64 = (0..last).map(|row| values(gathered, row)[at]).sum();
            assert!((parts - sum).abs() < 1e-9, "{parts} {sum}");
        }
    }
}
