//! Integration tests, in one binary: they link against burn once.

mod cli;
mod devices;
mod fixtures;
mod layering;
mod parity;
mod properties;
mod runs;
