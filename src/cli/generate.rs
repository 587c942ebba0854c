//! `tinderbox generate`: continues a prompt with a trained model.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::args::Subject;
use super::exit::Misuse;
use super::numbers::{count, number, seed};
use super::paint;
use super::print::{note, note_cut_prompt};
use super::weights::Formats;
use crate::config::GenerateConfig;
use crate::format::without_control;
use crate::generate::{GenerateError, Grammar, Guide, LanguageModel, Piece, Speculated, Vocabulary, Writers};
use crate::measure::Machine;
use crate::model::OrderedJson;
use crate::plan::Writing;
use crate::run::{self, Checkpoint};
use crate::tokenizer::Tokenizer;

/// The separator printed before each text except the first.
const SEPARATOR: &str = "---\n";
const RAW_SEPARATOR: &str = "\n---\n";

/// The number of texts generated at once.
const AT_ONCE: u64 = 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox generate runs/quickstart --prompt \"The bank of\" --temperature 0.5
  tinderbox generate runs/quickstart/last --num-samples 3 --max-new-tokens 200 --seed 7
  tinderbox generate runs/quickstart --weights int8 --device cpu")]
pub(super) struct Args {
    /// The beginning of the text [default: the run's train.sample_prompt]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file with the beginning of the text, or - for standard input [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// The most tokens to write after the prompt [default: the run's
    /// generate.max_new_tokens]
    #[arg(long, value_name = "N", value_parser = count)]
    max_new_tokens: Option<usize>,
    /// How many texts to write, separated by a line `---` [default: the run's generate.num_samples]
    #[arg(long, value_name = "N", value_parser = count)]
    num_samples: Option<usize>,
    /// A factor: below 1 favours likely tokens, above 1 evens out the probabilities, 0 always takes the likeliest token
    /// [default: the run's generate.temperature]
    #[arg(long, value_name = "X", value_parser = number)]
    temperature: Option<f64>,
    /// Draw only from the N likeliest tokens; 0 draws from all [default: the run's generate.top_k]
    #[arg(long, value_name = "N", value_parser = count)]
    top_k: Option<usize>,
    /// Draw only from the likeliest tokens that together have this probability, in (0, 1] [default:
    /// the run's generate.top_p]
    #[arg(long, value_name = "X", value_parser = number)]
    top_p: Option<f64>,
    /// Draw only tokens with at least this share of the likeliest one's probability, in [0, 1] [default:
    /// the run's generate.min_p]
    #[arg(long, value_name = "X", value_parser = number)]
    min_p: Option<f64>,
    /// A factor: above 1 makes tokens that already occur less likely [default: the run's generate.repetition_penalty]
    #[arg(long, value_name = "X", value_parser = number)]
    repetition_penalty: Option<f64>,
    /// Stop before this text; may be repeated [default: the run's generate.stop]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// The same seed writes the same text [default: the run's generate.seed]
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// Propose up to N tokens at once from the text's own repetitions, on a CPU; the text stays the same, and is there
    /// sooner if it repeats itself; 0 proposes none [default: the run's generate.speculate]
    #[arg(long, value_name = "N", value_parser = count)]
    speculate: Option<usize>,
    /// Write only JSON of the JSON Schema in this file, without the prompt before it [default: any text]
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Write the bytes of the tokens unchanged, even if they are not valid text, without a line break at the end
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    formats: Formats,
    /// Write even if the memory seems to be too small
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    subject: Subject,
}

