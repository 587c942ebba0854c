//! How heads form: a small chart for each score, with a line for each head, coloured by its layer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::chart::{
    Anchor, N_SHADES, Plot, Size, shade_of, spread, standalone_style, text, text_width,
};
use crate::inspect::{Heads, Scores};

/// At most about so many points are drawn of all heads and scores together; of more, evaluations are left out
/// at even distances.
const MOST_POINTS: usize = 40_000;

/// At most so many evaluations are drawn, about one for each pixel of a chart.
const MOST_EVALUATIONS: usize = 240;

/// More heads than these are drawn faintly.
const MANY_HEADS: usize = 48;

/// The scores that are shown, by their keys, with their names. Entropy in bits would say again what entropy says.
pub(super) const SCORES: [(&str, &str); 9] = [
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

/// The value of a score by its key.
pub(super) fn score(scores: &Scores, key: &str) -> Option<f64> {
    let named = scores.named().into_iter();
    named.filter(|(name, _)| *name == key).find_map(|(_, score)| score)
}

/// The scores of all heads over the evaluations of a run.
#[derive(Clone, Debug)]
pub(super) struct Forming {
    n_layers: usize,
    n_heads: usize,
    /// The evaluations that are drawn.
    evaluations: Vec<(u64, Heads)>,
    /// How many there are.
    n_evaluations: usize,
}

impl Forming {
    /// Of what a run logged; none where that is nothing.
    pub fn new(log: &BTreeMap<u64, Heads>) -> Option<Self> {
        let last = log.values().next_back()?;
        let (n_layers, n_heads) = (last.scores.len(), last.scores.first()?.len());
        let fits = |heads: &Heads| {
            heads.scores.len() == n_layers
                && heads.scores.iter().all(|layer| layer.len() == n_heads)
        };
        let all: Vec<(&u64, &Heads)> = log.iter().filter(|(_, heads)| fits(heads)).collect();
        let most = MOST_POINTS / (SCORES.len() * n_layers * n_heads).max(1);
        let kept = spread(all.len(), most.min(MOST_EVALUATIONS));
        Some(Self {
            n_layers,
            n_heads,
            evaluations: kept.into_iter().map(|at| (*all[at].0, all[at].1.clone())).collect(),
            n_evaluations: all.len(),
        })
    }

    /// How many evaluations are drawn, and how many there are.
    pub fn n_evaluations(&self) -> [usize; 2] {
        [self.evaluations.len(), self.n_evaluations]
    }

    /// The picture as a part of a page.
    pub fn svg(&self, size: Size) -> String {
        let layout = Layout::of(size);
        let (width, height) = (layout.width, layout.height());
        let class = size.class();
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"What each head does, by \
             evaluation\">\n{}</svg>\n",
            self.panels(&layout)
        )
    }

    /// The picture as a file.
    pub fn standalone(&self) -> String {
        const PADDING: f64 = 16.0;
        const HEADING: f64 = 70.0;
        let layout = Layout::of(Size::Wide);
        let (w, h) = (layout.width + 2.0 * PADDING, layout.height() + HEADING + 2.0 * PADDING);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
             role=\"img\">\n<title>What each head does, by step</title>\n<style>\n{}</style>\n\
             <g transform=\"translate({PADDING} {PADDING})\">\n\
             <text class=\"title\" x=\"0\" y=\"14\">What each head does<tspan class=\"unit\" dx=\"8\">score by step, a \
             line for each head</tspan></text>\n",
            standalone_style()
        );
        let mut x = 0.0;
        for (shade, name) in self.legend() {
            let (to, at) = (x + 18.0, x + 24.0);
            write!(svg, "<path class=\"line shade-{shade}\" d=\"M{x:.1} 34H{to:.1}\"/>")
                .expect("a string");
            svg.push_str(&text("name", [at, 38.0], Anchor::Start, &name));
            x = at + text_width(&name) + 18.0;
        }
        write!(svg, "<path class=\"even\" d=\"M{x:.1} 34h18\"/>").expect("a string");
        svg.push_str(&text("name", [x + 24.0, 38.0], Anchor::Start, EVEN));
        writeln!(
            svg,
            "<g transform=\"translate(0 {HEADING})\">\n{}</g>\n</g>\n</svg>",
            self.panels(&layout)
        )
        .expect("a string");
        svg
    }

    /// The colours, each with the layers that have it.
    pub fn legend(&self) -> Vec<(usize, String)> {
        let layers = 0..self.n_layers;
        let of_shade = |shade| -> Option<(usize, String)> {
            let mut layers =
                layers.clone().filter(|&layer| shade_of(layer, self.n_layers) == shade);
            let first = layers.next()?;
            let name = match layers.next_back() {
                Some(last) => format!("layers {first}–{last}"),
                None => format!("layer {first}"),
            };
            Some((shade, name))
        };
        (0..N_SHADES).filter_map(of_shade).collect()
    }

    /// `{"steps", "heads": [L * H names], "scores": {name: [L * H][steps]}}`, to three digits.
    pub fn data(&self) -> serde_json::Value {
        let steps: Vec<u64> = self.evaluations.iter().map(|(step, _)| *step).collect();
        let names: Vec<String> = self.heads().map(|[l, h]| format!("{l}.{h}")).collect();
        let rounded = |score: f64| (score * 1000.0).round() / 1000.0;
        let of_head = |[layer, head]: [usize; 2], key: &str| -> Vec<Option<f64>> {
            let scores = self.evaluations.iter().map(|(_, heads)| heads.scores[layer][head]);
            scores.map(|scores| score(&scores, key).map(rounded)).collect()
        };
        let of_score = |(key, name): (&str, &str)| {
            let lines: Vec<_> = self.heads().map(|head| of_head(head, key)).collect();
            (name.to_owned(), json!(lines))
        };
        let scores: serde_json::Map<_, _> = SCORES.into_iter().map(of_score).collect();
        json!({"steps": steps, "heads": names, "scores": scores})
    }

    fn heads(&self) -> impl Iterator<Item = [usize; 2]> {
        let (n_layers, n_heads) = (self.n_layers, self.n_heads);
        (0..n_layers).flat_map(move |layer| (0..n_heads).map(move |head| [layer, head]))
    }

    fn panels(&self, layout: &Layout) -> String {
        let mut svg = String::new();
        for (at, (key, name)) in SCORES.into_iter().enumerate() {
            svg.push_str(&self.panel(layout, at, key, name));
        }
        svg
    }

    fn panel(&self, layout: &Layout, at: usize, key: &str, name: &str) -> String {
        let [dx, dy] = layout.place(at);
        let plot = layout.plot(self.evaluations.last().map_or(1, |last| last.0));
        let ([left, right], [bottom, top]) = (plot.x.range, plot.y.range);
        let last_step = plot.x.domain[1];
        let mut svg = format!(
            "<g class=\"panel\" transform=\"translate({dx:.1} {dy:.1})\" data-score=\"{name}\" data-box=\"{left} {right} \
             {top} {bottom}\" data-last=\"{last_step}\">\n"
        );
        svg.push_str(&text("score", [left, -4.0], Anchor::Start, name));
        svg.push_str(&plot.axes());
        let even = self.evaluations.last().and_then(|(_, heads)| score(&heads.even, key));
        if let Some(even) = even {
            let y = plot.y.at(even);
            writeln!(svg, "<path class=\"even\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>")
                .expect("a string");
        }
        // Lines of many heads lie on each other: those behind should be seen through those in front.
        let faint = match self.n_layers * self.n_heads > MANY_HEADS {
            true => " faint",
            false => "",
        };
        for (index, [layer, head]) in self.heads().enumerate() {
            let of_step = |(step, heads): &(u64, Heads)| {
                Some((*step, score(&heads.scores[layer][head], key)?))
            };
            let points: Vec<_> = self.evaluations.iter().filter_map(of_step).collect();
            let shade = shade_of(layer, self.n_layers);
            let path = match points[..] {
                [] => continue, // nothing asks for it in so short a context
                [point] => {
                    let [x, y] = plot.place(point);
                    format!("M{x:.1} {y:.1}h4")
                }
                _ => plot.path(&points),
            };
            writeln!(
                svg,
                "<path class=\"head shade-{shade}{faint}\" data-head=\"{index}\" d=\"{path}\"/>"
            )
            .expect("a string");
        }
        svg + "</g>\n"
    }
}

