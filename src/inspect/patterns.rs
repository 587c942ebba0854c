//! What a map of attention looks like, as numbers: pure functions of a matrix whose rows sum to 1.
//!
//! Most of them are a mean mass: how much of its attention a token gives to certain tokens. A row counts only
//! where the question is open, where it may look at such a token and at another: the first token of a causal
//! map has no choice, and would be at once a perfect example of everything.

/// What a token may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Itself and what came before: a model that writes.
    Causal,
    /// Every token: a model that reads.
    Full,
}

/// A mean in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    n: usize,
}

impl Mean {
    /// Counts one more.
    pub fn add(&mut self, x: f64) {
        self.sum += x;
        self.n += 1;
    }

    /// Counts all that `other` counted.
    pub fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.n += other.n;
    }

    /// The mean; none of nothing.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 rows are counted")]
    pub fn value(self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }
}

impl FromIterator<f64> for Mean {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        let mut mean = Self::default();
        numbers.into_iter().for_each(|x| mean.add(x));
        mean
    }
}

/// How far the sum of a row may be from 1: maps that were written down with two digits are maps too.
const ROW_TOLERANCE: f64 = 0.02;

/// Who looks at whom, in one head: `[T, T]`, queries then keys, each row summing to 1.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    weights: &'a [f32],
    n_tokens: usize,
    sight: Sight,
}

impl<'a> Map<'a> {
    /// The map with these weights, row by row. Of a causal one the upper right is not looked at.
    ///
    /// # Panics
    /// If there are not `n_tokens * n_tokens` of them, one is negative, or a row that can be seen does not
    /// sum to 1: no softmax made them.
    #[must_use]
    pub fn new(weights: &'a [f32], n_tokens: usize, sight: Sight) -> Self {
        assert_eq!(weights.len(), n_tokens * n_tokens);
        let map = Self { weights, n_tokens, sight };
        for (query, row) in map.rows() {
            let sum: f64 = row.iter().copied().map(f64::from).sum();
            assert!(
                row.iter().all(|weight| *weight >= 0.0) && (sum - 1.0).abs() < ROW_TOLERANCE,
                "row {query} is no distribution: {row:?}"
            );
        }
        map
    }

