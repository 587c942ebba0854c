//! The inference engine computes what the tensor model computes.

use std::sync::Arc;

use burn::tensor::Device;
use proptest::prelude::*;
use tinderbox::config::{MlpKind, ModelConfig, NormKind, PositionKind};
use tinderbox::generate::engine::{Decoder, Engine, Precision};
use tinderbox::model::Gpt;
use tinderbox::model::section::Section;
use tinderbox_kernels::MatmulPrecision;

use crate::fixtures::host;
use crate::properties::{any_model, lively, tensor, tokens};

/// Relative to the largest logit.
const TOLERANCE: f32 = 1e-4;

fn ids(tokens: &[i32]) -> Vec<u32> {
    tokens.iter().map(|token| *token as u32).collect()
}

/// The logits after each of the tokens, by the composed path.
fn reference(gpt: &Gpt, tokens: &[i32]) -> Vec<Vec<f32>> {
    let logits = host(gpt.forward(tensor(tokens, &gpt.device())));
    logits.chunks(gpt.vocab_size()).map(<[f32]>::to_vec).collect()
}

/// The logits after each of the tokens, decoded one by one.
fn stepped(engine: &Arc<Engine>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut decoder = Decoder::new(engine.clone(), 1, tokens.len());
    let after = tokens.iter().map(|token| {
        decoder.decode(&[Some(*token)]);
        decoder.logits(0).to_vec()
    });
    after.collect()
}

fn engine(gpt: &Gpt, precision: Precision) -> Arc<Engine> {
    Arc::new(Engine::new(gpt.clone(), precision))
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().flatten().fold(0.0_f32, |m, x| m.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        for (got, want) in got.iter().zip(want) {
            let close = (got - want).abs() <= tolerance * largest; // false for NaN
            assert!(close, "after token {i}: {got}, not {want}, of at most {largest}");
        }
    }
}

pub fn in_threads<T: Send>(n: usize, f: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
    pool.expect("threads can be started").install(f)
}

const N_KINDS: usize = 4;

/// A model of typical dimensions: several panels in every direction.
pub fn wide(kind: usize) -> ModelConfig {
    let plain = ModelConfig {
        context_length: 160,
        d_model: 96,
        n_layers: 2,
        n_heads: 2,
        n_kv_heads: 2,
        d_ff: 200,
        ..ModelConfig::default()
    };
    let config = match kind {
        0 => plain,
        1 => ModelConfig {
            n_heads: 6,
            n_kv_heads: 2,
            position: PositionKind::Rope,
            norm: NormKind::RmsNorm,
            mlp: MlpKind::Swiglu,
            qk_norm: true,
            tie_embeddings: false,
            ..plain
        },
        2 => ModelConfig { d_model: 80, mlp: MlpKind::ReluSquared, bias: true, ..plain },
        _ => {
            let foreign = ModelConfig { position: PositionKind::Rope, mlp: MlpKind::GeluTanh, ..plain }.with_derived();
            return ModelConfig {
                head_dim: 40,
                rotary_fraction: 0.5,
                rope_theta: 500.0,
                qkv_bias: true,
                parallel_residual: true,
                attention_window: vec![0, 40],
                attention_scale: Some(0.1),
                ..foreign
            };
        }
    };
    config.with_derived()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn engine_logits_equal_composed_logits(config in any_model(), seed in 0..1000_u64) {
        let gpt = lively(&config, seed, &Device::flex());
        let all = tokens(config.context_length, 2);
        let engine = engine(&gpt, Precision::F32);
        assert_close(&stepped(&engine, &ids(&all)), &reference(&gpt, &all), TOLERANCE);
    }

    #[test]
    fn engine_logits_do_not_depend_on_chunking(
        config in any_model(), seed in 0..1000_u64, first in 1..4_usize, precision in 0..Precision::ALL.len(),
    ) {
        let gpt = lively(&config, seed, &Device::flex());
        let engine = engine(&gpt, Precision::ALL[precision]);
        let all = ids(&tokens(config.context_length, 2));
        let one_by_one = stepped(&engine, &all);
        let mut decoder = Decoder::new(engine, 1, all.len());
        decoder.prefill(0, &all);
        prop_assert_eq!(decoder.logits(0), &one_by_one[all.len() - 1][..]);
        decoder.truncate(0, 0);
        for part in all.chunks(first) {
            decoder.prefill(0, part);
            prop_assert_eq!(decoder.logits(0), &one_by_one[decoder.len(0) - 1][..]);
        }
    }
}

/// Another value of each key of `[model]` that affects the logits of given weights.
const OTHER_VALUES: &str = r#"
    context_length = 20
    d_model = 24
    n_layers = 2
    n_heads = 8
    n_kv_heads = 4
    head_dim = 6
    d_ff = 12
    position = "learned"
    rope_theta = 50.0
    rotary_fraction = 0.5
    norm = "rms_norm"
    norm_eps = 0.1
    mlp = "swiglu"
    bias = true
    qkv_bias = true
    qk_norm = false
    qk_norm_across_heads = true
    parallel_residual = true
    attention_window = [3, 0]
    attention_scale = 0.9
    attention_softcap = 0.5
    tie_embeddings = false
    norm_weights = false
    value_residual = true
    embedding_skip = true
    vocab_size = 11
    logit_softcap = 2.0
    embedding_scale = 1.5
    residual_scale = 0.5
    logit_scale = 0.75
    rope_layers = [false, true]
    rope_scaling = { kind = "linear", factor = 4.0 }
    post_norm = true
    pre_norm = false
    rope_local_theta = 50.0
