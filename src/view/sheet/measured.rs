//! The sheets of `inspect lens` and `inspect ablate`: the contents of their cells and bars.

use std::iter;

use crate::format::{grouped, percent, signed};
use crate::inspect::{Ablation, Attribution, LayerPrediction, Lens, ModelPart, Patching, Prompt, TokenProbability};
use crate::tokenizer::visible;
use crate::view::sheet::{Bars, Cell, Choice, ColorScale, Figure, Grid, Sheet};
use crate::view::terminal::columns::short;
use crate::view::terminal::tables::{compared_with, contributions, stage_name};

/// The most columns of a token in a cell.
const LONGEST: usize = 8;
/// The number of parts that are ranked.
const N_RANKED: usize = 12;

/// The most probable token of each layer after every token, and the contributions to the prediction after the token at
/// `position`; if there are several attributions, a reader can choose another token.
///
/// # Panics
/// If none of the attributions is about this token.
#[must_use]
pub fn lens_sheet(lens: &Lens, attributions: &[Attribution], position: usize, prompt: &Prompt) -> Sheet {
    assert!(attributions.iter().any(|it| it.position == position), "its contributions are known");
    let stages = lens.positions.first().map_or(&[][..], |at| &at.stages);
    let cell = |stage: usize, at: usize| {
        let prediction = &lens.positions[at].stages[stage];
        let best = prediction.top.first()?;
        let about = format!("After “{}”, token {at}, {}", prompt.pieces[at], guesses(prediction));
        let label = short(LONGEST, &visible(&best.token));
        Some(Cell { value: best.probability, label, note: whole_percent(best.probability), about })
    };
    let n = lens.positions.len();
    let grid = Grid {
        title: "The likeliest next token by each layer; the colour is its probability".to_owned(),
        rows: stages.iter().map(|stage| stage_name(stage.layer)).collect(),
        columns: prompt.pieces.iter().map(|piece| short(LONGEST, piece)).collect(),
        cells: (0..stages.len()).map(|stage| (0..n).map(|at| cell(stage, at)).collect()).collect(),
        scale: ColorScale::Fraction,
    };
    let bars = attributions.iter().map(|it| {
        let choice = Choice { column: it.position, is_first: it.position == position };
        Bars { choice: (attributions.len() > 1).then_some(choice), ..attribution_bars(it, prompt) }
    });
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead: "The residual stream after each layer, read as if it were the last. A column is the token that was read \
               last; the lowest row is the model's own prediction."
            .to_owned()
            + if attributions.len() > 1 { " A click on a column shows what its prediction is made of." } else { "" },
        figures: iter::once(Figure::Grid(grid)).chain(bars.map(Figure::Bars)).collect(),
    }
}

/// A probability in a small cell: `94 %`, `<1 %`.
fn whole_percent(share: f64) -> String {
    if share < 0.005 { "<1 %".to_owned() } else { format!("{:.0} %", 100.0 * share) }
}

fn guesses(prediction: &LayerPrediction) -> String {
    let guess = |guess: &TokenProbability| format!("“{}” {:.3}", visible(&guess.token), guess.probability);
    let top: Vec<String> = prediction.top.iter().map(guess).collect();
    let actual = prediction.actual.as_ref().map_or(String::new(), |actual| {
        format!("; “{}” came, {:.3}, rank {}", visible(&actual.entry.token), actual.entry.probability, actual.rank)
    });
    format!("{}: {}{actual}", stage_name(prediction.layer), top.join(", "))
}

fn attribution_bars(it: &Attribution, prompt: &Prompt) -> Bars {
    let title = format!(
        "After “{}”, token {}: the logit of “{}” minus {} is {}, the sum of",
        prompt.pieces[it.position],
        it.position,
        visible(&it.answer.token),
        compared_with(it, ["“", "”"]),
        signed(it.difference, 4)
    );
    Bars { title, rows: contributions(it), choice: None, label: in_nats }
}

