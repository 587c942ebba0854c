//! The sheets of `inspect lens` and `inspect ablate`.

use crate::format::{grouped, percent, signed};
use crate::inspect::{
    Ablation, Attribution, LayerPrediction, Lens, ModelPart, Patching, PredictionGraph, Prompt, TokenProbability,
};
use crate::tokenizer::visible;
use crate::view::sheet::graph::prediction_graph;
use crate::view::sheet::{Cell, Choice, ColorScale, ColumnKind, Figure, Grid, Sheet};
use crate::view::terminal::columns::short;

const LONGEST: usize = 8;
const N_RANKED: usize = 12;
const N_NAMED: usize = 20;
/// The difference between two logit differences, in nats, below which shares of it mean little.
const SMALL_DIFFERENCE: f64 = 0.5;

/// The most probable token of each layer after every token, if `has_all`; the most probable ones after the token at
/// `position`, and the contributions to its prediction. If there are several attributions, a reader can choose another
/// token. The graph is about the prediction after `position`, too.
///
/// # Panics
/// If none of the attributions is about this token.
pub fn lens_sheet(
    lens: &Lens,
    attributions: &[Attribution],
    position: usize,
    prompt: &Prompt,
    has_all: bool,
    graph: Option<&PredictionGraph>,
) -> Sheet {
    assert!(attributions.iter().any(|it| it.position == position), "an attribution is about the chosen token");
    let all = Grid { chosen: Some(position), ..every_token(lens, prompt) };
    let all = Figure::grid(
        "The likeliest next token by each layer, marked where it came; the colour is its probability (none for the \
         embedding, which knows only the token itself)",
        all,
    );
    let graph = graph.map(|graph| prediction_graph(graph, prompt));
    let chosen = attributions.iter().flat_map(|it| {
        let choice = Choice { column: it.position, is_first: it.position == position };
        let choice = (attributions.len() > 1).then_some(choice);
        [ranked(&lens.positions[it.position].stages, it.position, prompt), contributions(it, prompt)]
            .map(|figure| Figure { choice, ..figure })
    });
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead:
            "The residual stream after each layer, decoded as if it were the last; the last layer's is the model's own \
               prediction."
                .to_owned()
                + if attributions.len() > 1 { " Click a column to see what its prediction is made of." } else { "" },
        figures: has_all.then_some(all).into_iter().chain(chosen).chain(graph).collect(),
    }
}

fn every_token(lens: &Lens, prompt: &Prompt) -> Grid {
    let stages = lens.positions.first().map_or(&[][..], |at| &at.stages);
    let cell = |row: usize, at: usize| {
        let predictions = &lens.positions[at].stages;
        let after = format!("After “{}”, token {at}, ", prompt.pieces[at]);
        if let Some(prediction) = predictions.get(row) {
            let likeliest = prediction.top.first()?;
            let came = prediction.actual.as_ref().is_some_and(|actual| actual.rank == 1);
            let cell = guess(likeliest, after + &guesses(prediction));
            return Some(Cell { is_marked: came, value: shade(prediction, likeliest), ..cell });
        }
        let actual = predictions.last()?.actual.as_ref()?;
        Some(guess(&actual.entry, format!("{after}the next token of the text has rank {}", actual.rank)))
    };
    let rows = stages.iter().map(|stage| stage_name(stage.layer)).chain(["actual next".to_owned()]).collect();
    let columns = prompt.pieces.iter().map(|piece| short(LONGEST, piece)).collect();
    Grid::new(rows, columns, ColumnKind::TokensFrom(0), ColorScale::Fraction, cell)
}

