//! Scores of attention patterns, and a name chosen by thresholds.
//!
//! Most scores are a mean mass: the share of its attention that a token gives to certain tokens. A row counts only if
//! it sees both such a token and another: the first token of a causal map has no choice.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tokens up to this distance count as near; in sequences shorter than four times that, up to a quarter of the length,
/// at least 1.
const NEAR: usize = 4;

/// From this mass on, a head mostly attends to one kind of token: no other kind can have as much.
const MOSTLY: f64 = 0.5;

/// The tolerance of a row's sum, which accepts maps printed with two digits.
const ROW_TOLERANCE: f64 = 0.02;

/// The attention weights of one head: for each query, its weights on the keys that it sees, which sum to 1.
#[derive(Clone, Debug)]
pub(super) struct HeadMap<'a>(Vec<&'a [f32]>);

impl<'a> HeadMap<'a> {
    /// The map of causal weights, `[T, T]`, queries then keys; weights above the diagonal are ignored.
    ///
    /// # Panics
    /// If there are not `n_tokens * n_tokens` weights, one is negative, or a row does not sum to 1.
    pub(super) fn causal(weights: &'a [f32], n_tokens: usize) -> Self {
        assert_eq!(weights.len(), n_tokens * n_tokens);
        let rows = weights.chunks_exact(n_tokens.max(1)).enumerate();
        Self::new(rows.map(|(query, row)| &row[..=query]).collect())
    }

    fn new(rows: Vec<&'a [f32]>) -> Self {
        for (query, row) in rows.iter().enumerate() {
            let sum: f64 = row.iter().copied().map(f64::from).sum();
            assert!(
                row.iter().all(|weight| *weight >= 0.0) && (sum - 1.0).abs() < ROW_TOLERANCE,
                "row {query} is no distribution: {row:?}"
            );
        }
        Self(rows)
    }

    /// The total of `f` over the rows that see more than one key.
    fn total(&self, f: impl Fn(&[f32]) -> f64) -> Total {
        summed(self.0.iter().filter(|row| row.len() > 1).map(|row| f(row)))
    }

    /// The total attention to keys with `is_meant(query, key)`, over the rows that see such a key and another.
    fn mass(&self, is_meant: impl Fn(usize, usize) -> bool) -> Total {
        let of_row = |(query, row): (usize, &&[f32])| {
            let meant = (0..row.len()).filter(|key| is_meant(query, *key));
            let (sum, n) = meant.fold((0.0, 0), |(sum, n), key| (sum + f64::from(row[key]), n + 1));
            (1..row.len()).contains(&n).then_some(sum)
        };
        summed(self.0.iter().enumerate().filter_map(of_row))
    }
}

/// A sum and the number of its summands.
type Total = (f64, usize);

fn summed(numbers: impl Iterator<Item = f64>) -> Total {
    numbers.fold((0.0, 0), |(sum, n), x| (sum + x, n + 1))
}

fn entropy_bits(row: &[f32]) -> f64 {
    let term = |weight: &f32| match f64::from(*weight) {
        weight if weight > 0.0 => -weight * weight.log2(),
        _ => 0.0, // the limit
    };
    row.iter().map(term).sum()
}

/// The scores of a head, as means over rows; `None` if no row counts. All but the first are in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadScores {
    /// Entropy of a row, in bits: from 0, for a single token, to `log2 n`, for n equal weights.
    pub entropy_bits: Option<f64>,
    /// Entropy as a share of `log2` of the number of keys that the row sees.
    pub entropy: Option<f64>,
    /// Share that is uniform, `sum min(w, 1/n)`: 1 minus the total variation distance from uniform rows.
    pub uniform: Option<f64>,
    /// The largest weight.
    pub focused: Option<f64>,
    /// Mass on the token itself.
    pub diagonal: Option<f64>,
    /// Mass on the previous token.
    pub previous_token: Option<f64>,
    /// Mass on the first token.
    pub first_token: Option<f64>,
    /// Mass on tokens at most 4 away.
    pub local: Option<f64>,
    /// Mass on earlier occurrences of the same token.
    pub duplicate_token: Option<f64>,
    /// Mass on the token after the earlier occurrence of the current token, in repeated sequences.
    ///
    /// Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    pub induction: Option<f64>,
}

