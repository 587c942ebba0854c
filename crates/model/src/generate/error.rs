//! Errors of generation.

use burn::tensor::TensorReadError;

use crate::tokenizer::TokenizerError;

/// The reason why a sequence cannot be generated.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum GenerateError {
    #[error("the prompt is empty\n  hint: give at least one character to continue, such as --prompt \"The\"")]
    EmptyPrompt,
    #[error("cannot use the prompt: {0}")]
    Prompt(#[from] TokenizerError),
    #[error(
        "the tokens of this model are text, and have no bytes of their own\n  hint: leave out --raw, which is for models \
         of bytes"
    )]
    NoBytes,
    #[error("the device failed: {0}\n  hint: try --device cpu")]
    Device(#[from] TensorReadError),
    #[error(
        "the model's logits are not numbers after {0} tokens\n  hint: its weights are damaged; use an \
         earlier one of the run's `checkpoints/step-N`"
    )]
    NotFinite(usize),
    #[error(
        "no token can follow after {0} tokens\n  hint: the schema or the logit bias leaves none; a schema with fewer \
         optional properties and alternatives needs less work per token"
    )]
    NoToken(usize),
}
