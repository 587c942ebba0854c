//! `tinderbox inspect attention`: shows the attention weights of prompts.

use super::prompts::{Reading, about};
use crate::cli::drawn::{DrawnFormat, DrawnOutput, TextStyle, json_of};
use crate::cli::numbers::count;
use crate::cli::print::note;
use crate::config::ModelConfig;
use crate::inspect::{HeadSelection, InspectError, Prompt, PromptAttention, PromptDetails};
use crate::run::Trained;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --layer 1 --head 2
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --format svg --output bank.svg
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --format html --output bank.html")]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// Only this layer, counted from 0 [default: all]
    #[arg(long, value_name = "L", value_parser = count)]
    layer: Option<usize>,
    /// Only this head, counted from 0 [default: all]
    #[arg(long, value_name = "H", value_parser = count)]
    head: Option<usize>,
    #[command(flatten)]
    style: TextStyle,
}

/// Pages of this many MiB take seconds to open.
const LARGE_MIB: usize = 128;

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.style.check(&args.reading.output)?;
    let (opened, prompts) = args.reading.open()?;
    let selection = HeadSelection::new(args.layer, args.head, &opened.config.model)?;
    let DrawnOutput { format, file } = &args.reading.output;
    let read = || -> Result<Vec<PromptAttention>, InspectError> {
        prompts.iter().map(|prompt| PromptAttention::new(&opened.model, prompt, &selection, &[])).collect()
    };
    match format {
        DrawnFormat::Text => {
            let palette = args.style.colors.palette(file.is_given());
            let n_columns = args.style.n_columns();
            let text = |attention: &_| view::attention_text(attention, palette, n_columns);
            file.write_styled(&read()?.iter().map(text).collect::<Vec<_>>().join("\n"))
        }
        DrawnFormat::Json => file.write(&json_of(read()?.iter().map(view::attention_json).collect())),
        DrawnFormat::Svg => file.write(&view::attention_svg(&read()?, &about(&opened))),
        DrawnFormat::Html => {
            check_size(&opened.config.model, &prompts, &selection)?;
            let Trained { model, tokenizer, .. } = &opened;
            let details = prompts.iter().map(|prompt| PromptDetails::new(model, tokenizer, prompt, &selection));
            file.write(&view::attention_html(&details.collect::<Result<Vec<_>, _>>()?, &about(&opened)))
        }
    }
}

/// Checks the total size of the page for all prompts, and prints a note to standard error if it is large.
fn check_size(config: &ModelConfig, prompts: &[Prompt], selection: &HeadSelection) -> Result<(), InspectError> {
    let mib = |prompt: &Prompt| view::attention_mib(config, selection, prompt.len());
    let mib = prompts.iter().map(mib).sum();
    view::check_size(mib)?;
    if mib >= LARGE_MIB {
        note(format!(
            "note: the page holds up to {mib} MiB of numbers and takes seconds to open; --layer and --head reduce it"
        ));
    }
    Ok(())
}
