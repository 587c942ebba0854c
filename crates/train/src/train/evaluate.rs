//! The mean loss of a model over a text.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorReadError};

use crate::data::{Batch, BatchSource, Split};
use crate::distributed::{ExchangeDtype, Ranks};
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::Gpt;
use tinderbox_model::generate::engine::{Decoder, Engine};

/// The mean loss over a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// The number of predicted tokens.
    pub tokens: usize,
    /// Mean cross-entropy in nats per token.
    pub nats_per_token: f64,
}

impl Loss {
    /// The perplexity, `exp(loss)`: a uniform choice among this many tokens would have the same loss.
    pub fn perplexity(&self) -> f64 {
        libm::exp(self.nats_per_token)
    }

    /// The loss in bits per token.
    pub fn bits_per_token(&self) -> f64 {
        self.nats_per_token / std::f64::consts::LN_2
    }

    /// The loss in bits per byte of `text`, which is comparable between tokenizers.
    pub fn bits_per_byte(&self, text: &Split) -> f64 {
        bits_per_byte(self.nats_per_token, text.len() as f64 / text.bytes().max(1) as f64)
    }
}

/// Converts a loss in nats per token to bits per byte of the text.
pub(super) fn bits_per_byte(nats_per_token: f64, tokens_per_byte: f64) -> f64 {
    nats_per_token / std::f64::consts::LN_2 * tokens_per_byte
}

/// The number of batches sent to the device before their losses are read back, which synchronizes with the device.
const BATCHES_AHEAD: usize = 16;

/// The most tokens of a batch after an interrupt, or that may be interrupted: a layer of so many takes a moment.
const TOKENS_OF_A_MOMENT: usize = 8192;

/// The number of batches that each rank computes before all ranks exchange their losses and stop requests.
const BATCHES_OF_A_RANK: usize = 4;

/// The loss over every token of `data` but the first of each text, in non-overlapping windows of the context length,
/// always in f32.
///
/// `model` does not track gradients. `batch_size` windows are computed at once.
pub fn full(model: &Gpt, data: &dyn BatchSource, batch_size: usize) -> Result<Loss, TensorReadError> {
    mean(model, data.windows(model.config().context_length, batch_size), MatmulPrecision::F32)
}

/// `batch_size`, or fewer rows if these hold more than [`TOKENS_OF_A_MOMENT`].
pub(super) fn rows_of_a_moment(batch_size: usize, context_length: usize) -> usize {
    batch_size.min(TOKENS_OF_A_MOMENT / context_length).max(1)
}

/// Like [`full`], over at most `max_rows` rows, spread evenly over `data`, in batches that take moments. `goes_on` is asked
/// before each batch and each of its layers, with the numbers of batches done and of all; `None` if it said no.
pub fn rows_while(
    model: &Gpt,
    data: &dyn BatchSource,
    batch_size: usize,
    max_rows: usize,
    mut goes_on: impl FnMut(usize, usize) -> bool,
) -> Result<Option<Loss>, TensorReadError> {
    let context_length = model.config().context_length;
    let batch_size = rows_of_a_moment(batch_size, context_length);
    let batches = data.spread(context_length, batch_size, max_rows.div_ceil(batch_size));
    let n_batches = n_batches(&batches);
    mean_while(model, batches, MatmulPrecision::F32, &Ranks::alone(), |done| goes_on(done, n_batches))
}

/// The number of batches to come, or slightly more: the rests of short texts may be none.
pub(super) fn n_batches(batches: &impl Iterator<Item = Batch>) -> usize {
    let (at_least, at_most) = batches.size_hint();
    at_most.unwrap_or(at_least)
}

/// A cheap estimate of [`full`]: the loss over `n_batches` batches spread evenly over `data`, with matrix products in
/// `precision`.
pub fn estimate(
    model: &Gpt,
    data: &dyn BatchSource,
    batch_size: usize,
    n_batches: usize,
    precision: MatmulPrecision,
) -> Result<Loss, TensorReadError> {
    mean(model, data.spread(model.config().context_length, batch_size, n_batches), precision)
}

/// Like [`full`], for a model that is packed for generation.
pub fn full_of_engine(engine: Arc<Engine>, text: &Split) -> Loss {
    let context_length = engine.config().context_length;
    let mut decoder = Decoder::new(engine, 1, context_length);
    let ids = |tokens: Vec<i32>| tokens.into_iter().map(i32::unsigned_abs).collect::<Vec<_>>(); // none is negative
    let (mut total, mut n_tokens) = (0.0, 0);
    for batch in text.windows(context_length, 1) {
        let token_losses = decoder.token_losses(&ids(batch.inputs), &ids(batch.targets));
        total += token_losses.iter().map(|x| f64::from(*x)).sum::<f64>();
        n_tokens += token_losses.len();
    }
    Loss { tokens: n_tokens, nats_per_token: total / n_tokens as f64 }
}

