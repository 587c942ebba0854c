//! `tinderbox inspect attention`: who looks at whom.

use clap::ValueEnum;

use super::output::{Output, TextStyle, json_of};
use super::{Prompts, Subject};
use crate::cli::note;
use crate::draw;
use crate::inspect::{AttentionDetails, AttentionView, HeadSelection, Prompt, capture};
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

/// Reads each prompt and shows who looked at whom.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check()?;
    let opened = args.subject.open()?;
    let model = &opened.config.model;
    let selection = HeadSelection::new(args.layer, args.head, model.n_layers, model.n_heads)?;
    let prompts = args.prompts.read(&opened)?;
    args.output.write(&args.render(&opened, &prompts, &selection)?)
}

/// The page of all prompts. Says on standard error where it is large.
fn page(opened: &Trained, prompts: &[Prompt], selection: &HeadSelection) -> anyhow::Result<String> {
    let config = &opened.config.model;
    let sizes = prompts.iter().map(|prompt| draw::attention_mib(config, selection, prompt.len()));
    let mib = sizes.sum();
    draw::check_size(mib)?;
    if mib >= LARGE_MIB {
        note(format!(
            "note: the page holds {mib} MiB of numbers, and a browser opens it slowly: --layer and --head choose less"
        ));
    }
    let details =
        prompts.iter().map(|prompt| AttentionDetails::new(&opened.model, prompt, selection));
    let details = details.collect::<Result<Vec<_>, _>>()?;
    Ok(draw::attention_html(&details))
}

/// What `draw` makes of each prompt's weights.
fn drawn(
    opened: &Trained,
    prompts: &[Prompt],
    selection: &HeadSelection,
    draw: impl FnOnce(&[AttentionView<'_>]) -> String,
) -> anyhow::Result<String> {
    let maps = prompts
        .iter()
        .map(|prompt| Ok(capture(&opened.model, prompt, &[Point::Weights])?.attention()));
    let maps = maps.collect::<anyhow::Result<Vec<_>>>()?;
    let view = |(prompt, maps)| AttentionView { prompt, maps, selection };
    let views: Vec<AttentionView<'_>> = prompts.iter().zip(&maps).map(view).collect();
    Ok(draw(&views))
}

impl Args {
    fn render(
        &self,
        opened: &Trained,
        prompts: &[Prompt],
        selection: &HeadSelection,
    ) -> anyhow::Result<String> {
        match self.format {
            Format::Text => drawn(opened, prompts, selection, |views| self.text(views)),
            Format::Json => drawn(opened, prompts, selection, |views| {
                json_of(views.iter().map(draw::attention_json).collect())
            }),
            Format::Svg => drawn(opened, prompts, selection, draw::attention_svg),
            Format::Html => page(opened, prompts, selection),
        }
    }

    fn text(&self, views: &[AttentionView<'_>]) -> String {
        let palette = self.style.palette(self.output.is_file());
        let n_columns = self.style.n_columns();
        let texts = views.iter().map(|view| draw::attention_text(view, palette, n_columns));
        texts.collect::<Vec<_>>().join("\n")
    }
}
