//! The losses of preferences: pairs of a better and a worse answer to the same question.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};

use crate::config::{FinetuneConfig, PreferenceLoss};
use crate::data::Batch;
use tinderbox_kernels::{DropoutKey, IGNORE_INDEX, MatmulPrecision};
use tinderbox_model::Gpt;

/// The loss of pairs, and the base's log-odds of each.
#[derive(Debug)]
pub(super) struct Preference {
    kind: PreferenceLoss,
    beta: f64,
    /// By the tokens of a pair, how much likelier the base finds the better answer, in nats. Computed once and for each
    /// pair separately, so that a resumed run has the same bits.
    of_base: Mutex<HashMap<Vec<i32>, f32>>,
}

impl Preference {
    pub(super) fn new(config: &FinetuneConfig) -> Self {
        Self { kind: config.preference, beta: config.beta, of_base: Mutex::default() }
    }

    /// The sum of the losses of the pairs in a batch, `[1]`: its first half are the better answers.
    pub(super) fn loss(
        &self,
        model: &Gpt,
        batch: &Batch,
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
    ) -> Tensor<1> {
        let base = || model.valid().without_adapters();
        let goes_on: &mut dyn FnMut() -> bool = &mut || true;
        let (tokens, _) = batch.clone().to_device(&model.device());
        let means = model.row_losses(tokens, &batch.targets, precision, dropout, goes_on); // [2 n]
        let means = means.expect("nothing stops a step");
        let host = host(&means);
        let pairs = self.of_pairs(&host, &base, batch, precision, goes_on).expect("nothing stops a step");
        let slopes: Vec<f32> =
            [0, 1].into_iter().flat_map(|side| pairs.iter().map(move |pair| pair.slopes[side])).collect();
        let on_device = |numbers: &[f32]| Tensor::<1>::from_data(numbers, &model.device());
        // The difference is zero: it adds the gradients.
        let gradients = (means - on_device(&host)) * on_device(&slopes);
        gradients.sum() + pairs.iter().map(|pair| pair.loss).sum::<f64>()
    }

