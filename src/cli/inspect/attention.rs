//! `tinderbox inspect attention`: who looks at whom.

use clap::ValueEnum;

use super::output::{Output, TextStyle, json_of};
use super::{Prompts, Subject};
use crate::cli::note;
use crate::draw;
use crate::inspect::{AttentionDetails, AttentionMaps, AttentionView, HeadSelection, Prompt, capture};
use crate::model::probe::Point;
use crate::run::Trained;

/// Show which tokens look at which, in every layer and head or in one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --layer 1 --head 2
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --format svg --output bank.svg
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --format html --output bank.html")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    prompts: Prompts,
    /// Only this layer, counted from 0 [default: every one]
    #[arg(long, value_name = "L", allow_negative_numbers = true)]
    layer: Option<usize>,
    /// Only this head, counted from 0 [default: every one]
    #[arg(long, value_name = "H", allow_negative_numbers = true)]
    head: Option<usize>,
    /// In which form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    style: TextStyle,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A map of characters or colours; one head with the tokens' names and whom each looks at most
    Text,
    /// {"tokens": [T], "weights": [L][H][T][T]}, exact; of several prompts an array of these
    Json,
    /// A picture
    Svg,
    /// A page to explore in a browser: which token looks at which, and why, in every layer and head
    Html,
}

/// From how large on a page is slow to open, MiB.
const LARGE_MIB: usize = 32;

/// Reads each prompt and draws its weights.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check()?;
    let opened = args.subject.open()?;
    let model = &opened.config.model;
    let selection = HeadSelection::new(args.layer, args.head, model.n_layers, model.n_heads)?;
    let prompts = args.prompts.read(&opened)?;
    let maps = || -> anyhow::Result<Vec<AttentionMaps>> {
        let read = |prompt| Ok(capture(&opened.model, prompt, &[Point::Weights])?.attention());
        prompts.iter().map(read).collect()
    };
    let view = |(prompt, maps)| AttentionView { prompt, maps, selection: &selection };
    let views = |maps| -> Vec<AttentionView<'_>> { prompts.iter().zip(maps).map(view).collect() };
    args.output.write(&match args.format {
        Format::Text => {
            let palette = args.style.palette(args.output.is_file());
            let n_columns = args.style.n_columns();
            let text = |view: &_| draw::attention_text(view, palette, n_columns);
            views(&maps()?).iter().map(text).collect::<Vec<_>>().join("\n")
        }
        Format::Json => json_of(views(&maps()?).iter().map(draw::attention_json).collect()),
        Format::Svg => draw::attention_svg(&views(&maps()?)),
        Format::Html => page(&opened, &prompts, &selection)?,
    })
}

/// The page of all prompts, with a note on standard error if it is large.
fn page(opened: &Trained, prompts: &[Prompt], selection: &HeadSelection) -> anyhow::Result<String> {
    let config = &opened.config.model;
    let mib = |prompt: &Prompt| draw::attention_mib(config, selection, prompt.len());
    let mib = prompts.iter().map(mib).sum();
    draw::check_size(mib)?;
    if mib >= LARGE_MIB {
        note(format!(
            "note: the page holds {mib} MiB of numbers, and a browser opens it slowly: --layer and --head choose less"
        ));
    }
    let details = |prompt| AttentionDetails::new(&opened.model, prompt, selection);
    Ok(draw::attention_html(&prompts.iter().map(details).collect::<Result<Vec<_>, _>>()?))
}
