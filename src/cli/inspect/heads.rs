//! `tinderbox inspect heads`: scores the behaviour of each head.

use super::prompts::{Measured, about};
use crate::cli::drawn::{Drawn, uncoloured};
use crate::cli::numbers::at_least_one;
use crate::data::batch;
use crate::inspect::{HeadEvidence, N_WINDOWS, ScoredHeads};
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect heads runs/quickstart
  tinderbox inspect heads runs/quickstart --format svg --output heads.svg")]
pub(super) struct Args {
    #[command(flatten)]
    measured: Measured,
    /// Number of windows of the text to read, each with as many tokens as the context holds
    #[arg(long, value_name = "N", default_value_t = N_WINDOWS, value_parser = at_least_one)]
    windows: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (opened, text) = args.measured.open()?;
    let windows = batch::spread_tokens(&text, opened.model.config().context_length, args.windows)?;
    let heads = ScoredHeads::measure(&opened.model, &windows, &|| true)?;
    let evidence = HeadEvidence::measure(&opened.model, &opened.tokenizer, &windows, &|| true)?;
    let mut json = serde_json::to_value(&heads)?;
    json["evidence"] = serde_json::to_value(&evidence)?;
    let drawn = Drawn { json: json.to_string(), sheet: view::scored_heads_sheet(&heads, &evidence) };
    args.measured.output.write("Attention heads", &about(&opened), vec![drawn], uncoloured())
}
