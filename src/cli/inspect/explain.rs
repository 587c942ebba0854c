//! `tinderbox inspect explain`: computes the attention of one token in one head, number by number.

use super::prompts::{Reading, TokenArg, about};
use crate::cli::drawn::{Drawn, uncoloured};
use crate::cli::numbers::count;
use crate::inspect::{Explanation, HeadSelection, head_of_token};
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\"
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\" --layer 1 --head 2 --token k
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\" --format html --output bank.html")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// Layer, counted from 0 [default: that of the head whose largest weight reaches furthest back]
    #[arg(long, value_name = "L", value_parser = count)]
    layer: Option<usize>,
    /// Head, counted from 0 [default: as for --layer]
    #[arg(long, value_name = "H", value_parser = count)]
    head: Option<usize>,
    #[command(flatten)]
    token: TokenArg,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (opened, prompts) = args.reading.open()?;
    let heads = HeadSelection::new(args.layer, args.head, opened.model.config())?;
    let mut pages = Vec::new();
    for prompt in prompts {
        let token = args.token.position(&prompt)?;
        let [layer, head] = head_of_token(&opened.model, &opened.tokenizer, &prompt, &heads, token)?;
        let explanation = Explanation::new(&opened.model, &prompt, [layer, head, token])?;
        pages.push(Drawn {
            json: serde_json::to_string(&explanation)?,
            sheet: view::explanation_sheet(&explanation, &prompt),
        });
    }
    args.reading.output.write("One token in one head, step by step", &about(&opened), pages, uncoloured())
}
