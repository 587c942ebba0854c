//! `tinderbox finetune`: fine-tunes a trained model on records such as conversations.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::args::{Mapped, Selected, overrides, program};
use super::compared::{Compared, Interrupted, Watch};
use super::exit::{self, DONE, Misuse};
use super::next::talk;
use super::numbers::number;
use super::print::{note, print, print_json};
use super::report;
use super::train::{Session, exit_code, start_of, watch};
use crate::config::{Base, Config, GenerateConfig, PositionKind, TrainConfig, with_overrides};
use crate::data::{Records, conversations, in_quotes};
use crate::device::DeviceSpec;
use crate::distributed::Ranks;
use crate::finetune::{ChatFormat, FinetuneMethod, Length, starting_config};
use crate::format::{counted, grouped, shell_word};
use crate::run::{self, BeforeAndAfter, Located, RunDir};
use crate::tokenizer::Tokenizer;
use crate::train::{Start, Summary, TrainError};

#[derive(Clone, Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is an argument")]
#[command(after_help = "\
Examples:
  tinderbox finetune runs/smol --data my.jsonl
  tinderbox finetune runs/smol --data my.jsonl --set finetune.rank=8 --epochs 3
  tinderbox finetune runs/smollm2-base --data my.jsonl --template chatml
  tinderbox finetune runs/smol --data my.jsonl --resume")]
pub(super) struct Args {
    /// Run to fine-tune (its best checkpoint), RUN/best, RUN/last, or RUN/checkpoints/step-N
    run: PathBuf,
    /// Records: a file of JSON Lines, a JSON list, CSV or Parquet, or a folder of such files. A record has messages, a
    /// prompt and a completion, an instruction and an output, or a text
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    #[command(flatten)]
    mapped: Mapped,
    #[command(flatten)]
    selected: Selected,
    /// Directory of the new run [default: RUN, a hyphen, and the name of the data]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Parameters to train: lora adds two low-rank matrices to each linear layer, dora also trains the norms of its
    /// columns, full trains all parameters [default: lora]
    #[arg(long, value_name = "METHOD", value_enum)]
    method: Option<FinetuneMethod>,
    /// Chat template to add to the model, in a new run beside it; also trains the embeddings of the template's tokens
    /// [default: the model's own]
    #[arg(long, value_name = "NAME", value_enum)]
    template: Option<ChatFormat>,
    /// Number of passes over the records, all of which are made [default: 2, but 60 to 200 steps, which end early if the
    /// held-out records get worse; train.max_steps, if it is set]
    #[arg(long, value_name = "X", value_parser = number)]
    epochs: Option<f64>,
    /// Override a config key, such as finetune.rank=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Text to measure forgetting by, with its loss before and after [default: a page of English]
    #[arg(long, value_name = "FILE")]
    general_text: Option<PathBuf>,
    /// Do not compare the new model with its base at the end; --resume does it later
    #[arg(long, conflicts_with = "general_text")]
    no_comparison: bool,
    /// Device: auto, cpu, or a name from `tinderbox devices` [default: cpu]
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
    /// Print the config with which `tinderbox train` does the same, and stop
    #[arg(long, conflicts_with_all = ["resume", "json"])]
    print_config: bool,
    /// Print one JSON object on standard output at the end
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    if let Some(epochs) = args.epochs.filter(|epochs| !(epochs.is_finite() && *epochs > 0.0)) {
        return Err(Misuse(format!("--epochs {epochs} must be a number above 0")).into());
    }
    let mut args = args.clone();
    args.selected.check("--data", Some(&args.data))?;
    args.overrides.extend(args.mapped.overrides());
    args.overrides.extend(args.selected.overrides());
    let args = &args;
    let base = run::locate(&args.run)?;
    let run_dir = args.run_dir.clone().unwrap_or_else(|| default_dir(base.run.root(), &args.data));
    let (args, base) = match args.template {
        None => (args.clone(), base),
        Some(template) => with_template(args, &base, template)?,
    };
    let args = &args;
    let overrides = overrides(&args.overrides, args.device);
    let start = start_of(args.resume, args.overwrite);
    let config = match start {
        Start::Resume => resumed_config(args, &base, &RunDir::open(&run_dir)?, &overrides)?,
        Start::New | Start::Overwrite => {
            let (text, records) = text_of_config(args, &base)?;
            let inherited = base.run.config()?;
            let origin = Path::new("the config of the fine-tuning");
            let config = Config::from_toml_inheriting(&text, origin, &overrides, Some(Base::Weights(&inherited)))?;
            if args.print_config {
                print(&with_overrides(&text, &overrides, &config))?;
                return Ok(DONE);
            }
            RunDir::check_new(&run_dir, start == Start::Overwrite)?;
            describe(&records, &config);
            note_records(&records, &config.generate, &base.run.tokenizer_of_model(&config)?);
            config
        }
    };
    let (interrupter, progress) = watch(args.tui)?;
    let data = config.data.clone();
    let session = Session { config, run_dir: run_dir.clone(), start, from: None, force: false };
    let mut summary = match session.train(&Ranks::alone(), &interrupter, &progress) {
        Ok(Ok(summary)) => summary,
        Ok(Err(code)) => return Ok(code),
        Err(error) => match compared_later(args, &run_dir, &error)? {
            Some(summary) => summary,
            None => return Err(error),
        },
    };
    let mut compared = None;
    if !summary.interrupted && !args.no_comparison {
        let watch = Watch { progress: &progress, interrupter: &interrupter };
        match Compared::new(&base.checkpoint, data, args.general_text.as_deref(), &summary, &watch) {
            Ok(done) => compared = Some(done),
            Err(error) if error.is::<Interrupted>() => summary.interrupted = true,
            Err(error) => {
                progress.failed(&exit::describe(&error));
                return Err(error);
            }
        }
    }
    let next = if summary.interrupted { ("", resume_command(args, &summary)) } else { talk(&summary.run_dir) };
    progress.finish(&summary, &report::at_end(&summary.run_dir, &interrupter), next);
    match compared {
        Some(compared) => compared.print(&args.run, args.json, &summary)?,
        None if args.json && !summary.interrupted => print_json(&summary)?,
        None => {}
    }
    Ok(exit_code(&summary))
}

