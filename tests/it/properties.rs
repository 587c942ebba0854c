//! Properties of every model, whatever its options.

use std::sync::Arc;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use proptest::prelude::*;
use tinderbox::config::{GenerateConfig, MlpKind, ModelConfig, NormKind, PositionKind, RopeScaling};
use tinderbox::generate::Generator;
use tinderbox::generate::engine::{Decoder, Engine, Precision};
use tinderbox::model::Pass;
use tinderbox::model::attention::MultiHeadAttentionConfig;
use tinderbox::model::probe::NoProbe;
use tinderbox::model::{Gpt, Linear, parameters};
use tinderbox::tokenizer::Tokenizer;
use tinderbox_kernels::{DropoutKey, MatmulPrecision};

use crate::devices::ndarray;
use crate::fixtures::{expect_close, host};

pub const VOCAB_SIZE: usize = 11;

pub const ALPHABET: &str = "abcdefghijk";

pub fn letters() -> Tokenizer {
    Tokenizer::char_from_alphabet(ALPHABET.chars()).expect("an alphabet")
}

/// Any small model, with any combination of options, including odd sizes.
pub fn any_model() -> impl Strategy<Value = ModelConfig> {
    let kinds = (
        prop_oneof![Just(PositionKind::Learned), Just(PositionKind::Rope)],
        prop_oneof![Just(NormKind::LayerNorm), Just(NormKind::RmsNorm)],
        prop::sample::select(MlpKind::ALL.to_vec()),
    );
    // Query heads per key/value head, key/value heads, and their width.
    let heads = (1..4_usize, 1..3_usize, 2..6_usize);
    let sizes = (1..4_usize, 1..20_usize, 1..9_usize);
    let dropout = prop_oneof![2 => Just(0.0), 1 => Just(0.3)];
    (kinds, heads, any::<[bool; 3]>(), sizes, dropout, any_foreign()).prop_map(
        |(
            (position, norm, mlp),
            (n_sharing, n_kv_heads, width),
            [bias, qk_norm, tie_embeddings],
            (n_layers, d_ff, context_length),
            dropout,
            foreign,
        )| {
            let n_heads = n_sharing * n_kv_heads;
            let head_dim = match position {
                PositionKind::Learned => width,
                PositionKind::Rope => width / 2 * 2, // RoPE rotates pairs
            };
            // A norm over two numbers, of a model or of a head, destroys nearly all information: rounding decides.
            let head_dim = if n_heads == 1 || qk_norm { head_dim.max(4) } else { head_dim };
            let plain = ModelConfig {
                context_length,
                d_model: n_heads * head_dim,
                n_layers,
                n_heads,
                n_kv_heads,
                d_ff,
                position,
                norm,
                mlp,
                bias,
                qk_norm,
                tie_embeddings,
                dropout,
                ..ModelConfig::default()
            };
            foreign.add_to(plain.with_derived())
        },
    )
}

/// The keys for imported models, most of them at their defaults.
#[derive(Clone, Debug)]
struct Foreign {
    changes: [bool; 6],
    window: Vec<usize>,
    scale: Option<f64>,
    scaling: Option<RopeScaling>,
}

fn any_foreign() -> impl Strategy<Value = Foreign> {
    let seldom = || prop::bool::weighted(0.25);
    let changes = [seldom(), seldom(), seldom(), seldom(), seldom(), seldom()];
    let window = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(0..5_usize, 1..3)];
    let scale = prop_oneof![3 => Just(None), 1 => (0.3..1.5_f64).prop_map(Some)];
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context_length: 9 };
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context_length: 7,
        beta_fast: 3.0,
        beta_slow: 0.5,
        attention_factor: None,
    };
    let linear = RopeScaling::Linear { factor: 2.0 };
    // A list of factors needs the number of pairs, which is set where it is known.
    let longrope = RopeScaling::Longrope {
        short_factors: Vec::new(),
        long_factors: Vec::new(),
        original_context_length: 7,
        attention_factor: None,
    };
    let scaling =
        prop_oneof![2 => Just(None), 2 => prop::sample::select(vec![linear, llama3, yarn, longrope]).prop_map(Some)];
    (changes, window, scale, scaling).prop_map(|(changes, window, scale, scaling)| Foreign {
        changes,
        window,
        scale,
        scaling,
    })
}

