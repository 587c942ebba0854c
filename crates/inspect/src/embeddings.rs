//! Compares one word in several texts, from the embedding to the end of the model.

use serde::Serialize;

use super::capture::{capture, host_tensor};
use super::vectors::{cosine, mean};
use super::{InspectError, Prompt};
use tinderbox_model::Gpt;
use tinderbox_model::parameters::HostTensor;
use tinderbox_model::probe::Point;

/// The similarity of one word's vectors in several texts, from the embedding to the end of the model.
///
/// The word's vector is that of its last token in the residual stream, since no earlier one has seen the whole word; if
/// it occurs several times in a text, the last time counts. Similarity is cosine similarity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embeddings {
    /// The word.
    pub word: String,
    /// Its occurrence in each of the P texts.
    #[serde(rename = "places")]
    pub occurrences: Vec<WordOccurrence>,
    /// The S stages of the model at which vectors are compared, first to last.
    pub stages: Vec<Stage>,
    /// The similarity of the word's vectors in two texts, `[S][P][P]`.
    pub similarity: Vec<Vec<Vec<f64>>>,
    /// The mean similarity of the word's vector to those of all other tokens of its text, over all texts: the baseline.
    /// `[S]`; `None` if there are no other tokens.
    pub others: Vec<Option<f64>>,
    /// The similarity of the word to other words of the same text.
    pub context: Vec<ContextWord>,
    /// The similarity of each attention layer's input to its output, `[P][L][T]`.
    pub attention: Vec<Vec<Vec<f64>>>,
}

/// An occurrence of the word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WordOccurrence {
    /// The text of each token, `[T]`.
    pub tokens: Vec<String>,
    /// The word's last token, counted from 0.
    pub position: usize,
}

/// A stage of the model at which vectors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The token embedding: the same at every position.
    Token,
    /// The token embedding plus the position embedding, if positions are learned.
    Embedding,
    /// The residual stream after a layer, counted from 0.
    Layer(usize),
    /// The residual stream after the last layer and the final norm.
    Norm,
}

/// Another word of a text, and its similarity to the word.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextWord {
    /// The other word.
    pub word: String,
    /// The text, counted from 0.
    pub prompt: usize,
    /// The other word's last token, counted from 0.
    pub position: usize,
    /// The similarity of the two, `[S]`.
    pub similarity: Vec<f64>,
}

impl Embeddings {
    /// Follows `word` through a model in each of `prompts`, along with the words of `context` that occur there.
    ///
    /// # Errors
    /// If the word is missing from a prompt, there are fewer than two prompts and nothing in `context`, a word of
    /// `context` is in none of them, or as for [`capture()`].
    pub fn new(model: &Gpt, prompts: &[Prompt], word: &str, context: &[String]) -> Result<Self, InspectError> {
        if prompts.len() < 2 && context.is_empty() {
            return Err(InspectError::NothingToCompare(word.to_owned()));
        }
        let occurrence = |prompt: &Prompt| {
            let position = prompt.position_of(word).ok_or_else(|| InspectError::NoSuchWord {
                word: word.to_owned(),
                prompt: prompt.whole_pieces().concat(),
            })?;
            Ok(WordOccurrence { tokens: prompt.texts.clone(), position })
        };
        let occurrences = prompts.iter().map(occurrence).collect::<Result<Vec<_>, InspectError>>()?;
        let context = context_places(prompts, context)?;
        let (mut vectors, mut attention) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let (of_prompt, of_attention) = read(model, prompt)?;
            vectors.push(of_prompt);
            attention.push(of_attention);
        }
        let stages: Vec<Stage> = vectors[0].iter().map(|(stage, _)| *stage).collect();
        // The vector of the word in text p at a stage, and its similarity to another token.
        let of_token = |p: usize, stage: usize, position| vectors[p][stage].1.vector(0, position);
        let of_word = |p, stage| of_token(p, stage, occurrences[p].position);
        let to_token = |p, stage, position| cosine(of_word(p, stage), of_token(p, stage, position));
        let n_texts = occurrences.len();
        let between_texts = |stage: usize| {
            let row = |a| (0..n_texts).map(|b| cosine(of_word(a, stage), of_word(b, stage))).collect();
            (0..n_texts).map(row).collect()
        };
        let to_others = |stage: usize| {
            let mut all = Vec::new();
            for (p, word) in occurrences.iter().enumerate() {
                let others = (0..word.tokens.len()).filter(|at| *at != word.position);
                all.extend(others.map(|at| to_token(p, stage, at)));
            }
            (!all.is_empty()).then(|| mean(&all))
        };
        let to_context = |(word, prompt, position)| ContextWord {
            word,
            prompt,
            position,
            similarity: (0..stages.len()).map(|s| to_token(prompt, s, position)).collect(),
        };
        Ok(Self {
            word: word.to_owned(),
            similarity: (0..stages.len()).map(between_texts).collect(),
            others: (0..stages.len()).map(to_others).collect(),
            context: context.into_iter().map(to_context).collect(),
            attention,
            stages,
            occurrences,
        })
    }

    /// Whether two of the texts have the same tokens up to the word, so that its vectors are the same.
    ///
    /// # Panics
    /// If either is not the index of a text.
    pub fn have_same_past(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|text| &self.occurrences[text]);
        one.tokens[..=one.position] == other.tokens[..=other.position]
    }
}

