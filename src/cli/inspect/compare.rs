//! `tinderbox inspect compare`: reads one text with two models.

use std::path::PathBuf;

use serde_json::json;

use super::prompts::{Prompts, place};
use crate::cli::args::Subject;
use crate::cli::drawn::{Colors, Drawn, DrawnOutput};
use crate::inspect::{self, Prompt};
use crate::run::Trained;
use crate::view::{self, ReadText};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect compare runs/quickstart/checkpoints/step-000250 runs/quickstart --prompt \"The bank of the river\"
  tinderbox inspect compare runs/one runs/other --prompt-file story.txt --format html --output story.html")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Run to compare it with, named as RUN is
    other: PathBuf,
    #[command(flatten)]
    prompts: Prompts,
    #[command(flatten)]
    colors: Colors,
    #[command(flatten)]
    output: DrawnOutput,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.colors.check(&args.output)?;
    args.output.file.check()?;
    let models = [args.subject.open()?, Trained::open(&args.other, args.subject.device.as_ref())?];
    let [ours, theirs] = models.each_ref().map(|opened| args.prompts.read(opened));
    let names = models.each_ref().map(place);
    let mut pages = Vec::new();
    for prompts in ours?.iter().zip(&theirs?) {
        let [one, other] = [(0, prompts.0), (1, prompts.1)].map(|(at, prompt)| read(&models[at], &names[at], prompt));
        let reads = [one?, other?];
        let sheet = view::compared_sheet(&reads);
        let json = reads.each_ref().map(|read| {
            json!({ "model": read.name, "tokens": read.prompt.texts, "ids": read.prompt.ids, "bits": read.bits })
        });
        pages.push(Drawn { json: json!({ "models": json }).to_string(), sheet });
    }
    args.output.write("One text under two models", &names.join(" and "), pages, args.colors.style(&args.output.file))
}

fn read<'a>(opened: &Trained, name: &str, prompt: &'a Prompt) -> anyhow::Result<ReadText<'a>> {
    let bits = inspect::bits(&opened.model, &opened.tokenizer, prompt)?;
    Ok(ReadText { name: name.to_owned(), prompt, bits })
}
