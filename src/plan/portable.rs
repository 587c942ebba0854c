//! Checks whether other programs can read the model.

use serde::Serialize;

use crate::config::ModelConfig;
use crate::interop::Family;

/// Whether other programs can read the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Portable {
    /// The model family by which they know it, such as `qwen3`; `None` if they know no such model.
    pub family: Option<&'static str>,
    /// The keys that rule out the nearest family, each with its value and the reason; empty if there is a family.
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