fn ranked(stages: &[LayerPrediction], position: usize, prompt: &Prompt) -> Figure {
    let n_top = stages.first().map_or(0, |stage| stage.top.len());
    let mut columns: Vec<String> = (1..=n_top).map(|rank| format!("{rank}.")).collect();
    if stages.iter().any(|stage| stage.actual.is_some()) {
        columns.push("actual next, rank".to_owned());
    }
    let cell = |row: usize, at: usize| {
        let stage = &stages[row];
        let about = |it: &TokenProbability| {
            format!("{}: “{}” {:.4}", stage_name(stage.layer), visible(&it.token), it.probability)
        };
        if let Some(it) = stage.top.get(at) {
            return Some(Cell { value: shade(stage, it), ..guess(it, about(it)) });
        }
        let actual = stage.actual.as_ref()?;
        let cell = guess(&actual.entry, format!("{}, rank {}", about(&actual.entry), actual.rank));
        Some(Cell { note: format!("{}, {}", cell.note, actual.rank), ..cell })
    };
    let title =
        format!("After “{}”, token {position}: the likeliest next tokens by each layer", prompt.pieces[position]);
    let rows = stages.iter().map(|stage| stage_name(stage.layer)).collect();
    Figure::grid(title, Grid::new(rows, columns, ColumnKind::Named, ColorScale::Fraction, cell))
}

fn guess(it: &TokenProbability, about: String) -> Cell {
    let label = short(LONGEST, &visible(&it.token));
    Cell { note: whole_percent(it.probability), ..Cell::new(it.probability, label, about) }
}

/// The probability as a colour; none for the embedding, whose guesses are mostly the token itself.
fn shade(stage: &LayerPrediction, it: &TokenProbability) -> f64 {
    stage.layer.map_or(0.0, |_| it.probability)
}

/// A probability in a small cell: `94 %`, `<1 %`.
fn whole_percent(share: f64) -> String {
    if share < 0.005 { "<1 %".to_owned() } else { format!("{:.0} %", 100.0 * share) }
}

fn guesses(prediction: &LayerPrediction) -> String {
    let guess = |guess: &TokenProbability| format!("“{}” {:.3}", visible(&guess.token), guess.probability);
    let top: Vec<String> = prediction.top.iter().map(guess).collect();
    let actual = prediction.actual.as_ref().map_or(String::new(), |actual| {
        format!("; “{}” follows, {:.3}, rank {}", visible(&actual.entry.token), actual.entry.probability, actual.rank)
    });
    format!("{}: {}{actual}", stage_name(prediction.layer), top.join(", "))
}

fn stage_name(layer: Option<usize>) -> String {
    layer.map_or("embedding".to_owned(), |layer| format!("layer {layer}"))
}

/// The largest contributions by name, and the sum of the others.
fn contributions(it: &Attribution, prompt: &Prompt) -> Figure {
    let against = match &it.against {
        Some(against) => format!("that of “{}”", visible(&against.token)),
        None => "the mean of all logits".to_owned(),
    };
    let title = format!(
        "After “{}”, token {}: the logit of “{}” minus {against} is {}, the sum of these contributions",
        prompt.pieces[it.position],
        it.position,
        visible(&it.answer.token),
        signed(it.difference, 4)
    );
    let ranked = it.ranked();
    // All of them, if only one would be left out.
    let n_named = if ranked.len() <= N_NAMED + 1 { ranked.len() } else { N_NAMED };
    let (named, rest) = ranked.split_at(n_named);
    let mut terms: Vec<_> = named.iter().map(|term| (term.component.to_string(), term.logit)).collect();
    if !rest.is_empty() {
        terms.push((format!("{} others", rest.len()), rest.iter().map(|term| term.logit).sum()));
    }
    Figure::bars(title, terms, in_nats)
}

fn in_nats(number: f64) -> String {
    signed(number, 4)
}

