//! Charts of curves: scales, curves, a marked point and a legend.

use crate::view::svg::plot::{Axis, N_SERIES, Plot, Point, ends, margin, series_of, text_width, thinned};
use crate::view::svg::{self, Anchor, Drawing, plot};

/// The most points of a curve with dots.
const MOST_DOTS: usize = 60;
/// The number of widths of curves behind others.
const MOST_BEHIND: usize = 5;
/// Room for the numbers on the left and below, for half of the last one, and for half of the topmost.
const LEFT: f64 = 48.0;
const BELOW: f64 = 26.0;
const RIGHT: f64 = 20.0;
const ABOVE: f64 = 8.0;
const CUT: &str = "higher values are drawn at the upper edge";

/// The meaning of the places of points, which are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Across {
    /// The name of the axis.
    pub name: &'static str,
    /// Multiplies the places where they are shown.
    pub factor: f64,
}

pub(crate) const STEPS: Across = Across { name: "step", factor: 1.0 };
/// Milliseconds, shown as seconds.
pub(crate) const SECONDS: Across = Across { name: "seconds", factor: 1e-3 };

/// Curves over steps or over time.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The name of the chart within a page, as an attribute.
    pub id: String,
    /// The name of the chart, and its unit.
    pub title: [String; 2],
    /// The curves, back to front.
    pub series: Vec<Series>,
    pub across: Across,
    /// Whether the curves are those of several runs, the best in front: the legend begins with it, has one entry for all
    /// that are not coloured, and curves behind equal ones are wider.
    pub is_ranked: bool,
    /// Whether the page opens with a logarithmic axis.
    pub is_logarithmic: bool,
    /// A marked point and its label.
    pub mark: Option<(Point, String)>,
    /// Whether the axis starts at 0 rather than near the lowest number.
    pub from_zero: bool,
    /// The upper end of the axis, if it does not follow the highest number.
    pub top: Option<f64>,
    /// Numbers above this are drawn at the upper edge.
    pub ceiling: f64,
    /// The decimals of the numbers shown on hover; `None` for powers of ten.
    pub decimals: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub name: String,
    /// The CSS class, which sets the curve's colour.
    pub class: String,
    /// In step order, all finite.
    pub points: Vec<Point>,
    /// Whether each point is drawn as a dot.
    pub has_dots: bool,
    /// The legend entry that it shares with its neighbours; only the one that is pointed at is read out.
    pub group: Option<String>,
    /// Tokens read and seconds of training steps at each logged step, in order; may be empty.
    pub progress: Vec<(u64, [f64; 2])>,
}

/// The class of a curve that has no colour of its own.
pub(crate) const PLAIN: &str = "train";

/// The class of a curve by its rank among `n`: the best have colours, those of few as far apart as can be.
pub(crate) fn ranked_class(rank: usize, n: usize) -> String {
    if rank < N_SERIES { format!("series-{}", series_of(rank, n.min(N_SERIES))) } else { PLAIN.to_owned() }
}

impl Series {
    /// A curve without dots and progress.
    pub fn new(name: &str, class: String, points: Vec<Point>) -> Self {
        Self { name: name.to_owned(), class, points, has_dots: false, group: None, progress: Vec::new() }
    }

    /// Tokens or seconds at each of the points, from the last step that is not later; `None` if one is unknown.
    pub fn progress(&self, points: &[Point], which: usize) -> Option<Vec<f64>> {
        let at = |(step, _): &Point| {
            let n = self.progress.partition_point(|(known, _)| known <= step);
            Some(self.progress.get(n.checked_sub(1)?)?.1[which])
        };
        (!self.progress.is_empty()).then(|| points.iter().map(at).collect())?
    }

    /// Whether another curve lies on this one, to the width of a line.
    fn coincides(&self, other: &Self, height: f64) -> bool {
        let is_near = |(a, b): (&Point, &Point)| a.0 == b.0 && (a.1 - b.1).abs() <= height / 200.0;
        self.points.len() == other.points.len() && self.points.iter().zip(&other.points).all(is_near)
    }
}

impl Chart {
    /// A chart by step with these curves, back to front; its numbers have four decimals.
    pub fn new(id: &str, title: [&str; 2], series: Vec<Series>) -> Self {
        Self {
            id: id.to_owned(),
            title: title.map(str::to_owned),
            series,
            across: STEPS,
            is_ranked: false,
            is_logarithmic: false,
            mark: None,
            from_zero: false,
            top: None,
            ceiling: f64::INFINITY,
            decimals: Some(4),
        }
    }

