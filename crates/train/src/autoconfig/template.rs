//! Fills in `template.toml`, a commented config that gives the reason for each choice, with numbers of the text.

use super::choice::{Choice, Known, parameters_in_blocks};
use crate::config::commented::{literal, one_line, wrapped};
use crate::config::{DataConfig, TextFormat, TokenizerKind};
use crate::run::layout::default_dir;
use tinderbox_model::format::{counted, duration, grouped, milliseconds, shell_word, short, whole};

pub(super) struct Template<'a> {
    pub known: &'a Known<'a>,
    pub choice: &'a Choice,
    /// The device that was measured.
    pub device_name: &'a str,
    pub cautions: &'a [String],
}

impl Template<'_> {
    pub fn fill(&self) -> String {
        let Choice { config, speed, train_tokens, val_tokens, .. } = self.choice;
        let (model, train) = (&config.model, &config.train);
        let config_name = &self.known.request.config_name;
        let cautions: Vec<String> = self.cautions.iter().map(|caution| format!("\n# {}", one_line(caution))).collect();
        let text = format!(
            include_str!("template.toml"),
            text = one_line(&config.data.path.to_string_lossy()),
            config_name = one_line(&shell_word(config_name)),
            run = one_line(&shell_word(default_dir(config_name))),
            about_text = self.about_text(),
            gzip = self.known.profile.gzip_bits_per_byte,
            step = milliseconds(speed.step.median_ms),
            device_name = one_line(self.device_name),
            n_steps = speed.step.rounds,
            cautions = cautions.concat(),
            path = literal(&config.data.path),
            how_read = self.how_read(),
            val_tokens = whole(*val_tokens),
            val_fraction = config.data.val_fraction,
            why_tokenizer = one_line(&self.known.token_choice.why),
            tokenizer = literal(&config.tokenizer.kind),
            vocab_size = self.vocab_size(),
            n_windows = whole(train_tokens / model.context_length as f64),
            context_length = model.context_length,
            n_parameters = grouped(speed.n_parameters as u64),
            why_size = self.why_size(),
            d_model = model.d_model,
            n_layers = model.n_layers,
            n_heads = model.n_heads,
            why_dropout = self.why_dropout(),
            dropout = model.dropout,
            device = literal(&train.device),
            optimizer = literal(&config.optimizer.kind),
            why_steps = self.why_steps(),
            max_steps = train.max_steps,
            batch_tokens = grouped((train.batch_size * model.context_length) as u64),
            batch_size = train.batch_size,
            log_interval = train.log_interval,
            eval_interval = train.eval_interval,
            eval_batches = train.eval_batches,
            checkpoint_interval = train.checkpoint_interval,
            sample_prompt = literal(&train.sample_prompt),
            sample_tokens = train.sample_tokens,
            learning_rate = config.optimizer.learning_rate,
            warmup_steps = config.schedule.warmup_steps,
        );
        wrapped(&text)
    }

    fn about_text(&self) -> String {
        let profile = self.known.profile;
        let (mut judged_by, mut lines) = (String::new(), String::new());
        if profile.is_whole {
            lines = format!(", in {}", counted(profile.n_lines, "line"));
        } else {
            let n_read = grouped(profile.sample.len() as u64);
            judged_by = format!("judged by its first {n_read} bytes, which is all that was read, about ");
        }
        let Some(characters) = &profile.characters else {
            return format!("{judged_by}{} bytes, taken as they are", grouped(profile.bytes));
        };
        format!(
            "{judged_by}{} characters ({} bytes), {} different ones{lines}",
            grouped(characters.n),
            grouped(profile.bytes),
            grouped(characters.n_distinct as u64)
        )
    }

    /// The keys for reading the text that do not have their defaults.
    fn how_read(&self) -> String {
        let DataConfig { format, text_field, include, exclude, skip_bad_files, .. } = &self.choice.config.data;
        let mut keys = Vec::new();
        let mut add = |key: &str, value: String| keys.push(format!("\n{key} = {value}"));
        if *format != TextFormat::Auto {
            add("format", literal(format));
        }
        if *text_field != DataConfig::default().text_field {
            add("text_field", literal(text_field));
        }
        for (key, patterns) in [("include", include), ("exclude", exclude)] {
            if !patterns.is_empty() {
                add(key, literal(patterns));
            }
        }
        if *skip_bad_files {
            keys.push("\nskip_bad_files = true".to_owned());
        }
        keys.concat()
    }

    /// The key with its reason; empty for a tokenizer of fixed size.
    fn vocab_size(&self) -> String {
        if self.choice.config.tokenizer.kind != TokenizerKind::Bpe {
            return String::new();
        }
        format!(
            "\n# A piece for each 500 bytes of the text or so, as a power of two from 512 to 4096. About {} \
             tokens in all.\nvocab_size = {}",
            whole(self.choice.train_tokens + self.choice.val_tokens),
            self.known.token_choice.size
        )
    }

    fn why_size(&self) -> String {
        let Choice { train_tokens, epochs, text_limits_model, .. } = self.choice;
        let model = &self.choice.config.model;
        let parameters = parameters_in_blocks(model.n_layers, model.d_model);
        if *text_limits_model {
            let per_token = short(parameters / train_tokens);
            return format!(
                "{per_token} of them in the blocks for each token of the training split; a larger model would memorize \
                 so short a text."
            );
        }
        let (n, time) = (short(epochs * train_tokens / parameters), minutes(self.known.request.minutes));
        format!(
            "and for each of those in the blocks it reads {n} tokens in {time}; a larger model would read too few to \
             learn as much."
        )
    }

    fn why_dropout(&self) -> String {
        let epochs = short(self.choice.epochs);
        if self.choice.config.model.dropout > 0.0 {
            format!("The run reads the text {epochs} times; dropout makes it harder to memorize.")
        } else if self.choice.epochs < 8.0 {
            format!("Off: the run reads the text only {epochs} times.")
        } else {
            format!("Off: the run reads the text {epochs} times, but the model is too small to memorize it.")
        }
    }

    fn why_steps(&self) -> String {
        let Choice { config, speed, epochs, text_ends_first, .. } = self.choice;
        let time = duration(config.train.max_steps as f64 * speed.step.median_ms / 1e3);
        let (epochs, wanted) = (short(*epochs), minutes(self.known.request.minutes));
        if *text_ends_first {
            return format!(
                "{epochs} times through the text, about {time} of your {wanted}: more steps would only memorize it. \
                 More text would use more time."
            );
        }
        let step = milliseconds(speed.step.median_ms);
        format!(
            "About {time} at {step} a step; evaluations, samples and checkpoints take the rest of your \
             {wanted}. {epochs} times through the text."
        )
    }
}

fn minutes(minutes: f64) -> String {
    let s = if (minutes - 1.0).abs() < f64::EPSILON { "" } else { "s" };
    format!("{minutes} minute{s}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::autoconfig::TITLE;

    #[test]
    fn template_begins_with_title() {
        assert!(include_str!("template.toml").starts_with(TITLE));
    }

    proptest! {
        #[test]
        fn texts_survive_the_template(text in any::<String>()) {
            let page = wrapped(&format!("# {}\ntext = {}\n", one_line(&text), literal(&text)));
            let table: toml::Table = toml::from_str(&page).unwrap();
            prop_assert_eq!(table["text"].as_str(), Some(&*text));
            prop_assert!(page.lines().rev().skip(1).all(|line| line.starts_with('#')));
        }
    }
}
