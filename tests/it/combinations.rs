//! Every option combines with every other: small runs of random configs.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;
use tinderbox::config::{
    Config, ModelConfig, NewtonSchulz, OptimizerConfig, OptimizerKind, ScheduleConfig, ScheduleKind, TokenizerKind,
};
use tinderbox::model::Gpt;
use tinderbox::model::probe::{Point, Probe, Site};
use tinderbox::optimizer::{AdamwConfig, Gradients, MuonConfig};
use tinderbox::train::Start;
use tinderbox_kernels::{DropoutKey, MatmulPrecision};

use crate::devices::{ndarray, wgpu};
use crate::fixtures::{Place, expect_close, host};
use crate::optimizers::check_muon;
use crate::properties::{VOCAB_SIZE, any_model, lively, tensor, tokens};

#[derive(Clone, Debug)]
struct AnyRun {
    model: ModelConfig,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    tokenizer: TokenizerKind,
    seed: u64,
    batch_size: usize,
    grad_accumulation_steps: usize,
}

const MAX_STEPS: usize = 6;

fn any_run() -> impl Strategy<Value = AnyRun> {
    let tokenizers = prop_oneof![Just(TokenizerKind::Char), Just(TokenizerKind::Byte)];
    let sizes = (1..4_usize, 1..3_usize);
    let run = (tokenizers, 0..1000_u64, sizes);
    (any_model(), any_optimizer(), any_schedule(), run).prop_map(
        |(mut model, optimizer, mut schedule, (tokenizer, seed, sizes))| {
            model.zero_init_projections = seed.is_multiple_of(4);
            schedule.min_learning_rate *= optimizer.learning_rate;
            let (batch_size, grad_accumulation_steps) = sizes;
            if seed.is_multiple_of(3) {
                (schedule.initial_batch_size, schedule.initial_context_length) =
                    (Some(1), Some(model.context_length.min(2)));
                schedule.ramp_fraction = 0.7;
            }
            AnyRun { model, optimizer, schedule, tokenizer, seed, batch_size, grad_accumulation_steps }
        },
    )
}

#[allow(clippy::needless_update, reason = "another optimizer adds its keys")]
fn any_optimizer() -> impl Strategy<Value = OptimizerConfig> {
    let kinds = proptest::sample::select(OptimizerKind::ALL);
    let rates = (1e-4..2e-2_f64, 1e-3..5e-2_f64);
    let betas = [0.0..0.95_f64, 0.0..0.999_f64];
    let momentum = prop_oneof![Just(0.0), Just(0.95)];
    let decay = prop_oneof![Just(0.0), Just(0.1)];
    let clip = prop_oneof![Just(0.0), Just(1.0), Just(0.01)];
    (kinds, rates, betas, momentum, decay, clip).prop_map(
        |(kind, (learning_rate, muon_learning_rate), betas, muon_momentum, weight_decay, clip)| OptimizerConfig {
            kind,
            learning_rate,
            adamw: AdamwConfig { betas },
            weight_decay,
            grad_clip_norm: clip,
            muon: MuonConfig {
                muon_learning_rate,
                muon_momentum,
                newton_schulz: if clip == 0.0 { NewtonSchulz::PolarExpress } else { NewtonSchulz::Jordan },
                newton_schulz_steps: if clip == 0.0 { 4 } else { 5 },
                normuon_beta2: if muon_momentum == 0.0 { 0.9 } else { 0.0 },
            },
            ema_decay: if weight_decay == 0.0 { 0.7 } else { 0.0 },
            ..OptimizerConfig::default()
        },
    )
}

/// Any schedule; its lowest learning rate is a fraction of the highest.
fn any_schedule() -> impl Strategy<Value = ScheduleConfig> {
    let kinds = prop_oneof![
        Just(ScheduleKind::Constant),
        Just(ScheduleKind::Linear),
        Just(ScheduleKind::Cosine),
        Just(ScheduleKind::Wsd),
    ];
    let lowest = prop_oneof![Just(0.0), Just(0.1), Just(1.0)];
    (kinds, 0..9_usize, lowest, 0.01..=1.0_f64).prop_map(|(kind, warmup_steps, min_learning_rate, decay_fraction)| {
        ScheduleConfig { kind, warmup_steps, min_learning_rate, decay_fraction, ..ScheduleConfig::default() }
    })
}

