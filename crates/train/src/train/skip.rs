//! Skipped steps: the weights stay unchanged because the loss or gradient is not finite or the loss is a spike.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::Tensor;

use crate::config::TrainConfig;
use crate::optimizer::{Gradients, layer_of};
use tinderbox_model::{Gpt, parameters};

/// The number of recent losses whose mean and standard deviation are used to detect spikes.
const N_RECENT: usize = 128;
/// The number of recent losses needed before spikes are detected.
const MIN_RECENT: usize = 64;

/// The reason why a step did not change the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// The name of the faulty value: `loss` or `gradient's norm`.
    pub what: &'static str,
    /// The faulty value.
    pub value: f32,
    /// The mean of the recent losses, if the loss is a spike; `None` if the value is not finite.
    pub usual: Option<f32>,
    /// The norms by layer, which show the layer at fault.
    pub norms: NormsByLayer,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, usual, norms } = self;
        match usual {
            Some(usual) => write!(f, "its loss {value:.4} is a spike above the usual {usual:.4}"),
            None => write!(f, "its {what} is {value}{norms}"),
        }
    }
}

/// Norms of gradients and weights by layer: `blocks.0`, `token_embedding` and so on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NormsByLayer(Vec<(String, Option<f64>, f64)>);

impl NormsByLayer {
    /// The norms of a model's weights and of the gradients, if these still exist.
    pub(super) fn new(model: &Gpt, gradients: Option<&Gradients>) -> Self {
        let mut layers: BTreeMap<String, (Option<f64>, f64)> = BTreeMap::new();
        let layer = |name: &str| layer_of(name).to_owned();
        let squares = |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        // Read one tensor at a time, and leave out tensors that a failed device cannot return.
        for (name, weight) in parameters::lazy(model) {
            if let Ok(weight) = weight.read() {
                layers.entry(layer(&name)).or_default().1 += squares(&weight.values);
            }
        }
        for (name, gradient) in gradients.into_iter().flat_map(Gradients::iter) {
            if let Ok(values) = gradient.clone().try_into_vec_as::<f32>() {
                *layers.entry(layer(name)).or_default().0.get_or_insert(0.0) += squares(&values);
            }
        }
        let roots =
            layers.into_iter().map(|(layer, (gradient, weight))| (layer, gradient.map(f64::sqrt), weight.sqrt()));
        Self(roots.collect())
    }
}

/// Writes a separate line below the fault, or nothing without layers.
impl fmt::Display for NormsByLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, gradient, _)) = self.0.first() else { return Ok(()) };
        let what = if gradient.is_some() { "gradients/weights" } else { "weights" };
        write!(f, "\n  norms of {what} by layer:")?;
        for (idx, (layer, gradient, weight)) in self.0.iter().enumerate() {
            let comma = if idx > 0 { "," } else { "" };
            write!(f, "{comma} {layer} ")?;
            if let Some(gradient) = gradient {
                write!(f, "{gradient:.3}/")?;
            }
            write!(f, "{weight:.3}")?;
        }
        Ok(())
    }
}

/// Detects steps that should not change the weights, from the losses of these and earlier steps.
#[derive(Clone, Debug, Default)]
pub(super) struct StepGuard {
    /// Whether the loss of each step is read before the update, which costs nothing on a CPU.
    pub reads: bool,
    /// A loss this many standard deviations above the mean is a spike; 0 turns detection off.
    spikes: f64,
    /// The recent losses, oldest first. Spikes are included, so that a loss that stays high becomes the usual loss.
    pub recent: Vec<f32>,
}

impl StepGuard {
    pub(super) fn new(config: &TrainConfig, is_cpu: bool) -> Self {
        let TrainConfig { skip_non_finite, skip_loss_spikes: spikes, .. } = *config;
        Self { reads: is_cpu || skip_non_finite || spikes > 0.0, spikes, recent: Vec::new() }
    }

    /// Checks a step before the update. Returns the name of the faulty value, the value, and the usual loss if the loss
    /// is a spike.
    pub(super) fn check(
        &mut self,
        loss: &Tensor<1>,
        gradient_norm: &Tensor<1>,
    ) -> Option<(&'static str, f32, Option<f32>)> {
        if !self.reads {
            return None;
        }
        // A value that cannot be read here cannot be read after the step either, where this is reported as an error.
        let read = Tensor::cat(vec![loss.clone(), gradient_norm.clone()], 0).try_into_vec_as::<f32>().ok()?;
        let [loss, gradient_norm] = read[..] else { return None };
        for (what, value) in [(LOSS, loss), (GRADIENT_NORM, gradient_norm)] {
            if !value.is_finite() {
                return Some((what, value, None));
            }
        }
        self.is_spike(loss).map(|usual| (LOSS, loss, Some(usual)))
    }

