//! `tinderbox finetune`: adapts a trained model to records such as conversations.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::numbers::number;
use super::train::{Finished, Session, start_of};
use super::{DONE, Misuse, note, overrides, print, print_json, program};
use crate::config::{Base, Config, GenerateConfig};
use crate::data::{Records, conversations};
use crate::device::DeviceSpec;
use crate::distributed::Ranks;
use crate::finetune::{FinetuneMethod, starting_config};
use crate::format::{grouped, shell_word, without_control};
use crate::generate::{LanguageModel, Writer};
use crate::run::{self, Checkpoint, Located, RunDir, Trained};
use crate::tokenizer::Tokenizer;
use crate::train::{Start, Summary, evaluate};

/// The questions whose answers of before and after are shown.
const N_QUESTIONS: usize = 3;
/// The longest answer that is shown, in tokens.
const ANSWER_TOKENS: usize = 120;

#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an argument")]
#[command(after_help = "\
Examples:
  tinderbox finetune runs/smol --data my.jsonl
  tinderbox finetune runs/smol --data my.jsonl --set finetune.rank=8 --epochs 3
  tinderbox finetune runs/smol --data my.jsonl --resume")]
pub(super) struct Args {
    /// The run whose model is adapted (its best checkpoint), RUN/last or one of its checkpoints/step-N
    run: PathBuf,
    /// The records: a file of JSON Lines, or a folder of them. A record has messages, a prompt and a completion, an
    /// instruction and an output, or a text
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The directory of the new run [default: the run's, followed by a hyphen and the name of the data]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What is trained: two narrow matrices beside each linear layer, or all parameters
    #[arg(long, value_name = "METHOD", value_enum, default_value_t)]
    method: FinetuneMethod,
    /// The number of passes over the records
    #[arg(long, value_name = "X", value_parser = number, default_value_t = 2.0)]
    epochs: f64,
    /// Replace the value of a key of the config, such as finetune.rank=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
    /// Continue from the last checkpoint of the new run
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Replace an existing run
    #[arg(long)]
    overwrite: bool,
    /// Show a full-screen dashboard: metrics, charts, log
    #[arg(long, conflicts_with = "json")]
    tui: bool,
    /// Print the config, with which `tinderbox train` does the same, and do nothing else
    #[arg(long, conflicts_with_all = ["resume", "json"])]
    print_config: bool,
    /// Print one JSON object on standard output at the end
    #[arg(long)]
    json: bool,
}

/// Trains the new run, and shows what has changed.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    if !(args.epochs.is_finite() && args.epochs > 0.0) {
        return Err(Misuse(format!("--epochs {} must be a number above 0", args.epochs)).into());
    }
    let base = run::locate(&args.run)?;
    let run_dir = args.run_dir.clone().unwrap_or_else(|| default_dir(base.run.root(), &args.data));
    let overrides = overrides(&args.overrides, args.device);
    let start = start_of(args.resume, args.overwrite);
    let config = match start {
        Start::Resume => {
            let saved = RunDir::open(&run_dir)?;
            let earlier = saved.config()?;
            Config::from_toml_inheriting(&earlier.to_toml(), saved.root(), &overrides, Some(Base::Resumed(&earlier)))?
        }
        Start::New | Start::Overwrite => {
            let (text, records) = text_of_config(args, &base)?;
            if args.print_config {
                print(&text)?;
                return Ok(DONE);
            }
            RunDir::check_new(&run_dir, start == Start::Overwrite)?;
            describe(&records);
            let inherited = base.run.config()?;
            let origin = Path::new("the config of the fine-tuning");
            Config::from_toml_inheriting(&text, origin, &overrides, Some(Base::Weights(&inherited)))?
        }
    };
    let session = Session { config, run_dir, start, from: None, force: false, tui: args.tui };
    session.run(&Ranks::alone(), |finished| at_end(args, &base, finished))
}

/// `runs/smol-my`, for the run `runs/smol` and the records `my.jsonl`.
fn default_dir(base: &Path, data: &Path) -> PathBuf {
    let stem = |path: &Path| -> String {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').find(|part| !part.is_empty()).unwrap_or("data").to_owned()
    };
    let base_name = base.file_name().unwrap_or(base.as_os_str()).to_string_lossy();
    base.with_file_name(format!("{base_name}-{}", stem(data)))
}

/// The config, and what is in the records.
fn text_of_config(args: &Args, base: &Located) -> anyhow::Result<(String, Records)> {
    let inherited = base.run.config()?;
    // The settings that decide what of a record is read.
    let is_of_records = |set: &&String| set.starts_with("finetune.") || set.starts_with("data.");
    let overrides: Vec<String> = args.overrides.iter().filter(is_of_records).cloned().collect();
    let text = starting_config(&args.run, &args.data, args.method, &Records::default(), args.epochs);
    let origin = Path::new("the arguments");
    let config = Config::from_toml_inheriting(&text, origin, &overrides, Some(Base::Weights(&inherited)))?;
    let tokenizer = base.run.tokenizer_of_model(&config)?;
    let (_, records) = conversations::open_records(&args.data, &config, &tokenizer)?;
    let text = starting_config(&args.run, &args.data, args.method, &records, args.epochs);
    Ok((text, records))
}

