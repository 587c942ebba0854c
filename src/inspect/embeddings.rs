//! One word in several texts: what it is before anything is read, and what it becomes.

use burn::tensor::Tensor;
use serde::Serialize;

use super::{InspectError, Prompt, capture};
use crate::model::Gpt;
use crate::model::parameters::HostTensor;
use crate::model::probe::Point;

/// How alike the vectors of one word are in several texts, from the embedding to the end of the model.
///
/// The word's vector is that of its last token in the residual stream, as no earlier one has seen the whole
/// word; where the word stands several times in a text, the last time is meant. Alike is the cosine of the
/// angle: 1 for the same direction, 0 for unrelated ones, -1 for opposite ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embeddings {
    /// The word.
    pub word: String,
    /// Where it stands, in each of the P texts.
    pub places: Vec<Place>,
    /// The S places of the model at which vectors are compared, first to last.
    pub stages: Vec<Stage>,
    /// How alike the word's vectors in two texts are: `[S][P][P]`.
    pub similarity: Vec<Vec<Vec<f64>>>,
    /// How alike the word's vector and those of all other tokens of its text are, the mean over all of them
    /// and over all texts: what a similarity has to be compared with. `[S]`; none where there are no others.
    pub others: Vec<Option<f64>>,
    /// How alike the word and other words in the same text are.
    pub context: Vec<ContextWord>,
    /// How alike what each attention layer reads and what it writes are: `[P][L][T]`.
    pub attention: Vec<Vec<Vec<f64>>>,
}

/// Where the word stands in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The text of each token, `[T]`.
    pub tokens: Vec<String>,
    /// The word's last token, counted from 0.
    pub position: usize,
}

/// Where in a model vectors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The token's row of the embedding: the same wherever it stands.
    Token,
    /// That and the vector of its position, where positions are learned.
    Embedding,
    /// The residual stream after a layer, counted from 0.
    Layer(usize),
    /// The residual stream after the last layer and the final norm.
    Norm,
}

/// Another word of a text, and how alike the two are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextWord {
    /// The other word.
    pub word: String,
    /// The text, counted from 0.
    pub prompt: usize,
    /// The other word's last token, counted from 0.
    pub position: usize,
    /// How alike the vectors of the two are, `[S]`.
    pub similarity: Vec<f64>,
}

impl Embeddings {
    /// Follows `word` through a model in each of `prompts`, beside those of `context` that stand there too.
    ///
    /// # Errors
    /// If the word is not in a prompt, there are fewer than two prompts and nothing in `context`, a word of
    /// `context` is in none of them, or as [`capture()`].
    pub fn new(
        model: &Gpt,
        prompts: &[Prompt],
        word: &str,
        context: &[String],
    ) -> Result<Self, InspectError> {
        if prompts.len() < 2 && context.is_empty() {
            return Err(InspectError::NothingToCompare(word.to_owned()));
        }
        let mut places = Vec::new();
        for prompt in prompts {
            let position = prompt.position_of(word);
            places.push(Place {
                tokens: prompt.texts.clone(),
                position: position.ok_or_else(|| InspectError::no_word(word, prompt))?,
            });
        }
        let others = context_places(prompts, context)?;
        let stages = stages(model);
        let mut vectors = Vec::new();
        let mut attention = Vec::new();
        for prompt in prompts {
            let (of_prompt, of_attention) = read(model, prompt, &stages)?;
            vectors.push(of_prompt);
            attention.push(of_attention);
        }
        let of_word = |p: usize, stage: usize| vectors[p][stage].row(places[p].position);
        let n_prompts = prompts.len();
        let similarity = (0..stages.len()).map(|stage| {
            let row = |a| {
                let pairs = (0..n_prompts).map(|b| cosine(of_word(a, stage), of_word(b, stage)));
                pairs.collect()
            };
            (0..n_prompts).map(row).collect()
        });
        let similarity = similarity.collect();
        let of_others = |stage: usize| {
            let mut all = Vec::new();
            for (p, place) in places.iter().enumerate() {
                let others = (0..place.tokens.len()).filter(|at| *at != place.position);
                all.extend(others.map(|at| cosine(of_word(p, stage), vectors[p][stage].row(at))));
            }
            mean(&all)
        };
        let others_mean = (0..stages.len()).map(of_others).collect();
        let context = others.into_iter().map(|(word, prompt, position)| {
            let alike = |stage: usize| {
                let other = vectors[prompt][stage].row(position);
                cosine(of_word(prompt, stage), other)
            };
            ContextWord {
                similarity: (0..stages.len()).map(alike).collect(),
                word,
                prompt,
                position,
            }
        });
        let context = context.collect();
        Ok(Self {
            word: word.to_owned(),
            similarity,
            others: others_mean,
            context,
            attention,
            places,
            stages,
        })
    }

