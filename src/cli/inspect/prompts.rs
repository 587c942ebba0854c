//! What a model is given to read, for every command that looks inside one.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::cli::{OpenModel, note, open_model};
use crate::device::DeviceSpec;
use crate::inspect::Prompt;

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
    pub(super) fn open(&self) -> anyhow::Result<OpenModel> {
        open_model(&self.run, self.device.as_ref())
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
    pub(super) fn read(&self, opened: &OpenModel) -> anyhow::Result<Vec<Prompt>> {
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
