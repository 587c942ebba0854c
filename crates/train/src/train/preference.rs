//! The losses of preferences: pairs of a better and a worse answer to the same question.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Tensor, activation};

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
        let pairs = self.of_pairs(model, &base, batch, precision, dropout, &mut || true);
        let [losses, _, is_pair] = pairs.expect("nothing stops a step");
        (losses * is_pair).sum()
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
        let [losses, margins, _] = self.of_pairs(model, &|| base.clone(), batch, precision, None, goes_on)?;
        let is_right = margins.clone().greater_elem(0.0).float();
        Some(Tensor::cat([losses, is_right, margins].map(Tensor::mean).to_vec(), 0))
    }

    /// The loss of each pair, how much higher the reward of its better answer is, and 0 if it is padding, `[n]` each;
    /// `None` if `goes_on` says no.
    fn of_pairs(
        &self,
        model: &Gpt,
        base: &dyn Fn() -> Gpt,
        batch: &Batch,
        precision: MatmulPrecision,
        dropout: Option<DropoutKey>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Option<[Tensor<1>; 3]> {
        let (device, n) = (model.device(), batch.batch_size / 2);
        let (tokens, _) = batch.clone().to_device(&device);
        let means = model.row_losses(tokens, &batch.targets, precision, dropout, goes_on)?; // [2 n]
        let [chosen, rejected] = [0, n].map(|from| means.clone().narrow(0, from, n)); // [n] each
        let counts: Vec<f32> = batch.targets.chunks(batch.seq_len).map(n_counted).collect();
        let on_device = |numbers: &[f32]| Tensor::<1>::from_data(numbers, &device);
        // Padding rows.
        let is_pair: Vec<f32> = counts[..n].iter().map(|count| if *count > 0.0 { 1.0 } else { 0.0 }).collect();
        let [losses, margins] = match self.kind {
            PreferenceLoss::Dpo => {
                let of_base = (0..n).map(|pair| self.of_base(base, batch, pair, precision, goes_on));
                let of_base: Vec<f32> = of_base.collect::<Option<_>>()?;
                let [chosen_tokens, rejected_tokens] = [&counts[..n], &counts[n..]].map(on_device);
                let margins = (rejected * rejected_tokens - chosen * chosen_tokens - on_device(&of_base)) * self.beta;
                [-activation::log_sigmoid(margins.clone()), margins]
            }
            PreferenceLoss::Orpo => {
                // The logarithm of p / (1 - p), where p is the geometric mean of the tokens' probabilities. A padding
                // row has p = 1, which is clamped.
                let fill = on_device(&is_pair.iter().map(|pair| 1.0 - pair).collect::<Vec<f32>>());
                let log_odds = |mean: Tensor<1>| {
                    let log_p = -mean - fill.clone();
                    log_p.clone() - (-log_p.exp()).log1p()
                };
                let likelier = log_odds(chosen.clone()) - log_odds(rejected.clone());
                let margins = (rejected - chosen.clone()) * self.beta;
                [chosen - activation::log_sigmoid(likelier) * self.beta, margins]
            }
        };
        Some([losses, margins, on_device(&is_pair)])
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
        let means = base.row_losses(tokens, &alone.targets, precision, None, goes_on)?.try_into_vec_as::<f32>();
        let counts: Vec<f32> = alone.targets.chunks(seq_len).map(n_counted).collect();
        // Reading the loss of the step reports a failed device.
        let margin = means.map_or(f32::NAN, |means| means[1] * counts[1] - means[0] * counts[0]);
        self.of_base.lock().unwrap_or_else(PoisonError::into_inner).insert(key, margin);
        Some(margin)
    }
}

#[allow(clippy::cast_precision_loss, reason = "at most a context of targets")]
fn n_counted(targets: &[i32]) -> f32 {
    targets.iter().filter(|target| **target != IGNORE_INDEX).count() as f32
}