/// What the dotted lines are.
pub(super) const EVEN: &str = "a head that looks at everything alike";

/// Where the charts are.
struct Layout {
    width: f64,
    n_columns: usize,
    panel: [f64; 2],
    gap: f64,
}

/// Above each chart, for its name.
const NAME: f64 = 22.0;

impl Layout {
    fn of(size: Size) -> Self {
        match size {
            Size::Wide => Self { width: 880.0, n_columns: 3, panel: [280.0, 150.0], gap: 20.0 },
            Size::Narrow => Self { width: 340.0, n_columns: 2, panel: [166.0, 120.0], gap: 8.0 },
        }
    }

    fn height(&self) -> f64 {
        let n_rows = SCORES.len().div_ceil(self.n_columns);
        n_rows as f64 * (self.panel[1] + NAME + 14.0)
    }

    fn place(&self, at: usize) -> [f64; 2] {
        let (column, row) = (at % self.n_columns, at / self.n_columns);
        [
            column as f64 * (self.panel[0] + self.gap),
            NAME + row as f64 * (self.panel[1] + NAME + 14.0),
        ]
    }

    fn plot(&self, last_step: u64) -> Plot {
        let steps = [0.0, last_step.max(1) as f64];
        Plot::new(self.panel, 30.0, steps, [0.0, 1.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(n_layers: usize, n_heads: usize, local: f64) -> Heads {
        let scores = Scores { local: Some(local), entropy: Some(0.5), ..Scores::default() };
        Heads {
            n_windows: 32,
            window_tokens: 16,
            n_repeated: 16,
            period: 8,
            even: Scores { local: Some(0.25), ..Scores::default() },
            scores: vec![vec![scores; n_heads]; n_layers],
        }
    }

    #[test]
    fn every_head_has_a_line_in_every_chart_that_knows_it() {
        let log = BTreeMap::from([(0, heads(2, 3, 0.1)), (10, heads(2, 3, 0.9))]);
        let forming = Forming::new(&log).expect("evaluations");
        let svg = forming.svg(Size::Wide);
        assert_eq!(svg.matches("class=\"panel\"").count(), SCORES.len());
        assert_eq!(svg.matches("class=\"head shade-0\"").count(), 2 * 3);
        assert_eq!(svg.matches("class=\"head shade-7\"").count(), 2 * 3);
        assert_eq!(svg.matches("class=\"even\"").count(), 1);
        let data = forming.data();
        assert_eq!(data["steps"], json!([0, 10]));
        assert_eq!(data["heads"][5], "1.2");
        assert_eq!(data["scores"]["local"][5], json!([0.1, 0.9]));
        assert_eq!(data["scores"]["self"][5], json!([null, null]));
        assert!(forming.standalone().contains(">layer 1</text>"));
    }

    #[test]
    fn a_large_model_and_a_long_run_are_a_bounded_picture() {
        let log: BTreeMap<u64, Heads> = (0..500).map(|i| (i * 100, heads(24, 16, 0.5))).collect();
        let forming = Forming::new(&log).expect("evaluations");
        let [drawn, all] = forming.n_evaluations();
        assert_eq!(all, 500);
        assert!((8..=12).contains(&drawn), "{drawn}");
        assert_eq!(forming.legend()[0], (0, "layers 0–1".to_owned()));
        assert_eq!(forming.data()["steps"][drawn - 1], 49_900);
    }

    #[test]
    fn what_is_of_another_model_is_left_out() {
        assert!(Forming::new(&BTreeMap::new()).is_none());
        let log = BTreeMap::from([(0, heads(1, 3, 0.1)), (10, heads(2, 3, 0.9))]);
        assert_eq!(Forming::new(&log).expect("one").n_evaluations(), [1, 1]);
    }

    #[test]
    fn every_score_is_one() {
        let scores = Scores {
            entropy: Some(0.1),
            uniform: Some(0.1),
            focused: Some(0.1),
            diagonal: Some(0.1),
            previous_token: Some(0.1),
            first_token: Some(0.1),
            local: Some(0.1),
            duplicate_token: Some(0.1),
            induction: Some(0.1),
            ..Scores::default()
        };
        assert!(SCORES.iter().all(|(key, _)| score(&scores, key).is_some()));
    }
}
