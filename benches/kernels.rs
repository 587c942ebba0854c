//! Each kernel by itself on the CPU, in the shapes of three models' activations: forward alone, and with the backward
//! pass that follows. Beside the times, divan counts what is allocated.
//!
//!     cargo bench --bench kernels
//!     cargo bench --bench kernels -- causal_attention --sample-count 500
//!
//! The shapes are those of nanoGPT's CPU run (12 windows of 64 tokens, 128 wide), of its GPU run with 4 windows, and
//! of GPT-2 small with one window of 256.

use std::fmt;

use burn::tensor::{Device, Distribution, Int, Tensor};
use divan::Bencher;
use tinderbox::device;
use tinderbox::kernels::{self, DropoutKey};

/// As in the program itself, and counted.
#[global_allocator]
static ALLOCATOR: divan::AllocProfiler<mimalloc::MiMalloc> =
    divan::AllocProfiler::new(mimalloc::MiMalloc);

const SITE: u64 = 1;
const KEY: DropoutKey = DropoutKey {
    seed: 1,
    step: 2,
    micro_step: 0,
};
const EPSILON: f64 = 1e-5;

/// `b` windows of `t` tokens through a model `c` wide with heads of `c / h`.
#[derive(Clone, Copy)]
struct Shape {
    b: usize,
    t: usize,
    c: usize,
    h: usize,
}

const SHAPES: [Shape; 3] = [
    shape(12, 64, 128, 4),
    shape(4, 256, 384, 6),
    shape(1, 256, 768, 12),
];

const fn shape(b: usize, t: usize, c: usize, h: usize) -> Shape {
    Shape { b, t, c, h }
}

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Both,
}

/// What one line of the output is about.
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
        let cpu = device::open(&device::DeviceSpec::Cpu).expect("a CPU is always there");
        match self.0 {
            Pass::Forward => cpu.device,
            Pass::Both => cpu.device.autodiff(),
        }
    }

    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let x = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &self.device());
        match self.0 {
            Pass::Forward => x,
            Pass::Both => x.require_grad(),
        }
    }

    /// Times `f` of `inputs`; the backward pass is that of its sum.
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

    /// As [`Case::bench`], of activations `[B, T, n C]`.
    fn of_activations(
        &self,
        bencher: Bencher<'_, '_>,
        n: usize,
        f: impl Fn(Tensor<3>) -> Tensor<3>,
    ) {
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
    case.of_activations(bencher, 1, |x| {
        kernels::layer_norm(x, weight.clone(), None, EPSILON)
    });
}

#[divan::bench(args = cases())]
fn rms_norm(bencher: Bencher<'_, '_>, case: &Case) {
    let weight: Tensor<1> = case.random([case.1.c]);
    case.of_activations(bencher, 1, |x| {
        kernels::rms_norm(x, weight.clone(), EPSILON)
    });
}

#[divan::bench(args = cases())]
fn gelu(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 4, kernels::gelu);
}

#[divan::bench(args = cases())]
fn silu(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 4, kernels::silu);
}

#[divan::bench(args = cases())]
fn relu_squared(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 4, kernels::relu_squared);
}

#[divan::bench(args = cases())]
fn dropout(bencher: Bencher<'_, '_>, case: &Case) {
    case.of_activations(bencher, 1, |x| kernels::dropout(x, 0.1, KEY, SITE));
}

#[divan::bench(args = cases())]
fn causal_attention(bencher: Bencher<'_, '_>, case: &Case) {
    let Shape { b, t, c, h } = case.1;
    let inputs = [(); 3].map(|()| case.random([b, h, t, c / h]));
    case.bench(bencher, inputs, |[q, k, v]| {
        kernels::causal_attention(q, k, v, None)
    });
}

#[divan::bench(args = cases())]
fn causal_attention_with_dropout(bencher: Bencher<'_, '_>, case: &Case) {
    let Shape { b, t, c, h } = case.1;
    let inputs = [(); 3].map(|()| case.random([b, h, t, c / h]));
    case.bench(bencher, inputs, |[q, k, v]| {
        kernels::causal_attention(q, k, v, Some((0.1, KEY, SITE)))
    });
}

/// Logits of a vocabulary of 65 characters.
#[divan::bench(args = cases())]
fn cross_entropy(bencher: Bencher<'_, '_>, case: &Case) {
    let Shape { b, t, .. } = case.1;
    let last = i64::try_from(b * t).expect("a few hundred");
    let targets = Tensor::<1, Int>::arange(0..last, &case.device()).remainder_scalar(65);
    case.bench(bencher, [case.random([b * t, 65])], |[logits]| {
        kernels::cross_entropy(logits, targets.clone())
    });
}
