//! `tinderbox inspect`: looks inside a trained model. Each subcommand has one file; this one has their common
//! arguments.

mod ablate;
mod attention;
mod compare;
mod embeddings;
mod explain;
mod heads;
mod lens;
mod map;
pub(super) mod output;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::module::Module;
use clap::Subcommand;

use crate::cli::note_cut_prompt;
use crate::format::{counted, grouped};
use crate::inspect::{InspectError, Prompt};
use crate::run::Trained;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\" --layer 1 --head 2")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show which tokens look at which, in every layer and head or in one
    Attention(attention::Args),
    /// Follow one token through one head, number by number
    Explain(explain::Args),
    /// Score what each head mostly does on the validation split
    Heads(heads::Args),
    /// Compare the vectors of one word in several texts, layer by layer
    Embeddings(embeddings::Args),
    /// Show the token embedding as a map: tokens with similar vectors near each other
    Map(map::Args),
    /// Read one text with two models, and show which expects which token better
    Compare(compare::Args),
    /// Measure how much the loss rises without each head, attention layer and feed-forward layer
    Ablate(ablate::Args),
    /// Show the prediction of each layer, and the contribution of each part to it
    Lens(lens::Args),
}

/// Runs the subcommand.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Attention(args) => attention::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Heads(args) => heads::run(args),
        Command::Embeddings(args) => embeddings::run(args),
        Command::Ablate(args) => ablate::run(args),
        Command::Lens(args) => lens::run(args),
        Command::Map(args) => map::run(args),
        Command::Compare(args) => compare::run(args),
    }
}

/// The name of the run, and the step.
pub(super) fn place(opened: &Trained) -> String {
    let checkpoint = &opened.checkpoint;
    let name = |path: Option<&Path>| path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let step = name(Some(checkpoint)).and_then(|name| name.strip_prefix("step-")?.parse().ok());
    let run = name(checkpoint.ancestors().nth(2).and_then(|run| run.canonicalize().ok()).as_deref());
    run.into_iter().chain(step.map(|step| format!("step {}", grouped(step)))).collect::<Vec<_>>().join(" · ")
}

/// One line about the run, the step and the model.
pub(super) fn about(opened: &Trained) -> String {
    let Trained { config, model, .. } = opened;
    let parts = [
        Some(place(opened)).filter(|place| !place.is_empty()),
        Some(format!(
            "{} of {}",
            counted(config.model.n_layers as u64, "layer"),
            counted(config.model.n_heads as u64, "head")
        )),
        Some(format!("{} parameters", grouped(model.num_params() as u64))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// The texts.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Prompts {
    /// A text for the model to read; may be repeated, and each is shown
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// A file with the text [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl Prompts {
    /// Tokenizes the texts, with a note on standard error for a text of which the model reads only the end.
    fn read(&self, opened: &Trained) -> anyhow::Result<Vec<Prompt>> {
        let mut texts = self.prompt.clone();
        if let Some(path) = &self.prompt_file {
            let text = fs::read_to_string(path);
            texts.push(text.with_context(|| format!("cannot read the prompt `{}`", path.display()))?);
        }
        let context_length = opened.config.model.context_length;
        let mut prompts = Vec::new();
        for text in &texts {
            let prompt = Prompt::read(text, &opened.tokenizer, context_length)?;
            if prompt.n_dropped > 0 {
                note_cut_prompt(prompt.len(), prompt.n_dropped);
            }
            prompts.push(prompt);
        }
        Ok(prompts)
    }
}

/// The token of a prompt.
#[derive(Debug, clap::Args)]
struct Token {
    /// The token: a position, counted from 0, or a text in the prompt, meaning its last token [default: the last]
    #[arg(long, value_name = "N|TEXT", allow_hyphen_values = true)]
    token: Option<String>,
}

impl Token {
    fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// The position of the token in a prompt, which may be past the prompt's end.
    fn position(&self, prompt: &Prompt) -> Result<usize, InspectError> {
        let Some(token) = &self.token else {
            return Ok(prompt.len() - 1);
        };
        if let Ok(position) = token.parse() {
            return Ok(position);
        }
        let found = prompt.position_of(token);
        found.ok_or_else(|| InspectError::NotInPrompt(token.clone()))
    }
}
