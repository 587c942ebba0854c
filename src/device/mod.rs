//! Where numbers are computed: from what a user wrote (`auto`, `cpu`, `wgpu:1`) to an opened burn device.
//!
//! [`open`] either returns a device that is ready, or an error that says what was found and what to do;
//! nothing is left to the first tensor, where burn would panic. [`list`] names everything that this binary was
//! built with and that this machine has. `spec` is the text, `choice` the rules over what was found, `backend`
//! knows which backends are compiled in, `graphics` and `cuda` speak with theirs, `kernel_cache` sets how kernels
//! are tuned. Nothing here knows about models or runs.

mod backend;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
#[cfg(feature = "wgpu")]
mod graphics;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod kernel_cache;
mod spec;

use serde::Serialize;

pub use self::choice::{Adapter, AdapterKind, Api};
pub use self::error::{DeviceError, Names};
pub use self::spec::{Backend, DeviceSpec};

/// A device that is ready to compute on.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// Burn's handle, without gradients; `Device::autodiff` turns them on.
    pub device: burn::tensor::Device,
    /// What it is called in reports, such as `flex` or `wgpu:0 (llvmpipe (LLVM 15.0.6, 256 bits), Vulkan)`.
    pub name: String,
    /// Which backend computes.
    pub backend: Backend,
    /// Which sort of hardware it is.
    pub kind: AdapterKind,
}

/// One line of what this binary could compute on, here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceListing {
    /// What to write after `--device`: `flex`, `wgpu:1`; the backend's name alone where it cannot be used.
    pub device: String,
    /// The backend.
    pub backend: Backend,
    /// The adapter's own name, as its driver tells it.
    pub name: Option<String>,
    /// The interface it is reached through; none for a CPU.
    pub api: Option<Api>,
    /// Which sort of hardware it is; none where the backend cannot be used.
    pub kind: Option<AdapterKind>,
    /// Why the backend cannot be used; none where it can.
    pub unavailable: Option<String>,
}

/// Opens the device that `spec` asks for.
///
/// Opening the same adapter again gives the same device. The first GPU that is opened settles for the whole
/// process where tuned kernels are cached, and how hard kernels are tuned.
///
/// # Errors
/// If the backend is not compiled in, no adapter answers to `spec`, or the driver refuses.
pub fn open(spec: &DeviceSpec) -> Result<OpenDevice, DeviceError> {
    match choose(spec)? {
        Choice::Cpu(backend) => open_cpu(backend),
        Choice::Adapter(adapter) => open_adapter(&adapter),
    }
}

/// The device that `spec` would open, as one writes it: what `auto` means here.
///
/// # Errors
/// As [`open`], short of the driver's refusal.
pub fn resolve(spec: &DeviceSpec) -> Result<String, DeviceError> {
    Ok(match choose(spec)? {
        Choice::Cpu(backend) => backend.to_string(),
        Choice::Adapter(adapter) => adapter.spec(),
    })
}

/// Whether `device`, with or without gradients, computes on the CPU.
#[must_use]
pub fn is_cpu(device: &burn::tensor::Device) -> bool {
    Backend::ALL.into_iter().filter_map(backend::open_cpu).any(|cpu| cpu == *device)
}

/// Whether `device`, with or without gradients, is burn's own CPU backend.
#[must_use]
pub fn is_flex(device: &burn::tensor::Device) -> bool {
    backend::open_cpu(Backend::Flex).is_some_and(|flex| flex == *device)
}

/// Runs what computes on `device` where that goes fastest.
///
/// For a CPU that is one of rayon's own threads: from there work is shared out without waking anyone, while
/// another thread would hand over each operation and sleep until it is done. A GPU is fed from this thread.
pub fn compute<T: Send>(device: &burn::tensor::Device, f: impl FnOnce() -> T + Send) -> T {
    if is_cpu(device) { rayon::scope(|_| f()) } else { f() }
}

/// Everything that could be computed on here, and for what could not, why.
#[must_use]
pub fn list() -> Vec<DeviceListing> {
    Backend::ALL.into_iter().flat_map(list_backend).collect()
}

/// The backends that this binary was built with.
#[must_use]
pub fn compiled() -> Vec<Backend> {
    Backend::ALL.into_iter().filter(|&backend| backend::is_compiled(backend)).collect()
}

