//! The config as a page of TOML: each choice with its reason, in the numbers of the text at hand.

use std::fmt::Write as _;
use std::path::Path;

use toml::Value;

use super::choice::Choice;
use super::token_choice::TokenChoice;
use super::{Request, TextProfile};
use crate::config::TokenizerKind;
use crate::format::{counted, grouped, shell_word};

/// Where comments are wrapped, in characters.
const WIDTH: usize = 100;

/// Everything that stands on a page.
pub(super) struct Page<'a> {
    pub request: &'a Request,
    pub profile: &'a TextProfile,
    pub token_choice: &'a TokenChoice,
    pub choice: &'a Choice,
    /// What the speed was measured on.
    pub device_name: &'a str,
    pub cautions: &'a [String],
}

impl Page<'_> {
    /// The page.
    pub fn write(&self) -> String {
        let mut page = String::new();
        self.head(&mut page);
        self.data(&mut page);
        self.tokenizer(&mut page);
        self.model(&mut page);
        self.train(&mut page);
        self.optimizer(&mut page);
        page
    }

    fn head(&self, page: &mut String) {
        let config = &self.request.config_name;
        let run = Path::new(config).file_stem().unwrap_or(config.as_ref());
        let run = Path::new("runs").join(run);
        let program = "tinderbox";
        comment(
            page,
            &format!(
                "A config for {}, written by `{program} init --from-text`.",
                self.profile.path.display()
            ),
        );
        let commands = [
            format!("{program} train {}", shell_word(config)),
            format!("{program} generate {} --prompt \"...\"", shell_word(&run.to_string_lossy())),
        ];
        page.push_str("#\n");
        for command in commands {
            writeln!(page, "#     {command}").expect(FITS);
        }
        page.push_str("#\n");
        comment(page, &self.about_the_text());
        let speed = &self.choice.speed;
        comment(
            page,
            &format!(
                "The machine: a training step of this model took {} on {}, the median of {}. Measured again, \
                 it is another number, and with it the number of steps and perhaps the size of the model; \
                 the rest follows from the text.",
                milliseconds(speed.step_ms),
                self.device_name,
                speed.n_steps
            ),
        );
        for caution in self.cautions {
            comment(page, caution);
        }
        comment(
            page,
            &format!(
                "Keys that are not here have their defaults; `{program} init --preset quickstart` shows all of them."
            ),
        );
    }

    fn about_the_text(&self) -> String {
        let profile = self.profile;
        let mut about = String::from("The text: ");
        if !profile.is_whole {
            write!(
                about,
                "by its first {} bytes, which is all that was looked at, about ",
                grouped(profile.sample.len() as u64)
            )
            .expect(FITS);
        }
        match &profile.characters {
            Some(characters) => write!(
                about,
                "{} characters ({} bytes), {} different ones, of which {} make up 99 % of it",
                grouped(characters.n),
                grouped(profile.bytes),
                grouped(characters.n_distinct() as u64),
                grouped(characters.n_common() as u64)
            ),
            None => write!(about, "{} bytes, taken as they are", grouped(profile.bytes)),
        }
        .expect(FITS);
        if profile.is_whole && profile.characters.is_some() {
            write!(about, ", in {}", counted(profile.n_lines, "line")).expect(FITS);
        }
        write!(
            about,
            ". gzip packs it into {:.2} bits per byte: a model that knows more of it needs fewer, and \
             training ends by saying how many.",
            profile.gzip_bits_per_byte
        )
        .expect(FITS);
        about
    }

    fn data(&self, page: &mut String) {
        page.push_str("\n[data]\n");
        let data = &self.choice.config.data;
        key(page, "path", &data.path.to_string_lossy().into_owned().into());
        comment(
            page,
            &format!(
                "The end of the text, about {} tokens, is only predicted, never learned from.",
                rounded_count(self.choice.val_tokens)
            ),
        );
        key(page, "val_fraction", &data.val_fraction.into());
    }

    fn tokenizer(&self, page: &mut String) {
        page.push_str("\n[tokenizer]\n");
        let tokenizer = &self.choice.config.tokenizer;
        comment(page, &self.token_choice.why);
        let kind = Value::try_from(tokenizer.kind).expect("a kind is a word");
        key(page, "kind", &kind);
        if tokenizer.kind == TokenizerKind::Bpe {
            comment(
                page,
                &format!(
                    "A piece for each 500 bytes of the text or so, as a power of two from 512 to 4096. About {} \
                     tokens in all.",
                    rounded_count(self.choice.train_tokens + self.choice.val_tokens)
                ),
            );
            key(page, "vocab_size", &size(self.token_choice.size));
        }
    }

    fn model(&self, page: &mut String) {
        page.push_str("\n[model]\n");
        let choice = self.choice;
        let model = &choice.config.model;
        comment(
            page,
            &format!(
                "How many tokens it sees at once: the text has {} such windows to learn from.",
                rounded_count(choice.train_tokens / model.context_length as f64)
            ),
        );
        key(page, "context_length", &size(model.context_length));
        let parameters = choice.speed.n_parameters as f64;
        let reason = if choice.text_limits_model {
            format!(
                "{} for each token of the training split; a larger model would rather learn so short a text \
                 by heart.",
                ratio(parameters / choice.train_tokens)
            )
        } else {
            format!(
                "for each of which it reads {} tokens in {}; a larger model would read too few to learn as \
                 much.",
                ratio(self.tokens_read() / parameters),
                minutes(self.request.minutes)
            )
        };
        comment(
            page,
            &format!("{} parameters, {reason}", grouped(choice.speed.n_parameters as u64)),
        );
        key(page, "d_model", &size(model.d_model));
        key(page, "n_layers", &size(model.n_layers));
        key(page, "n_heads", &size(model.n_heads));
        comment(page, "What the shipped quick start learned fastest with.");
        page.push_str("position = \"rope\"\nmlp = \"relu_squared\"\nqk_norm = true\n");
        let epochs = ratio(choice.epochs);
        let why = if model.dropout > 0.0 {
            format!(
                "The text is gone through {epochs} times; this makes it harder to learn by heart."
            )
        } else if choice.epochs < 8.0 {
            format!("Off: the text is gone through only {epochs} times.")
        } else {
            format!("Off: the text is gone through {epochs} times, but the model is small for it.")
        };
        comment(page, &why);
        key(page, "dropout", &model.dropout.into());
    }

    fn train(&self, page: &mut String) {
        page.push_str("\n[train]\n");
        let choice = self.choice;
        let train = &choice.config.train;
        comment(page, &format!("The speed was measured on {}.", self.device_name));
        key(page, "device", &train.device.clone().into());
        let time = self.step_seconds();
        let why = if choice.text_ends_first {
            format!(
                "{} times through the text, about {} of your {}: to go on would only learn it by heart. More \
                 text would use more time.",
                ratio(choice.epochs),
                duration(time),
                minutes(self.request.minutes)
            )
        } else {
            format!(
                "About {} at {} a step; evaluations, samples and checkpoints take the rest of your {}. {} \
                 times through the text.",
                duration(time),
                milliseconds(choice.speed.step_ms),
                minutes(self.request.minutes),
                ratio(choice.epochs)
            )
        };
        comment(page, &why);
        key(page, "max_steps", &size(train.max_steps));
        comment(
            page,
            &format!(
                "{} tokens in a step.",
                grouped((train.batch_size * choice.config.model.context_length) as u64)
            ),
        );
        key(page, "batch_size", &size(train.batch_size));
        key(page, "log_interval", &size(train.log_interval));
        comment(
            page,
            "Some eight times in a run: a look at the loss, a sample of text, and a checkpoint.",
        );
        key(page, "eval_interval", &size(train.eval_interval));
        key(page, "eval_batches", &size(train.eval_batches));
        key(page, "checkpoint_interval", &size(train.checkpoint_interval));
        comment(
            page,
            "What samples begin with: the beginning of a line of your text, near its middle.",
        );
        key(page, "sample_prompt", &train.sample_prompt.clone().into());
        key(page, "sample_tokens", &size(train.sample_tokens));
    }

    fn optimizer(&self, page: &mut String) {
        let config = &self.choice.config;
        page.push_str("\n[optimizer]\n");
        comment(
            page,
            "The quick start's 4e-3 up to a width of 128, and less for wider models, in proportion.",
        );
        key(page, "learning_rate", &config.optimizer.learning_rate.into());
        page.push_str("\n[schedule]\n");
        comment(
            page,
            "Up within a tenth of the run, then on a straight line to nothing: a short run gains most by coming to rest.",
        );
        page.push_str("kind = \"linear\"\n");
        key(page, "warmup_steps", &size(config.schedule.warmup_steps));
        page.push_str("min_learning_rate = 0.0\n");
    }

    fn tokens_read(&self) -> f64 {
        self.choice.epochs * self.choice.train_tokens
    }

    /// How long all steps take, seconds.
    fn step_seconds(&self) -> f64 {
        self.choice.config.train.max_steps as f64 * self.choice.speed.step_ms / 1e3
    }
}

