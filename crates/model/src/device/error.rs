//! The errors of opening a device, with hints about how to fix them.

use thiserror::Error;

use super::spec::Backend;

/// The reason why no device can be opened.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The name is unknown: the name as given, and the most similar known name.
    #[error(
        "unknown device `{}`\n  hint: {} are auto, cpu, flex, ndarray, wgpu[:n], vulkan[:n], metal[:n], \
         cuda[:n] and cuda:all",
        .0, .1.map_or("known".to_owned(), |name| format!("did you mean `{name}`? Known"))
    )]
    Unknown(String, Option<&'static str>),
    /// The part after the colon is not a number: the device as given, and the part after the colon.
    #[error(
        "device `{0}`: `{1}` is not an adapter's number\n  hint: they count from 0, and `tinderbox devices` lists them"
    )]
    BadIndex(String, String),
    /// A number was given for the only device of its kind: the device as given, and its part before the colon.
    #[error("device `{0}`: there is only one `{1}`\n  hint: leave out the number")]
    NoIndex(String, String),
    /// The binary was built without this backend: the backend, and the backends it has.
    #[error(
        "this binary was built without the `{0}` backend\n  hint: build it with `cargo build --release --features \
         {0}`, or choose one of {1}"
    )]
    NotCompiled(Backend, String),
    /// The binary was built without a CPU backend.
    #[error(
        "this binary was built without a CPU backend\n  hint: build it with `cargo build --release --features flex`"
    )]
    NoCpu,
    /// The backend has no adapter: the backend, the missing driver or device, and how to get one.
    #[error("no adapter for `{0}`: {1}\n  hint: {2}, or use `--device cpu`")]
    NoAdapter(Backend, &'static str, &'static str),
    /// The backend has no adapter with this index: the backend, the index, and the adapters it has.
    #[error("there is no `{0}:{1}`\n  hint: choose one that is there: {2}")]
    NoSuchAdapter(Backend, usize, String),
    /// The driver of this adapter is known to crash with this binary's SPIR-V shaders.
    #[error(
        "`{0}` renders in software, and this binary was built with the `vulkan` feature, whose SPIR-V shaders crash \
         such drivers\n  hint: build without that feature to use it, or use `--device cpu`"
    )]
    SoftwareSpirv(String),
    /// The driver of this adapter refused to open it: the adapter, and the driver's message.
    #[error("cannot open `{0}`: {1}\n  hint: check its driver, or use `--device cpu`")]
    Open(String, String),
}
