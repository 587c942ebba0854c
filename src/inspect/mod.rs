//! Looking inside a trained model: what its attention does with a text, and what each part is good for.
//!
//! [`Prompt`] is a text as the model reads it, [`capture()`] a forward pass of which chosen values are kept.
//! All else here is made of these two and of probes that replace what passes: see [`crate::model::probe`].
//! A pass that nobody inspects is not slowed down: without a probe none of this runs.
//!
//! [`AttentionMaps`] says who looks at whom, [`Explanation`] why, number by number, for one token in one head;
//! [`Details`] has what it takes to ask that of any token.
//! [`Heads`] measures what each head does with a whole text: [`patterns`] are the questions that are asked of
//! one map, [`Scores`] the answers, with a name by thresholds. [`References`] asks whether a head looks at the
//! right answer, where [`Annotations`] say what that is.
//! [`Embeddings`] follows one word through several texts, [`Ablation`] says what each part is good for, [`Lens`]
//! what each layer would have predicted, [`Attribution`] which parts speak for a prediction, and [`Patching`] which
//! of them carry the difference between two texts.
//!
//! This part computes and returns values; how they are shown is [`render`]'s.

mod ablation;
pub mod annotations;
mod answer;
mod attribution;
mod capture;
mod details;
mod embeddings;
mod error;
mod explain;
mod heads;
mod lens;
mod maps;
mod part;
mod patching;
pub mod patterns;
mod prompt;
pub mod references;
pub mod render;
mod replace;

pub use ablation::{Ablated, Ablation, Method, Sample};
pub use answer::Answer;
pub use attribution::{Attribution, Source, Term};
pub mod scores;
mod weights;

pub use annotations::Annotations;
pub use capture::{Capture, Recording, capture};
pub use details::Details;
pub use embeddings::{ContextWord, Embeddings, Place, Stage};
pub use error::InspectError;
pub use explain::{Explanation, Projection, Step};
pub use heads::{Heads, N_REPEATED, N_WINDOWS};
pub use lens::{Came, Guess, Lens, Prediction, Predictions};
pub use maps::{AttentionMaps, AttentionView, Selection, strongest};
pub use part::Part;
pub use patching::{Patched, Patching};
pub use prompt::Prompt;
pub use references::References;
pub use replace::{Replace, Replacement, Substitute};
pub use scores::{Kind, Scores};
