//! Plots over the steps of a run, as SVG: scales, axes and curves, thinned to the picture's resolution.

use crate::format::whole;
use crate::view::escape::escape;
use crate::view::svg::{self, Anchor, Drawing};

pub(crate) const STYLE: &str = include_str!("../assets/plot.css");
/// The styles and the script of figures: plots in a page that respond to the pointer.
pub(crate) const FIGURE_STYLE: &str = include_str!("../assets/figure.css");
pub(crate) const FIGURE_SCRIPT: &str = include_str!("../assets/figure.js");

/// The number of series colours, classes `series-0` and on, from the darkest: more would not be distinguishable for
/// everyone.
pub(crate) const N_SERIES: usize = 6;

/// A step and the number measured there.
pub(crate) type Point = (u64, f64);

/// The plot area: steps from left to right, numbers from bottom to top.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plot {
    pub x: Axis,
    pub y: Axis,
    /// The factor from the steps of points to the numbers of the x axis.
    pub factor: f64,
}

impl Plot {
    /// The position of a point, clamped to the plot's range of numbers.
    pub fn position(&self, (step, number): Point) -> [f64; 2] {
        let number = number.clamp(self.y.domain[0], self.y.domain[1]);
        [self.x.at(step as f64 * self.factor), self.y.at(number)]
    }

    /// The points connected by lines.
    pub fn path(&self, points: &[Point]) -> String {
        let verbs = std::iter::once('M').chain(std::iter::repeat('L'));
        let line = |(verb, point): (char, &Point)| {
            let [x, y] = self.position(*point);
            format!("{verb}{x:.1} {y:.1}")
        };
        verbs.zip(points).map(line).collect()
    }

    /// Grid lines with labels at round numbers, and labels at round steps below.
    pub fn axes(&self) -> String {
        let ([left, right], [bottom, top]) = (self.x.range, self.y.range);
        let mut svg = String::new();
        for (number, label) in self.y.ticks(((bottom - top) / 42.0).max(2.0), 0.0) {
            let y = self.y.at(number);
            svg += &format!("<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\n");
            svg += &svg::text("tick", [left - 8.0, y + 4.0], None, Anchor::End, &label);
        }
        let least = if self.factor < 1.0 { 0.0 } else { 1.0 }; // steps are whole
        for (number, label) in self.x.ticks(((right - left) / 70.0).max(2.0), least) {
            let x = self.x.at(number);
            svg += &format!("<path class=\"grid\" d=\"M{x:.1} {bottom:.1}v4\"/>\n");
            svg += &svg::text("tick", [x, bottom + 18.0], None, Anchor::Middle, &label);
        }
        svg
    }
}

/// The numbers of an axis, from start to end, and their positions in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub domain: [f64; 2],
    pub range: [f64; 2],
}

impl Axis {
    /// The position of a number; one outside the domain is outside the range.
    pub fn at(&self, number: f64) -> f64 {
        let ([low, high], [from, to]) = (self.domain, self.range);
        if high > low { from + (number - low) / (high - low) * (to - from) } else { f64::midpoint(from, to) }
    }

    /// Round numbers within the domain, with labels: roughly at most `most`, and at least `least` apart.
    pub fn ticks(&self, most: f64, least: f64) -> Vec<(f64, String)> {
        let [low, high] = self.domain;
        let step = round_step((high - low) / most.floor()).max(least);
        if !(step > 0.0 && step.is_finite()) {
            return vec![(low, label(low, low.abs() / 10.0, low.abs()))];
        }
        // A small tolerance, since 0.1 + 0.2 is not 0.3.
        let (from, to) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
        let largest = low.abs().max(high.abs());
        #[allow(clippy::cast_possible_truncation, reason = "a handful of ticks")]
        let multiples = from as i64..=to as i64;
        let numbers = multiples.map(|i| i as f64 * step);
        numbers.map(|number| (number, label(number, step, largest))).collect()
    }
}

/// At most about `most + 1` round numbers at even distances, with labels. The first and the last enclose `low` to
/// `high`.
#[cfg(feature = "cli")]
pub(crate) fn round_marks([low, high]: [f64; 2], most: f64) -> Vec<(f64, String)> {
    let room = margin(low, high);
    let [low, high] = if high > low { [low, high] } else { [low - room, high + room] };
    let step = round_step((high - low) / most);
    if !step.is_finite() {
        return vec![(low, String::new()), (high, String::new())]; // numbers that nobody measures
    }
    let (from, to) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    #[allow(clippy::cast_possible_truncation, reason = "a handful of marks")]
    let multiples = from as i64..=to as i64;
    let largest = (from * step).abs().max((to * step).abs());
    multiples.map(|i| (i as f64 * step, label(i as f64 * step, step, largest))).collect()
}

/// The smallest number at or above `least` that is 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let is_enough = |factor: &f64| factor * power >= least * (1.0 - 1e-9);
    [1.0, 2.0, 5.0].into_iter().find(is_enough).unwrap_or(10.0) * power
}

