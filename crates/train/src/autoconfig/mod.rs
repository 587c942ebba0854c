//! [`for_text`] makes a config for a text and this machine.
//!
//! `token_choice` chooses the tokenizer, `choice` the model size and run length, and `template` writes the config with
//! its reasons. `docs/own-text.md` explains the numbers behind the rules.

mod choice;
mod error;
mod profile;
mod prompt;
mod template;
mod token_choice;

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::module::Module;

pub use error::AutoconfigError;

use crate::config::{Config, DataConfig, TextFormat, TokenizerKind};
use crate::data::{self, Split, Tokens};
use crate::train::Trainer;
use choice::{Known, LONGEST_CONTEXT, Speed};
use profile::{MIN_TOKENS, TextProfile};
use template::Template;
use tinderbox_model::Gpt;
use tinderbox_model::device::OpenDevice;
use tinderbox_model::format::grouped;
use tinderbox_model::measure::Trial;
use tinderbox_model::tokenizer::Tokenizer;
use token_choice::TokenChoice;

/// The longest run, in minutes: a year.
const MAX_MINUTES: f64 = 366.0 * 24.0 * 60.0;

/// The length, in characters or bytes, below which a model learns little more than the text itself.
const SHORT_TEXT: u64 = 100_000;

/// The text that a config is made for, and the requirements.
#[derive(Debug, Default, Clone)]
pub struct Request {
    /// The text, as `data.path` names it.
    pub text: PathBuf,
    /// The field of a JSON Lines record that holds its text; `None` for `text`.
    pub text_field: Option<String>,
    /// Patterns of the files in a folder to read; empty for all.
    pub include: Vec<String>,
    /// Patterns of the files in a folder to leave out.
    pub exclude: Vec<String>,
    /// Whether files of a folder that are not text are left out.
    pub skip_bad_files: bool,
    /// The time that training may take, in minutes.
    pub minutes: f64,
    /// The kind of tokenizer; `None` to choose one for the text.
    pub tokenizer: Option<TokenizerKind>,
    /// The config's `train.device`.
    pub device: String,
    /// The config's file name, for the commands in its comments.
    pub config_name: String,
}

/// The beginning of a config for a text.
pub(crate) const TITLE: &str = "# A config for ";

/// A config for a text.
#[derive(Debug, Clone)]
pub struct TextConfig {
    /// The config with its reasons, as TOML.
    pub toml: String,
    /// Warnings about the text; also in the config's comments.
    pub cautions: Vec<String>,
}

impl Request {
    fn data(&self) -> Result<DataConfig, AutoconfigError> {
        if self.text == Path::new("-") {
            return Err(AutoconfigError::StandardInput);
        }
        if self.text.to_str().is_none() {
            return Err(AutoconfigError::Path(self.text.clone()));
        }
        let mut data = DataConfig {
            path: self.text.clone(),
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            skip_bad_files: self.skip_bad_files,
            ..DataConfig::default()
        };
        if let Some(text_field) = &self.text_field {
            data.text_field.clone_from(text_field);
        }
        if data::holds_records(&data.all_sources()[0])? {
            data.format = TextFormat::Jsonl;
        }
        Ok(data)
    }
}

/// Checks that a time limit for training is above 0 and at most a year.
pub fn check_minutes(minutes: f64) -> Result<(), AutoconfigError> {
    if minutes > 0.0 && minutes <= MAX_MINUTES {
        return Ok(());
    }
    Err(AutoconfigError::Minutes) // NaN too
}

/// Makes a config for a text and a device, after timing training steps for a few seconds.
///
/// # Panics
/// Only because of a bug: the written config is loaded again.
pub fn for_text(request: &Request, device: &OpenDevice) -> Result<TextConfig, AutoconfigError> {
    check_minutes(request.minutes)?;
    let data = request.data()?;
    let profile = TextProfile::read(&data, request.tokenizer)?;
    let token_choice = TokenChoice::choose(&profile, request.tokenizer);
    let encoded = encode(&profile, &token_choice);
    let n_tokens = scaled(profile.bytes, encoded.tokens_per_byte);
    if n_tokens < MIN_TOKENS {
        return Err(AutoconfigError::TooShort(request.text.clone(), n_tokens, "tokens with this tokenizer"));
    }
    let is_gpu = device.kind.is_gpu();
    let known = Known { request, data: &data, profile: &profile, token_choice: &token_choice, n_tokens, is_gpu };
    let choice = known.choose(|config| measure(config, &encoded, device))?;
    let cautions = cautions(&profile, data.format);
    let toml = Template { known: &known, choice: &choice, device_name: &device.name, cautions: &cautions }.fill();
    let loaded = Config::from_toml(&toml, Path::new(&request.config_name), &[])?;
    assert_eq!(loaded, choice.config, "the template holds every choice");
    Ok(TextConfig { toml, cautions })
}

