//! The scores of all heads over a run: a chart per score, with a curve per head, coloured by layer.

use std::collections::BTreeMap;

use crate::format::grouped;
use crate::inspect::ScoredHeads;
use crate::view::html::Fragment;
use crate::view::html::curves::curves;
use crate::view::kinds::{SCORES, score};
use crate::view::svg::chart::{Chart, Series};
use crate::view::svg::plot::{series_of, spread};

/// The approximate limit on points of all heads and scores together; beyond it, evaluations are thinned out evenly.
const MOST_POINTS: usize = 40_000;
/// The most evaluations, about one per pixel of a plot.
const MOST_EVALUATIONS: usize = 240;
/// The number of heads above which lines are drawn faintly, so that lines behind others stay visible.
const MANY_HEADS: usize = 48;

/// The evaluations that are drawn, and the number of all: without those of models of another size than the last.
fn drawn(log: &BTreeMap<u64, ScoredHeads>) -> (Vec<(u64, &ScoredHeads)>, usize) {
    let size = |heads: &ScoredHeads| heads.scores.iter().map(Vec::len).collect::<Vec<_>>();
    let Some(last) = log.values().next_back().map(size) else { return (Vec::new(), 0) };
    let all: Vec<(u64, &ScoredHeads)> =
        log.iter().filter(|(_, heads)| size(heads) == last).map(|(step, heads)| (*step, heads)).collect();
    let most = MOST_POINTS / (SCORES.len() * last.iter().sum::<usize>()).max(1);
    let kept = spread(all.len(), most.min(MOST_EVALUATIONS)).into_iter().map(|at| all[at]).collect();
    (kept, all.len())
}

pub(super) fn charts(log: &BTreeMap<u64, ScoredHeads>) -> Vec<Chart> {
    let (drawn, _) = drawn(log);
    let Some((last_step, last)) = drawn.last() else { return Vec::new() };
    let n_layers = last.scores.len();
    let faint = if last.scores.iter().map(Vec::len).sum::<usize>() > MANY_HEADS { " faint" } else { "" };
    let chart = |(key, name): (&str, &str)| {
        let mut series: Vec<Series> = Vec::new();
        for (layer, of_layer) in last.scores.iter().enumerate() {
            for head in 0..of_layer.len() {
                let rounded = |score: f64| (score * 1000.0).round() / 1000.0;
                let point = |(step, heads): &(u64, &ScoredHeads)| {
                    Some((*step, rounded(score(&heads.scores[layer][head], key)?)))
                };
                let class = format!("head series-{}{faint}", series_of(layer, n_layers));
                let points = drawn.iter().filter_map(point).collect();
                let group = Some(layers_of(series_of(layer, n_layers), n_layers));
                series.push(Series { group, ..Series::new(&format!("head {layer}.{head}"), class, points) });
            }
        }
        let even = score(&last.even, key).map_or(Vec::new(), |even| vec![(0, even), (*last_step, even)]);
        series.push(Series::new("uniform attention", "even".to_owned(), even));
        Chart {
            from_zero: true,
            top: Some(1.0),
            decimals: Some(2),
            ..Chart::new(&format!("heads-{key}"), [name, "score"], series)
        }
    };
    let has_heads =
        |chart: &Chart| chart.series.iter().any(|series| series.group.is_some() && !series.points.is_empty());
    SCORES.into_iter().map(chart).filter(has_heads).collect()
}

/// The name of the layers that share a colour.
fn layers_of(series: usize, n_layers: usize) -> String {
    let mut layers = (0..n_layers).filter(|&layer| series_of(layer, n_layers) == series);
    let first = layers.next().unwrap_or_default();
    layers.next_back().map_or_else(|| format!("layer {first}"), |last| format!("layers {first}–{last}"))
}

/// The section of the page; `None` without evaluations.
pub(super) fn history(log: &BTreeMap<u64, ScoredHeads>) -> Option<Fragment> {
    let fragment = curves(&charts(log), None)?;
    let (drawn, n_all) = drawn(log);
    let left_out = match n_all - drawn.len() {
        0 => String::new(),
        _ => format!(" Of {} evaluations {} are drawn, evenly spaced.", grouped(n_all as u64), drawn.len()),
    };
    let lead = format!(
        "<p>The scores of each head on the validation split at each evaluation: a curve for each head, coloured by its \
         layer. Point at a curve to highlight its head in all charts, or use the arrow keys.{left_out}</p>\n"
    );
    Some(Fragment { body: lead + &fragment.body, ..fragment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::HeadScores;

    fn heads(n_layers: usize, n_heads: usize, local: f64) -> ScoredHeads {
        let scores = HeadScores { local: Some(local), entropy: Some(0.5), ..HeadScores::default() };
        ScoredHeads {
            n_windows: 32,
            window_tokens: 16,
            n_repeated: 16,
            period: 8,
            even: HeadScores { local: Some(0.25), ..HeadScores::default() },
            scores: vec![vec![scores; n_heads]; n_layers],
        }
    }

    #[test]
    fn known_scores_have_charts_of_all_heads() {
        let log = BTreeMap::from([(0, heads(1, 3, 0.2)), (5, heads(2, 3, 0.1)), (10, heads(2, 3, 0.9))]);
        let charts = charts(&log);
        assert_eq!(charts.iter().map(|chart| &*chart.id).collect::<Vec<_>>(), ["heads-entropy", "heads-local"]);
        let Series { name, class, points, group, .. } = &charts[1].series[5];
        assert_eq!((&**name, &**class, group.as_deref()), ("head 1.2", "head series-5", Some("layer 1")));
        assert_eq!(points, &[(5, 0.1), (10, 0.9)], "another model is left out");
        assert!(super::charts(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn long_history_of_large_model_is_thinned() {
        let log: BTreeMap<u64, ScoredHeads> = (0..500).map(|i| (i * 100, heads(24, 16, 0.5))).collect();
        let (drawn, n_all) = drawn(&log);
        assert_eq!((n_all, drawn.last().map(|last| last.0)), (500, Some(49_900)));
        assert!((8..=12).contains(&drawn.len()), "{}", drawn.len());
        assert_eq!(layers_of(0, 24), "layers 0–2");
    }
}