/// Every occurrence of a word of `context` in a prompt: the word, the prompt, the position.
fn context_places(prompts: &[Prompt], context: &[String]) -> Result<Vec<(String, usize, usize)>, InspectError> {
    let mut found = Vec::new();
    for word in context {
        let before = found.len();
        for (index, prompt) in prompts.iter().enumerate() {
            found.extend(prompt.position_of(word).map(|at| (word.clone(), index, at)));
        }
        if found.len() == before {
            return Err(InspectError::NotInPrompt(word.clone()));
        }
    }
    Ok(found)
}

/// The vectors `[1, T, C]` of a prompt at each stage, and the similarity of attention's input to its output, `[L][T]`.
type Followed = (Vec<(Stage, HostTensor)>, Vec<Vec<f64>>);

fn read(model: &Gpt, prompt: &Prompt) -> Result<Followed, InspectError> {
    let points = [Point::Embedding, Point::Residual, Point::Attention, Point::Norm];
    let recording = capture(model, prompt, &points)?;
    let device = model.device();
    let of_tokens = model.embed_tokens(prompt.tokens(&device));
    let mut vectors = vec![(Stage::Token, host_tensor(of_tokens)?)];
    if model.position_embedding.is_some() {
        vectors.push((Stage::Embedding, recording.residual(None).clone()));
    }
    let layers = 0..model.config().n_layers;
    vectors.extend(layers.map(|layer| (Stage::Layer(layer), recording.residual(Some(layer)).clone())));
    vectors.push((Stage::Norm, recording.get(None, Point::Norm).clone()));
    let stream = |layer| recording.residual(layer).to_device::<3>(&device);
    let mut attention = Vec::new();
    for (layer, block) in model.blocks.iter().enumerate() {
        let block_input = block.input(stream(layer.checked_sub(1)), Some(stream(None)));
        let input = host_tensor(block.attention_input(block_input))?;
        let output = recording.get(layer, Point::Attention);
        let alike = |at| cosine(input.vector(0, at), output.vector(0, at));
        attention.push((0..prompt.len()).map(alike).collect());
    }
    Ok((vectors, attention))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{edited, louder, prompt, small_config};
    use tinderbox_model::config::ModelConfig;
    use tinderbox_model::parameters;

    #[test]
    fn cosine_matches_angle() {
        assert!((cosine(&[1.0, 0.0], &[2.0, 2.0]) - 0.5_f64.sqrt()).abs() < 1e-12);
        assert!((cosine(&[3.0, -1.0], &[-3.0, 1.0]) + 1.0).abs() < 1e-12);
        assert!(cosine(&[0.0, 0.0], &[1.0, 0.0]).abs() < 1e-12);
    }

    /// The second layer has the weights of the first, and its input is the embedding alone.
    #[test]
    fn attention_reads_embedding_skip() {
        let model = louder(&ModelConfig { embedding_skip: true, ..small_config() }, 256);
        let drawn = parameters::read(&model);
        let model = edited(model, |path, tensor| match path.strip_prefix("blocks.1.") {
            Some("skip_factors") => tensor.values = vec![0.0, 1.0],
            Some(name) => *tensor = drawn[&format!("blocks.0.{name}")].clone(),
            None if path == "blocks.0.skip_factors" => tensor.values = vec![1.0, 0.0],
            None => {}
        });
        let it = Embeddings::new(&model, &["a bank", "the bank"].map(prompt), "bank", &[]).expect("finite values");
        for [first, second] in it.attention.iter().map(|layers| [&layers[0], &layers[1]]) {
            assert!(first.iter().zip(second).all(|(a, b)| (a - b).abs() < 1e-5), "{first:?} {second:?}");
        }
    }
}