/// The rise of the loss without each head and layer; `measured_on` names the text.
pub fn ablation_sheet(it: &Ablation, measured_on: &str) -> Sheet {
    let rises = |of: fn(&crate::inspect::Ablated) -> Option<f64>| -> Vec<(ModelPart, f64)> {
        it.parts.iter().filter_map(|part| Some((part.part, of(part)? - it.loss))).collect()
    };
    let methods = [("the mean over these tokens", rises(|part| part.mean)), ("zeros", rises(|part| part.zero))];
    let methods: Vec<_> = methods.into_iter().filter(|(_, rises)| !rises.is_empty()).collect();
    let about =
        |part: ModelPart, rise: f64| format!("without {part} the loss is {} nats per token higher", signed(rise, 4));
    let grid = |(instead, rises): &(&str, Vec<(ModelPart, f64)>)| {
        let scale = ColorScale::signed(rises.iter().map(|(_, rise)| *rise));
        Figure::grid(
            format!("The rise of the loss with {instead} in place of a part's output, nats per token"),
            parts_grid(rises, scale, |x| signed(x, 3), about),
        )
    };
    let mut figures: Vec<Figure> = methods.iter().map(grid).collect();
    let mut best = String::new();
    if let Some((instead, rises)) = methods.first() {
        let mut order = rises.clone();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        best = order
            .first()
            .map_or(String::new(), |(part, rise)| format!(" It depends most on {part}: {}.", signed(*rise, 4)));
        let rows = order.iter().take(N_RANKED).map(|(part, rise)| (part.to_string(), *rise)).collect();
        figures.push(Figure::bars(
            format!("The parts that raise it most, with {instead} in their place"),
            rows,
            in_nats,
        ));
    }
    Sheet {
        heading: "The loss without each part".to_owned(),
        lead: format!(
            "The whole model has a loss of {:.4} nats per token over {} tokens: {measured_on}. Below 0 the model \
             predicts this text better without the part.{best}",
            it.loss,
            grouped(it.tokens as u64),
        ),
        figures,
    }
}

/// Parts by layer: the heads, the whole attention layer, the feed-forward layer.
fn parts_grid(
    values: &[(ModelPart, f64)],
    scale: ColorScale,
    label: impl Fn(f64) -> String,
    about: impl Fn(ModelPart, f64) -> String,
) -> Grid {
    let n_heads = values.iter().filter(|(part, _)| matches!(part, ModelPart::Head { layer: 0, .. })).count();
    let n_layers = values.iter().filter(|(part, _)| matches!(part, ModelPart::Mlp { .. })).count();
    let cell = |layer: usize, column: usize| {
        let wanted = match column {
            head if head < n_heads => ModelPart::Head { layer, head },
            column if column == n_heads => ModelPart::Attention { layer },
            _ => ModelPart::Mlp { layer },
        };
        let (part, value) = *values.iter().find(|(part, _)| *part == wanted)?;
        Some(Cell::new(value, label(value), about(part, value)))
    };
    let heads = (0..n_heads).map(|head| format!("head {head}"));
    let columns = heads.chain(["attention".to_owned(), "mlp".to_owned()]).collect();
    let layers = (0..n_layers).map(|layer| stage_name(Some(layer))).collect();
    Grid::new(layers, columns, ColumnKind::Named, scale, cell)
}

