//! Trains from a config file, then writes with the trained model.
//!
//! `cargo run --release --example train_and_write -- configs/quickstart.toml runs/example`

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use tinderbox::config::Config;
use tinderbox::device;
use tinderbox::generate::Writer;
use tinderbox::run::Trained;
use tinderbox::train::{self, Event, Interrupter, Job, Observer, Start};

struct PrintLosses;

impl Observer for PrintLosses {
    fn observe(&mut self, event: &Event<'_>) {
        if let Event::Evaluated(losses) = event {
            eprintln!("step {}: validation loss {:.4}", losses.step, losses.val_loss);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [config, run_dir] = &paths[..] else {
        return Err("give a config and a run directory".into());
    };
    train_and_write(Path::new(config), Path::new(run_dir), &mut io::stdout())
}

pub(crate) fn train_and_write(path: &Path, run_dir: &Path, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let config = Config::load(path, &[])?;
    let device = device::open(&config.train.device.parse()?)?;
    let job = Job { config, run_dir: run_dir.to_owned(), start: Start::New, from: None, device };
    train::train(job, Box::new(PrintLosses), &Interrupter::new())?;

    let Trained { model, tokenizer, config, .. } = Trained::open(run_dir, None)?; // its best checkpoint
    let prompt = &config.train.sample_prompt;
    write!(out, "{prompt}")?;
    for piece in Writer::new(&model, &tokenizer, &config.generate, prompt, 0)? {
        write!(out, "{}", piece?)?;
    }
    Ok(writeln!(out)?)
}