fn list_backend(backend: Backend) -> Vec<DeviceListing> {
    let unusable = |reason: String| {
        vec![DeviceListing {
            device: backend.to_string(),
            backend,
            name: None,
            api: None,
            kind: None,
            unavailable: Some(reason),
        }]
    };
    if backend == Backend::Metal && !cfg!(target_os = "macos") {
        return unusable(choice::hint(backend).to_owned());
    }
    if !backend::is_compiled(backend) {
        return unusable(format!(
            "not in this binary: `cargo build --release --features {backend}`"
        ));
    }
    if backend.is_cpu() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        return vec![DeviceListing {
            device: backend.to_string(),
            backend,
            name: Some(format!(
                "this CPU, {threads} {}",
                if threads == 1 { "thread" } else { "threads" }
            )),
            api: None,
            kind: Some(AdapterKind::Cpu),
            unavailable: None,
        }];
    }
    let found = backend::find(backend);
    if found.is_empty() {
        return unusable(format!("no adapter: {}", choice::hint(backend)));
    }
    found
        .into_iter()
        .map(|adapter| DeviceListing {
            device: adapter.spec(),
            backend,
            unavailable: backend::crashes(&adapter).then(|| {
                "its driver crashes with SPIR-V: build without the `vulkan` feature".to_owned()
            }),
            name: Some(adapter.name),
            api: Some(adapter.api),
            kind: Some(adapter.kind),
        })
        .collect()
}

/// What is to be opened.
enum Choice {
    Cpu(Backend),
    Adapter(Adapter),
}

fn choose(spec: &DeviceSpec) -> Result<Choice, DeviceError> {
    match *spec {
        DeviceSpec::Auto => match automatic() {
            Some(adapter) => Ok(Choice::Adapter(adapter)),
            None => choose(&DeviceSpec::Cpu),
        },
        DeviceSpec::Cpu => choice::cpu(&compiled()).map(Choice::Cpu).ok_or(DeviceError::NoCpu),
        DeviceSpec::On(backend, _) if !backend::is_compiled(backend) => {
            let compiled = compiled().iter().map(ToString::to_string).collect();
            Err(DeviceError::NotCompiled(backend, Names(compiled)))
        }
        DeviceSpec::On(backend, _) if backend.is_cpu() => Ok(Choice::Cpu(backend)),
        DeviceSpec::On(backend, index) => {
            choice::pick(backend, index, &backend::find(backend)).cloned().map(Choice::Adapter)
        }
    }
}

/// What `auto` takes, if that is a GPU. Backends are asked in order of preference and only as far as needed:
/// starting a graphics interface takes a tenth of a second.
fn automatic() -> Option<Adapter> {
    for backend in choice::AUTO_ORDER
        .into_iter()
        .filter(|&backend| backend::is_compiled(backend) && backend::may_have_gpu(backend))
    {
        if let Some(adapter) = choice::automatic(&backend::find(backend)) {
            return Some(adapter.clone());
        }
    }
    None
}

fn open_cpu(backend: Backend) -> Result<OpenDevice, DeviceError> {
    let device = backend::open_cpu(backend).ok_or(DeviceError::NoCpu)?;
    Ok(OpenDevice { device, name: backend.to_string(), backend, kind: AdapterKind::Cpu })
}

fn open_adapter(adapter: &Adapter) -> Result<OpenDevice, DeviceError> {
    if backend::crashes(adapter) {
        return Err(DeviceError::SoftwareSpirv { device: adapter.to_string() });
    }
    let device = backend::open(adapter)
        .map_err(|message| DeviceError::Open { device: adapter.to_string(), message })?;
    Ok(OpenDevice {
        device,
        name: adapter.to_string(),
        backend: adapter.backend,
        kind: adapter.kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> DeviceSpec {
        spec.parse().expect("a known form")
    }

    #[cfg(all(feature = "flex", feature = "ndarray"))]
    #[test]
    fn cpu_backends_open_and_compute() {
        for (spec, name) in [("cpu", "flex"), ("flex", "flex"), ("ndarray", "ndarray")] {
            let opened = open(&parse(spec)).expect("a CPU backend is always there");
            assert_eq!((opened.name.as_str(), opened.kind), (name, AdapterKind::Cpu));
            let sum = burn::tensor::Tensor::<1>::ones([2], &opened.device).sum();
            assert!((sum.into_scalar::<f32>() - 2.0).abs() < f32::EPSILON);
        }
        assert_eq!(resolve(&parse("cpu")).ok().as_deref(), Some("flex"));
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_backend_left_out_names_its_feature() {
        for result in [open(&parse("cuda")).map(|opened| opened.name), resolve(&parse("cuda"))] {
            let error = result.expect_err("it is not compiled in").to_string();
            assert!(error.contains("built without the `cuda` backend"), "{error}");
            assert!(error.contains("`cargo build --release --features cuda`"), "{error}");
        }
    }

    #[test]
    fn every_backend_is_listed_and_what_is_listed_can_be_asked_for() {
        let listed = list();
        for backend in Backend::ALL {
            assert!(listed.iter().any(|line| line.backend == backend), "{backend} is missing");
        }
        for line in listed {
            assert!(line.kind.is_some() || line.unavailable.is_some(), "{line:?}");
            if line.unavailable.is_none() {
                assert_eq!(resolve(&parse(&line.device)).ok(), Some(line.device));
            }
        }
    }
}