/// The parts that move one text's prediction towards another's, and the positions of the difference in the
/// residual stream.
pub fn patching_sheet(it: &Patching, [prompt, from]: [&Prompt; 2]) -> Sheet {
    let moved: Vec<(ModelPart, f64)> = it.parts.iter().map(|patched| (patched.part, patched.share)).collect();
    let about = |part: ModelPart, fraction: f64| {
        format!("{part} from the other prompt moves the difference by {}", percent(fraction))
    };
    let first = it.first_difference();
    let stages: Vec<String> = (0..it.residual.len()).map(|stage| stage_name(stage.checked_sub(1))).collect();
    let cell = |row: usize, column: usize| {
        let at = first + column;
        let value = it.residual[row][at];
        let about = format!("{} at “{}”, token {at}: {}", stages[row], prompt.pieces[at], percent(value));
        Some(Cell::new(value, percent(value), about))
    };
    let all = it.residual.iter().flatten().copied().chain(moved.iter().map(|(_, fraction)| *fraction));
    let scale = ColorScale::shares(all);
    let columns = prompt.pieces[first..=it.position].iter().map(|piece| short(LONGEST, piece)).collect();
    let residual = Grid::new(stages.clone(), columns, ColumnKind::TokensFrom(first), scale, cell);
    let residual = Grid { chosen: Some(it.position - first), ..residual };
    let ranked = moved.iter().take(N_RANKED).map(|(part, fraction)| (part.to_string(), *fraction)).collect();
    let [answer, against] = [&it.answer, &it.against].map(|answer| visible(&answer.token));
    let whole = (it.from_difference - it.difference).abs();
    let little = match whole < SMALL_DIFFERENCE {
        true => format!(" The two are only {whole:.4} apart: shares of so little mean little."),
        false => String::new(),
    };
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead: format!(
            "With values patched from “{}”. After token {}, the logit of “{answer}” minus that of “{against}” is {} in \
             the prompt and {} in the other: 0 % and 100 %.{little}",
            from.whole_pieces().concat(),
            it.position,
            signed(it.difference, 4),
            signed(it.from_difference, 4)
        ),
        figures: vec![
            Figure::grid("How far the residual stream of the other prompt at one token moves the difference", residual),
            Figure::grid(
                "How far one part's values from the other prompt, at all tokens, move it",
                parts_grid(&moved, scale, percent, about),
            ),
            Figure::bars("The parts that move it most", ranked, percent),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Answer;
    use crate::inspect::testing::{louder, small_config};
    use crate::tokenizer::Tokenizer;
    use crate::view::sheet::Content;
    use crate::view::sheet::html::sheets_html;
    use crate::view::sheet::svg::sheets_svg;

    #[test]
    fn sheets_escape_prompts() {
        let (model, tokenizer) = (louder(&small_config(), 256), Tokenizer::byte());
        let prompt = Prompt::read("<a&b>\"", &tokenizer, 16).expect("the byte tokenizer encodes any text");
        let lens = Lens::new(&model, &tokenizer, &prompt, 3).expect("the flex device runs the model");
        let answer = Answer::likeliest(&model, &tokenizer, &prompt, 5).expect("the flex device runs the model");
        let attribution =
            Attribution::new(&model, &prompt, 5, answer.clone(), None).expect("the flex device runs the model");
        let graph = PredictionGraph::new(&model, &prompt, 5, answer, None).expect("the flex device runs the model");
        let sheet = lens_sheet(&lens, &[attribution], 5, &prompt, true, Some(&graph));
        for drawn in [sheets_html("Lens", "a run", std::slice::from_ref(&sheet)), sheets_svg("Lens", "a run", &[sheet])]
        {
            assert!(drawn.contains("&lt;a&amp;b&gt;&quot;") && !drawn.contains("<a&b>"));
        }
    }

    #[test]
    fn ablation_ranks_parts_by_rise() {
        let part = |part, mean| crate::inspect::Ablated { part, zero: None, mean: Some(mean) };
        let parts = vec![
            part(ModelPart::Head { layer: 0, head: 1 }, 3.0),
            part(ModelPart::Head { layer: 0, head: 0 }, 1.9),
            part(ModelPart::Attention { layer: 0 }, 2.0),
            part(ModelPart::Mlp { layer: 0 }, 2.5),
        ];
        let sheet = ablation_sheet(&Ablation { tokens: 1000, loss: 2.0, parts }, "a text");
        let contents: Vec<&Content> = sheet.figures.iter().map(|figure| &figure.content).collect();
        let [Content::Grid(grid), Content::Bars(bars)] = contents[..] else { panic!("a grid and bars") };
        assert_eq!(bars.rows[0].0, "layer 0 head 1");
        assert!(sheet.lead.ends_with("It depends most on layer 0 head 1: +1.0000."), "{}", sheet.lead);
        assert_eq!(grid.scale, ColorScale::Signed(1.0));
        let values: Vec<f64> = grid.cells[0].iter().flatten().map(|cell| (cell.value * 10.0).round() / 10.0).collect();
        assert_eq!(values, [-0.1, 1.0, 0.0, 0.5]);
        assert_eq!(grid.columns, ["head 0", "head 1", "attention", "mlp"]);
    }
}
