//! Looking inside a trained model: what its attention does with a text, and what each part is good for.
//!
//! [`Prompt`] is a text as the model reads it, [`capture()`] a forward pass of which chosen values are kept.
//! All else here is made of these two and of probes that replace what passes: see [`crate::model::probe`].
//! A pass that nobody inspects is not slowed down: without a probe none of this runs.
//!
//! [`AttentionMaps`] says who looks at whom, [`Explanation`] why, number by number, for one token in one head.
//! [`Embeddings`] follows one word through several texts, [`Ablation`] says what each part is good for, [`Lens`]
//! what each layer would have predicted, [`Attribution`] which parts speak for a prediction, and [`Patching`] which
//! of them carry the difference between two texts.
//!
//! This part computes and returns values; how they are shown is [`render`]'s.

mod ablation;
mod answer;
mod attribution;
mod capture;
mod embeddings;
mod error;
mod explain;
mod lens;
mod maps;
mod part;
mod patching;
mod prompt;
pub mod render;
mod replace;

pub use ablation::{Ablated, Ablation, Method, Sample};
pub use answer::Answer;
pub use attribution::{Attribution, Source, Term};
pub use capture::{Capture, Recording, capture};
pub use embeddings::{ContextWord, Embeddings, Place, Stage};
pub use error::InspectError;
pub use explain::{Explanation, Projection, Step};
pub use lens::{Came, Guess, Lens, Prediction, Predictions};
pub use maps::{AttentionMaps, AttentionView, Selection, strongest};
pub use part::Part;
pub use patching::{Patched, Patching};
pub use prompt::Prompt;
pub use replace::{Replace, Replacement, Substitute};
