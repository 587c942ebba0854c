//! Which config suits a text and a machine.
//!
//! [`PRESETS`] are the shipped configs. [`for_text`] makes one for a text of the user's own: [`profile`](TextProfile)
//! looks at the text, `token_choice` decides what a token stands for, `choice` how large the model is and how long
//! it trains, by what `speed` measures here, and `page` writes it down with its reasons.
//!
//! The rules are few and say their numbers; what they rest on is in `docs/experiments.md` and
//! `docs/own-text.md`. Nothing here trains a model to its end, or writes a file.

mod choice;
mod error;
mod page;
mod preset;
mod profile;
mod prompt;
mod speed;
mod token_choice;

use std::convert::Infallible;
use std::path::{Path, PathBuf};

pub use error::RecipeError;
pub use preset::{PRESETS, Preset};
pub use profile::{Characters, SAMPLE_BYTES, TextProfile};

use crate::config::{Config, TokenizerKind};
use crate::data::Tokens;
use crate::device::OpenDevice;
use crate::format::grouped;
use crate::tokenizer::Tokenizer;
use choice::{Known, LONGEST_CONTEXT};
use page::Page;
use profile::MIN_TOKENS;
use token_choice::TokenChoice;

/// The longest run that can be asked for, in minutes: a year.
const MAX_MINUTES: f64 = 366.0 * 24.0 * 60.0;

/// A text of fewer tokens teaches little more than its own words.
const SHORT_TEXT: u64 = 100_000;

/// With so large a share of lines that stood there before, what is held back is hardly new.
const MUCH_REPEATED: f64 = 0.5;

/// What a config is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The text, as `[data] path` will name it.
    pub text: PathBuf,
    /// How long training may take, minutes.
    pub minutes: f64,
    /// What a token shall stand for; none: what suits the text.
    pub tokenizer: Option<TokenizerKind>,
    /// What the config says under `train.device`.
    pub device: String,
    /// The name that the config will have, for the commands in its comments.
    pub config_name: String,
}

/// A config for a text.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The config with its reasons.
    pub toml: String,
    /// The same, loaded.
    pub config: Config,
    /// What a user should know before they wait for it; also in the config's comments.
    pub cautions: Vec<String>,
}

/// Whether a training may take so many minutes.
///
/// # Errors
/// If that is not above 0 and at most a year.
pub fn check_minutes(minutes: f64) -> Result<(), RecipeError> {
    if minutes > 0.0 && minutes <= MAX_MINUTES {
        return Ok(());
    }
    Err(RecipeError::Minutes { most: MAX_MINUTES }) // NaN too
}

/// Looks at a text, measures some training steps on `device`, which takes seconds, and chooses.
///
/// # Errors
/// If the text cannot be learned from, or the device fails.
///
/// # Panics
/// Never, but for a bug: what is written is loaded again.
pub fn for_text(request: &Request, device: &OpenDevice) -> Result<Recipe, RecipeError> {
    check_minutes(request.minutes)?;
    let profile = TextProfile::read(&request.text, request.tokenizer)?;
    let token_choice = TokenChoice::choose(&profile, request.tokenizer);
    let encoded = encode(&profile, &token_choice);
    let n_tokens = scaled(profile.bytes, encoded.tokens_per_byte);
    if n_tokens < MIN_TOKENS {
        return Err(RecipeError::TooFewTokens { path: request.text.clone(), n_tokens });
    }
    let known = Known {
        profile: &profile,
        token_choice: &token_choice,
        n_tokens,
        minutes: request.minutes,
        device: request.device.clone(),
        is_gpu: device.kind.is_gpu(),
    };
    let choice = known
        .choose(|config| speed::measure(config, encoded.vocab_size, &encoded.tokens, device))?;
    let cautions = cautions(&profile, known.n_tokens);
    let page = Page {
        request,
        profile: &profile,
        token_choice: &token_choice,
        choice: &choice,
        device_name: &device.name,
        cautions: &cautions,
    };
    let toml = page.write();
    let config = Config::from_toml(&toml, Path::new(&request.config_name), &[])?;
    assert_eq!(config, choice.config, "the page says what was chosen");
    Ok(Recipe { toml, config, cautions })
}

/// How much of the text is encoded, in bytes: enough to train on for a second, and to find frequent pieces in.
const ENCODED_BYTES: usize = 1 << 20;

/// The beginning of a text as tokens.
struct Encoded {
    /// At least a window of them, if need be over and over: they are only there to be measured with.
    tokens: Tokens,
    vocab_size: usize,
    /// How many tokens there are for each byte of text.
    tokens_per_byte: f64,
}

/// Makes the tokenizer, of the beginning of the text where it is a costly one, and encodes that beginning.
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
            let chunks = [Ok::<_, Infallible>(beginning.to_owned())];
            let Ok(trained) = Tokenizer::train_bpe(token_choice.size, chunks);
            (trained, beginning.as_bytes())
        }
    };
    let ids = tokenizer.encode_bytes(bytes).expect("the tokenizer is of this text");
    let n_measured = ids.len().max(LONGEST_CONTEXT + 1);
    let measured: Vec<u32> = ids.iter().copied().cycle().take(n_measured).collect();
    Encoded {
        tokens_per_byte: ids.len() as f64 / bytes.len() as f64,
        tokens: Tokens::from_ids(&measured, bytes.len() as u64),
        vocab_size: tokenizer.vocab_size(),
    }
}

/// How many tokens so many bytes are.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, of numbers below 2^53"
)]
fn scaled(bytes: u64, tokens_per_byte: f64) -> u64 {
    (bytes as f64 * tokens_per_byte).round() as u64
}

/// What a user should know before they wait for the result.
fn cautions(profile: &TextProfile, n_tokens: u64) -> Vec<String> {
    let mut cautions = Vec::new();
    if n_tokens < SHORT_TEXT {
        let (n, unit) = profile.length();
        cautions.push(format!(
            "Caution: {} {unit} are a short text, from which a model learns little but the text itself; from \
             100,000 on it begins to write sentences of its own.",
            grouped(n)
        ));
    }
    if profile.repeated > MUCH_REPEATED {
        cautions.push(format!(
            "Caution: {:.0} of 100 bytes are lines that stood there before; what is held back is hardly new, \
             and the loss will look better than the model is.",
            profile.repeated * 100.0
        ));
    }
    cautions
}

#[cfg(test)]
mod tests {
    use super::profile::tests::profile;
    use super::*;

    #[test]
    fn there_are_tokens_enough_to_measure_a_step_with() {
        let profile = profile(&"ab".repeat(1000));
        let token_choice = TokenChoice::choose(&profile, Some(TokenizerKind::Bpe));
        let encoded = encode(&profile, &token_choice);
        assert!(encoded.tokens.len() > LONGEST_CONTEXT);
        assert!(encoded.tokens_per_byte < 0.01, "one token for most of it");
    }

    #[test]
    fn a_training_takes_some_time_and_comes_to_an_end() {
        for minutes in [0.01, 10.0, MAX_MINUTES] {
            check_minutes(minutes).unwrap();
        }
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(check_minutes(minutes).is_err(), "{minutes}");
        }
    }
}
