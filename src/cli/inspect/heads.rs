//! `tinderbox inspect heads`: what each head mostly does.

use clap::ValueEnum;

use super::output::Output;
use super::prompts::Subject;
use crate::checkpoint::{self, Saved};
use crate::cli::OpenModel;
use crate::cli::table::{Column, table};
use crate::data::Corpus;
use crate::inspect::{Heads, N_WINDOWS, Scores};

/// Measure what each head mostly does with the text of the validation split
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// How many windows of the validation split are looked at, spread evenly over it
    #[arg(long, value_name = "N", default_value_t = N_WINDOWS as u64, value_parser = clap::value_parser!(u64).range(1..))]
    windows: u64,
    /// In which form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A line for each head
    Text,
    /// One object with every score, exact
    Json,
}

/// Measures every head.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check()?;
    let opened = args.subject.open()?;
    let corpus = args.corpus(&opened)?;
    let n_windows = usize::try_from(args.windows).unwrap_or(usize::MAX);
    let heads = Heads::measure(&opened.model, &corpus.val, n_windows)?;
    args.output.write(&match args.format {
        Format::Text => text(&heads),
        Format::Json => format!("{}\n", heads.to_json()),
    })
}

impl Args {
    fn corpus(&self, opened: &OpenModel) -> anyhow::Result<Corpus> {
        let state = Saved::read_state(&checkpoint::locate(&self.subject.run)?.checkpoint)?;
        let config = &opened.config;
        let (tokenizer, text) = (opened.tokenizer.clone(), Some(&*state.text_sha256));
        let context_length = config.model.context_length;
        Ok(Corpus::open_with(
            &config.data,
            tokenizer,
            context_length,
            text,
        )?)
    }
}

fn text(heads: &Heads) -> String {
    let columns = [
        Column::Left("HEAD"),
        Column::Left("MOSTLY"),
        Column::Right("BITS"),
        Column::Right("ENTROPY"),
        Column::Right("UNIFORM"),
        Column::Right("FOCUSED"),
        Column::Right("SELF"),
        Column::Right("PREVIOUS"),
        Column::Right("FIRST"),
        Column::Right("LOCAL"),
        Column::Right("SAME"),
        Column::Right("INDUCTION"),
    ];
    let row = |name: String, mostly: String, scores: &Scores| {
        let number = |(_, score): (&str, Option<f64>)| {
            score.map_or_else(|| "-".to_owned(), |score| format!("{score:.2}"))
        };
        let [a, b, c, d, e, f, g, h, i, j] = scores.named().map(number);
        [name, mostly, a, b, c, d, e, f, g, h, i, j]
    };
    let mut rows = Vec::new();
    for (layer, scores) in heads.scores.iter().enumerate() {
        for (head, scores) in scores.iter().enumerate() {
            rows.push(row(
                format!("{layer}.{head}"),
                scores.kind().to_string(),
                scores,
            ));
        }
    }
    rows.push(row("even".to_owned(), String::new(), &heads.even));
    let repeated = match heads.n_repeated {
        0 => "no room for a sequence that repeats, so nothing of induction".to_owned(),
        n => format!(
            "induction: {n} sequences of {} random tokens, each twice",
            heads.period
        ),
    };
    format!(
        "{}\n{} of {} tokens of the validation split; {repeated}\n\
         even: what a head would score that looks at everything alike\n",
        table(columns, &rows),
        match heads.n_windows {
            1 => "1 window".to_owned(),
            n => format!("{n} windows"),
        },
        heads.window_tokens,
    )
}