    /// A chart by step without a title, whose axis starts at 0.
    pub fn from_zero(id: &str, series: Vec<Series>) -> Self {
        Self { from_zero: true, decimals: None, ..Self::new(id, [""; 2], series) }
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Whether numbers exceed the upper edge.
    pub fn is_cut(&self) -> bool {
        self.numbers().any(|number| number > self.ceiling)
    }

    /// The classes and names of the legend; none for a single curve.
    pub fn legend(&self) -> Vec<(String, String)> {
        let drawn: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let listed = self.listed(&drawn);
        let class = |of: &[usize]| format!("line {}", drawn[of[0]].class);
        let mut legend: Vec<(String, String)> = match &listed[..] {
            [_] => Vec::new(), // the title says it
            several => several.iter().map(|(name, of)| (class(of), name.clone())).collect(),
        };
        legend.extend(self.is_cut().then(|| (String::new(), CUT.to_owned())));
        legend
    }

    /// The chart with its legend, in this size.
    pub fn drawing(&self, [width, height]: [f64; 2]) -> Drawing {
        let (legend, [_, top]) = plot::legend(&self.legend(), width);
        let body = self.drawn(&self.plot([width, height]));
        (format!("{legend}<g transform=\"translate(0 {top})\">\n{body}</g>\n"), [width, top + height])
    }

    /// The curves with about two points per pixel of `width`.
    pub fn thinned_series(&self, width: f64) -> Vec<Series> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels")]
        let n_stretches = width as usize;
        let height = self.ends().map_or(0.0, |[low, high]| high - low);
        let thin = |(at, series): (usize, &Series)| {
            let in_front = || self.series[at + 1..].iter().filter(|other| series.coincides(other, height));
            let n_in_front = if self.is_ranked { in_front().count() } else { 0 };
            let class = match n_in_front {
                0 => series.class.clone(),
                n => format!("{} behind-{}", series.class, n.min(MOST_BEHIND)),
            };
            Series { points: thinned(&series.points, n_stretches), class, ..series.clone() }
        };
        self.series.iter().enumerate().map(thin).collect()
    }

    /// The entries of the legend: names, and the curves that they are about.
    pub fn listed(&self, series: &[&Series]) -> Vec<(String, Vec<usize>)> {
        if !self.is_ranked {
            let mut listed: Vec<(String, Vec<usize>)> = Vec::new();
            for (at, series) in series.iter().enumerate() {
                match (listed.last_mut(), &series.group) {
                    (Some((name, of)), Some(group)) if name == group => of.push(at),
                    (_, group) => listed.push((group.as_ref().unwrap_or(&series.name).clone(), vec![at])),
                }
            }
            return listed;
        }
        let (plain, colored): (Vec<usize>, Vec<usize>) =
            (0..series.len()).rev().partition(|at| series[*at].class.starts_with(PLAIN));
        let mut listed: Vec<(String, Vec<usize>)> =
            colored.into_iter().map(|at| (series[at].name.clone(), vec![at])).collect();
        match plain.len() {
            0 => {}
            1 => listed.push((series[plain[0]].name.clone(), plain)),
            n => listed.push((format!("{n} others"), plain)),
        }
        listed
    }

    fn numbers(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(|point| point.1)
    }

    /// The lowest and the highest number up to the ceiling.
    fn ends(&self) -> Option<[f64; 2]> {
        ends(self.numbers().filter(|number| *number <= self.ceiling))
    }

    /// The axes of a picture of this size.
    pub fn plot(&self, [width, height]: [f64; 2]) -> Plot {
        // Even with no number below the ceiling there is an axis.
        let [low, high] = self.ends().unwrap_or([0.0, 1.0]);
        let low = if self.from_zero { low.min(0.0) } else { low };
        let margin = margin(low, high);
        let bottom = if self.from_zero { low } else { low - margin };
        let last = self.series.iter().filter_map(|series| series.points.last());
        let last_step = last.map(|point| point.0).max().unwrap_or(0).max(1);
        let factor = self.across.factor;
        Plot {
            x: Axis { domain: [0.0, last_step as f64 * factor], range: [LEFT, width - RIGHT] },
            y: Axis { domain: [bottom, self.top.unwrap_or(high + margin)], range: [height - BELOW, ABOVE] },
            factor,
        }
    }

    /// Axes, curves and the mark.
    pub fn drawn(&self, plot: &Plot) -> String {
        let mut svg = plot.axes();
        let [left, right] = plot.x.range;
        let thinned = self.thinned_series(right - left).into_iter().filter(|series| !series.points.is_empty());
        for (at, Series { class, points, has_dots, .. }) in thinned.enumerate() {
            svg += &format!("<path class=\"line {class}\" data-curve=\"{at}\" d=\"{}\"/>\n", plot.path(&points));
            if points.len() == 1 || has_dots && points.len() <= MOST_DOTS {
                for [x, y] in points.iter().map(|point| plot.position(*point)) {
                    svg += &format!("<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>\n");
                }
            }
        }
        if let Some((point, label)) = &self.mark {
            let [x, y] = plot.position(*point);
            let half = text_width(label) / 2.0;
            let middle = x.clamp(left + half, (right - half).max(left + half));
            // Above or below the point, or at the top: where it covers least of the curves, away from the edges.
            let [bottom, top] = plot.y.range;
            let covered = |line: &f64| {
                let points = self.series.iter().flat_map(|series| &series.points).map(|point| plot.position(*point));
                let is_under = |[x, y]: &[f64; 2]| (x - middle).abs() < half && (line - 14.0..line + 6.0).contains(y);
                points.filter(is_under).count()
            };
            let lines = [y - 16.0, y + 26.0, top + 14.0].into_iter();
            let inside = lines.filter(|line| *line > top + 10.0 && *line < bottom - 4.0);
            let above = inside.min_by_key(covered).unwrap_or(top + 14.0);
            svg += &format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\n");
            svg += &svg::text("mark-label", [middle, above], None, Anchor::Middle, label);
        }
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, class: &str, points: Vec<Point>) -> Series {
        Series { has_dots: true, ..Series::new(name, class.to_owned(), points) }
    }

