//! Looking inside a trained model: what its attention does with a text, and what each part is good for.
//!
//! [`Prompt`] is a text as the model reads it, [`capture`] a forward pass of which chosen values are kept.
//! All else here is made of these two and of probes that replace what passes: see [`crate::model::probe`].
//! A pass that nobody inspects is not slowed down: without a probe none of this runs.
//!
//! This part computes and returns values; how they are shown is `render`'s.

mod capture;
mod error;
mod prompt;

pub use capture::{AttentionMaps, Capture, Recording, capture};
pub use error::InspectError;
pub use prompt::Prompt;
