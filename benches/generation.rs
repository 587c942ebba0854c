//! How fast tokens come: one sample, many at once, and the prompt, in every precision.
//!
//!     cargo bench --bench generation -- CONFIG [VOCAB_SIZE] [ROUNDS]
//!
//! The weights are random: their values do not change the time. Every round of a measurement writes until half of
//! the context is full; the best and the median round are shown.

#![allow(clippy::cast_precision_loss, reason = "a benchmark counts little")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tinderbox::config::Config;
use tinderbox::inference::{Engine, Precision, Session};
use tinderbox::model::Gpt;

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MANY: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let path = args
        .first()
        .map_or("configs/shakespeare-gpu.toml", String::as_str);
    let vocab_size: usize = args.get(1).map_or(Ok(65), |n| n.parse())?;
    let rounds: usize = args.get(2).map_or(Ok(5), |n| n.parse())?;
    let config = Config::load(Path::new(path), &[])?.model;
    let gpt = Gpt::new(&config, vocab_size, 1, &burn::tensor::Device::flex());
    println!("{path}, vocabulary {vocab_size}: tokens/s, best and median of {rounds} rounds");
    println!("weights  MB/token   one sample          {MANY} samples          prompt");
    let half = (config.context_length / 2).max(1);
    for precision in Precision::ALL {
        let engine = Arc::new(Engine::new(&gpt, precision));
        let rates = [1, MANY].map(|n| {
            let mut session = Session::new(engine.clone(), n, half);
            rate(rounds, n * half, || {
                (0..n).for_each(|sample| session.clear(sample));
                for i in 0..half {
                    session.step(&vec![Some(token(i, vocab_size)); n]);
                }
            })
        });
        let prompt: Vec<u32> = (0..half).map(|i| token(i, vocab_size)).collect();
        let mut session = Session::new(engine.clone(), 1, half);
        let of_prompt = rate(rounds, half, || {
            session.clear(0);
            session.read(0, &prompt);
        });
        let megabytes = engine.bytes_per_token() as f64 / 1e6;
        print!("{precision:<8} {megabytes:<10.1}");
        for [best, median] in [rates[0], rates[1], of_prompt] {
            print!(" {best:>8.1} {median:>8.1}   ");
        }
        println!();
    }
    Ok(())
}

fn token(i: usize, vocab_size: usize) -> u32 {
    u32::try_from(i * 7 % vocab_size).expect("a small vocabulary")
}

/// Tokens per second of the best and of the median round.
fn rate(rounds: usize, n_tokens: usize, mut round: impl FnMut()) -> [f64; 2] {
    round(); // warm
    let mut seconds: Vec<f64> = (0..rounds)
        .map(|_| {
            let began = Instant::now();
            round();
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    [seconds[0], seconds[rounds / 2]].map(|seconds| n_tokens as f64 / seconds)
}
