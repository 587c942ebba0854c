//! The scores of all heads of a model, measured on a text.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::InspectError;
use super::capture::each_map;
use super::patterns::{HeadKind, HeadMap, HeadScores, Tally};
use crate::data::{Split, batch};
use crate::model::Gpt;

/// The default number of windows of a text.
pub const N_WINDOWS: usize = 32;

/// The number of repeated sequences of random tokens.
pub const N_REPEATED: usize = 16;

/// The scores of all heads of a model, and the text that they were measured on.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredHeads {
    /// How many windows of the text were read.
    pub n_windows: usize,
    /// The length of the longest, in tokens.
    pub window_tokens: usize,
    /// How many sequences of random tokens were read.
    pub n_repeated: usize,
    /// The number of tokens, all different, after which each of these repeats.
    pub period: usize,
    /// The scores of a head that attends to everything alike: the chance level of each mass.
    pub even: HeadScores,
    /// The scores of each head, `[L][H]`.
    pub scores: Vec<Vec<HeadScores>>,
}

impl ScoredHeads {
    /// Reads `n_windows` windows that are spread evenly over `text`, always the same ones, and
    /// [`N_REPEATED`] sequences of random tokens of theirs, each followed by itself.
    ///
    /// # Errors
    /// If the device fails, or the model's numbers are not finite.
    ///
    /// # Panics
    /// If `n_windows` is 0, or the text has fewer than two tokens.
    pub fn measure(model: &Gpt, text: &Split, n_windows: usize) -> Result<Self, InspectError> {
        assert!(n_windows > 0, "no windows to read");
        let config = model.config();
        let (n_layers, n_heads, context_length) = (config.n_layers, config.n_heads, config.context_length);
        let windows: Vec<Vec<u32>> = batch::spread(text, context_length, 1, n_windows)
            .map(|batch| batch.inputs.iter().map(|id| id.cast_unsigned()).collect())
            .collect();
        let mut even = Tally::default();
        let mut tallies = vec![vec![Tally::default(); n_heads]; n_layers];
        for ids in &windows {
            let n = ids.len();
            even.add(HeadMap::new(&even_map(n), n, true), Some(ids));
            each_map(model, ids, |layer, head, weights| {
                tallies[layer][head].add(HeadMap::new(weights, n, true), Some(ids));
            })?;
        }
        let repeated = repeated(&windows, context_length);
        let period = repeated.first().map_or(0, |ids| ids.len() / 2);
        for ids in &repeated {
            let n = ids.len();
            even.add_repeated(HeadMap::new(&even_map(n), n, true), period);
            each_map(model, ids, |layer, head, weights| {
                tallies[layer][head].add_repeated(HeadMap::new(weights, n, true), period);
            })?;
        }
        let scores = tallies.iter().map(|layer| layer.iter().map(Tally::scores));
        Ok(Self {
            n_windows: windows.len(),
            window_tokens: windows.iter().map(Vec::len).max().unwrap_or(0),
            n_repeated: repeated.len(),
            period,
            even: even.scores(),
            scores: scores.map(Iterator::collect).collect(),
        })
    }

    /// The whole as one object of JSON: `{"windows", "window_tokens", "repeated", "period", "even": {..},
    /// "heads": [L][H]}`, each head with its `kind` and its scores, `null` where there is none.
    ///
    /// # Panics
    /// Never: all of it is plain data.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let head = |scores: &HeadScores| Named { kind: scores.kind(), scores: *scores };
        let layer = |scores: &Vec<HeadScores>| scores.iter().map(head).collect();
        let document = Document {
            windows: self.n_windows,
            window_tokens: self.window_tokens,
            repeated: self.n_repeated,
            period: self.period,
            even: self.even,
            heads: self.scores.iter().map(layer).collect(),
        };
        serde_json::to_value(document).expect("plain data")
    }

    /// Reads the fields that [`ScoredHeads::to_json`] writes, among others; `None` if one is missing.
    #[must_use]
    pub fn from_json(value: &serde_json::Value) -> Option<Self> {
        let count = |key: &str| usize::try_from(value.get(key)?.as_u64()?).ok();
        let of_head = |head: &serde_json::Value| HeadScores::deserialize(head).ok();
        let of_layer = |layer: &serde_json::Value| layer.as_array()?.iter().map(of_head).collect();
        Some(Self {
            n_windows: count("windows")?,
            window_tokens: count("window_tokens")?,
            n_repeated: count("repeated")?,
            period: count("period")?,
            even: of_head(value.get("even")?)?,
            scores: value.get("heads")?.as_array()?.iter().map(of_layer).collect::<Option<_>>()?,
        })
    }
}