    /// How many tokens look and are looked at.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// What each token sees: its row up to the last key that it may look at.
    fn rows(&self) -> impl Iterator<Item = (usize, &'a [f32])> + use<'a> {
        let (sight, n_tokens) = (self.sight, self.n_tokens);
        let rows = self.weights.chunks_exact(n_tokens.max(1)).enumerate();
        rows.map(move |(query, row)| match sight {
            Sight::Causal => (query, &row[..=query]),
            Sight::Full => (query, row),
        })
    }

    /// Rows with more than one key to look at.
    fn open_rows(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.rows().map(|(_, row)| row).filter(|row| row.len() > 1)
    }

    /// How undecided the rows are, `-sum w log2 w`: from 0 bits, one token, to `log2 n`, each of n alike.
    #[must_use]
    pub fn entropy_bits(&self) -> Mean {
        self.open_rows().map(entropy_bits).collect()
    }

    /// The same as a share of the most that is possible, `log2` of how many keys the row sees: 0 to 1.
    #[must_use]
    pub fn entropy(&self) -> Mean {
        let share = |row: &[f32]| entropy_bits(row) / (row.len() as f64).log2();
        self.open_rows().map(share).collect()
    }

    /// How much of the attention is spread as if every key were alike, `sum min(w, 1/n)`: 1 less the total
    /// variation distance from even rows.
    #[must_use]
    pub fn uniform(&self) -> Mean {
        let overlap = |row: &[f32]| {
            let even = 1.0 / row.len() as f64;
            row.iter().map(|weight| f64::from(*weight).min(even)).sum()
        };
        self.open_rows().map(overlap).collect()
    }

    /// The largest weight of each row: how sharply it looks, wherever that is.
    #[must_use]
    pub fn focused(&self) -> Mean {
        let largest = |row: &[f32]| f64::from(row.iter().copied().fold(0.0, f32::max));
        self.open_rows().map(largest).collect()
    }

    /// How much of the attention goes where `is_meant`, of a query and a key, says; of the rows that see both
    /// a key that is meant and one that is not.
    #[must_use]
    pub fn mass(&self, is_meant: impl Fn(usize, usize) -> bool) -> Mean {
        let mut mean = Mean::default();
        for (query, row) in self.rows() {
            let meant = (0..row.len()).filter(|key| is_meant(query, *key));
            let (sum, n) = meant.fold((0.0, 0), |(sum, n), key| (sum + f64::from(row[key]), n + 1));
            if (1..row.len()).contains(&n) {
                mean.add(sum);
            }
        }
        mean
    }

    /// The mass on the token itself.
    #[must_use]
    pub fn diagonal(&self) -> Mean {
        self.mass(|query, key| key == query)
    }

    /// The mass on the token before.
    #[must_use]
    pub fn previous_token(&self) -> Mean {
        self.mass(|query, key| key + 1 == query)
    }

    /// The mass on the first token of all.
    #[must_use]
    pub fn first_token(&self) -> Mean {
        self.mass(|_, key| key == 0)
    }

    /// The mass on tokens that are at most `distance` away, the token itself included.
    #[must_use]
    pub fn local(&self, distance: usize) -> Mean {
        self.mass(|query, key| query.abs_diff(key) <= distance)
    }

    /// The mass on earlier occurrences of the same token; `ids` are the tokens, `[T]`.
    ///
    /// # Panics
    /// If there are not as many tokens as rows.
    #[must_use]
    pub fn duplicate_token(&self, ids: &[u32]) -> Mean {
        assert_eq!(ids.len(), self.n_tokens);
        self.mass(|query, key| key < query && ids[key] == ids[query])
    }

    /// The mass on the token that followed when this one came before, in a sequence that repeats after
    /// `period` tokens, all of them different.
    ///
    /// Source: Olsson et al. 2022, "In-context Learning and Induction Heads": a head that looks there can
    /// write on what came before.
    #[must_use]
    pub fn induction(&self, period: usize) -> Mean {
        self.mass(|query, key| query >= period && key + period == query + 1)
    }
}

fn entropy_bits(row: &[f32]) -> f64 {
    let term = |weight: &f32| match f64::from(*weight) {
        weight if weight > 0.0 => -weight * weight.log2(),
        _ => 0.0, // its limit
    };
    row.iter().map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(mean: Mean, expected: f64) {
        let value = mean.value().expect("an open row");
        assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
    }

    /// Every row looks at one token; `[T]`.
    fn pointing(at: &[usize]) -> Vec<f32> {
        let n = at.len();
        let row = |&to: &usize| (0..n).map(move |key| if key == to { 1.0 } else { 0.0 });
        at.iter().flat_map(row).collect()
    }

    #[test]
    fn even_rows_are_as_undecided_as_can_be() {
        let full = [0.25; 16];
        let map = Map::new(&full, 4, Sight::Full);
        close(map.entropy_bits(), 2.0);
        close(map.entropy(), 1.0);
        close(map.uniform(), 1.0);
        close(map.focused(), 0.25);
        close(map.diagonal(), 0.25);
        close(map.first_token(), 0.25);
        close(map.previous_token(), 0.25);

        #[rustfmt::skip]
        let causal = [
            1.0, 0.0, 0.0,
            0.5, 0.5, 0.0,
            0.25, 0.25, 0.5,
        ];
        let map = Map::new(&causal, 3, Sight::Causal);
        close(map.entropy_bits(), f64::midpoint(1.0, 1.5));
        close(map.entropy(), f64::midpoint(1.0, 1.5 / 3_f64.log2()));
        close(map.uniform(), f64::midpoint(1.0, 0.5 + 1.0 / 3.0));
        close(map.diagonal(), 0.5);
        close(map.previous_token(), 0.375);
        close(map.local(1), 0.75);
    }

    #[test]
    fn a_sharp_map_is_exactly_what_it_is() {
        let map = pointing(&[0, 0, 1, 2]);
        let map = Map::new(&map, 4, Sight::Causal);
        close(map.previous_token(), 1.0);
        close(map.diagonal(), 0.0);
        close(map.entropy(), 0.0);
        close(map.focused(), 1.0);
        close(map.local(1), 1.0);
        close(map.first_token(), 1.0 / 3.0);
        // Of tokens a b a b, the third looks at its neighbour and not at its twin.
        close(map.duplicate_token(&[1, 2, 1, 2]), 0.0);
        let twins = pointing(&[0, 0, 0, 1]);
        let map = Map::new(&twins, 4, Sight::Causal);
        close(map.duplicate_token(&[1, 2, 1, 2]), 1.0);
        close(map.induction(2), 0.0);
    }

    #[test]
    fn induction_is_what_followed_a_period_before() {
        // x y z x y z: the second x looks at the first y, and so on.
        let map = pointing(&[0, 0, 0, 1, 2, 3]);
        let map = Map::new(&map, 6, Sight::Causal);
        close(map.induction(3), 1.0);
        close(map.induction(2), 0.0);
    }

    #[test]
    fn rows_without_a_choice_do_not_count() {
        let map = Map::new(&[1.0], 1, Sight::Causal);
        for mean in [
            map.entropy_bits(),
            map.entropy(),
            map.uniform(),
            map.focused(),
            map.diagonal(),
            map.first_token(),
            map.previous_token(),
            map.local(4),
            map.duplicate_token(&[7]),
            map.induction(1),
        ] {
            assert_eq!(mean.value(), None);
        }
        let rows = pointing(&[0, 1, 2]);
        let map = Map::new(&rows, 3, Sight::Causal);
        assert_eq!(map.local(4).value(), None, "all is near");
        assert_eq!(map.duplicate_token(&[1, 2, 3]).value(), None);
    }

    #[test]
    fn what_a_causal_map_cannot_see_is_not_looked_at() {
        let seen = [1.0, 9.0, 0.5, 0.5];
        close(Map::new(&seen, 2, Sight::Causal).diagonal(), 0.5);
    }

    #[test]
    #[should_panic(expected = "row 1 is no distribution")]
    fn rows_that_do_not_sum_to_one_are_a_bug() {
        let _ = Map::new(&[1.0, 0.0, 0.5, 0.4], 2, Sight::Causal);
    }

    #[test]
    fn means_add_up() {
        let mut mean: Mean = [1.0, 2.0].into_iter().collect();
        mean.merge([6.0].into_iter().collect());
        assert_eq!(mean.value(), Some(3.0));
    }
}
