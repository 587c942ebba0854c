//! Line charts over the steps of a run, as SVG: standing alone in a file, or as a part of a page.
//!
//! A picture that stands alone has its title, its legend and its colours in it, light or dark as the reader's
//! system is. As a part of a page it is drawn twice, wide and narrow, with letters of the same size, and
//! the page chooses; the page brings the colours, the title and the legend.

mod colors;
mod plot;
mod scale;
mod thin;

use std::fmt::Write as _;

pub(super) use colors::{N_SHADES, STYLE, shade_of, standalone_style};
pub(super) use plot::{Anchor, Plot, text, text_width};
use scale::Scale;

pub(super) use thin::{Point, spread, thinned};

/// A curve is drawn with at most so many points for each pixel of the chart's width.
const POINTS_PER_PIXEL: usize = 2;

/// Curves of more points than this have no dots.
const MOST_DOTS: usize = 60;

/// Curves over steps.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// What is drawn, and its unit.
    pub title: [&'static str; 2],
    /// The curves, those behind first.
    pub series: Vec<Series>,
    /// A point that matters.
    pub mark: Option<Mark>,
    /// Whether the axis begins at 0, and not near the lowest number.
    pub from_zero: bool,
    /// Numbers above this are drawn at the upper edge.
    pub ceiling: f64,
}

/// A curve.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// What it is.
    pub name: &'static str,
    /// Its class, which has its colour.
    pub class: &'static str,
    /// In the order of their steps, all finite.
    pub points: Vec<Point>,
    /// Whether each point was measured on its own, and is seen.
    pub has_dots: bool,
}

/// A point that matters, and what is written beside it.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub point: Point,
    pub label: String,
}

/// For which room a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Wide,
    Narrow,
}

impl Size {
    /// The class of a picture of this size.
    pub fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    fn pixels(self) -> [f64; 2] {
        match self {
            Self::Wide => [880.0, 300.0],
            Self::Narrow => [340.0, 230.0],
        }
    }
}

/// Room for the numbers at the left.
const LEFT: f64 = 48.0;
/// Between the picture's edge and what is in it.
const PADDING: f64 = 16.0;
/// Room for the title and the legend of a picture that stands alone.
const HEADING: f64 = 62.0;

impl Chart {
    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Whether numbers lie above the upper edge.
    pub fn is_cut(&self) -> bool {
        self.numbers().any(|number| number > self.ceiling)
    }

    /// The picture as a part of a page.
    pub fn svg(&self, size: Size) -> String {
        let [width, height] = size.pixels();
        let plot = self.plot([width, height]);
        let class = size.class();
        let [title, unit] = self.title;
        let Plot { x, y } = plot;
        let numbers = |scale: Scale| {
            let ([a, b], [c, d]) = (scale.domain, scale.range);
            format!("{a} {b} {c} {d}")
        };
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}, {unit}\" \
             data-x=\"{}\" data-y=\"{}\">\n{}</svg>\n",
            numbers(x),
            numbers(y),
            self.drawn(&plot)
        )
    }

    /// The picture as a file.
    pub fn standalone(&self) -> String {
        let [width, plot_height] = Size::Wide.pixels();
        let (w, h) = (width + 2.0 * PADDING, plot_height + HEADING + 2.0 * PADDING);
        let [title, unit] = self.title;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
             role=\"img\">\n<title>{title}, {unit}</title>\n<style>\n{}</style>\n\
             <g transform=\"translate({PADDING} {PADDING})\">\n\
             <text class=\"title\" x=\"0\" y=\"14\">{title}<tspan class=\"unit\" dx=\"8\">{unit}</tspan></text>\n",
            standalone_style()
        );
        let mut x = 0.0;
        for series in self.series.iter().filter(|series| !series.points.is_empty()) {
            let (to, at) = (x + 18.0, x + 24.0);
            let (class, name) = (series.class, series.name);
            writeln!(
                svg,
                "<path class=\"line {class}\" d=\"M{x:.1} 34H{to:.1}\"/>\
                 <text class=\"name\" x=\"{at:.1}\" y=\"38\">{name}</text>"
            )
            .expect("a string");
            x = at + text_width(name) + 22.0;
        }
        if self.is_cut() {
            svg.push_str(&text(
                "name",
                [width, 38.0],
                Anchor::End,
                "higher values are drawn at the upper edge",
            ));
        }
        let plot = self.plot([width, plot_height]);
        writeln!(
            svg,
            "<g transform=\"translate(0 {HEADING})\">\n{}</g>\n</g>\n</svg>",
            self.drawn(&plot)
        )
        .expect("a string");
        svg
    }

    /// The curves with as many points as a picture of this width shows: what is drawn, and read out.
    pub fn drawn_series(&self, size: Size) -> Vec<Series> {
        let [width, _] = size.pixels();
        self.thinned_series(width)
    }

    fn thinned_series(&self, width: f64) -> Vec<Series> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a width in pixels"
        )]
        let n_stretches = width as usize * POINTS_PER_PIXEL / 2;
        let thin = |series: &Series| Series {
            points: thinned(&series.points, n_stretches),
            ..series.clone()
        };
        self.series.iter().map(thin).collect()
    }

    fn numbers(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(|point| point.1)
    }

    fn plot(&self, [width, height]: [f64; 2]) -> Plot {
        let below = self.numbers().filter(|number| *number <= self.ceiling);
        let (low, high) = below.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
            (low.min(number), high.max(number))
        });
        // All above the ceiling, or nothing at all: there is still an axis.
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = if self.from_zero { low.min(0.0) } else { low };
        let margin = match (high - low) * 0.05 {
            margin if margin > 0.0 => margin,
            _ if high == 0.0 => 1.0,
            _ => high.abs() * 0.1,
        };
        let bottom = if self.from_zero { low } else { low - margin };
        let last = self.series.iter().filter_map(|series| series.points.last());
        let last_step = last.map(|point| point.0).max().unwrap_or(0).max(1);
        let steps = [0.0, last_step as f64];
        Plot::new([width, height], LEFT, steps, [bottom, high + margin])
    }

    /// Axes, curves and the mark.
    fn drawn(&self, plot: &Plot) -> String {
        let mut svg = plot.axes();
        let width = plot.x.range[1] - plot.x.range[0];
        for series in self.thinned_series(width) {
            let class = series.class;
            writeln!(svg, "<path class=\"line {class}\" d=\"{}\"/>", plot.path(&series.points))
                .expect("a string");
            let n = series.points.len();
            if n == 1 || series.has_dots && n <= MOST_DOTS {
                for &point in &series.points {
                    let [x, y] = plot.place(point);
                    writeln!(
                        svg,
                        "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
                    )
                    .expect("a string");
                }
            }
        }
        if let Some(mark) = &self.mark {
            svg.push_str(&mark.drawn(plot));
        }
        svg
    }
}

