//! One sample's text in the making: its tokens, and what of them can be shown.

use super::sampler::Sampler;
use super::stop::StopTexts;
use crate::config::GenerateConfig;
use crate::tokenizer::{DecodeStream, Tokenizer};

/// A text that begins with a prompt, and grows by a token at a time.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    sampler: Sampler,
    decoder: DecodeStream,
    stops: StopTexts,
    tokens: Vec<u32>,
    left: usize,
    done: bool,
}

/// The logits were not numbers after so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotFinite(pub(super) usize);

impl Draft {
    /// The text of sample `sample_idx`, of which only the prompt is there.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: &[u32],
        sample_idx: u64,
    ) -> Self {
        Self {
            sampler: Sampler::new(config, sample_idx),
            decoder: DecodeStream::after(tokenizer, prompt),
            stops: StopTexts::new(&config.stop),
            tokens: prompt.to_vec(),
            left: config.max_new_tokens,
            done: config.max_new_tokens == 0,
        }
    }

    /// All tokens so far, the prompt's too.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether nothing more will come.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Chooses a token by these logits, and returns what can be shown now.
    pub(super) fn write(&mut self, logits: &[f32]) -> Result<String, NotFinite> {
        let token = self.sampler.choose(logits, &self.tokens);
        let token = token.ok_or(NotFinite(self.tokens.len()))?;
        self.tokens.push(token);
        self.left -= 1;
        let mut piece = self.decoder.push(token);
        let is_last = self.left == 0;
        if is_last {
            piece.push_str(&self.decoder.finish());
        }
        let (mut text, stopped) = self.stops.push(&piece);
        self.done = stopped || is_last;
        if self.done && !stopped {
            text.push_str(&self.stops.finish());
        }
        Ok(text)
    }
}
