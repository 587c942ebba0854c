//! Generates text with the model crate alone: neither the trainer nor the server is compiled.
//!
//! `cargo run --release -p tinderbox-model --features flex --example generate_text -- runs/quickstart "The "`

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tinderbox_model::config::{GenerateConfig, ModelConfig};
use tinderbox_model::device::{self, DeviceSpec};
use tinderbox_model::generate::Generator;
use tinderbox_model::tokenizer::Tokenizer;
use tinderbox_model::{Gpt, parameters, tensor_file};

/// The sections of a run's `config.toml` that generation needs.
#[derive(serde::Deserialize)]
struct Config {
    model: ModelConfig,
    generate: GenerateConfig,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [run, prompt] = &arguments[..] else { return Err("give a run directory and a prompt".into()) };
    generate(Path::new(run), prompt, &mut io::stdout())
}

pub(crate) fn generate(run: &Path, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let Config { model, generate: settings } = toml::from_str(&fs::read_to_string(run.join("config.toml"))?)?;
    let tokenizer = Tokenizer::from_file(&run.join("tokenizer.json"))?.padded_to(model.vocab_size)?;
    let best = fs::read_to_string(run.join("best"))?; // names a checkpoint
    let mut tensors = tensor_file::open(&run.join("checkpoints").join(best.trim()).join("model.safetensors"))?;
    let device = device::open(&DeviceSpec::Cpu)?.device;
    let model = Gpt::zeros(&model, tokenizer.vocab_size(), &device);
    let model = parameters::assign(model, |name, _| tensors.remove(name)?.read().ok())?;

    write!(out, "{prompt}")?;
    for piece in Generator::new(&model, &tokenizer, &settings, prompt, 0)? {
        write!(out, "{}", piece?)?;
        out.flush()?; // readers see each token at once
    }
    Ok(writeln!(out)?)
}
