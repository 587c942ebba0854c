//! Measures how much the loss rises without each part of a model.

use std::collections::HashMap;

use burn::tensor::Tensor;
use serde::Serialize;

use super::InspectError;
use super::capture::{LOGITS, host};
use super::part::{ModelPart, Replace, Replacement, Substitute};
use tinderbox_kernels as kernels;
use tinderbox_model::probe::{Point, Probe, Site};
use tinderbox_model::{Batch, Gpt};

/// The method of removing a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// Its values are replaced by zeros.
    Zero,
    /// Its values are replaced by their mean over all measured tokens.
    Mean,
}

/// The loss of a model, and of the same model without each of its parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablation {
    /// The number of predicted tokens.
    pub tokens: usize,
    /// The mean loss of the intact model, in nats per token.
    pub loss: f64,
    /// Every part that was removed, in descending order of loss without it.
    pub parts: Vec<Ablated>,
}

/// The loss without one part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablated {
    /// The part.
    #[serde(flatten)]
    pub part: ModelPart,
    /// The mean loss with [`Removal::Zero`], in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero: Option<f64>,
    /// The mean loss with [`Removal::Mean`], in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
}

impl Ablation {
    /// Removes each part in turn, by each of `methods`, and measures the loss on `batches`, which is called for each
    /// pass over them.
    ///
    /// # Panics
    /// If there are no methods, or no batches.
    pub fn new<B: Iterator<Item = Batch>>(
        model: &Gpt,
        batches: impl Fn() -> B,
        methods: &[Removal],
    ) -> Result<Self, InspectError> {
        assert!(!methods.is_empty(), "no method of removal");
        let (tokens, loss) = mean_loss(model, batches(), &mut Replace::default())?;
        let means = if methods.contains(&Removal::Mean) { means(model, batches())? } else { HashMap::new() };
        let without = |part: ModelPart, method| -> Result<_, InspectError> {
            if !methods.contains(&method) {
                return Ok(None);
            }
            let substitute = match method {
                Removal::Zero => Substitute::Zero,
                Removal::Mean => Substitute::Mean(means[&part.site()].clone()),
            };
            let mut probe = Replace(vec![Replacement { part, position: None, substitute }]);
            Ok(Some(mean_loss(model, batches(), &mut probe)?.1))
        };
        let ablated =
            |part| Ok(Ablated { part, zero: without(part, Removal::Zero)?, mean: without(part, Removal::Mean)? });
        let parts = ModelPart::writers(model.config()).into_iter().map(ablated);
        let mut parts = parts.collect::<Result<Vec<_>, InspectError>>()?;
        // By means if measured: zeros are further from anything that the rest of the model has seen.
        let loss_without = |it: &Ablated| it.mean.or(it.zero).expect("at least one method was measured");
        parts.sort_by(|a, b| loss_without(b).total_cmp(&loss_without(a))); // stable
        Ok(Self { tokens, loss, parts })
    }
}

/// The number of predicted tokens, and their mean loss in nats.
fn mean_loss(
    model: &Gpt,
    batches: impl Iterator<Item = Batch>,
    probe: &mut impl Probe,
) -> Result<(usize, f64), InspectError> {
    let (mut n_tokens, mut total) = (0, 0.0);
    for batch in batches {
        let n = batch.n_targets();
        let (inputs, targets) = batch.to_device(&model.device());
        let logits = model.forward_with(inputs, None, probe); // [B, T, V]
        let loss = kernels::cross_entropy_of_logits(logits.flatten(0, 1), targets.tokens);
        total += f64::from(host(loss)?[0]) * n as f64;
        n_tokens += n;
    }
    let loss = total / n_tokens as f64;
    if loss.is_finite() { Ok((n_tokens, loss)) } else { Err(InspectError::NotFinite(LOGITS)) }
}

