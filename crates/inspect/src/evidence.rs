//! Evidence for what a head does in a text: the tokens that get more of its attention than from an even head, and its
//! largest weights with the text around them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::InspectError;
use super::capture::each_map;
use tinderbox_model::Gpt;
use tinderbox_model::tokenizer::Tokenizer;

/// The maximum number of tokens and of snippets per head.
const N_SHOWN: usize = 3;
/// The number of tokens shown before and after a snippet's two.
const AROUND: usize = 3;
/// Longer gaps between the two are elided.
const BETWEEN: usize = 10;
/// A token is named if it gets this many times the share that an even head gives it, and at least this share.
const MORE_THAN_EVEN: f64 = 2.0;
const LEAST_SHARE: f64 = 0.01;

/// The tokens and pairs of tokens to which one head gives most of its attention.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeadEvidence {
    /// The tokens with the largest share of its attention beyond that of an even head, largest first.
    #[serde(rename = "looks_at")]
    pub tokens: Vec<SeenToken>,
    /// Its strongest spans, strongest first: one per pair of tokens, at most one per window.
    pub snippets: Vec<Snippet>,
}

/// A token to which a head attends, at any earlier position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeenToken {
    /// The token, as [`Tokenizer::piece`] gives it.
    pub token: String,
    /// Its mean share of a token's attention, 0 to 1.
    pub share: f64,
    /// Its share from a head with uniform attention.
    pub even: f64,
}

/// A query token and its key token, with the text around them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snippet {
    /// The weight.
    pub weight: f64,
    /// The number of tokens from the key to the query.
    pub distance: usize,
    /// The text before both.
    pub before: String,
    /// The key token.
    pub key: String,
    /// The text between them; `…` replaces a long middle.
    pub between: String,
    /// The query token.
    pub query: String,
    /// The text after both.
    pub after: String,
}

/// The weight from a query to an earlier key of a window.
#[derive(Clone, Copy, Debug)]
struct AttentionSpan {
    weight: f32,
    window: usize,
    query: usize,
    key: usize,
}

impl AttentionSpan {
    /// The squared weight, scaled up with the distance: finding a token far away says more about a head than finding
    /// its neighbour.
    fn strength(&self) -> f64 {
        f64::from(self.weight).powi(2) * (1.0 + ((self.query - self.key) as f64).ln())
    }
}

