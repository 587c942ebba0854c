//! Charts of curves over the steps of a run, with legends and a marked point.

use serde_json::{Value, json};

use crate::view::Fragment;
use crate::view::svg::plot::{self, Axis, Plot, Point, Size, legend_entry, margin, text_width, thinned};
use crate::view::svg::{self, Anchor};

const STYLE: &str = include_str!("../assets/curves.css");
const AXES: &str = include_str!("../assets/axes.js");
const SCRIPT: &str = include_str!("../assets/curves.js");

/// The most points of a curve with dots.
const MOST_DOTS: usize = 60;
/// Room for the numbers on the left.
const LEFT: f64 = 48.0;
const CUT: &str = "higher values are drawn at the upper edge";

/// Curves over steps.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The name of the chart within a page, as an attribute.
    pub id: &'static str,
    /// The name of the chart, and its unit.
    pub title: [&'static str; 2],
    /// The curves, back to front.
    pub series: Vec<Series>,
    /// A marked point and its label.
    pub mark: Option<(Point, String)>,
    /// Whether the axis starts at 0 rather than near the lowest number.
    pub from_zero: bool,
    /// Numbers above this are drawn at the upper edge.
    pub ceiling: f64,
    /// The decimals of the numbers shown on hover; `None` for powers of ten.
    pub decimals: Option<u8>,
}

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub name: String,
    /// The CSS class, which sets the curve's colour.
    pub class: String,
    /// In step order, all finite.
    pub points: Vec<Point>,
    /// Whether each point is drawn as a dot.
    pub has_dots: bool,
}

impl Chart {
    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Whether numbers exceed the upper edge.
    pub fn is_cut(&self) -> bool {
        self.numbers().any(|number| number > self.ceiling)
    }

    /// The chart as a file.
    pub fn file(&self) -> String {
        let [width, height] = FILE;
        let drawn = self.series.iter().filter(|series| !series.points.is_empty());
        let legend = drawn.map(|series| (format!("line {}", series.class), series.name.clone()));
        let body = self.drawn(&self.plot([width, height]));
        let note = self.is_cut().then_some(CUT);
        plot::file(self.title, &legend.collect::<Vec<_>>(), note, [width, height], &body)
    }

    /// The chart as part of a page.
    fn svg(&self, size: Size) -> String {
        let plot = self.plot(pixels(size));
        let numbers = |Axis { domain: [a, b], range: [c, d] }: Axis| format!("{a} {b} {c} {d}");
        let data = format!(" data-x=\"{}\" data-y=\"{}\"", numbers(plot.x), numbers(plot.y));
        let drawing = format!("<g class=\"drawing\">\n{}</g>\n", self.drawn(&plot));
        plot::in_page(size, pixels(size), &self.title.join(", "), &data, &drawing)
    }

    /// The chart as a figure of a page in these sizes, and its data.
    fn figure(&self, sizes: &[Size]) -> (String, Value) {
        let [title, unit] = self.title;
        let [width, _] = FILE;
        let mut series = self.thinned_series(width);
        series.retain(|series| !series.points.is_empty());
        let entry = |series: &Series| legend_entry(&format!("line {}", series.class), &series.name);
        let legend: String = match &series[..] {
            [_] => String::new(), // the title says it
            several => several.iter().map(entry).collect(),
        };
        let cut = if self.is_cut() { format!("<span>{CUT}</span>") } else { String::new() };
        let html = format!(
            "<figure data-chart=\"{}\">\n\
             <figcaption><span class=\"what\">{title}<span class=\"unit\">{unit}</span></span>\
             <span class=\"legend\">{legend}{cut}</span></figcaption>\n<output></output>\n{}</figure>\n",
            self.id,
            sizes.iter().map(|size| self.svg(*size)).collect::<String>(),
        );
        let series = series.iter().map(|Series { name, class, points, has_dots }| {
            json!({"name": name, "className": class, "points": points, "hasDots": has_dots})
        });
        let ceiling = Some(self.ceiling).filter(|ceiling| ceiling.is_finite());
        let mark = self.mark.as_ref().map(|((step, number), label)| json!([step, number, label]));
        let numbers = json!({
            "digits": self.decimals, "ceiling": ceiling, "mark": mark, "series": series.collect::<Vec<_>>()
        });
        (html, numbers)
    }

