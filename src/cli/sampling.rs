//! The arguments of sampling, shared by `generate` and `chat`. Each replaces a key of the run's `[generate]`.

use super::exit::Misuse;
use super::numbers::{count, number, seed};
use crate::config::GenerateConfig;

#[derive(Debug, clap::Args)]
pub(super) struct Sampling {
    /// Divide the logits by this: below 1 favours likely tokens, above 1 evens out the probabilities, 0 always takes the
    /// likeliest token [default: the run's generate.temperature]
    #[arg(long, value_name = "X", value_parser = number)]
    temperature: Option<f64>,
    /// Sample only from the N likeliest tokens; 0: from all [default: the run's generate.top_k]
    #[arg(long, value_name = "N", value_parser = count)]
    top_k: Option<usize>,
    /// Sample only from the likeliest tokens that together have this probability, in [0, 1]
    /// [default: the run's generate.top_p]
    #[arg(long, value_name = "X", value_parser = number)]
    top_p: Option<f64>,
    /// Sample only tokens with at least this fraction of the likeliest one's probability, in [0, 1]
    /// [default: the run's generate.min_p]
    #[arg(long, value_name = "X", value_parser = number)]
    min_p: Option<f64>,
    /// Above 1, make tokens that already occur less likely [default: the run's generate.repetition_penalty]
    #[arg(long, value_name = "X", value_parser = number)]
    repetition_penalty: Option<f64>,
    /// Seed of sampling; the same seed generates the same completion [default: the run's generate.seed]
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
}

impl Sampling {
    /// The run's settings, overridden by the arguments.
    pub(super) fn apply(&self, run: &GenerateConfig) -> GenerateConfig {
        GenerateConfig {
            temperature: self.temperature.unwrap_or(run.temperature),
            top_k: self.top_k.unwrap_or(run.top_k),
            top_p: self.top_p.unwrap_or(run.top_p),
            min_p: self.min_p.unwrap_or(run.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(run.repetition_penalty),
            seed: self.seed.unwrap_or(run.seed),
            ..run.clone()
        }
    }
}

/// Checks a run's settings after arguments have replaced some, which errors name as typed: after `dashes`.
pub(super) fn check(settings: &GenerateConfig, dashes: &str) -> Result<(), Misuse> {
    settings.check().map_err(|error| {
        let words = error.to_string();
        let as_typed = |word: &str| match word.strip_prefix("generate.") {
            Some(key) => format!("{dashes}{}", key.replace('_', "-")), // the run's own keys are in order
            None => word.to_owned(),
        };
        Misuse(words.split(' ').map(as_typed).collect::<Vec<_>>().join(" "))
    })
}
