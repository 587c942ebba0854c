//! `tinderbox generate`: continues a prompt with a trained model.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::args::Subject;
use super::numbers::count;
use super::paint;
use super::print::{note, note_cut_prompt};
use super::sampling::{self, Sampling};
use super::weights::Formats;
use crate::config::GenerateConfig;
use crate::format::without_control;
use crate::generate::{BatchGenerator, GenerateError, Grammar, Guide, LanguageModel, Piece, Speculated, Vocabulary};
use crate::measure::Machine;
use crate::plan::Writing;
use crate::run::{self, Checkpoint};
use crate::tokenizer::Tokenizer;

/// The separator printed before each completion except the first.
const SEPARATOR: &str = "---\n";
const RAW_SEPARATOR: &str = "\n---\n";

/// The number of completions generated at once.
const AT_ONCE: u64 = 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox generate runs/quickstart --prompt \"The bank of\" --temperature 0.5
  tinderbox generate runs/quickstart/last --num-samples 3 --max-new-tokens 200 --seed 7
  tinderbox generate runs/quickstart --weights int8 --device cpu")]
pub(super) struct Args {
    /// Text to continue [default: the run's train.sample_prompt]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// File with the text to continue, or - for standard input without the line break at its end [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Maximum number of tokens to generate after the prompt [default: the run's generate.max_new_tokens]
    #[arg(long, value_name = "N", value_parser = count)]
    max_new_tokens: Option<usize>,
    /// Number of completions, separated by a line `---` [default: the run's generate.num_samples]
    #[arg(long, value_name = "N", value_parser = count)]
    num_samples: Option<usize>,
    /// Stop before this string; may be repeated [default: the run's generate.stop]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: Sampling,
    /// Speculate on a CPU: propose up to N tokens at once from the completion's repetitions, which never changes it; 0:
    /// off [default: the run's generate.speculate]
    #[arg(long, value_name = "N", value_parser = count)]
    speculate: Option<usize>,
    /// File with a JSON Schema: generate JSON that matches it, and print it without the prompt [default: any text]
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Print the bytes of the tokens unchanged, even if they are not UTF-8, and no line break at the end
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    formats: Formats,
    /// Generate even if the memory seems too small
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
    sampling::check(&settings, "--")?;
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
    Formats::note_speculation(settings.speculate > 0, &model, &opened.device.name);
    let guide = args.json_schema.as_deref().map(|path| read_schema(path, &opened.tokenizer)).transpose()?;
    let n_samples = settings.num_samples as u64;
    let stdout = io::stdout().lock();
    let form = match args.raw {
        true => Form::Raw,
        false if stdout.is_terminal() => Form::Terminal { has_colors: paint::has_colors(&stdout) },
        false => Form::Text,
    };
    let mut stdout = stdout;
    let shown = if guide.is_some() { Vec::new() } else { form.prompt(&prompt) }; // the output is JSON only
    let mut speculated = Speculated::default();
    let mut first = 0;
    while first < n_samples {
        let samples = first..n_samples.min(first.saturating_add(AT_ONCE));
        first = samples.end;
        let mut rounds = BatchGenerator::new(model.clone(), &opened.tokenizer, &settings, &prompt, samples.clone())?;
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
    if settings.speculate > 0 && matches!(model, LanguageModel::Engine(_)) {
        let Speculated { n_proposed, n_right } = speculated;
        note(format!("speculation: {n_right} of {n_proposed} proposed tokens were right"));
    }
    Ok(())
}

/// Reads the prompt from a file, or for `-` from standard input, whose last line break is that of `echo`.
fn read_prompt(path: &Path) -> io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path);
    }
    let mut prompt = Vec::new();
    io::stdin().lock().read_to_end(&mut prompt)?;
    let text = prompt.strip_suffix(b"\n").map(|text| text.strip_suffix(b"\r").unwrap_or(text));
    Ok(text.filter(|text| !text.is_empty()).map_or_else(|| prompt.clone(), <[u8]>::to_vec))
}

