//! Training of a GPT: from a config and a text to a run directory.
//!
//! [`config`] holds the settings of a run and [`data`] makes batches of its text; [`optimizer`] and [`train`] change the
//! weights, alone or on several machines ([`distributed`]), and [`run`] keeps them. [`plan`] predicts what a run takes,
//! [`autoconfig`] and [`sweep`] find settings.
//!
//! Nothing here prints: progress is reported through an observer.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, reason = "weights have the same bits on every system"))]
#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]
#![allow(clippy::missing_errors_doc, reason = "errors are enums whose messages say when they happen")]

pub mod autoconfig;
pub mod config;
pub mod data;
pub mod distributed;
pub mod finetune;
pub mod optimizer;
pub mod plan;
pub mod run;
pub mod sweep;
pub mod train;
