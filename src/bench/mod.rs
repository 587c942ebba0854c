//! Measures the speed and the memory of training and generation on this machine.
//!
//! Times are medians of rounds after a warm-up, with their spread ([`crate::measure`]). The memory is that of the
//! process, which measures nothing else.

pub mod generate;
pub mod text;
pub mod train;

use std::fmt::Display;

use anyhow::anyhow;

fn device_failed(error: impl Display) -> anyhow::Error {
    anyhow!("the device failed: {error}\n  hint: measure something smaller, or use --device cpu")
}
