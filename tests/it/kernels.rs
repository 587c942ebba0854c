//! The fused CPU operations: their gradients against finite differences, and whole runs against the operations that all
//! other backends compose. The comparison of each operation with its composed form is next to its source.

use burn::tensor::{Device, Int, Tensor, TensorData};
use proptest::prelude::*;
use tinderbox::model::Gpt;
use tinderbox::train::Trainer;
use tinderbox_kernels::{
    Activation, Dropout, DropoutKey, MatmulPrecision, Output, Positions, QkNorm, SelfAttention,
    mlp::{Layer, Mlp},
};

use crate::fixtures::host;
use crate::plan;
use crate::runs::{Place, text};

/// Pseudorandom numbers between -1 and 1.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// The flattened, concatenated inputs of an operation.
struct Inputs {
    values: Vec<f32>,
    taken: usize,
}

impl Inputs {
    fn next<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let n = shape.iter().product::<usize>();
        let values = self.values[self.taken..self.taken + n].to_vec();
        self.taken += n;
        let device = Device::flex().autodiff();
        Tensor::from_data(TensorData::new(values, shape), &device).require_grad()
    }
}

/// Compares the gradient of `f` with its change in a random direction. `f` takes its inputs and returns a sum, and the
/// gradients of the inputs in order.
fn check(what: &str, n: usize, seed: u64, f: impl Fn(&mut Inputs) -> (f32, Vec<f32>)) {
    // The change over 2h is off by h^2, and by the last bits of the sums whose difference it is.
    const H: f32 = 1.0 / 128.0;
    let (values, direction) = (noise(n, seed), noise(n, seed + 1));
    let at = |step: f32| {
        let moved = values.iter().zip(&direction).map(|(x, d)| x + step * d);
        f(&mut Inputs { values: moved.collect(), taken: 0 })
    };
    let (_, gradient) = at(0.0);
    assert_eq!(gradient.len(), n, "{what}: a gradient for each input");
    assert!(gradient.iter().all(|x| x.is_finite()), "{what}");
    let change = f64::from(at(H).0 - at(-H).0) / f64::from(2.0 * H);
    let products = gradient.iter().zip(&direction);
    let products: Vec<f64> = products.map(|(g, d)| f64::from(g * d)).collect();
    let along: f64 = products.iter().sum();
    let size = products.iter().map(|p| p * p).sum::<f64>().sqrt().max(1.0);
    assert!(
        (change - along).abs() < 0.02 * size,
        "{what}: it changes by {change}, and its gradient says {along} (about {size})"
    );
}

