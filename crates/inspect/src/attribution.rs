//! Decomposes a logit into a sum over the parts of the model that write to the residual stream.
//!
//! Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2022,
//! "Interpretability in the Wild", section 3.1.

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;

use super::capture::{capture, host};
use super::vectors::{dot, mean, minus};
use super::{Answer, InspectError, Prompt, Recording};
use tinderbox_model::config::NormKind;
use tinderbox_model::probe::Point;
use tinderbox_model::{Gpt, Norm};

/// The difference between a token's logit and another's, or the mean of all, as a sum over parts.
///
/// The residual stream is a sum, and the output layer is linear. Only the norm between them is not: its scale is taken
/// from the whole residual stream and applied to each part. Soft-capped logits are taken before the cap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attribution {
    /// The token that the prediction follows, counted from 0.
    pub position: usize,
    /// The predicted token whose logit is explained.
    pub answer: Answer,
    /// The token whose logit is subtracted; `None` for the mean of all.
    pub against: Option<Answer>,
    /// The answer's logit minus the other, as the model computed them.
    pub difference: f64,
    /// The contribution of each part, in the model's order; their sum is the difference.
    pub terms: Vec<Term>,
}

/// The contribution of one part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Term {
    /// The part.
    #[serde(flatten)]
    pub component: Component,
    /// Its contribution in logits (nats).
    pub logit: f64,
}

/// A summand of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "part", rename_all = "snake_case")]
#[allow(missing_docs, reason = "layers and heads count from 0")]
pub enum Component {
    /// The token embedding.
    Token,
    /// The position embedding, if positions are learned.
    Position,
    /// The values gathered by one head, through its rows of the output projection.
    Head { layer: usize, head: usize },
    /// The bias of an attention layer's output projection, and of the norm after it.
    AttentionBias { layer: usize },
    /// A feed-forward layer, its bias included.
    Mlp { layer: usize },
    /// The bias of the final norm.
    NormBias,
}

impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token => f.write_str("token embedding"),
            Self::Position => f.write_str("position embedding"),
            Self::Head { layer, head } => write!(f, "layer {layer} head {head}"),
            Self::AttentionBias { layer } => write!(f, "layer {layer} attention bias"),
            Self::Mlp { layer } => write!(f, "layer {layer} mlp"),
            Self::NormBias => f.write_str("final norm's bias"),
        }
    }
}

impl Attribution {
    /// Decomposes the logit of `answer` after the token at `position`, minus that of `against` or the mean of all.
    ///
    /// # Errors
    /// If `position` is past the prompt, both answers are the same, or in the same cases as [`capture()`].
    pub fn new(
        model: &Gpt,
        prompt: &Prompt,
        position: usize,
        answer: Answer,
        against: Option<Answer>,
    ) -> Result<Self, InspectError> {
        Ok(Self::traced(model, prompt, position, answer, against, &[])?.0)
    }

    /// The same, with a recording of `more` points, too, and what multiplies the values that each head gathers:
    /// `[L * H]` of `[D]`.
    pub(super) fn traced(
        model: &Gpt,
        prompt: &Prompt,
        position: usize,
        answer: Answer,
        against: Option<Answer>,
        more: &[Point],
    ) -> Result<(Self, Recording, Vec<Vec<f64>>), InspectError> {
        prompt.check(position)?;
        if against.as_ref() == Some(&answer) {
            return Err(InspectError::SameAnswers(answer.token));
        }
        let points =
            [Point::Embedding, Point::Heads, Point::Attention, Point::Mlp, Point::Residual, Point::Norm, Point::Logits];
        let recording = capture(model, prompt, &[&points[..], more].concat())?;
        let logits = uncapped_logits(model, &recording, position)?;
        let other = match &against {
            Some(against) => f64::from(logits[against.id as usize]),
            None => mean(&logits),
        };
        let difference = f64::from(logits[answer.id as usize]) - other;
        let (terms, reads) = terms(model, prompt, &recording, position, [Some(&answer), against.as_ref()])?;
        Ok((Self { position, answer, against, difference, terms }, recording, reads))
    }

    /// The sum of all terms: [`Attribution::difference`] up to rounding.
    pub fn sum(&self) -> f64 {
        self.terms.iter().map(|term| term.logit).sum()
    }

    /// The terms, the largest by absolute value first.
    pub fn ranked(&self) -> Vec<Term> {
        let mut terms = self.terms.clone();
        terms.sort_by(|a, b| b.logit.abs().total_cmp(&a.logit.abs())); // stable
        terms
    }
}