/// A string takes all that is written.
const FITS: &str = "a string takes all that is written";

/// `key = value`, quoted and escaped as TOML wants it, on one line.
fn key(page: &mut String, key: &str, value: &Value) {
    let value = match value {
        Value::String(text) => quoted(text),
        value => value.to_string(),
    };
    writeln!(page, "{key} = {value}").expect(FITS);
}

fn size(n: usize) -> Value {
    Value::Integer(i64::try_from(n).expect("sizes are far below 2^63"))
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            _ if character.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(character)).expect(FITS);
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// The text as comment lines, wrapped between words.
fn comment(page: &mut String, text: &str) {
    let mut width = 0;
    // What is quoted from outside may hold line breaks, which would end the comment.
    let visible = |c: char| {
        if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }
    };
    let text: String = text.chars().map(visible).collect();
    for word in text.split(' ') {
        let n = word.chars().count() + 1;
        if width > 0 && width + n > WIDTH {
            page.push('\n');
            width = 0;
        }
        if width == 0 {
            page.push('#');
            width = 1;
        }
        page.push(' ');
        page.push_str(word);
        width += n;
    }
    page.push('\n');
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are neither negative nor above 2^53"
)]
fn rounded_count(n: f64) -> String {
    grouped(n.round() as u64)
}

