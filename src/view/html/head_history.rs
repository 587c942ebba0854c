//! The scores of all heads over a run: a small plot per score, with a line per head, coloured by layer.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::format::grouped;
use crate::inspect::{HeadScores, ScoredHeads};
use crate::view::Fragment;
use crate::view::svg::plot::{self, N_SERIES, Plot, Size, legend_entry, series_of, spread};
use crate::view::svg::{self, Anchor};

const STYLE: &str = include_str!("../assets/forming.css");
const SCRIPT: &str = include_str!("../assets/forming.js");

/// The approximate limit on points of all heads and scores together; beyond it, evaluations are thinned out evenly.
const MOST_POINTS: usize = 40_000;
/// The most evaluations, about one per pixel of a plot.
const MOST_EVALUATIONS: usize = 240;
/// The number of heads above which lines are drawn faintly, so that lines behind others stay visible.
const MANY_HEADS: usize = 48;
/// Room for the name above a plot, and the gap between rows.
const NAME: f64 = 22.0;
const ROW_GAP: f64 = 14.0;
/// The name of the dotted lines.
const EVEN: &str = "a head that looks at all tokens equally";

/// The scores shown, as keys and names. Entropy in bits would duplicate entropy.
pub(crate) const SCORES: [(&str, &str); 9] = [
    ("entropy", "entropy"),
    ("uniform", "uniform"),
    ("focused", "focused"),
    ("diagonal", "self"),
    ("previous_token", "previous token"),
    ("first_token", "first token"),
    ("local", "local"),
    ("duplicate_token", "same token"),
    ("induction", "induction"),
];

/// The value of a score by key.
pub(crate) fn score(scores: &HeadScores, key: &str) -> Option<f64> {
    scores.named().into_iter().find(|(name, _)| *name == key)?.1
}

/// The scores of all heads over the evaluations of a run.
#[derive(Clone, Debug)]
pub(crate) struct HeadHistory {
    n_layers: usize,
    n_heads: usize,
    /// The evaluations drawn.
    evaluations: Vec<(u64, ScoredHeads)>,
    /// The number of all evaluations.
    n_evaluations: usize,
}

impl HeadHistory {
    /// The history logged by a run, without evaluations of models of another size than the last; `None` if empty.
    pub fn new(log: &BTreeMap<u64, ScoredHeads>) -> Option<Self> {
        let last = log.values().next_back()?;
        let (n_layers, n_heads) = (last.scores.len(), last.scores.first()?.len());
        let fits = |heads: &ScoredHeads| {
            heads.scores.len() == n_layers && heads.scores.iter().all(|layer| layer.len() == n_heads)
        };
        let all: Vec<(&u64, &ScoredHeads)> = log.iter().filter(|(_, heads)| fits(heads)).collect();
        let most = MOST_POINTS / (SCORES.len() * n_layers * n_heads).max(1);
        let drawn = spread(all.len(), most.min(MOST_EVALUATIONS)).into_iter();
        Some(Self {
            n_layers,
            n_heads,
            evaluations: drawn.map(|at| (*all[at].0, all[at].1.clone())).collect(),
            n_evaluations: all.len(),
        })
    }

    /// The history as a section of a page.
    pub fn fragment(&self) -> Fragment {
        let legend = self.legend();
        let legend: String = legend.iter().map(|(class, name)| legend_entry(class, name)).collect();
        let [drawn, all] = [self.evaluations.len(), self.n_evaluations].map(|n| grouped(n as u64));
        let left_out = match drawn == all {
            true => String::new(),
            false => format!(" Of {all} evaluations {drawn} are drawn, at even distances."),
        };
        let body = format!(
            "<p>What each head does with the validation split, at each evaluation: a line for each head, coloured by its \
             layer.{left_out}</p>\n\
             <figure>\n<figcaption><span class=\"legend\">{legend}</span></figcaption>\n\
             <output>Point at a line to follow its head through all charts, or go from head to head with the arrow keys.</output>\n{}{}</figure>",
            self.svg(Size::Wide),
            self.svg(Size::Narrow)
        );
        Fragment {
            body,
            data: Some(self.data().to_string()),
            ..Fragment::empty("forming", &[plot::STYLE, plot::FIGURE_STYLE, STYLE], &[plot::FIGURE_SCRIPT, SCRIPT])
        }
    }

