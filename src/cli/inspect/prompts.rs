//! What a model is given to read, for every command that looks inside one.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::cli::note;
use crate::data::{Corpus, OpenOptions, Split};
use crate::device::DeviceSpec;
use crate::inspect::{InspectError, Prompt};
use crate::run::{self, OpenError, Saved, Trained};

/// The model.
#[derive(Debug, clap::Args)]
pub(super) struct Subject {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    pub(super) run: PathBuf,
    /// What to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

impl Subject {
    pub(super) fn open(&self) -> Result<Trained, OpenError> {
        Trained::open(&self.run, self.device.as_ref())
    }

    /// The part of the run's text that it was not trained on.
    pub(super) fn validation_split(&self, opened: &Trained) -> anyhow::Result<Split> {
        let state = Saved::read_state(&run::locate(&self.run)?.checkpoint)?;
        let corpus = Corpus::open(
            &opened.config.data,
            opened.tokenizer.clone(),
            opened.config.model.context_length,
            OpenOptions::earlier(&state.text_sha256),
        )?;
        Ok(corpus.val)
    }
}

/// The texts.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Prompts {
    /// A text for the model to read; may be repeated, and each is shown
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// A file with the text [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl Prompts {
    /// The texts as the model reads them. Says on standard error where that is only the end of one.
    pub(super) fn read(&self, opened: &Trained) -> anyhow::Result<Vec<Prompt>> {
        let mut texts = self.prompt.clone();
        if let Some(path) = &self.prompt_file {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read the prompt `{}`", path.display()))?;
            texts.push(text);
        }
        let context_length = opened.config.model.context_length;
        let mut prompts = Vec::new();
        for text in &texts {
            let prompt = Prompt::read(text, &opened.tokenizer, context_length)?;
            if prompt.n_dropped > 0 {
                note(format!(
                    "note: the prompt has {} tokens and the context of the model holds {context_length}: \
                     only the last {} are read",
                    prompt.n_dropped + prompt.len(),
                    prompt.len(),
                ));
            }
            prompts.push(prompt);
        }
        Ok(prompts)
    }
}

/// The token that is looked at.
#[derive(Debug, clap::Args)]
pub(super) struct Token {
    /// Which token: a position, counted from 0, or a text, whose last token in the prompt is meant [default: the last]
    #[arg(long, value_name = "N|TEXT", allow_hyphen_values = true)]
    token: Option<String>,
}

impl Token {
    pub(super) fn is_given(&self) -> bool {
        self.token.is_some()
    }

    /// Its position in a prompt; that it is within the prompt is for others to check.
    pub(super) fn position(&self, prompt: &Prompt) -> Result<usize, InspectError> {
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
