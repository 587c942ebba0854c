//! Looking inside a trained model: what its attention does with a text, and what each part is good for.
//!
//! [`Prompt`] is a text as the model reads it, [`capture()`] a forward pass of which chosen values are kept.
//! All else here is made of these two and of probes that replace what passes: see [`crate::model::probe`].
//! A pass that nobody inspects is not slowed down: without a probe none of this runs.
//!
//! [`AttentionMaps`] says who looks at whom, [`Explanation`] why, number by number, for one token in one head.
//! [`Heads`] measures what each head does with a whole text: [`patterns`] are the questions that are asked of
//! one map, [`Scores`] the answers, with a name by thresholds. [`References`] asks whether a head looks at the
//! right answer, where [`Annotations`] say what that is.
//! This part computes and returns values; how they are shown is [`render`]'s.

pub mod annotations;
mod capture;
mod error;
mod explain;
mod heads;
mod maps;
pub mod patterns;
mod prompt;
pub mod references;
pub mod render;
pub mod scores;
mod weights;

pub use annotations::Annotations;
pub use capture::{Capture, Recording, capture};
pub use error::InspectError;
pub use explain::{Explanation, Projection, Step};
pub use heads::{Heads, N_REPEATED, N_WINDOWS};
pub use maps::{AttentionMaps, AttentionView, Selection, strongest};
pub use prompt::Prompt;
pub use references::References;
pub use scores::{Kind, Scores};
