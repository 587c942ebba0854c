//! Trains a small GPT on a text file and generates text with it: a training loop of your own, made of the library's
//! parts.
//!
//! `cargo run --release --example train_and_generate -- data/stories.txt 500 "The "`

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tinderbox::config::Config;
use tinderbox::data::{Split, Tokens};
use tinderbox::device::{self, DeviceSpec};
use tinderbox::generate::Generator;
use tinderbox::model::Gpt;
use tinderbox::tokenizer::Tokenizer;
use tinderbox::train::{Trainer, evaluate};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text, n_steps, prompt] = &arguments[..] else {
        return Err("give a text file, a number of steps and a prompt".into());
    };
    run(Path::new(text), n_steps.parse()?, prompt, &mut io::stdout())
}

pub(crate) fn run(path: &Path, n_steps: usize, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(path)?;
    let tokenizer = Tokenizer::char_from_alphabet(text.chars())?;
    let ids = tokenizer.encode(&text)?;
    let (train, val) = ids.split_at(ids.len() * 9 / 10);
    let [train, val] = [train, val].map(|ids| Split::from(Tokens::from_ids(ids, ids.len() as u64)));

    // Keys that are left out have their defaults; `docs/config.md` lists all of them.
    let toml = format!(
        "data.path = {:?}
         model = {{ context_length = 64, d_model = 128, n_layers = 4, n_heads = 4, position = \"rope\" }}
         train = {{ batch_size = 12, max_steps = {n_steps} }}
         optimizer.learning_rate = 2e-3
         generate = {{ temperature = 0.8, max_new_tokens = 200 }}",
        path.to_string_lossy()
    );
    let config = Config::from_toml(&toml, Path::new("this example"), &[])?;
    let device = device::open(&DeviceSpec::Cpu)?.device.autodiff();
    let model = Gpt::new(&config.model, tokenizer.vocab_size(), config.train.seed, &device);
    let mut trainer = Trainer::new(model, &config, train);
    for step in 1..=n_steps {
        let result = trainer.step(); // draws a batch, computes loss and gradients, updates the weights
        if step % 50 == 0 {
            eprintln!("step {step}: loss {:.3}", result.loss.into_scalar::<f32>());
        }
    }

    let model = trainer.evaluated(); // without gradients
    let loss = evaluate::full(&model, &val, config.train.batch_size)?;
    eprintln!("validation loss: {:.3} nats per token", loss.nats_per_token);
    write!(out, "{prompt}")?;
    for piece in Generator::new(&model, &tokenizer, &config.generate, prompt, 0)? {
        write!(out, "{}", piece?)?;
    }
    Ok(writeln!(out)?)
}
