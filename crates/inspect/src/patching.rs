//! Activation patching: finds the parts that carry the difference between two texts by patching values of one forward
//! pass into the other.
//!
//! Source: Meng et al. 2022, "Locating and Editing Factual Associations in GPT", section 2 (causal tracing); Wang
//! et al. 2022, "Interpretability in the Wild", section 3.

use burn::tensor::{Int, Tensor};
use serde::Serialize;

use super::capture::{capture, host};
use super::part::{ModelPart, Replace, Replacement, Substitute};
use super::{Answer, InspectError, Prompt, Recording};
use tinderbox_model::Gpt;
use tinderbox_model::probe::Point;

/// The effect of patching: how far each part's values from another text move the prediction towards that text's.
///
/// The prediction is the logit of one token minus that of another. Values are patched into the same positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Patching {
    /// The text of each token of the prompt, `[T]`.
    pub tokens: Vec<String>,
    /// The text of each token of the other prompt, `[T]`.
    pub from_tokens: Vec<String>,
    /// The token that the prediction follows, counted from 0.
    pub position: usize,
    /// The token whose logit is measured.
    pub answer: Answer,
    /// The token whose logit is subtracted.
    pub against: Answer,
    /// The logit difference after the prompt.
    pub difference: f64,
    /// The logit difference after the other prompt.
    pub from_difference: f64,
    /// The effect of each part, patched at all positions, in descending order.
    pub parts: Vec<Patched>,
    /// The share from patching the residual stream at one token, at the embedding and after each layer: `[1 + L][T]`.
    pub residual: Vec<Vec<f64>>,
}

/// The effect of patching one part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Patched {
    /// The part.
    #[serde(flatten)]
    pub part: ModelPart,
    /// The logit difference.
    pub difference: f64,
    /// How far the difference has moved from the prompt's, 0, to the other prompt's, 1; it may go past either.
    pub share: f64,
}

impl Patching {
    /// Reads `prompt` with each part's values replaced by those of a pass over `from`, and measures the logit of the
    /// first of `answers` minus that of the second after the token at `position`.
    ///
    /// # Errors
    /// In the same cases as [`Patching::check`] and [`capture()`], if both answers are the same, or if their difference
    /// is the same after both prompts.
    pub fn new(
        model: &Gpt,
        [prompt, from]: [&Prompt; 2],
        position: usize,
        answers: [Answer; 2],
    ) -> Result<Self, InspectError> {
        Self::check([prompt, from], position)?;
        let [answer, against] = answers;
        if answer == against {
            return Err(InspectError::SameAnswers(answer.token));
        }
        let patcher = Patcher::new(model, [prompt, from])?;
        let difference = |replacements: Vec<Replacement>| {
            let logits = patcher.logits(replacements, position)?;
            let [answer, against] = [&answer, &against].map(|of| logits[of.id as usize]);
            Ok::<f64, InspectError>(f64::from(answer) - f64::from(against))
        };
        let plain = difference(Vec::new())?;
        let last = ModelPart::Residual { layer: model.config().n_layers - 1 };
        let other = difference(vec![patcher.from(last, None)])?; // the other pass, completely
        let share = |difference: f64| (difference - plain) / (other - plain);
        if !share(other).is_finite() {
            return Err(InspectError::SameDifference(plain));
        }
        let with_part = |part| {
            let difference = difference(vec![patcher.from(part, None)])?;
            Ok(Patched { part, difference, share: share(difference) })
        };
        let parts = ModelPart::writers(model.config()).into_iter().map(with_part);
        let mut parts = parts.collect::<Result<Vec<_>, InspectError>>()?;
        parts.sort_by(|a, b| b.share.abs().total_cmp(&a.share.abs())); // stable

        let layers = (0..model.config().n_layers).map(|layer| ModelPart::Residual { layer });
        let mut residual = Vec::new();
        for stage in std::iter::once(ModelPart::Embedding).chain(layers) {
            // Before the first differing token both passes are the same, and later tokens cannot change the prediction.
            let carries = first_difference(&prompt.ids, &from.ids)..=position;
            let at_one = |at: usize| match carries.contains(&at) {
                true => Ok(share(difference(vec![patcher.from(stage, Some(at))])?)),
                false => Ok(0.0),
            };
            let of_stage = (0..prompt.len()).map(at_one);
            residual.push(of_stage.collect::<Result<Vec<_>, InspectError>>()?);
        }
        Ok(Self {
            tokens: prompt.texts.clone(),
            from_tokens: from.texts.clone(),
            position,
            difference: plain,
            from_difference: other,
            parts,
            residual,
            answer,
            against,
        })
    }

    /// Checks that two prompts can be compared at a prediction.
    ///
    /// # Errors
    /// If their lengths differ, `position` is past their end, or they are equal up to it.
    pub fn check([prompt, from]: [&Prompt; 2], position: usize) -> Result<(), InspectError> {
        if prompt.len() != from.len() {
            return Err(InspectError::UnequalLengths { prompt: prompt.len(), from: from.len() });
        }
        prompt.check(position)?;
        match first_difference(&prompt.ids, &from.ids) <= position {
            true => Ok(()),
            false => Err(InspectError::SamePast(position)),
        }
    }

    /// The first differing token, counted from 0.
    pub fn first_difference(&self) -> usize {
        first_difference(&self.tokens, &self.from_tokens)
    }
}

