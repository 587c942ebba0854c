//! What probes cost a pass that nobody inspects.
//!
//!     cargo bench --bench probes -- [CONFIG] [ROUNDS]
//!
//! A pass shows what it computes to a probe at each named site. In training and writing that is the empty probe, which
//! returns what it is shown. Here are counted the sites of a pass, timed a visit of the empty probe by itself, and a
//! training step's and a written token's passes: so much of them is visiting. For comparison follows a probe that
//! looks at everything and changes nothing, for which attention computes its weights in the open. Rounds of all of
//! them are made in turn.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use burn::tensor::{Int, Tensor, TensorData};
use tinderbox::config::Config;
use tinderbox::data::Tokens;
use tinderbox::device;
use tinderbox::measure::{Times, ms_since};
use tinderbox::model::Gpt;
use tinderbox::model::probe::{NoProbe, Pass, Point, Probe, Site};
use tinderbox_kernels::MatmulPrecision;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VOCAB_SIZE: usize = 65;
/// Visits that are timed at once: one takes nanoseconds.
const VISITS: usize = 1_000_000;

/// Counts what it is shown and lets it pass.
#[derive(Default)]
struct LookOn {
    sites: usize,
}

impl Probe for LookOn {
    fn visit<const D: usize>(&mut self, _: Site, value: Tensor<D>) -> Tensor<D> {
        self.sites += 1;
        value
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let path = args.first().map_or("configs/quickstart.toml", String::as_str);
    let rounds: usize = args.get(1).map_or(Ok(20), |n| n.parse())?;
    let config = Config::load(Path::new(path), &[])?;
    let device = device::open(&config.train.device.parse()?)?.device;
    let model = |device| Gpt::new(&config.model, VOCAB_SIZE, config.train.seed, device);
    let (frozen, learning) = (model(&device), model(&device.clone().autodiff()));
    let (b, t) = (config.train.batch_size, config.model.context_length);

    let batch = |b: usize, t: usize, gpt: &Gpt| {
        let mut ids = vec![0; b * t];
        Tokens::made_up(b * t, VOCAB_SIZE).read(0, &mut ids);
        Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t]), &gpt.device())
    };
    let tokens = batch(b, t, &learning);
    let learn = |logits: Tensor<3>| logits.mean().backward();
    let mut look_on = LookOn::default();
    learn(learning.forward_with(tokens.clone(), &mut look_on));
    let sites = look_on.sites;

    let mut visiting = Vec::new();
    let (mut training, mut looked_at) = (Vec::new(), Vec::new());
    let (mut reading, mut writing) = (Vec::new(), Vec::new());
    let prompt = batch(1, t - 1, &frozen);
    let next = batch(1, 1, &frozen);
    for _ in 0..=rounds {
        visiting.push(timed_ms(|| visits(&device)));
        training.push(timed_ms(|| learn(learning.forward(tokens.clone()))));
        looked_at.push(timed_ms(|| {
            learn(learning.forward_with(tokens.clone(), &mut LookOn::default()))
        }));
        let mut cache = frozen.kv_cache(1);
        reading.push(timed_ms(|| frozen.forward_cached(prompt.clone(), &mut cache)));
        writing.push(timed_ms(|| frozen.forward_cached(next.clone(), &mut cache).into_data()));
    }
    // The first round warms up.
    let of = |times: &[f64]| Times::of(&times[1..]);
    let visit_ns = of(&visiting).median_ms * 1e6 / VISITS as f64;
    println!("a visit of the empty probe   {visit_ns:.2} ns; a pass has at most {sites} of them");
    for (name, times) in [
        ("a training pass, both ways", &training),
        ("the same, looked at", &looked_at),
        ("a prompt of the context", &reading),
        ("a written token", &writing),
    ] {
        let times = of(times);
        let share = sites as f64 * visit_ns * 1e-6 / times.median_ms;
        println!(
            "{name:<28} {:.3} ms (fastest {:.3}, {} rounds); visits are {:.5} % of it",
            times.median_ms,
            times.fastest_ms,
            times.rounds,
            share * 100.0
        );
    }
    Ok(())
}

/// The empty probe is shown a tensor again and again.
fn visits(device: &burn::tensor::Device) -> Tensor<3> {
    let mut x = Tensor::<3>::zeros([1, 1, 1], device);
    let mut probe = NoProbe;
    let mut pass = Pass::new(&mut probe, MatmulPrecision::F32, None);
    for block_idx in 0..VISITS {
        pass.enter(Some(block_idx));
        x = pass.visit(Point::Residual, black_box(x));
    }
    x
}

fn timed_ms<T>(f: impl FnOnce() -> T) -> f64 {
    let began = Instant::now();
    black_box(f());
    ms_since(began)
}
