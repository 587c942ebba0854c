//! The errors of opening a device, with hints about how to fix them.

use thiserror::Error;

use super::spec::Backend;

/// The reason why no device can be opened.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum DeviceError {
    #[error(
        "unknown device `{}`\n  hint: {} are auto, cpu, flex, ndarray, wgpu[:n], vulkan[:n], metal[:n], \
         cuda[:n] and cuda:all",
        .0, .1.map_or("known".to_owned(), |name| format!("did you mean `{name}`? Known"))
    )]
    Unknown(String, Option<&'static str>),
    #[error(
        "device `{0}`: `{1}` is not an adapter's number\n  hint: they count from 0, and `tinderbox devices` lists them"
    )]
    BadIndex(String, String),
    #[error("device `{0}`: there is only one `{1}`\n  hint: leave out the number")]
    NoIndex(String, String),
    #[error(
        "this binary was built without the `{0}` backend\n  hint: build it with `cargo build --release --features \
         {0}`, or choose one of {1}"
    )]
    NotCompiled(Backend, String),
    #[error(
        "this binary was built without a CPU backend\n  hint: build it with `cargo build --release --features flex`"
    )]
    NoCpu,
    #[error("no adapter for `{0}`: {1}\n  hint: {2}, or use `--device cpu`")]
    NoAdapter(Backend, &'static str, &'static str),
    #[error("there is no `{0}:{1}`\n  hint: choose one that is there: {2}")]
    NoSuchAdapter(Backend, usize, String),
    #[error(
        "`{0}` renders in software, and this binary was built with the `vulkan` feature, whose SPIR-V shaders crash \
         such drivers\n  hint: build without that feature to use it, or use `--device cpu`"
    )]
    SoftwareSpirv(String),
    #[error("cannot open `{0}`: {1}\n  hint: check its driver, or use `--device cpu`")]
    Open(String, String),
}
