//! The commands that are printed as next steps: they can be pasted, and work with the run that they name.

use std::path::Path;

use super::args::program;
use super::print::note;
use crate::format::shell_word;
use crate::interop::Family;
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

/// The command that exports a run, to the format of most programs if that has the family of its model.
pub(super) fn export(run: &Path) -> String {
    let family = || -> anyhow::Result<_> {
        let Located { run, checkpoint } = locate(run)?;
        Ok(Family::of_run(&run.config()?.model, &Checkpoint::read_state(&checkpoint)?)?)
    };
    let format = if family().is_ok_and(Family::is_in_llama_cpp) { "gguf" } else { "hf" };
    format!("{} export {} --to {format}", program(), shell_word(run))
}

/// Whether a run has a chat template that can be used.
pub(super) fn has_template(run: &Path) -> bool {
    let tokenizer = RunDir::open(run).and_then(|run| run.tokenizer());
    tokenizer.ok().and_then(|tokenizer| ChatRenderer::of(&tokenizer)).is_some_and(|template| template.parse().is_ok())
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
