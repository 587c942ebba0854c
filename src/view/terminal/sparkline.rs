//! Curves in a line of terminal text.

/// The levels, from lowest to highest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The curve of these numbers in at most `n_columns` columns, each the mean of an equal part; on a logarithmic scale,
/// which shows late progress of a loss, if all are positive. Non-finite numbers are left out.
#[must_use]
pub fn sparkline(numbers: &[f64], n_columns: usize) -> String {
    let finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    let is_positive = finite.iter().all(|x| *x > 0.0);
    let scaled: Vec<f64> = finite.iter().map(|x| if is_positive { x.ln() } else { *x }).collect();
    let means = means(&scaled, n_columns);
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = (LEVELS.len() - 1) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the index of a level")]
    let level = |x: &f64| match high > low {
        true => LEVELS[((x - low) / (high - low) * top).round() as usize],
        false => LEVELS[0],
    };
    means.iter().map(level).collect()
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
    fn a_small_curve_is_made_of_means() {
        assert_eq!(means(&[1.0, 3.0, 5.0, 7.0], 2), [2.0, 6.0]);
        assert_eq!(means(&[1.0, 3.0], 60), [1.0, 3.0]);
        assert!(means(&[], 60).is_empty());
    }

    #[test]
    fn a_curve_fills_its_columns_from_the_lowest_to_the_highest() {
        assert_eq!(sparkline(&[4.0, 2.0, 1.0], 8), "█▅▁");
        assert_eq!(sparkline(&[-3.0, 0.0, 4.0], 8), "▁▄█", "no logarithm of these");
        let long: Vec<f64> = (1..=1000).map(f64::from).collect();
        let line = sparkline(&long, 8);
        assert_eq!((line.chars().count(), line.chars().next(), line.chars().last()), (8, Some('▁'), Some('█')));
    }

    #[test]
    fn a_constant_nothing_and_no_number_have_a_line() {
        assert_eq!(sparkline(&[2.0, 2.0], 8), "▁▁");
        assert_eq!(sparkline(&[], 8), "");
        assert_eq!(sparkline(&[f64::NAN, 1.0, f64::INFINITY], 8), "▁");
        assert_eq!(sparkline(&[1.0, 2.0], 0), "");
    }
}
