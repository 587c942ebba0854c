//! Looking inside a trained model: where its attention goes, what its layers predict, which parts matter.
//!
//! [`Prompt`] is a text as the model reads it, and [`capture()`] a forward pass of which chosen values are kept.
//! Everything else is computed from these, and from probes that replace values: see [`crate::model::probe`].
//!
//! [`AttentionMaps`] are the attention weights; [`Explanation`] derives those of one token in one head number by number,
//! and [`AttentionDetails`] has their queries and keys. [`ScoredHeads`] scores every head over a whole text, and [`References`] tests
//! whether a head attends to the right answer in an annotated one. [`Embeddings`] follows one word through several texts,
//! [`Ablation`] removes each part, [`Lens`] shows the prediction of each layer, [`Attribution`] the parts behind a
//! prediction, and [`Patching`] the parts that carry the difference between two texts.

mod ablation;
mod attribution;
mod capture;
mod embeddings;
mod error;
mod explain;
mod heads;
mod lens;
mod maps;
mod part;
mod patching;
mod patterns;
mod prompt;
mod references;

pub use ablation::{Ablated, Ablation, AblationText, Removal};
pub use attribution::{Attribution, Component, Term};
pub use capture::{Capture, Recording, capture};
pub use embeddings::{ContextWord, Embeddings, Stage, WordPlace};
pub use error::InspectError;
pub use explain::{Explanation, Projection, ProjectionStep};
pub use heads::{N_REPEATED, N_WINDOWS, ScoredHeads};
pub use lens::{Answer, Came, Guess, LayerPrediction, Lens, TokenPredictions};
pub use maps::{AttentionDetails, AttentionMaps, AttentionView, HeadSelection, strongest};
pub use part::{Part, Replace, Replacement, Substitute};
pub use patching::{Patched, Patching};
pub use patterns::{HeadKind, HeadScores};
pub use prompt::Prompt;
pub use references::{Annotations, Asked, HeadAnswer, ModelAnswers, Question, References};

#[cfg(test)]
mod tests {
    //! A small model and its prompts, for the tests of the parts.

    use burn::tensor::Device;

    use super::*;
    use crate::config::ModelConfig;
    use crate::model::Gpt;
    use crate::model::parameters::{self, HostTensor};
    use crate::tokenizer::Tokenizer;

    pub fn small_config() -> ModelConfig {
        ModelConfig {
            context_length: 16,
            d_model: 16,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            d_ff: 32,
            ..ModelConfig::default()
        }
    }

    pub fn small_model() -> Gpt {
        Gpt::new(&small_config(), 256, 1, &Device::flex())
    }

    /// A model whose numbers are large enough for every part to matter.
    pub fn louder(config: &ModelConfig, vocab_size: usize) -> Gpt {
        let model = Gpt::new(config, vocab_size, 1, &Device::flex());
        let drawn = parameters::read(&model);
        let louder = parameters::assign(model, |path, _| {
            let HostTensor { shape, values } = drawn[path].clone();
            Some(HostTensor { shape, values: values.iter().map(|x| x * 8.0).collect() })
        });
        louder.expect("the same shapes")
    }

    /// The small model with one half everywhere, but `value` in the parameters whose names begin with `prefix`.
    pub fn constant(prefix: &str, value: f32) -> Gpt {
        let model = parameters::assign(small_model(), |path, shape| {
            let value = if path.starts_with(prefix) { value } else { 0.5 };
            let values = vec![value; shape.iter().product()];
            Some(HostTensor { shape: shape.to_vec(), values })
        });
        model.expect("the same shapes")
    }

    pub fn prompt(text: &str) -> Prompt {
        Prompt::read(text, &Tokenizer::byte(), 32).expect("bytes")
    }
}