    /// The history as a file.
    pub fn file(&self, about: &str) -> String {
        let layout = Layout::new(Size::Wide);
        let title = ["What each head does", "score by step, a line for each head"];
        plot::file(title, about, &self.legend(), None, layout.size(), &self.panels(&layout))
    }

    fn svg(&self, size: Size) -> String {
        let layout = Layout::new(size);
        plot::in_page(size, layout.size(), "What each head does, by evaluation", "", &self.panels(&layout))
    }

    /// The CSS classes of lines, with the layers that have them.
    fn legend(&self) -> Vec<(String, String)> {
        let of_series = |series: usize| {
            let mut layers = (0..self.n_layers).filter(|&layer| series_of(layer, self.n_layers) == series);
            let first = layers.next()?;
            let name = match layers.next_back() {
                Some(last) => format!("layers {first}–{last}"),
                None => format!("layer {first}"),
            };
            Some((format!("line series-{series}"), name))
        };
        let even = ("even".to_owned(), EVEN.to_owned());
        (0..N_SERIES).filter_map(of_series).chain([even]).collect()
    }

    /// `{"steps", "heads": [L * H names], "scores": {name: [L * H][steps]}}`, to three digits.
    fn data(&self) -> Value {
        let steps: Vec<u64> = self.evaluations.iter().map(|(step, _)| *step).collect();
        let names: Vec<String> = self.heads().map(|[l, h]| format!("{l}.{h}")).collect();
        let rounded = |score: f64| (score * 1000.0).round() / 1000.0;
        let line = |[layer, head]: [usize; 2], key: &str| -> Vec<Option<f64>> {
            let scores = self.evaluations.iter().map(|(_, heads)| heads.scores[layer][head]);
            scores.map(|scores| score(&scores, key).map(rounded)).collect()
        };
        let scores = SCORES.into_iter().map(|(key, name)| {
            let lines: Vec<_> = self.heads().map(|head| line(head, key)).collect();
            (name.to_owned(), json!(lines))
        });
        json!({"steps": steps, "heads": names, "scores": scores.collect::<Map<_, _>>()})
    }

    fn heads(&self) -> impl Iterator<Item = [usize; 2]> {
        let (n_layers, n_heads) = (self.n_layers, self.n_heads);
        (0..n_layers).flat_map(move |layer| (0..n_heads).map(move |head| [layer, head]))
    }

    fn panels(&self, layout: &Layout) -> String {
        let scores = SCORES.into_iter().enumerate();
        scores.map(|(at, (key, name))| self.panel(layout, at, key, name)).collect()
    }

    fn panel(&self, layout: &Layout, at: usize, key: &str, name: &str) -> String {
        let [dx, dy] = layout.position(at);
        let last = self.evaluations.last();
        let last_step = last.map_or(1, |last| last.0).max(1);
        let plot = Plot::new(layout.panel, 30.0, [0.0, last_step as f64], [0.0, 1.0]);
        let ([left, right], [bottom, top]) = (plot.x.range, plot.y.range);
        let mut svg = format!(
            "<g class=\"panel\" transform=\"translate({dx:.1} {dy:.1})\" data-score=\"{name}\" data-box=\"{left} {right} \
             {top} {bottom}\" data-last=\"{last_step}\">\n"
        );
        svg += &svg::text("score", [left, -4.0], None, Anchor::Start, name);
        svg += &plot.axes();
        if let Some(even) = last.and_then(|(_, heads)| score(&heads.even, key)) {
            let y = plot.y.at(even);
            svg += &format!("<path class=\"even\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\n");
        }
        let faint = if self.n_layers * self.n_heads > MANY_HEADS { " faint" } else { "" };
        for (index, [layer, head]) in self.heads().enumerate() {
            let point = |(step, heads): &(u64, ScoredHeads)| Some((*step, score(&heads.scores[layer][head], key)?));
            let points: Vec<_> = self.evaluations.iter().filter_map(point).collect();
            let path = match points[..] {
                [] => continue, // the context is too short for this score
                [_] => plot.path(&points) + "h4",
                _ => plot.path(&points),
            };
            let series = series_of(layer, self.n_layers);
            svg += &format!("<path class=\"head series-{series}{faint}\" data-head=\"{index}\" d=\"{path}\"/>\n");
        }
        svg + "</g>\n"
    }
}