fn mean(
    model: &Gpt,
    batches: impl Iterator<Item = Batch>,
    precision: MatmulPrecision,
) -> Result<Loss, TensorReadError> {
    Ok(mean_while(model, batches, precision, &Ranks::alone(), |_| true)?.expect("nothing stops this evaluation"))
}

/// The mean loss over all batches, as [`means_while`] computes it.
pub(super) fn mean_while(
    model: &Gpt,
    batches: impl Iterator<Item = Batch>,
    precision: MatmulPrecision,
    ranks: &Ranks,
    goes_on: impl FnMut(usize) -> bool,
) -> Result<Option<Loss>, TensorReadError> {
    let loss = |batch: Batch, goes_on: &mut dyn FnMut() -> bool| {
        let (tokens, targets) = batch.to_device(&model.device());
        model.loss_while(tokens, None, targets, precision, None, goes_on)
    };
    let means = means_while(batches, Batch::n_targets, loss, ranks, goes_on)?;
    Ok(means.map(|(tokens, [nats_per_token])| Loss { tokens, nats_per_token }))
}

/// The means of what `measure` returns of each batch, `[K]`, weighted by the number of what it is a mean of, and the
/// sum of these. The batches are divided among the ranks, which all call this function with the same weights; `None` if
/// `goes_on`, which is asked before each batch with the number of those done, and by `measure` within it, said no on
/// any rank. The numbers are added in batch order, no matter which rank computed them, so that ranks whose CPUs round
/// alike get the same result as a single process.
pub(super) fn means_while<const K: usize>(
    mut batches: impl Iterator<Item = Batch>,
    n_of: impl Fn(&Batch) -> usize,
    measure: impl Fn(Batch, &mut dyn FnMut() -> bool) -> Option<Tensor<1>>,
    ranks: &Ranks,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<Option<(usize, [f64; K])>, TensorReadError> {
    let n_of_round = if ranks.is_alone() { BATCHES_AHEAD } else { BATCHES_OF_A_RANK * ranks.size() };
    let (mut totals, mut n_all, mut n_done) = ([0.0; K], 0, 0);
    loop {
        let round: Vec<Batch> = batches.by_ref().take(n_of_round).collect();
        if round.is_empty() {
            break;
        }
        let sizes: Vec<usize> = round.iter().map(&n_of).collect();
        let goes_on = |place| goes_on(n_done + place);
        let Some(means) = means_of::<K>(round, &measure, ranks, goes_on)? else { return Ok(None) };
        n_done += sizes.len();
        for (n, means) in sizes.into_iter().zip(means.chunks_exact(K)) {
            totals.iter_mut().zip(means).for_each(|(total, mean)| *total += f64::from(*mean) * n as f64);
            n_all += n;
        }
    }
    Ok(Some((n_all, totals.map(|total| total / n_all as f64))))
}

/// The `K` numbers of each batch, computed by all ranks together; `None` if a rank was stopped.
fn means_of<const K: usize>(
    batches: Vec<Batch>,
    measure: &impl Fn(Batch, &mut dyn FnMut() -> bool) -> Option<Tensor<1>>,
    ranks: &Ranks,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Result<Option<Vec<f32>>, TensorReadError> {
    let n = K * batches.len();
    let mut means = vec![0.0; n + 1]; // the last element counts stopped ranks
    let (mut places, mut unread) = (Vec::new(), Vec::new());
    for (place, batch) in batches.into_iter().enumerate().filter(|(place, _)| place % ranks.size() == ranks.rank()) {
        let mut goes_on = || goes_on(place);
        let measured = if goes_on() { measure(batch, &mut goes_on) } else { None };
        let Some(measured) = measured else {
            means[n] = 1.0;
            break;
        };
        places.push(place);
        unread.push(measured);
    }
    let read = if unread.is_empty() { Ok(Vec::new()) } else { Tensor::cat(unread, 0).try_into_vec_as::<f32>() };
    for (idx, place) in places.into_iter().enumerate() {
        for i in 0..K {
            means[place * K + i] = read.as_ref().map_or(f32::NAN, |read| read[idx * K + i]);
        }
    }
    ranks.all_reduce(&mut means, ExchangeDtype::F32); // exact: each sum is of one number and zeros
    read?; // only after the all-reduce, so that the other ranks do not wait for a failed device
    let n_stopped = means.pop().expect("the last value is the number of stops");
    Ok((n_stopped < 0.5).then_some(means))
}
