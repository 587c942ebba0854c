//! Whether some head looks at the right answer, where the right answer is known.
//!
//! For each question of an annotated text and each head: how much attention goes to the right answer and how much
//! to the other, in a trained model and in the same one before its training.

use serde::Serialize;

use super::InspectError;
use super::annotations::{Annotations, Case, Part, Question};
use super::weights::each_map;
use crate::config::Config;
use crate::model::Gpt;
use crate::tokenizer::Tokenizer;

/// The most cases of a question that are asked in each part of the text, spread evenly over all of them.
pub const MOST_CASES: usize = 200;

/// What one head does with the cases of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Answer {
    /// Mean attention on the right answer.
    pub right: f64,
    /// Mean attention on the other.
    pub other: f64,
    /// The share of cases in which the right answer gets more; a draw counts one half.
    pub accuracy: f64,
}

/// What the heads of one model do with a question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answers {
    /// The head, as layer and head, that answers best in stories of the training split: chosen there, so that
    /// what it does in those of the validation split is no luck of the choice.
    pub best: [usize; 2],
    /// What each head does in stories of the validation split, `[L][H]`.
    pub heads: Vec<Vec<Answer>>,
}

impl Answers {
    /// What the best head does.
    #[must_use]
    pub fn of_best(&self) -> Answer {
        let [layer, head] = self.best;
        self.heads[layer][head]
    }
}

/// A question, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asked {
    /// Which one.
    pub question: Question,
    /// How many cases of the validation split there are within the context.
    pub found: usize,
    /// How many of them were asked.
    pub cases: usize,
    /// How many of the training split the best head was chosen by.
    pub chosen_by: usize,
    /// How often the nearer of both answers is the right one.
    pub nearer: f64,
    /// How often the one of more tokens is; of as many one half.
    pub longer: f64,
    /// The model as it was before training.
    pub untrained: Answers,
    /// The model.
    pub trained: Answers,
}

/// All questions of an annotated text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct References {
    /// How many stories there are in the validation split.
    pub stories: usize,
    /// How many tokens the model sees.
    pub context_length: usize,
    /// The questions that have a case in both splits.
    pub questions: Vec<Asked>,
}

impl References {
    /// Asks everything that is annotated, of `model` and of what its `config` was before training.
    ///
    /// # Errors
    /// If there is nothing to ask, the tokenizer cannot read the text, the device fails, or the model's numbers
    /// are none.
    pub fn measure(
        model: &Gpt,
        config: &Config,
        tokenizer: &Tokenizer,
        annotations: &Annotations,
    ) -> Result<Self, InspectError> {
        let untrained =
            Gpt::new(&config.model, tokenizer.vocab_size(), config.train.seed, &model.device());
        let context_length = config.model.context_length;
        let val_fraction = config.data.val_fraction;
        let mut questions = Vec::new();
        for question in Question::ALL {
            let cases =
                |part| annotations.cases(question, part, val_fraction, tokenizer, context_length);
            let all = cases(Part::Validation)?;
            let (asked, choosing) = (some(&all), cases(Part::Train)?);
            let choosing = some(&choosing);
            if asked.is_empty() || choosing.is_empty() {
                continue;
            }
            let answers = |model| {
                Ok(Answers {
                    best: best(&answers(model, &choosing)?),
                    heads: answers(model, &asked)?,
                })
            };
            questions.push(Asked {
                question,
                found: all.len(),
                cases: asked.len(),
                chosen_by: choosing.len(),
                nearer: share(&asked, |case| case.looks[0].right.start > case.looks[0].other.start),
                longer: longer(&asked),
                untrained: answers(&untrained)?,
                trained: answers(model)?,
            });
        }
        if questions.is_empty() {
            return Err(InspectError::NothingToAsk { context_length });
        }
        Ok(Self {
            stories: annotations.n_stories(Part::Validation, val_fraction),
            context_length,
            questions,
        })
    }
}

/// At most [`MOST_CASES`], spread evenly.
fn some(cases: &[Case]) -> Vec<&Case> {
    let n = cases.len().min(MOST_CASES);
    (0..n).map(|i| &cases[i * cases.len() / n]).collect()
}

/// What each head does with the cases, `[L][H]`.
fn answers(model: &Gpt, cases: &[&Case]) -> Result<Vec<Vec<Answer>>, InspectError> {
    let config = model.config();
    let mut sums = vec![vec![Answer::default(); config.n_heads]; config.n_layers];
    for case in cases {
        let n = case.ids.len();
        each_map(model, &case.ids, |layer, head, weights| {
            let (mut right, mut other) = (0.0, 0.0);
            for look in &case.looks {
                let row = &weights[look.query * n..(look.query + 1) * n];
                let mass = |at: &std::ops::Range<usize>| -> f64 {
                    row[at.clone()].iter().copied().map(f64::from).sum()
                };
                right += mass(&look.right) / case.looks.len() as f64;
                other += mass(&look.other) / case.looks.len() as f64;
            }
            let sum = &mut sums[layer][head];
            sum.right += right;
            sum.other += other;
            sum.accuracy += more(right, other);
        })?;
    }
    let n = cases.len() as f64;
    let mean = |sum: Answer| Answer {
        right: sum.right / n,
        other: sum.other / n,
        accuracy: sum.accuracy / n,
    };
    let means = sums.into_iter().map(|layer| layer.into_iter().map(mean));
    Ok(means.map(Iterator::collect).collect())
}