impl HeadScores {
    /// Name and value of each score, in field order.
    pub fn named(&self) -> [(&'static str, Option<f64>); 10] {
        [
            ("entropy_bits", self.entropy_bits),
            ("entropy", self.entropy),
            ("uniform", self.uniform),
            ("focused", self.focused),
            ("diagonal", self.diagonal),
            ("previous_token", self.previous_token),
            ("first_token", self.first_token),
            ("local", self.local),
            ("duplicate_token", self.duplicate_token),
            ("induction", self.induction),
        ]
    }

    /// The main behaviour of the head: the first kind whose threshold is reached, special kinds before general ones.
    pub fn kind(&self) -> HeadKind {
        let rules = [
            // An untrained head scores higher, unless `qk_norm` makes its queries and keys large.
            (HeadKind::Uniform, self.uniform, 0.9), // the lesson's other patterns have at most 0.65
            (HeadKind::Induction, self.induction, MOSTLY),
            (HeadKind::DuplicateToken, self.duplicate_token, MOSTLY),
            (HeadKind::PreviousToken, self.previous_token, MOSTLY),
            (HeadKind::FirstToken, self.first_token, MOSTLY),
            (HeadKind::Diagonal, self.diagonal, 0.75), // the lesson's local pattern has 0.6, its diagonal one 0.9
            (HeadKind::Local, self.local, 0.75),       // the lesson's local pattern has 0.9, its focused one 0.55
            (HeadKind::Focused, self.focused, 0.75),   // the lesson's focused pattern has 0.85
        ];
        let reached = rules.into_iter().find(|(_, score, threshold)| score.is_some_and(|score| score >= *threshold));
        reached.map_or(HeadKind::Mixed, |(kind, ..)| kind)
    }
}

/// The name of a head's main behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadKind {
    /// Attends to all tokens alike.
    Uniform,
    /// Attends to the token that followed an earlier occurrence of the current one.
    Induction,
    /// Attends to earlier occurrences of the same token.
    DuplicateToken,
    /// Attends to the previous token.
    PreviousToken,
    /// Attends to the first token: often a head with nothing to do here.
    FirstToken,
    /// Attends to the token itself: `self` in tables, like its score.
    Diagonal,
    /// Attends to nearby tokens.
    Local,
    /// Attends sharply, but to none of the above.
    Focused,
    /// None of the above.
    Mixed,
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Uniform => "uniform",
            Self::Induction => "induction",
            Self::DuplicateToken => "duplicate token",
            Self::PreviousToken => "previous token",
            Self::FirstToken => "first token",
            Self::Diagonal => "self",
            Self::Local => "local",
            Self::Focused => "focused",
            Self::Mixed => "mixed",
        })
    }
}

/// [`HeadScores`] being accumulated, in field order: means over the rows of several maps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally([Total; 10]);

impl Tally {
    /// Counts a map of a text with these tokens.
    pub(super) fn add(&mut self, map: &HeadMap<'_>, ids: &[u32]) {
        let even = |row: &[f32]| {
            let even = 1.0 / row.len() as f64;
            row.iter().map(|weight| f64::from(*weight).min(even)).sum()
        };
        let near = NEAR.min(ids.len() / 4).max(1);
        let totals = [
            map.total(entropy_bits),
            map.total(|row| entropy_bits(row) / (row.len() as f64).log2()),
            map.total(even),
            map.total(|row| f64::from(row.iter().copied().fold(0.0, f32::max))),
            map.mass(|query, key| key == query),
            map.mass(|query, key| key + 1 == query),
            map.mass(|_, key| key == 0),
            map.mass(|query, key| query.abs_diff(key) <= near),
            map.mass(|query, key| key < query && ids[key] == ids[query]),
        ];
        (0..).zip(totals).for_each(|(score, total)| self.count(score, total));
    }

    /// Counts a map of a sequence that repeats after `period` distinct tokens.
    pub(super) fn add_repeated(&mut self, map: &HeadMap<'_>, period: usize) {
        self.count(9, map.mass(|query, key| query >= period && key + period == query + 1));
    }