/// A number with enough digits to tell it from the next, `step` away; `largest` is the largest on the axis.
fn label(number: f64, step: f64, largest: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    let digits = |n: f64| n.clamp(0.0, 9.0) as usize;
    if number.abs() < step * 1e-6 || number == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e9).contains(&largest) {
        let n_digits = number.abs().log10().floor() - step.log10().floor();
        format!("{number:.*e}", digits(n_digits)).replace(".0e", "e")
    } else if step >= 1.0 && number >= 1.0 {
        whole(number)
    } else {
        format!("{number:.*}", digits(-step.log10().floor()))
    }
}

/// At most `2 * n_stretches + 2` points of a curve: the first, the last, and the lowest and the highest of each of
/// `n_stretches` equal intervals of steps. A short curve is unchanged.
pub(crate) fn thinned(points: &[Point], n_stretches: usize) -> Vec<Point> {
    if points.len() <= 2 * n_stretches + 2 {
        return points.to_vec();
    }
    let (first, last) = (points[0], points[points.len() - 1]);
    let span = u128::from(last.0 - first.0) + 1;
    let stretch_of = |point: &Point| u128::from(point.0 - first.0) * n_stretches as u128 / span;
    let mut kept = vec![first];
    for stretch in points.chunk_by(|a, b| stretch_of(a) == stretch_of(b)) {
        let by_value = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let mut extremes = [stretch.iter().min_by(by_value), stretch.iter().max_by(by_value)];
        extremes.sort_unstable_by_key(|point| point.map(|point| point.0));
        kept.extend(extremes.into_iter().flatten());
    }
    kept.push(last);
    kept.dedup_by_key(|point| point.0);
    kept
}

/// The lowest and the highest number; `None` without numbers.
pub(crate) fn ends(numbers: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    numbers.map(|x| [x, x]).reduce(|[low, high], [x, _]| [low.min(x), high.max(x)])
}

/// The room above and below curves from `low` to `high`; also a constant has some.
pub(crate) fn margin(low: f64, high: f64) -> f64 {
    match (high - low) * 0.05 {
        margin if margin > 0.0 => margin,
        _ if high == 0.0 => 1.0,
        _ => high.abs() * 0.1,
    }
}

/// At most `most` of the indices below `n`, evenly spaced, including the first and the last.
pub(crate) fn spread(n: usize, most: usize) -> Vec<usize> {
    let most = most.max(2);
    if n <= most { (0..n).collect() } else { (0..most).map(|i| i * (n - 1) / (most - 1)).collect() }
}

/// The series of a layer: the layers of a model are spread over all series, from first to last.
pub(crate) fn series_of(layer: usize, n_layers: usize) -> usize {
    match n_layers {
        0 | 1 => 0,
        n => (2 * layer * (N_SERIES - 1) + n - 1) / (2 * (n - 1)), // rounded
    }
}

/// A generous estimate of the width of a line about 12 pixels high, in most fonts.
pub(crate) fn text_width(line: &str) -> f64 {
    6.6 * line.chars().count() as f64
}

/// A legend entry in a page: a line of this class, if there is one, and its name.
pub(crate) fn legend_entry(class: &str, name: &str) -> String {
    let path = format!("<path class=\"{class}\" d=\"M1 5H19\"/>");
    let sample = format!("<svg viewBox=\"0 0 20 10\" aria-hidden=\"true\">{path}</svg>");
    format!("<span>{}{}</span>", if class.is_empty() { "" } else { &sample }, escape(name))
}

