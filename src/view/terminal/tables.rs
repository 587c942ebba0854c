//! The tables of `inspect ablate`, `inspect embeddings` and `inspect lens`. Every line ends with a line break. Cells
//! have the colours of dark pages.

use crate::format::{fixed, grouped, percent, signed};
use crate::inspect::{
    Ablated, Ablation, ActualToken, Attribution, Embeddings, LayerPrediction, Lens, Patched, Patching, Prompt, Stage,
    TokenPredictions, TokenProbability,
};
use crate::tokenizer::visible;
use crate::view::sheet::ColorScale;
use crate::view::terminal::attention::Palette;
use crate::view::terminal::columns::{named_flow, numbered, short};
use crate::view::terminal::table::{NamedRow, continued_table};
use crate::view::theme::Theme;

/// The most columns of a token in a table.
const LONGEST_TOKEN: usize = 12;
/// The most parts named.
const NAMED: usize = 20;
/// The difference between two logit differences, in nats, below which shares of it mean little.
const SMALL_DIFFERENCE: f64 = 0.5;

/// A row's name and its cells, each with the number that colours it; `None` leaves a cell uncoloured.
type ColoredRow = (String, Vec<(String, Option<f64>)>);

/// A table whose cells are coloured by value on a scale.
fn colored_table(
    columns: &[String],
    rows: &[ColoredRow],
    (palette, n_columns): (Palette, usize),
    scale: ColorScale,
) -> String {
    let texts = |cells: &[(String, Option<f64>)]| cells.iter().map(|(text, _)| text.clone()).collect();
    let named: Vec<NamedRow> = rows.iter().map(|(name, cells)| (name.clone(), texts(cells))).collect();
    continued_table(columns, &named, n_columns, |row, column, cell| match rows[row].1[column].1 {
        Some(value) => palette.on(scale.colors(value, Theme::Dark), &cell),
        None => cell,
    })
}

/// The scale on which the largest absolute value has full strength.
fn signed_scale<'a>(rows: impl IntoIterator<Item = &'a ColoredRow>) -> ColorScale {
    ColorScale::signed(rows.into_iter().flat_map(|(_, cells)| cells.iter().filter_map(|(_, value)| *value)))
}

fn percent_cell(share: f64) -> (String, Option<f64>) {
    (percent(share), Some(share))
}

/// The loss of the intact model, and its rise without each part; `measured_on` names the text.
#[must_use]
pub fn ablation(it: &Ablation, measured_on: &str, style: (Palette, usize)) -> String {
    let first = it.parts.first();
    let has_mean = first.is_some_and(|part| part.mean.is_some());
    let has_zero = first.is_some_and(|part| part.zero.is_some());
    let mut columns = Vec::new();
    columns.extend(has_mean.then(|| "mean instead".to_owned()));
    columns.extend(has_zero.then(|| "zeros instead".to_owned()));
    let row = |part: &Ablated| -> ColoredRow {
        let rises = [part.mean, part.zero].into_iter().flatten().map(|loss| loss - it.loss);
        (part.part.to_string(), rises.map(|rise| (signed(rise, 4), Some(rise))).collect())
    };
    let rows: Vec<ColoredRow> = it.parts.iter().map(row).collect();
    let mut text = format!(
        "loss {:.4} nats per token over {} tokens: {measured_on}\n\nWithout a part the loss is higher by\n{}",
        it.loss,
        grouped(it.tokens as u64),
        colored_table(&columns, &rows, style, signed_scale(&rows))
    );
    if has_mean {
        text += "mean instead: what the part writes on average over these tokens, everywhere\n";
    }
    text
}

/// The similarity of one word's vectors in each pair of texts, the similarity of the word to others, and the change by
/// attention, at every position if `all_positions`.
#[must_use]
pub fn embeddings(it: &Embeddings, prompts: &[Prompt], all_positions: bool, n_columns: usize) -> String {
    let mut text = format!("`{}`, by the vector of its last token\n", it.word);
    for (index, (prompt, occurrence)) in prompts.iter().zip(&it.occurrences).enumerate() {
        let name = format!("  text {index}, token {}:", occurrence.position);
        text += &named_flow(&name, 19, &prompt.whole_pieces(), n_columns);
    }
    text += "\nHow similar the word's vectors are: 1 the same direction, 0 unrelated, -1 opposite\n";
    text += &similarities(it, n_columns);
    if !it.context.is_empty() {
        text += "\nHow similar the word and others of the same text are\n";
        let names = it.context.iter().map(|other| format!("`{}` in {}", other.word, other.prompt));
        let cells = |stage: usize| {
            let cells = it.context.iter().map(|other| other.similarity[stage]);
            cells.map(|cosine| fixed(cosine, 3)).collect()
        };
        text += &continued_table(&names.collect::<Vec<_>>(), &by_stage(it, cells), n_columns, |_, _, cell| cell);
    }
    text += "\nHow similar the input and the output of an attention layer are\n";
    let n_layers = it.attention.first().map_or(0, Vec::len);
    let columns: Vec<String> = (0..n_layers).map(|layer| format!("layer {layer}")).collect();
    let mut rows = Vec::new();
    for (index, (prompt, occurrence)) in prompts.iter().zip(&it.occurrences).enumerate() {
        for at in 0..prompt.len() {
            if all_positions || at == occurrence.position {
                let cosines = it.attention[index].iter().map(|layer| fixed(layer[at], 3));
                let name = format!("text {index}, token {at:>3} {}", prompt.pieces[at]);
                rows.push((name, cosines.collect()));
            }
        }
    }
    text + &continued_table(&columns, &rows, n_columns, |_, _, cell| cell)
}