/// The positions of the plots in a picture.
struct Layout {
    width: f64,
    n_columns: usize,
    panel: [f64; 2],
    gap: f64,
}

impl Layout {
    fn new(size: Size) -> Self {
        match size {
            Size::Wide => Self { width: 880.0, n_columns: 3, panel: [280.0, 150.0], gap: 20.0 },
            Size::Narrow | Size::Small => Self { width: 340.0, n_columns: 2, panel: [166.0, 120.0], gap: 8.0 },
        }
    }

    fn row_height(&self) -> f64 {
        self.panel[1] + NAME + ROW_GAP
    }

    fn size(&self) -> [f64; 2] {
        [self.width, SCORES.len().div_ceil(self.n_columns) as f64 * self.row_height()]
    }

    fn position(&self, at: usize) -> [f64; 2] {
        let (column, row) = (at % self.n_columns, at / self.n_columns);
        [column as f64 * (self.panel[0] + self.gap), NAME + row as f64 * self.row_height()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_head_has_a_line_in_every_chart_that_knows_it() {
        let log = BTreeMap::from([(0, heads(2, 3, 0.1)), (10, heads(2, 3, 0.9))]);
        let history = HeadHistory::new(&log).expect("evaluations");
        let svg = history.svg(Size::Wide);
        assert_eq!(svg.matches("class=\"panel\"").count(), SCORES.len());
        assert_eq!(svg.matches("class=\"head series-0\"").count(), 2 * 3);
        assert_eq!(svg.matches("class=\"head series-5\"").count(), 2 * 3);
        assert_eq!(svg.matches("class=\"even\"").count(), 1);
        let data = history.data();
        assert_eq!(data["steps"], json!([0, 10]));
        assert_eq!(data["heads"][5], "1.2");
        assert_eq!(data["scores"]["local"][5], json!([0.1, 0.9]));
        assert_eq!(data["scores"]["self"][5], json!([null, null]));
        assert!(history.file("").contains(">layer 1</text>"));
    }

    #[test]
    fn a_large_model_and_a_long_run_are_a_bounded_picture() {
        let log: BTreeMap<u64, ScoredHeads> = (0..500).map(|i| (i * 100, heads(24, 16, 0.5))).collect();
        let history = HeadHistory::new(&log).expect("evaluations");
        let drawn = history.evaluations.len();
        assert_eq!(history.n_evaluations, 500);
        assert!((8..=12).contains(&drawn), "{drawn}");
        assert_eq!(history.legend()[0].1, "layers 0–2");
        assert_eq!(history.data()["steps"][drawn - 1], 49_900);
    }

    #[test]
    fn evaluations_of_another_model_are_left_out() {
        assert!(HeadHistory::new(&BTreeMap::new()).is_none());
        let log = BTreeMap::from([(0, heads(1, 3, 0.1)), (10, heads(2, 3, 0.9))]);
        assert_eq!(HeadHistory::new(&log).expect("one").evaluations.len(), 1);
    }

    #[test]
    fn every_score_is_one() {
        let known = HeadScores::default().named().map(|(name, _)| name);
        assert!(SCORES.iter().all(|(key, _)| known.contains(key)));
    }
}
