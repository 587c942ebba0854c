//! The area that curves are drawn in, with its axes.

use std::fmt::Write as _;

use super::{Point, Scale};
use crate::page::escape;

/// Room for the numbers below, for half of the last one there, and of the highest.
const BELOW: f64 = 26.0;
const RIGHT: f64 = 20.0;
const ABOVE: f64 = 8.0;

/// Steps from left to right, numbers from below.
#[derive(Clone, Copy, Debug)]
pub(in crate::report) struct Plot {
    pub x: Scale,
    pub y: Scale,
}

impl Plot {
    /// In a picture of this size, with so much room at the left for the numbers there.
    pub fn new([width, height]: [f64; 2], left: f64, steps: [f64; 2], numbers: [f64; 2]) -> Self {
        Self {
            x: Scale { domain: steps, range: [left, width - RIGHT] },
            y: Scale { domain: numbers, range: [height - BELOW, ABOVE] },
        }
    }

    /// Where a point lies; one that is too high, at the upper edge.
    pub fn place(&self, (step, number): Point) -> [f64; 2] {
        let number = number.clamp(self.y.domain[0], self.y.domain[1]);
        [self.x.at(step as f64), self.y.at(number)]
    }

    /// The points joined by lines.
    pub fn path(&self, points: &[Point]) -> String {
        let mut path = String::new();
        for (i, point) in points.iter().enumerate() {
            let [x, y] = self.place(*point);
            let verb = if i == 0 { 'M' } else { 'L' };
            write!(path, "{verb}{x:.1} {y:.1}").expect("a string");
        }
        path
    }

    /// Lines at round numbers, with these numbers, and with round steps below.
    pub fn axes(&self) -> String {
        let ([left, right], [bottom, top]) = (self.x.range, self.y.range);
        let mut svg = String::new();
        for tick in self.y.ticks(count((bottom - top) / 42.0), 0.0) {
            let y = self.y.at(tick.number);
            writeln!(svg, "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>")
                .expect("a string");
            let place = [left - 8.0, y + 4.0];
            svg.push_str(&text("tick", place, Anchor::End, &tick.label));
        }
        for tick in self.x.ticks(count((right - left) / 70.0), 1.0) {
            let x = self.x.at(tick.number);
            writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {bottom:.1}v4\"/>").expect("a string");
            let place = [x, bottom + 18.0];
            svg.push_str(&text("tick", place, Anchor::Middle, &tick.label));
        }
        svg
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a handful of ticks")]
fn count(n: f64) -> usize {
    n.max(2.0) as usize
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of text, whose class has its size and colour.
pub(in crate::report) fn text(class: &str, [x, y]: [f64; 2], anchor: Anchor, line: &str) -> String {
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let line = escape(line);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{line}</text>\n")
}

/// How wide a line of about 12 pixels' height is in most fonts, generously.
pub(in crate::report) fn text_width(line: &str) -> f64 {
    6.6 * line.chars().count() as f64
}
