//! `tinderbox inspect`: looks inside a trained model. Each subcommand has one file.

mod ablate;
mod attention;
mod compare;
mod embeddings;
mod explain;
mod heads;
mod lens;
mod map;
pub(super) mod prompts;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect explain runs/quickstart --prompt \"The bank of\" --layer 1 --head 2")]
pub(super) struct Args {
    #[command(subcommand)]
    inspection: Inspection,
}

#[derive(Debug, Subcommand)]
enum Inspection {
    /// Show which tokens attend to which, in all layers and heads or in one
    Attention(attention::Args),
    /// Compute the attention of one token in one head, number by number
    Explain(explain::Args),
    /// Score each head's behaviour on the validation split
    Heads(heads::Args),
    /// Compare the vectors of one word in several texts, layer by layer
    Embeddings(embeddings::Args),
    /// Map the token embedding in two dimensions
    Map(map::Args),
    /// Compare how well two models predict each token of a text
    Compare(compare::Args),
    /// Measure the rise of the loss without each head, attention layer and feed-forward layer
    Ablate(ablate::Args),
    /// Show each layer's prediction, and the contribution of each part to the last one
    Lens(lens::Args),
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.inspection {
        Inspection::Attention(args) => attention::run(args),
        Inspection::Explain(args) => explain::run(args),
        Inspection::Heads(args) => heads::run(args),
        Inspection::Embeddings(args) => embeddings::run(args),
        Inspection::Ablate(args) => ablate::run(args),
        Inspection::Lens(args) => lens::run(args),
        Inspection::Map(args) => map::run(args),
        Inspection::Compare(args) => compare::run(args),
    }
}
