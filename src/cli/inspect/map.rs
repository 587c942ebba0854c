//! `tinderbox inspect map`: shows the token embedding in two dimensions.

use std::path::PathBuf;

use super::prompts::about;
use crate::cli::args::Subject;
use crate::cli::drawn::{Drawn, DrawnOutput, uncoloured};
use crate::cli::numbers::within;
use crate::data::BatchSource;
use crate::inspect::EmbeddingMap;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect map runs/quickstart
  tinderbox inspect map runs/quickstart --tokens 400 --format html --output map.html")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Text to count tokens in: a file, a folder, or - for standard input [default: the run's validation split]
    #[arg(long, value_name = "PATH")]
    text: Option<PathBuf>,
    /// Number of tokens to show, most frequent first
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = |typed: &str| within(typed, 3..=1000))]
    tokens: usize,
    #[command(flatten)]
    output: DrawnOutput,
}

/// Maps the most frequent tokens.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.file.check()?;
    let opened = args.subject.open()?;
    let text = opened.text_or_val(args.text.as_deref())?;
    let counts = text.counts(opened.tokenizer.vocab_size());
    text.check()?;
    let map = EmbeddingMap::new(&opened.model, &opened.tokenizer, &counts, args.tokens)?;
    let drawn = Drawn { json: serde_json::to_string(&map)?, sheet: view::embedding_map_sheet(&map) };
    args.output.write("The token embedding", &about(&opened), vec![drawn], uncoloured())
}
