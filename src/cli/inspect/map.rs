//! `tinderbox inspect map`: shows the token embedding in two dimensions.

use super::prompts::{Measured, about};
use crate::cli::drawn::{Drawn, uncoloured};
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
    measured: Measured,
    /// Number of tokens to show, most frequent first
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = |typed: &str| within(typed, 3..=1000))]
    tokens: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.measured.subject.check_embedding()?;
    let (opened, text) = args.measured.open()?;
    let counts = text.counts(opened.tokenizer.vocab_size());
    text.check()?;
    let map = EmbeddingMap::new(&opened.model, &opened.tokenizer, &counts, args.tokens)?;
    let drawn = Drawn { json: serde_json::to_string(&map)?, sheet: view::embedding_map_sheet(&map) };
    args.measured.output.write("The token embedding", &about(&opened), vec![drawn], uncoloured())
}