    /// The means over the pairs in a batch, `[3]`: the loss, the share of pairs whose better answer has the higher
    /// reward, and the difference between the rewards. A reward is what TRL calls one: beta times the log-probability of
    /// an answer, of `dpo` minus that of the model `base`, of `orpo` per token. `None` if `goes_on` says no.
    pub(super) fn measure(
        &self,
        model: &Gpt,
        base: &Gpt,
        batch: &Batch,
        precision: MatmulPrecision,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Tensor<1>> {
        let (tokens, _) = batch.clone().to_device(&model.device());
        let host = host(&model.row_losses(tokens, &batch.targets, precision, None, goes_on)?);
        let pairs = self.of_pairs(&host, &|| base.clone(), batch, precision, goes_on)?;
        let mean = |f: fn(&Pair) -> f64| pairs.iter().map(f).sum::<f64>() / pairs.len() as f64;
        let is_right = |pair: &Pair| f64::from(u8::from(pair.margin > 0.0));
        let means = [mean(|pair| pair.loss), mean(is_right), mean(|pair| pair.margin)];
        Some(Tensor::from_data(TensorData::from(means).convert::<f32>(), &model.device()))
    }

    /// The pairs of a batch with these mean losses of its rows, `[2 n]`; `None` if `goes_on` says no. Padding has no
    /// loss. Computed on the host, by functions that round alike on every system.
    fn of_pairs(
        &self,
        means: &[f32],
        base: &dyn Fn() -> Gpt,
        batch: &Batch,
        precision: MatmulPrecision,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<Vec<Pair>> {
        let n = batch.batch_size / 2;
        let counts: Vec<f64> = batch.targets.chunks(batch.seq_len).map(n_counted).collect();
        let of_pair = |pair: usize| {
            let [(chosen, n_chosen), (rejected, n_rejected)] =
                [pair, pair + n].map(|row| (f64::from(means[row]), counts[row]));
            if n_chosen == 0.0 {
                return Some(Pair::default());
            }
            Some(match self.kind {
                PreferenceLoss::Dpo => {
                    let of_base = f64::from(self.of_base(base, batch, pair, precision, goes_on)?);
                    let margin = (rejected * n_rejected - chosen * n_chosen - of_base) * self.beta;
                    let (loss, slope) = loss_of(margin);
                    let slope = slope * self.beta;
                    Pair { loss, margin, slopes: [-slope * n_chosen, slope * n_rejected].map(in_f32) }
                }
                PreferenceLoss::Orpo => {
                    // The logarithm of p / (1 - p), where p is the geometric mean of the tokens' probabilities, and its
                    // slope with respect to the mean loss.
                    let [(chosen_odds, chosen_slope), (rejected_odds, rejected_slope)] = [chosen, rejected]
                        .map(|mean| (-mean - libm::log(-libm::expm1(-mean)), libm::expm1(-mean).recip()));
                    let (loss, slope) = loss_of(chosen_odds - rejected_odds);
                    let [loss, slope] = [loss, slope].map(|x| x * self.beta);
                    let slopes = [1.0 + slope * chosen_slope, -slope * rejected_slope].map(in_f32);
                    Pair { loss: chosen + loss, margin: (rejected - chosen) * self.beta, slopes }
                }
            })
        };
        (0..n).map(of_pair).collect()
    }

    /// How much likelier the base finds the better answer of a pair, in nats.
    fn of_base(
        &self,
        base: &dyn Fn() -> Gpt,
        batch: &Batch,
        pair: usize,
        precision: MatmulPrecision,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<f32> {
        let (n, t) = (batch.batch_size / 2, batch.seq_len);
        let rows = [pair, pair + n].map(|row| row * t..(row + 1) * t);
        let end = |row: &std::ops::Range<usize>| {
            batch.targets[row.clone()].iter().rposition(|target| *target != IGNORE_INDEX).map_or(0, |last| last + 1)
        };
        let seq_len = rows.iter().map(end).max().unwrap_or(0);
        if seq_len == 0 {
            return Some(0.0);
        }
        let cut = |all: &[i32]| rows.iter().flat_map(|row| all[row.clone()][..seq_len].to_vec()).collect::<Vec<i32>>();
        let alone =
            Batch { inputs: cut(&batch.inputs), targets: cut(&batch.targets), batch_size: 2, seq_len, lengths: None };
        let key = [&alone.inputs[..], &alone.targets].concat();
        let known = |of_base: &HashMap<Vec<i32>, f32>| of_base.get(&key).copied();
        if let Some(known) = known(&self.of_base.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(known);
        }
        let base = base();
        let (tokens, _) = alone.clone().to_device(&base.device());
        let means = host(&base.row_losses(tokens, &alone.targets, precision, None, goes_on)?);
        let counts: Vec<f64> = alone.targets.chunks(seq_len).map(n_counted).collect();
        let [chosen, rejected] = [0, 1].map(|row| f64::from(means[row]) * counts[row]);
        let margin = in_f32(rejected - chosen);
        self.of_base.lock().unwrap_or_else(PoisonError::into_inner).insert(key, margin);
        Some(margin)
    }
}

/// A better and a worse answer to the same question.
#[derive(Debug, Default)]
struct Pair {
    loss: f64,
    /// How much higher the reward of the better answer is.
    margin: f64,
    /// The derivatives of the loss with respect to the mean losses of the better answer and of the worse one.
    slopes: [f32; 2],
}

/// `-ln(sigmoid(margin))`, and its derivative.
fn loss_of(margin: f64) -> (f64, f64) {
    let small = libm::exp(-margin.abs());
    let slope = if margin > 0.0 { small } else { 1.0 } / (1.0 + small);
    ((-margin).max(0.0) + libm::log1p(small), -slope)
}

/// The numbers of a tensor; NaN if the device failed, which reading the loss of the step reports.
fn host(x: &Tensor<1>) -> Vec<f32> {
    x.clone().try_into_vec_as().unwrap_or_else(|_| vec![f32::NAN; x.dims()[0]])
}

#[allow(clippy::cast_possible_truncation, reason = "the precision of a loss")]
fn in_f32(x: f64) -> f32 {
    x as f32
}

fn n_counted(targets: &[i32]) -> f64 {
    targets.iter().filter(|target| **target != IGNORE_INDEX).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_derivatives_of_losses() {
        let (inputs, targets) = (vec![1, 2, 3, 4, 5, 6], vec![2, 3, IGNORE_INDEX, 5, IGNORE_INDEX, IGNORE_INDEX]);
        let of_base = HashMap::from([(vec![1, 2, 4, 5, 2, 3, 5, IGNORE_INDEX], 0.7)]);
        let batch = Batch { inputs, targets, batch_size: 2, seq_len: 3, lengths: None };
        for kind in [PreferenceLoss::Dpo, PreferenceLoss::Orpo] {
            let preference = Preference { kind, beta: 0.4, of_base: Mutex::new(of_base.clone()) };
            let pair = |means: [f32; 2]| {
                let base = || -> Gpt { unreachable!("what the base says is known") };
                let pairs = preference.of_pairs(&means, &base, &batch, MatmulPrecision::F32, &mut || true);
                pairs.expect("nothing stops it").remove(0)
            };
            for means in [[0.25, 2.5], [2.0, 1.0], [0.25, 9.0], [9.0, 0.25]] {
                let slopes = pair(means).slopes;
                for (i, slope) in slopes.into_iter().enumerate() {
                    let moved = |by: f32| pair(std::array::from_fn(|j| means[j] + if i == j { by } else { 0.0 })).loss;
                    let want = (moved(1.0 / 1024.0) - moved(-1.0 / 1024.0)) * 512.0;
                    assert!((f64::from(slope) - want).abs() < 1e-4, "{kind:?} {means:?}: {slope}, not {want}");
                }
            }
        }
    }
}
