//! Whether other programs can read the model.

use serde::Serialize;

use crate::config::ModelConfig;
use crate::interop::Family;

/// Whether other programs can read the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Portable {
    /// The family as which they know it, such as `qwen3`; `None` if they know none like it.
    pub family: Option<&'static str>,
    /// The keys that stand in the way of the nearest family, each with its value and the reason; none if there is one.
    pub obstacles: Vec<String>,
}

impl From<&ModelConfig> for Portable {
    fn from(config: &ModelConfig) -> Self {
        match Family::of(config) {
            Ok(family) => Self { family: Some(family.name()), obstacles: Vec::new() },
            Err(obstacles) => Self { family: None, obstacles },
        }
    }
}