"#;
const TRAINING_ONLY: [&str; 2] = ["zero_init_projections", "dropout"];

/// A new key fails here until it has a value, and the engine supports it.
#[test]
fn engine_supports_every_model_key() {
    let plain = ModelConfig {
        context_length: 24,
        d_model: 16,
        n_layers: 3,
        n_heads: 4,
        n_kv_heads: 2,
        d_ff: 20,
        position: PositionKind::Rope,
        qk_norm: true,
        attention_window: vec![0, 5],
        ..ModelConfig::default()
    };
    let plain = toml::Table::try_from(plain.with_derived()).expect("a config can be written as TOML");
    let others: toml::Table = OTHER_VALUES.parse().expect("the values are TOML");
    let all = tokens(20, 2);
    for (key, _) in ModelConfig::keys().into_iter().filter(|(key, _)| !TRAINING_ONLY.contains(key)) {
        let mut table = plain.clone();
        let value = others.get(key).unwrap_or_else(|| panic!("{key} has a value that differs from its default"));
        table.insert(key.to_owned(), value.clone());
        let config: ModelConfig = table.try_into().expect("a model");
        assert_eq!(config.problems(), [""; 0], "{key}");
        let gpt = lively(&config, 5, &Device::flex());
        let engine = engine(&gpt, Precision::F32);
        assert_close(&stepped(&engine, &ids(&all)), &reference(&gpt, &all), TOLERANCE);
    }
}

#[test]
fn engine_logits_of_wide_models_equal_composed_logits() {
    for kind in 0..N_KINDS {
        let gpt = lively(&wide(kind), 5, &Device::flex());
        let all = tokens(150, 2);
        let engine = engine(&gpt, Precision::F32);
        let one_by_one = stepped(&engine, &ids(&all));
        assert_close(&one_by_one, &reference(&gpt, &all), TOLERANCE);
        let mut decoder = Decoder::new(engine, 1, 150);
        decoder.prefill(0, &ids(&all)); // more than are processed at once
        assert_eq!(decoder.logits(0), one_by_one[149]);
    }
}

#[test]
fn engine_logits_do_not_depend_on_other_sequences_or_threads() {
    for (kind, precision) in (0..N_KINDS).flat_map(|kind| Precision::ALL.map(|one| (kind, one))) {
        let gpt = lively(&wide(kind), 3, &Device::flex());
        let engine = engine(&gpt, precision);
        let texts: Vec<Vec<u32>> = (0..11).map(|seed| ids(&tokens(40, seed))).collect();
        let alone: Vec<_> = texts.iter().map(|text| stepped(&engine, text)).collect();
        for n_threads in [1, 2, 3] {
            let mut decoder = Decoder::new(engine.clone(), texts.len(), 40);
            in_threads(n_threads, || {
                // The first sequence reads its beginning at once, the second one copies it, the third one ends early.
                decoder.prefill(0, &texts[0][..7]);
                decoder.copy(0, 1);
                assert_eq!(decoder.logits(1), alone[0][6]);
                decoder.truncate(1, 0);
                for i in 0..40 {
                    let next = |(sample, text): (usize, &Vec<u32>)| match sample {
                        0 if i < 7 => None,
                        2 if i >= 9 => None,
                        _ => Some(text[i]),
                    };
                    let step: Vec<_> = texts.iter().enumerate().map(next).collect();
                    decoder.decode(&step);
                    for (sample, alone) in alone.iter().enumerate() {
                        if step[sample].is_some() {
                            assert_eq!(decoder.logits(sample), alone[i], "{sample} at {i}");
                        }
                    }
                }
            });
        }
    }
}

#[test]
fn engine_token_losses_equal_composed_loss() {
    let device = Device::flex();
    let gpt = lively(&wide(1), 5, &device);
    let all = tokens(151, 2);
    let (inputs, targets) = (&all[..150], &all[1..]);
    let engine = engine(&gpt, Precision::F32);
    let mut decoder = Decoder::new(engine, 1, 150);
    let token_losses = decoder.token_losses(&ids(inputs), &ids(targets));
    let mean = token_losses.iter().map(|x| f64::from(*x)).sum::<f64>() / 150.0;
    let loss: f32 =
        gpt.loss(tensor(inputs, &device), None, tensor(targets, &device), MatmulPrecision::F32, None).into_scalar();
    assert!((mean - f64::from(loss)).abs() < 1e-4, "{mean}, not {loss}");
    assert_eq!(decoder.token_losses(&ids(inputs), &ids(targets)), token_losses);
}
