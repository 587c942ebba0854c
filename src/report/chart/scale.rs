//! Axes: from numbers to places in a picture, and the round numbers that are written beside them.

use crate::format::grouped;

/// The numbers of an axis and where they lie in the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct Scale {
    /// The number at the axis's beginning, and the one at its end.
    pub domain: [f64; 2],
    /// Where these are, in pixels.
    pub range: [f64; 2],
}

impl Scale {
    /// Where a number lies; one outside of the domain lies outside of the range.
    pub fn at(&self, number: f64) -> f64 {
        let ([low, high], [from, to]) = (self.domain, self.range);
        match high > low {
            true => from + (number - low) / (high - low) * (to - from),
            false => f64::midpoint(from, to),
        }
    }

    /// Round numbers within the domain, at most about `most`; `least` is the least distance between two.
    pub fn ticks(&self, most: usize, least: f64) -> Vec<Tick> {
        let [low, high] = self.domain;
        let step = round_step((high - low) / most.max(1) as f64).max(least);
        if !(step > 0.0 && step.is_finite()) {
            return vec![Tick::new(low, low.abs() / 10.0, low.abs())];
        }
        // A hair of room, since 0.1 + 0.2 is not 0.3.
        let (from, to) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
        #[allow(clippy::cast_possible_truncation, reason = "a handful of ticks")]
        let multiples = from as i64..=to as i64;
        let largest = low.abs().max(high.abs());
        #[allow(clippy::cast_precision_loss, reason = "a handful of ticks")]
        let numbers = multiples.map(|i| i as f64 * step);
        numbers.map(|number| Tick::new(number, step, largest)).collect()
    }
}

/// A number beside an axis.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct Tick {
    pub number: f64,
    pub label: String,
}

impl Tick {
    fn new(number: f64, step: f64, largest: f64) -> Self {
        let label = label(number, step, largest);
        Self { number, label }
    }
}

/// The next number above or at `least` that is 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let enough = |factor: &f64| factor * power >= least * (1.0 - 1e-9);
    factors.into_iter().find(enough).unwrap_or(10.0) * power
}

/// A number with as many digits as tell it from its neighbours, `step` away; numbers up to `largest` stand
/// beside it.
fn label(number: f64, step: f64, largest: f64) -> String {
    if number.abs() < step * 1e-6 || number == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e9).contains(&largest) {
        let digits = number.abs().log10().floor() - step.log10().floor();
        let text = format!("{number:.*e}", digits_of(digits));
        return text.replace(".0e", "e");
    }
    if step >= 1.0 && number >= 1.0 {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is from 1 to 1e9"
        )]
        return grouped(number.round() as u64);
    }
    format!("{number:.*}", digits_of(-step.log10().floor()))
}

/// From 0 to 9 digits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 9")]
fn digits_of(number: f64) -> usize {
    number.clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64, most: usize, least: f64) -> Vec<String> {
        let domain = [low, high];
        let range = [0.0, 1.0];
        let ticks = Scale { domain, range }.ticks(most, least);
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(labels(0.0, 1600.0, 5, 1.0), ["0", "500", "1,000", "1,500"]);
        assert_eq!(labels(0.97, 4.21, 5, 0.0), ["1", "2", "3", "4"]);
        assert_eq!(labels(0.97, 1.33, 4, 0.0), ["1.0", "1.1", "1.2", "1.3"]);
        assert_eq!(labels(0.0, 1.0, 2, 0.0), ["0", "0.5", "1.0"]);
    }

    #[test]
    fn steps_are_whole() {
        assert_eq!(labels(0.0, 3.0, 10, 1.0), ["0", "1", "2", "3"]);
        assert_eq!(labels(5.0, 5.0, 10, 1.0), ["5"]);
    }

    #[test]
    fn small_numbers_are_powers_of_ten() {
        assert_eq!(labels(0.0, 6e-4, 3, 0.0), ["0", "2e-4", "4e-4", "6e-4"]);
        assert_eq!(labels(1e-5, 3.2e-5, 5, 0.0), ["1e-5", "1.5e-5", "2e-5", "2.5e-5", "3e-5"]);
        assert_eq!(labels(0.0, 4e-3, 4, 0.0), ["0", "0.001", "0.002", "0.003", "0.004"]);
    }

    #[test]
    fn what_has_no_extent_has_a_tick_and_a_place() {
        assert_eq!(labels(2.5, 2.5, 5, 0.0), ["2.5"]);
        let scale = Scale { domain: [2.5, 2.5], range: [0.0, 10.0] };
        assert!((scale.at(2.5) - 5.0).abs() < 1e-12);
    }

    #[test]
    fn a_scale_may_run_down() {
        let scale = Scale { domain: [1.0, 3.0], range: [100.0, 0.0] };
        assert!((scale.at(1.0) - 100.0).abs() < 1e-12 && scale.at(3.0).abs() < 1e-12);
        assert!((scale.at(2.0) - 50.0).abs() < 1e-12);
    }

    #[test]
    fn any_numbers_give_a_few_ticks() {
        for exponent in -12..12 {
            for factor in [1.0, 1.7, 3.3, 9.99] {
                let high = factor * 10_f64.powi(exponent);
                let n = labels(0.0, high, 5, 0.0).len();
                assert!((2..=6).contains(&n), "{n} ticks up to {high}");
            }
        }
    }
}
