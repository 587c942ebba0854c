//! A section of charts, which a reader can zoom, smooth and read at a step.

use serde_json::{Value, json};

use crate::view::escape::escape;
use crate::view::html::Fragment;
use crate::view::svg::chart::{Chart, STEPS, Series};
use crate::view::svg::plot::{self, Axis, legend_entry};

const STYLE: &str = include_str!("../assets/curves.css");
const AXES: &str = include_str!("../assets/axes.js");
const SCRIPT: &str = include_str!("../assets/curves.js");

/// The width for which curves are thinned.
const THINNED: f64 = 880.0;

/// The class and the size of a picture: on wide screens only, on narrow ones only, and on any, next to others.
type Size = (&'static str, [f64; 2]);
const WIDE: Size = ("wide", [720.0, 300.0]);
const NARROW: Size = ("narrow", [340.0, 230.0]);
const SMALL: Size = ("small", [340.0, 190.0]);

impl Chart {
    fn svg(&self, (class, [width, height]): Size) -> String {
        let plot = self.plot([width, height]);
        let numbers = |Axis { domain: [a, b], range: [c, d] }: Axis| format!("{a} {b} {c} {d}");
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\" \
             data-x=\"{}\" data-y=\"{}\">\n<g class=\"drawing\">\n{}</g>\n</svg>\n",
            escape(&self.title.join(", ")),
            numbers(plot.x),
            numbers(plot.y),
            self.drawn(&plot)
        )
    }

    /// The chart as a figure of a page in these sizes, and its data.
    fn figure(&self, sizes: &[Size]) -> (String, Value) {
        let [title, unit] = self.title.each_ref().map(|text| escape(text));
        let mut series = self.thinned_series(THINNED);
        series.retain(|series| !series.points.is_empty());
        let listed = self.listed(&series.iter().collect::<Vec<_>>());
        let legend: String = self.legend().iter().map(|(class, name)| legend_entry(class, name)).collect();
        let html = format!(
            "<figure data-chart=\"{}\">\n\
             <figcaption><span class=\"what\">{title}<span class=\"unit\">{unit}</span></span>\
             <span class=\"legend\">{legend}</span></figcaption>\n<output></output>\n{}</figure>\n",
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
            "across": self.across.name, "logarithmic": self.is_logarithmic, "ranked": self.is_ranked,
            "listed": listed.iter().map(|(_, of)| of).collect::<Vec<_>>(),
        });
        (html, numbers)
    }
}

/// The non-empty charts as a section, small and over the same steps; with `beside`, which is HTML and may be empty, the
/// first one is large and stands next to it. `None` if all are empty.
pub(crate) fn curves(charts: &[Chart], beside: Option<&str>) -> Option<Fragment> {
    let mut drawn = charts.iter().filter(|chart| !chart.is_empty()).peekable();
    drawn.peek()?;
    let (mut body, mut data) = (String::new(), Vec::new());
    if let Some(beside) = beside {
        let (large, numbers) = drawn.next()?.figure(&[WIDE, NARROW]);
        body = format!("<div class=\"large\">\n{large}{beside}</div>\n");
        data.push(numbers);
    }
    let (small, numbers): (Vec<String>, Vec<Value>) = drawn.map(|chart| chart.figure(&[SMALL])).unzip();
    data.extend(numbers);
    body += &format!("<div class=\"small\">\n{}</div>", small.concat());
    let scripts = &[plot::FIGURE_SCRIPT, AXES, SCRIPT];
    let empty = Fragment::empty("curves", &[plot::STYLE, plot::FIGURE_STYLE, STYLE], scripts);
    Some(Fragment { body, data: Some(Value::Array(data).to_string()), ..empty })
}
