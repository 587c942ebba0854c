//! Integration tests in one binary, so that burn is linked only once.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::unnecessary_debug_formatting,
    clippy::unreadable_literal,
    reason = "numbers in tests are small, and stand as they were printed"
)]

mod allocations;
#[cfg(unix)]
mod attention_page;
mod bench;
#[cfg(unix)]
mod browser;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod c_library;
mod cli;
mod damage;
#[cfg(unix)]
mod dashboard;
mod data;
mod devices;
#[cfg(target_os = "linux")]
mod disks;
#[cfg(feature = "mpi")]
mod distributed;
mod docs;
#[cfg(target_os = "linux")]
mod endurance;
mod examples;
mod export;
mod families;
mod faults;
mod finetune;
mod first_contact;
mod fixtures;
mod flags;
mod further;
mod generation;
mod gguf;
mod heads;
mod hostile;
#[cfg(feature = "hub")]
mod hub;
mod import;
mod inference;
mod init;
mod inspect;
mod interrupts;
mod kernels;
mod lens;
mod optimizers;
mod pairs;
mod parity;
mod plan;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod power_loss;
mod precision;
mod properties;
mod refused;
mod report;
mod rooms;
mod runs;
#[cfg(feature = "serve")]
mod serve;
mod several_devices;
mod sheets_page;
mod stopping;
mod sweep;
#[cfg(unix)]
mod terminal;
mod tokenizers;
mod trackers;
mod verify;

/// Reports that a test is skipped and why; fails it instead if the environment `variable` requires what is missing.
fn skip(reason: &str, variable: &str) {
    assert!(std::env::var_os(variable).is_none(), "{reason}, and {variable} is set");
    eprintln!("skipped: {reason}");
}