    fn chart(points: Vec<Point>) -> Chart {
        Chart::new(
            "loss",
            ["Loss", "nats per token"],
            vec![Series { has_dots: true, ..Series::new("training", "train".to_owned(), points) }],
        )
    }

    #[test]
    fn colours_of_few_runs_are_far_apart() {
        let classes = |n: usize| (0..n).map(|rank| ranked_class(rank, n)).collect::<Vec<_>>();
        assert_eq!(classes(2), ["series-0", "series-5"]);
        assert_eq!(classes(7)[4..], ["series-4", "series-5", PLAIN]);
    }

    #[test]
    fn ranked_legend_begins_with_best_curve() {
        let mut chart = chart(Vec::new());
        chart.is_ranked = true;
        let curve = vec![(1, 4.0), (2, 3.0)];
        let [others, behind] = [vec![(1, 5.0)], curve.clone()];
        chart.series = vec![
            series("worst", PLAIN, others.clone()),
            series("worse", PLAIN, others),
            series("second", "series-1", behind),
            series("best", "series-0", curve),
        ];
        let listed = chart.listed(&chart.series.iter().collect::<Vec<_>>());
        let names: Vec<(&str, &[usize])> = listed.iter().map(|(name, of)| (&**name, &**of)).collect();
        assert_eq!(names, [("best", &[3][..]), ("second", &[2][..]), ("2 others", &[1, 0][..])]);
        let classes: Vec<String> = chart.thinned_series(100.0).into_iter().map(|series| series.class).collect();
        assert_eq!(classes, ["train behind-1", "train", "series-1 behind-1", "series-0"]);
    }

    #[test]
    fn progress_is_that_of_last_earlier_step() {
        let mut series = series("training", "train", vec![(10, 4.0), (15, 3.5), (20, 3.0)]);
        let progress = |series: &Series, which| series.progress(&series.points, which);
        assert_eq!(progress(&series, 0), None);
        series.progress = vec![(10, [100.0, 1.5]), (20, [200.0, 3.0])];
        assert_eq!(progress(&series, 0), Some(vec![100.0, 100.0, 200.0]));
        assert_eq!(progress(&series, 1), Some(vec![1.5, 1.5, 3.0]));
        series.points.insert(0, (5, 9.0));
        assert_eq!(progress(&series, 0), None, "before anything is known");
    }

    #[test]
    fn long_curves_are_thinned() {
        let points = (0..1_000_000).map(|step| (step, (step % 1000) as f64)).collect();
        let svg = chart(points).drawing([720.0, 300.0]).0;
        assert!(svg.len() < 40_000, "{} bytes", svg.len());
        assert!(svg.contains(">1,000,000<") || svg.contains(">800,000<"), "{svg}");
    }

    #[test]
    fn single_point_is_a_dot() {
        assert!(chart(vec![(3, 2.0)]).drawing([720.0, 300.0]).0.contains("<circle"));
        let empty = chart(Vec::new());
        assert!(empty.is_empty() && !empty.drawing([340.0, 230.0]).0.contains("NaN"));
    }

    #[test]
    fn mark_label_avoids_curves() {
        let mut chart = chart((0..=100).map(|step| (step, 4.0 - 0.03 * step as f64)).collect());
        chart.mark = Some(((100, 1.0), "best 1.0000, whole split".to_owned()));
        let svg = chart.drawing([720.0, 300.0]).0;
        let label = svg.split("<text class=\"mark-label\"").nth(1).expect("the mark has a label");
        let number = |name: &str| -> f64 {
            let rest = label.split(&format!(" {name}=\"")).nth(1).expect(name);
            rest.split('"').next().expect("attributes are quoted").parse().expect("coordinates are numbers")
        };
        let (middle, line) = (number("x"), number("y"));
        let plot = chart.plot([720.0, 300.0]);
        let half = text_width("best 1.0000, whole split") / 2.0;
        let under = chart.series[0].points.iter().map(|point| plot.position(*point));
        let under = under.filter(|[x, y]| (x - middle).abs() < half && (line - 12.0..line + 4.0).contains(y));
        assert_eq!(under.count(), 0, "{middle} {line}");
    }

    #[test]
    fn ceiling_clamps_curves() {
        let mut chart = chart(vec![(1, 4.0), (2, 3.0), (3, 1e30)]);
        assert!(!chart.is_cut());
        chart.ceiling = 16.0;
        assert!(chart.is_cut());
        let plot = chart.plot([720.0, 300.0]);
        assert!((plot.position((3, 1e30))[1] - plot.y.range[1]).abs() < 1e-9, "the upper edge");
        assert!(chart.drawing([720.0, 300.0]).0.contains("higher values"));
    }
}