/// The first differing token; the length of both if none differs.
fn first_difference<T: PartialEq>(tokens: &[T], others: &[T]) -> usize {
    tokens.iter().zip(others).position(|(a, b)| a != b).unwrap_or(tokens.len())
}

/// A prompt, and the recorded values of the other one's pass.
struct Patcher<'a> {
    model: &'a Gpt,
    tokens: Tensor<2, Int>,
    from: Recording,
}

impl<'a> Patcher<'a> {
    fn new(model: &'a Gpt, [prompt, from]: [&Prompt; 2]) -> Result<Self, InspectError> {
        let points = [Point::Embedding, Point::Heads, Point::Attention, Point::Mlp, Point::Residual];
        let tokens = prompt.tokens(&model.device());
        Ok(Self { model, tokens, from: capture(model, from, &points)? })
    }

    /// Replaces a part's values with those of the other pass.
    fn from(&self, part: ModelPart, position: Option<usize>) -> Replacement {
        let site = part.site();
        let values = &*self.from.get(site.block_idx, site.point).values;
        let substitute = Substitute::Recorded(Tensor::from_floats(values, &self.model.device()));
        Replacement { part, position, substitute }
    }

    /// The logits after the token at `position`, `[V]`.
    fn logits(&self, replacements: Vec<Replacement>, position: usize) -> Result<Vec<f32>, InspectError> {
        let mut probe = Replace(replacements);
        let logits = self.model.forward_with(self.tokens.clone(), None, &mut probe); // [1, T, V]
        host(logits.narrow(1, position, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{louder, prompt, small_config};
    use tinderbox_model::config::{ModelConfig, PositionKind};
    use tinderbox_model::tokenizer::Tokenizer;

    fn model() -> Gpt {
        louder(&config(), 256)
    }

    fn config() -> ModelConfig {
        ModelConfig { n_layers: 3, position: PositionKind::Rope, qk_norm: true, ..small_config() }
    }

    fn answers() -> [Answer; 2] {
        ["a", "b"].map(|text| Answer::read(text, &Tokenizer::byte()).expect("the text is one byte"))
    }

    #[test]
    fn patching_nothing_or_everything_reproduces_either_pass() {
        check(&model());
        check(&louder(&ModelConfig { parallel_residual: true, attention_window: vec![0, 5], ..config() }, 256));
    }

    fn check(model: &Gpt) {
        let (one, other) = (prompt("the bank of"), prompt("a bank, the"));
        let patcher = Patcher::new(model, [&one, &other]).expect("finite values");
        // With any probe, attention takes the path that materializes the weights.
        let pass = |of| {
            capture(model, of, &[Point::Logits]).expect("finite values").get(None, Point::Logits).vector(0, 10).to_vec()
        };
        let logits = |replacements| patcher.logits(replacements, 10).expect("finite values");
        assert_eq!(logits(Vec::new()), pass(&one), "to the bit");
        let fused = host(model.forward(one.tokens(&model.device())).narrow(1, 10, 1)).expect("finite values");
        assert!(fused.iter().zip(logits(Vec::new())).all(|(a, b)| (a - b).abs() < 1e-4));
        assert_ne!(pass(&one), pass(&other));

        let all = |part| patcher.from(part, None);
        let (embedding, last) = (all(ModelPart::Embedding), all(ModelPart::Residual { layer: 2 }));
        let everything = ModelPart::writers(model.config()).into_iter().map(all).chain([embedding.clone()]).collect();
        for replacements in [vec![last], vec![embedding], everything] {
            assert_eq!(logits(replacements), pass(&other), "to the bit");
        }
        let heads = (0..4).map(|head| all(ModelPart::Head { layer: 1, head })).collect();
        let attention = all(ModelPart::Attention { layer: 1 });
        assert_eq!(logits(heads), logits(vec![attention]), "all heads of a layer are its attention");
    }

    #[test]
    fn shares_span_from_prompt_to_other_prompt() {
        let model = model();
        let (one, other) = (prompt("the bank of"), prompt("the bunk of"));
        let it = Patching::new(&model, [&one, &other], 10, answers()).expect("the prompts are comparable");
        assert_eq!(it.parts.len(), 3 * (4 + 2));
        assert!(it.parts.is_sorted_by(|a, b| a.share.abs() >= b.share.abs()));
        assert!((it.difference - it.from_difference).abs() > 1e-3);
        for patched in &it.parts {
            let way = it.from_difference - it.difference;
            let expected = it.difference + patched.share * way;
            assert!((patched.difference - expected).abs() < 1e-9);
        }
        assert_eq!((it.first_difference(), it.residual.len()), (5, 4));
        // Before the first layer only the differing token makes a difference, after the last layer only the last token.
        let is = |share: f64, expected: f64| (share - expected).abs() < 1e-9;
        assert!(is(it.residual[0][5], 1.0) && it.residual[0][6..].iter().all(|share| is(*share, 0.0)));
        assert!(is(it.residual[3][10], 1.0) && it.residual[3][..10].iter().all(|share| is(*share, 0.0)));
        let earlier = Patching::new(&model, [&one, &other], 7, answers()).expect("the prompts are comparable");
        assert!(is(earlier.residual[3][7], 1.0));
        assert!(earlier.residual.iter().all(|row| row[8..] == [0.0; 3]));
    }
}