    /// Whether the model has read the same tokens in two of the texts when it comes to the word: then nothing can
    /// tell the two apart, as no token sees what comes later.
    ///
    /// # Panics
    /// If there is no such text.
    #[must_use]
    pub fn have_same_past(&self, one: usize, other: usize) -> bool {
        let past = |place: &Place| place.tokens[..=place.position].to_vec();
        past(&self.places[one]) == past(&self.places[other])
    }
}

/// Every word of `context` in every prompt in which it stands: the word, the prompt, the position.
fn context_places(
    prompts: &[Prompt],
    context: &[String],
) -> Result<Vec<(String, usize, usize)>, InspectError> {
    let mut found = Vec::new();
    for word in context {
        let before = found.len();
        for (index, prompt) in prompts.iter().enumerate() {
            if let Some(position) = prompt.position_of(word) {
                found.push((word.clone(), index, position));
            }
        }
        if found.len() == before {
            return Err(InspectError::NotInPrompt(word.clone()));
        }
    }
    Ok(found)
}

fn stages(model: &Gpt) -> Vec<Stage> {
    let embedding = model.position_embedding.as_ref().map(|_| Stage::Embedding);
    let layers = (0..model.config().n_layers).map(Stage::Layer);
    let mut stages = vec![Stage::Token];
    stages.extend(embedding);
    stages.extend(layers);
    stages.push(Stage::Norm);
    stages
}

/// A vector for each token, `[T, C]`.
struct Vectors(HostTensor);

impl Vectors {
    fn row(&self, position: usize) -> &[f32] {
        let c = *self.0.shape.last().expect("three dimensions");
        &self.0.values[position * c..(position + 1) * c]
    }
}

/// A prompt's vectors at each stage, and what attention makes of them: `[L][T]`.
fn read(
    model: &Gpt,
    prompt: &Prompt,
    stages: &[Stage],
) -> Result<(Vec<Vectors>, Vec<Vec<f64>>), InspectError> {
    let points = [Point::Embedding, Point::Residual, Point::Attention, Point::Norm];
    let recording = capture(model, prompt, &points)?;
    let device = model.device();
    let host = |x: Tensor<3>| {
        let shape = x.dims().to_vec();
        let values = x.flatten::<1>(0, 2).try_into_vec_as::<f32>();
        let values = values.map_err(InspectError::Device)?;
        Ok(Vectors(HostTensor { shape, values }))
    };
    let vectors = stages.iter().map(|stage| match *stage {
        Stage::Token => host(model.token_embedding.forward(prompt.tokens(&device))),
        Stage::Embedding => Ok(Vectors(recording.get(None, Point::Embedding).clone())),
        Stage::Layer(layer) => Ok(Vectors(recording.get(layer, Point::Residual).clone())),
        Stage::Norm => Ok(Vectors(recording.get(None, Point::Norm).clone())),
    });
    let vectors = vectors.collect::<Result<Vec<_>, InspectError>>()?;
    let mut attention = Vec::new();
    for (layer, block) in model.blocks.iter().enumerate() {
        let before = match layer.checked_sub(1) {
            Some(below) => recording.get(below, Point::Residual),
            None => recording.get(None, Point::Embedding),
        };
        let input = host(block.attention_norm.forward(before.to_device(&device)))?;
        let output = Vectors(recording.get(layer, Point::Attention).clone());
        let alike = |at| cosine(input.row(at), output.row(at));
        attention.push((0..prompt.len()).map(alike).collect());
    }
    Ok((vectors, attention))
}

