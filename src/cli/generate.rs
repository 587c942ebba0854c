//! `tinderbox generate`: a trained model writes on.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context;

use super::Subject;
use super::weights::WeightFormat;
use crate::config::GenerateConfig;
use crate::generate::{GenerateError, Piece, Writers};

/// How many texts are written at once.
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
    /// A file with the beginning of the text [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// The most tokens to write after the prompt [default: the run's
    /// generate.max_new_tokens]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_new_tokens: Option<usize>,
    /// How many texts to write, separated by a line `---` [default: the run's generate.num_samples]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    num_samples: Option<usize>,
    /// A factor: below 1 favours likely tokens, above 1 evens out the probabilities, 0 always takes the likeliest token
    /// [default: the run's generate.temperature]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw only from the N likeliest tokens; 0 draws from all [default: the run's generate.top_k]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Draw only from the likeliest tokens that together have this probability, in (0, 1] [default:
    /// the run's generate.top_p]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Draw only tokens with at least this share of the likeliest one's probability, in [0, 1] [default:
    /// the run's generate.min_p]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// A factor: above 1 makes tokens that already occur less likely [default: the run's generate.repetition_penalty]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// Stop before this text; may be repeated [default: the run's generate.stop]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// The same seed writes the same text [default: the run's generate.seed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// The precision of the weights, on a CPU: fewer bits are faster and less exact
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFormat,
    #[command(flatten)]
    subject: Subject,
}

/// Writes the samples in their order, each piece as soon as possible.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let opened = args.subject.open()?;
    let settings = args.settings(&opened.config.generate);
    settings.check()?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(path)) => {
            fs::read_to_string(path).with_context(|| format!("cannot read the prompt `{}`", path.display()))?
        }
        (None, None) => opened.config.train.sample_prompt.clone(),
    };
    let model = args.weights.of(opened.model, &opened.device)?;
    let n_samples = settings.num_samples as u64;
    let mut stdout = io::stdout().lock();
    let mut first = 0;
    while first < n_samples {
        let samples = first..n_samples.min(first.saturating_add(AT_ONCE));
        first = samples.end;
        let rounds = Writers::new(model.clone(), &opened.tokenizer, &settings, &prompt, samples.clone())?;
        print_in_order(&mut stdout, samples, &prompt, rounds)?;
    }
    Ok(())
}

/// Prints the texts of `samples` in their order, each with its prompt: the first that is not finished is shown as it is
/// written, the others wait.
fn print_in_order(
    out: &mut impl Write,
    samples: Range<u64>,
    prompt: &str,
    mut rounds: impl Iterator<Item = Result<Vec<Piece>, GenerateError>>,
) -> anyhow::Result<()> {
    let mut turn = samples.start;
    let begun = |sample| (format!("{}{prompt}", if sample > 0 { "---\n" } else { "" }), false);
    let mut waiting: VecDeque<(String, bool)> = samples.map(begun).collect();
    loop {
        while let Some((text, is_finished)) = waiting.front_mut() {
            out.write_all(text.as_bytes())?;
            text.clear();
            if !*is_finished {
                break;
            }
            waiting.pop_front();
            turn += 1;
        }
        out.flush()?; // a reader sees every token as it is made
        let Some(round) = rounds.next() else { return Ok(()) };
        for Piece { sample_idx, text: more, is_last } in round? {
            let (text, is_finished) = &mut waiting[usize::try_from(sample_idx - turn).expect("a few texts")];
            text.push_str(&more);
            if is_last {
                text.push('\n');
                *is_finished = true;
            }
        }
    }
}

impl Args {
    /// The run's settings, with those of the arguments in their place.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(sample_idx: u64, text: &str, is_last: bool) -> Piece {
        Piece { sample_idx, text: text.to_owned(), is_last }
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
        print_in_order(&mut out, 0..3, "A", rounds.into_iter().map(Ok)).expect("memory");
        print_in_order(&mut out, 3..4, "A", [Ok(vec![piece(3, "", true)])].into_iter()).expect("memory");
        assert_eq!(out.0, ["A", "b", "c\n---\nAx\n---\nAyz", "!\n", "---\nA", "\n", ""]);
    }
}
