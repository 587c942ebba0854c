//! The model, prompts and text of `inspect`, a token in a prompt, and the line about the run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::module::Module;

use crate::cli::args::{Selected, Subject};
use crate::cli::drawn::DrawnOutput;
use crate::cli::print::note_cut_prompt;
use crate::data::Split;
use crate::format::{counted, grouped};
use crate::inspect::{InspectError, Prompt};
use crate::run::Trained;

/// The name of the run, and the step.
pub(in crate::cli) fn place(opened: &Trained) -> String {
    let checkpoint = &opened.checkpoint;
    let name = |path: Option<&Path>| path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let step = name(Some(checkpoint)).and_then(|name| name.strip_prefix("step-")?.parse().ok());
    let run = name(checkpoint.ancestors().nth(2).and_then(|run| run.canonicalize().ok()).as_deref());
    run.into_iter().chain(step.map(|step| format!("step {}", grouped(step)))).collect::<Vec<_>>().join(" · ")
}

/// One line about the run, the step and the model.
pub(in crate::cli) fn about(opened: &Trained) -> String {
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

/// The prompts.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Prompts {
    /// Prompt; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// File with the prompt [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl Prompts {
    /// Tokenizes the prompts, and notes on standard error if the model reads only the end of one.
    pub(super) fn read(&self, opened: &Trained) -> anyhow::Result<Vec<Prompt>> {
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

/// A model, the prompts that it reads, and the output.
#[derive(Debug, clap::Args)]
pub(super) struct Reading {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    prompts: Prompts,
    #[command(flatten)]
    pub output: DrawnOutput,
}

impl Reading {
    /// Checks the output file, opens the model and tokenizes the prompts.
    pub(super) fn open(&self) -> anyhow::Result<(Trained, Vec<Prompt>)> {
        self.output.file.check()?;
        let opened = self.subject.open()?;
        let prompts = self.prompts.read(&opened)?;
        Ok((opened, prompts))
    }
}

/// A model, the text that it is measured on, and the output.
#[derive(Debug, clap::Args)]
pub(super) struct Measured {
    #[command(flatten)]
    pub subject: Subject,
    /// Text to measure on: a file, a folder, or - for standard input [default: the run's validation split]
    #[arg(long, value_name = "PATH")]
    pub text: Option<PathBuf>,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    pub output: DrawnOutput,
}

impl Measured {
    /// Checks the output file, opens the model and encodes the text.
    pub(super) fn open(&self) -> anyhow::Result<(Trained, Split)> {
        self.selected.check("--text", self.text.as_deref())?;
        self.output.file.check()?;
        let mut opened = self.subject.open()?;
        self.selected.apply(&mut opened.config.data);
        let text = opened.text_or_val(self.text.as_deref())?;
        Ok((opened, text))
    }
}

/// A token of a prompt.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArg {
    /// Token: its position, counted from 0, or a piece of the prompt that ends with it [default: the last token]
    #[arg(long, value_name = "N|TEXT", allow_hyphen_values = true)]
    token: Option<String>,
}

impl TokenArg {
    pub(super) fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// The position of the token, which may be past the prompt's end.
    pub(super) fn position(&self, prompt: &Prompt) -> Result<usize, InspectError> {
        let Some(token) = &self.token else { return Ok(prompt.len() - 1) };
        if let Ok(position) = token.parse() {
            return Ok(position);
        }
        let found = prompt.position_of(token);
        found.ok_or_else(|| InspectError::NotInPrompt(token.clone()))
    }
}
