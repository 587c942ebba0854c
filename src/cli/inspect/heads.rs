//! `tinderbox inspect heads`: scores the behaviour of each head.

use std::path::PathBuf;

use super::about;
use super::output::{Drawn, DrawnOutput};
use crate::cli::Subject;
use crate::cli::numbers::at_least_one;
use crate::cli::paint::n_columns;
use crate::data::batch;
use crate::inspect::{Annotations, HeadEvidence, N_WINDOWS, References, ScoredHeads};
use crate::run::Trained;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect heads runs/quickstart
  tinderbox inspect heads runs/quickstart --format svg --output heads.svg
  tinderbox inspect heads runs/quickstart --annotations data/stories.jsonl")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Read another text: a file, a folder, or - for standard input [default: the run's validation split]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// The number of windows of the text to read, each as many tokens as the context holds
    #[arg(long, value_name = "N", default_value_t = N_WINDOWS, value_parser = at_least_one)]
    windows: usize,
    /// Measure instead whether a head looks at the right noun, in a text with annotated pronouns and names: a file like
    /// data/stories.jsonl, with its text beside it [default: scores of the text]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["windows", "text"])]
    annotations: Option<PathBuf>,
    #[command(flatten)]
    output: DrawnOutput,
}

/// Scores every head and prints the scores.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.file.check()?;
    let opened = args.subject.open()?;
    let drawn = if let Some(path) = &args.annotations {
        let Trained { config, tokenizer, model, .. } = &opened;
        let references = References::measure(
            model,
            tokenizer,
            &Annotations::read(path)?,
            config.data.val_fraction,
            config.train.seed,
        )?;
        Drawn {
            text: view::head_answers(&references, n_columns()),
            json: serde_json::to_string(&references)?,
            sheet: view::head_answers_sheet(&references),
        }
    } else {
        let text = opened.text_or_val(args.text.as_deref())?;
        let windows = batch::spread_tokens(&text, opened.model.config().context_length, args.windows)?;
        let heads = ScoredHeads::measure(&opened.model, &windows)?;
        let evidence = HeadEvidence::measure(&opened.model, &opened.tokenizer, &windows)?;
        let mut json = heads.to_json();
        json["evidence"] = serde_json::to_value(&evidence)?;
        Drawn {
            text: view::scored_heads(&heads, &evidence, n_columns()),
            json: json.to_string(),
            sheet: view::scored_heads_sheet(&heads, &evidence),
        }
    };
    args.output.write("What each head does", &about(&opened), vec![drawn])
}
