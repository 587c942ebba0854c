//! Tinderbox trains a small GPT from a config file, writes text with it, and shows what its attention
//! learned.
//!
//! In reading order:
//!
//! 1. [`attention`]: the heart, from one formula to a module with heads, positions and a cache;
//! 2. [`model`]: a GPT around it, with named places for probes;
//! 3. [`kernels`]: the operations both are made of, one function each; [`inference`]: the model made of them
//!    alone, for writing;
//! 4. [`config`], [`tokenizer`], [`data`]: what a run is, and how text becomes batches;
//! 5. [`optimizer`], [`run`]: how weights move, and how a run is kept;
//! 6. [`plan`], [`train`], [`generate`], [`inspect`], [`report`], [`mod@bench`]: what a person does with all
//!    of it;
//! 7. [`autoconfig`]: which config suits a text and a machine;
//! 8. [`device`]: where it is computed;
//! 9. [`measure`], [`format`], [`draw`]: numbers from the clock and the system, as people read them; maps, plots,
//!    tables and pages.
//!
//! The library never prints and never exits: it returns values and errors, and reports progress through
//! an observer. The binary's `cli` turns arguments into calls.

#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers in tests are small"
    )
)]

pub mod autoconfig;
pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod draw;
pub mod format;
pub mod generate;
pub mod inference;
pub mod inspect;
pub mod measure;
pub mod model;
pub mod optimizer;
pub mod plan;
pub mod report;
pub mod run;
pub mod tokenizer;
pub mod train;
