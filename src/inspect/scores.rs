//! The scores of a head, and what it mostly does, by thresholds.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::patterns::{Map, Mean};

/// How far away a token still counts as near, in tokens; in sequences of less than four times as many a quarter
/// of them, at least 1: a neighbourhood leaves something out.
pub const NEAR: usize = 4;

/// From which share of evenly spread attention a head is uniform. A head that was not trained has more than
/// this, unless `qk_norm` makes its queries and keys large; the document's other sample patterns have at most 0.65.
pub const UNIFORM: f64 = 0.9;

/// From which mass on one kind of place (the token before, the first one, an earlier occurrence of the same
/// token, what followed it) a head does mostly that: more than half, so that no other place can have as much.
pub const MOSTLY: f64 = 0.5;

/// From which mass on itself a head is diagonal. More than half, since a head that looks around has its maximum
/// there too: the document's local pattern has 0.6 on the diagonal, its diagonal one 0.9.
pub const DIAGONAL: f64 = 0.75;

/// From which mass on near tokens a head is local. The document's local pattern has 0.9, and its focused one,
/// which has nothing to do with nearness, 0.55: three tokens are near each other.
pub const LOCAL: f64 = 0.75;

/// From which mean largest weight a head is focused, on whatever. The document's focused pattern has 0.85.
pub const FOCUSED: f64 = 0.75;

/// What a head does, as means over rows; each is none where no row asks the question. All but the first are
/// from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scores {
    /// Entropy of a row, bits.
    pub entropy_bits: Option<f64>,
    /// Entropy as a share of `log2` of how many keys the row sees.
    pub entropy: Option<f64>,
    /// Share of attention that is spread evenly.
    pub uniform: Option<f64>,
    /// The largest weight.
    pub focused: Option<f64>,
    /// Mass on the token itself.
    pub diagonal: Option<f64>,
    /// Mass on the token before.
    pub previous_token: Option<f64>,
    /// Mass on the first token.
    pub first_token: Option<f64>,
    /// Mass on tokens at most [`NEAR`] away.
    pub local: Option<f64>,
    /// Mass on earlier occurrences of the same token.
    pub duplicate_token: Option<f64>,
    /// Mass on what followed the token's earlier occurrence, in sequences that repeat.
    pub induction: Option<f64>,
}

impl Scores {
    /// The scores of one map alone. `ids` are its tokens; without them nothing is said of duplicates. Induction
    /// needs a sequence that repeats, and is left out.
    #[must_use]
    pub fn of(map: &Map<'_>, ids: Option<&[u32]>) -> Self {
        let mut tally = Tally::default();
        tally.add(map, ids);
        tally.scores()
    }

    /// Name and value of each score, in the order of the fields.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<f64>); 10] {
        let Self {
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
        } = *self;
        [
            ("entropy_bits", entropy_bits),
            ("entropy", entropy),
            ("uniform", uniform),
            ("focused", focused),
            ("diagonal", diagonal),
            ("previous_token", previous_token),
            ("first_token", first_token),
            ("local", local),
            ("duplicate_token", duplicate_token),
            ("induction", induction),
        ]
    }

    /// What the head mostly does: the first that holds, the special before the general.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let rules = [
            (Kind::Uniform, self.uniform, UNIFORM),
            (Kind::Induction, self.induction, MOSTLY),
            (Kind::DuplicateToken, self.duplicate_token, MOSTLY),
            (Kind::PreviousToken, self.previous_token, MOSTLY),
            (Kind::FirstToken, self.first_token, MOSTLY),
            (Kind::Diagonal, self.diagonal, DIAGONAL),
            (Kind::Local, self.local, LOCAL),
            (Kind::Focused, self.focused, FOCUSED),
        ];
        let holds = |&(_, score, threshold): &(Kind, Option<f64>, f64)| {
            score.is_some_and(|score| score >= threshold)
        };
        rules.into_iter().find(holds).map_or(Kind::Mixed, |(kind, ..)| kind)
    }
}

/// What a head mostly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Looks at everything alike.
    Uniform,
    /// Looks at what followed when the same token came before.
    Induction,
    /// Looks at where the same token came before.
    DuplicateToken,
    /// Looks at the token before.
    PreviousToken,
    /// Looks at the first token: often a head with nothing to do here.
    FirstToken,
    /// Looks at the token itself.
    Diagonal,
    /// Looks at what is near.
    Local,
    /// Looks sharply, at none of the above.
    Focused,
    /// None of the above.
    Mixed,
}

impl fmt::Display for Kind {
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

/// The scores of a head in the making: means over the rows of several maps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    entropy_bits: Mean,
    entropy: Mean,
    uniform: Mean,
    focused: Mean,
    diagonal: Mean,
    previous_token: Mean,
    first_token: Mean,
    local: Mean,
    duplicate_token: Mean,
    induction: Mean,
}

