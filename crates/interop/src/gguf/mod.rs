//! GGUF files, the format of llama.cpp, ollama and LM Studio: a model, its settings and its vocabulary in one file.
//!
//! `docs/gguf.md` describes the format. This module has the container (`read`, `reader`, `write`, `value`, `quant`),
//! the model's settings (`metadata`) and the vocabulary (`vocab`).

mod export;
mod keys;
mod metadata;
mod modelfile;
mod open;
mod quant;
mod read;
mod reader;
mod rope_freqs;
mod value;
mod vocab;
mod write;

pub use export::export;
pub use open::open;
pub(super) use open::tensor_types;
pub use quant::TensorType;
