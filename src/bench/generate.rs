//! Measures how fast a model reads a prompt and generates text.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use serde::Serialize;

use super::device_failed;
use crate::data::Tokens;
use crate::generate::LanguageModel;
use crate::generate::engine::{Decoder, Engine};
use crate::measure::{Times, ms_since};
use crate::model::Gpt;

/// The sizes of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GenerateSizes {
    pub batch_size: usize,
    pub prompt_tokens: usize,
    /// The tokens generated after the prompt, one by one.
    pub new_tokens: usize,
}

/// The speed of reading and generating.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GenerateSpeed {
    #[serde(flatten)]
    pub sizes: GenerateSizes,
    /// The time to read the prompt, up to the first token after it.
    pub prompt: Times,
    /// Prompt tokens read per second, over all sequences.
    pub prompt_tokens_per_s: f64,
    /// The time to generate one more token of each sequence.
    pub token: Times,
    /// Tokens generated per second, over all sequences.
    pub tokens_per_s: f64,
    /// Bytes of weights read per second while generating, each weight once per token of a sequence.
    pub weight_bytes_per_s: f64,
}

/// Reads a synthetic prompt and continues it greedily, `rounds` times after a warm-up round.
///
/// # Errors
/// If the tokens do not fit the context, or the device fails.
pub fn measure(model: &LanguageModel, sizes: GenerateSizes, rounds: usize) -> anyhow::Result<GenerateSpeed> {
    let GenerateSizes { batch_size, prompt_tokens, new_tokens } = sizes;
    let context_length = model.config().context_length;
    ensure!(
        prompt_tokens.saturating_add(new_tokens) <= context_length,
        "a prompt of {prompt_tokens} tokens and {new_tokens} new ones do not fit a context of {context_length}\n  \
         hint: lower --prompt-tokens or --new-tokens"
    );
    let weight_bytes = match model {
        LanguageModel::Engine(engine) => engine.bytes_per_token(),
        LanguageModel::Tensors(model) => size_of::<f32>() * model.num_params(),
    };
    let (mut prompts_ms, mut tokens_ms) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        let (read_ms, generated_ms) = match model {
            LanguageModel::Engine(engine) => once_packed(engine, sizes),
            LanguageModel::Tensors(model) => once(model, sizes)?,
        };
        prompts_ms.push(read_ms);
        tokens_ms.push(generated_ms / new_tokens as f64);
    }
    let (prompt, token) = (Times::from_ms(&prompts_ms[1..]), Times::from_ms(&tokens_ms[1..])); // the first round is a warm-up
    Ok(GenerateSpeed {
        sizes,
        prompt,
        prompt_tokens_per_s: prompt.per_s((batch_size * prompt_tokens) as f64),
        token,
        tokens_per_s: token.per_s(batch_size as f64),
        weight_bytes_per_s: token.per_s(weight_bytes as f64),
    })
}

/// Milliseconds of reading and generating, with packed weights.
fn once_packed(engine: &Arc<Engine>, sizes: GenerateSizes) -> (f64, f64) {
    let GenerateSizes { batch_size, prompt_tokens, new_tokens } = sizes;
    let prompts: Vec<u32> = prompts(sizes, engine.vocab_size()).into_iter().map(i32::unsigned_abs).collect();
    let mut decoder = Decoder::new(engine.clone(), batch_size, prompt_tokens + new_tokens);
    let next = |decoder: &Decoder| -> Vec<Option<u32>> {
        (0..batch_size).map(|sample| u32::try_from(argmax(decoder.logits(sample))).ok()).collect()
    };
    let began = Instant::now();
    for (sample, prompt) in prompts.chunks(prompt_tokens).enumerate() {
        decoder.prefill(sample, prompt);
    }
    let mut ids = next(&decoder);
    let prompt_ms = ms_since(began);
    let began = Instant::now();
    for _ in 0..new_tokens {
        decoder.decode(&ids);
        ids = next(&decoder);
    }
    (prompt_ms, ms_since(began))
}

/// Milliseconds of reading and generating, with burn's tensors.
fn once(model: &Gpt, sizes: GenerateSizes) -> anyhow::Result<(f64, f64)> {
    let b = sizes.batch_size;
    let mut cache = model.kv_cache(b);
    let mut next = |ids: Vec<i32>| {
        let t = ids.len() / b;
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t]), &model.device());
        likeliest(model.forward_cached(ids, &mut cache), t) // [B, T, V]
    };
    let prompts = prompts(sizes, model.vocab_size());
    let began = Instant::now();
    let mut ids = next(prompts)?;
    let prompt_ms = ms_since(began);
    let began = Instant::now();
    for _ in 0..sizes.new_tokens {
        ids = next(ids)?;
    }
    Ok((prompt_ms, ms_since(began)))
}

/// Synthetic prompts, concatenated.
fn prompts(sizes: GenerateSizes, vocab_size: usize) -> Vec<i32> {
    let mut prompts = vec![0; sizes.batch_size * sizes.prompt_tokens];
    Tokens::made_up(prompts.len(), vocab_size).read(0, &mut prompts);
    prompts
}

/// The most probable token of each row after the last of `t` positions, chosen on the host, like sampling.
fn likeliest(logits: Tensor<3>, t: usize) -> anyhow::Result<Vec<i32>> {
    let [_, _, vocab_size] = logits.dims();
    let last = logits.narrow(1, t - 1, 1).try_into_vec_as::<f32>(); // [B, 1, V]
    let last = last.map_err(device_failed)?;
    Ok(last.chunks(vocab_size).map(|row| i32::try_from(argmax(row)).unwrap_or(0)).collect())
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use burn::tensor::Device;

    fn tiny() -> Gpt {
        let sizes = ModelConfig { context_length: 12, d_model: 8, d_ff: 16, ..ModelConfig::default() };
        let config = ModelConfig { n_layers: 1, n_heads: 2, n_kv_heads: 2, ..sizes }.with_derived();
        Gpt::new(&config, 7, 1, &Device::flex())
    }

    #[test]
    fn measure_counts_tokens_of_all_sequences() {
        let sizes = GenerateSizes { batch_size: 3, prompt_tokens: 8, new_tokens: 4 };
        let model = tiny();
        for language_model in [LanguageModel::from(&model), LanguageModel::Tensors(Box::new(model.clone()))] {
            let speed = measure(&language_model, sizes, 2).expect("12 tokens fit a context of 12");
            assert_eq!((speed.prompt.rounds, speed.token.rounds), (2, 2));
            let generated = speed.tokens_per_s * speed.token.median_ms / 1e3;
            let read = speed.prompt_tokens_per_s * speed.prompt.median_ms / 1e3;
            assert!((generated - 3.0).abs() < 1e-9 && (read - 24.0).abs() < 1e-9);
        }
    }

    #[test]
    fn likeliest_takes_last_position_of_each_row() {
        let logits = Tensor::<3>::from_floats(
            [[[9.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[9.0, 0.0, 0.0], [0.0, 1.0, 2.0]]],
            &Device::flex(),
        );
        assert_eq!(likeliest(logits, 2).expect("the CPU does not fail"), [1, 2]);
    }
}