/// The rise of the loss without each head and layer; `measured_on` names the text.
#[must_use]
pub fn ablation_sheet(it: &Ablation, measured_on: &str) -> Sheet {
    let rises: Vec<(ModelPart, f64)> =
        it.parts.iter().filter_map(|part| Some((part.part, part.mean.or(part.zero)? - it.loss))).collect();
    let has_mean = it.parts.iter().any(|part| part.mean.is_some());
    let instead = if has_mean { "their mean over the text" } else { "zero" };
    let about =
        |part: ModelPart, rise: f64| format!("without {part} the loss is {} nats per token higher", signed(rise, 4));
    let title = "How much the loss rises without each part, nats per token".to_owned();
    let grid =
        parts_grid(title, &rises, ColorScale::signed(rises.iter().map(|(_, rise)| *rise)), |x| signed(x, 3), about);
    let mut order = rises.clone();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = order.first();
    let rows = order.iter().take(N_RANKED).map(|(part, rise)| (part.to_string(), *rise)).collect();
    let ranked = Bars { title: "The parts without which it rises most".to_owned(), rows, choice: None, label: in_nats };
    Sheet {
        heading: "The loss without each part".to_owned(),
        lead: format!(
            "The whole model has a loss of {:.4} nats per token over {} tokens: {measured_on}. A part is switched off by \
             setting its values to {instead}; its number is how much worse the model then predicts this text, \
             and below 0 the model does better without it.{}",
            it.loss,
            grouped(it.tokens as u64),
            most.map(|(part, rise)| format!(" It can least do without {part}: {}.", signed(*rise, 4)))
                .unwrap_or_default()
        ),
        figures: vec![Figure::Grid(grid), Figure::Bars(ranked)],
    }
}

fn in_nats(number: f64) -> String {
    signed(number, 4)
}

/// Parts by layer: the heads, the whole attention layer, the feed-forward layer.
fn parts_grid(
    title: String,
    values: &[(ModelPart, f64)],
    scale: ColorScale,
    label: impl Fn(f64) -> String,
    about: impl Fn(ModelPart, f64) -> String,
) -> Grid {
    let cell_of = |part: ModelPart, n_heads: usize| match part {
        ModelPart::Head { layer, head } => Some((layer, head)),
        ModelPart::Attention { layer } => Some((layer, n_heads)),
        ModelPart::Mlp { layer } => Some((layer, n_heads + 1)),
        ModelPart::Embedding | ModelPart::Residual { .. } => None,
    };
    let n_heads = values.iter().filter(|(part, _)| matches!(part, ModelPart::Head { layer: 0, .. })).count();
    let n_layers = values.iter().filter(|(part, _)| matches!(part, ModelPart::Mlp { .. })).count();
    let mut cells = vec![vec![None; n_heads + 2]; n_layers];
    for &(part, value) in values {
        if let Some((row, column)) = cell_of(part, n_heads) {
            cells[row][column] =
                Some(Cell { value, label: label(value), note: String::new(), about: about(part, value) });
        }
    }
    let heads = (0..n_heads).map(|head| format!("head {head}"));
    Grid {
        title,
        rows: (0..n_layers).map(|layer| stage_name(Some(layer))).collect(),
        columns: heads.chain(["attention".to_owned(), "mlp".to_owned()]).collect(),
        cells,
        scale,
    }
}