impl AnyRun {
    /// The config of the run, as in a file: it passes all validation.
    fn config(&self, place: &Place) -> Config {
        let mut config = place.config(&[]);
        config.model = self.model.clone();
        config.optimizer = self.optimizer.clone();
        config.schedule = self.schedule.clone();
        config.tokenizer.kind = self.tokenizer;
        config.train.max_steps = MAX_STEPS;
        config.train.seed = self.seed;
        config.train.batch_size = self.batch_size;
        config.train.grad_accumulation_steps = self.grad_accumulation_steps;
        config.train.with_replacement = self.seed.is_multiple_of(2);
        config.train.sample_tokens = 12;
        Config::from_toml(&config.to_toml(), Path::new("any.toml"), &[]).expect("a valid config")
    }
}

/// Every file of a run without clock values.
fn files() -> Vec<String> {
    let checkpoint = ["model.safetensors", "optimizer.safetensors", "state.json"];
    let checkpoint = checkpoint.map(|file| format!("checkpoints/step-{MAX_STEPS:06}/{file}"));
    let logs = ["metrics.jsonl", "samples.txt", "config.toml", "tokenizer.json", "best", "last"];
    checkpoint.into_iter().chain(logs.map(str::to_owned)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_run_learns_and_resumes_exactly(
        run in any_run(), stop_after in 1..MAX_STEPS,
    ) {
        let place = Place::new();
        let config = run.config(&place);
        let (summary, losses) = place.train("whole", config.clone(), Start::New, None).expect("the run trains");
        prop_assert!(summary.steps == MAX_STEPS && losses.iter().all(|loss| loss.is_finite()));
        let stopped = place.train("parts", config.clone(), Start::New, Some(stop_after));
        let (stopped, _) = stopped.expect("the run trains");
        prop_assert!(stopped.interrupted && stopped.steps == stop_after);
        place.train("parts", config, Start::Resume, None).expect("the run resumes");
        place.assert_same("whole", "parts", &files().iter().map(String::as_str).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ndarray_repeats_logits_loss_and_gradients(
        config in any_model(), seed in 0..1000_u64,
    ) {
        alike(&config, seed, &ndarray(), 1e-4);
    }

    #[test]
    fn probe_sees_and_changes_every_site(
        config in any_model(), seed in 0..1000_u64,
    ) {
        let device = Device::flex();
        let gpt = lively(&config, seed, &device);
        let input = || tensor(&tokens(config.context_length, 4), &device);
        let plain = host(gpt.forward(input()));
        let mut seen = Seen::default();
        let probed = host(gpt.forward_with(input(), None, &mut seen));
        expect_close("logits with a probe", &probed, &plain, 2e-5);
        prop_assert_eq!(&seen.0, &sites(&config));
        for (site, _) in seen.0 {
            let changed = host(gpt.forward_with(input(), None, &mut Shift(site)));
            // A single position attends to itself, whatever its query and key.
            let is_alone = site.block_idx.is_some_and(|block_idx| config.attention_window_of(block_idx) == Some(1));
            let is_deaf =
                (config.context_length == 1 || is_alone) && matches!(site.point, Point::Queries | Point::Keys);
            let apart = changed.iter().zip(&probed).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Apart from the change, both passes compute the same, to the byte.
            prop_assert!((apart > 0.0) != is_deaf, "{} moves logits by {}", site, apart);
        }
    }
}

/// Compares a model on a device with the same model on flex: logits, loss and gradients, dropout included.
fn alike(config: &ModelConfig, seed: u64, other: &Device, tolerance: f32) {
    let run = |device: &Device| {
        let gpt = lively(config, seed, &device.clone().autodiff());
        let device = gpt.device();
        let [input, target] = [6, 7].map(|seed| tensor(&tokens(config.context_length, seed), &device));
        let key = DropoutKey { seed, step: 3, micro_step: 1, first_row: 0 };
        let logits = host(gpt.forward(input.clone()));
        let loss = gpt.loss(input, None, target, MatmulPrecision::F32, Some(key));
        let gradients = Gradients::take(&gpt, loss.backward());
        let gradients: Vec<(String, Vec<f32>)> =
            gradients.iter().map(|(name, gradient)| (name.to_owned(), host(gradient.clone()))).collect();
        (logits, host(loss.inner()), gradients)
    };
    let (flex_logits, flex_loss, flex_gradients) = run(&Device::flex());
    let (logits, loss, gradients) = run(other);
    expect_close("logits", &logits, &flex_logits, tolerance);
    expect_close("loss", &loss, &flex_loss, tolerance);
    assert_eq!(gradients.len(), flex_gradients.len());
    // Rounding in one layer reaches all before it, so gradients are as exact as the largest of them.
    let largest = flex_gradients.iter().flat_map(|(_, flex)| flex).fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for ((name, gradient), (_, flex)) in gradients.iter().zip(&flex_gradients) {
        assert_eq!(gradient.len(), flex.len(), "size of {name}");
        for (i, (gradient, flex)) in gradient.iter().zip(flex).enumerate() {
            let close = (gradient - flex).abs() <= tolerance * (1.0 + largest); // false for NaN
            assert!(close, "{name}[{i}] is {gradient}, not {flex}; the largest gradient is {largest}");
        }
    }
}

/// The sites visited in a pass, with the shapes of their values.
#[derive(Default)]
struct Seen(Vec<(Site, Vec<usize>)>);

impl Probe for Seen {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        self.0.push((site, value.dims().to_vec()));
        value
    }
}

/// Adds a small, different amount to each number at one site.
struct Shift(Site);

impl Probe for Shift {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if site != self.0 {
            return value;
        }
        let n = value.shape().num_elements();
        let little: Vec<f32> = (1..=n).map(|i| (i as f32 * 1.7).sin()).collect();
        let little = Tensor::<D>::from_data(TensorData::new(little, value.dims()), &value.device());
        value + little
    }
}

/// Every site of a model with its documented shape, in the order of a pass.
fn sites(config: &ModelConfig) -> Vec<(Site, Vec<usize>)> {
    let (t, c, d) = (config.context_length, config.d_model, config.head_dim);
    let (h, kv) = (config.n_heads, config.n_kv_heads);
    let stream = || vec![1, t, c];
    let of_block = |block_idx| {
        let points = [
            (Point::Queries, vec![1, h, t, d]),
            (Point::Keys, vec![1, kv, t, d]),
            (Point::Values, vec![1, kv, t, d]),
            (Point::Weights, vec![1, h, t, t]),
            (Point::Heads, vec![1, h, t, d]),
            (Point::Attention, stream()),
            (Point::Mlp, stream()),
            (Point::Residual, stream()),
        ];
        points.map(|(point, shape)| (site(Some(block_idx), point), shape))
    };
    let mut sites = vec![(site(None, Point::Embedding), stream())];
    sites.extend((0..config.n_layers).flat_map(of_block));
    sites.push((site(None, Point::Norm), stream()));
    sites.push((site(None, Point::Logits), vec![1, t, VOCAB_SIZE]));
    sites
}

fn site(block_idx: Option<usize>, point: Point) -> Site {
    Site { block_idx, point }
}

/// The table in docs/models.md; the sizes of GPT-2 and of stories15M are those that were published.
#[test]
fn shipped_configs_have_documented_sizes() {
    for (name, vocab_size, parameters) in [
        ("quickstart", 2048, 1_066_368),
        ("shakespeare-fast", 1024, 430_944),
        ("shakespeare-laptop", 1024, 935_296),
        ("shakespeare-nanogpt", 65, 804_096),
        ("shakespeare-gpu", 65, 10_745_088),
        ("stories-15m", 32_000, 15_191_712),
        ("gpt2-124m", 50_257, 124_439_808),
    ] {
        let path = format!("configs/{name}.toml");
        let config = Config::load(Path::new(&path), &[]).expect("a valid config");
        let gpt = Gpt::zeros(&config.model, vocab_size, &Device::flex());
        assert_eq!(gpt.num_params(), parameters, "{name}");
    }
}

#[test]
fn gpu_makes_pytorch_updates_of_muon() {
    if let Some(device) = wgpu() {
        check_muon(&device);
    }
}
