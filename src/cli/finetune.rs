//! `tinderbox finetune`: fine-tunes a trained model on records such as conversations.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Value, json};

use super::args::{overrides, program};
use super::exit::{DONE, Misuse};
use super::numbers::number;
use super::print::{note, print, print_json};
use super::report;
use super::train::{Session, exit_code, start_of};
use crate::config::{Base, Config, GenerateConfig, with_overrides};
use crate::data::{self, BatchSource, Records, Split, Tokens, conversations};
use crate::device::DeviceSpec;
use crate::distributed::Ranks;
use crate::finetune::{ChatFormat, FinetuneMethod, starting_config};
use crate::format::{cut_in_the_middle, grouped, shell_word, without_control};
use crate::generate::{Generator, LanguageModel};
use crate::model::Parameter;
use crate::run::{self, Answers, BeforeAndAfter, Checkpoint, Located, RunDir, Trained};
use crate::tokenizer::Tokenizer;
use crate::train::{Start, Summary, evaluate};

/// The default text that measures forgetting: passages of the project's documentation and stories.
const GENERAL_TEXT: &str = include_str!("../../data/general.txt");
/// The number of questions answered by both models.
const N_QUESTIONS: usize = 3;
/// The maximum length of an answer, in tokens.
const ANSWER_TOKENS: usize = 120;
/// The number of characters of a prompt that are shown.
const SHOWN_OF_PROMPT: usize = 160;

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
    /// Records: a JSON Lines file, or a folder of such files. A record has messages, a prompt and a completion, an
    /// instruction and an output, or a text
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Directory of the new run [default: RUN, a hyphen, and the name of the data]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Parameters to train: lora adds two low-rank matrices to each linear layer, dora also trains the norms of its
    /// columns, full trains all parameters
    #[arg(long, value_name = "METHOD", value_enum, default_value_t)]
    method: FinetuneMethod,
    /// Chat template to add to the model, in a new run beside it; also trains the embeddings of the template's tokens
    /// [default: the model's own]
    #[arg(long, value_name = "NAME", value_enum)]
    template: Option<ChatFormat>,
    /// Number of passes over the records
    #[arg(long, value_name = "X", value_parser = number, default_value_t = 2.0)]
    epochs: f64,
    /// Override a config key, such as finetune.rank=8; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Text to measure forgetting by, with its loss before and after [default: a page of English]
    #[arg(long, value_name = "FILE")]
    general_text: Option<PathBuf>,
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
    if !(args.epochs.is_finite() && args.epochs > 0.0) {
        return Err(Misuse(format!("--epochs {} must be a number above 0", args.epochs)).into());
    }
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
        Start::Resume => {
            let saved = RunDir::open(&run_dir)?;
            let earlier = saved.config()?;
            Config::from_toml_inheriting(&earlier.to_toml(), saved.root(), &overrides, Some(Base::Resumed(&earlier)))?
        }
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
            describe(&records);
            note_endless(&records, &config.generate, &base.run.tokenizer_of_model(&config)?);
            config
        }
    };
    let session = Session { config, run_dir, start, from: None, force: false, tui: args.tui };
    let (summary, progress) = match session.train(&Ranks::alone())? {
        Ok(trained) => trained,
        Err(code) => return Ok(code),
    };
    let compared = (!summary.interrupted).then(|| Compared::new(args, &base, &summary)).transpose()?;
    let next = next_command(args, &summary);
    progress.finish(&summary, &report::at_end(&summary.run_dir), ["chat with it", &next]);
    if let Some(compared) = compared {
        compared.print(args, &summary)?;
    }
    Ok(exit_code(&summary))
}

