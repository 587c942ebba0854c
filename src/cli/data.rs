//! `tinderbox data`: previews records for fine-tuning as a model reads them.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::json;

use super::args::{Mapped, Selected};
use super::drawn::{DrawnOutput, json_of};
use super::finetune::{config_of_records, note_records};
use super::numbers::count;
use super::print::print_json;
use super::{config, paint};
use crate::config::Config;
use crate::data::conversations::Example;
use crate::data::{Corpus, OpenOptions, Records, SplitRecords, in_quotes};
use crate::format::{grouped, without_control};
use crate::inspect::Prompt;
use crate::run;
use crate::tokenizer::Tokenizer;
use crate::view;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tinderbox data preview runs/smol --data my.jsonl")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the first records as the model reads them, and the lengths of all
    Preview(Preview),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox data preview runs/smol --data my.jsonl
  tinderbox data preview runs/smol --data my.jsonl --set finetune.max_tokens=512 --n-shown 10
  tinderbox data preview runs/smol --data my.jsonl --format html --output records.html
  tinderbox data preview runs/smol-my --json

Record tokens that count in the loss are green, or between ⟦ and ⟧ without colours.")]
struct Preview {
    /// Run, or config of a fine-tuning
    #[arg(value_name = "RUN|CONFIG")]
    of: PathBuf,
    /// Records to fine-tune RUN on: a file of JSON Lines, a JSON list, CSV or Parquet, or a folder of such files
    /// [default: the data of the config or run]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    #[command(flatten)]
    mapped: Mapped,
    #[command(flatten)]
    selected: Selected,
    /// Number of records to show
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 3)]
    n_shown: usize,
    /// Override a config key, such as finetune.max_tokens=512; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    output: DrawnOutput,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let Action::Preview(args) = &args.action;
    args.output.file.check()?;
    let (config, tokenizer) = args.open()?;
    if config.finetune.base.is_none() {
        bail!("`{}` has a text, not records\n  hint: name records with --data", args.of.display());
    }
    let corpus = Corpus::open(&config, OpenOptions { tokenizer, ..OpenOptions::default() })?;
    let records = corpus.records.context("a fine-tuning has records")?;
    note_records(&records.summary, &config.generate, &corpus.tokenizer);
    args.show(&records, &corpus.tokenizer)
}

impl Preview {
    /// The config that describes the data, and the tokenizer if a model has one.
    fn open(&self) -> anyhow::Result<(Config, Option<Tokenizer>)> {
        self.selected.check("--data", self.data.as_deref())?;
        let overrides = [self.overrides.clone(), self.mapped.overrides().into_iter().collect()];
        let overrides = [overrides.concat(), self.selected.overrides()].concat();
        let is_file = self.of.is_file() && self.of.extension().is_some_and(|extension| extension == "toml");
        if is_file && self.data.is_none() {
            let config = config::load(&self.of, &overrides, None)?;
            let base = config.finetune.base.as_ref().map(|base| run::locate(base)).transpose()?;
            let tokenizer = base.map(|base| base.run.tokenizer_of_model(&config)).transpose()?;
            return Ok((config, tokenizer));
        }
        let located = run::locate(&self.of)?;
        let config = match &self.data {
            Some(data) => config_of_records(&located, &self.of, data, &overrides)?,
            None if !overrides.is_empty() => bail!("--set needs the records to read\n  hint: name them with --data"),
            None => located.run.config()?,
        };
        let tokenizer = located.run.tokenizer_of_model(&config)?;
        Ok((config, Some(tokenizer)))
    }

