//! GGUF files, the format of llama.cpp, ollama and LM Studio: a model, its settings and its vocabulary in one file.
//!
//! `docs/gguf.md` describes the format. This module has the container (`read`, `reader`, `write`, `value`, `quant`),
//! the model's settings (`settings`), the names of its tensors (`tensors`) and the vocabulary (`vocab`).

mod adapter;
mod blocks;
mod export;
mod go_template;
mod metadata;
mod modelfile;
mod open;
mod quant;
mod read;
mod reader;
mod rope_freqs;
mod settings;
mod tensors;
mod value;
mod vocab;
mod write;

pub use adapter::export_adapter;
pub(crate) use adapter::read_adapters;
pub use export::{can_hold, export};
pub use go_template::go_template;
pub(crate) use metadata::ArchitectureKeys;
pub use open::open;
pub(super) use open::tensor_types;
pub use quant::TensorType;
pub(crate) use tensors::{FUSED_QKV, INTERLEAVED_QKV, TENSORS};
pub(crate) use value::Value;
