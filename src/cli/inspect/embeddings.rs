//! `tinderbox inspect embeddings`: compares the vectors of one word in several texts.

use super::prompts::{Reading, about};
use crate::cli::drawn::{Drawn, uncoloured};
use crate::cli::exit::Misuse;
use crate::inspect::Embeddings;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox inspect embeddings runs/quickstart --word bank --prompt \"by the river bank\" --prompt \"at the money bank\"")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// Word to follow: its last occurrence in each prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    word: String,
    /// Word of the same prompt to compare it with; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    context: Vec<String>,
    /// Show the effect of attention at every token instead of only at the word
    #[arg(long)]
    positions: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if args.positions && args.reading.output.is_json() {
        let hint = "hint: leave out --positions: JSON has the effect of attention at every token";
        return Err(Misuse(format!("--positions chooses what is drawn, and --format json has all\n  {hint}")).into());
    }
    let (opened, prompts) = args.reading.open()?;
    let embeddings = Embeddings::new(&opened.model, &prompts, &args.word, &args.context)?;
    let drawn = Drawn {
        json: serde_json::to_string(&embeddings)?,
        sheet: view::embeddings_sheet(&embeddings, &prompts, args.positions),
    };
    args.reading.output.write("A word in its contexts", &about(&opened), vec![drawn], uncoloured())
}
