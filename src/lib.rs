//! Tinderbox trains a small GPT from a config file, generates text with it, and shows what its attention has learned.
//!
//! One name for the crates of the project, from the bottom up:
//!
//! 1. [`model`]: the GPT, its attention and named hook points for probes, built on the kernels of `tinderbox_kernels`;
//!    with its [`tokenizer`], the [`device`] it is on, and [`generate`], which generates text;
//! 2. [`inspect`]: what is measured of a model;
//! 3. [`config`], [`data`], [`optimizer`], [`train`], [`run`], [`distributed`]: how a model comes to be; [`plan`],
//!    [`autoconfig`], [`sweep`]: what that costs, and which settings serve;
//! 4. [`interop`]: import and export of models of other projects.
//!
//! The features of the program add `view`, which draws figures, pages and the report of a run; `serve`, the server; and
//! `cli`, the commands with the shipped configs (`preset`).
//!
//! The library never prints and never exits: it returns values and errors, and reports progress through an observer.
//! The `cli` module turns the arguments of the program into calls.

#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]

#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod preset;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "view")]
pub mod view;

pub use tinderbox_inspect as inspect;
pub use tinderbox_interop as interop;
pub use tinderbox_model as model;
pub use tinderbox_model::{device, format, generate, json, measure, tokenizer};
pub use tinderbox_train::{autoconfig, config, data, distributed, finetune, optimizer, run, sweep, train};
#[cfg(feature = "view")]
pub use view::report;

/// The cost of training, before it begins: see [`tinderbox_train::plan`].
pub mod plan {
    pub use tinderbox_train::plan::*;

    #[cfg(feature = "view")]
    pub use crate::view::plan_table as table;
}
