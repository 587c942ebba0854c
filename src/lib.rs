//! Tinderbox trains a small GPT from a config file, writes text with it, and shows what its attention learned.
//!
//! In reading order:
//!
//! 1. [`model`]: a GPT with its attention, and named places for probes, made of the operations of `tinderbox_kernels`;
//! 2. [`config`], [`tokenizer`], [`data`]: a run's settings, and how text becomes batches;
//! 3. [`optimizer`], [`train`], [`run`]: how weights change, and how a run is saved;
//! 4. [`generate`], [`inspect`], [`report`], [`plan`], [`autoconfig`], [`sweep`]: everything that one does with a model
//!    or a config;
//! 5. [`interop`]: models of other projects, in and out;
//! 6. `serve`, a feature: models that answer over HTTP;
//! 7. [`distributed`]: several processes that train one run;
//! 8. [`device`], [`measure`], [`mod@format`], [`draw`]: devices, clocks, numbers as text, and pictures.
//!
//! The library never prints and never exits: it returns values and errors, and reports progress through an observer.
//! The program's `cli` turns arguments into calls.

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