/// The logits after a token, before the cap, which is not linear.
fn uncapped_logits(model: &Gpt, recording: &Recording, position: usize) -> Result<Vec<f32>, InspectError> {
    if model.config().logit_softcap.is_none() {
        return Ok(recording.get(None, Point::Logits).vector(0, position).to_vec());
    }
    let normed = recording.get(None, Point::Norm).vector(0, position);
    let normed = Tensor::<2>::from_data(TensorData::new(normed.to_vec(), [1, normed.len()]), &model.device());
    host(normed.matmul(model.unembedding())) // [1, V]
}

fn terms(
    model: &Gpt,
    prompt: &Prompt,
    recording: &Recording,
    position: usize,
    answers: [Option<&Answer>; 2],
) -> Result<(Vec<Term>, Vec<Vec<f64>>), InspectError> {
    let config = model.config();
    let last = recording.get(config.n_layers - 1, Point::Residual);
    let (direction, norm_bias) = direction(model, answers, last.vector(0, position))?;
    let (mut terms, mut reads) = (Vec::new(), Vec::new());
    let mut add = |component, logit| terms.push(Term { component, logit });

    // A block's input may be a multiple of the stream plus a multiple of the embedding.
    let (mut of_embedding, mut kept) = (1.0, vec![1.0; config.n_layers]);
    for (layer, block) in model.blocks.iter().enumerate() {
        let Some(factors) = &block.skip_factors else { continue };
        let [a, b] = [0, 1].map(|i| factors.val().narrow(0, i, 1));
        let (a, b) = (f64::from(host(a)?[0]), f64::from(host(b)?[0]));
        of_embedding = a * of_embedding + b;
        kept[..layer].iter_mut().for_each(|kept| *kept *= a);
    }
    let id = prompt.ids[position] as usize;
    let token = host(model.token_embedding.weight().narrow(0, id, 1) * config.embedding_scale)?; // [C]
    add(Component::Token, of_embedding * dot(&token, &direction));
    if model.position_embedding.is_some() {
        let embedding = recording.get(None, Point::Embedding).vector(0, position);
        add(Component::Position, of_embedding * dot(&minus(embedding, &token), &direction));
    }
    for (layer, block) in model.blocks.iter().enumerate() {
        let output = &block.attention.output;
        let kept = kept[layer] * config.residual_scale;
        let before = |norm: &Option<Norm>, point: Point| {
            let output = recording.get(layer, point).vector(0, position);
            let pulled = norm.as_ref().map(|norm| pull_back(norm, config.norm, &direction, output, &model.device()));
            pulled.unwrap_or_else(|| Ok((direction.clone(), None)))
        };
        let (into_attention, attention_norm_bias) = before(&block.post_attention_norm, Point::Attention)?;
        let (into_mlp, mlp_norm_bias) = before(&block.post_mlp_norm, Point::Mlp)?;
        let projection = host(output.weight())?; // [H D, C], row by row
        let into_logit: Vec<f64> = projection.chunks(config.d_model).map(|row| dot(row, &into_attention)).collect();
        for (head, of_head) in into_logit.chunks(config.head_dim).enumerate() {
            let gathered = recording.get(layer, Point::Heads).vector(head, position);
            let read: Vec<f64> = of_head.iter().map(|x| kept * x).collect();
            add(Component::Head { layer, head }, dot(gathered, &read));
            reads.push(read);
        }
        let bias = output.bias().map(|bias| Ok::<_, InspectError>(dot(&host(bias)?, &into_attention))).transpose()?;
        if let Some(bias) = bias.into_iter().chain(attention_norm_bias).reduce(|a, b| a + b) {
            add(Component::AttentionBias { layer }, kept * bias);
        }
        let of_mlp = dot(recording.get(layer, Point::Mlp).vector(0, position), &into_mlp);
        add(Component::Mlp { layer }, kept * (of_mlp + mlp_norm_bias.unwrap_or(0.0)));
    }
    if let Some(logit) = norm_bias {
        add(Component::NormBias, logit);
    }
    Ok((terms, reads))
}

/// The direction `u` such that `u · part` is the contribution of a part of the residual stream to the logit difference,
/// with the final norm's scale for `residual`; and the contribution of the norm's bias.
fn direction(
    model: &Gpt,
    answers: [Option<&Answer>; 2],
    residual: &[f32],
) -> Result<(Vec<f64>, Option<f64>), InspectError> {
    pull_back(&model.norm, model.config().norm, &readout(model, answers)?, residual, &model.device())
}

/// The vector whose product with the normed residual stream is the logit difference.
pub(super) fn readout(model: &Gpt, [answer, against]: [Option<&Answer>; 2]) -> Result<Vec<f64>, InspectError> {
    let unembedding = model.unembedding(); // [C, V]
    let column = |answer: Option<&Answer>| {
        host(match answer {
            Some(answer) => unembedding.clone().narrow(1, answer.id as usize, 1),
            None => unembedding.clone().mean_dim(1),
        })
    };
    Ok(minus(&column(answer)?, &column(against)?))
}

