//! How good a model is: its mean loss over a text.

use serde::Serialize;

use super::trainer::to_device;
use crate::data::{self, Batch, Tokens};
use crate::model::Gpt;

/// A mean loss, and what it is a mean of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Tokens that were predicted.
    pub tokens: usize,
    /// Mean cross-entropy, nats per token.
    pub nats_per_token: f64,
}

impl Loss {
    /// How many tokens the model was as unsure between, `exp(loss)`.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token.exp()
    }

    /// The loss in bits.
    #[must_use]
    pub fn bits_per_token(&self) -> f64 {
        self.nats_per_token / std::f64::consts::LN_2
    }

    /// The loss in bits for each byte of `text`: comparable between tokenizers.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "texts are below 2^52 bytes")]
    pub fn bits_per_byte(&self, text: &Tokens) -> f64 {
        self.bits_per_token() * text.len() as f64 / text.bytes().max(1) as f64
    }
}

/// The loss over every token of `text` but the first, in non-overlapping windows of the context.
///
/// `model` is one without gradients. `batch_size` windows go through it at once.
#[must_use]
pub fn full(model: &Gpt, text: &Tokens, batch_size: usize) -> Loss {
    mean(
        model,
        data::batch::windows(text, model.config().context_length, batch_size),
    )
}

/// The loss over `n_batches` batches that are spread evenly over `text`, always the same ones: a cheap
/// estimate of [`full`].
#[must_use]
pub fn estimate(model: &Gpt, text: &Tokens, batch_size: usize, n_batches: usize) -> Loss {
    mean(
        model,
        data::batch::spread(text, model.config().context_length, batch_size, n_batches),
    )
}

#[allow(clippy::cast_precision_loss, reason = "texts are below 2^52 tokens")]
fn mean(model: &Gpt, batches: impl Iterator<Item = Batch>) -> Loss {
    let device = model.device();
    let (mut total, mut n_tokens) = (0.0, 0);
    for batch in batches {
        let n = batch.targets.len();
        let (tokens, targets) = to_device(batch, &device);
        let loss: f32 = model.loss(tokens, targets, None).into_scalar();
        total += f64::from(loss) * n as f64;
        n_tokens += n;
    }
    Loss {
        tokens: n_tokens,
        nats_per_token: total / n_tokens as f64,
    }
}
