//! How gradients become new weights: AdamW over named parameters, clipped together, at a learning rate
//! that is a pure function of the step.
//!
//! This part knows parameters by their names, and nothing of what they do in a model.

mod adamw;
mod gradients;
pub mod schedule;

pub use adamw::AdamW;
pub use gradients::Gradients;
pub use schedule::learning_rate;
