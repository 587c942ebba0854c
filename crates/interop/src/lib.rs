//! Imports models of other projects as runs, and exports runs as models that other projects can read.
//!
//! A [`Family`] defines which keys of `[model]` other projects support and how they write them, a [`layout`] maps its
//! tensors to columns of our parameters, and [`convert`] applies the layout. A [`ForeignModel`] is an opened Hugging
//! Face folder (`hf`) or llama.cpp file (`gguf`).

#![cfg_attr(not(test), warn(clippy::disallowed_methods, reason = "weights have the same bits on every system"))]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]
#![allow(clippy::missing_errors_doc, reason = "every error is an `InteropError`, whose messages say when it happens")]

mod adapter;
pub mod convert;
mod error;
mod families;
mod foreign_model;
pub mod gguf;
pub mod hf;
#[cfg(feature = "hub")]
pub mod hub;
mod import;
pub mod layout;
mod outgoing;
mod principal;
mod tokens;
pub mod verify;

pub use adapter::{import_adapters, open_adapters};
pub use error::InteropError;
pub use families::Family;
pub use foreign_model::{ForeignModel, TokenizerFiles};
pub use import::{Imported, import};
pub use layout::Naming;
pub use outgoing::Outgoing;
