//! Inspects a trained model: its attention, the predictions of its layers, and the importance of its parts.
//!
//! [`Prompt`] is a text as the model reads it, and [`capture()`] a forward pass that keeps chosen values. Everything
//! else is computed from these, and with probes that replace values: see [`tinderbox_model::probe`].

#![allow(clippy::missing_errors_doc, reason = "every pass can meet a failing device or damaged weights")]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]

mod ablation;
mod attribution;
mod capture;
mod details;
mod embeddings;
mod error;
mod evidence;
mod explain;
mod graph;
#[cfg(test)]
mod handmade;
mod heads;
mod lens;
mod map;
mod maps;
mod part;
mod patching;
mod patterns;
mod prompt;
mod reading;
#[doc(hidden)]
pub mod testing;
mod vectors;

pub use ablation::{Ablated, Ablation, Removal};
pub use attribution::{Attribution, Component, Term};
pub use capture::{Recording, capture};
pub use details::{FirstHead, PromptDetails, effects, head_of_token, token_name};
pub use embeddings::{ContextWord, Embeddings, Stage, WordOccurrence};
pub use error::InspectError;
pub use evidence::{HeadEvidence, SeenToken, Snippet};
pub use explain::{Explanation, Projection, differences, preparation};
pub use graph::{PredictionGraph, TracedPart};
pub use heads::{N_REPEATED, N_WINDOWS, NamedScores, ScoredHeads, scores_on};
pub use lens::{ActualToken, Answer, LayerPrediction, Lens, TokenPredictions, TokenProbability};
pub use map::{EmbeddingMap, MappedToken};
pub use maps::{HeadSelection, PromptAttention, strongest};
pub use part::ModelPart;
pub use patching::{Patched, Patching};
pub use patterns::{HeadKind, HeadScores};
pub use prompt::Prompt;
pub use reading::{Reading, bits, generate_greedily};
