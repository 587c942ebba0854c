//! `tinderbox inspect heads`: what each head mostly does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::output::Output;
use super::{Format, Subject};
use crate::draw::table::{Column, table};
use crate::inspect::{Annotations, HeadAnswer, HeadScores, N_WINDOWS, Question, References, ScoredHeads};
use crate::run::Trained;

/// Measure what each head mostly does with the text of the validation split
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox inspect heads runs/quickstart
  tinderbox inspect heads runs/quickstart --annotations data/stories.jsonl")]
pub(super) struct Args {
    #[command(flatten)]
    subject: Subject,
    /// How many windows of the validation split are read, each of as many tokens as the model sees
    #[arg(long, value_name = "N", default_value_t = N_WINDOWS as u64, value_parser = clap::value_parser!(u64).range(1..))]
    windows: u64,
    /// Ask instead whether a head looks at the right noun, in a text whose pronouns and names are annotated: a file
    /// like data/stories.jsonl, with its text beside it [default: scores of the validation split]
    #[arg(long, value_name = "FILE", conflicts_with = "windows")]
    annotations: Option<PathBuf>,
    /// In which form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    output: Output,
}

/// Measures every head.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check()?;
    let opened = args.subject.open()?;
    if let Some(path) = &args.annotations {
        return args.write_references(path, &opened);
    }
    let val = opened.corpus()?.val;
    let n_windows = usize::try_from(args.windows).unwrap_or(usize::MAX);
    let heads = ScoredHeads::measure(&opened.model, &val, n_windows)?;
    args.output.write(&match args.format {
        Format::Text => text(&heads),
        Format::Json => format!("{}\n", heads.to_json()),
    })
}

impl Args {
    fn write_references(&self, path: &Path, opened: &Trained) -> anyhow::Result<()> {
        let Trained { config, tokenizer, model, .. } = opened;
        let annotations = Annotations::read(path)?;
        let references = References::measure(model, config, tokenizer, &annotations)?;
        self.output.write(&match self.format {
            Format::Text => references_text(&references),
            Format::Json => serde_json::to_string(&references)? + "\n",
        })
    }
}

fn text(heads: &ScoredHeads) -> String {
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
    let row = |name: String, mostly: String, scores: &HeadScores| {
        let number =
            |(_, score): (&str, Option<f64>)| score.map_or_else(|| "-".to_owned(), |score| format!("{score:.2}"));
        let [a, b, c, d, e, f, g, h, i, j] = scores.named().map(number);
        [name, mostly, a, b, c, d, e, f, g, h, i, j]
    };
    let mut rows = Vec::new();
    for (layer, scores) in heads.scores.iter().enumerate() {
        for (head, scores) in scores.iter().enumerate() {
            rows.push(row(format!("{layer}.{head}"), scores.kind().to_string(), scores));
        }
    }
    rows.push(row("even".to_owned(), String::new(), &heads.even));
    let repeated = match heads.n_repeated {
        0 => "no room for a sequence that repeats, so nothing of induction".to_owned(),
        n => format!("induction: {n} sequences of {} random tokens, each twice", heads.period),
    };
    format!(
        "{}\n{} of {} tokens of the validation split\n{repeated}\n\
         even: what a head would score that looks at everything alike\n",
        table(columns, &rows),
        counted(heads.n_windows, "window", "windows"),
        heads.window_tokens,
    )
}

fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// How many heads of each question are shown.
const SHOWN: usize = 3;

fn references_text(references: &References) -> String {
    let mut text = format!(
        "{} of the validation split; the model sees {} tokens\n",
        counted(references.stories, "story", "stories"),
        references.context_length
    );
    for asked in &references.questions {
        let what = match asked.question {
            Question::Pronoun => "she, her, he, him: whom it means, or the last of the other gender",
            Question::It => "it: the noun that is meant, or the other, before anything has decided",
            Question::ItDecided => "it, from the end of its sentence, where that is decided",
            Question::Name => "a name that comes again: what followed the last time, or in another name",
        };
        let columns = [
            Column::Left("HEAD"),
            Column::Right("RIGHT"),
            Column::Right("OTHER"),
            Column::Right("PICKS RIGHT"),
            Column::Right("UNTRAINED: RIGHT"),
            Column::Right("OTHER"),
            Column::Right("PICKS RIGHT"),
        ];
        let row = |[layer, head]: [usize; 2]| {
            let cells = |answer: HeadAnswer| {
                [
                    format!("{:.3}", answer.right),
                    format!("{:.3}", answer.other),
                    format!("{:.1} %", 100.0 * answer.accuracy),
                ]
            };
            let [a, b, c] = cells(asked.trained.heads[layer][head]);
            let [d, e, f] = cells(asked.untrained.heads[layer][head]);
            let is_chosen = |chosen: [usize; 2]| chosen == [layer, head];
            let mark = match (is_chosen(asked.trained.best), is_chosen(asked.untrained.best)) {
                (true, _) => " best",
                (false, true) => " best untrained",
                (false, false) => "",
            };
            [format!("{layer}.{head}{mark}"), a, b, c, d, e, f]
        };
        let mut shown = vec![asked.trained.best];
        for place in ranked(&asked.trained.heads) {
            if shown.len() < SHOWN && !shown.contains(&place) {
                shown.push(place);
            }
        }
        if !shown.contains(&asked.untrained.best) {
            shown.push(asked.untrained.best);
        }
        let rows: Vec<_> = shown.into_iter().map(row).collect();
        write!(
            text,
            "\n{what}\n{} of {} cases; without looking: either 50.0 %, the nearer {:.1} %, the longer {:.1} %\n{}",
            asked.cases,
            asked.found,
            100.0 * asked.nearer,
            100.0 * asked.longer,
            table(columns, &rows)
        )
        .expect("a string takes any text");
    }
    text.push_str(
        "\nbest: of all heads, chosen in stories of the training split; the figures are of the validation split\n",
    );
    text
}

/// The heads as layer and head, the one that is right most often first.
fn ranked(heads: &[Vec<HeadAnswer>]) -> Vec<[usize; 2]> {
    let places = heads.iter().enumerate();
    let mut places: Vec<[usize; 2]> =
        places.flat_map(|(layer, heads)| (0..heads.len()).map(move |head| [layer, head])).collect();
    places.sort_by(|&[a, b], &[c, d]| heads[c][d].accuracy.total_cmp(&heads[a][b].accuracy));
    places
}