    fn show(&self, records: &SplitRecords, tokenizer: &Tokenizer) -> anyhow::Result<()> {
        let Records { used, rows, divided, skipped, cut, tokens, counted_tokens, longest, preferences, .. } =
            records.summary;
        let Records { endless, written, ref left_out, .. } = records.summary;
        let lengths = records.train.lengths().chain(records.val.lengths());
        let lengths @ [shortest, median, p90, most] = quantiles(lengths.collect());
        let share = counted_tokens as f64 / tokens.max(1) as f64;
        let shown: Vec<Example> = records.train.iter().take(self.n_shown).collect();
        let object = |Example { ids, counts, n_cut, .. }: &Example| {
            let pieces: Vec<String> = ids.iter().map(|id| tokenizer.decode(&[*id])).collect();
            json!({ "pieces": pieces, "ids": ids, "counts": counts, "cut_tokens": n_cut })
        };
        let objects = shown.iter().map(|example| {
            let mut shown = object(example);
            if let Some(rejected) = &example.rejected {
                shown["rejected"] = object(rejected);
            }
            shown
        });
        let json = json!({
            "preferences": preferences, "records": used, "rows": rows, "divided": divided, "skipped": skipped, "cut": cut, "tokens": tokens,
            "counted_tokens": counted_tokens, "counted_share": share, "longest": longest,
            "endless": endless.map_or(0, |(n, _)| n), "written": written.map_or(0, |(n, _)| n),
            "left_out": left_out, "shown": objects.collect::<Vec<_>>(),
            "lengths": { "shortest": shortest, "median": median, "p90": p90, "longest": most },
        });
        if self.json {
            return print_json(&json);
        }
        let n_val = records.val.n_records();
        let [from, middle, nine_tenths, to] = lengths.map(|n| grouped(n as u64));
        let packed = match rows < used - n_val {
            true => format!("packed    into {} rows\n", grouped(rows as u64)),
            false => String::new(),
        };
        let unread = match left_out.is_empty() {
            true => String::new(),
            false => format!("unread    {}\n", in_quotes(left_out)),
        };
        let summary = format!(
            "records   {}: {} for training, {} for validation\n\
             tokens    {}, {} count ({:.1} %)\n\
             lengths   from {from} to {to} tokens; the median is {middle}, the 90th percentile {nine_tenths}\n\
             cut       {} records are longer than the limit; the longest has {} tokens\n\
             skipped   {} records without a token that counts\n{packed}{unread}",
            grouped(used as u64),
            grouped((used - n_val) as u64),
            grouped(n_val as u64),
            grouped(tokens),
            grouped(counted_tokens),
            100.0 * share,
            grouped(cut as u64),
            grouped(longest as u64),
            grouped(skipped as u64),
        );
        let (mut text, mut figures) = (vec![summary.clone()], Vec::new());
        let has_colors = !self.output.file.is_given() && paint::has_colors(&io::stdout());
        for (idx, example) in (1..).zip(&shown) {
            let (n, n_counted) = (example.ids.len(), example.n_counted());
            let cut = if example.n_cut > 0 { format!(", {} cut off", example.n_cut) } else { String::new() };
            let marked = |example: &Example| marked(example, tokenizer, has_colors);
            let whole = marked(example);
            let title = format!("record {idx} of the training split: {n} tokens, {n_counted} count{cut}");
            text.push(format!("\n{title}\n{whole}\n"));
            text.extend(example.rejected.as_ref().map(|rejected| format!("rejected:\n{}\n", marked(rejected))));
            let figure =
                |title, example: &Example| (title, Prompt::of_ids(example.ids.clone(), tokenizer), counted(example));
            figures.push(figure(title, example));
            figures.extend(example.rejected.as_ref().map(|it| figure(format!("record {idx}, rejected"), it)));
        }
        let about = self.of.display().to_string();
        let json = json_of(vec![json.to_string()]);
        self.output.write_sheets("Records", &about, &text.concat(), &json, &[view::records_sheet(&summary, &figures)])
    }
}

/// Whether each token counts. No token predicts the first one.
fn counted(example: &Example) -> Vec<bool> {
    example.counts.iter().enumerate().map(|(at, counts)| *counts && at > 0).collect()
}

/// The text of a record, with the tokens that count in green or in brackets.
fn marked(example: &Example, tokenizer: &Tokenizer, has_colors: bool) -> String {
    let ids = &example.ids;
    let counts = counted(example);
    let mut text = String::new();
    let mut at = 0;
    for part in counts.chunk_by(|a, b| a == b) {
        let words = tokenizer.decode(&ids[at..at + part.len()]);
        let words = without_control(&words);
        text += &match (part[0], has_colors) {
            (false, _) => words.into_owned(),
            (true, true) => paint::good(&words),
            (true, false) => ["⟦", &words, "⟧"].concat(),
        };
        at += part.len();
    }
    text.trim_end_matches('\n').to_owned()
}

/// The shortest length, the median, the 90th percentile, and the longest.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length of a list")]
fn quantiles(mut lengths: Vec<usize>) -> [usize; 4] {
    lengths.sort_unstable();
    let last = lengths.len().saturating_sub(1);
    let at = |fraction: f64| lengths.get((fraction * last as f64).round() as usize).copied().unwrap_or(0);
    [0.0, 0.5, 0.9, 1.0].map(at)
}
