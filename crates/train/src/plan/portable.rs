//! Whether other programs can read the model, which the crate that knows them says.

use serde::Serialize;

/// Whether other programs can read the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Portable {
    /// The model family, such as `qwen3`; `None` if the model belongs to none.
    pub family: Option<&'static str>,
    /// The keys that the closest family does not support, each with its value and the reason; empty if there is a family.
    #[serde(rename = "obstacles")]
    pub unsupported_keys: Vec<String>,
}
