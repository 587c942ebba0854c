//! What can go wrong when someone looks inside a model.

use burn::tensor::TensorReadError;

use crate::model::probe::Site;
use crate::tokenizer::TokenizerError;

/// What can go wrong when someone looks inside a model.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// There is nothing to look at.
    #[error("the prompt is empty\n  hint: give the model a text to read, such as --prompt \"The\"")]
    EmptyPrompt,
    /// The prompt cannot be read by this model.
    #[error("the prompt cannot be read by this model")]
    Prompt(#[source] TokenizerError),
    /// A layer that the model does not have.
    #[error(
        "there is no layer {layer}: the model has {n_layers}, counted from 0\n  hint: the last one is {}",
        .n_layers - 1
    )]
    NoSuchLayer {
        /// Which one was asked for.
        layer: usize,
        /// How many there are.
        n_layers: usize,
    },
    /// A head that the model's layers do not have.
    #[error(
        "there is no head {head}: each layer of the model has {n_heads}, counted from 0\n  hint: the last \
         one is {}",
        .n_heads - 1
    )]
    NoSuchHead {
        /// Which one was asked for.
        head: usize,
        /// How many there are.
        n_heads: usize,
    },
    /// A token that the prompt does not have.
    #[error(
        "there is no token {token}: the prompt has {n_tokens}, counted from 0\n  hint: the last one is {}",
        .n_tokens - 1
    )]
    NoSuchToken {
        /// Which one was asked for.
        token: usize,
        /// How many there are.
        n_tokens: usize,
    },
    /// A text that is nowhere in the prompt.
    #[error(
        "`{0}` is not in what the model reads of the prompt\n  hint: name a part of it, or a token by its \
         position, counted from 0"
    )]
    NotInPrompt(String),
    /// What the model computes is not a number.
    #[error(
        "the model's numbers at `{0}` are not finite\n  hint: its weights are damaged; use another of the \
         run's `checkpoints/step-N`"
    )]
    NotFinite(Site),
    /// The device did not give its numbers back.
    #[error("the device failed\n  hint: try --device cpu")]
    Device(#[source] TensorReadError),
}

impl InspectError {
    /// Checks a layer that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_layers`.
    pub fn check_layer(layer: usize, n_layers: usize) -> Result<(), Self> {
        match layer < n_layers {
            true => Ok(()),
            false => Err(Self::NoSuchLayer { layer, n_layers }),
        }
    }

    /// Checks a head that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_heads`.
    pub fn check_head(head: usize, n_heads: usize) -> Result<(), Self> {
        match head < n_heads {
            true => Ok(()),
            false => Err(Self::NoSuchHead { head, n_heads }),
        }
    }
    /// Checks a token that someone asked for.
    ///
    /// # Errors
    /// If it is not below `n_tokens`.
    pub fn check_token(token: usize, n_tokens: usize) -> Result<(), Self> {
        match token < n_tokens {
            true => Ok(()),
            false => Err(Self::NoSuchToken { token, n_tokens }),
        }
    }
}
