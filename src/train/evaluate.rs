//! The mean loss of a model over a text.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorReadError};

use super::trainer::to_device;
use crate::data::{Batch, Split, batch};
use crate::generate::engine::{Decoder, Engine};
use crate::model::Gpt;
use tinderbox_kernels::MatmulPrecision;

/// A mean loss over some tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Tokens predicted.
    pub tokens: usize,
    /// Mean cross-entropy, nats per token.
    pub nats_per_token: f64,
}

impl Loss {
    /// `exp(loss)`: a uniform choice among this many tokens has the same loss.
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token.exp()
    }

    /// The loss in bits.
    pub fn bits_per_token(&self) -> f64 {
        self.nats_per_token / std::f64::consts::LN_2
    }

    /// The loss in bits per byte of `text`: comparable between tokenizers.
    pub fn bits_per_byte(&self, text: &Split) -> f64 {
        bits_per_byte(self.nats_per_token, text)
    }
}

/// A loss in nats per token of `text` as bits per byte of it.
pub(super) fn bits_per_byte(nats_per_token: f64, text: &Split) -> f64 {
    let tokens_per_byte = text.len() as f64 / text.bytes().max(1) as f64;
    nats_per_token / std::f64::consts::LN_2 * tokens_per_byte
}

/// Batches that go to the device before their losses are read back, which waits for it.
const BATCHES_AHEAD: usize = 16;

/// The loss over every token of `text` but the first, in non-overlapping windows of the context, always in f32.
///
/// `model` has no gradients. `batch_size` windows are computed at once.
///
/// # Errors
/// If the device fails.
pub fn full(model: &Gpt, text: &Split, batch_size: usize) -> Result<Loss, TensorReadError> {
    let loss = full_unless(model, text, batch_size, || false)?;
    Ok(loss.expect("not stopped"))
}

/// As [`full`], for a model that is packed for writing.
pub fn full_of_engine(engine: Arc<Engine>, text: &Split) -> Loss {
    let context_length = engine.config().context_length;
    let mut decoder = Decoder::new(engine, 1, context_length);
    let ids = |tokens: Vec<i32>| tokens.into_iter().map(i32::unsigned_abs).collect::<Vec<_>>(); // none is negative
    let (mut total, mut n_tokens) = (0.0, 0);
    for batch in batch::windows(text, context_length, 1) {
        let token_losses = decoder.token_losses(&ids(batch.inputs), &ids(batch.targets));
        total += token_losses.iter().map(|x| f64::from(*x)).sum::<f64>();
        n_tokens += token_losses.len();
    }
    Loss { tokens: n_tokens, nats_per_token: total / n_tokens as f64 }
}

/// As [`full`]; `None` if `is_stopped` returned true before some batch.
pub(super) fn full_unless(
    model: &Gpt,
    text: &Split,
    batch_size: usize,
    is_stopped: impl Fn() -> bool,
) -> Result<Option<Loss>, TensorReadError> {
    mean_unless(
        model,
        batch::windows(text, model.config().context_length, batch_size),
        MatmulPrecision::F32,
        is_stopped,
    )
}

/// A cheap estimate of [`full`]: the loss over `n_batches` batches spread evenly over `text`, products in `precision`.
///
/// # Errors
/// If the device fails.
pub fn estimate(
    model: &Gpt,
    text: &Split,
    batch_size: usize,
    n_batches: usize,
    precision: MatmulPrecision,
) -> Result<Loss, TensorReadError> {
    let loss = estimate_unless(model, text, batch_size, n_batches, precision, || false)?;
    Ok(loss.expect("not stopped"))
}

/// As [`estimate`]; `None` if `is_stopped` returned true before some batch.
pub(super) fn estimate_unless(
    model: &Gpt,
    text: &Split,
    batch_size: usize,
    n_batches: usize,
    precision: MatmulPrecision,
    is_stopped: impl Fn() -> bool,
) -> Result<Option<Loss>, TensorReadError> {
    let context_length = model.config().context_length;
    mean_unless(model, batch::spread(text, context_length, batch_size, n_batches), precision, is_stopped)
}

fn mean_unless(
    model: &Gpt,
    batches: impl Iterator<Item = Batch>,
    precision: MatmulPrecision,
    is_stopped: impl Fn() -> bool,
) -> Result<Option<Loss>, TensorReadError> {
    let batches = batches.take_while(|_| !is_stopped());
    let device = model.device();
    let (mut total, mut n_tokens) = (0.0, 0);
    let mut unread: Vec<(usize, Tensor<1>)> = Vec::new();
    let mut batches = batches.peekable();
    while let Some(batch) = batches.next() {
        let n = batch.targets.len();
        let (tokens, targets) = to_device(batch, &device);
        unread.push((n, model.loss(tokens, targets, precision, None)));
        if unread.len() == BATCHES_AHEAD || batches.peek().is_none() {
            let (sizes, losses): (Vec<usize>, Vec<Tensor<1>>) = unread.drain(..).unzip();
            for (n, loss) in sizes.into_iter().zip(Tensor::cat(losses, 0).try_into_vec_as::<f32>()?) {
                total += f64::from(loss) * n as f64;
                n_tokens += n;
            }
        }
    }
    Ok((!is_stopped()).then_some(Loss { tokens: n_tokens, nats_per_token: total / n_tokens as f64 }))
}
