//! Long curves with fewer points, without losing what one looks for in them.

/// A step and what was measured there.
pub(in crate::report) type Point = (u64, f64);

/// The points of a curve, at most twice `n_stretches` and two: of each of as many equal stretches of steps the
/// lowest and the highest, and the first and last of all. A curve that is short enough stays as it is.
pub(in crate::report) fn thinned(points: &[Point], n_stretches: usize) -> Vec<Point> {
    let (Some(&first), Some(&last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    if points.len() <= 2 * n_stretches + 2 {
        return points.to_vec();
    }
    let span = u128::from(last.0 - first.0) + 1;
    let stretch_of = |point: &Point| u128::from(point.0 - first.0) * n_stretches as u128 / span;
    let mut kept = vec![first];
    for stretch in points.chunk_by(|a, b| stretch_of(a) == stretch_of(b)) {
        let by_value = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let lowest = stretch.iter().min_by(by_value).expect("a chunk is not empty");
        let highest = stretch.iter().max_by(by_value).expect("a chunk is not empty");
        let mut extremes = [*lowest, *highest];
        extremes.sort_unstable_by_key(|point| point.0);
        kept.extend(extremes);
    }
    kept.push(last);
    kept.dedup_by_key(|point| point.0);
    kept
}

/// At most `most` of `n` things at even distances, the first and the last among them: their indices.
pub(in crate::report) fn spread(n: usize, most: usize) -> Vec<usize> {
    let most = most.max(2);
    match n <= most {
        true => (0..n).collect(),
        false => (0..most).map(|i| i * (n - 1) / (most - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_and_ends_stay() {
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
    }

    #[test]
    fn short_curves_stay_as_they_are() {
        assert_eq!(thinned(&[], 10), []);
        let points = [(1, 2.0), (9, 1.0), (10, 3.0)];
        assert_eq!(thinned(&points, 1), points);
    }

    #[test]
    fn gaps_are_no_points() {
        let points: Vec<Point> =
            (0..100).chain(1_000_000..1_000_100).map(|step| (step, 1.0)).collect();
        let thin = thinned(&points, 10);
        assert_eq!(thin.len(), 4, "{thin:?}");
    }

    #[test]
    fn what_is_spread_has_both_ends() {
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(9, 3), [0, 4, 8]);
        assert_eq!(spread(1, 3), [0]);
        assert!(spread(0, 3).is_empty());
    }
}
