//! `tinderbox data`: previews training data as a model reads it.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use serde_json::json;

use super::finetune::config_of_records;
use super::numbers::count;
use super::print::{folded_if_known, print_json, print_styled};
use super::{config, paint};
use crate::config::Config;
use crate::data::conversations::Example;
use crate::data::{Corpus, OpenOptions, Records, Split, SplitRecords};
use crate::format::{grouped, without_control};
use crate::preset::Preset;
use crate::run;
use crate::tokenizer::Tokenizer;

/// Longer documents are shown up to this many tokens.
const MOST_SHOWN: usize = 200;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox data preview runs/smol --data my.jsonl
  tinderbox data preview quickstart")]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the first records or documents as the model reads them, and the lengths of all
    Preview(Preview),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox data preview runs/smol --data my.jsonl
  tinderbox data preview runs/smol --data my.jsonl --set finetune.max_tokens=512 --n-shown 10
  tinderbox data preview quickstart --json

Record tokens that count in the loss are green, or between ⟦ and ⟧ without colours.")]
struct Preview {
    /// Config file, preset, or run directory
    #[arg(value_name = "RUN|CONFIG")]
    of: PathBuf,
    /// Records to fine-tune RUN on: a JSON Lines file, or a folder of such files [default: the data of the config or
    /// run]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Number of records or texts to show
    #[arg(long, value_name = "N", value_parser = count, default_value_t = 3)]
    n_shown: usize,
    /// Override a config key, such as finetune.max_tokens=512; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let Action::Preview(args) = &args.action;
    let (config, tokenizer) = args.open()?;
    let corpus = Corpus::open(&config, OpenOptions { tokenizer, ..OpenOptions::default() })?;
    match &corpus.records {
        Some(records) => args.show_records(records, &corpus.tokenizer),
        None => args.show_texts(&corpus, config.model.context_length),
    }
}

impl Preview {
    /// The config that describes the data, and the tokenizer if a model has one.
    fn open(&self) -> anyhow::Result<(Config, Option<Tokenizer>)> {
        let is_file = self.of.is_file() && self.of.extension().is_some_and(|extension| extension == "toml");
        let is_preset = !self.of.exists() && Preset::named(&self.of.to_string_lossy()).is_some();
        if (is_file || is_preset) && self.data.is_none() {
            let config = config::load(&self.of, &self.overrides, None)?;
            config::provide_stories(&config)?;
            let base = config.finetune.base.as_ref().map(|base| run::locate(base)).transpose()?;
            let tokenizer = base.map(|base| base.run.tokenizer_of_model(&config)).transpose()?;
            return Ok((config, tokenizer));
        }
        let located = run::locate(&self.of)?;
        let config = match &self.data {
            Some(data) => config_of_records(&located, &self.of, data, &self.overrides)?,
            None => located.run.config()?,
        };
        let tokenizer = located.run.tokenizer_of_model(&config)?;
        Ok((config, Some(tokenizer)))
    }

    fn show_records(&self, records: &SplitRecords, tokenizer: &Tokenizer) -> anyhow::Result<()> {
        let Records { used, rows, skipped, cut, tokens, counted_tokens, longest, preferences } = records.summary;
        let all = || records.train.iter().chain(records.val.iter());
        let lengths = Lengths::of(all().map(|example| example.ids.len()).collect());
        let share = counted_tokens as f64 / tokens.max(1) as f64;
        let shown: Vec<&Example> = records.train.iter().take(self.n_shown).collect();
        if self.json {
            let object = |Example { ids, counts, n_cut, .. }: &Example| {
                let pieces: Vec<String> = ids.iter().map(|id| tokenizer.decode(&[*id])).collect();
                json!({ "pieces": pieces, "ids": ids, "counts": counts, "cut_tokens": n_cut })
            };
            let shown = shown.iter().map(|example| {
                let mut shown = object(example);
                if let Some(rejected) = &example.rejected {
                    shown["rejected"] = object(rejected);
                }
                shown
            });
            return print_json(&json!({
                "preferences": preferences, "records": used, "rows": rows, "skipped": skipped, "cut": cut, "tokens": tokens,
                "counted_tokens": counted_tokens, "counted_share": share, "longest": longest, "lengths": lengths.json(),
                "shown": shown.collect::<Vec<_>>(),
            }));
        }
        let n_val = records.val.iter().count();
        let mut text = format!(
            "records   {}: {} for training, {} for validation\n\
             tokens    {}, {} count ({:.1} %)\n\
             lengths   {}\n\
             cut       {} records are longer than the limit; the longest has {} tokens\n\
             skipped   {} records without a token that counts\n",
            grouped(used as u64),
            grouped((used - n_val) as u64),
            grouped(n_val as u64),
            grouped(tokens),
            grouped(counted_tokens),
            100.0 * share,
            lengths.text(),
            grouped(cut as u64),
            grouped(longest as u64),
            grouped(skipped as u64),
        );
        if rows < used - n_val {
            writeln!(text, "packed    into {} rows", grouped(rows as u64)).expect("strings take any text");
        }
        let has_colors = paint::has_colors(&io::stdout());
        for (idx, example) in (1..).zip(shown) {
            let (n, n_counted) = (example.ids.len(), example.n_counted());
            write!(text, "\nrecord {idx} of the training split: {n} tokens, {n_counted} count")
                .expect("strings take any text");
            if example.n_cut > 0 {
                write!(text, ", {} cut off", example.n_cut).expect("strings take any text");
            }
            write!(text, "\n{}\n", marked(example, tokenizer, has_colors)).expect("strings take any text");
            if let Some(rejected) = &example.rejected {
                write!(text, "rejected:\n{}\n", marked(rejected, tokenizer, has_colors))
                    .expect("strings take any text");
            }
        }
        print_styled(&folded_if_known(&text))
    }