/// The base with a chat template, a run beside it, and the arguments with its name.
fn with_template(args: &Args, base: &Located, template: ChatFormat) -> anyhow::Result<(Args, Located)> {
    let name = template.to_possible_value().expect("no template is hidden").get_name().to_owned();
    let root = default_dir(base.run.root(), Path::new(&name));
    if RunDir::open(&root).is_ok() {
        note(format!("note: using {}, which already has the template", shell_word(&root)));
    } else {
        template.give(base, &root)?;
        note(format!("created {}, the base with the chat template {name}", shell_word(&root)));
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

/// The text of the new run's config, and the summary of the records.
fn text_of_config(args: &Args, base: &Located) -> anyhow::Result<(String, Records)> {
    // Only settings that decide how records are read and how many make a step.
    let of_steps = ["train.batch_size", "train.grad_accumulation_steps"];
    let sets = |set: &str, keys: &[&str]| keys.iter().any(|key| set.starts_with(key));
    let is_of_records = |set: &&String| sets(set, &["finetune.", "data.", "generate."]) || sets(set, &of_steps);
    let overrides: Vec<String> = args.overrides.iter().filter(is_of_records).cloned().collect();
    let config = config_of_records(base, &args.run, &args.data, &overrides)?;
    let tokenizer = base.run.tokenizer_of_model(&config)?;
    let max_tokens = config.finetune.max_tokens;
    let (_, records) = conversations::open_records(&args.data, max_tokens, &config, &tokenizer)?;
    let trained = args.template.map_or_else(Vec::new, |template| template.ids(&tokenizer));
    let trained = if args.method == FinetuneMethod::Full { &[][..] } else { &trained[..] };
    let is_set = overrides.iter().any(|set| sets(set, &of_steps));
    let rows_per_step = is_set.then(|| config.train.batch_size * config.train.grad_accumulation_steps);
    let text = starting_config(&args.run, &args.data, args.method, &records, args.epochs, trained, rows_per_step);
    Ok((text, records))
}

/// The config that reads records for a fine-tuning of `base`, which the user called `run`.
pub(super) fn config_of_records(
    base: &Located,
    run: &Path,
    data: &Path,
    overrides: &[String],
) -> anyhow::Result<Config> {
    let inherited = base.run.config()?;
    let text = starting_config(run, data, FinetuneMethod::default(), &Records::default(), 1.0, &[], None);
    let origin = Path::new("the arguments");
    Ok(Config::from_toml_inheriting(&text, origin, overrides, Some(Base::Weights(&inherited)))?)
}

/// Summarizes the records on standard error.
fn describe(records: &Records) {
    let Records { used, rows, skipped, cut, tokens, counted_tokens, longest, preferences, endless: _ } = records;
    let what = if *preferences { "preferences" } else { "records" };
    note(format!(
        "{what} {used}, {} tokens, {} count ({:.0} %); the longest has {longest}",
        grouped(*tokens),
        grouped(*counted_tokens),
        100.0 * *counted_tokens as f64 / (*tokens).max(1) as f64
    ));
    if rows < used {
        note(format!("packed into {} rows", grouped(*rows as u64)));
    }
    if *cut > 0 {
        note(format!(
            "note: {cut} records are longer than finetune.max_tokens and lose their ends\n  hint: --set \
             finetune.max_tokens={longest} keeps them whole"
        ));
    }
    if *skipped > 0 {
        note(format!("note: {skipped} records without an answer that counts are left out"));
    }
}

/// Notes on standard error that a model with these settings does not stop where answers end.
pub(super) fn note_endless(records: &Records, settings: &GenerateConfig, tokenizer: &Tokenizer) {
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

struct Compared {
    result: BeforeAndAfter,
    trained_parameters: u64,
    base_sha256: Option<String>,
    records: Records,
}

impl Compared {
    /// Measures both models, and saves the result in the run for its report.
    fn new(args: &Args, base: &Located, summary: &Summary) -> anyhow::Result<Self> {
        let after = Trained::open(&summary.run_dir, None)?;
        let device = after.config.train.device.parse()?;
        let before = Trained::open(&base.checkpoint, Some(&device))?;
        let split = after.corpus()?.records.context("a fine-tuning has records")?;
        let batch_size = after.config.train.batch_size;
        let both = [&before, &after];
        let losses = |text: &dyn BatchSource| -> anyhow::Result<[f64; 2]> {
            let [before, after] = both.map(|it| evaluate::full(&it.model, text, batch_size));
            Ok([before?.nats_per_token, after?.nats_per_token])
        };
        let general = args.general_text(&after)?;
        let held_out_loss = losses(&split.val)?;
        split.val.check()?;
        let general_loss = general.as_ref().map(|text| losses(text)).transpose()?;
        let trained_parameters = match after.config.finetune.lora() {
            Some(lora) => {
                let trained = lora.parameters(&before.model.parameters().collect::<Vec<_>>());
                trained.iter().map(Parameter::n_numbers).sum()
            }
            None => summary.parameters as u64,
        };
        let base_sha256 = Checkpoint::read_state(&after.checkpoint)?.adapter.map(|adapter| adapter.base_sha256);
        let (tokenizer, generate) = (after.tokenizer, after.config.generate);
        let settings = GenerateConfig {
            temperature: 0.0, // the likeliest answers
            max_new_tokens: ANSWER_TOKENS,
            stop: generate.stop,
            stop_token_ids: generate.stop_token_ids,
            ..GenerateConfig::default()
        };
        let models = [before.model, after.model].map(|model| LanguageModel::from(&model));
        let answers = split.val.questions(N_QUESTIONS).into_iter().map(|[question, expected]| {
            let [prompt, expected] = [question, expected].map(|ids| tokenizer.decode(&ids));
            let [before, after] = models.each_ref().map(|model| answer(model, &tokenizer, &settings, &prompt));
            Ok(Answers { prompt, expected, before: before?, after: after? })
        });
        let result = BeforeAndAfter {
            held_out_loss,
            general_loss,
            general_tokens: general.map_or(0, |text| text.len() as u64),
            answers: answers.collect::<anyhow::Result<_>>()?,
        };
        result.write(&RunDir::open(&summary.run_dir)?)?;
        Ok(Self { result, trained_parameters, base_sha256, records: split.summary })
    }

    fn print(&self, args: &Args, summary: &Summary) -> anyhow::Result<()> {
        let Self { result, trained_parameters, base_sha256, records } = self;
        let BeforeAndAfter { held_out_loss: [base_val_loss, _], general_loss, general_tokens, answers } = result;
        if args.json {
            let mut object = serde_json::to_value(summary)?;
            let more = json!({
                "trained_parameters": trained_parameters,
                "base": args.run.to_string_lossy(),
                "base_sha256": base_sha256,
                "counted_tokens": records.counted_tokens,
                "skipped_records": records.skipped,
                "base_val_loss": base_val_loss,
                "general_tokens": general_tokens,
                "base_general_loss": general_loss.map(|it| it[0]),
                "general_loss": general_loss.map(|it| it[1]),
            });
            if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
                object.extend(more);
            }
            return print_json(&object);
        }
        print(&format!(
            "held-out records: loss {base_val_loss:.4} before, {:.4} after; {} parameters trained\n",
            summary.best_val_loss.unwrap_or(f64::NAN),
            grouped(*trained_parameters)
        ))?;
        if let Some([before, after]) = general_loss {
            print(&format!(
                "general text: loss {before:.4} before, {after:.4} after ({:+.1} %), on {} tokens\n",
                100.0 * (after / before - 1.0),
                grouped(*general_tokens)
            ))?;
        }
        for Answers { prompt, expected, before, after } in answers {
            print(&format!(
                "\nprompt    {}\nexpected  {}\n",
                cut_in_the_middle(&one_line(prompt), SHOWN_OF_PROMPT),
                one_line(expected)
            ))?;
            print(&format!("before    {}\nafter     {}\n", one_line(before), one_line(after)))?;
        }
        Ok(())
    }
}

impl Args {
    /// The text that measures forgetting; `None` if the tokenizer lacks characters of the default one.
    fn general_text(&self, trained: &Trained) -> anyhow::Result<Option<Split>> {
        if let Some(path) = &self.general_text {
            return Ok(Some(data::open_text(path, &trained.config.data, &trained.tokenizer)?));
        }
        let ids = trained.tokenizer.encode_prompt(GENERAL_TEXT).ok();
        Ok(ids.map(|ids| Split::from(Tokens::from_ids(&ids, GENERAL_TEXT.len() as u64))))
    }
}

/// The command to continue an interrupted run, or to chat with a finished one.
fn next_command(args: &Args, summary: &Summary) -> String {
    let run_dir = shell_word(&summary.run_dir);
    if !summary.interrupted {
        return format!("{} chat {run_dir}", program());
    }
    let (run, data) = (shell_word(&args.run), shell_word(&args.data));
    format!("{} finetune {run} --data {data} --run-dir {run_dir} --resume", program())
}

fn answer(
    model: &LanguageModel,
    tokenizer: &Tokenizer,
    settings: &GenerateConfig,
    prompt: &str,
) -> anyhow::Result<String> {
    let pieces = Generator::new(model.clone(), tokenizer, settings, prompt, 0)?;
    Ok(pieces.collect::<Result<Vec<String>, _>>()?.concat())
}

fn one_line(text: &str) -> String {
    without_control(&text.trim().replace('\n', " ")).into_owned()
}