/// The parts that move one text's prediction towards another's, and the positions of the difference in the
/// residual stream.
#[must_use]
pub fn patching_sheet(it: &Patching, [prompt, from]: [&Prompt; 2]) -> Sheet {
    let moved: Vec<(ModelPart, f64)> = it.parts.iter().map(|patched| (patched.part, patched.share)).collect();
    let about = |part: ModelPart, fraction: f64| {
        format!("{part} from the other prompt moves the difference by {}", percent(fraction))
    };
    let positions = it.first_difference()..it.position + 1;
    let stage = |stage: usize| stage_name(stage.checked_sub(1));
    let cell = |row: usize, at: usize| {
        let value = it.residual[row][at];
        let about = format!("{} at “{}”, token {at}: {}", stage(row), prompt.pieces[at], percent(value));
        Some(Cell { value, label: percent(value), note: String::new(), about })
    };
    let all = it.residual.iter().flatten().copied().chain(moved.iter().map(|(_, fraction)| *fraction));
    let scale = ColorScale::signed(all);
    let residual = Grid {
        title: "With the residual stream of the other prompt at one token: how far that moves the difference"
            .to_owned(),
        rows: (0..it.residual.len()).map(stage).collect(),
        columns: prompt.pieces[positions.clone()].iter().map(|piece| short(LONGEST, piece)).collect(),
        cells: (0..it.residual.len()).map(|row| positions.clone().map(|at| cell(row, at)).collect()).collect(),
        scale,
    };
    let title =
        "With one part's values from the other prompt, at all tokens: how far that moves the difference".to_owned();
    let parts = parts_grid(title, &moved, scale, percent, about);
    let [answer, against] = [&it.answer, &it.against].map(|answer| visible(&answer.token));
    Sheet {
        heading: prompt.whole_pieces().concat(),
        lead: format!(
            "Patched from “{}”. After token {}, the logit of “{answer}” minus that of “{against}” is {} in the prompt and {} \
             in the other: 0 % and 100 %.",
            from.whole_pieces().concat(),
            it.position,
            signed(it.difference, 4),
            signed(it.from_difference, 4)
        ),
        figures: vec![Figure::Grid(residual), Figure::Grid(parts)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::testing::{louder, small_config};
    use crate::inspect::{Answer, Term};
    use crate::tokenizer::Tokenizer;
    use crate::view::sheet::{sheets_html, sheets_svg};

    fn sheets(text: &str) -> Vec<Sheet> {
        let (model, tokenizer) = (louder(&small_config(), 256), Tokenizer::byte());
        let prompt = Prompt::read(text, &tokenizer, 16).expect("bytes");
        let from = Prompt::read(&text.replace('a', "b"), &tokenizer, 16).expect("bytes");
        let position = prompt.len() - 1;
        let answer = |of: &Prompt| Answer::likeliest(&model, &tokenizer, of, position).expect("a device");
        let lens = Lens::new(&model, &tokenizer, &prompt, 3).expect("read");
        let attribution = Attribution::new(&model, &prompt, position, answer(&prompt), None).expect("read");
        let both = [Answer { id: 1, token: "<".to_owned() }, Answer { id: 2, token: "\"".to_owned() }];
        let patching = Patching::new(&model, [&prompt, &from], position, both).expect("patched");
        assert!(attribution.terms.iter().any(|Term { logit, .. }| *logit < 0.0));
        vec![
            lens_sheet(&lens, std::slice::from_ref(&attribution), position, &prompt),
            patching_sheet(&patching, [&prompt, &from]),
        ]
    }

    #[test]
    fn a_lens_has_a_cell_for_each_layer_and_token() {
        let sheets = sheets("<a&b>\"");
        let [Figure::Grid(grid), Figure::Bars(bars)] = &sheets[0].figures[..] else { panic!("a grid and bars") };
        assert_eq!((grid.rows.len(), grid.columns.len()), (3, 6));
        assert!(grid.cells.iter().flatten().all(|cell| cell.as_ref().is_some_and(|cell| cell.value <= 1.0)));
        assert!((11..22).contains(&bars.rows.len()), "every part of two layers of four heads, and the token");
        let [Figure::Grid(residual), Figure::Grid(parts)] = &sheets[1].figures[..] else { panic!("two grids") };
        assert_eq!((residual.columns.len(), parts.columns.len()), (5, 6), "from the first token that differs");
    }

    #[test]
    fn text_stays_text_in_pages_and_pictures() {
        let sheets = sheets("<a&b>\"");
        let html = sheets_html("Lens", "a run", &sheets);
        assert_eq!(html.matches("<script").count(), 1);
        assert!(html.contains("&lt;a&amp;b&gt;&quot;") && !html.contains("<a&b>"));
        let svg = sheets_svg("Lens", "a run", &sheets);
        assert!(svg.contains("&lt;a&amp;b&gt;&quot;") && !svg.contains("<a&b>") && !svg.contains("var("));
        let Figure::Bars(bars) = &sheets[0].figures[1] else { panic!("bars") };
        let legends = 6 + 5 + 5;
        assert_eq!(svg.matches("<rect").count(), 3 * 6 + bars.rows.len() + 3 * 5 + 2 * 6 + legends);
    }

    #[test]
    fn a_head_without_which_the_loss_rises_most_is_strongest() {
        let part = |part, mean| crate::inspect::Ablated { part, zero: None, mean: Some(mean) };
        let parts = vec![
            part(ModelPart::Head { layer: 0, head: 1 }, 3.0),
            part(ModelPart::Head { layer: 0, head: 0 }, 1.9),
            part(ModelPart::Attention { layer: 0 }, 2.0),
            part(ModelPart::Mlp { layer: 0 }, 2.5),
        ];
        let sheet = ablation_sheet(&Ablation { tokens: 1000, loss: 2.0, parts }, "a text");
        let [Figure::Grid(grid), Figure::Bars(bars)] = &sheet.figures[..] else { panic!("a grid and bars") };
        assert_eq!(bars.rows[0].0, "layer 0 head 1");
        assert!(sheet.lead.ends_with("It can least do without layer 0 head 1: +1.0000."), "{}", sheet.lead);
        assert_eq!(grid.scale, ColorScale::Signed(1.0));
        let values: Vec<f64> = grid.cells[0].iter().flatten().map(|cell| (cell.value * 10.0).round() / 10.0).collect();
        assert_eq!(values, [-0.1, 1.0, 0.0, 0.5]);
        assert_eq!(grid.columns, ["head 0", "head 1", "attention", "mlp"]);
    }
}