#[derive(Serialize)]
struct Document {
    windows: usize,
    window_tokens: usize,
    repeated: usize,
    period: usize,
    even: HeadScores,
    heads: Vec<Vec<Named>>,
}

#[derive(Serialize)]
struct Named {
    kind: HeadKind,
    #[serde(flatten)]
    scores: HeadScores,
}

/// A causal map of a head that attends to everything alike.
fn even_map(n: usize) -> Vec<f32> {
    let weight = |query: usize, key: usize| match key <= query {
        true => 1.0 / (query + 1) as f32,
        false => 0.0,
    };
    let row = |query| (0..n).map(move |key| weight(query, key));
    (0..n).flat_map(row).collect()
}

/// Sequences of different tokens of `windows`, in random order, and the same again: as many tokens as fit the context.
/// Empty if there are not two.
fn repeated(windows: &[Vec<u32>], context_length: usize) -> Vec<Vec<u32>> {
    let mut alphabet: Vec<u32> = windows.iter().flatten().copied().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    let period = alphabet.len().min(context_length / 2);
    if period < 2 {
        return Vec::new();
    }
    let mut rng = ChaCha8Rng::from_seed(*b"tinderbox: repeated random words");
    let sequence = |_| {
        shuffle(&mut alphabet, &mut rng);
        alphabet[..period].repeat(2)
    };
    (0..N_REPEATED).map(sequence).collect()
}

