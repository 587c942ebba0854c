//! The model: a stack of blocks, each with an attention and a feed-forward layer that add to the residual stream.
//!
//! Shapes, here and everywhere: **B** batch, **T** queries (the positions computed), **S** keys (the positions
//! visible), **C** `d_model`, **H** heads, **Hkv** key/value heads, **D** `head_dim`, **F** `d_ff`, **V** vocabulary.
//!
//! This module does not depend on text, optimizers or runs.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, reason = "weights have the same bits on every system"))]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]

mod adapter;
pub mod attention;
mod batch;
mod block;
pub mod config;
pub mod device;
pub mod disk;
pub mod format;
pub mod generate;
mod gpt;
pub mod init;
pub mod json;
mod lazy_tensor;
mod linear;
pub mod measure;
mod mlp;
pub mod norm;
pub mod parameters;
mod placeholders;
pub mod probe;
pub mod section;
mod table;
pub mod tensor_file;
pub mod tokenizer;

pub use adapter::{Adapter, AdapterRows, Lora, TOKEN_ROWS, Target};
pub use batch::Batch;
pub use block::{Block, BlockMemory};
pub use gpt::Gpt;
pub use lazy_tensor::{Dtype, LazyTensor, Sink};
pub use linear::{Embedding, Linear};
pub use mlp::Mlp;
pub use norm::Norm;
pub use probe::Pass;
pub use table::{BlockPart, Initial, Parameter, Role};