    fn count(&mut self, score: usize, (sum, n): Total) {
        self.0[score].0 += sum;
        self.0[score].1 += n;
    }

    pub(super) fn scores(&self) -> HeadScores {
        let mut values = self.0.iter().map(|(sum, n)| (*n > 0).then(|| sum / *n as f64));
        let mut next = || values.next().flatten();
        HeadScores {
            entropy_bits: next(),
            entropy: next(),
            uniform: next(),
            focused: next(),
            diagonal: next(),
            previous_token: next(),
            first_token: next(),
            local: next(),
            duplicate_token: next(),
            induction: next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores_of(map: &HeadMap<'_>, ids: &[u32], period: usize) -> HeadScores {
        let mut tally = Tally::default();
        tally.add(map, ids);
        tally.add_repeated(map, period);
        tally.scores()
    }

    /// The scores of a causal map of a text with these tokens.
    fn causal(weights: &[f32], ids: &[u32], period: usize) -> HeadScores {
        scores_of(&HeadMap::causal(weights, ids.len()), ids, period)
    }

    /// The scores of a bidirectional map, of a text without duplicates.
    fn both_ways(rows: &[&[f32]]) -> HeadScores {
        let ids: Vec<u32> = (0..).take(rows.len()).collect();
        scores_of(&HeadMap::new(rows.to_vec()), &ids, rows.len())
    }

    fn close(score: Option<f64>, expected: f64) {
        let score = score.expect("a row was counted");
        assert!((score - expected).abs() < 1e-4, "{score} is not {expected}");
    }

    /// A map whose rows each attend to a single token; `at` is `[T]`.
    fn pointing(at: &[usize]) -> Vec<f32> {
        let n = at.len();
        let row = |&to: &usize| (0..n).map(move |key| if key == to { 1.0 } else { 0.0 });
        at.iter().flat_map(row).collect()
    }

    #[test]
    fn uniform_rows_have_largest_entropy() {
        let it = both_ways(&[&[0.25; 4][..]; 4]);
        close(it.entropy_bits, 2.0);
        close(it.entropy, 1.0);
        close(it.uniform, 1.0);
        for score in [it.focused, it.diagonal, it.first_token, it.previous_token] {
            close(score, 0.25);
        }

        let it = causal(&[1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.25, 0.25, 0.5], &[0, 1, 2], 3);
        close(it.entropy_bits, f64::midpoint(1.0, 1.5));
        close(it.entropy, f64::midpoint(1.0, 1.5 / 3_f64.log2()));
        close(it.uniform, f64::midpoint(1.0, 0.5 + 1.0 / 3.0));
        close(it.diagonal, 0.5);
        close(it.previous_token, 0.375);
        close(it.local, 0.75);
    }

    #[test]
    fn sharp_maps_score_one_pattern() {
        // In the tokens a b a b, the third attends to the previous one and not to its duplicate.
        let it = causal(&pointing(&[0, 0, 1, 2]), &[1, 2, 1, 2], 2);
        for (score, expected) in [
            (it.previous_token, 1.0),
            (it.diagonal, 0.0),
            (it.entropy, 0.0),
            (it.focused, 1.0),
            (it.local, 1.0),
            (it.first_token, 1.0 / 3.0),
            (it.duplicate_token, 0.0),
        ] {
            close(score, expected);
        }
        let it = causal(&pointing(&[0, 0, 0, 1]), &[1, 2, 1, 2], 2);
        close(it.duplicate_token, 1.0);
        close(it.induction, 0.0);
        // x y z x y z: the second x attends to the first y, and so on.
        let repeated = |period| causal(&pointing(&[0, 0, 0, 1, 2, 3]), &[1, 2, 3, 1, 2, 3], period).induction;
        close(repeated(3), 1.0);
        close(repeated(2), 0.0);
    }

    #[test]
    fn scores_skip_rows_without_choice() {
        assert_eq!(causal(&[1.0], &[7], 1), HeadScores::default());
        let it = causal(&pointing(&[0, 1]), &[1, 2], 2);
        assert_eq!(it.local, None, "all is near");
        assert_eq!(it.duplicate_token, None);
    }

    #[test]
    fn causal_map_ignores_weights_above_diagonal() {
        close(causal(&[1.0, 9.0, 0.5, 0.5], &[1, 2], 2).diagonal, 0.5);
    }

    #[test]
    #[should_panic(expected = "row 1 is no distribution")]
    fn rows_must_sum_to_one() {
        let _ = HeadMap::causal(&[1.0, 0.0, 0.5, 0.4], 2);
    }

    /// The sample patterns of "Self-Attention Mechanism" (AITutorials.site, Transformers Architecture, tutorial 3),
    /// section "What Do Different Attention Patterns Mean?".
    #[test]
    fn tutorial_patterns_get_their_names() {
        let diagonal = both_ways(&[&[0.9, 0.05, 0.05], &[0.05, 0.9, 0.05], &[0.05, 0.05, 0.9]]);
        let uniform = both_ways(&[&[0.33; 3][..]; 3]);
        let focused = both_ways(&[&[0.05, 0.90, 0.05], &[0.10, 0.10, 0.80], &[0.85, 0.10, 0.05]]);
        let local =
            both_ways(&[&[0.7, 0.2, 0.1, 0.0], &[0.2, 0.5, 0.2, 0.1], &[0.1, 0.2, 0.5, 0.2], &[0.0, 0.1, 0.2, 0.7]]);
        let kinds = [diagonal, uniform, focused, local].map(|scores| scores.kind());
        assert_eq!(kinds, [HeadKind::Diagonal, HeadKind::Uniform, HeadKind::Focused, HeadKind::Local]);

        close(diagonal.diagonal, 0.9);
        close(diagonal.entropy_bits, 0.5690); // -0.9 log2 0.9 - 2 * 0.05 log2 0.05
        close(uniform.uniform, 0.99);
        close(uniform.entropy, 0.9991); // -3 * 0.33 log2 0.33 = 1.5834, over log2 3
        close(focused.focused, 0.85);
        close(focused.diagonal, (0.05 + 0.1 + 0.05) / 3.0);
        close(local.local, 0.9);
        close(local.diagonal, 0.6);
        close(local.uniform, 0.65); // (0.55 + 0.75) / 2
    }

    #[test]
    fn causal_maps_get_names_of_their_patterns() {
        let ids: Vec<u32> = (0..32).collect();
        let kind_of = |weight: &dyn Fn(usize, usize) -> f32| {
            let row = |query| (0..32).map(move |key| if key <= query { weight(query, key) } else { 0.0 });
            causal(&(0..32).flat_map(row).collect::<Vec<_>>(), &ids, 32).kind()
        };
        let is = |condition: bool| if condition { 1.0 } else { 0.0 };
        assert_eq!(kind_of(&|query, _| 1.0 / (query + 1) as f32), HeadKind::Uniform);
        assert_eq!(kind_of(&|query, key| is(key == query.saturating_sub(1))), HeadKind::PreviousToken);
        assert_eq!(kind_of(&|_, key| is(key == 0)), HeadKind::FirstToken);
        assert_eq!(kind_of(&|query, key| is(key == query)), HeadKind::Diagonal);
        assert_eq!(kind_of(&|query, key| is(key == query.saturating_sub(3))), HeadKind::Local);
        assert_eq!(kind_of(&|query, key| is(key == query / 2)), HeadKind::Focused);
        let mixed = |query: usize, key: usize| (is(key == 0) + is(key == query) + is(key == query / 2)) / 3.0;
        assert_eq!(kind_of(&mixed), HeadKind::Mixed);
    }

    #[test]
    fn kind_prefers_special_over_general() {
        let of = |induction, previous_token| HeadScores {
            induction: Some(induction),
            previous_token: Some(previous_token),
            local: Some(0.95),
            focused: Some(0.95),
            ..HeadScores::default()
        };
        assert_eq!(of(0.5, 0.9).kind(), HeadKind::Induction);
        assert_eq!(of(0.4999, 0.9).kind(), HeadKind::PreviousToken);
        assert_eq!(of(0.0, 0.0).kind(), HeadKind::Local);
        assert_eq!(HeadScores::default().kind(), HeadKind::Mixed);
    }
}
