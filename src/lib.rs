//! Tinderbox trains a small GPT from a config file, generates text with it, and shows what its attention has learned.
//!
//! In reading order:
//!
//! 1. [`model`]: the GPT, its attention and named hook points for probes, built on the kernels of `tinderbox_kernels`;
//! 2. [`config`], [`tokenizer`], [`data`]: the settings of a run, and how text becomes batches;
//! 3. [`optimizer`], [`train`], [`run`]: how weights are updated, and how a run is saved;
//! 4. [`generate`], [`inspect`], [`report`], [`plan`], [`autoconfig`], [`sweep`]: the uses of a model or a config;
//! 5. [`interop`]: import and export of models of other projects;
//! 6. `serve`, a feature: an HTTP server for models;
//! 7. [`distributed`]: several processes that train one run;
//! 8. [`device`], [`measure`], [`mod@format`], [`draw`]: devices, timings, numbers as text, and figures.
//!
//! The library never prints and never exits: it returns values and errors, and reports progress through an observer.
//! The `cli` module turns the arguments of the program into calls.

#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]

pub mod autoconfig;
#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
mod disk;
pub mod distributed;
pub mod draw;
pub mod format;
pub mod generate;
pub mod inspect;
pub mod interop;
pub mod measure;
pub mod model;
pub mod optimizer;
pub mod plan;
pub mod report;
pub mod run;
#[cfg(feature = "serve")]
pub mod serve;
pub mod sweep;
pub mod tokenizer;
pub mod train;
