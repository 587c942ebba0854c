//! What the probes' sites cost a pass that nobody inspects, and one that somebody does.
//!
//!     cargo bench --bench probes
//!
//! Every pass shows its values to a probe at named sites, some tens of them in the quick start; in training and writing
//! that is the empty probe. A probe that looks makes attention compute its weights explicitly.

use std::hint::black_box;

use burn::tensor::{Device, Int, Tensor};
use divan::Bencher;
use tinderbox::model::Gpt;
use tinderbox::model::probe::{NoProbe, Pass, Point, Probe, Site};
use tinderbox::preset::Preset;
use tinderbox_kernels::MatmulPrecision;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VOCAB_SIZE: usize = 75;

fn main() {
    divan::main();
}

/// Looks at every value and changes nothing.
struct Look;

impl Probe for Look {
    fn visit<const D: usize>(&mut self, _: Site, value: Tensor<D>) -> Tensor<D> {
        value
    }
}

/// The quick start's model, and a batch of its training.
fn quickstart(device: &Device) -> (Gpt, Tensor<2, Int>) {
    let config = Preset::named("quickstart").expect("it is shipped").config();
    let model = Gpt::new(&config.model, VOCAB_SIZE, config.train.seed, device);
    let tokens = Tensor::zeros([config.train.batch_size, config.model.context_length], device);
    (model, tokens)
}

#[divan::bench]
fn million_sites(bencher: Bencher) {
    let mut x = Tensor::<3>::zeros([1, 1, 1], &Device::flex());
    bencher.bench_local(|| {
        let mut probe = NoProbe;
        let mut pass = Pass::new(&mut probe, MatmulPrecision::F32, None);
        for block_idx in 0..1_000_000 {
            pass.enter(Some(block_idx));
            x = pass.visit(Point::Residual, black_box(x.clone()));
        }
    });
}

#[divan::bench]
fn training_pass(bencher: Bencher) {
    let (model, tokens) = quickstart(&Device::flex().autodiff());
    bencher.bench_local(|| model.forward(tokens.clone()).mean().backward());
}

#[divan::bench]
fn training_pass_looked_at(bencher: Bencher) {
    let (model, tokens) = quickstart(&Device::flex().autodiff());
    bencher.bench_local(|| model.forward_with(tokens.clone(), &mut Look).mean().backward());
}

#[divan::bench]
fn written_token(bencher: Bencher) {
    let (model, _) = quickstart(&Device::flex());
    let next = || Tensor::zeros([1, 1], &model.device());
    bencher.with_inputs(|| model.kv_cache(1)).bench_local_refs(|cache| {
        model.forward_cached(next(), cache).into_data() // waits for it
    });
}
