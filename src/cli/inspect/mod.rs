//! `tinderbox inspect`: looking inside a trained model, one file for each way to look.

mod attention;
mod color;
mod explain;
mod heads;
mod output;
mod prompts;

use clap::Subcommand;

/// Look inside a trained model
#[derive(Debug, clap::Args)]
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
}

/// Looks in the way that was asked for.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.look {
        Look::Attention(args) => attention::run(args),
        Look::Explain(args) => explain::run(args),
        Look::Heads(args) => heads::run(args),
    }
}