impl Foreign {
    fn add_to(self, plain: ModelConfig) -> ModelConfig {
        let Self {
            changes: [is_wider, is_turned, is_biased, is_parallel, is_rough, is_scaled],
            window,
            scale,
            scaling,
        } = self;
        let by = |scale: f64| if is_scaled { scale } else { 1.0 };
        let rotates = plain.position == PositionKind::Rope;
        let model = ModelConfig {
            d_model: plain.d_model + usize::from(is_wider),
            rope_theta: if is_turned { 50.0 } else { plain.rope_theta },
            rope_layers: if is_scaled { vec![true, false] } else { Vec::new() },
            post_norm: is_scaled,
            pre_norm: !(is_scaled && is_biased),
            qk_norm_across_heads: is_parallel && plain.qk_norm,
            attention_softcap: is_wider.then_some(0.5),
            rope_local_theta: is_turned.then_some(30.0),
            embedding_scale: by(1.5),
            residual_scale: by(0.5),
            logit_scale: by(0.75),
            rotary_fraction: if is_turned && plain.head_dim == 4 { 0.5 } else { 1.0 },
            rope_scaling: scaling.filter(|_| rotates),
            qkv_bias: plain.bias ^ is_biased,
            parallel_residual: is_parallel,
            norm_eps: if is_rough { 0.1 } else { plain.norm_eps },
            attention_window: window,
            attention_scale: scale,
            logit_softcap: is_rough.then_some(5.0),
            norm_weights: !(is_turned || is_rough),
            value_residual: is_biased || is_wider,
            embedding_skip: is_parallel || is_wider,
            ..plain
        };
        with_factors(model)
    }
}

/// The model with a factor for each pair of rotated dimensions, if it has lists of them.
fn with_factors(mut model: ModelConfig) -> ModelConfig {
    let n_pairs = model.rotary_dim() / 2;
    if let Some(RopeScaling::Longrope { short_factors, long_factors, .. }) = &mut model.rope_scaling {
        *short_factors = (0..n_pairs).map(|pair| 1.0 + pair as f64 / 8.0).collect();
        *long_factors = (0..n_pairs).map(|pair| 1.5 + pair as f64).collect();
    }
    model
}

/// A model whose weights are large enough for mistakes to show.
pub fn lively(config: &ModelConfig, seed: u64, device: &Device) -> Gpt {
    let gpt = Gpt::new(config, VOCAB_SIZE, seed, device);
    let mut drawn = parameters::read(&gpt);
    for (_, factors) in drawn.iter_mut().filter(|(path, _)| path.ends_with("factors")) {
        factors.values = vec![0.7, -0.4];
    }
    for matrix in drawn.values_mut().filter(|tensor| tensor.shape.len() == 2) {
        matrix.values.iter_mut().for_each(|x| *x *= 15.0);
    }
    parameters::assign(gpt, |path, _| drawn.remove(path)).expect("the same parameters")
}

/// `[1, T]`
pub fn tensor(tokens: &[i32], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(tokens.to_vec(), [1, tokens.len()]), device)
}

