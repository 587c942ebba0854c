//! Benchmarks of each kernel on the CPU, with the activation shapes of three models: the forward pass alone, and
//! forward and backward together. Divan reports times and allocations.
//!
//!     cargo bench -p tinderbox-kernels
//!     cargo bench -p tinderbox-kernels -- self_attention --sample-count 500
//!
//! The shapes are those of nanoGPT's CPU run (12 windows of 64 tokens, 128 wide), of its GPU run with 4 windows, and
//! of GPT-2 small with one window of 256 tokens. `attention_by_length` compares explicit and fused attention as a
//! sequence grows: `max alloc` is the memory that the pass allocates at once in the calling thread.

use std::fmt;

use burn::tensor::{Device, Distribution, Int, Tensor};
use divan::Bencher;
use tinderbox_kernels::mlp::{Layer, Mlp};
use tinderbox_kernels::{self as kernels, Activation, Dropout, DropoutKey, MatmulPrecision, Output, SelfAttention};

/// The allocator of the main program, wrapped to count allocations.
#[global_allocator]
static ALLOCATOR: divan::AllocProfiler<mimalloc::MiMalloc> = divan::AllocProfiler::new(mimalloc::MiMalloc);

const DROPOUT: Dropout =
    Dropout { probability: 0.1, key: DropoutKey { seed: 1, step: 2, micro_step: 0, first_row: 0 }, site: 1 };
const EPSILON: f64 = 1e-5;
/// The vocabulary of a character model.
const VOCAB_SIZE: usize = 65;

/// `b` windows of `t` tokens through a model of width `c` with heads of width `c / h`.
#[derive(Clone, Copy)]
struct Shape {
    b: usize,
    t: usize,
    c: usize,
    h: usize,
}

const SHAPES: [Shape; 3] = [shape(12, 64, 128, 4), shape(4, 256, 384, 6), shape(1, 256, 768, 12)];

const fn shape(b: usize, t: usize, c: usize, h: usize) -> Shape {
    Shape { b, t, c, h }
}

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Both,
}

/// The pass and the sizes of one benchmark, which is one line of the output.
struct Case(Pass, Shape);

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(pass, Shape { b, t, c, .. }) = self;
        let pass = match pass {
            Pass::Forward => "forward",
            Pass::Both => "forward, backward",
        };
        write!(f, "[{b}, {t}, {c}] {pass}")
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let of = |pass| SHAPES.into_iter().map(move |shape| Case(pass, shape));
    of(Pass::Forward).chain(of(Pass::Both))
}

impl Case {
    fn device(&self) -> Device {
        match self.0 {
            Pass::Forward => Device::flex(),
            Pass::Both => Device::flex().autodiff(),
        }
    }

    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let x = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &self.device());
        match self.0 {
            Pass::Forward => x,
            Pass::Both => x.require_grad(),
        }
    }

    /// Times `f` on `inputs`; the backward pass starts from the sum of the output.
    fn bench<const D: usize, const E: usize, const N: usize>(
        &self,
        bencher: Bencher<'_, '_>,
        inputs: [Tensor<D>; N],
        f: impl Fn([Tensor<D>; N]) -> Tensor<E>,
    ) {
        bencher.bench_local(|| {
            let y = f(inputs.clone());
            match self.0 {
                Pass::Forward => (Some(y), None),
                Pass::Both => (None, Some(y.sum().backward())),
            }
        });
    }

    /// Like [`Case::bench`], with random activations `[B, T, n C]` as the input.
    fn of_activations(&self, bencher: Bencher<'_, '_>, n: usize, f: impl Fn(Tensor<3>) -> Tensor<3>) {
        let Shape { b, t, c, .. } = self.1;
        self.bench(bencher, [self.random([b, t, n * c])], |[x]| f(x));
    }
}

fn main() {
    divan::main();
}

#[divan::bench(args = cases())]
fn layer_norm(bencher: Bencher<'_, '_>, case: &Case) {
    let weight: Tensor<1> = case.random([case.1.c]);
    case.of_activations(bencher, 1, |x| kernels::layer_norm(x, weight.clone(), None, EPSILON));
}

#[divan::bench(args = cases())]
fn rms_norm(bencher: Bencher<'_, '_>, case: &Case) {
    let weight: Tensor<1> = case.random([case.1.c]);
    case.of_activations(bencher, 1, |x| kernels::rms_norm(x, weight.clone(), EPSILON));
}

#[divan::bench(args = cases())]
fn gelu(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 4, kernels::gelu);
}

#[divan::bench(args = cases())]
fn linear(bencher: Bencher<'_, '_>, case: &Case) {
    projection(bencher, case, MatmulPrecision::F32);
}

#[divan::bench(args = cases())]
fn linear_in_bf16(bencher: Bencher<'_, '_>, case: &Case) {
    projection(bencher, case, MatmulPrecision::Bf16);
}

fn projection(bencher: Bencher<'_, '_>, case: &Case, precision: MatmulPrecision) {
    let weight: Tensor<2> = case.random([case.1.c, 3 * case.1.c]);
    case.of_activations(bencher, 1, |x| kernels::linear(x, weight.clone(), None, precision));
}

