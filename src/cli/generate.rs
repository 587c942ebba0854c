//! `tinderbox generate`: a trained model writes on.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context;

use super::weights::WeightFormat;
use crate::config::GenerateConfig;
use crate::device::DeviceSpec;
use crate::generate::{Piece, Writers};
use crate::run::Trained;

/// How many texts are written at once.
const AT_ONCE: u64 = 16;

/// Write text with a trained model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tinderbox generate runs/quickstart --prompt \"The bank of\" --temperature 0.5
  tinderbox generate runs/quickstart/last --num-samples 3 --max-new-tokens 200 --seed 7
  tinderbox generate runs/quickstart --weights int8 --device cpu")]
pub(super) struct Args {
    /// A run directory (its best checkpoint), its `best` or `last`, or one of its checkpoints/step-N
    run: PathBuf,
    /// What the text begins with [default: the run's train.sample_prompt]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file with what the text begins with [default: --prompt]
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// The most tokens to write after the prompt [default: the run's
    /// generate.max_new_tokens]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_new_tokens: Option<usize>,
    /// How many texts to write, separated by a line `---` [default: the run's generate.num_samples]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    num_samples: Option<usize>,
    /// A factor: below 1 is safer, above 1 wilder, 0 always takes the likeliest token [default: the run's
    /// generate.temperature]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw only from the N likeliest tokens; 0: from all [default: the run's generate.top_k]
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
    /// A factor: above 1, tokens that were used already become less likely [default: the run's
    /// generate.repetition_penalty]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// End before this text would come; may be repeated [default: the run's generate.stop]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// The same seed writes the same text [default: the run's generate.seed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// How the weights are kept, on a CPU: fewer bits are faster and less exact
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFormat,
    /// The device to compute on: auto, cpu, or a name that `tinderbox devices` lists [default: the run's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceSpec>,
}

/// Writes the samples in their order, each piece as soon as possible.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let opened = Trained::open(&args.run, args.device.as_ref())?;
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
    let mut texts = InOrder::new(io::stdout().lock());
    let mut first = 0;
    while first < n_samples {
        let samples = first..n_samples.min(first.saturating_add(AT_ONCE));
        first = samples.end;
        let writers = Writers::new(model.clone(), &opened.tokenizer, &settings, &prompt, samples.clone())?;
        texts.begin(samples.clone(), &prompt)?;
        for round in writers {
            texts.add(round?)?;
        }
    }
    Ok(())
}

/// Prints several texts in their order: the first that is not finished is shown as it is written, the others wait.
struct InOrder<W> {
    out: W,
    /// The texts from `turn` on as far as they are written, and whether they are finished.
    waiting: VecDeque<(String, bool)>,
    turn: u64,
}

impl<W: Write> InOrder<W> {
    fn new(out: W) -> Self {
        Self { out, waiting: VecDeque::new(), turn: 0 }
    }

    /// Begins further texts with their prompt.
    fn begin(&mut self, samples: Range<u64>, prompt: &str) -> io::Result<()> {
        for sample in samples {
            let separator = if sample > 0 { "---\n" } else { "" };
            self.waiting.push_back((format!("{separator}{prompt}"), false));
        }
        self.show()
    }

    /// Takes the pieces of a round.
    fn add(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        for piece in pieces {
            let place = usize::try_from(piece.sample_idx - self.turn).expect("a few texts");
            let (text, is_finished) = &mut self.waiting[place];
            text.push_str(&piece.text);
            if piece.is_last {
                text.push('\n');
                *is_finished = true;
            }
        }
        self.show()
    }

    /// Prints the text whose turn it is as far as it goes, and those after it if it is finished.
    fn show(&mut self) -> io::Result<()> {
        while let Some((text, is_finished)) = self.waiting.front_mut() {
            self.out.write_all(text.as_bytes())?;
            text.clear();
            if !*is_finished {
                break;
            }
            self.waiting.pop_front();
            self.turn += 1;
        }
        self.out.flush() // a reader sees every token as it is made
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

    #[test]
    fn texts_are_printed_in_order_whichever_is_finished_first() {
        let mut texts = InOrder::new(Vec::new());
        texts.begin(0..3, "A").expect("memory");
        assert_eq!(texts.out, b"A");
        let mut add = |pieces| {
            texts.add(pieces).expect("memory");
            String::from_utf8(texts.out.clone()).expect("text")
        };
        let round = vec![piece(0, "b", false), piece(1, "x", true), piece(2, "y", false)];
        assert_eq!(add(round), "Ab");
        assert_eq!(add(vec![piece(0, "c", true), piece(2, "z", false)]), "Abc\n---\nAx\n---\nAyz");
        assert_eq!(add(vec![piece(2, "!", true)]), "Abc\n---\nAx\n---\nAyz!\n");
        texts.begin(3..4, "A").expect("memory");
        texts.add(vec![piece(3, "", true)]).expect("memory");
        assert!(texts.out.ends_with(b"z!\n---\nA\n"));
    }
}