pub fn tokens(n: usize, seed: i32) -> Vec<i32> {
    (0..n as i32).map(|i| (i * 7 + seed * 3 + i * i).rem_euclid(VOCAB_SIZE as i32)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn later_tokens_never_change_earlier_logits(config in any_model(), seed in 0..1000_u64) {
        let device = Device::flex();
        let gpt = lively(&config, seed, &device);
        let n = config.context_length;
        let one = tokens(n, 1);
        for at in 1..n {
            let mut other = one.clone();
            other[at..].iter_mut().for_each(|token| *token = (*token + 1) % VOCAB_SIZE as i32);
            let logits = |tokens: &[i32]| {
                host(gpt.forward(tensor(tokens, &device)).narrow(1, 0, at))
            };
            prop_assert_eq!(logits(&one), logits(&other));
            let last = |tokens: &[i32]| host(gpt.forward(tensor(tokens, &device)).narrow(1, n - 1, 1));
            prop_assert_ne!(last(&one), last(&other), "what came last should matter");
        }
    }

    #[test]
    fn cached_logits_equal_uncached_logits(
        config in any_model(), seed in 0..1000_u64, first in 1..4_usize,
    ) {
        let device = Device::flex();
        let gpt = lively(&config, seed, &device);
        let all = tokens(config.context_length, 2);
        let full = gpt.forward(tensor(&all, &device));
        let mut cache = gpt.kv_cache(1);
        let mut parts = vec![gpt.forward_cached(tensor(&all[..first.min(all.len())], &device), &mut cache)];
        while cache.len() < all.len() {
            let at = cache.len();
            parts.push(gpt.forward_cached(tensor(&all[at..=at], &device), &mut cache));
        }
        expect_close("cached logits", &host(Tensor::cat(parts, 1)), &host(full), 2e-5);
        cache.truncate(0);
        let again = gpt.forward_cached(tensor(&all, &device), &mut cache);
        let full = gpt.forward(tensor(&all, &device));
        expect_close("logits after clearing", &host(again), &host(full), 2e-5);
    }

    #[test]
    fn batch_keeps_logits_of_each_row(config in any_model(), seed in 0..1000_u64) {
        let device = Device::flex();
        let gpt = lively(&config, seed, &device);
        let rows = [tokens(config.context_length, 3), tokens(config.context_length, 5)];
        let both = Tensor::cat(rows.iter().map(|row| tensor(row, &device)).collect(), 0);
        let together = gpt.forward(both);
        for (i, row) in rows.iter().enumerate() {
            let alone = host(gpt.forward(tensor(row, &device)));
            expect_close("row", &host(together.clone().narrow(0, i, 1)), &alone, 2e-5);
        }
    }
}

#[test]
fn attention_dropout_depends_on_key_alone() {
    let device = Device::flex();
    let x = Tensor::<3>::random([2, 5, 8], Distribution::Normal(0.0, 1.0), &device);
    let key = |step| Some(DropoutKey { seed: 1, step, micro_step: 0, first_row: 0 });
    for causal in [true, false] {
        let config = MultiHeadAttentionConfig { causal, dropout: 0.5, ..MultiHeadAttentionConfig::new(8, 2) };
        let mut attention = config.init(&device);
        let linear = |n: usize| {
            let random = |shape| Tensor::<2>::random(shape, Distribution::Normal(0.0, 0.5), &device);
            Linear::new(random([8, n]), Some(Tensor::zeros([n], &device)))
        };
        attention.qkv = linear(24);
        attention.output = linear(8);
        let forward = |key| {
            let mut probe = NoProbe;
            let mut pass = Pass::new(&mut probe, MatmulPrecision::F32, key);
            host(attention.forward(x.clone(), None, None, &mut pass))
        };
        assert_eq!(forward(key(1)), forward(key(1)));
        assert_ne!(forward(key(1)), forward(key(2)));
        let (explicit, _) = attention.attend(x.clone(), None);
        expect_close("explicit", &forward(None), &host(explicit), 1e-5);
    }
}

/// Generates without a cache: reads the tokens still in context, and takes the most probable next one.
fn greedy_reference(gpt: &Gpt, prompt: &[u32], n: usize) -> Vec<u32> {
    let context_length = gpt.config().context_length;
    let mut tokens = prompt.to_vec();
    let mut forgotten = tokens.len().saturating_sub(context_length);
    for _ in 0..n {
        if tokens.len() - forgotten > context_length {
            forgotten = tokens.len() - (context_length / 2).max(1);
        }
        let seen: Vec<i32> = tokens[forgotten..].iter().map(|id| *id as i32).collect();
        let logits = gpt.forward(tensor(&seen, &gpt.device())).narrow(1, seen.len() - 1, 1);
        let logits = host(logits);
        let likeliest = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        tokens.push(likeliest.expect("a vocabulary") as u32);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn generation_past_context_drops_half_of_it() {
    let tokenizer = letters();
    for context_length in [1, 2, 5, 8] {
        for position in [PositionKind::Learned, PositionKind::Rope] {
            let config = ModelConfig { context_length, position, n_layers: 2, d_model: 16, ..ModelConfig::default() };
            let gpt = lively(&config.with_derived(), 7, &Device::flex());
            let greedy = GenerateConfig { temperature: 0.0, max_new_tokens: 30, ..GenerateConfig::default() };
            for n_prompt in [1, context_length, context_length + 1, 11] {
                let prompt = &ALPHABET[..n_prompt];
                let generator = Generator::new(&gpt, &tokenizer, &greedy, prompt, 0).expect("a prompt");
                let text = generator.collect::<Result<String, _>>().expect("the model generates");
                let ids = tokenizer.encode(prompt).expect("the tokenizer knows the prompt");
                let expected = tokenizer.decode(&greedy_reference(&gpt, &ids, 30));
                assert_eq!(text, expected, "context {context_length}, prompt of {n_prompt}");
            }
        }
    }
}

#[test]
fn cpu_backends_draw_same_weights() {
    let config = ModelConfig { n_layers: 1, ..ModelConfig::default() };
    let read = |device: &Device| parameters::read(&Gpt::new(&config, 7, 3, device));
    assert_eq!(read(&Device::flex()), read(&ndarray()));
}

fn small() -> ModelConfig {
    ModelConfig {
        context_length: 24,
        d_model: 16,
        n_layers: 1,
        n_heads: 4,
        n_kv_heads: 2,
        d_ff: 20,
        position: PositionKind::Rope,
        ..ModelConfig::default()
    }
    .with_derived()
}

/// The logits after each token: fused, token by token with a cache, and by the engine.
fn all_logits(gpt: &Gpt, tokens: &[i32]) -> [Vec<f32>; 3] {
    let device = gpt.device();
    let mut cache = gpt.kv_cache(1);
    let steps = tokens.iter().map(|token| gpt.forward_cached(tensor(&[*token], &device), &mut cache));
    let cached = Tensor::cat(steps.collect(), 1);
    let mut decoder = Decoder::new(Arc::new(Engine::new(gpt.clone(), Precision::F32)), 1, tokens.len());
    let engine = tokens.iter().flat_map(|token| {
        decoder.decode(&[Some(*token as u32)]);
        decoder.logits(0).to_vec()
    });
    [host(gpt.forward(tensor(tokens, &device))), host(cached), engine.collect()]
}

#[test]
fn tokens_reach_as_far_as_attention_window() {
    const AT: usize = 3;
    for window in [1, 2, 7, 16, 17] {
        let gpt = lively(&ModelConfig { attention_window: vec![window], ..small() }, 3, &Device::flex());
        let one = tokens(24, 1);
        let mut other = one.clone();
        other[AT] = (other[AT] + 1) % VOCAB_SIZE as i32;
        for (one, other) in all_logits(&gpt, &one).into_iter().zip(all_logits(&gpt, &other)) {
            for (at, (one, other)) in one.chunks(VOCAB_SIZE).zip(other.chunks(VOCAB_SIZE)).enumerate() {
                let is_reached = (AT..AT + window).contains(&at);
                assert_eq!(one != other, is_reached, "position {at}, a window of {window}");
            }
        }
    }
}
