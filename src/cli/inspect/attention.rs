//! `tinderbox inspect attention`: who looks at whom.

use clap::ValueEnum;

use super::color::TextStyle;
use super::output::{Output, json_of};
use super::prompts::{Prompts, Subject};
use crate::inspect::{AttentionView, Selection, capture, render};
use crate::model::probe::Point;

/// Show which tokens look at which, in every layer and head or in one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\"
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --layer 1 --head 2
  tinderbox inspect attention runs/quickstart --prompt \"The bank of\" --format svg --output bank.svg")]
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
}

/// Reads each prompt and shows who looked at whom.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check()?;
    let opened = args.subject.open()?;
    let model = &opened.config.model;
    let selection = Selection::new(args.layer, args.head, model.n_layers, model.n_heads)?;
    let prompts = args.prompts.read(&opened)?;
    let maps = prompts
        .iter()
        .map(|prompt| Ok(capture(&opened.model, prompt, &[Point::Weights])?.attention()));
    let maps = maps.collect::<anyhow::Result<Vec<_>>>()?;
    let view = |(prompt, maps)| AttentionView {
        prompt,
        maps,
        selection: &selection,
    };
    let views: Vec<AttentionView<'_>> = prompts.iter().zip(&maps).map(view).collect();
    args.output.write(&args.render(&views))
}

impl Args {
    fn render(&self, views: &[AttentionView<'_>]) -> String {
        match self.format {
            Format::Text => {
                let (palette, n_columns) = (
                    self.style.palette(self.output.is_file()),
                    self.style.n_columns(),
                );
                let texts = views
                    .iter()
                    .map(|view| render::attention_text(view, palette, n_columns));
                texts.collect::<Vec<_>>().join("\n")
            }
            Format::Json => json_of(views.iter().map(render::attention_json).collect()),
            Format::Svg => render::attention_svg(views),
        }
    }
}