/// The results of a run that is done, if it cannot be resumed for this `error` alone, and its comparison was not made.
fn compared_later(args: &Args, run_dir: &Path, error: &anyhow::Error) -> anyhow::Result<Option<Summary>> {
    let is_done =
        matches!(error.downcast_ref(), Some(TrainError::AlreadyDone { .. } | TrainError::AlreadyStopped { .. }));
    if !is_done || args.no_comparison {
        return Ok(None);
    }
    let run = RunDir::open(run_dir)?;
    let is_due = BeforeAndAfter::read(&run)?.is_none();
    Ok(is_due.then(|| Summary::of_ended(&run)).transpose()?)
}

/// The config of a run that goes on, with the settings that the arguments give.
fn resumed_config(args: &Args, base: &Located, run: &RunDir, overrides: &[String]) -> anyhow::Result<Config> {
    let earlier = run.config()?;
    let mut given = Vec::new();
    let quoted = |path: &Path| toml::Value::from(path.to_string_lossy().into_owned()).to_string();
    if earlier.finetune.base.as_deref() != Some(&args.run) {
        given.push(format!("finetune.base={}", quoted(&args.run)));
    }
    if earlier.data.path != args.data {
        given.push(format!("data.path={}", quoted(&args.data)));
    }
    let name = args.method.and_then(|method| method.to_possible_value());
    given.extend(name.map(|name| format!("finetune.method=\"{}\"", name.get_name())));
    let with = |given: &[String]| {
        let all = [given, overrides].concat();
        Config::from_toml_inheriting(&earlier.to_toml(), run.root(), &all, Some(Base::Resumed(&earlier)))
    };
    if let Some(epochs) = args.epochs {
        let config = with(&given)?;
        let tokenizer = base.run.tokenizer_of_model(&config)?;
        let max_tokens = config.finetune.max_tokens;
        let (_, records) = conversations::open_records(&args.data, max_tokens, &config, &tokenizer)?;
        given.push(format!("train.max_steps={}", length(&config, Some(epochs)).passes_and_steps(&records).1));
        given.push("train.early_stopping_patience=0".to_owned()); // all of these passes are made
    }
    Ok(with(&given)?)
}

