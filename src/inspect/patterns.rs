//! Patterns of attention as numbers: scores of a matrix whose rows sum to 1, and a name by thresholds.
//!
//! Most scores are a mean mass: how much of its attention a token gives to certain tokens. A row counts only if it sees
//! both such a token and another: the first token of a causal map has no choice, and would be a perfect example of
//! everything.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far away a token still counts as near, in tokens. In sequences of less than four times as many it is a quarter of
/// them, at least 1.
const NEAR: usize = 4;

/// From this share of evenly spread attention on, a head is uniform. An untrained head has more, unless `qk_norm` makes
/// its queries and keys large; the other sample patterns of the lesson have at most 0.65.
const UNIFORM: f64 = 0.9;

/// From this mass on one kind of token on (the one before, the first one, an earlier occurrence, the one after it), a
/// head mostly does that: no other kind can have as much.
const MOSTLY: f64 = 0.5;

/// From this mass on itself on, a head is diagonal. The lesson's local pattern has 0.6, its diagonal one 0.9.
const DIAGONAL: f64 = 0.75;

/// From this mass on near tokens on, a head is local. The lesson's local pattern has 0.9, and its focused one 0.55.
const LOCAL: f64 = 0.75;

/// From this mean largest weight on, a head is focused, on whatever. The lesson's focused pattern has 0.85.
const FOCUSED: f64 = 0.75;

/// A mean in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.n += other.n;
    }

    /// `None` if nothing was counted.
    fn value(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}

impl FromIterator<f64> for Mean {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        let mut mean = Self::default();
        numbers.into_iter().for_each(|x| mean.merge(Self { sum: x, n: 1 }));
        mean
    }
}

/// How far the sum of a row may be from 1: maps that are printed with two digits are maps too.
const ROW_TOLERANCE: f64 = 0.02;

/// The attention weights of one head: `[T, T]`, queries then keys, each row summing to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadMap<'a> {
    weights: &'a [f32],
    n_tokens: usize,
    causal: bool,
}

impl<'a> HeadMap<'a> {
    /// The map with these weights, row by row, of a causal one only up to the diagonal.
    ///
    /// # Panics
    /// If there are not `n_tokens * n_tokens` of them, one is negative, or a row does not sum to 1.
    pub(super) fn new(weights: &'a [f32], n_tokens: usize, causal: bool) -> Self {
        assert_eq!(weights.len(), n_tokens * n_tokens);
        let map = Self { weights, n_tokens, causal };
        for (query, row) in map.rows() {
            let sum: f64 = row.iter().copied().map(f64::from).sum();
            assert!(
                row.iter().all(|weight| *weight >= 0.0) && (sum - 1.0).abs() < ROW_TOLERANCE,
                "row {query} is no distribution: {row:?}"
            );
        }
        map
    }

    /// Each query with its weights on the keys that it sees.
    fn rows(self) -> impl Iterator<Item = (usize, &'a [f32])> {
        let rows = self.weights.chunks_exact(self.n_tokens.max(1)).enumerate();
        rows.map(move |(query, row)| (query, if self.causal { &row[..=query] } else { row }))
    }

    /// The mean of `f` over the rows that see more than one key.
    fn mean(self, f: impl Fn(&[f32]) -> f64) -> Mean {
        self.rows().filter(|(_, row)| row.len() > 1).map(|(_, row)| f(row)).collect()
    }

    /// The mean attention on the keys that `is_meant(query, key)`, over the rows that see such a key and another.
    fn mass(self, is_meant: impl Fn(usize, usize) -> bool) -> Mean {
        let of_row = |(query, row): (usize, &[f32])| {
            let meant = (0..row.len()).filter(|key| is_meant(query, *key));
            let (sum, n) = meant.fold((0.0, 0), |(sum, n), key| (sum + f64::from(row[key]), n + 1));
            (1..row.len()).contains(&n).then_some(sum)
        };
        self.rows().filter_map(of_row).collect()
    }
}

fn entropy_bits(row: &[f32]) -> f64 {
    let term = |weight: &f32| match f64::from(*weight) {
        weight if weight > 0.0 => -weight * weight.log2(),
        _ => 0.0, // its limit
    };
    row.iter().map(term).sum()
}

/// The scores of a head, as means over rows; `None` if no row counts. All but the first are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadScores {
    /// Entropy of a row, bits: from 0, one token, to `log2 n`, each of n alike.
    pub entropy_bits: Option<f64>,
    /// Entropy as a share of `log2` of the number of keys that the row sees.
    pub entropy: Option<f64>,
    /// Share of attention that is spread evenly, `sum min(w, 1/n)`: 1 minus the total variation distance from even
    /// rows.
    pub uniform: Option<f64>,
    /// The largest weight.
    pub focused: Option<f64>,
    /// Mass on the token itself.
    pub diagonal: Option<f64>,
    /// Mass on the token before.
    pub previous_token: Option<f64>,
    /// Mass on the first token.
    pub first_token: Option<f64>,
    /// Mass on tokens at most 4 away.
    pub local: Option<f64>,
    /// Mass on earlier occurrences of the same token.
    pub duplicate_token: Option<f64>,
    /// Mass on the token that followed the token's earlier occurrence, in sequences that repeat.
    ///
    /// Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    pub induction: Option<f64>,
}