impl Tally {
    /// Counts a map of a text's tokens.
    pub(super) fn add(&mut self, map: &Map<'_>, ids: Option<&[u32]>) {
        let near = NEAR.min(map.n_tokens() / 4).max(1);
        self.entropy_bits.merge(map.entropy_bits());
        self.entropy.merge(map.entropy());
        self.uniform.merge(map.uniform());
        self.focused.merge(map.focused());
        self.diagonal.merge(map.diagonal());
        self.previous_token.merge(map.previous_token());
        self.first_token.merge(map.first_token());
        self.local.merge(map.local(near));
        if let Some(ids) = ids {
            self.duplicate_token.merge(map.duplicate_token(ids));
        }
    }

    /// Counts a map of a sequence that repeats after `period` tokens.
    pub(super) fn add_repeated(&mut self, map: &Map<'_>, period: usize) {
        self.induction.merge(map.induction(period));
    }

    pub(super) fn scores(&self) -> Scores {
        Scores {
            entropy_bits: self.entropy_bits.value(),
            entropy: self.entropy.value(),
            uniform: self.uniform.value(),
            focused: self.focused.value(),
            diagonal: self.diagonal.value(),
            previous_token: self.previous_token.value(),
            first_token: self.first_token.value(),
            local: self.local.value(),
            duplicate_token: self.duplicate_token.value(),
            induction: self.induction.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::patterns::Sight;

    fn scores(rows: &[&[f32]]) -> Scores {
        let n = rows.len();
        Scores::of(&Map::new(&rows.concat(), n, Sight::Full), None)
    }

    // The sample patterns of "Self-Attention Mechanism" (AITutorials.site, Transformers Architecture, tutorial 3),
    // section "What Do Different Attention Patterns Mean?".

    #[test]
    fn the_documents_patterns_are_what_it_calls_them() {
        let diagonal = scores(&[&[0.9, 0.05, 0.05], &[0.05, 0.9, 0.05], &[0.05, 0.05, 0.9]]);
        let uniform = scores(&[&[0.33; 3], &[0.33; 3], &[0.33; 3]]);
        let focused = scores(&[&[0.05, 0.90, 0.05], &[0.10, 0.10, 0.80], &[0.85, 0.10, 0.05]]);
        let local = scores(&[
            &[0.7, 0.2, 0.1, 0.0],
            &[0.2, 0.5, 0.2, 0.1],
            &[0.1, 0.2, 0.5, 0.2],
            &[0.0, 0.1, 0.2, 0.7],
        ]);
        assert_eq!(diagonal.kind(), Kind::Diagonal);
        assert_eq!(uniform.kind(), Kind::Uniform);
        assert_eq!(focused.kind(), Kind::Focused);
        assert_eq!(local.kind(), Kind::Local);

        let close = |score: Option<f64>, expected: f64| {
            let score = score.expect("open rows");
            assert!((score - expected).abs() < 1e-4, "{score} is not {expected}");
        };
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
            Scores::of(&Map::new(&weights, n, Sight::Causal), None).kind()
        };
        let is = |condition: bool| if condition { 1.0 } else { 0.0 };
        assert_eq!(kind_of(&|query, _| 1.0 / (query + 1) as f32), Kind::Uniform);
        assert_eq!(kind_of(&|query, key| is(key == query.saturating_sub(1))), Kind::PreviousToken);
        assert_eq!(kind_of(&|_, key| is(key == 0)), Kind::FirstToken);
        assert_eq!(kind_of(&|query, key| is(key == query)), Kind::Diagonal);
        assert_eq!(kind_of(&|query, key| is(key == query.saturating_sub(3))), Kind::Local);
        assert_eq!(kind_of(&|query, key| is(key == query / 2)), Kind::Focused);
        let mixed = |query: usize, key: usize| {
            (is(key == 0) + is(key == query) + is(key == query / 2)) / 3.0
        };
        assert_eq!(kind_of(&mixed), Kind::Mixed);
    }

    #[test]
    fn the_special_comes_before_the_general() {
        let of = |induction, previous_token| Scores {
            induction: Some(induction),
            previous_token: Some(previous_token),
            local: Some(0.95),
            focused: Some(0.95),
            ..Scores::default()
        };
        assert_eq!(of(0.5, 0.9).kind(), Kind::Induction);
        assert_eq!(of(0.4999, 0.9).kind(), Kind::PreviousToken);
        assert_eq!(of(0.0, 0.0).kind(), Kind::Local);
        assert_eq!(Scores::default().kind(), Kind::Mixed);
    }
}