/// Five iterations on a square matrix.
#[divan::bench(args = [MatmulPrecision::F32, MatmulPrecision::Bf16])]
fn newton_schulz(bencher: Bencher<'_, '_>, precision: MatmulPrecision) {
    let x = Tensor::<2>::random([384, 384], Distribution::Uniform(-0.1, 0.1), &Device::flex());
    let polynomials = kernels::Polynomials { coefficients: &[[3.4445, -4.7750, 2.0315]; 5], safety: 1.0 };
    let blocks = [kernels::ColumnBlock { width: 384, scale: 1.0 }];
    bencher.bench_local(|| kernels::newton_schulz(x.clone(), &blocks, polynomials, precision));
}

#[divan::bench(args = cases())]
fn mlp_gelu(bencher: Bencher<'_, '_>, case: &Case) {
    mlp(bencher, case, Activation::Gelu, MatmulPrecision::F32);
}

#[divan::bench(args = cases())]
fn mlp_gelu_in_bf16(bencher: Bencher<'_, '_>, case: &Case) {
    mlp(bencher, case, Activation::Gelu, MatmulPrecision::Bf16);
}

#[divan::bench(args = cases())]
fn mlp_swiglu(bencher: Bencher<'_, '_>, case: &Case) {
    mlp(bencher, case, Activation::Swiglu, MatmulPrecision::F32);
}

fn mlp(bencher: Bencher<'_, '_>, case: &Case, activation: Activation, precision: MatmulPrecision) {
    let c = case.1.c;
    let layer = |shape| Layer { weight: case.random(shape), bias: None };
    let mlp = Mlp {
        up: layer([c, 4 * c]),
        gate: activation.is_gated().then(|| layer([c, 4 * c])),
        down: layer([4 * c, c]),
        activation,
        precision,
    };
    case.of_activations(bencher, 1, |x| kernels::mlp::mlp(x, mlp.clone()));
}

#[divan::bench(args = cases())]
fn dropout(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 1, |x| kernels::dropout(x, DROPOUT));
}

#[divan::bench(args = cases())]
fn self_attention(bencher: Bencher<'_, '_>, case: &Case) {
    attention(bencher, case, None, None);
}

#[divan::bench(args = cases())]
fn self_attention_with_dropout(bencher: Bencher<'_, '_>, case: &Case) {
    attention(bencher, case, None, Some(DROPOUT));
}

#[divan::bench(args = cases())]
fn self_attention_in_a_window(bencher: Bencher<'_, '_>, case: &Case) {
    attention(bencher, case, Some(64), None);
}

fn attention(bencher: Bencher<'_, '_>, case: &Case, window: Option<usize>, dropout: Option<Dropout>) {
    let Shape { c, h, .. } = case.1;
    let scale = kernels::attention_scale(c / h);
    let attention = SelfAttention {
        n_heads: h,
        n_kv_heads: h,
        norm: None,
        rotation: None,
        scale,
        softcap: None,
        window,
        dropout,
        lengths: None,
    };
    case.of_activations(bencher, 3, |qkv| kernels::self_attention(qkv, attention.clone()));
}

mod attention_by_length {
    use super::{Bencher, Case, Pass, Shape, attention, kernels, shape};

    /// One sequence with four heads of 32 scalars.
    fn cases() -> impl Iterator<Item = Case> {
        let lengths = [64, 128, 256, 512, 1024, 2048, 4096];
        [Pass::Forward, Pass::Both].into_iter().flat_map(move |pass| lengths.map(|t| Case(pass, shape(1, t, 128, 4))))
    }

    /// Scores, mask, softmax and weighted sum, each materialized in memory, as a probe needs them.
    #[divan::bench(args = cases(), sample_count = 5)]
    fn explicit(bencher: Bencher<'_, '_>, case: &Case) {
        let Shape { t, c, h, .. } = case.1;
        case.of_activations(bencher, 3, |qkv| {
            let unseen = kernels::unseen(0..t, t, None, &qkv.device());
            let [q, k, v] = kernels::split_heads(qkv, h, h);
            let weights = kernels::attention_weights(q, k, Some(unseen), kernels::attention_scale(c / h), None);
            kernels::merge_heads(weights.matmul(v))
        });
    }

    #[divan::bench(args = cases(), sample_count = 5)]
    fn fused(bencher: Bencher<'_, '_>, case: &Case) {
        attention(bencher, case, None, None);
    }
}

#[divan::bench(args = cases())]
fn embed(bencher: Bencher<'_, '_>, case: &Case) {
    let Shape { b, t, c, .. } = case.1;
    let tokens: Tensor<2, Int> = targets(case).reshape([b, t]);
    case.bench(bencher, [case.random([VOCAB_SIZE, c])], |[weight]| kernels::embed(tokens.clone(), weight, None));
}

/// From hidden states, with the weights of the token embedding.
#[divan::bench(args = cases())]
fn cross_entropy(bencher: Bencher<'_, '_>, case: &Case) {
    let Shape { b, t, c, .. } = case.1;
    let output = Output::Tied(case.random([VOCAB_SIZE, c]));
    let targets = targets(case);
    case.bench(bencher, [case.random([b * t, c])], |[hidden]| {
        let (output, targets) = (output.clone(), targets.clone());
        kernels::cross_entropy(hidden, output, targets, None, MatmulPrecision::F32)
    });
}

/// A target token for each position.
fn targets(case: &Case) -> Tensor<1, Int> {
    let Shape { b, t, .. } = case.1;
    let last = i64::try_from(b * t).expect("positions fit 64 bits");
    let size = i64::try_from(VOCAB_SIZE).expect("the vocabulary fits 64 bits");
    Tensor::<1, Int>::arange(0..last, &case.device()).remainder_scalar(size)
}