impl HeadScores {
    /// Name and value of each score, in the order of the fields.
    #[must_use]
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

    /// The thing that the head mostly does: the first whose threshold is reached, the special before the general.
    #[must_use]
    pub fn kind(&self) -> HeadKind {
        let rules = [
            (HeadKind::Uniform, self.uniform, UNIFORM),
            (HeadKind::Induction, self.induction, MOSTLY),
            (HeadKind::DuplicateToken, self.duplicate_token, MOSTLY),
            (HeadKind::PreviousToken, self.previous_token, MOSTLY),
            (HeadKind::FirstToken, self.first_token, MOSTLY),
            (HeadKind::Diagonal, self.diagonal, DIAGONAL),
            (HeadKind::Local, self.local, LOCAL),
            (HeadKind::Focused, self.focused, FOCUSED),
        ];
        let holds =
            |&(_, score, threshold): &(HeadKind, Option<f64>, f64)| score.is_some_and(|score| score >= threshold);
        rules.into_iter().find(holds).map_or(HeadKind::Mixed, |(kind, ..)| kind)
    }
}

/// The name of the thing that a head mostly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadKind {
    /// Attends to everything alike.
    Uniform,
    /// Attends to the token that followed the same token before.
    Induction,
    /// Attends to earlier occurrences of the same token.
    DuplicateToken,
    /// Attends to the token before.
    PreviousToken,
    /// Attends to the first token: often a head with nothing to do here.
    FirstToken,
    /// Attends to the token itself.
    Diagonal,
    /// Attends to tokens that are near.
    Local,
    /// Attends sharply, to none of the above.
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
            Self::Diagonal => "diagonal",
            Self::Local => "local",
            Self::Focused => "focused",
            Self::Mixed => "mixed",
        })
    }
}

/// [`HeadScores`] in the making, in the order of its fields: means over the rows of several maps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally([Mean; 10]);

impl Tally {
    /// Counts a map of a text with these tokens; without them nothing is known of duplicates.
    pub(super) fn add(&mut self, map: HeadMap<'_>, ids: Option<&[u32]>) {
        let even = |row: &[f32]| {
            let even = 1.0 / row.len() as f64;
            row.iter().map(|weight| f64::from(*weight).min(even)).sum()
        };
        let near = NEAR.min(map.n_tokens / 4).max(1);
        let duplicate = |ids: &[u32]| map.mass(|query, key| key < query && ids[key] == ids[query]);
        let means = [
            map.mean(entropy_bits),
            map.mean(|row| entropy_bits(row) / (row.len() as f64).log2()),
            map.mean(even),
            map.mean(|row| f64::from(row.iter().copied().fold(0.0, f32::max))),
            map.mass(|query, key| key == query),
            map.mass(|query, key| key + 1 == query),
            map.mass(|_, key| key == 0),
            map.mass(|query, key| query.abs_diff(key) <= near),
            ids.map_or(Mean::default(), duplicate),
        ];
        self.0.iter_mut().zip(means).for_each(|(sum, mean)| sum.merge(mean));
    }

    /// Counts a map of a sequence that repeats after `period` tokens, all of them different.
    pub(super) fn add_repeated(&mut self, map: HeadMap<'_>, period: usize) {
        let followed = |query: usize, key: usize| query >= period && key + period == query + 1;
        self.0[9].merge(map.mass(followed));
    }