/// Fisher and Yates: every order is equally likely.
fn shuffle(ids: &mut [u32], rng: &mut impl Rng) {
    for last in (1..ids.len()).rev() {
        let drawn = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        ids.swap(last, usize::try_from(drawn).expect("at most the last"));
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::{ModelConfig, NormKind, PositionKind};
    use crate::data::Tokens;
    use crate::inspect::tests::small_config;
    use crate::model::parameters::{self, HostTensor};

    fn text(n: u32) -> Split {
        let ids: Vec<u32> = (0..n).map(|i| (i * i + i / 3) % 11).collect();
        Tokens::from_ids(&ids, u64::from(n)).into()
    }

    fn config() -> ModelConfig {
        ModelConfig { context_length: 12, ..small_config() }
    }

    fn new_model(config: &ModelConfig) -> Gpt {
        Gpt::new(config, 11, 1, &Device::flex())
    }

    #[test]
    fn a_model_that_was_not_trained_is_uniform() {
        let heads = ScoredHeads::measure(&new_model(&config()), &text(100), 4).expect("measured");
        assert_eq!((heads.n_windows, heads.window_tokens), (4, 12));
        assert_eq!((heads.n_repeated, heads.period), (N_REPEATED, 6));
        for scores in heads.scores.iter().flatten() {
            assert_eq!(scores.kind(), HeadKind::Uniform);
            for ((name, score), (_, even)) in scores.named().into_iter().zip(heads.even.named()) {
                let (score, even) = (score.expect(name), even.expect(name));
                assert!((score - even).abs() < 0.02, "{name}: {score} and {even}");
            }
        }
    }

    #[test]
    fn chance_is_what_can_be_counted() {
        let heads = ScoredHeads::measure(&new_model(&config()), &text(100), 4).expect("measured");
        let mean = |terms: &[f64]| terms.iter().sum::<f64>() / terms.len() as f64;
        let inverses = |rows: std::ops::RangeInclusive<u32>| -> Vec<f64> { rows.map(|n| 1.0 / f64::from(n)).collect() };
        let close = |score: Option<f64>, expected: f64| {
            assert!((score.expect("a score") - expected).abs() < 1e-6);
        };
        close(heads.even.diagonal, mean(&inverses(2..=12)));
        close(heads.even.first_token, mean(&inverses(2..=12)));
        close(heads.even.induction, mean(&inverses(7..=12)));
        close(heads.even.uniform, 1.0);
        close(heads.even.entropy, 1.0);
    }

    #[test]
    fn what_was_written_down_is_read_back() {
        let heads = ScoredHeads::measure(&new_model(&config()), &text(100), 2).expect("measured");
        let mut json = heads.to_json();
        json["step"] = 7.into();
        assert_eq!(ScoredHeads::from_json(&json), Some(heads));
        json["heads"][1] = "none".into();
        assert_eq!(ScoredHeads::from_json(&json), None);
    }

    #[test]
    fn texts_and_contexts_can_be_short() {
        let short = ScoredHeads::measure(&new_model(&config()), &text(6), 3).expect("measured");
        assert_eq!((short.n_windows, short.window_tokens), (1, 5));
        let one = ModelConfig { context_length: 1, ..config() };
        let heads = ScoredHeads::measure(&new_model(&one), &text(50), 3).expect("measured");
        assert_eq!((heads.n_repeated, heads.period), (0, 0));
        assert_eq!(heads.scores[0][0], HeadScores::default());
        assert_eq!(heads.to_json()["heads"][1][1]["kind"], "mixed");
        assert!(heads.to_json()["even"]["induction"].is_null());
    }

    /// Two layers by hand. The residual stream has room for the token here, the token before, and the position.
    /// Layer 0 looks one position back and copies the token there; layer 1 looks for the place whose token
    /// before is the one here: an induction head, as Olsson et al. describe it.
    #[test]
    fn an_induction_head_made_by_hand_is_found() {
        const N: usize = 8; // tokens
        const T: usize = 16; // positions, two half circles each in steps of one
        let config = ModelConfig {
            context_length: T,
            d_model: 2 * N + T,
            n_layers: 2,
            n_heads: 1,
            n_kv_heads: 1,
            d_ff: 1,
            position: PositionKind::Learned,
            norm: NormKind::RmsNorm,
            ..ModelConfig::default()
        };
        let c = config.d_model;
        let (here, before, position) = (0, N, 2 * N);
        // Weights are [in, out]; the projection holds queries, then keys, then values.
        let projection = |entries: &[(usize, usize, f32)]| {
            let mut values = vec![0.0; c * 3 * c];
            for &(from, to, weight) in entries {
                values[from * 3 * c + to] = weight;
            }
            values
        };
        let model = Gpt::zeros(&config, N, &Device::flex());
        let model = parameters::assign(model, |path, shape| {
            let mut values = vec![0.0; shape.iter().product()];
            match path {
                "token_embedding.weight" => {
                    (0..N).for_each(|i| values[i * c + here + i] = 1.0);
                }
                "position_embedding.weight" => {
                    (0..T).for_each(|i| values[i * c + position + i] = 1.0);
                }
                "blocks.0.attention.qkv.weight" => {
                    // The query at i is position i, the key at j is position j + 1.
                    let queries = (0..T).map(|i| (position + i, i, 40.0));
                    let keys = (1..T).map(|i| (position + i - 1, c + i, 40.0));
                    let values_of = (0..N).map(|i| (here + i, 2 * c + i, 1.0));
                    values = projection(&queries.chain(keys).chain(values_of).collect::<Vec<_>>());
                }
                "blocks.0.attention.output.weight" => {
                    (0..N).for_each(|i| values[i * c + before + i] = 1.0);
                }
                "blocks.1.attention.qkv.weight" => {
                    let queries = (0..N).map(|i| (here + i, i, 40.0));
                    let keys = (0..N).map(|i| (before + i, c + i, 40.0));
                    values = projection(&queries.chain(keys).collect::<Vec<_>>());
                }
                path if path.ends_with("norm.weight") => values.fill(1.0),
                _ => {}
            }
            Some(HostTensor { shape: shape.to_vec(), values })
        })
        .expect("fits");
        let ids: Vec<u32> = (0..200).map(|i| (i * 5 + i / 7) % N as u32).collect();
        let text: Split = Tokens::from_ids(&ids, 200).into();
        let heads = ScoredHeads::measure(&model, &text, 4).expect("measured");
        assert_eq!(heads.period, N);
        let [first, second] = [heads.scores[0][0], heads.scores[1][0]];
        assert_eq!(first.kind(), HeadKind::PreviousToken, "{first:?}");
        assert_eq!(second.kind(), HeadKind::Induction, "{second:?}");
        assert!(first.previous_token > Some(0.99), "{first:?}");
        // The first token has none before it and takes itself for that: half of one row in eight goes there.
        let induction = second.induction.expect("a score");
        assert!((induction - (1.0 - 0.5 / 8.0)).abs() < 0.01, "{second:?}");
        assert!(heads.even.induction < Some(0.1) && first.induction < Some(0.01));
    }
}