/// The number of bytes of the text that are encoded: enough to time steps, and to train BPE.
const ENCODED_BYTES: usize = 1 << 20;

/// The beginning of a text, tokenized.
struct Encoded {
    /// At least one window, repeated if necessary: only used for timing.
    tokens: Tokens,
    vocab_size: usize,
    tokens_per_byte: f64,
}

/// Makes the tokenizer (BPE is trained on the beginning of the text) and encodes that beginning.
fn encode(profile: &TextProfile, token_choice: &TokenChoice) -> Encoded {
    let bytes = &profile.sample[..profile.sample.len().min(ENCODED_BYTES)];
    let text = profile.sample_text();
    let beginning = &text[..text.floor_char_boundary(ENCODED_BYTES)];
    let (tokenizer, bytes) = match token_choice.kind {
        TokenizerKind::Byte => (Tokenizer::byte(), bytes),
        TokenizerKind::Char => {
            let of_alphabet = Tokenizer::char_from_alphabet(text.chars());
            (of_alphabet.expect("the text is not empty"), beginning.as_bytes())
        }
        TokenizerKind::Bpe | TokenizerKind::File => {
            (Tokenizer::train_bpe(token_choice.size, beginning), beginning.as_bytes())
        }
    };
    let tokenizer = tokenizer.with_end_of_text();
    let ids = tokenizer.encode_bytes(bytes).expect("the tokenizer is of this text");
    let n_measured = ids.len().max(LONGEST_CONTEXT + 1);
    let measured: Vec<u32> = ids.iter().copied().cycle().take(n_measured).collect();
    Encoded {
        tokens_per_byte: ids.len() as f64 / bytes.len() as f64,
        tokens: Tokens::from_ids(&measured, bytes.len() as u64),
        vocab_size: tokenizer.vocab_size(),
    }
}

/// Trains a model with `config` for about a second, on tokens of the text.
fn measure(config: &Config, encoded: &Encoded, device: &OpenDevice) -> Result<Speed, AutoconfigError> {
    let trial = Trial { warm_up: 1, rounds: 3..=usize::MAX, enough: Duration::from_millis(700) };
    let with_gradients = device.device.clone().autodiff();
    let model = Gpt::new(&config.model, encoded.vocab_size, config.train.seed, &with_gradients);
    let n_parameters = model.num_params();
    let mut trainer = Trainer::new(model, config, Split::from(encoded.tokens.clone()));
    let step = trial.time(|| trainer.step().wait());
    let step = step.map_err(|message| AutoconfigError::Device(device.name.clone(), message))?;
    Ok(Speed { step, n_parameters })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an estimate, of numbers below 2^53")]
fn scaled(bytes: u64, tokens_per_byte: f64) -> u64 {
    (bytes as f64 * tokens_per_byte).round() as u64
}

fn cautions(profile: &TextProfile, format: TextFormat) -> Vec<String> {
    let mut cautions = Vec::new();
    if format == TextFormat::Jsonl {
        cautions.push(
            "Caution: the first line is a record of JSON Lines, so the texts of the records are learned, and not the \
             lines; format = \"text\" under [data] takes them as they are."
                .to_owned(),
        );
    }
    if !profile.left_out.is_empty() {
        cautions.push(format!("Caution: {}.", data::about_left_out(&profile.left_out)));
    }
    let (n, unit) = profile.length();
    if n < SHORT_TEXT {
        cautions.push(format!(
            "Caution: {} {unit} are a short text, from which a model learns little but the text itself; from \
             100,000 on it begins to write sentences of its own.",
            grouped(n)
        ));
    }
    cautions
}

#[cfg(test)]
mod tests {
    use super::profile::tests::profile;
    use super::*;

    #[test]
    fn encoded_sample_exceeds_longest_context() {
        let profile = profile(&"ab".repeat(1000));
        let token_choice = TokenChoice::choose(&profile, Some(TokenizerKind::Bpe));
        let encoded = encode(&profile, &token_choice);
        assert!(encoded.tokens.len() > LONGEST_CONTEXT);
        assert!(encoded.tokens_per_byte < 0.01, "one token for most of it");
    }

    #[test]
    fn time_limits_must_be_positive_and_finite() {
        for minutes in [0.01, 10.0, MAX_MINUTES] {
            check_minutes(minutes).unwrap();
        }
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(check_minutes(minutes).is_err(), "{minutes}");
        }
    }
}
