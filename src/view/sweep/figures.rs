//! The loss of each setting of a sweep against its value of each key.

use super::{name, values};
use crate::sweep::{Outcome, TrialRow};
use crate::view::escape::escape;
use crate::view::svg::chart::ranked_class;
use crate::view::svg::plot::{Axis, ends, margin, text_width};
use crate::view::svg::{self, Anchor};

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 210.0;

/// The ratio of the largest and the smallest number from which an axis is logarithmic.
const MANY_TIMES: f64 = 20.0;

/// The values of a key along an axis: numbers, or names at even distances.
struct Along {
    axis: Axis,
    is_log: bool,
    are_integers: bool,
    /// The distinct values if one of them is no number.
    names: Vec<String>,
}

impl Along {
    fn new(texts: &[&str], range: [f64; 2]) -> Self {
        let numbers: Option<Vec<f64>> = texts.iter().map(|text| text.parse().ok()).collect();
        let Some(numbers) = numbers else {
            let mut names: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            names.sort();
            names.dedup();
            let domain = [-0.5, names.len() as f64 - 0.5];
            return Self { axis: Axis { domain, range }, is_log: false, are_integers: false, names };
        };
        let [low, high] = ends(numbers.iter().copied()).unwrap_or_default();
        let are_integers = numbers.iter().all(|number| number.fract() == 0.0);
        let is_log = low > 0.0 && high >= MANY_TIMES * low;
        let [low, high] = if is_log { [low.ln(), high.ln()] } else { [low, high] };
        let margin = margin(low, high);
        Self { axis: Axis { domain: [low - margin, high + margin], range }, is_log, are_integers, names: Vec::new() }
    }

    fn at(&self, text: &str) -> f64 {
        let number = match self.names.iter().position(|name| name == text) {
            Some(at) => at as f64,
            None => text.parse().unwrap_or(0.0),
        };
        self.axis.at(if self.is_log { number.ln() } else { number })
    }

    /// Places and labels: names, powers of ten with their halves, or round numbers.
    fn ticks(&self, most: f64) -> Vec<(f64, String)> {
        if !self.names.is_empty() {
            return self.names.iter().map(|name| (self.at(name), name.clone())).collect();
        }
        if !self.is_log {
            let least = if self.are_integers { 1.0 } else { 0.0 };
            let ticks = self.axis.ticks(most, least).into_iter();
            return ticks.map(|(number, label)| (self.axis.at(number), label)).collect();
        }
        let [low, high] = self.axis.domain;
        let all = (-12..12).flat_map(|power| [1, 3].map(|factor| format!("{factor}e{power}")));
        let all = all.map(|text| text.parse::<f64>().expect("a number")); // a product would have more digits
        let inside: Vec<f64> = all.filter(|number| (low..=high).contains(&number.ln())).collect();
        inside.into_iter().map(|number| (self.axis.at(number.ln()), format!("{number}"))).collect()
    }
}

/// The losses against the values of each key. A line through the point of a setting covers the losses of its seeds.
pub(super) fn scatters(outcome: &Outcome) -> String {
    let known: Vec<(usize, &TrialRow, f64)> =
        outcome.trials.iter().enumerate().filter_map(|(at, row)| Some((at, row, row.bits_per_byte?))).collect();
    if known.len() < 2 {
        return String::new();
    }
    let losses = known.iter().flat_map(|(_, row, loss)| row.seeds.unwrap_or([*loss; 2]));
    let [low, high] = ends(losses).unwrap_or_default();
    let room = margin(low, high);
    let (left, right, bottom) = (48.0, WIDTH - 20.0, HEIGHT - 26.0);
    let y = Axis { domain: [low - room, high + room], range: [bottom, 8.0] };
    let figure = |key: usize| {
        let texts: Vec<&str> = known.iter().map(|(_, row, _)| &*row.values[key]).collect();
        let along = Along::new(&texts, [left, right]);
        let mut body = String::new();
        for (number, label) in y.ticks(5.0, 0.0) {
            let y = y.at(number);
            body += &format!("<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>\n");
            body += &svg::text("tick", [left - 8.0, y + 4.0], None, Anchor::End, &label);
        }
        let mut end = f64::NEG_INFINITY; // of the last label, so that none covers another
        for (x, label) in along.ticks(4.0) {
            body += &format!("<path class=\"grid\" d=\"M{x:.1} {bottom:.1}v4\"/>\n");
            let half = text_width(&label) / 2.0;
            if x - half > end {
                body += &svg::text("tick", [x, bottom + 18.0], None, Anchor::Middle, &label);
                end = x + half + 4.0;
            }
        }
        for (at, row, loss) in known.iter().rev() {
            let (x, center) = (along.at(&row.values[key]), y.at(*loss));
            let class = ranked_class(*at, outcome.trials.len());
            if let Some([low, high]) = row.seeds {
                let [from, to] = [low, high].map(|end| y.at(end));
                body += &format!("<path class=\"line {class}\" d=\"M{x:.1} {from:.1}V{to:.1}\"/>\n");
            }
            body += &format!(
                "<circle class=\"dot {class}\" data-setting=\"{at}\" cx=\"{x:.1}\" cy=\"{center:.1}\" r=\"4\"><title>{}: {loss:.4}</title></circle>\n",
                escape(&values(outcome, row))
            );
        }
        let key = &outcome.keys[key];
        format!(
            "<figure><figcaption><span class=\"what\">{}</span></figcaption>\n<svg viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" \
             role=\"img\" aria-label=\"The loss against {}\">\n{body}</svg>\n</figure>\n",
            escape(key),
            escape(name(key))
        )
    };
    let figures: String = (0..outcome.keys.len()).map(figure).collect();
    format!(
        "<p>Bits per byte after {}, against the values of each key. The best settings have the colours of their curves; a \
         line through a point covers the seeds of its setting.</p>\n\
         <div class=\"scatters\">\n{figures}</div>\n",
        crate::format::duration(outcome.plan.full_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let labels = |texts: &[&str]| -> Vec<String> {
            Along::new(texts, [100.0, 0.0]).ticks(4.0).into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(&["0.0003", "0.03"]), ["0.0003", "0.001", "0.003", "0.01", "0.03"]);
        assert_eq!(labels(&["2", "4", "3"]), ["2", "3", "4"]);
        assert_eq!(labels(&["swiglu", "gelu", "swiglu"]), ["gelu", "swiglu"]);
        let along = Along::new(&["0.001", "0.1"], [0.0, 100.0]);
        assert!((along.at("0.01") - 50.0).abs() < 1e-9, "the middle of a logarithmic axis");
        assert!(along.at("0.001") > 0.0 && along.at("0.1") < 100.0, "within it");
    }
}