/// Pulls `direction` back through a norm: the vector `u` such that `u · part` equals `direction · norm(part)`, with the
/// scale of the whole `input`; and the product of `direction` and the norm's bias, if it has one.
fn pull_back(
    norm: &Norm,
    kind: NormKind,
    direction: &[f64],
    input: &[f32],
    device: &Device,
) -> Result<(Vec<f64>, Option<f64>), InspectError> {
    let bias = norm.bias.as_ref().map(|bias| host(bias.val())).transpose()?;
    let bias = bias.map(|bias| dot(&bias, direction));
    let weight = host(norm.scale(device))?;
    // A layer norm subtracts the mean of its input; a product allows subtracting it from the other factor instead.
    let is_centred = kind == NormKind::LayerNorm;
    let middle = if is_centred { mean(input) } else { 0.0 };
    let squares: Vec<f64> = input.iter().map(|x| (f64::from(*x) - middle).powi(2)).collect();
    let scale = (mean(&squares) + norm.epsilon()).sqrt();
    let pulled: Vec<f64> = direction.iter().zip(&weight).map(|(u, w)| u * f64::from(*w) / scale).collect();
    let middle = if is_centred { mean(&pulled) } else { 0.0 };
    Ok((pulled.iter().map(|x| x - middle).collect(), bias))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, edited, prompt, small_config};
    use tinderbox_model::config::{MlpKind, ModelConfig, PositionKind};
    use tinderbox_model::tokenizer::Tokenizer;

    /// Every kind of norm, position and bias, tied and untied, heads that share keys.
    #[test]
    fn terms_sum_to_logit_difference() {
        for (norm, position, bias, tie_embeddings, parallel_residual) in [
            (NormKind::LayerNorm, PositionKind::Learned, true, true, false),
            (NormKind::LayerNorm, PositionKind::Rope, false, false, true),
            (NormKind::RmsNorm, PositionKind::Rope, true, true, false),
            (NormKind::RmsNorm, PositionKind::Learned, false, false, false),
        ] {
            let mlp = MlpKind::Swiglu;
            let config = ModelConfig { n_layers: 3, norm, position, bias, tie_embeddings, mlp, ..small_config() };
            // Heads that together are wider than the model.
            let config = ModelConfig { head_dim: 6, parallel_residual, ..config.with_derived() };
            let config = ModelConfig { post_norm: position == PositionKind::Rope, ..config };
            let logit_softcap = tie_embeddings.then_some(0.5);
            let config = ModelConfig { logit_softcap, embedding_skip: bias, norm_weights: !tie_embeddings, ..config };
            let scale = if tie_embeddings { 1.5 } else { 1.0 };
            let config =
                ModelConfig { embedding_scale: scale, residual_scale: 0.5 * scale, logit_scale: scale, ..config };
            // Biases and scales unlike those of a new model, and numbers large enough to matter.
            let model = edited(testing::model(&config), |_, tensor| {
                let is_flat = tensor.shape.len() == 1;
                for (x, i) in tensor.values.iter_mut().zip((0_u8..7).cycle()) {
                    *x = if is_flat { *x + f32::from(i) / 10.0 - 0.3 } else { *x * 10.0 };
                }
            });
            let (tokenizer, prompt) = (Tokenizer::byte(), prompt("hello you"));
            let answer = |text| Answer::read(text, &tokenizer).expect("the text is one byte");
            for (position, against) in [(8, None), (0, Some(answer("b"))), (4, Some(answer("c")))] {
                let it = Attribution::new(&model, &prompt, position, answer("a"), against);
                let it = it.expect("the answers differ");
                assert!(it.difference.abs() > 1e-3, "{}", it.difference);
                let error = it.sum() - it.difference;
                assert!(error.abs() < 1e-4, "{norm:?} {position:?}: {error}");
                let has = |n: usize, condition: bool| if condition { n } else { 0 };
                let n_embeddings = 1 + has(1, config.position == PositionKind::Learned);
                let n_biases = has(3, bias) + has(1, bias && !tie_embeddings && norm == NormKind::LayerNorm);
                assert_eq!(it.terms.len(), n_embeddings + 3 * (4 + 1) + n_biases);
            }
            let same = Attribution::new(&model, &prompt, 1, answer("a"), Some(answer("a")));
            assert!(matches!(same, Err(InspectError::SameAnswers(_))));
            let far = Attribution::new(&model, &prompt, 9, answer("a"), None);
            assert!(matches!(far, Err(InspectError::OutOfRange { .. })));
        }
    }
}
