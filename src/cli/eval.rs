//! `tinderbox eval`: measures how well a trained model predicts a text.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use serde_json::json;

use super::args::{Mapped, Selected, Subject};
use super::print::{print, print_json};
use super::weights::Formats;
use crate::config::Config;
use crate::data::conversations::{self, SplitRecords};
use crate::data::{self, BatchSource, DataError};
use crate::generate::LanguageModel;
use crate::generate::engine::Precision;
use crate::run::{OpenError, Trained};
use crate::train::evaluate;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox eval runs/quickstart
  tinderbox eval runs/quickstart/last --text other.txt --json
  tinderbox eval runs/smol-my --data held-out.jsonl
  tinderbox eval runs/quickstart --weights int8 --device cpu")]
pub(super) struct Args {
    /// Split of the run's text to measure
    #[arg(long, value_enum, default_value_t = Split::Val)]
    split: Split,
    /// Text to measure: a file, a folder, or - for standard input [default: the run's text, see --split]
    #[arg(long, value_name = "PATH", conflicts_with = "split")]
    text: Option<PathBuf>,
    /// Records to measure the answers of, as for `finetune`: a file of JSON Lines, a JSON list, CSV or Parquet, or a folder
    /// of such files [default: those of a fine-tuned run, otherwise a text, see --text]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["split", "text", "weights", "activations"])]
    data: Option<PathBuf>,
    #[command(flatten)]
    mapped: Mapped,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    formats: Formats,
    #[command(flatten)]
    subject: Subject,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// A part of a run's text.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Split {
    Train,
    Val,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.selected.check("--text or --data", args.text.as_deref().or(args.data.as_deref()))?;
    let mut opened = args.subject.open()?;
    args.selected.apply(&mut opened.config.data);
    if let Some(path) = &args.data {
        return on_records(args, path, &opened);
    }
    let config = &opened.config;
    let split = match args.split {
        Split::Train => "train",
        Split::Val => "val",
    };
    let (name, tokens) = if let Some(path) = &args.text {
        ("text", data::open_text(path, &config.data, &opened.tokenizer)?)
    } else {
        let corpus = opened.corpus().map_err(|error| changed_text(error, args, split))?;
        if let Some(SplitRecords { train, val, summary }) = corpus.records {
            if !matches!(args.formats.precision()?, Precision::F32) {
                bail!(
                    "the text of `{}` is records, which --weights does not measure\n  hint: --text FILE",
                    args.subject.run.display()
                );
            }
            let examples = if matches!(args.split, Split::Train) { train } else { val };
            return print_records(args, &opened, &examples, [examples.n_records(), summary.skipped]);
        }
        (split, if matches!(args.split, Split::Train) { corpus.train } else { corpus.val })
    };
    let loss = match args.formats.precision()? {
        // On any device, computed like the losses during training.
        Precision::F32 => {
            evaluate::full(&opened.model, &tokens, config.train.batch_size).context("the device failed")?
        }
        _ => match args.formats.convert(opened.model, &opened.device.name)? {
            LanguageModel::Engine(engine) => evaluate::full_of_engine(engine, &tokens),
            LanguageModel::Tensors(_) => unreachable!("rounded weights are on the engine"),
        },
    };
    let ends = opened.tokenizer.end_of_text().map(|id| tokens.counts(opened.tokenizer.vocab_size())[id as usize]);
    tokens.check()?;
    if !loss.nats_per_token.is_finite() {
        bail!(
            "the loss of `{}` is {}\n  hint: its weights are damaged, or training diverged; use an earlier one of the \
             run's `checkpoints/step-N`",
            opened.checkpoint.display(),
            loss.nats_per_token,
        );
    }
    let (n, nats, perplexity) = (loss.tokens, loss.nats_per_token, loss.perplexity());
    let (bits, bits_per_byte) = (loss.bits_per_token(), loss.bits_per_byte(&tokens));
    if args.json {
        return print_json(&json!({
            "split": name, "tokens": n, "end_of_text_tokens": ends, "loss": nats, "perplexity": perplexity,
            "bits_per_token": bits, "bits_per_byte": bits_per_byte,
        }));
    }
    let ends = match ends {
        None => "not counted: the tokenizer has no token for them".to_owned(),
        Some(0) => "none in this text".to_owned(),
        Some(n) => format!("{n} of these tokens"),
    };
    print(&format!(
        "split           {name}\n\
         tokens          {n}\n\
         ends of texts   {ends}\n\
         loss            {nats:.4} nats per token\n\
         perplexity      {perplexity:.4}\n\
         bits per token  {bits:.4}\n\
         bits per byte   {bits_per_byte:.4}\n"
    ))
}

/// Explains that the text has changed, if that is the `error`.
fn changed_text(error: OpenError, args: &Args, split: &str) -> anyhow::Error {
    match error {
        OpenError::Data(DataError::OtherText { paths }) => anyhow!(
            "the text {} has changed since `{}` was trained on it, so its {split} split may hold other text\n  hint: \
             restore the text, or measure a whole text with --text PATH",
            data::in_quotes(&paths),
            args.subject.run.display(),
        ),
        other => other.into(),
    }
}

/// Measures the loss on the tokens of records that count.
fn on_records(args: &Args, path: &Path, opened: &Trained) -> anyhow::Result<()> {
    let mut config = opened.config.clone();
    if !args.mapped.map.is_empty() {
        config.finetune.map.clone_from(&args.mapped.map);
    }
    let open = |config: &Config| conversations::open_records(path, usize::MAX, config, &opened.tokenizer);
    let (examples, records) = match open(&config) {
        // The records of the run have other fields than these.
        Err(DataError::Unmapped { .. }) if args.mapped.map.is_empty() => {
            config.finetune.map.clear();
            open(&config)?
        }
        found => found?,
    };
    print_records(args, opened, &examples, [records.used, records.skipped])
}

fn print_records(
    args: &Args,
    opened: &Trained,
    examples: &dyn BatchSource,
    [used, skipped]: [usize; 2],
) -> anyhow::Result<()> {
    let loss = evaluate::full(&opened.model, examples, opened.config.train.batch_size).context("the device failed")?;
    examples.check()?;
    let (n, nats, perplexity) = (loss.tokens, loss.nats_per_token, loss.perplexity());
    if args.json {
        return print_json(&json!({
            "loss": nats, "tokens": n, "records": used, "skipped": skipped, "perplexity": perplexity,
        }));
    }
    print(&format!(
        "records         {used}, and {skipped} skipped\n\
         tokens          {n} that count\n\
         loss            {nats:.4} nats per token\n\
         perplexity      {perplexity:.4}\n"
    ))
}
