//! The graph of a prediction: tokens, the heads that gather from them, feed-forward layers, and the answer.

use std::collections::BTreeSet;

use crate::format::signed;
use crate::inspect::{ModelPart, PredictionGraph, Prompt, TracedPart};
use crate::tokenizer::visible;
use crate::view::sheet::{Content, Figure, Graph, GraphNode};
use crate::view::terminal::columns::short;

const LONGEST: usize = 10;
/// Links from tokens below this share of the largest contribution are left out.
const LEAST_LINK: f64 = 0.1;

pub(super) fn prediction_graph(it: &PredictionGraph, prompt: &Prompt) -> Figure {
    let largest = it.parts.iter().map(|part| part.predicted.abs()).fold(0.0, f64::max);
    let from = |part: &TracedPart| -> Vec<(usize, f64)> {
        let most = part.from.iter().copied().map(f64::abs).fold(0.0, f64::max);
        let is_shown = |x: f64| x.abs() >= most.min(LEAST_LINK * largest) && x != 0.0;
        part.from.iter().copied().enumerate().filter(|(_, x)| is_shown(*x)).collect()
    };
    let tokens: BTreeSet<usize> = it.parts.iter().flat_map(|part| from(part).into_iter().map(|(at, _)| at)).collect();
    let tokens: Vec<usize> = tokens.into_iter().collect();
    let layers: BTreeSet<usize> = it.parts.iter().map(|part| layer(part.part)).collect();
    let of_token = |at: &usize| GraphNode {
        name: short(LONGEST, &prompt.pieces[*at]),
        note: at.to_string(),
        about: format!("“{}”, token {at}", prompt.pieces[*at]),
    };
    let mut rows: Vec<Vec<GraphNode>> = vec![tokens.iter().map(of_token).collect()];
    let mut links = Vec::new();
    let answer_row = layers.len() + 1;
    for number in layers {
        let row = rows.len();
        let mut nodes = Vec::new();
        for part in it.parts.iter().filter(|part| layer(part.part) == number) {
            let of_tokens = from(part);
            for (token, weight) in &of_tokens {
                let place = tokens.binary_search(token).expect("every link begins at a token of the graph");
                links.push(([0, place], [row, nodes.len()], *weight));
            }
            links.push(([row, nodes.len()], [answer_row, 0], part.predicted));
            nodes.push(node(part, &of_tokens, prompt));
        }
        rows.push(nodes);
    }
    let answer = visible(&it.attribution.answer.token);
    let difference = signed(it.attribution.difference, 2);
    rows.push(vec![GraphNode {
        name: format!("“{answer}”"),
        note: difference.clone(),
        about: format!("The logit of “{answer}” and what it is compared with are {difference} apart"),
    }]);
    let title = format!(
        "Where “{answer}” after token {} comes from: each part's contribution as predicted, then as measured by switching \
         it off there",
        it.attribution.position
    );
    Figure::new(title, Content::Graph(Graph { rows, links }))
}

fn layer(part: ModelPart) -> usize {
    match part {
        ModelPart::Head { layer, .. } | ModelPart::Mlp { layer } => layer,
        _ => unreachable!("heads and feed-forward layers are traced"),
    }
}

fn node(part: &TracedPart, from: &[(usize, f64)], prompt: &Prompt) -> GraphNode {
    let TracedPart { part: of, predicted, measured, .. } = part;
    let [predicted, measured] = [predicted, measured].map(|x| signed(*x, 2));
    let name = match of {
        ModelPart::Head { layer, head } => format!("{layer}.{head}"),
        other => format!("mlp {}", layer(*other)),
    };
    let gathered = from.iter().map(|(at, x)| format!("{} from “{}”", signed(*x, 2), prompt.pieces[*at]));
    let gathered = gathered.collect::<Vec<_>>().join(", ");
    let gathered = if gathered.is_empty() { String::new() } else { format!(" ({gathered})") };
    GraphNode {
        note: format!("{predicted}, {measured}"),
        about: format!("{of} adds {predicted}{gathered}; switched off, it takes {measured} away"),
        name,
    }
}