    /// Records `loss`; returns the usual loss if `loss` is a spike above it.
    fn is_spike(&mut self, loss: f32) -> Option<f32> {
        if self.spikes <= 0.0 {
            return None;
        }
        let n = self.recent.len() as f64;
        let mean = self.recent.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = self.recent.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let is_spike = self.recent.len() >= MIN_RECENT && f64::from(loss) > mean + self.spikes * variance.sqrt();
        if self.recent.len() == N_RECENT {
            self.recent.remove(0);
        }
        self.recent.push(loss);
        #[allow(clippy::cast_possible_truncation, reason = "a mean of f32")]
        let mean = mean as f32;
        is_spike.then_some(mean)
    }
}

/// The run ends after this many consecutive steps with a loss or gradient that is not finite.
const MAX_SKIPPED: usize = 100;

/// The name and value of the number that ends the run after a step; `None` if the run continues. `n_skipped` counts
/// consecutive steps whose loss or gradient was not finite.
pub(super) fn fault(
    config: &TrainConfig,
    n_skipped: &mut usize,
    skipped: Option<&Skipped>,
    [loss, gradient_norm]: [f32; 2],
) -> Option<(&'static str, f32)> {
    let is_spike = skipped.is_some_and(|skipped| skipped.usual.is_some());
    let Some(skipped) = skipped.filter(|_| !is_spike) else {
        *n_skipped = 0;
        let numbers = [(LOSS, loss), (GRADIENT_NORM, gradient_norm)];
        return numbers.into_iter().find(|(_, value)| !is_spike && !value.is_finite());
    };
    *n_skipped += 1;
    let goes_on = config.skip_non_finite && *n_skipped < MAX_SKIPPED;
    (!goes_on).then_some((skipped.what, skipped.value))
}

pub(super) const LOSS: &str = "loss";
pub(super) const GRADIENT_NORM: &str = "gradient's norm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spikes_are_relative_to_recent_losses() {
        let mut guard = StepGuard { reads: true, spikes: 4.0, recent: Vec::new() };
        let usual = |i: usize| if i.is_multiple_of(2) { 2.0 } else { 2.2 };
        assert!((0..MIN_RECENT).all(|i| guard.is_spike(if i == 3 { 9.0 } else { usual(i) }).is_none()), "too few");
        for i in 0..N_RECENT {
            assert_eq!(guard.is_spike(usual(i)), None);
        }
        assert_eq!(guard.recent.len(), N_RECENT, "the early one is forgotten");
        assert!(guard.is_spike(2.45).is_none());
        let mean = guard.is_spike(2.6).expect("the loss is a spike");
        assert!((mean - 2.1).abs() < 0.01, "{mean}");
        assert!(guard.clone().is_spike(-9.0).is_none(), "only upwards");
        let n_skipped = (0..N_RECENT).filter(|_| guard.is_spike(5.0).is_some()).count();
        assert!((1..N_RECENT / 2).contains(&n_skipped), "{n_skipped}");
    }

    #[test]
    fn run_survives_spikes_and_some_non_finite_steps() {
        let skipped = |usual| Skipped { what: LOSS, value: f32::NAN, usual, norms: NormsByLayer::default() };
        let (broken, spike) = (skipped(None), skipped(Some(1.0)));
        let strict = TrainConfig::default();
        let patient = TrainConfig { skip_non_finite: true, ..TrainConfig::default() };
        let mut n = 0;
        assert_eq!(fault(&strict, &mut n, None, [1.0, f32::INFINITY]), Some((GRADIENT_NORM, f32::INFINITY)));
        assert_eq!(fault(&strict, &mut n, None, [1.0, 2.0]), None);
        let mut ends = |config, skipped| fault(config, &mut n, skipped, [f32::NAN, 1.0]).is_some();
        assert!(ends(&strict, None) && ends(&strict, Some(&broken)) && !ends(&strict, Some(&spike)));
        assert!((1..MAX_SKIPPED).all(|_| !ends(&patient, Some(&broken))));
        assert!(!ends(&patient, Some(&spike)), "a step with numbers");
        assert!((1..MAX_SKIPPED).all(|_| !ends(&patient, Some(&broken))));
        assert!(ends(&patient, Some(&broken)));
    }
}
