//! `tinderbox inspect embeddings`: compares the vectors of one word in several texts.

use super::prompts::{Prompts, about};
use crate::cli::args::Subject;
use crate::cli::drawn::{Drawn, DrawnOutput, uncoloured};
use crate::inspect::Embeddings;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox inspect embeddings runs/quickstart --word bank --prompt \"by the river bank\" --prompt \"at the money bank\"")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    prompts: Prompts,
    /// Word to follow: its last occurrence in each prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    word: String,
    /// Word of the same prompt to compare it with; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    context: Vec<String>,
    /// Show the effect of attention at every token instead of only at the word
    #[arg(long)]
    positions: bool,
    #[command(flatten)]
    output: DrawnOutput,
}

/// Follows the word through the layers and shows how similar its vectors are.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.file.check()?;
    let opened = args.subject.open()?;
    let prompts = args.prompts.read(&opened)?;
    let embeddings = Embeddings::new(&opened.model, &prompts, &args.word, &args.context)?;
    let drawn = Drawn {
        json: serde_json::to_string(&embeddings)?,
        sheet: view::embeddings_sheet(&embeddings, &prompts, args.positions),
    };
    args.output.write("A word in its contexts", &about(&opened), vec![drawn], uncoloured())
}