/// A randomly weighted sum of an output, and the gradients of its inputs.
fn summed<const D: usize>(
    output: Tensor<D>,
    gradients: impl Fn(&burn::tensor::Gradients) -> Vec<Vec<f32>>,
) -> (f32, Vec<f32>) {
    let shape = output.dims();
    let weights = TensorData::new(noise(shape.iter().product(), 99), shape);
    let sum = (output.clone() * Tensor::from_data(weights, &output.device())).sum();
    let backward = sum.clone().backward();
    (host(sum)[0], gradients(&backward).concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gradients_of_attention_are_its_changes(
        seed in 0..1000_u64,
        (n_kv_heads, group, half, b, t) in (1..3_usize, 1..4_usize, 1..5_usize, 1..3_usize, 1..70_usize),
        (norm, rotated, windowed, dropped) in any::<(bool, bool, bool, bool)>(),
    ) {
        let (n_heads, d) = (n_kv_heads * group, 2 * half);
        let width = (n_heads + 2 * n_kv_heads) * d;
        let angles = Tensor::<4>::from_data(
            TensorData::new(noise(t * half, 5), [1, 1, t, half]),
            &Device::flex().autodiff(),
        );
        let n = b * t * width + if norm { 2 * d } else { 0 };
        check("attention", n, seed, |inputs| {
            let qkv = inputs.next([b, t, width]);
            let norms = norm.then(|| [inputs.next([d]), inputs.next([d])]);
            let attention = SelfAttention {
                n_heads,
                n_kv_heads,
                norm: norms.clone().map(|[q, k]| QkNorm { q, k, epsilon: 1e-2 }),
                rotation: rotated.then(|| [angles.clone().cos(), angles.clone().sin()]),
                scale: tinderbox_kernels::attention_scale(d),
                window: windowed.then_some(3),
                dropout: dropped.then_some(Dropout {
                    probability: 0.25,
                    key: DropoutKey { seed, step: 1, micro_step: 0, first_row: 0 },
                    site: 1,
                }),
            };
            summed(tinderbox_kernels::self_attention(qkv.clone(), attention), |gradients| {
                let mut got = vec![host(qkv.grad(gradients).expect("it has one"))];
                got.extend(norms.iter().flatten().map(|w| host(w.grad(gradients).expect("it has one"))));
                got
            })
        });
    }

    #[test]
    fn gradients_of_layers_are_their_changes(
        seed in 0..1000_u64,
        (b, t, c, f) in (1..4_usize, 1..40_usize, 1..20_usize, 1..30_usize),
        kind in 0..4_usize,
    ) {
        let n_weights = if kind == 2 { 3 } else { 2 };
        check("a feed-forward layer", b * t * c + n_weights * c * f + c, seed, |inputs| {
            let x = inputs.next([b, t, c]);
            let scale = inputs.next([c]);
            let weights: Vec<Tensor<2>> = [[c, f], [f, c], [c, f]][..n_weights]
                .iter()
                .map(|shape| inputs.next(*shape))
                .collect();
            let layer = |i: usize| Layer { weight: weights[i].clone(), bias: None };
            let mlp = Mlp {
                expand: layer(0),
                // A rectifier has a kink, where differences are meaningless; its square has none.
                activation: match kind {
                    0 => Activation::Gelu,
                    1 => Activation::ReluSquared,
                    3 => Activation::GeluTanh,
                    _ => Activation::Swiglu,
                },
                gate: (kind == 2).then(|| layer(2)),
                contract: layer(1),
                precision: MatmulPrecision::F32,
            };
            let normed = tinderbox_kernels::layer_norm(x.clone(), scale.clone(), None, 0.1);
            summed(tinderbox_kernels::mlp(normed, mlp), |gradients| {
                let mut got = vec![host(x.grad(gradients).expect("it has one"))];
                got.push(host(scale.grad(gradients).expect("it has one")));
                got.extend(weights.iter().map(|w| host(w.grad(gradients).expect("it has one"))));
                got
            })
        });
    }

    #[test]
    fn gradients_of_a_loss_are_its_changes(
        seed in 0..1000_u64,
        (b, t, c, vocab_size) in (1..4_usize, 1..9_usize, 1..12_usize, 1..80_usize),
        tied in any::<bool>(),
    ) {
        let device = Device::flex().autodiff();
        let ids = |seed: u64| {
            let ids = noise(b * t, seed).into_iter();
            let ids = ids.map(|x| (x.abs() * (vocab_size as f32 - 0.01)) as i64);
            TensorData::new(ids.collect::<Vec<i64>>(), [b, t])
        };
        let n = (2 * vocab_size + t + 1) * c;
        check("a loss", n, seed, |inputs| {
            let (weight, positions) = (inputs.next([vocab_size, c]), inputs.next([t + 1, c]));
            let shape = if tied { [vocab_size, c] } else { [c, vocab_size] };
            let output = inputs.next(shape);
            let tokens = Tensor::<2, Int>::from_data(ids(seed), &device);
            let learned = Positions { weight: positions.clone(), first: 1 };
            let x = tinderbox_kernels::embed(tokens, weight.clone(), Some(learned));
            let targets = Tensor::<2, Int>::from_data(ids(seed + 7), &device).reshape([b * t]);
            let of = if tied { Output::Tied } else { Output::Own };
            let hidden = x.reshape([b * t, c]);
            let loss = tinderbox_kernels::cross_entropy(hidden, of(output.clone()), targets, None, MatmulPrecision::F32);
            let backward = loss.clone().backward();
            let gradients = [weight, positions, output].map(|w| host(w.grad(&backward).expect("it has one")));
            (host(loss)[0], gradients.concat())
        });
    }
}

/// The losses of a run's first steps on a device.
fn losses(place: &Place, device: &Device, options: &[&str]) -> Vec<f32> {
    let config = place.config(options);
    let corpus = tinderbox::data::Corpus::open(&config, tinderbox::data::OpenOptions::default()).expect("a corpus");
    let device = device.clone().autodiff();
    let vocab_size = corpus.tokenizer.vocab_size();
    let gpt = Gpt::new(&config.model, vocab_size, config.train.seed, &device);
    let mut trainer = Trainer::new(gpt, &config, corpus.train);
    (0..config.train.max_steps).map(|_| host(trainer.step().loss)[0]).collect()
}

#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated, reason = "the second opinion")]
fn the_first_fifty_losses_are_those_of_the_explicit_path() {
    let size = [
        "model.context_length=48",
        "model.d_model=32",
        "model.n_heads=4",
        "train.max_steps=50",
        "optimizer.learning_rate=3e-3",
    ];
    let families: [&[&str]; 3] = [
        &["model.dropout=0.0"],
        &["model.dropout=0.1", "model.bias=true", "model.tie_embeddings=false"],
        &["model.n_kv_heads=2", "model.position=rope", "model.norm=rms_norm", "model.mlp=swiglu", "model.qk_norm=true"],
    ];
    let place = Place::new();
    for family in families {
        let options = [&size[..], family].concat();
        let fused = losses(&place, &Device::flex(), &options);
        let explicit = losses(&place, &Device::ndarray(), &options);
        for (step, (fused, explicit)) in fused.iter().zip(&explicit).enumerate() {
            assert!((fused - explicit).abs() < 1e-3, "{family:?}, step {step}: {fused} is not {explicit}");
        }
        assert!(fused[49] < fused[0] - 0.5, "{family:?}: it learned nothing");
        let rounded = losses(&place, &Device::flex(), &[&options[..], &["train.matmul_precision=bf16"]].concat());
        let apart = rounded.iter().zip(&explicit).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(
            apart > 0.0 && apart < 5e-3, // rounding shifts the losses only a little
            "{family:?}: with matrices in bf16 losses are {apart} apart"
        );
    }
}

/// The attention weights of the explicit path alone would take 1 GiB per layer, several times over.
#[cfg(target_os = "linux")]
#[test]
fn a_context_of_8192_trains_in_less_than_a_gibibyte() {
    let folder = plan::folder();
    folder.write("text.txt", text().repeat(40));
    let settings = [
        "model.context_length=8192",
        "model.d_model=128",
        "model.n_heads=4",
        "model.n_layers=2",
        "train.batch_size=1",
        "train.grad_accumulation_steps=1",
        "train.max_steps=2",
        "train.eval_interval=0",
        "train.eval_batches=1",
        "train.sample_tokens=0",
    ];
    let set: Vec<&str> = settings.iter().flat_map(|s| ["--set", s]).collect();
    let trained = plan::json(&folder, &[&["train", "small.toml"], &set[..]].concat());
    let peak_mib = trained["peak_rss_mib"].as_f64().expect("MiB");
    assert!(peak_mib < 1024.0, "{peak_mib} MiB");
}
