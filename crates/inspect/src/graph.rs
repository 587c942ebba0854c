//! The largest contributions to a prediction as a graph, from tokens through heads and feed-forward layers to the answer.

use burn::module::Module;
use burn::tensor::Tensor;
use serde::Serialize;

use super::attribution::readout;
use super::capture::host;
use super::part::{Replace, Replacement, Substitute};
use super::vectors::dot;
use super::{Answer, Attribution, Component, InspectError, ModelPart, Prompt};
use tinderbox_model::Gpt;
use tinderbox_model::probe::{Point, Probe, Site};

/// The number of parts that are traced.
const N_PARTS: usize = 8;
/// A graph takes seconds up to this many products of a weight and a token.
const MOST_PRODUCTS: u64 = 20_000_000_000;

/// The parts that contribute most to a prediction, and the effect of each when it is switched off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionGraph {
    /// All contributions.
    #[serde(flatten)]
    pub attribution: Attribution,
    /// Heads and feed-forward layers, the largest contribution first.
    pub parts: Vec<TracedPart>,
}

/// A part, and where its contribution comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TracedPart {
    /// A head or a feed-forward layer.
    #[serde(flatten)]
    pub part: ModelPart,
    /// Its contribution to the difference, in logits (nats): what the output layer reads of it.
    pub predicted: f64,
    /// By how much the difference falls if its output after this token is zero, in logits (nats). Later layers, which
    /// read it, too, and the norm's scale then change.
    pub measured: f64,
    /// The contribution of a head by the token whose value it gathers, up to the predicting token; empty for a
    /// feed-forward layer.
    pub from: Vec<f64>,
}

impl PredictionGraph {
    /// Traces the largest contributions to the prediction after the token at `position`.
    ///
    /// # Errors
    /// As for [`Attribution::new`].
    pub fn new(
        model: &Gpt,
        prompt: &Prompt,
        position: usize,
        answer: Answer,
        against: Option<Answer>,
    ) -> Result<Self, InspectError> {
        Self::of_largest(model, prompt, position, [Some(answer), against], N_PARTS)
    }

    /// Whether the model is small, and the prompt short, enough to trace a prediction in seconds.
    pub fn is_quick(model: &Gpt, prompt: &Prompt) -> bool {
        (model.num_params() * prompt.len() * N_PARTS) as u64 <= MOST_PRODUCTS
    }

    fn of_largest(
        model: &Gpt,
        prompt: &Prompt,
        position: usize,
        [answer, against]: [Option<Answer>; 2],
        n_parts: usize,
    ) -> Result<Self, InspectError> {
        let answer = answer.expect("a prediction has an answer");
        let more = [Point::Values, Point::Weights];
        let (attribution, recording, reads) = Attribution::traced(model, prompt, position, answer, against, &more)?;
        let readout = readout(model, [Some(&attribution.answer), attribution.against.as_ref()])?;
        let config = model.config();
        let group = config.n_heads / config.n_kv_heads;
        let mut parts = Vec::new();
        for term in attribution.ranked() {
            let (part, from) = match term.component {
                Component::Head { layer, head } => {
                    let weights = recording.row(layer, head, position);
                    let values = recording.get(layer, Point::Values);
                    let read = &reads[layer * config.n_heads + head];
                    let of_token = |at: usize| f64::from(weights[at]) * dot(values.vector(head / group, at), read);
                    (ModelPart::Head { layer, head }, (0..=position).map(of_token).collect())
                }
                Component::Mlp { layer } => (ModelPart::Mlp { layer }, Vec::new()),
                _ => continue,
            };
            if parts.len() == n_parts {
                break;
            }
            let measured = attribution.difference - dot(&without(model, prompt, part, position)?, &readout);
            parts.push(TracedPart { part, predicted: term.logit, measured, from });
        }
        Ok(Self { attribution, parts })
    }
}

/// The normed residual stream after a token if the output of a part is zero there: `[C]`.
fn without(model: &Gpt, prompt: &Prompt, part: ModelPart, position: usize) -> Result<Vec<f32>, InspectError> {
    struct Without(Replace, usize, Option<Tensor<1>>);
    impl Probe for Without {
        fn visit<const D: usize>(&mut self, site: Site, value: Tensor<D>) -> Tensor<D> {
            let value = self.0.visit(site, value);
            if site.point == Point::Norm {
                self.2 = Some(value.clone().narrow(D - 2, self.1, 1).reshape([-1]));
            }
            value
        }
    }
    let zero = Replacement { part, position: Some(position), substitute: Substitute::Zero };
    let mut probe = Without(Replace(vec![zero]), position, None);
    let _logits = model.forward_with(prompt.tokens(&model.device()), None, &mut probe);
    host(probe.2.expect("every model has a last norm"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{louder, prompt, small_config};
    use tinderbox_model::tokenizer::Tokenizer;

    #[test]
    fn contributions_of_tokens_add_up_and_effects_are_measured() {
        let (model, tokenizer, prompt) = (louder(&small_config(), 256), Tokenizer::byte(), prompt("hello you"));
        let answer = |text| Answer::read(text, &tokenizer).expect("the text is one byte");
        let answers = [answer("a"), answer("b")].map(Some);
        let graph = |n| PredictionGraph::of_largest(&model, &prompt, 8, answers.clone(), n);
        let few = graph(3).expect("finite values");
        let graph = graph(99).expect("finite values");
        assert_eq!(graph.parts.len(), 2 * (4 + 1), "every head and feed-forward layer");
        let difference = |logits: &[f32]| f64::from(logits[usize::from(b'a')]) - f64::from(logits[usize::from(b'b')]);
        let mut n_last = 0;
        for TracedPart { part, predicted, measured, from } in &graph.parts {
            if let ModelPart::Head { .. } = part {
                assert_eq!(from.len(), 9);
                let sum: f64 = from.iter().sum();
                assert!((sum - predicted).abs() < 1e-4, "{part}: {sum} {predicted}");
            }
            // The last layer is read by the output alone, so that it makes no difference where else it is zero.
            if matches!(part, ModelPart::Head { layer: 1, .. } | ModelPart::Mlp { layer: 1 }) {
                let mut zeros = Replace::by_zeros(&[*part]);
                let logits = model.forward_with(prompt.tokens(&model.device()), None, &mut zeros).narrow(1, 8, 1);
                let fall = graph.attribution.difference - difference(&host(logits).expect("finite values"));
                assert!((fall - measured).abs() < 1e-3, "{part}: {fall} {measured}");
                n_last += 1;
            }
        }
        assert_eq!(n_last, 4 + 1);
        assert_eq!(few.parts[..], graph.parts[..3]);
    }
}