impl HeadEvidence {
    /// Measures the evidence of every head, `[L][H]`, on `windows` of a text, none longer than the context.
    ///
    /// Weights on the query token itself are ignored. Snippets exclude the first token of a window, special tokens and
    /// blanks: a head attends to these when it has nothing to do.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], if `goes_on`, which is asked before each window, says no.
    pub fn measure(
        model: &Gpt,
        tokenizer: &Tokenizer,
        windows: &[Vec<u32>],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<Self>>, InspectError> {
        let config = model.config();
        let distinct: BTreeSet<u32> = windows.iter().flatten().copied().collect();
        let places: BTreeMap<u32, usize> = distinct.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let added: BTreeSet<u32> = tokenizer.added_tokens().into_iter().map(|(id, _)| id).collect();
        let is_sink = |id: u32| added.contains(&id) || tokenizer.piece(id).trim().is_empty();
        let sinks: BTreeSet<u32> = distinct.iter().copied().filter(|id| is_sink(*id)).collect();
        let mut even = vec![0.0; distinct.len()];
        // For each head, the attention to each distinct token, and the strongest span of each window.
        let counted = (vec![0.0; distinct.len()], Vec::<AttentionSpan>::new());
        let mut heads = vec![vec![counted; config.n_heads]; config.n_layers];
        let mut n_rows = 0_usize;
        for (window, ids) in windows.iter().enumerate() {
            if !goes_on() {
                return Err(InspectError::Stopped);
            }
            let t = ids.len();
            for query in 1..t {
                ids[..query].iter().for_each(|id| even[places[id]] += 1.0 / (query + 1) as f64);
            }
            n_rows += t.saturating_sub(1);
            each_map(model, ids, |layer, head, weights| {
                let (shares, spans) = &mut heads[layer][head];
                let mut strongest: Option<AttentionSpan> = None;
                for query in 1..t {
                    let row = &weights[query * t..query * t + query];
                    for (key, weight) in row.iter().enumerate() {
                        shares[places[&ids[key]]] += f64::from(*weight);
                        let is_shown = key > 0 && !sinks.contains(&ids[key]) && !sinks.contains(&ids[query]);
                        let span = AttentionSpan { weight: *weight, window, query, key };
                        if is_shown && strongest.is_none_or(|other| span.strength() > other.strength()) {
                            strongest = Some(span);
                        }
                    }
                }
                spans.extend(strongest);
            })?;
        }
        let of_n = |sum: f64| if n_rows == 0 { 0.0 } else { sum / n_rows as f64 };
        let evidence = |(shares, mut spans): (Vec<f64>, Vec<AttentionSpan>)| {
            let seen = distinct.iter().zip(shares.iter().zip(&even));
            let mut tokens: Vec<SeenToken> = seen
                .map(|(&id, (share, even))| (id, of_n(*share), of_n(*even)))
                .filter(|(_, share, even)| *share > MORE_THAN_EVEN * even && *share >= LEAST_SHARE)
                .map(|(id, share, even)| SeenToken { token: tokenizer.piece(id), share, even })
                .collect();
            tokens.sort_by(|a, b| (b.share - b.even).total_cmp(&(a.share - a.even)));
            tokens.truncate(N_SHOWN);
            spans.sort_by(|a, b| b.strength().total_cmp(&a.strength()));
            let mut pairs = BTreeSet::new();
            spans.retain(|span| pairs.insert([span.query, span.key].map(|at| windows[span.window][at])));
            let shown = spans.iter().take(N_SHOWN);
            let snippets = shown.map(|span| Snippet::new(span, &windows[span.window], tokenizer)).collect();
            Self { tokens, snippets }
        };
        Ok(heads.into_iter().map(|heads| heads.into_iter().map(&evidence).collect()).collect())
    }
}

impl Snippet {
    fn new(span: &AttentionSpan, ids: &[u32], tokenizer: &Tokenizer) -> Self {
        let AttentionSpan { weight, query, key, .. } = *span;
        let text = |from: usize, to: usize| tokenizer.decode(&ids[from..to.max(from)]);
        let between = match query - key - 1 {
            n if n <= BETWEEN => text(key + 1, query),
            _ => {
                format!("{} … {}", text(key + 1, key + 1 + AROUND).trim_end(), text(query - AROUND, query).trim_start())
            }
        };
        Self {
            weight: f64::from(weight),
            distance: query - key,
            before: text(key.saturating_sub(AROUND), key),
            key: tokenizer.piece(ids[key]),
            between,
            query: tokenizer.piece(ids[query]),
            after: text(query + 1, (query + 1 + AROUND).min(ids.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{louder, small_config};
    use tinderbox_model::config::ModelConfig;

    /// Against the maps of one window, added up by hand.
    #[test]
    fn evidence_matches_maps_summed_by_hand() {
        let (config, tokenizer) = (ModelConfig { context_length: 32, ..small_config() }, Tokenizer::byte());
        let model = louder(&config, 256);
        let ids: Vec<u32> = "a b. a c. b a.".bytes().map(u32::from).collect();
        let evidence =
            HeadEvidence::measure(&model, &tokenizer, std::slice::from_ref(&ids), &|| true).expect("finite values");
        let t = ids.len();
        each_map(&model, &ids, |layer, head, weights| {
            let it = &evidence[layer][head];
            let earlier = || (1..t).flat_map(|query| (0..query).map(move |key| (query, key)));
            for SeenToken { token, share, even } in &it.tokens {
                let is_it = |key: usize| tokenizer.piece(ids[key]) == *token;
                let sum = |of: &dyn Fn(usize, usize) -> f64| -> f64 {
                    let seen = earlier().filter(|(_, key)| is_it(*key));
                    seen.map(|(query, key)| of(query, key)).sum::<f64>() / (t - 1) as f64
                };
                assert!((sum(&|query, key| f64::from(weights[query * t + key])) - share).abs() < 1e-6);
                assert!((sum(&|query, _| 1.0 / (query + 1) as f64) - even).abs() < 1e-12);
                assert!(*share > MORE_THAN_EVEN * even && *share >= LEAST_SHARE);
            }
            let is_blank = |at: usize| ids[at] == u32::from(b' ');
            let shown = earlier().filter(|&(query, key)| key > 0 && !is_blank(key) && !is_blank(query));
            let strength = |weight: f64, distance: usize| weight * weight * (1.0 + (distance as f64).ln());
            let largest = shown
                .map(|(query, key)| strength(f64::from(weights[query * t + key]), query - key))
                .fold(0.0, f64::max);
            let [snippet] = &it.snippets[..] else { panic!("one of each window") };
            assert!((strength(snippet.weight, snippet.distance) - largest).abs() < 1e-12);
            let Snippet { key, between, query, .. } = snippet;
            assert!(String::from_utf8_lossy(b"a b. a c. b a.").contains(&format!("{key}{between}{query}")));
        })
        .expect("finite values");
        assert!(evidence.iter().flatten().any(|it| !it.tokens.is_empty()), "a louder model is not even");
    }

    #[test]
    fn snippet_elides_long_middle() {
        let ids: Vec<u32> = (u32::from(b'a')..=u32::from(b'z')).collect();
        let span = |query, key| AttentionSpan { weight: 0.5, window: 0, query, key };
        let near = Snippet::new(&span(5, 3), &ids, &Tokenizer::byte());
        assert_eq!([near.before, near.key, near.between, near.query, near.after], ["abc", "d", "e", "f", "ghi"]);
        let far = Snippet::new(&span(25, 0), &ids, &Tokenizer::byte());
        assert_eq!([far.before, far.key, far.between, far.query, far.after], ["", "a", "bcd … wxy", "z", ""]);
        assert_eq!(far.distance, 25);
    }
}
