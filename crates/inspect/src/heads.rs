//! Scores all heads of a model on a text.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize, Serializer};

use super::capture::each_map;
use super::patterns::{HeadKind, HeadMap, HeadScores, Tally};
use super::{InspectError, PromptAttention};
use tinderbox_model::Gpt;

/// The default number of windows of the text.
pub const N_WINDOWS: usize = 32;

/// The number of repeated sequences of random tokens.
pub const N_REPEATED: usize = 16;

/// The scores of all heads of a model, and the text that they were measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoredHeads {
    /// The number of windows of the text that were read.
    #[serde(rename = "windows")]
    pub n_windows: usize,
    /// The length of the longest window, in tokens.
    pub window_tokens: usize,
    /// The number of sequences of random tokens that were read.
    #[serde(rename = "repeated")]
    pub n_repeated: usize,
    /// The number of tokens, all distinct, after which each of these repeats.
    pub period: usize,
    /// The scores of a head with uniform attention: the chance level of each mass.
    pub even: HeadScores,
    /// The scores of each head, `[L][H]`.
    #[serde(rename = "heads", serialize_with = "with_kinds")]
    pub scores: Vec<Vec<HeadScores>>,
}

impl ScoredHeads {
    /// Measures on `windows` of a text, none longer than the context, and on [`N_REPEATED`] random sequences of their
    /// tokens, each repeated once.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], if `goes_on`, which is asked before each of them, says no.
    ///
    /// # Panics
    /// If there are no windows.
    pub fn measure(model: &Gpt, windows: &[Vec<u32>], goes_on: &dyn Fn() -> bool) -> Result<Self, InspectError> {
        assert!(!windows.is_empty(), "no windows to read");
        let config = model.config();
        let (n_layers, n_heads, context_length) = (config.n_layers, config.n_heads, config.context_length);
        let repeated = repeated(windows, context_length);
        let period = repeated.first().map_or(0, |ids| ids.len() / 2);
        let mut even = Tally::default();
        let mut tallies = vec![vec![Tally::default(); n_heads]; n_layers];
        let mut read = |ids: &[u32], add: &dyn Fn(&mut Tally, HeadMap<'_>)| {
            if !goes_on() {
                return Err(InspectError::Stopped);
            }
            add(&mut even, HeadMap::causal(&even_map(ids.len()), ids.len()));
            each_map(model, ids, |layer, head, weights| {
                add(&mut tallies[layer][head], HeadMap::causal(weights, ids.len()));
            })
        };
        for ids in windows {
            read(ids, &|tally, map| tally.add(&map, ids))?;
        }
        for ids in &repeated {
            read(ids, &|tally, map| tally.add_repeated(&map, period))?;
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
}

/// A head's scores, and the name of its main behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NamedScores {
    /// The name.
    pub kind: HeadKind,
    /// The scores.
    #[serde(flatten)]
    pub scores: HeadScores,
}

impl From<HeadScores> for NamedScores {
    fn from(scores: HeadScores) -> Self {
        Self { kind: scores.kind(), scores }
    }
}

/// The scores of the selected heads on one text, `[L][H]`, without induction, which is measured on repeated sequences.
pub fn scores_on(attention: &PromptAttention) -> Vec<Vec<NamedScores>> {
    let PromptAttention { prompt, selection, recording, .. } = attention;
    selection.map(|layer, head| {
        let mut tally = Tally::default();
        tally.add(&HeadMap::causal(recording.map(layer, head), prompt.len()), &prompt.ids);
        tally.scores().into()
    })
}

/// Writes each head's kind along with its scores.
fn with_kinds<S: Serializer>(layers: &[Vec<HeadScores>], serializer: S) -> Result<S::Ok, S::Error> {
    let named = |scores: &HeadScores| NamedScores::from(*scores);
    serializer.collect_seq(layers.iter().map(|layer| layer.iter().map(named).collect::<Vec<_>>()))
}

/// The causal map of a head with uniform attention.
fn even_map(n: usize) -> Vec<f32> {
    let weight = |query: usize, key: usize| if key <= query { 1.0 / (query + 1) as f32 } else { 0.0 };
    let row = |query| (0..n).map(move |key| weight(query, key));
    (0..n).flat_map(row).collect()
}

/// Random sequences of distinct tokens of `windows`, each twice, that fit the context; none for a single token.
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

/// Fisher-Yates shuffle: every order is equally likely.
fn shuffle(ids: &mut [u32], rng: &mut impl Rng) {
    for last in (1..ids.len()).rev() {
        let drawn = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        ids.swap(last, usize::try_from(drawn).expect("the drawn index is below the length"));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use burn::tensor::Device;
    use serde_json::Value;

    use super::*;
    use crate::HeadEvidence;
    use crate::handmade::by_hand;
    use crate::testing::{attention, small_config};
    use tinderbox_model::config::{ModelConfig, PositionKind};
    use tinderbox_model::tokenizer::Tokenizer;

    /// The first windows of a text, without its last token; all of a short text is one.
    fn windows(ids: &[u32], context_length: usize, n: usize) -> Vec<Vec<u32>> {
        ids[..ids.len() - 1].chunks(context_length).take(n).map(<[u32]>::to_vec).collect()
    }

    /// The scores of a new model with 11 tokens, on a text of `n_tokens`.
    fn measured(context_length: usize, n_tokens: u32, n_windows: usize) -> ScoredHeads {
        let model = Gpt::new(&ModelConfig { context_length, ..small_config() }, 11, 1, &Device::flex());
        let ids: Vec<u32> = (0..n_tokens).map(|i| (i * i + i / 3) % 11).collect();
        ScoredHeads::measure(&model, &windows(&ids, context_length, n_windows), &|| true)
            .expect("the windows fit the context")
    }

    #[test]
    fn measurements_stop_between_windows() {
        let model = Gpt::new(&ModelConfig { context_length: 4, ..small_config() }, 11, 1, &Device::flex());
        let windows = [vec![1, 2, 3], vec![4, 5, 6]];
        let tokenizer = Tokenizer::char_from_alphabet("abcdefghijk".chars()).expect("an alphabet");
        let stopped_after = |n: usize| {
            let asked = Cell::new(0);
            let goes_on = || asked.replace(asked.get() + 1) < n;
            let scored = ScoredHeads::measure(&model, &windows, &goes_on);
            assert!(matches!(scored, Err(InspectError::Stopped)), "{scored:?}");
            let seen = HeadEvidence::measure(&model, &tokenizer, &windows, &goes_on);
            assert!(matches!(seen, Err(InspectError::Stopped)), "{seen:?}");
            asked.get()
        };
        assert_eq!([0, 1, 2 + N_REPEATED - 1].map(stopped_after), [2, 3, 2 + N_REPEATED + 1]);
    }

    #[test]
    fn scores_on_one_text_exclude_induction() {
        let weight = |head: usize, query: usize, key: usize| match head {
            0 => f32::from(u8::from(key == query.saturating_sub(1))),
            _ if key <= query => 1.0 / (query + 1) as f32,
            _ => 0.0,
        };
        let scores = scores_on(&attention("abcdefgh", [1, 2], [None, None], weight));
        assert_eq!([0, 1].map(|head| scores[0][head].kind), [HeadKind::PreviousToken, HeadKind::Uniform]);
        assert_eq!(scores[0][0].scores.previous_token, Some(1.0));
        assert_eq!(scores[0][0].scores.induction, None);
    }

    #[test]
    fn untrained_heads_score_uniform() {
        let heads = measured(12, 100, 4);
        assert_eq!((heads.n_windows, heads.window_tokens), (4, 12));
        assert_eq!((heads.n_repeated, heads.period), (N_REPEATED, 6));
        for scores in heads.scores.iter().flatten() {
            assert_eq!(scores.kind(), HeadKind::Uniform);
            for ((name, score), (_, even)) in scores.named().into_iter().zip(heads.even.named()) {
                let (score, even) = (score.expect(name), even.expect(name));
                assert!((score - even).abs() < 0.02, "{name}: {score} and {even}");
            }
        }
        // The chance level can be computed.
        let mean_inverse = |rows: std::ops::RangeInclusive<u32>| {
            let n = rows.clone().count();
            rows.map(|n| 1.0 / f64::from(n)).sum::<f64>() / n as f64
        };
        let HeadScores { diagonal, first_token, induction, uniform, entropy, .. } = heads.even;
        for (score, expected) in [
            (diagonal, mean_inverse(2..=12)),
            (first_token, mean_inverse(2..=12)),
            (induction, mean_inverse(7..=12)),
            (uniform, 1.0),
            (entropy, 1.0),
        ] {
            assert!((score.expect("the score was measured") - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn scored_heads_survive_json_round_trip() {
        let heads = measured(12, 100, 2);
        let mut json = serde_json::to_value(&heads).expect("scores are plain data");
        json["step"] = 7.into();
        assert_eq!(ScoredHeads::deserialize(&json).ok(), Some(heads));
        json["heads"][1] = "none".into();
        ScoredHeads::deserialize(&json).expect_err("a layer is missing");
    }

    #[test]
    fn measure_accepts_short_texts_and_contexts() {
        let short = measured(12, 6, 3);
        assert_eq!((short.n_windows, short.window_tokens), (1, 5));
        let heads = measured(1, 50, 3);
        assert_eq!((heads.n_repeated, heads.period), (0, 0));
        assert_eq!(heads.scores[0][0], HeadScores::default());
        let json = serde_json::to_value(&heads).expect("scores are plain data");
        assert_eq!((&json["heads"][1][1]["kind"], &json["even"]["induction"]), (&"mixed".into(), &Value::Null));
    }

    /// Two layers by hand. The residual stream has room for the current token, the previous one, and the position.
    /// Layer 0 attends to the previous position and copies its token; layer 1 attends to the position whose previous
    /// token is the current one: an induction head, as Olsson et al. describe it.
    #[test]
    fn handmade_induction_head_is_recognized() {
        const N: usize = 8; // tokens
        const T: usize = 16; // positions
        const C: usize = 2 * N + T;
        let (here, before, position) = (0, N, 2 * N);
        let position_kind = PositionKind::Learned;
        let config = ModelConfig {
            context_length: T,
            d_model: C,
            n_layers: 2,
            position: position_kind,
            ..ModelConfig::default()
        };
        let model = by_hand(config, N, |path, values| {
            // Weights are [in, out]; the projection holds queries, then keys, then values.
            let mut set = |n_out: usize, n: usize, from: usize, to: usize, weight: f32| {
                (0..n).for_each(|i| values[(from + i) * n_out + to + i] = weight);
            };
            match path {
                "token_embedding.weight" => set(C, N, 0, here, 1.0),
                "position_embedding.weight" => set(C, T, 0, position, 1.0),
                "blocks.0.attention.qkv.weight" => {
                    // The query at i is position i, the key at j is position j + 1.
                    set(3 * C, T, position, 0, 40.0);
                    set(3 * C, T - 1, position, C + 1, 40.0);
                    set(3 * C, N, here, 2 * C, 1.0);
                }
                "blocks.0.attention.output.weight" => set(C, N, 0, before, 1.0),
                "blocks.1.attention.qkv.weight" => {
                    set(3 * C, N, here, 0, 40.0);
                    set(3 * C, N, before, C, 40.0);
                }
                _ => {}
            }
        });
        let ids: Vec<u32> = (0..200).map(|i| (i * 5 + i / 7) % N as u32).collect();
        let heads = ScoredHeads::measure(&model, &windows(&ids, T, 4), &|| true).expect("the windows fit the context");
        assert_eq!(heads.period, N);
        let [first, second] = [heads.scores[0][0], heads.scores[1][0]];
        assert_eq!(first.kind(), HeadKind::PreviousToken, "{first:?}");
        assert_eq!(second.kind(), HeadKind::Induction, "{second:?}");
        assert!(first.previous_token > Some(0.99), "{first:?}");
        // The first token has no predecessor and attends to itself instead: half of one row in eight goes there.
        let induction = second.induction.expect("the score was measured");
        assert!((induction - (1.0 - 0.5 / 8.0)).abs() < 0.01, "{second:?}");
        assert!(heads.even.induction < Some(0.1) && first.induction < Some(0.01));
    }
}