/// `0.73`, `4.2`, `38`
fn ratio(x: f64) -> String {
    match x {
        ..1.0 => format!("{x:.2}"),
        ..10.0 => format!("{x:.1}"),
        _ => rounded_count(x),
    }
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..1000.0 => format!("{ms:.1} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

fn minutes(minutes: f64) -> String {
    if (minutes - 1.0).abs() < f64::EPSILON {
        "1 minute".to_owned()
    } else {
        format!("{minutes} minutes")
    }
}

/// `45 s`, `9 min`, `2.5 h`
fn duration(s: f64) -> String {
    match s {
        ..1.0 => "a second".to_owned(),
        ..120.0 => format!("{s:.0} s"),
        ..7200.0 => format!("{:.0} min", s / 60.0),
        _ => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(ratio(0.734), "0.73");
        assert_eq!(ratio(4.24), "4.2");
        assert_eq!(ratio(1234.5), "1,235");
        assert_eq!(duration(540.0), "9 min");
        assert_eq!(counted(1, "line"), "1 line");
    }

    proptest! {
        #[test]
        fn texts_survive_the_page(text in any::<String>()) {
            let mut page = String::new();
            comment(&mut page, &text);
            key(&mut page, "text", &text.clone().into());
            let table: toml::Table = toml::from_str(&page).unwrap();
            prop_assert_eq!(table["text"].as_str(), Some(&*text));
            prop_assert!(page.lines().rev().skip(1).all(|line| line.starts_with('#')));
        }
    }
}