fn read_schema(path: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Guide> {
    let read = || {
        let schema = crate::json::parse(&fs::read(path)?)?;
        let vocabulary = Vocabulary::of(tokenizer);
        let vocabulary = vocabulary.context("the text of this model's tokens depends on their context")?;
        Ok::<_, anyhow::Error>(Guide::new(&Grammar::of_schema(&schema)?, Arc::new(vocabulary))?)
    };
    read().with_context(|| format!("cannot follow the schema `{}`", path.display()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Unchanged bytes, with nothing added.
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
                if has_colors { paint::quiet(&String::from_utf8_lossy(&shown)).into_bytes() } else { shown }
            }
        }
    }

    /// Converts a piece of a completion, in whole characters, to this form.
    fn text(self, text: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Raw | Self::Text => text,
            Self::Terminal { .. } => without_control(&String::from_utf8_lossy(&text)).into_owned().into_bytes(),
        }
    }
}

/// Prints the completions of `samples` in order, each after its prompt in the given `form`. The first unfinished one is
/// printed as it is generated; later ones are buffered.
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
        out.flush()?; // readers see each token at once
        let Some(round) = rounds.next() else { return Ok(()) };
        for Piece { sample_idx, text: more, is_last } in round? {
            let (text, is_finished) =
                &mut waiting[usize::try_from(sample_idx - turn).expect("a round has few samples")];
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
    fn settings(&self, run: &GenerateConfig) -> GenerateConfig {
        GenerateConfig {
            max_new_tokens: self.max_new_tokens.unwrap_or(run.max_new_tokens),
            num_samples: self.num_samples.unwrap_or(run.num_samples),
            stop: if self.stop.is_empty() { run.stop.clone() } else { self.stop.clone() },
            speculate: self.speculate.unwrap_or(run.speculate),
            ..self.sampling.apply(run)
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
            self.0
                .last_mut()
                .expect("the output starts with an empty string")
                .push_str(str::from_utf8(bytes).expect("the output is UTF-8"));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.push(String::new());
            Ok(())
        }
    }

    #[test]
    fn completions_are_printed_in_order() {
        let mut out = Flushed(vec![String::new()]);
        let rounds = [
            vec![piece(0, "b", false), piece(1, "x", true), piece(2, "y", false)],
            vec![piece(0, "c", true), piece(2, "z", false)],
            vec![piece(2, "!", true)],
        ];
        print_in_order(&mut out, 0..3, b"A", rounds.into_iter().map(Ok), Form::Text).expect("a string takes any text");
        let last = [Ok(vec![piece(3, "", true)])];
        print_in_order(&mut out, 3..4, b"A", last.into_iter(), Form::Text).expect("a string takes any text");
        assert_eq!(out.0, ["A", "b", "c\n---\nAx\n---\nAyz", "!\n", "---\nA", "\n", ""]);
    }

    #[test]
    fn control_characters_reach_only_raw_output_and_files() {
        let printed = |form: Form| {
            let mut out = Vec::new();
            let rounds = [vec![piece(0, "b\u{1b}]52;c;aGk=\u{7}\u{9b}", true)]];
            print_in_order(&mut out, 0..1, &form.prompt(b"A\x1b"), rounds.into_iter().map(Ok), form)
                .expect("a string takes any text");
            String::from_utf8(out).expect("the output is UTF-8")
        };
        let text = "b\u{fffd}]52;c;aGk=\u{fffd}\u{fffd}\n";
        assert_eq!(printed(Form::Terminal { has_colors: false }), format!("A\u{fffd}{text}"));
        let dimmed = "\u{1b}[2mA\u{fffd}\u{1b}[0m";
        assert_eq!(printed(Form::Terminal { has_colors: true }), format!("{dimmed}{text}"), "no code but ours");
        assert_eq!(printed(Form::Text), "A\u{1b}b\u{1b}]52;c;aGk=\u{7}\u{9b}\n");
        assert_eq!(printed(Form::Raw), "A\u{1b}b\u{1b}]52;c;aGk=\u{7}\u{9b}");
    }
}