/// The base with a chat template, a run beside it, and the arguments with its name.
fn with_template(args: &Args, base: &Located, template: ChatFormat) -> anyhow::Result<(Args, Located)> {
    let name = template.to_possible_value().expect("no template is hidden").get_name().to_owned();
    let root = default_dir(base.run.root(), Path::new(&name));
    match RunDir::open(&root) {
        Ok(_) => note(format!("note: using {}, which already has the template", shell_word(&root))),
        Err(error) if args.resume => return Err(error.into()),
        Err(_) => {
            template.give(base, &root)?;
            note(format!("created {}, the base with the chat template {name}", shell_word(&root)));
        }
    }
    let located = run::locate(&root)?;
    Ok((Args { run: root, ..args.clone() }, located))
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

/// Whether an override sets a key that begins in one of these ways.
fn sets(set: &str, keys: &[&str]) -> bool {
    keys.iter().any(|key| set.starts_with(key))
}

/// The text of the new run's config, and the summary of the records.
fn text_of_config(args: &Args, base: &Located) -> anyhow::Result<(String, Records)> {
    // Only settings that decide how records are read, how many make a step, and how many steps there are.
    let of_records = ["finetune.", "data.", "generate.", "model.context_length"];
    let of_steps = ["train.batch_size", "train.grad_accumulation_steps", "train.max_steps"];
    let overrides: Vec<String> =
        args.overrides.iter().filter(|set| sets(set, &of_records) || sets(set, &of_steps)).cloned().collect();
    let is_set = |key: &str| overrides.iter().any(|set| sets(set, &[key]));
    let config = config_of_records(base, &args.run, &args.data, &overrides)?;
    let tokenizer = base.run.tokenizer_of_model(&config)?;
    let max_tokens = config.finetune.max_tokens;
    let (_, records) = conversations::open_records(&args.data, max_tokens, &config, &tokenizer)?;
    let trained = args.template.map_or_else(Vec::new, |template| template.ids(&tokenizer));
    let method = args.method.unwrap_or_default();
    let trained = if method == FinetuneMethod::Full { &[][..] } else { &trained[..] };
    let mut length = length(&config, args.epochs);
    if !is_set("train.batch_size") {
        length.batch_size = None;
    }
    if args.epochs.is_none() && is_set("train.max_steps") {
        length.epochs = Some(config.train.max_steps as f64 / length.steps_of_pass(&records) as f64);
    }
    Ok((starting_config(&args.run, &args.data, method, &records, &length, trained), records))
}

/// The config that reads records for a fine-tuning of `base`, which the user called `run`.
pub(super) fn config_of_records(
    base: &Located,
    run: &Path,
    data: &Path,
    overrides: &[String],
) -> anyhow::Result<Config> {
    if let Some(path) = [run, data].into_iter().find(|path| path.to_str().is_none()) {
        let path = path.display();
        return Err(Misuse(format!("`{path}` is not UTF-8, as a path in a config must be\n  hint: rename it")).into());
    }
    let inherited = base.run.config()?;
    let length = Length { epochs: Some(1.0), batch_size: None, grad_accumulation_steps: 1, val_fraction: 0.0 };
    let text = starting_config(run, data, FinetuneMethod::default(), &Records::default(), &length, &[]);
    let origin = Path::new("the arguments");
    Ok(Config::from_toml_inheriting(&text, origin, overrides, Some(Base::Weights(&inherited)))?)
}

/// The length of a fine-tuning in so many passes with these settings.
fn length(config: &Config, epochs: Option<f64>) -> Length {
    let TrainConfig { batch_size, grad_accumulation_steps, .. } = config.train;
    Length { epochs, batch_size: Some(batch_size), grad_accumulation_steps, val_fraction: config.data.val_fraction }
}

/// Summarizes on standard error the records, and what the config does with them.
fn describe(records: &Records, config: &Config) {
    let Records { used, rows, skipped, cut, tokens, counted_tokens, longest, preferences, left_out, .. } = records;
    let what = if *preferences { "preferences" } else { "records" };
    let length = length(config, None);
    note(format!(
        "{what} {used}, {} of them for validation; {} tokens, {} count ({:.0} %); the longest has {longest}",
        used - length.n_trained(records),
        grouped(*tokens),
        grouped(*counted_tokens),
        100.0 * *counted_tokens as f64 / (*tokens).max(1) as f64
    ));
    let TrainConfig { max_steps, batch_size, grad_accumulation_steps, early_stopping_patience, .. } = config.train;
    let passes = max_steps as f64 / length.steps_of_pass(records) as f64;
    let ends = match early_stopping_patience {
        0 => String::new(),
        n => format!("; ends early after {} without a lower validation loss", counted(n as u64, "evaluation")),
    };
    note(format!(
        "passes {}, in {} of {}{ends}",
        (passes * 100.0).round() / 100.0,
        counted(max_steps as u64, "step"),
        counted((batch_size * grad_accumulation_steps) as u64, if rows < used { "row" } else { "record" }),
    ));
    if rows < used {
        note(format!("packed into {} rows", grouped(*rows as u64)));
    }
    if *cut > 0 {
        let (max_tokens, context) = (config.finetune.max_tokens, config.model.context_length);
        let needed = [("finetune.max_tokens", max_tokens), ("model.context_length", context + 1)];
        let sets = needed.into_iter().filter(|(_, n)| n < longest).map(|(key, _)| format!("--set {key}={longest} "));
        let hint = match context + 1 < *longest && config.model.position != PositionKind::Rope {
            true => "shorten or divide them: the model reads no more at once".to_owned(),
            false => format!("{}keeps them whole", sets.collect::<String>()),
        };
        let limit = max_tokens.min(context + 1);
        note(format!("note: {cut} records are longer than {limit} tokens and lose their ends\n  hint: {hint}"));
    }
    if *skipped > 0 {
        note(format!("note: {skipped} records without an answer that counts are left out"));
    }
    if !left_out.is_empty() {
        note(format!("note: no records are read from {}", in_quotes(left_out)));
    }
}

/// Notes on standard error which conversations were divided, that records hold what the chat template writes, and that a
/// model with these settings does not stop where answers end.
pub(super) fn note_records(records: &Records, settings: &GenerateConfig, tokenizer: &Tokenizer) {
    if records.divided > 0 {
        note(format!(
            "note: {} conversations become a record for each answer, since the chat template writes earlier turns in \
             another way than the last",
            records.divided
        ));
    }
    if let Some((n, token)) = records.written {
        note(format!(
            "note: the texts of {n} records hold tokens such as {:?}, which the chat template writes, too: the model reads \
             them twice\n  hint: remove them from the texts; records with \"text\" are read without a template",
            tokenizer.piece(token),
        ));
    }
    let Some((n, token)) = records.endless else { return };
    let ids: Vec<u32> = settings.stop_token_ids.iter().copied().chain([token]).collect();
    note(format!(
        "note: {n} of {} records end with a token at which the model does not stop, such as {:?}: it will not stop \
         after its answers\n  hint: if this token ends answers, --set 'generate.stop_token_ids={ids:?}'; otherwise the \
         chat template must write one that does",
        records.used,
        tokenizer.piece(token),
    ));
}

/// The command to continue an interrupted run, whose config has the other arguments.
fn resume_command(args: &Args, summary: &Summary) -> String {
    let [run, data, run_dir] = [&args.run, &args.data, &summary.run_dir].map(shell_word);
    let mut words = vec![program(), format!("finetune {run} --data {data} --run-dir {run_dir}")];
    words.extend(args.general_text.as_ref().map(|path| format!("--general-text {}", shell_word(path))));
    words.extend(args.no_comparison.then(|| "--no-comparison".to_owned()));
    words.extend(args.tui.then(|| "--tui".to_owned()));
    words.push("--resume".to_owned());
    words.join(" ")
}