/// Prints the samples in order, each piece as soon as possible.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let located = run::locate(&args.subject.run)?;
    let config = located.run.config()?;
    let settings = args.settings(&config.generate);
    settings.check().map_err(|error| Misuse(error.to_string()))?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (Some(prompt), _) => prompt.clone().into_bytes(),
        (None, Some(path)) => {
            read_prompt(path).with_context(|| format!("cannot read the prompt `{}`", path.display()))?
        }
        (None, None) => config.train.sample_prompt.clone().into_bytes(),
    };
    if let Some(machine) = Machine::here().filter(|_| !args.force) {
        let writing = Writing {
            model: &config.model,
            weights: Checkpoint::weights_bytes(&located.checkpoint),
            n_texts: AT_ONCE.min(settings.num_samples as u64),
            n_tokens: (prompt.len() as u64).saturating_add(settings.max_new_tokens as u64),
        };
        writing.check(machine)?;
    }
    let opened = args.subject.open()?;
    let model = args.formats.convert(opened.model, &opened.device.name)?;
    let (wants_speculation, on_engine) = (settings.speculate > 0, matches!(model, LanguageModel::Engine(_)));
    if wants_speculation && !on_engine {
        note(format!("note: `{}` does not speculate: --speculate (generate.speculate) is ignored", opened.device.name));
    }
    let guide = args.json_schema.as_deref().map(|path| read_schema(path, &opened.tokenizer)).transpose()?;
    let n_samples = settings.num_samples as u64;
    let stdout = io::stdout().lock();
    let form = match args.raw {
        true => Form::Raw,
        false if stdout.is_terminal() => Form::Terminal { has_colors: paint::has_colors(&stdout) },
        false => Form::Text,
    };
    let mut stdout = stdout;
    let shown = if guide.is_some() { Vec::new() } else { form.prompt(&prompt) }; // so that it is JSON and nothing else
    let mut speculated = Speculated::default();
    let mut first = 0;
    while first < n_samples {
        let samples = first..n_samples.min(first.saturating_add(AT_ONCE));
        first = samples.end;
        let mut rounds = Writers::new(model.clone(), &opened.tokenizer, &settings, &prompt, samples.clone())?;
        if let ((n_read, n_dropped @ 1..), 0) = (rounds.prompt_tokens(), samples.start) {
            note_cut_prompt(n_read, n_dropped);
        }
        if let Some(guide) = &guide {
            rounds = rounds.guided(&opened.tokenizer, &settings, guide);
        }
        if args.raw {
            rounds = rounds.raw()?;
        }
        print_in_order(&mut stdout, samples, &shown, &mut rounds, form)?;
        speculated += rounds.speculated();
    }
    if wants_speculation && on_engine {
        let Speculated { n_proposed, n_right } = speculated;
        note(format!("speculation: {n_right} of {n_proposed} proposed tokens were right"));
    }
    Ok(())
}

/// Reads the prompt from a file, or from standard input for `-`.
fn read_prompt(path: &Path) -> io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path);
    }
    let mut prompt = Vec::new();
    io::stdin().lock().read_to_end(&mut prompt)?;
    Ok(prompt)
}

/// The guide of texts in the JSON Schema of a file.
fn read_schema(path: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Guide> {
    let read = || {
        let schema: OrderedJson = serde_json::from_str(&fs::read_to_string(path)?)?;
        let vocabulary = Vocabulary::of(tokenizer);
        let vocabulary = vocabulary.context("the tokens of this model are not text by themselves")?;
        Ok::<_, anyhow::Error>(Guide::new(Arc::new(Grammar::of_schema(&schema)?), Arc::new(vocabulary))?)
    };
    read().with_context(|| format!("cannot write by the schema `{}`", path.display()))
}

/// The form in which texts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The unchanged bytes, with nothing added.
    Raw,
    /// Plain text.
    Text,
    /// Text without control characters, with the prompt dimmed if the terminal has colors.
    Terminal { has_colors: bool },
}

impl Form {
    fn prompt(self, prompt: &[u8]) -> Vec<u8> {
        match self {
            Self::Raw => prompt.to_vec(),
            Self::Text => String::from_utf8_lossy(prompt).into_owned().into_bytes(),
            Self::Terminal { has_colors } => {
                let shown = self.text(prompt.to_vec());
                match has_colors {
                    true => paint::quiet(&String::from_utf8_lossy(&shown)).into_bytes(),
                    false => shown,
                }
            }
        }
    }

    /// Converts a piece of text from the model, in whole characters, to this form.
    fn text(self, text: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Raw | Self::Text => text,
            Self::Terminal { .. } => without_control(&String::from_utf8_lossy(&text)).into_owned().into_bytes(),
        }
    }
}

