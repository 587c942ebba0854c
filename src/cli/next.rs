//! The commands that are printed as next steps: they can be pasted, and work with the run that they name.

use std::path::Path;

use clap::ValueEnum;

use super::args::program;
use super::print::note;
use crate::finetune::ChatFormat;
use crate::format::shell_word;
use crate::interop::{Family, gguf};
use crate::run::{Checkpoint, Located, RunDir, locate};
use crate::tokenizer::ChatRenderer;

/// Prints commands, each on a line.
pub(super) fn next(commands: &[String]) {
    note(format!("\nNext:\n    {}", commands.join("\n    ")));
}

/// The purpose of a command, and the command: a chat with a run that has a chat template, and text of any other.
pub(super) fn talk(run: &Path) -> (&'static str, String) {
    let (program, word) = (program(), shell_word(run));
    if has_template(run) {
        return ("chat with it", format!("{program} chat {word}"));
    }
    let prompt = prompt(run).map_or_else(String::new, |prompt| format!(" --prompt {}", shell_word(prompt)));
    ("generate text with it", format!("{program} generate {word}{prompt}"))
}

/// The command that exports a run, to the format of most programs if that can hold its model.
pub(super) fn export(run: &Path) -> String {
    let is_gguf = || -> anyhow::Result<bool> {
        let Located { run, checkpoint } = locate(run)?;
        let (config, state) = (run.config()?, Checkpoint::read_state(&checkpoint)?);
        let family = Family::of_run(&config.model, &state)?;
        Ok(gguf::can_hold(family, &config.model, &run.tokenizer_of_model(&config)?))
    };
    let format = if is_gguf().unwrap_or(false) { "gguf" } else { "hf" };
    format!("{} export {} --to {format}", program(), shell_word(run))
}

/// Whether a run has a chat template that can be used.
pub(super) fn has_template(run: &Path) -> bool {
    let tokenizer = RunDir::open(run).and_then(|run| run.tokenizer());
    tokenizer.ok().and_then(|tokenizer| ChatRenderer::of(&tokenizer)).is_some_and(|template| template.parse().is_ok())
}

/// The chat template that suits the tokenizer of a run without one.
pub(super) fn template(run: &Path) -> String {
    let tokenizer = RunDir::open(run).and_then(|run| run.tokenizer());
    let format = tokenizer.map_or(ChatFormat::Chatml, |tokenizer| ChatFormat::suiting(&tokenizer));
    format.to_possible_value().expect("no template is hidden").get_name().to_owned()
}

/// A prompt on one line that the run's tokenizer knows: its samples', or the start of any story.
fn prompt(run: &Path) -> Option<String> {
    let run = RunDir::open(run).ok()?;
    let (tokenizer, config) = (run.tokenizer().ok()?, run.config().ok()?);
    let is_known = |prompt: &String| {
        let is_shown = !prompt.trim().is_empty() && !prompt.contains(char::is_control);
        is_shown && tokenizer.encode_prompt(prompt).is_ok()
    };
    [config.train.sample_prompt, "Once upon a time".to_owned()].into_iter().find(is_known)
}
