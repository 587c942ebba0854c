//! Curves in a line of terminal text.

use crate::format::short;
use crate::view::svg::plot::ends;
use crate::view::terminal::columns::width;
use crate::view::terminal::table::table;

/// The levels, from lowest to highest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The curve of these numbers in at most `n_columns` columns, each the mean of an equal part; on a logarithmic scale,
/// which shows late progress of a loss, if all are positive. Non-finite numbers are left out.
pub fn sparkline(numbers: &[f64], n_columns: usize) -> String {
    let finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    let is_positive = finite.iter().all(|x| *x > 0.0);
    let scaled: Vec<f64> = finite.iter().map(|x| if is_positive { x.ln() } else { *x }).collect();
    let means = means(&scaled, n_columns);
    let [low, high] = ends(means.iter().copied()).unwrap_or_default();
    let top = (LEVELS.len() - 1) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the index of a level")]
    let level = |x: &f64| match high > low {
        true => LEVELS[((x - low) / (high - low) * top).round() as usize],
        false => LEVELS[0],
    };
    means.iter().map(level).collect()
}

/// A line for each curve: its name, its shape, the first and the last number.
pub(crate) fn curve_table(heading: &str, curves: &[(&str, &[(u64, f64)])], n_columns: usize) -> String {
    const NUMBERS: usize = 2 * 10; // two numbers and their gaps
    let longest = curves.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let room = n_columns.saturating_sub(longest + NUMBERS + 2).clamp(8, 60);
    let row = |(name, points): &(&str, &[(u64, f64)])| {
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        let number = |value: Option<&f64>| value.map(|value| short(*value)).unwrap_or_default();
        [(*name).to_owned(), sparkline(&values, room), number(values.first()), number(values.last())]
    };
    let rows: Vec<_> = curves.iter().map(row).collect();
    table(&format!("{heading} | OVER THE STEPS | >FIRST | >LAST"), &rows, n_columns)
}

/// At most `n` numbers, each the mean of an equal share of `numbers`.
pub(crate) fn means(numbers: &[f64], n: usize) -> Vec<f64> {
    let n = n.min(numbers.len());
    let part = |at: usize| &numbers[at * numbers.len() / n..(at + 1) * numbers.len() / n];
    (0..n).map(|at| part(at).iter().sum::<f64>() / part(at).len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_share_numbers_equally() {
        assert_eq!(means(&[1.0, 3.0, 5.0, 7.0], 2), [2.0, 6.0]);
        assert_eq!(means(&[1.0, 3.0], 60), [1.0, 3.0]);
        assert!(means(&[], 60).is_empty());
    }

    #[test]
    fn sparkline_spans_lowest_to_highest() {
        assert_eq!(sparkline(&[4.0, 2.0, 1.0], 8), "█▅▁");
        assert_eq!(sparkline(&[-3.0, 0.0, 4.0], 8), "▁▄█", "no logarithm of these");
        let long: Vec<f64> = (1..=1000).map(f64::from).collect();
        let line = sparkline(&long, 8);
        assert_eq!((line.chars().count(), line.chars().next(), line.chars().last()), (8, Some('▁'), Some('█')));
    }

    #[test]
    fn sparkline_takes_constants_and_nan() {
        assert_eq!(sparkline(&[2.0, 2.0], 8), "▁▁");
        assert_eq!(sparkline(&[], 8), "");
        assert_eq!(sparkline(&[f64::NAN, 1.0, f64::INFINITY], 8), "▁");
        assert_eq!(sparkline(&[1.0, 2.0], 0), "");
    }
}