    fn show_texts(&self, corpus: &Corpus, context_length: usize) -> anyhow::Result<()> {
        let end = corpus.tokenizer.end_of_text();
        let documents = documents(&corpus.train, end, self.n_shown);
        let n_long = documents.lengths.iter().filter(|n| **n > context_length).count();
        let n = documents.lengths.len();
        let lengths = Lengths::of(documents.lengths);
        let shown: Vec<String> = documents.first.iter().map(|ids| corpus.tokenizer.decode(ids)).collect();
        if self.json {
            return print_json(&json!({
                "train_tokens": corpus.train.len(), "val_tokens": corpus.val.len(), "documents": n,
                "marked_ends": end.is_some(), "lengths": lengths.json(), "longer_than_context": n_long,
                "context_length": context_length, "shown": shown,
            }));
        }
        let mut text = String::new();
        for source in &corpus.sources {
            writeln!(
                text,
                "{}: {} tokens for training, {} for validation, {:.0} % of the windows",
                source.path.display(),
                grouped(source.train_tokens as u64),
                grouped(source.val_tokens as u64),
                100.0 * source.fraction
            )
            .expect("strings take any text");
        }
        let what =
            if end.is_some() { "documents of the training split" } else { "texts without marks between documents" };
        write!(
            text,
            "documents {} {what}\n\
             lengths   {}\n\
             cut       {} of them are longer than the context of {} tokens and span several windows\n",
            grouped(n as u64),
            lengths.text(),
            grouped(n_long as u64),
            grouped(context_length as u64),
        )
        .expect("strings take any text");
        for (idx, (ids, document)) in (1..).zip(documents.first.iter().zip(shown)) {
            let more = if ids.len() == MOST_SHOWN { ", its start" } else { "" };
            write!(text, "\ndocument {idx} of the training split{more}\n{}\n", document.trim_end())
                .expect("strings take any text");
        }
        print_styled(&folded_if_known(&without_control(&text)))
    }
}

/// The text of a record, with the tokens that count in green or in brackets.
fn marked(example: &Example, tokenizer: &Tokenizer, has_colors: bool) -> String {
    let Example { ids, counts, .. } = example;
    // No token predicts the first one.
    let counts: Vec<bool> = counts.iter().enumerate().map(|(at, counts)| *counts && at > 0).collect();
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

/// The length of every document of a split, and the start of the first few.
struct Documents {
    lengths: Vec<usize>,
    first: Vec<Vec<u32>>,
}

/// The documents of a split, separated by the token `end`; without it, each text is one document.
fn documents(split: &Split, end: Option<u32>, n_shown: usize) -> Documents {
    let mut documents = Documents { lengths: Vec::new(), first: Vec::new() };
    let mut buffer = vec![0; 1 << 16];
    for tokens in split.texts() {
        let (mut length, mut start) = (0, 0);
        while start < tokens.len() {
            let ids = &mut buffer[..(tokens.len() - start).min(1 << 16)];
            tokens.read(start, ids);
            start += ids.len();
            for id in ids.iter().map(|id| id.cast_unsigned()) {
                let idx = documents.lengths.len();
                if idx < n_shown && length < MOST_SHOWN {
                    documents.first.resize(idx + 1, Vec::new());
                    documents.first[idx].push(id);
                }
                length += 1;
                if Some(id) == end {
                    documents.lengths.push(std::mem::take(&mut length));
                }
            }
        }
        if length > 0 {
            documents.lengths.push(length);
        }
    }
    documents
}

/// Lengths in tokens, sorted.
struct Lengths(Vec<usize>);

impl Lengths {
    fn of(mut lengths: Vec<usize>) -> Self {
        lengths.sort_unstable();
        Self(lengths)
    }

    /// The quantile at `fraction`, from 0 to 1.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length of a list")]
    fn at(&self, fraction: f64) -> usize {
        let last = self.0.len().saturating_sub(1);
        self.0.get((fraction * last as f64).round() as usize).copied().unwrap_or(0)
    }

    fn text(&self) -> String {
        let [shortest, median, most, longest] = [0.0, 0.5, 0.9, 1.0].map(|at| grouped(self.at(at) as u64));
        format!("from {shortest} to {longest} tokens; the median is {median}, the 90th percentile {most}")
    }

    fn json(&self) -> serde_json::Value {
        json!({ "shortest": self.at(0.0), "median": self.at(0.5), "p90": self.at(0.9), "longest": self.at(1.0) })
    }
}
