//! Reads a text, and continues it, with some parts of the model removed.

use super::capture::{LOGITS, finite};
use super::part::{ModelPart, Replace};
use super::prompt::to_tensor;
use super::{InspectError, LayerPrediction, Prompt, TokenProbability};
use tinderbox_model::Gpt;
use tinderbox_model::config::GenerateConfig;
use tinderbox_model::generate::{ChooseToken, Sampler};
use tinderbox_model::tokenizer::Tokenizer;

/// The losses of a text, and the prediction after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The loss of each token except the first, in nats: `[T - 1]`.
    pub losses: Vec<f64>,
    /// The most probable next tokens, in descending order.
    pub next: Vec<TokenProbability>,
}

impl Reading {
    /// Reads a prompt with the values of `removed` replaced by zeros, and keeps the `n_top` most probable tokens.
    pub fn new(
        model: &Gpt,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        removed: &[ModelPart],
        n_top: usize,
    ) -> Result<Self, InspectError> {
        let logits = model.forward_with(prompt.tokens(&model.device()), None, &mut Replace::by_zeros(removed));
        let logits = finite(LOGITS, logits)?; // [1, T, V]
        let mut rows = logits.chunks_exact(model.vocab_size());
        let last = rows.next_back().expect("a prompt has a token");
        let next = LayerPrediction::new(last, tokenizer, n_top, model.config().n_layers.checked_sub(1), None).top;
        Ok(Self { losses: rows.zip(&prompt.ids[1..]).map(|(row, id)| loss(row, *id)).collect(), next })
    }

    /// The mean loss, in nats per token; `None` for a single token, which is not predicted.
    pub fn loss(&self) -> Option<f64> {
        let n = self.losses.len();
        (n > 0).then(|| self.losses.iter().sum::<f64>() / n as f64)
    }
}

/// The loss of each token of a text in bits, `[T]`; `None` for the first token, which is not predicted. A text longer
/// than the context is read in windows of that length, each starting with the last token of the previous one.
pub fn bits(model: &Gpt, tokenizer: &Tokenizer, prompt: &Prompt) -> Result<Vec<Option<f64>>, InspectError> {
    let mut bits = vec![None];
    let context_length = model.config().context_length.max(2);
    while bits.len() < prompt.len() {
        let start = bits.len() - 1;
        let window = &prompt.ids[start..prompt.len().min(start + context_length)];
        let reading = Reading::new(model, tokenizer, &Prompt::of_ids(window.to_vec(), tokenizer), &[], 0)?;
        bits.extend(reading.losses.into_iter().map(|loss| Some(loss / std::f64::consts::LN_2)));
    }
    Ok(bits)
}

/// Continues a prompt greedily, with the values of `removed` replaced by zeros: at most `n_tokens`, up to the end of
/// the text, one of `stop_token_ids`, or the end of the context.
pub fn generate_greedily(
    model: &Gpt,
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    removed: &[ModelPart],
    stop_token_ids: &[u32],
    n_tokens: usize,
) -> Result<Vec<u32>, InspectError> {
    let likeliest = GenerateConfig { temperature: 0.0, ..GenerateConfig::default() };
    let mut sampler = Sampler::new(&likeliest, 0).without(tokenizer.gaps());
    let (mut cache, mut probe) = (model.kv_cache(1), Replace::by_zeros(removed));
    let (mut unread, mut written) = (prompt.ids.clone(), Vec::new());
    // The last token is generated but not read.
    for _ in 0..n_tokens.min(model.config().context_length + 1 - prompt.len()) {
        let logits = model.forward_with(to_tensor(&unread, &model.device()), Some(&mut cache), &mut probe);
        let logits = finite(LOGITS, logits.narrow(1, unread.len() - 1, 1))?; // [V]
        let token = sampler.choose(&logits[..tokenizer.n_ids()], &[]).expect("finite logits");
        if Some(token) == tokenizer.end_of_text() || stop_token_ids.contains(&token) {
            break;
        }
        written.push(token);
        unread = vec![token];
    }
    Ok(written)
}