fn similarities(it: &Embeddings, n_columns: usize) -> String {
    let n = it.occurrences.len();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect();
    let mut columns: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} and {b}")).collect();
    columns.push("other tokens".to_owned());
    let cells = |stage: usize| {
        let cosines = pairs.iter().map(|&(a, b)| fixed(it.similarity[stage][a][b], 3));
        let others = it.others[stage].map_or("-".to_owned(), |cosine| fixed(cosine, 3));
        cosines.chain([others]).collect()
    };
    let mut text = continued_table(&columns, &by_stage(it, cells), n_columns, |_, _, cell| cell);
    text += "other tokens: the word and every other token of its text, on average\n";
    for (a, b) in pairs.into_iter().filter(|&(a, b)| it.have_same_past(a, b)) {
        text += &format!(
            "{a} and {b} are the same up to the word: no token sees later ones, so its vectors are the same\n"
        );
    }
    text
}

fn by_stage(it: &Embeddings, cells: impl Fn(usize) -> Vec<String>) -> Vec<NamedRow> {
    let row = |(index, stage): (usize, &Stage)| (embedding_stage(stage), cells(index));
    it.stages.iter().enumerate().map(row).collect()
}

pub(crate) fn embedding_stage(stage: &Stage) -> String {
    match stage {
        Stage::Token => "token embedding".to_owned(),
        Stage::Embedding => "embedding + position".to_owned(),
        Stage::Layer(layer) => format!("after layer {layer}"),
        Stage::Norm => "final norm".to_owned(),
    }
}

/// The predictions of each layer: the most probable token after every token, if `all_positions`, and several after the
/// token of `attribution`, with the contributions to its answer.
#[must_use]
pub fn lens(
    lens: &Lens,
    attribution: &Attribution,
    prompt: &Prompt,
    all_positions: bool,
    style: (Palette, usize),
) -> String {
    let name = format!("{} tokens", prompt.len());
    let mut text = named_flow(&name, 12, &prompt.whole_pieces(), style.1);
    if all_positions {
        text += "\nThe likeliest next token by each layer, and its probability; `came` with the model's own\n";
        text += &every_position(lens, prompt, style);
    }
    let position = attribution.position;
    text += &format!(
        "\nAfter `{}`, token {position}: the likeliest next tokens by each layer\n{}\n{}",
        prompt.pieces[position],
        one_position(&lens.positions[position].stages, style),
        parts(attribution, style)
    );
    text
}

fn every_position(lens: &Lens, prompt: &Prompt, style: (Palette, usize)) -> String {
    let stages = lens.positions.first().map_or(&[][..], |at| &at.stages);
    let mut columns: Vec<String> = stages.iter().map(|stage| stage_name(stage.layer)).collect();
    columns.push("came".to_owned());
    let row = |(at, piece): (&TokenPredictions, &String)| -> ColoredRow {
        let actual = at.stages.last().and_then(|stage| stage.actual.as_ref());
        let actual = actual.map_or((String::new(), None), |actual| guess(&actual.entry));
        let cells = at.stages.iter().map(|stage| guess(&stage.top[0])).chain([actual]);
        (numbered(at.position, prompt.len() - 1, &short(LONGEST_TOKEN, piece)), cells.collect())
    };
    let rows: Vec<ColoredRow> = lens.positions.iter().zip(&prompt.pieces).map(row).collect();
    colored_table(&columns, &rows, style, ColorScale::Fraction)
}

fn one_position(stages: &[LayerPrediction], style: (Palette, usize)) -> String {
    let n_top = stages.first().map_or(0, |stage| stage.top.len());
    let mut columns: Vec<String> = (1..=n_top).map(|rank| format!("{rank}.")).collect();
    if let Some(actual) = stages.first().and_then(|stage| stage.actual.as_ref()) {
        let token = short(LONGEST_TOKEN, &visible(&actual.entry.token));
        columns.extend([format!("came: {token}"), "rank".to_owned()]);
    }
    let row = |stage: &LayerPrediction| -> ColoredRow {
        let mut cells: Vec<_> = stage.top.iter().map(guess).collect();
        if let Some(ActualToken { entry: TokenProbability { probability, .. }, rank }) = &stage.actual {
            cells.extend([(format!("{probability:.4}"), Some(*probability)), (rank.to_string(), None)]);
        }
        (stage_name(stage.layer), cells)
    };
    let rows: Vec<ColoredRow> = stages.iter().map(row).collect();
    colored_table(&columns, &rows, style, ColorScale::Fraction)
}