    /// The curves with about two points per pixel of `width`.
    fn thinned_series(&self, width: f64) -> Vec<Series> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels")]
        let n_stretches = width as usize;
        let thin = |series: &Series| Series { points: thinned(&series.points, n_stretches), ..series.clone() };
        self.series.iter().map(thin).collect()
    }

    fn numbers(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(|point| point.1)
    }

    fn plot(&self, size: [f64; 2]) -> Plot {
        let below = self.numbers().filter(|number| *number <= self.ceiling);
        let (low, high) =
            below.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| (low.min(number), high.max(number)));
        // Even with no number below the ceiling there is an axis.
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = if self.from_zero { low.min(0.0) } else { low };
        let margin = margin(low, high);
        let bottom = if self.from_zero { low } else { low - margin };
        let last = self.series.iter().filter_map(|series| series.points.last());
        let last_step = last.map(|point| point.0).max().unwrap_or(0).max(1);
        Plot::new(size, LEFT, [0.0, last_step as f64], [bottom, high + margin])
    }

    /// Axes, curves and the mark.
    fn drawn(&self, plot: &Plot) -> String {
        let mut svg = plot.axes();
        let [left, right] = plot.x.range;
        for Series { class, points, has_dots, .. } in self.thinned_series(right - left) {
            svg += &format!("<path class=\"line {class}\" d=\"{}\"/>\n", plot.path(&points));
            if points.len() == 1 || has_dots && points.len() <= MOST_DOTS {
                for [x, y] in points.iter().map(|point| plot.position(*point)) {
                    svg += &format!("<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>\n");
                }
            }
        }
        if let Some((point, label)) = &self.mark {
            let [x, y] = plot.position(*point);
            // Curves fall, so there is room above, away from the edges.
            let half = text_width(label) / 2.0;
            let middle = x.clamp(left + half, (right - half).max(left + half));
            let above = if y - 16.0 > plot.y.range[1] + 10.0 { y - 16.0 } else { y + 26.0 };
            svg += &format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>\n");
            svg += &svg::text("mark-label", [middle, above], None, Anchor::Middle, label);
        }
        svg
    }
}

/// The size of a chart as a file.
const FILE: [f64; 2] = [880.0, 300.0];

fn pixels(size: Size) -> [f64; 2] {
    match size {
        Size::Wide => [720.0, 300.0],
        Size::Narrow => [340.0, 230.0],
        Size::Small => [340.0, 190.0],
    }
}

/// The non-empty charts as a section: the first one large, next to `beside`, which is HTML and may be empty; the others
/// small and over the same steps. `None` if all are empty.
pub(crate) fn curves(charts: &[Chart], beside: &str) -> Option<Fragment> {
    let mut drawn = charts.iter().filter(|chart| !chart.is_empty());
    let (large, numbers) = drawn.next()?.figure(&[Size::Wide, Size::Narrow]);
    let mut data = vec![numbers];
    let mut small = String::new();
    for chart in drawn {
        let (figure, numbers) = chart.figure(&[Size::Small]);
        small += &figure;
        data.push(numbers);
    }
    Some(Fragment {
        body: format!("<div class=\"large\">\n{large}{beside}</div>\n<div class=\"small\">\n{small}</div>"),
        data: Some(Value::Array(data).to_string()),
        ..Fragment::empty("curves", &[plot::STYLE, plot::FIGURE_STYLE, STYLE], &[plot::FIGURE_SCRIPT, AXES, SCRIPT])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<Point>) -> Chart {
        Chart {
            id: "loss",
            title: ["Loss", "nats per token"],
            series: vec![Series { name: "training".to_owned(), class: "train".to_owned(), points, has_dots: true }],
            mark: None,
            from_zero: false,
            ceiling: f64::INFINITY,
            decimals: Some(4),
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
        assert!(chart.file().contains("higher values"));
    }

    #[test]
    fn a_file_has_its_colours_for_light_and_dark() {
        let svg = chart(vec![(1, 4.0), (2, 3.0)]).file();
        assert!(svg.contains("@media (prefers-color-scheme: dark)"));
        assert!(!svg.contains("light-dark(") && !svg.contains("var("), "not every viewer knows these");
        assert!(svg.contains("training</text>"));
    }
}
