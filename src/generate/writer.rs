//! The token iterator: text comes out piece by piece, as it is made.

use burn::tensor::{Int, Tensor, TensorData, TensorReadError};

use super::sampler::Sampler;
use super::stop::StopTexts;
use crate::attention::KvCache;
use crate::config::GenerateConfig;
use crate::model::Gpt;
use crate::tokenizer::{DecodeStream, Tokenizer, TokenizerError};

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error(
        "the prompt is empty\n  hint: give at least one character to write on from, such as --prompt \
         \"The\""
    )]
    EmptyPrompt,
    /// The prompt has what the tokenizer does not know.
    #[error("cannot use the prompt: {0}")]
    Prompt(#[from] TokenizerError),
    /// The device failed.
    #[error("the device failed: {0}\n  hint: try --device cpu")]
    Device(#[from] TensorReadError),
    /// The model's answer is not a number.
    #[error(
        "the model's logits are not numbers after {0} tokens\n  hint: its weights are damaged; use an \
         earlier one of the run's `checkpoints/step-N`"
    )]
    NotFinite(usize),
}

/// Writes on from a prompt; an iterator over pieces of text, each of whole characters.
///
/// When the context is full, the older half of it is forgotten and the newer half read anew, so that
/// writing goes on without end at a constant mean cost; what is forgotten no longer has an influence.
#[derive(Debug)]
pub struct Writer<'a> {
    model: &'a Gpt,
    config: GenerateConfig,
    sampler: Sampler,
    cache: KvCache,
    decoder: DecodeStream,
    stops: StopTexts,
    tokens: Vec<u32>,
    /// How many of `tokens` the cache no longer covers at its start.
    forgotten: usize,
    written: usize,
    done: bool,
}

impl<'a> Writer<'a> {
    /// A writer of sample `sample_idx`, which has read the prompt but written nothing.
    ///
    /// `model` is one without gradients, see `Module::valid`.
    ///
    /// # Errors
    /// If the prompt is empty, or has characters that the tokenizer does not know.
    pub fn new(
        model: &'a Gpt,
        tokenizer: &Tokenizer,
        config: &GenerateConfig,
        prompt: &str,
        sample_idx: u64,
    ) -> Result<Self, GenerateError> {
        let tokens = tokenizer.encode(prompt)?;
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        // Of a prompt that is longer than the context, the end counts.
        let forgotten = tokens.len().saturating_sub(model.config().context_length);
        Ok(Self {
            model,
            config: config.clone(),
            sampler: Sampler::new(config, sample_idx),
            cache: model.kv_cache(1),
            decoder: DecodeStream::after(tokenizer, &tokens),
            stops: StopTexts::new(&config.stop),
            tokens,
            forgotten,
            written: 0,
            done: false,
        })
    }

    /// The logits of the next token.
    fn next_logits(&mut self) -> Result<Vec<f32>, GenerateError> {
        let context_length = self.model.config().context_length;
        if self.tokens.len() - self.forgotten > context_length {
            self.forgotten = self.tokens.len() - (context_length / 2).max(1);
            self.cache.clear();
        }
        let unread = &self.tokens[self.forgotten + self.cache.len()..];
        let n = unread.len();
        let ids: Vec<i64> = unread.iter().map(|id| i64::from(*id)).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, n]), &self.model.device());
        let logits = self.model.forward_cached(ids, &mut self.cache); // [1, T, V]
        let last = logits.narrow(1, n - 1, 1); // [1, 1, V]
        Ok(last.reshape([-1]).try_into_vec_as::<f32>()?)
    }

    fn write_piece(&mut self) -> Result<String, GenerateError> {
        let logits = self.next_logits()?;
        let token = self
            .sampler
            .choose(&logits, &self.tokens)
            .ok_or(GenerateError::NotFinite(self.tokens.len()))?;
        self.tokens.push(token);
        self.written += 1;
        let mut piece = self.decoder.push(token);
        let is_last = self.written == self.config.max_new_tokens;
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

impl Iterator for Writer<'_> {
    type Item = Result<String, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done || self.config.max_new_tokens == 0 {
            return None;
        }
        let piece = self.write_piece();
        self.done |= piece.is_err();
        Some(piece)
    }
}