/// The cosine of the angle between two vectors; 0 where one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths > 0.0 {
        true => dot(a, b) / lengths,
        false => 0.0,
    }
}

#[allow(clippy::cast_precision_loss, reason = "prompts are short")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::{ModelConfig, PositionKind};
    use crate::tokenizer::Tokenizer;

    fn model(position: PositionKind) -> Gpt {
        let config = ModelConfig {
            context_length: 32,
            d_model: 8,
            n_layers: 2,
            n_heads: 2,
            n_kv_heads: 1,
            d_ff: 16,
            position,
            ..ModelConfig::default()
        };
        Gpt::new(&config, 256, 1, &Device::flex())
    }

    fn prompts(texts: &[&str]) -> Vec<Prompt> {
        let read = |text: &&str| Prompt::read(text, &Tokenizer::byte(), 32).expect("bytes");
        texts.iter().map(read).collect()
    }

    #[test]
    fn cosines_are_those_of_the_angle() {
        assert!((cosine(&[1.0, 0.0], &[2.0, 2.0]) - 0.5_f64.sqrt()).abs() < 1e-12);
        assert!((cosine(&[3.0, -1.0], &[-3.0, 1.0]) + 1.0).abs() < 1e-12);
        assert!(cosine(&[0.0, 0.0], &[1.0, 0.0]).abs() < 1e-12);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn a_word_is_the_same_until_something_has_been_read() {
        let texts = prompts(&["by the river, the bank", "for the loan, a bank is"]);
        let context = ["river", "loan"].map(str::to_owned);
        for position in [PositionKind::Rope, PositionKind::Learned] {
            let model = model(position);
            let it = Embeddings::new(&model, &texts, "bank", &context).expect("read");
            let positions: Vec<usize> = it.places.iter().map(|place| place.position).collect();
            assert_eq!(positions, [21, 19]);
            assert!((it.similarity[0][0][1] - 1.0).abs() < 1e-12, "one row of a table");
            for (stage, of_stage) in it.stages.iter().zip(&it.similarity) {
                assert!((of_stage[1][1] - 1.0).abs() < 1e-12);
                assert!((of_stage[0][1] - of_stage[1][0]).abs() < 1e-12);
                let is_other = of_stage[0][1] < 1.0 - 1e-6;
                assert_eq!(is_other, *stage != Stage::Token, "{stage:?}: {of_stage:?}");
            }
            let has_positions = position == PositionKind::Learned;
            assert_eq!(it.stages.len(), 4 + usize::from(has_positions));
            let found: Vec<_> =
                it.context.iter().map(|word| (word.prompt, word.position)).collect();
            assert_eq!(found, [(0, 11), (1, 11)]);
            assert_eq!((it.attention.len(), it.attention[0].len()), (2, 2));
            assert_eq!((it.attention[0][0].len(), it.attention[1][1].len()), (22, 23));
            assert!(!it.have_same_past(0, 1));
        }
    }

    #[test]
    fn what_comes_later_changes_nothing() {
        let texts = prompts(&["The bank of the river", "The bank approved the"]);
        let it = Embeddings::new(&model(PositionKind::Rope), &texts, "bank", &[]).expect("read");
        assert!(it.have_same_past(0, 1));
        for of_stage in &it.similarity {
            assert!((of_stage[0][1] - 1.0).abs() < 1e-5, "{of_stage:?}");
        }
    }

    #[test]
    fn there_must_be_something_to_compare() {
        let model = model(PositionKind::Rope);
        let new = |texts: &[&str], context: &[&str]| {
            let context: Vec<String> = context.iter().map(ToString::to_string).collect();
            Embeddings::new(&model, &prompts(texts), "bank", &context)
        };
        assert!(new(&["a river bank"], &["river"]).is_ok());
        let error = new(&["a river bank"], &[]).unwrap_err();
        assert!(matches!(error, InspectError::NothingToCompare(_)));
        let error = new(&["a bank", "a river"], &[]).unwrap_err();
        assert!(matches!(error, InspectError::NoSuchWord { .. }));
        let error = new(&["a bank", "one bank"], &["loan"]).unwrap_err();
        assert!(matches!(error, InspectError::NotInPrompt(_)));
    }
}