/// A legend of classes and names in lines of at most this width; an entry without a class has no sample.
pub(crate) fn legend(entries: &[(String, String)], width: f64) -> Drawing {
    const LINE: f64 = 18.0;
    let (mut svg, mut x, mut y) = (String::new(), 0.0, 0.0);
    for (class, name) in entries {
        let advance = 46.0 + text_width(name);
        if x > 0.0 && x + advance > width {
            (x, y) = (0.0, y + LINE);
        }
        if !class.is_empty() {
            svg += &format!("<path class=\"{class}\" d=\"M{x:.1} {:.1}h18\"/>", y + 8.0);
        }
        svg += &svg::text("name", [x + 24.0, y + 12.0], None, Anchor::Start, name);
        x += advance;
    }
    (svg, [width, if entries.is_empty() { 0.0 } else { y + LINE + 8.0 }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let few = |low: f64, high: f64, most: f64, least: f64| {
            let ticks = Axis { domain: [low, high], range: [0.0, 1.0] }.ticks(most, least);
            ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(few(0.0, 1600.0, 5.0, 1.0), ["0", "500", "1,000", "1,500"]);
        assert_eq!(few(0.97, 4.21, 5.0, 0.0), ["1", "2", "3", "4"]);
        assert_eq!(few(0.97, 1.33, 4.0, 0.0), ["1.0", "1.1", "1.2", "1.3"]);
        assert_eq!(few(0.0, 1.0, 2.0, 0.0), ["0", "0.5", "1.0"]);
        // Steps are integers.
        assert_eq!(few(0.0, 3.0, 10.0, 1.0), ["0", "1", "2", "3"]);
        assert_eq!(few(5.0, 5.0, 10.0, 1.0), ["5"]);
        // Small numbers are shown as powers of ten.
        assert_eq!(few(0.0, 6e-4, 3.0, 0.0), ["0", "2e-4", "4e-4", "6e-4"]);
        assert_eq!(few(1e-5, 3.2e-5, 5.0, 0.0), ["1e-5", "1.5e-5", "2e-5", "2.5e-5", "3e-5"]);
        assert_eq!(few(0.0, 4e-3, 4.0, 0.0), ["0", "0.001", "0.002", "0.003", "0.004"]);
        assert_eq!(few(2.5, 2.5, 5.0, 0.0), ["2.5"]);
        for exponent in -12..12 {
            for factor in [1.0, 1.7, 3.3, 9.99] {
                let high = factor * 10_f64.powi(exponent);
                let n = few(0.0, high, 5.0, 0.0).len();
                assert!((2..=6).contains(&n), "{n} ticks up to {high}");
            }
        }
    }

    #[cfg(feature = "cli")]
    #[test]
    fn marks_are_round_and_enclose_numbers() {
        let labels = |low, high, most| {
            let marks = round_marks([low, high], most);
            assert!(marks[0].0 <= low && marks[marks.len() - 1].0 >= high, "{marks:?}");
            marks.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(1.1, 4.0, 4.0), ["1", "2", "3", "4"]);
        assert_eq!(labels(1.25, 1.31, 2.0), ["1.25", "1.30", "1.35"]);
        assert_eq!(labels(0.0, 18_450.0, 2.0), ["0", "10,000", "20,000"]);
        assert_eq!(labels(3e-4, 3e-4, 2.0).len(), 3, "a constant has room");
        assert_eq!(labels(0.0, 0.0, 2.0).len(), 3);
    }

    #[test]
    fn axis_may_descend_or_be_empty() {
        let scale = Axis { domain: [1.0, 3.0], range: [100.0, 0.0] };
        assert!((scale.at(1.0) - 100.0).abs() < 1e-12 && scale.at(3.0).abs() < 1e-12);
        assert!((scale.at(2.0) - 50.0).abs() < 1e-12);
        let point = Axis { domain: [2.5, 2.5], range: [0.0, 10.0] };
        assert!((point.at(2.5) - 5.0).abs() < 1e-12);
    }

    #[test]
    fn thinning_keeps_peaks_and_ends() {
        let value = |step: u64| match step {
            50_021 => 9.0,
            77_777 => -9.0,
            _ => (step % 7) as f64 / 7.0,
        };
        let points: Vec<Point> = (0..100_000).map(|step| (step, value(step))).collect();
        let thin = thinned(&points, 200);
        assert!((300..=402).contains(&thin.len()), "{}", thin.len());
        assert_eq!((thin[0], thin[thin.len() - 1]), (points[0], points[99_999]));
        assert!(thin.contains(&(50_021, 9.0)) && thin.contains(&(77_777, -9.0)));
        assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        assert!(thin.iter().all(|point| points.contains(point)));
        // A gap adds no points, and a short curve loses none.
        let points: Vec<Point> = (0..100).chain(1_000_000..1_000_100).map(|step| (step, 1.0)).collect();
        assert_eq!(thinned(&points, 10).len(), 4);
        let points = [(1, 2.0), (9, 1.0), (10, 3.0)];
        assert_eq!(thinned(&points, 1), points);
        assert_eq!(thinned(&[], 10), []);
    }

    #[test]
    fn spread_has_both_ends() {
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(9, 3), [0, 4, 8]);
        assert_eq!(spread(1, 3), [0]);
        assert!(spread(0, 3).is_empty());
    }

    #[test]
    fn layers_spread_over_series() {
        let series = |n| (0..n).map(|layer| series_of(layer, n)).collect::<Vec<_>>();
        assert_eq!(series(1), [0]);
        assert_eq!(series(2), [0, 5]);
        assert_eq!(series(4), [0, 2, 3, 5]);
        assert_eq!(series(6), [0, 1, 2, 3, 4, 5]);
        let many = series(24);
        assert!(many.windows(2).all(|pair| pair[1] - pair[0] <= 1));
        assert_eq!((many[0], many[23]), (0, 5));
    }

    #[test]
    fn long_legends_wrap() {
        let entries = vec![("line".to_owned(), "layers 0–1".to_owned()); 9];
        let (svg, [_, height]) = legend(&entries, 880.0);
        assert!(svg.contains("d=\"M0.0 8.0h") && svg.contains("d=\"M0.0 26.0h"), "{svg}");
        assert!((height - 44.0).abs() < 1e-9);
    }
}