/// Prints the texts of `samples` in order, each after its prompt in the given `form`. The first unfinished text is
/// printed as it is generated; later texts are buffered.
fn print_in_order(
    out: &mut impl Write,
    samples: Range<u64>,
    prompt: &[u8],
    mut rounds: impl Iterator<Item = Result<Vec<Piece>, GenerateError>>,
    form: Form,
) -> anyhow::Result<()> {
    let mut turn = samples.start;
    let separator = if form == Form::Raw { RAW_SEPARATOR } else { SEPARATOR };
    let begun = |sample| ([if sample > 0 { separator } else { "" }.as_bytes(), prompt].concat(), false);
    let mut waiting: VecDeque<(Vec<u8>, bool)> = samples.map(begun).collect();
    loop {
        while let Some((text, is_finished)) = waiting.front_mut() {
            out.write_all(text)?;
            text.clear();
            if !*is_finished {
                break;
            }
            waiting.pop_front();
            turn += 1;
        }
        out.flush()?; // so that a reader sees every token at once
        let Some(round) = rounds.next() else { return Ok(()) };
        for Piece { sample_idx, text: more, is_last } in round? {
            let (text, is_finished) = &mut waiting[usize::try_from(sample_idx - turn).expect("a few texts")];
            text.extend(form.text(more));
            if is_last {
                if form != Form::Raw {
                    text.push(b'\n');
                }
                *is_finished = true;
            }
        }
    }
}

impl Args {
    /// The run's settings, overridden by the arguments.
    fn settings(&self, run: &GenerateConfig) -> GenerateConfig {
        GenerateConfig {
            max_new_tokens: self.max_new_tokens.unwrap_or(run.max_new_tokens),
            num_samples: self.num_samples.unwrap_or(run.num_samples),
            temperature: self.temperature.unwrap_or(run.temperature),
            top_k: self.top_k.unwrap_or(run.top_k),
            top_p: self.top_p.unwrap_or(run.top_p),
            min_p: self.min_p.unwrap_or(run.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(run.repetition_penalty),
            stop: if self.stop.is_empty() { run.stop.clone() } else { self.stop.clone() },
            seed: self.seed.unwrap_or(run.seed),
            presence_penalty: run.presence_penalty,
            frequency_penalty: run.frequency_penalty,
            stop_token_ids: run.stop_token_ids.clone(),
            min_new_tokens: run.min_new_tokens,
            speculate: self.speculate.unwrap_or(run.speculate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(sample_idx: u64, text: &str, is_last: bool) -> Piece {
        Piece { sample_idx, text: text.into(), is_last }
    }

    /// The output printed up to each flush.
    struct Flushed(Vec<String>);

    impl Write for Flushed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.last_mut().expect("there is always a last one").push_str(str::from_utf8(bytes).expect("text"));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.push(String::new());
            Ok(())
        }
    }

    #[test]
    fn texts_are_printed_in_order_whichever_is_finished_first() {
        let mut out = Flushed(vec![String::new()]);
        let rounds = [
            vec![piece(0, "b", false), piece(1, "x", true), piece(2, "y", false)],
            vec![piece(0, "c", true), piece(2, "z", false)],
            vec![piece(2, "!", true)],
        ];
        print_in_order(&mut out, 0..3, b"A", rounds.into_iter().map(Ok), Form::Text).expect("memory");
        let last = [Ok(vec![piece(3, "", true)])];
        print_in_order(&mut out, 3..4, b"A", last.into_iter(), Form::Text).expect("memory");
        assert_eq!(out.0, ["A", "b", "c\n---\nAx\n---\nAyz", "!\n", "---\nA", "\n", ""]);
    }

    #[test]
    fn a_terminal_is_not_controlled_and_raw_bytes_are_untouched() {
        let written = |form: Form| {
            let mut out = Vec::new();
            let rounds = [vec![piece(0, "b\u{1b}]52;c;aGk=\u{7}\u{9b}", true)]];
            print_in_order(&mut out, 0..1, &form.prompt(b"A\x1b"), rounds.into_iter().map(Ok), form).expect("memory");
            String::from_utf8(out).expect("text")
        };
        let text = "b\u{fffd}]52;c;aGk=\u{fffd}\u{fffd}\n";
        assert_eq!(written(Form::Terminal { has_colors: false }), format!("A\u{fffd}{text}"));
        let dimmed = "\u{1b}[2mA\u{fffd}\u{1b}[0m";
        assert_eq!(written(Form::Terminal { has_colors: true }), format!("{dimmed}{text}"), "no code but ours");
        assert_eq!(written(Form::Text), "A\u{1b}b\u{1b}]52;c;aGk=\u{7}\u{9b}\n");
        assert_eq!(written(Form::Raw), "A\u{1b}b\u{1b}]52;c;aGk=\u{7}\u{9b}");
    }
}
