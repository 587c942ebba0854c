//! Generates text with a sampling rule of your own: the likeliest token that is not among the last few.
//!
//! `cargo run --release --example own_sampler -- runs/quickstart "The "`

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use tinderbox::generate::{ChooseToken, Generator};
use tinderbox::run::Trained;

/// The number of latest tokens that may not be repeated.
const FORBIDDEN: usize = 4;

#[derive(Debug)]
struct NeverAgain;

impl ChooseToken for NeverAgain {
    fn choose(&mut self, logits: &[f32], text: &[u32]) -> Option<u32> {
        let last = &text[text.len().saturating_sub(FORBIDDEN)..];
        let allowed = (0..).zip(logits).filter(|(token, _)| !last.contains(token));
        allowed.max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [run, prompt] = &arguments[..] else { return Err("give a run and a prompt".into()) };
    generate(Path::new(run), prompt, &mut io::stdout())
}

pub(crate) fn generate(run: &Path, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let Trained { model, tokenizer, config, .. } = Trained::open(run, None)?;
    let generator = Generator::new(&model, &tokenizer, &config.generate, prompt, 0)?;
    write!(out, "{prompt}")?;
    for piece in generator.with_sampler(NeverAgain) {
        write!(out, "{}", piece?)?;
        out.flush()?; // every token as it is made
    }
    Ok(writeln!(out)?)
}
