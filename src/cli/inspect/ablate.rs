//! `tinderbox inspect ablate`: measures how much each part contributes to the loss.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::prompts::{Measured, about};
use crate::cli::drawn::{Colors, Drawn};
use crate::cli::numbers::at_least_one;
use crate::cli::print::note;
use crate::data::BatchSource;
use crate::inspect::{Ablation, ModelPart, Removal};
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox inspect ablate runs/quickstart --max-batches 8
  tinderbox inspect ablate runs/quickstart --max-batches 8 --format svg --output ablation.svg")]
pub(super) struct Args {
    #[command(flatten)]
    measured: Measured,
    /// Replacement for a removed part
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Instead::Both)]
    method: Instead,
    /// Number of batches to measure on, spread evenly over the text [default: the whole text]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_batches: Option<usize>,
    #[command(flatten)]
    colors: Colors,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Instead {
    /// Zeros
    Zero,
    /// The mean of its values
    Mean,
    /// Both; ranked by the mean
    Both,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.colors.check(&args.measured.output)?;
    let (opened, text) = args.measured.open()?;
    let methods = args.method.methods();
    let (context_length, batch_size) = (opened.config.model.context_length, opened.config.train.batch_size);
    let batches = || text.spread(context_length, batch_size, args.max_batches.unwrap_or(usize::MAX));
    let n_batches = batches().count();
    let n_parts = ModelPart::writers(&opened.config.model).len();
    let n_losses = 1 + n_parts * methods.len();
    note(format!("measuring {n_losses} losses, each over {n_batches} batches ..."));
    let ablation = Ablation::new(&opened.model, batches, methods)?;
    text.check()?;
    let whole = args.max_batches.is_none();
    let (split, of) = if args.measured.text.is_some() { ("text", "text") } else { ("val", "validation split") };
    let mut document = json!({ "split": split, "whole": whole, "batches": n_batches });
    if let (Value::Object(document), Value::Object(measured)) = (&mut document, serde_json::to_value(&ablation)?) {
        document.extend(measured);
    }
    let measured_on = match whole {
        true => format!("the whole {of}"),
        false => format!("{n_batches} batches, spread over the {of}"),
    };
    let drawn = Drawn { json: serde_json::to_string(&document)?, sheet: view::ablation_sheet(&ablation, &measured_on) };
    args.measured.output.write(
        "Contribution of each part",
        &about(&opened),
        vec![drawn],
        args.colors.style(&args.measured.output.file),
    )
}

impl Instead {
    fn methods(self) -> &'static [Removal] {
        match self {
            Self::Zero => &[Removal::Zero],
            Self::Mean => &[Removal::Mean],
            Self::Both => &[Removal::Mean, Removal::Zero],
        }
    }
}
