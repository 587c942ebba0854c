//! Why a device cannot be opened, and what the user can do about it.

use thiserror::Error;

use super::spec::Backend;

/// Why there is no device.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The name is unknown.
    #[error(
        "unknown device `{name}`\n  hint: {} are auto, cpu, flex, ndarray, wgpu[:n], vulkan[:n], \
         metal[:n] and cuda[:n]",
        nearest.map_or("known".to_owned(), |name| format!("did you mean `{name}`? Known"))
    )]
    Unknown {
        /// The name.
        name: String,
        /// The most similar known name.
        nearest: Option<&'static str>,
    },
    /// The part after the colon is not a number.
    #[error(
        "device `{spec}`: `{index}` is not an adapter's number\n  hint: they count from 0, and \
         `tinderbox devices` lists them"
    )]
    BadIndex {
        /// The device as given.
        spec: String,
        /// Its part after the colon.
        index: String,
    },
    /// A number after a device of which there is only one.
    #[error("device `{spec}`: there is only one `{name}`\n  hint: write it without a number")]
    NoIndex {
        /// The device as given.
        spec: String,
        /// Its part before the colon.
        name: String,
    },
    /// The binary was built without this backend.
    #[error(
        "this binary was built without the `{0}` backend\n  hint: build it with `cargo build --release \
         --features {0}`, or choose one of {1}"
    )]
    NotCompiled(Backend, String),
    /// The binary was built without a CPU backend.
    #[error(
        "this binary was built without a CPU backend\n  hint: build it with `cargo build --release \
         --features flex`"
    )]
    NoCpu,
    /// The backend has no adapter.
    #[error("no adapter for `{backend}`: {found}\n  hint: {hint}, or use `--device cpu`")]
    NoAdapter {
        /// The backend.
        backend: Backend,
        /// The missing driver or device.
        found: &'static str,
        /// The hint.
        hint: &'static str,
    },
    /// The backend has fewer adapters.
    #[error("there is no `{backend}:{index}`\n  hint: choose one that is there: {found}")]
    NoSuchAdapter {
        /// The backend.
        backend: Backend,
        /// The adapter's number.
        index: usize,
        /// The backend's adapters.
        found: String,
    },
    /// The adapter's driver is known to crash with this binary's shaders.
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
        /// The driver's message.
        message: String,
    },
}