/// The negative logarithm of a token's probability.
fn loss(logits: &[f32], id: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    largest + sum.ln() - f64::from(logits[id as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lens;
    use crate::handmade::with_zero_rows;
    use crate::testing::{louder, prompt, small_config};

    const REMOVED: [ModelPart; 2] = [ModelPart::Head { layer: 0, head: 2 }, ModelPart::Head { layer: 1, head: 1 }];

    /// The model, and the same with output projections that ignore the removed heads.
    fn maimed() -> (Gpt, Gpt) {
        let model = louder(&small_config(), 256);
        let unread = [("blocks.0.attention.output.weight", 8..12), ("blocks.1.attention.output.weight", 4..8)];
        (model.clone(), with_zero_rows(model, &unread))
    }

    #[test]
    fn removed_head_equals_unread_head() {
        let ((model, maimed), tokenizer, prompt) = (maimed(), Tokenizer::byte(), prompt("hello"));
        let whole = Reading::new(&model, &tokenizer, &prompt, &[], 5).expect("finite values");
        let without = Reading::new(&model, &tokenizer, &prompt, &REMOVED, 5).expect("finite values");
        let expected = Reading::new(&maimed, &tokenizer, &prompt, &[], 5).expect("finite values");
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert_eq!(without.losses.len(), 4);
        assert!(close(&without.losses, &expected.losses) && !close(&without.losses, &whole.losses));
        let mean = without.losses.iter().sum::<f64>() / 4.0;
        assert_eq!(without.loss(), Some(mean));
        let lens = Lens::new(&model, &tokenizer, &prompt, 5).expect("finite values");
        let predicted: Vec<_> = lens.positions.iter().filter_map(|at| at.stages.last()).collect();
        for (loss, prediction) in whole.losses.iter().zip(&predicted) {
            let actual = prediction.actual.as_ref().expect("a next token");
            assert!((loss + actual.entry.probability.ln()).abs() < 1e-4);
        }
        let ids = |top: &[TokenProbability]| top.iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!(ids(&whole.next), ids(&predicted[4].top));
    }

    #[test]
    fn bits_of_long_text_come_from_windows() {
        let (model, tokenizer) = (louder(&small_config(), 256), Tokenizer::byte());
        let text = prompt("The quick brown fox jumps over .");
        let all = bits(&model, &tokenizer, &text).expect("finite values");
        assert_eq!((all.len(), all[0]), (text.len(), None));
        let n = model.config().context_length;
        for start in [0, n - 1] {
            let window = Prompt::of_ids(text.ids[start..start + n].to_vec(), &tokenizer);
            let losses = Reading::new(&model, &tokenizer, &window, &[], 1).expect("finite values").losses;
            let close = |(bits, loss): (&Option<f64>, &f64)| (bits.unwrap() * 2.0_f64.ln() - loss).abs() < 1e-6;
            assert!(all[start + 1..].iter().zip(&losses).all(close));
        }
        assert_eq!(bits(&model, &tokenizer, &prompt("a")).expect("finite values"), [None]);
    }

    /// With and without the cache, and at most up to the end of the context.
    #[test]
    fn greedy_generation_matches_repeated_reading() {
        let ((model, maimed), tokenizer, mut text) = (maimed(), Tokenizer::byte(), prompt("hello"));
        let generate = |model: &Gpt, removed: &[ModelPart], stop: &[u32]| {
            generate_greedily(model, &tokenizer, &text, removed, stop, 100).expect("finite values")
        };
        let written = generate(&model, &REMOVED, &[]);
        assert_eq!(written.len(), 16 + 1 - 5);
        assert_eq!(generate(&maimed, &[], &[]), written);
        assert_ne!(generate(&model, &[], &[]), written);
        let at = written.iter().position(|token| *token == written[3]).expect("it is there");
        assert_eq!(generate(&model, &REMOVED, &[written[3]]), written[..at]);
        for token in written {
            let next = Reading::new(&model, &tokenizer, &text, &REMOVED, 1).expect("finite values").next[0].id;
            assert_eq!(next, token);
            text = Prompt::of_ids([&text.ids[..], &[token]].concat(), &tokenizer);
        }
    }
}