impl Mark {
    fn drawn(&self, plot: &Plot) -> String {
        let [x, y] = plot.place(self.point);
        // Curves fall: there is room above, and away from the edges.
        let half = text_width(&self.label) / 2.0;
        let [left, right] = plot.x.range;
        let middle = x.clamp(left + half, (right - half).max(left + half));
        let above = if y - 16.0 > plot.y.range[1] + 10.0 { y - 16.0 } else { y + 26.0 };
        format!(
            "<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\n{}",
            text("mark-label", [middle, above], Anchor::Middle, &self.label)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<Point>) -> Chart {
        Chart {
            title: ["Loss", "nats per token"],
            series: vec![Series { name: "training", class: "train", points, has_dots: true }],
            mark: None,
            from_zero: false,
            ceiling: f64::INFINITY,
        }
    }

    #[test]
    fn a_long_curve_is_a_small_picture() {
        let points = (0..1_000_000).map(|step| (step, (step % 1000) as f64)).collect();
        let svg = chart(points).svg(Size::Wide);
        assert!(svg.len() < 40_000, "{} bytes", svg.len());
        assert!(svg.contains(">1,000,000<") || svg.contains(">800,000<"), "{svg}");
    }

    #[test]
    fn one_point_is_a_dot_and_none_is_an_axis() {
        assert!(chart(vec![(3, 2.0)]).svg(Size::Wide).contains("<circle"));
        let empty = chart(Vec::new());
        assert!(empty.is_empty() && !empty.svg(Size::Narrow).contains("NaN"));
    }

    #[test]
    fn what_is_above_the_ceiling_stays_within_the_picture() {
        let mut chart = chart(vec![(1, 4.0), (2, 3.0), (3, 1e30)]);
        assert!(!chart.is_cut());
        chart.ceiling = 16.0;
        assert!(chart.is_cut());
        let svg = chart.svg(Size::Wide);
        let path = svg.split("<path class=\"line train\" d=\"").nth(1).expect("a curve");
        let path = path.split('"').next().expect("its end");
        let numbers = path.split(['M', 'L', ' ']).filter(|number| !number.is_empty());
        for number in numbers {
            let number: f64 = number.parse().expect(path);
            assert!((0.0..=880.0).contains(&number), "{path}");
        }
        assert!(chart.standalone().contains("higher values"));
    }

    #[test]
    fn a_file_has_its_colours_for_light_and_dark() {
        let svg = chart(vec![(1, 4.0), (2, 3.0)]).standalone();
        assert!(svg.contains("@media (prefers-color-scheme: dark)"));
        assert!(
            !svg.contains("light-dark(") && !svg.contains("var("),
            "not every viewer knows these"
        );
        assert!(svg.contains("training</text>"));
    }
}