/// Says on standard error what was read.
fn describe(records: &Records) {
    let Records { used, skipped, cut, tokens, counted_tokens, longest } = records;
    note(format!(
        "records {used}, {} tokens, of which {} count ({:.0} %); the longest has {longest}",
        grouped(*tokens),
        grouped(*counted_tokens),
        100.0 * *counted_tokens as f64 / (*tokens).max(1) as f64
    ));
    if *cut > 0 {
        note(format!(
            "note: {cut} records are longer than finetune.max_tokens, and their ends are cut off\n  hint: --set \
             finetune.max_tokens={longest} keeps them whole"
        ));
    }
    if *skipped > 0 {
        note(format!("note: {skipped} records have no answer that counts, and are left out"));
    }
}

/// Compares the new model with its base: the loss on the records that were held out, and some answers.
fn at_end(args: &Args, base: &Located, finished: &Finished) -> anyhow::Result<()> {
    let Finished { summary, progress, report } = finished;
    progress.finish(summary, report, ["talk with it", &next_command(args, summary)]);
    if summary.interrupted {
        return Ok(());
    }
    let after = Trained::open(&summary.run_dir, args.device.as_ref())?;
    let before = Trained::open(&base.checkpoint, args.device.as_ref())?;
    let records = after.corpus()?.records.context("a fine-tuning has records")?;
    let base_val_loss = evaluate::full(&before.model, &records.val, after.config.train.batch_size)?.nats_per_token;
    let trained_parameters = match after.config.finetune.lora() {
        Some(lora) => {
            let adapters = lora.adapters(&before.model.parameters().collect::<Vec<_>>());
            adapters.iter().map(|rows| rows.a.n_numbers() + rows.b.n_numbers()).sum()
        }
        None => summary.parameters as u64,
    };
    if args.json {
        let base_sha256 = Checkpoint::read_state(&after.checkpoint)?.adapter.map(|adapter| adapter.base_sha256);
        let mut object = serde_json::to_value(summary)?;
        let more = json!({
            "trained_parameters": trained_parameters,
            "base": args.run,
            "base_sha256": base_sha256,
            "counted_tokens": records.summary.counted_tokens,
            "skipped_records": records.summary.skipped,
            "base_val_loss": base_val_loss,
        });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        return print_json(&object);
    }
    print(&format!(
        "held-out records: loss {base_val_loss:.4} before, {:.4} after; {} parameters trained\n",
        summary.best_val_loss.unwrap_or(f64::NAN),
        grouped(trained_parameters)
    ))?;
    let tokenizer = after.tokenizer.clone();
    let models = [("before", before), ("after", after)].map(|(when, it)| (when, LanguageModel::from(&it.model)));
    for [question, expected] in records.val.questions(N_QUESTIONS) {
        let prompt = tokenizer.decode(&question);
        print(&format!("\nprompt    {}\nexpected  {}\n", end_of(&prompt), one_line(&tokenizer.decode(&expected))))?;
        for (when, model) in &models {
            print(&format!("{when:<9} {}\n", one_line(&answer(model, &tokenizer, &prompt)?)))?;
        }
    }
    Ok(())
}

/// A command that the user can paste: to continue an interrupted run, or to talk with the finished model.
fn next_command(args: &Args, summary: &Summary) -> String {
    let run_dir = shell_word(&summary.run_dir);
    if !summary.interrupted {
        return format!("{} chat {run_dir}", program());
    }
    let (run, data) = (shell_word(&args.run), shell_word(&args.data));
    format!("{} finetune {run} --data {data} --run-dir {run_dir} --resume", program())
}

/// The likeliest answer to a prompt.
fn answer(model: &LanguageModel, tokenizer: &Tokenizer, prompt: &str) -> anyhow::Result<String> {
    let settings = GenerateConfig { temperature: 0.0, max_new_tokens: ANSWER_TOKENS, ..GenerateConfig::default() };
    let pieces = Writer::new(model.clone(), tokenizer, &settings, prompt, 0)?;
    Ok(pieces.collect::<Result<Vec<String>, _>>()?.concat())
}

fn one_line(text: &str) -> String {
    without_control(&text.trim().replace('\n', " ")).into_owned()
}

/// The end of a prompt, on one line.
fn end_of(prompt: &str) -> String {
    let line = one_line(prompt);
    match line.char_indices().nth_back(SHOWN_OF_PROMPT) {
        Some((at, _)) => format!("...{}", &line[at..]),
        None => line,
    }
}

/// The characters of a prompt that are shown.
const SHOWN_OF_PROMPT: usize = 160;
