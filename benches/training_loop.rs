//! The training loop with its logs and its observer, timed from its start to its last step, before evaluation and
//! checkpoint. Bare steps are timed by `tinderbox bench train CONFIG --own-text`: run both in turn.
//!
//!     cargo bench --bench training_loop -- CONFIG [STEPS] [ROUNDS]

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use tinderbox::config::Config;
use tinderbox::device;
use tinderbox::measure::median;
use tinderbox::train::{Event, Interrupter, Job, Observer, Start, train};

/// As in the program itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Stopwatch {
    steps: usize,
    began: Instant,
    elapsed_s: Sender<f64>,
}

impl Observer for Stopwatch {
    fn observe(&mut self, event: &Event<'_>) {
        match event {
            Event::Started(_) => self.began = Instant::now(),
            Event::Logged(logged) if logged.step == self.steps => {
                self.elapsed_s.send(self.began.elapsed().as_secs_f64()).ok();
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let path = args.first().map_or("configs/quickstart.toml", String::as_str);
    let steps: usize = args.get(1).map_or(Ok(100), |n| n.parse())?;
    let rounds: usize = args.get(2).map_or(Ok(5), |n| n.parse())?;
    let overrides = [
        format!("train.max_steps={steps}"),
        "train.eval_interval=0".to_owned(),
        "train.eval_batches=1".to_owned(),
        "train.checkpoint_interval=0".to_owned(),
        "train.sample_tokens=0".to_owned(),
    ];
    let config = Config::load(Path::new(path), &overrides)?;
    let looped = (0..rounds).map(|_| looped_ms(&config)).collect::<Result<Vec<f64>, _>>()?;
    println!("the whole loop {:.2} ms/step", median(&looped));
    Ok(())
}

fn looped_ms(config: &Config) -> Result<f64, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (elapsed_s, timed) = channel();
    let steps = config.train.max_steps;
    let job = Job {
        config: config.clone(),
        run_dir: dir.path().join("run"),
        start: Start::New,
        from: None,
        device: device::open(&config.train.device.parse()?)?,
    };
    let watch = Stopwatch { steps, began: Instant::now(), elapsed_s };
    train(job, Box::new(watch), &Interrupter::new())?;
    Ok(timed.recv()? * 1e3 / steps as f64)
}