    pub(super) fn scores(&self) -> HeadScores {
        let [
            entropy_bits,
            entropy,
            uniform,
            focused,
            diagonal,
            previous_token,
            first_token,
            local,
            duplicate_token,
            induction,
        ] = self.0.map(Mean::value);
        HeadScores {
            entropy_bits,
            entropy,
            uniform,
            focused,
            diagonal,
            previous_token,
            first_token,
            local,
            duplicate_token,
            induction,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores_of(weights: &[f32], causal: bool, ids: Option<&[u32]>, period: usize) -> HeadScores {
        let n_tokens = weights.len().isqrt();
        let map = HeadMap::new(weights, n_tokens, causal);
        let mut tally = Tally::default();
        tally.add(map, ids);
        tally.add_repeated(map, period);
        tally.scores()
    }

    fn close(score: Option<f64>, expected: f64) {
        let score = score.expect("a row that counts");
        assert!((score - expected).abs() < 1e-4, "{score} is not {expected}");
    }

    /// Every row attends to one token; `[T]`.
    fn pointing(at: &[usize]) -> Vec<f32> {
        let n = at.len();
        let row = |&to: &usize| (0..n).map(move |key| if key == to { 1.0 } else { 0.0 });
        at.iter().flat_map(row).collect()
    }

    #[test]
    fn even_rows_have_the_largest_entropy() {
        let it = scores_of(&[0.25; 16], false, None, 4);
        close(it.entropy_bits, 2.0);
        close(it.entropy, 1.0);
        close(it.uniform, 1.0);
        for score in [it.focused, it.diagonal, it.first_token, it.previous_token] {
            close(score, 0.25);
        }

        #[rustfmt::skip]
        let causal = [
            1.0, 0.0, 0.0,
            0.5, 0.5, 0.0,
            0.25, 0.25, 0.5,
        ];
        let it = scores_of(&causal, true, None, 3);
        close(it.entropy_bits, f64::midpoint(1.0, 1.5));
        close(it.entropy, f64::midpoint(1.0, 1.5 / 3_f64.log2()));
        close(it.uniform, f64::midpoint(1.0, 0.5 + 1.0 / 3.0));
        close(it.diagonal, 0.5);
        close(it.previous_token, 0.375);
        close(it.local, 0.75);
    }

    #[test]
    fn sharp_maps_have_one_pattern() {
        // Of tokens a b a b, the third attends to the one before and not to its twin.
        let it = scores_of(&pointing(&[0, 0, 1, 2]), true, Some(&[1, 2, 1, 2]), 2);
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
        let it = scores_of(&pointing(&[0, 0, 0, 1]), true, Some(&[1, 2, 1, 2]), 2);
        close(it.duplicate_token, 1.0);
        close(it.induction, 0.0);
        // x y z x y z: the second x attends to the first y, and so on.
        let repeated = pointing(&[0, 0, 0, 1, 2, 3]);
        close(scores_of(&repeated, true, None, 3).induction, 1.0);
        close(scores_of(&repeated, true, None, 2).induction, 0.0);
    }

    #[test]
    fn rows_without_a_choice_do_not_count() {
        assert_eq!(scores_of(&[1.0], true, Some(&[7]), 1), HeadScores::default());
        let it = scores_of(&pointing(&[0, 1]), true, Some(&[1, 2]), 2);
        assert_eq!(it.local, None, "all is near");
        assert_eq!(it.duplicate_token, None);
    }

    #[test]
    fn nothing_above_the_diagonal_of_a_causal_map_counts() {
        close(scores_of(&[1.0, 9.0, 0.5, 0.5], true, None, 2).diagonal, 0.5);
    }

    #[test]
    #[should_panic(expected = "row 1 is no distribution")]
    fn rows_that_do_not_sum_to_one_are_a_bug() {
        let _ = HeadMap::new(&[1.0, 0.0, 0.5, 0.4], 2, true);
    }

    // The sample patterns of "Self-Attention Mechanism" (AITutorials.site, Transformers Architecture, tutorial 3),
    // section "What Do Different Attention Patterns Mean?".

    #[test]
    fn the_documents_patterns_are_what_it_calls_them() {
        let scores = |rows: &[&[f32]]| scores_of(&rows.concat(), false, None, rows.len());
        let diagonal = scores(&[&[0.9, 0.05, 0.05], &[0.05, 0.9, 0.05], &[0.05, 0.05, 0.9]]);
        let uniform = scores(&[&[0.33; 3], &[0.33; 3], &[0.33; 3]]);
        let focused = scores(&[&[0.05, 0.90, 0.05], &[0.10, 0.10, 0.80], &[0.85, 0.10, 0.05]]);
        let local =
            scores(&[&[0.7, 0.2, 0.1, 0.0], &[0.2, 0.5, 0.2, 0.1], &[0.1, 0.2, 0.5, 0.2], &[0.0, 0.1, 0.2, 0.7]]);
        assert_eq!(diagonal.kind(), HeadKind::Diagonal);
        assert_eq!(uniform.kind(), HeadKind::Uniform);
        assert_eq!(focused.kind(), HeadKind::Focused);
        assert_eq!(local.kind(), HeadKind::Local);

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
    fn an_even_causal_map_is_uniform_and_a_sharp_one_has_its_name() {
        let n = 32_usize;
        let map_of = |weight: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            let cells = (0..n).flat_map(|query| (0..n).map(move |key| (query, key)));
            cells.map(|(query, key)| if key <= query { weight(query, key) } else { 0.0 }).collect()
        };
        let kind_of = |weight: &dyn Fn(usize, usize) -> f32| {
            let weights = map_of(weight);
            scores_of(&weights, true, None, n).kind()
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
    fn the_special_comes_before_the_general() {
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