/// The parts' mean values over rows and positions, by site: `[C]`, or `[H * D]` for heads.
fn means(model: &Gpt, batches: impl Iterator<Item = Batch>) -> Result<HashMap<Site, Tensor<1>>, InspectError> {
    let mut sums: HashMap<Site, Vec<f64>> = HashMap::new();
    let mut n_tokens = 0;
    for batch in batches {
        n_tokens += batch.inputs.len();
        let (inputs, _) = batch.to_device(&model.device());
        let mut probe = ActivationSums::default();
        let _logits = model.forward_with(inputs, None, &mut probe);
        for (site, sum) in probe.0 {
            let sum = host(sum)?;
            let total = sums.entry(site).or_insert_with(|| vec![0.0; sum.len()]);
            for (total, x) in total.iter_mut().zip(sum) {
                *total += f64::from(x);
            }
        }
    }
    let mean = |(site, sum): (Site, Vec<f64>)| {
        #[allow(clippy::cast_possible_truncation, reason = "f32 is what a model computes in")]
        let mean: Vec<f32> = sum.iter().map(|x| (x / n_tokens as f64) as f32).collect();
        (site, Tensor::from_floats(&*mean, &model.device()))
    };
    Ok(sums.into_iter().map(mean).collect())
}

/// A probe that sums the parts' values over rows and positions.
#[derive(Debug, Default)]
struct ActivationSums(Vec<(Site, Tensor<1>)>);

impl Probe for ActivationSums {
    fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
        if matches!(site.point, Point::Heads | Point::Attention | Point::Mlp) {
            let sum = value.clone().sum_dims(&[0, D - 2]).flatten(0, D - 1);
            self.0.push((site, sum));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handmade::with_zero_rows;
    use crate::testing::{edited, louder, small_config};
    use tinderbox_model::config::ModelConfig;

    /// Rows of 8 tokens, 4 in a batch, and a shorter one.
    fn batches() -> impl Iterator<Item = Batch> {
        let ids: Vec<i32> = (0..150).map(|i| i * i % 11).collect();
        let sizes = [(0, 4, 8), (32, 4, 8), (64, 4, 8), (96, 4, 8), (128, 2, 8), (144, 1, 5)];
        sizes.into_iter().map(move |(start, batch_size, seq_len)| {
            let tokens = |first: usize| ids[first..first + batch_size * seq_len].to_vec();
            Batch { inputs: tokens(start), targets: tokens(start + 1), batch_size, seq_len, lengths: None }
        })
    }

    fn model() -> Gpt {
        louder(&ModelConfig { context_length: 8, bias: true, ..small_config() }.with_derived(), 11)
    }

    /// The loss of the model, and without a part, replaced by zeros and by means.
    fn losses(model: &Gpt, part: ModelPart) -> [f64; 3] {
        let ablation = Ablation::new(model, batches, &[Removal::Zero, Removal::Mean]).expect("finite values");
        let found = ablation.parts.iter().find(|ablated| ablated.part == part).expect("every part is ablated");
        [ablation.loss, found.zero.expect("zeros were asked for"), found.mean.expect("means were asked for")]
    }

    /// Replacing a head with zeros is the same as an output projection that does not read it.
    #[test]
    fn removal_equals_zeroed_weights() {
        for (part, name, rows) in [
            (ModelPart::Head { layer: 1, head: 1 }, "blocks.1.attention.output.weight", 4..8),
            (ModelPart::Mlp { layer: 0 }, "blocks.0.mlp.contract.weight", 0..32), // biases start at zero
        ] {
            let [whole, zero, _] = losses(&model(), part);
            let without = with_zero_rows(model(), &[(name, rows)]);
            let (_, expected) = mean_loss(&without, batches(), &mut Replace::default()).expect("the device computes");
            assert!((zero - expected).abs() < 1e-5, "{part}");
            assert!((zero - whole).abs() > 1e-4, "{part} did something");
        }
    }

    #[test]
    fn constant_part_equals_its_mean() {
        let constant = edited(model(), |path, tensor| match path {
            "blocks.0.mlp.contract.weight" => tensor.values.fill(0.0),
            "blocks.0.mlp.contract.bias" => tensor.values = [0.5, -1.0, 2.0, 0.0, 1.0, -0.5, 0.25, 3.0].repeat(2),
            _ => {}
        });
        let [whole, zero, mean] = losses(&constant, ModelPart::Mlp { layer: 0 });
        assert!((mean - whole).abs() < 1e-5);
        assert!((zero - whole).abs() > 1e-3);
    }
}
