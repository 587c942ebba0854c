//! What keeps a device from being opened, each with what the user can do about it.

use std::fmt;

use thiserror::Error;

use super::spec::Backend;

/// Why there is no device.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The name is none that we know.
    #[error(
        "unknown device `{name}`\n  hint: {} are auto, cpu, flex, ndarray, wgpu[:n], vulkan[:n], \
         metal[:n] and cuda[:n]",
        nearest.map_or("known".to_owned(), |name| format!("did you mean `{name}`? Known"))
    )]
    Unknown {
        /// What was written.
        name: String,
        /// The known name that looks most like it.
        nearest: Option<&'static str>,
    },
    /// What follows the colon is not a number.
    #[error(
        "device `{spec}`: `{index}` is not an adapter's number\n  hint: they count from 0, and \
         `tinderbox devices` lists them"
    )]
    BadIndex {
        /// What was written.
        spec: String,
        /// Its part after the colon.
        index: String,
    },
    /// A number after a device of which there is only one.
    #[error("device `{spec}`: there is only one `{name}`\n  hint: write it without a number")]
    NoIndex {
        /// What was written.
        spec: String,
        /// Its part before the colon.
        name: &'static str,
    },
    /// The binary was built without this backend.
    #[error(
        "this binary was built without the `{0}` backend\n  hint: build it with `cargo build --release \
         --features {0}`, or choose one of {1}"
    )]
    NotCompiled(Backend, Names),
    /// Neither CPU backend was compiled in.
    #[error(
        "this binary was built without a CPU backend\n  hint: build it with `cargo build --release \
         --features flex`"
    )]
    NoCpu,
    /// The backend is there, an adapter is not.
    #[error("no adapter for `{backend}`: {found}\n  hint: {hint}, or use `--device cpu`")]
    NoAdapter {
        /// The backend that was asked for.
        backend: Backend,
        /// What was looked for and found.
        found: String,
        /// What would help.
        hint: &'static str,
    },
    /// There are adapters, but not that many.
    #[error("there is no `{backend}:{index}`\n  hint: choose one that is there: {found}")]
    NoSuchAdapter {
        /// The backend that was asked for.
        backend: Backend,
        /// The number that was asked for.
        index: usize,
        /// The adapters that are there.
        found: Names,
    },
    /// The adapter's driver is known to crash with the shaders that this binary would give it.
    #[error(
        "`{device}` renders in software, and this binary was built with the `vulkan` feature, whose \
         SPIR-V shaders crash such drivers\n  hint: build without that feature to use it, or use \
         `--device cpu`"
    )]
    SoftwareSpirv {
        /// The adapter.
        device: String,
    },
    /// The driver refused.
    #[error("cannot open `{device}`: {message}\n  hint: check its driver, or use `--device cpu`")]
    Open {
        /// The adapter.
        device: String,
        /// What the driver said.
        message: String,
    },
}

/// Names for a message, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names(pub(super) Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0.is_empty() { "nothing".to_owned() } else { self.0.join(", ") })
    }
}
