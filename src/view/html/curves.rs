//! Charts of curves over the steps of a run, with legends and a marked point.

use serde_json::{Value, json};

use crate::view::svg::plot::{self, Axis, Plot, Point, Size, legend_entry, margin, text_width, thinned};
use crate::view::svg::{self, Anchor};
use crate::view::{Fragment, escape};

const STYLE: &str = include_str!("../assets/curves.css");
const AXES: &str = include_str!("../assets/axes.js");
const SCRIPT: &str = include_str!("../assets/curves.js");

/// The most points of a curve with dots.
const MOST_DOTS: usize = 60;
/// The number of widths of curves behind others.
const MOST_BEHIND: usize = 5;
/// Room for the numbers on the left.
const LEFT: f64 = 48.0;
const CUT: &str = "higher values are drawn at the upper edge";

/// The meaning of the places of points, which are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Across {
    /// What is read at a place.
    pub name: &'static str,
    /// What the numbers are multiplied with where they are shown.
    pub factor: f64,
}

/// Steps of training.
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
    /// Tokens read and seconds of training steps at each logged step, in order; may be empty.
    pub progress: Vec<(u64, [f64; 2])>,
}

/// The class of a curve that has no colour of its own.
pub(crate) const PLAIN: &str = "train";

impl Series {
    /// Tokens or seconds at each of the points, from the last step that is not later; `None` if one is unknown.
    fn progress(&self, points: &[Point], which: usize) -> Option<Vec<f64>> {
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
    /// A chart by step without a title, whose axis starts at 0.
    pub fn from_zero(id: &str, series: Vec<Series>) -> Self {
        Self {
            id: id.to_owned(),
            title: Default::default(),
            series,
            across: STEPS,
            is_ranked: false,
            is_logarithmic: false,
            mark: None,
            from_zero: true,
            ceiling: f64::INFINITY,
            decimals: None,
        }
    }

    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Whether numbers exceed the upper edge.
    pub fn is_cut(&self) -> bool {
        self.numbers().any(|number| number > self.ceiling)
    }

    /// The chart as a file, with a line about the run.
    pub fn file(&self, about: &str) -> String {
        let [width, height] = FILE;
        let drawn: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let legend = self.listed(&drawn).into_iter().map(|(name, of)| (format!("line {}", drawn[of[0]].class), name));
        let body = self.drawn(&self.plot([width, height]));
        let note = self.is_cut().then_some(CUT);
        plot::file(
            self.title.each_ref().map(|text| &**text),
            about,
            &legend.collect::<Vec<_>>(),
            note,
            [width, height],
            &body,
        )
    }

    /// The chart as a figure of a page, without a script.
    pub fn still(&self) -> String {
        let pictures = [Size::Wide, Size::Narrow].map(|size| self.svg(size)).concat();
        format!("<figure>\n<figcaption>{}</figcaption>\n{pictures}</figure>\n", escape(&self.title.join(", ")))
    }

    /// Draws the chart within a picture, with its upper left corner there; returns its right and lower ends.
    pub fn below(&self, svg: &mut String, [x, y]: [f64; 2]) -> [f64; 2] {
        const TITLE: f64 = 28.0;
        let [width, height] = pixels(Size::Wide);
        *svg += &format!("<g transform=\"translate({x} {y})\">\n");
        *svg += &svg::text("i", [0.0, 14.0], Some(13.0), Anchor::Start, &self.title.join(", "));
        *svg +=
            &format!("<g transform=\"translate(0 {TITLE})\">\n{}</g>\n</g>\n", self.drawn(&self.plot([width, height])));
        [x + width, y + TITLE + height]
    }

    /// The chart as part of a page.
    fn svg(&self, size: Size) -> String {
        let plot = self.plot(pixels(size));
        let numbers = |Axis { domain: [a, b], range: [c, d] }: Axis| format!("{a} {b} {c} {d}");
        let data = format!(" data-x=\"{}\" data-y=\"{}\"", numbers(plot.x), numbers(plot.y));
        let drawing = format!("<g class=\"drawing\">\n{}</g>\n", self.drawn(&plot));
        plot::in_page(size, pixels(size), &escape(&self.title.join(", ")), &data, &drawing)
    }

    /// The chart as a figure of a page in these sizes, and its data.
    fn figure(&self, sizes: &[Size]) -> (String, Value) {
        let [title, unit] = self.title.each_ref().map(|text| escape(text));
        let [width, _] = FILE;
        let mut series = self.thinned_series(width);
        series.retain(|series| !series.points.is_empty());
        let listed = self.listed(&series.iter().collect::<Vec<_>>());
        let entry = |(name, of): &(String, Vec<usize>)| legend_entry(&format!("line {}", series[of[0]].class), name);
        let legend: String = match &listed[..] {
            [_] => String::new(), // the title says it
            several => several.iter().map(entry).collect(),
        };
        let cut = if self.is_cut() { format!("<span>{CUT}</span>") } else { String::new() };
        let html = format!(
            "<figure data-chart=\"{}\">\n\
             <figcaption><span class=\"what\">{title}<span class=\"unit\">{unit}</span></span>\
             <span class=\"legend\">{legend}{cut}</span></figcaption>\n<output></output>\n{}</figure>\n",
            escape(&self.id),
            sizes.iter().map(|size| self.svg(*size)).collect::<String>(),
        );
        let series = series.iter().map(|series| {
            let Series { name, class, points, has_dots, .. } = series;
            let [tokens, seconds] = [0, 1].map(|which| series.progress(points, which));
            let shown: Vec<(f64, f64)> =
                points.iter().map(|(at, number)| (*at as f64 * self.across.factor, *number)).collect();
            let mut json = json!({"name": name, "className": class, "hasDots": has_dots, "points": shown});
            if self.across == STEPS {
                json["points"] = json!(points); // whole numbers
            }
            if let (Some(tokens), Some(seconds)) = (tokens, seconds) {
                json["tokens"] = json!(tokens);
                json["seconds"] = json!(seconds);
            }
            json
        });
        let ceiling = Some(self.ceiling).filter(|ceiling| ceiling.is_finite());
        let mark = self.mark.as_ref().map(|((step, number), label)| json!([step, number, label]));
        let numbers = json!({
            "digits": self.decimals, "ceiling": ceiling, "mark": mark, "series": series.collect::<Vec<_>>(),
            "across": self.across.name, "logarithmic": self.is_logarithmic,
            "listed": listed.iter().map(|(_, of)| of).collect::<Vec<_>>(),
        });
        (html, numbers)
    }

    /// The curves with about two points per pixel of `width`.
    fn thinned_series(&self, width: f64) -> Vec<Series> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels")]
        let n_stretches = width as usize;
        let numbers = self.numbers().filter(|number| *number <= self.ceiling);
        let ends = numbers.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)]);
        let thin = |(at, series): (usize, &Series)| {
            let in_front = || self.series[at + 1..].iter().filter(|other| series.coincides(other, ends[1] - ends[0]));
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
    fn listed(&self, series: &[&Series]) -> Vec<(String, Vec<usize>)> {
        if !self.is_ranked {
            return series.iter().enumerate().map(|(at, series)| (series.name.clone(), vec![at])).collect();
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
        let factor = self.across.factor;
        Plot { factor, ..Plot::new(size, LEFT, [0.0, last_step as f64 * factor], [bottom, high + margin]) }
    }

    /// Axes, curves and the mark.
    fn drawn(&self, plot: &Plot) -> String {
        let mut svg = plot.axes();
        let [left, right] = plot.x.range;
        let thinned = self.thinned_series(right - left).into_iter().filter(|series| !series.points.is_empty());
        for Series { class, points, has_dots, .. } in thinned {
            svg += &format!("<path class=\"line {class}\" d=\"{}\"/>\n", plot.path(&points));
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

    fn series(name: &str, class: &str, points: Vec<Point>) -> Series {
        Series { name: name.to_owned(), class: class.to_owned(), points, has_dots: true, progress: Vec::new() }
    }

    #[test]
    fn a_ranked_chart_lists_the_best_first_and_shows_what_lies_behind() {
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
    fn tokens_and_seconds_are_those_of_the_step() {
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
    fn time_is_shown_in_seconds() {
        let mut chart = chart(vec![(0, 4.0), (2500, 3.0)]);
        chart.across = SECONDS;
        assert!(chart.svg(Size::Wide).contains("data-x=\"0 2.5 "), "{}", chart.svg(Size::Wide));
        let (_, json) = chart.figure(&[Size::Wide]);
        assert_eq!(json["series"][0]["points"], json!([[0.0, 4.0], [2.5, 3.0]]));
    }

    fn chart(points: Vec<Point>) -> Chart {
        Chart {
            id: "loss".to_owned(),
            title: ["Loss", "nats per token"].map(str::to_owned),
            series: vec![series("training", "train", points)],
            across: STEPS,
            is_ranked: false,
            is_logarithmic: false,
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
    fn a_label_lies_where_no_curve_is() {
        let mut chart = chart((0..=100).map(|step| (step, 4.0 - 0.03 * step as f64)).collect());
        chart.mark = Some(((100, 1.0), "best 1.0000, whole split".to_owned()));
        let svg = chart.svg(Size::Wide);
        let label = svg.split("<text class=\"mark-label\"").nth(1).expect("a label");
        let number = |name: &str| -> f64 {
            let rest = label.split(&format!(" {name}=\"")).nth(1).expect(name);
            rest.split('"').next().expect("its end").parse().expect("a number")
        };
        let (middle, line) = (number("x"), number("y"));
        let plot = chart.plot(pixels(Size::Wide));
        let half = text_width("best 1.0000, whole split") / 2.0;
        let under = chart.series[0].points.iter().map(|point| plot.position(*point));
        let under = under.filter(|[x, y]| (x - middle).abs() < half && (line - 12.0..line + 4.0).contains(y));
        assert_eq!(under.count(), 0, "{middle} {line}");
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
        assert!(chart.file("").contains("higher values"));
    }

    #[test]
    fn a_file_has_its_colours_for_light_and_dark() {
        let svg = chart(vec![(1, 4.0), (2, 3.0)]).file("mine, step 2");
        assert!(svg.contains(">mine, step 2</text>"), "{svg}");
        assert!(svg.contains("@media (prefers-color-scheme: dark)"));
        assert!(!svg.contains("light-dark(") && !svg.contains("var("), "not every viewer knows these");
        assert!(svg.contains("training</text>"));
    }
}