/// The head that is right most often; of equals the one that makes more of a difference, then the first.
fn best(heads: &[Vec<Answer>]) -> [usize; 2] {
    let mut best = ([0, 0], heads[0][0]);
    let worth = |answer: Answer| (answer.accuracy, answer.right - answer.other);
    for (layer, answers) in heads.iter().enumerate() {
        for (head, answer) in answers.iter().enumerate() {
            if worth(*answer) > worth(best.1) {
                best = ([layer, head], *answer);
            }
        }
    }
    best.0
}

/// 1 for the larger, one half for a draw.
fn more(right: f64, other: f64) -> f64 {
    match right.total_cmp(&other) {
        std::cmp::Ordering::Greater => 1.0,
        std::cmp::Ordering::Equal => 0.5,
        std::cmp::Ordering::Less => 0.0,
    }
}

fn share(cases: &[&Case], holds: impl Fn(&Case) -> bool) -> f64 {
    cases.iter().filter(|case| holds(case)).count() as f64 / cases.len() as f64
}

fn longer(cases: &[&Case]) -> f64 {
    let length = |case: &&Case| {
        let look = &case.looks[0];
        more(look.right.len() as f64, look.other.len() as f64)
    };
    cases.iter().map(length).sum::<f64>() / cases.len() as f64
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::{ModelConfig, NormKind, PositionKind};
    use crate::inspect::annotations::Look;
    use crate::model::parameters::{self, HostTensor};

    fn case(ids: &[u32], query: usize, right: usize, other: usize) -> Case {
        Case {
            ids: ids.to_vec(),
            looks: vec![Look { query, right: right..right + 1, other: other..other + 1 }],
        }
    }

    /// One head that looks at tokens of its own kind, with as much as there is of it.
    fn looking_for_itself() -> Gpt {
        let config = ModelConfig {
            context_length: 8,
            d_model: 4,
            n_layers: 1,
            n_heads: 1,
            n_kv_heads: 1,
            d_ff: 1,
            position: PositionKind::Rope,
            norm: NormKind::RmsNorm,
            ..ModelConfig::default()
        };
        let model = Gpt::zeros(&config, 4, &Device::flex());
        let assigned = parameters::assign(model, |path, shape| {
            let mut values = vec![0.0; shape.iter().product()];
            match path {
                "token_embedding.weight" => (0..4).for_each(|i| values[i * 4 + i] = 1.0),
                // The slowest pair of the rotation, dimensions 1 and 3: hardly turned.
                "blocks.0.attention.qkv.weight" => {
                    for (token, weight) in [(0, 4.0), (1, -4.0)] {
                        values[token * 12 + 1] = weight;
                        values[token * 12 + 4 + 1] = weight;
                    }
                }
                path if path.ends_with("norm.weight") => values.fill(1.0),
                _ => {}
            }
            Some(HostTensor { shape: shape.to_vec(), values })
        });
        assigned.expect("fits")
    }

    #[test]
    fn a_head_is_right_as_often_as_it_looks_there() {
        let model = looking_for_itself();
        let alike = case(&[0, 1, 2, 2, 0], 4, 0, 1);
        let unlike = case(&[0, 1, 2, 2, 0], 4, 1, 0);
        let draw = case(&[2, 2, 2, 2, 3], 4, 0, 1);
        let of = |cases: &[&Case]| answers(&model, cases).expect("measured")[0][0];
        let right = of(&[&alike]);
        assert!((right.accuracy - 1.0).abs() < 1e-9 && right.right > 0.49 && right.other < 0.01);
        assert!(of(&[&unlike]).accuracy.abs() < 1e-9);
        assert!((of(&[&draw]).accuracy - 0.5).abs() < 1e-9);
        let mean = of(&[&alike, &alike, &unlike, &draw]);
        assert!((mean.accuracy - 2.5 / 4.0).abs() < 1e-9);
        assert!((mean.right - (2.0 * right.right + right.other + 0.2) / 4.0).abs() < 1e-6);
    }

    #[test]
    fn the_best_head_is_right_most_often_and_of_equals_the_clearest() {
        let answer = |accuracy, right| Answer { right, other: 0.1, accuracy };
        let heads =
            [vec![answer(0.5, 0.9), answer(0.8, 0.2)], vec![answer(0.8, 0.3), answer(0.8, 0.3)]];
        assert_eq!(best(&heads), [1, 0]);
    }

    #[test]
    fn cases_are_spread_evenly() {
        let cases: Vec<Case> = (0..1000).map(|i| case(&[i], 0, 0, 0)).collect();
        let firsts: Vec<u32> = some(&cases).iter().map(|case| case.ids[0]).collect();
        assert_eq!(firsts.len(), MOST_CASES);
        assert_eq!(firsts[..3], [0, 5, 10]);
        assert_eq!(some(&cases[..3]).len(), 3);
        assert!(some(&[]).is_empty());
    }
}
