//! `tinderbox inspect`: looking inside a trained model, one file for each way to look.

mod ablate;
mod attention;
mod embeddings;
mod explain;
mod heads;
mod lens;
mod output;
mod prompts;

use clap::Subcommand;

/// Look inside a trained model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\" --layer 1 --head 2")]
pub(super) struct Args {
    #[command(subcommand)]
    look: Look,
}

#[derive(Debug, Subcommand)]
enum Look {
    /// Show which tokens look at which, in every layer and head or in one
    Attention(attention::Args),
    /// Follow one token through one head, number by number
    Explain(explain::Args),
    /// Measure what each head mostly does with the text of the validation split
    Heads(heads::Args),
    /// Follow one word through several texts: how alike its vectors are, layer by layer
    Embeddings(embeddings::Args),
    /// Measure how much the loss rises without each head, attention layer and feed-forward layer
    Ablate(ablate::Args),
    /// Show what each layer would have predicted, and which part speaks for it
    Lens(lens::Args),
}

/// Looks in the way that was asked for.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.look {
        Look::Attention(args) => attention::run(args),
        Look::Explain(args) => explain::run(args),
        Look::Heads(args) => heads::run(args),
        Look::Embeddings(args) => embeddings::run(args),
        Look::Ablate(args) => ablate::run(args),
        Look::Lens(args) => lens::run(args),
    }
}