fn parts(it: &Attribution, style: (Palette, usize)) -> String {
    let n_named = n_named(it.terms.len());
    let terms = contributions(it).into_iter().chain([("together".to_owned(), it.sum())]).enumerate();
    // Sums are not coloured.
    let row = |(at, (name, logit)): (usize, (String, f64))| -> ColoredRow {
        (name, vec![(signed(logit, 4), (at < n_named).then_some(logit))])
    };
    let rows: Vec<ColoredRow> = terms.map(row).collect();
    format!(
        "The contributions to `{}`: its logit minus {} is {}, the sum of\n{}",
        visible(&it.answer.token),
        compared_with(it, ["`", "`"]),
        signed(it.difference, 4),
        colored_table(&["logit".to_owned()], &rows, style, signed_scale(&rows))
    )
}

/// The name of the logit that the answer's is compared with, its token between these quotes.
pub(crate) fn compared_with(it: &Attribution, [open, close]: [&str; 2]) -> String {
    match &it.against {
        Some(against) => format!("that of {open}{}{close}", visible(&against.token)),
        None => "the mean of all logits".to_owned(),
    }
}

/// The largest contributions by name, and the sum of the others.
pub(crate) fn contributions(it: &Attribution) -> Vec<(String, f64)> {
    let ranked = it.ranked();
    let (named, rest) = ranked.split_at(n_named(ranked.len()));
    let mut terms: Vec<_> = named.iter().map(|term| (term.component.to_string(), term.logit)).collect();
    if !rest.is_empty() {
        terms.push((format!("{} others", rest.len()), rest.iter().map(|term| term.logit).sum()));
    }
    terms
}

/// The parts that move one text's prediction towards another's, and the positions of the difference in the
/// residual stream.
#[must_use]
pub fn patching(it: &Patching, [prompt, from]: [&Prompt; 2], style: (Palette, usize)) -> String {
    let mut text = String::new();
    for (name, prompt) in [("the prompt", prompt), ("patched from", from)] {
        text += &named_flow(name, 12, &prompt.whole_pieces(), style.1);
    }
    let [answer, against] = [&it.answer, &it.against].map(|answer| visible(&answer.token));
    let (named, rest) = it.parts.split_at(n_named(it.parts.len()));
    let row = |patched: &Patched| -> ColoredRow {
        (patched.part.to_string(), vec![(signed(patched.difference, 4), None), percent_cell(patched.share)])
    };
    let moved: Vec<ColoredRow> = named.iter().map(row).collect();
    let row = |at: usize| -> ColoredRow {
        let cells = it.residual.iter().map(|stage| percent_cell(stage[at]));
        (numbered(at, it.position, &short(LONGEST_TOKEN, &prompt.pieces[at])), cells.collect())
    };
    let in_stream: Vec<ColoredRow> = (it.first_difference()..=it.position).map(row).collect();
    let scale = signed_scale(moved.iter().chain(&in_stream));
    text += &format!(
        "\nAfter token {}, the logit of `{answer}` minus that of `{against}`: {} in the prompt, {} in the other.\n\
         The same difference with one part's values from the other prompt, and how far that moves it:\n{}",
        it.position,
        signed(it.difference, 4),
        signed(it.from_difference, 4),
        colored_table(&["difference", "moved"].map(str::to_owned), &moved, style, scale)
    );
    if !rest.is_empty() {
        text += &format!("... and {} more that move it less\n", rest.len());
    }
    let whole = (it.from_difference - it.difference).abs();
    if whole < SMALL_DIFFERENCE {
        text += &format!("The two differences are only {whole:.4} apart: shares of so little mean little.\n");
    }
    text += "\nAnd with the residual stream of the other prompt at one token:\n";
    let layers = (0..it.residual.len() - 1).map(|layer| stage_name(Some(layer)));
    let columns: Vec<String> = std::iter::once(stage_name(None)).chain(layers).collect();
    text + &colored_table(&columns, &in_stream, style, scale)
}

pub(crate) fn stage_name(layer: Option<usize>) -> String {
    layer.map_or("embedding".to_owned(), |layer| format!("layer {layer}"))
}

fn guess(TokenProbability { token, probability, .. }: &TokenProbability) -> (String, Option<f64>) {
    (format!("{} {probability:.2}", short(LONGEST_TOKEN, &visible(token))), Some(*probability))
}

/// The number of parts, out of `n`, that are named: all of them if only one would be left out.
fn n_named(n: usize) -> usize {
    if n <= NAMED + 1 { n } else { NAMED }
}
