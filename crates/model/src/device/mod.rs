//! Compute devices, from the name given by the user (`auto`, `cpu`, `wgpu:1`) to an open burn device.
//!
//! [`open`] returns a device that is ready to use, or an error with a hint; without it, burn would panic at the first
//! tensor. `choice` has the rules for choosing adapters, and `backend` dispatches to the compiled backends.

mod backend;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
#[cfg(feature = "wgpu")]
mod graphics;
mod launches;
mod spec;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod tuning;

use serde::Serialize;

pub use self::choice::{Adapter, AdapterKind, Api};
pub use self::error::DeviceError;
pub use self::launches::{Launches, count_launches, without_kernels};
pub use self::spec::{Backend, DeviceSpec};

/// A device that is ready to compute on.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// Burn's device handle, without gradients; `Device::autodiff` turns them on.
    pub device: burn::tensor::Device,
    /// The name of the device in reports, such as `flex` or `wgpu:0 (llvmpipe (LLVM 15.0.6, 256 bits), Vulkan)`.
    pub name: String,
    /// The backend of the device.
    pub backend: Backend,
    /// The kind of hardware.
    pub kind: AdapterKind,
}

impl OpenDevice {
    /// A warning if the device is a software GPU.
    pub fn caution(&self) -> Option<String> {
        (self.kind == AdapterKind::Software).then(|| {
            format!(
                "{} is a software GPU, about a hundred times slower than the CPU itself\n  hint: --device cpu",
                self.name
            )
        })
    }
}

/// A device that this binary can use on this machine, or a backend that it cannot use, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceListing {
    /// The argument of `--device`, such as `flex` or `wgpu:1`; only the backend's name if the backend cannot be used.
    pub device: String,
    /// The backend of the device.
    pub backend: Backend,
    /// The adapter's name, as reported by the driver.
    pub name: Option<String>,
    /// The API through which the adapter is used; `None` for a CPU.
    pub api: Option<Api>,
    /// The kind of hardware; `None` if the backend cannot be used.
    pub kind: Option<AdapterKind>,
    /// The reason why the device cannot be used; `None` if it can.
    pub unavailable: Option<String>,
}

/// Opens a device; opening the same adapter again returns the same device.
///
/// # Errors
/// If the backend is not compiled in, there is no such adapter, or the driver refuses.
pub fn open(spec: &DeviceSpec) -> Result<OpenDevice, DeviceError> {
    let adapter = match choose(spec)? {
        Resolved::Adapter(adapter) => adapter,
        Resolved::Cpu(backend) => {
            let device = backend::open_cpu(backend).ok_or(DeviceError::NoCpu)?;
            return Ok(OpenDevice { device, name: backend.to_string(), backend, kind: AdapterKind::Cpu });
        }
    };
    let name = adapter.to_string();
    if adapter.crashes() {
        return Err(DeviceError::SoftwareSpirv(name));
    }
    match backend::open(&adapter) {
        Ok(device) => Ok(OpenDevice { device, name, backend: adapter.backend, kind: adapter.kind }),
        Err(message) => Err(DeviceError::Open(name, message)),
    }
}

/// The devices that train a run: one, or several if `spec` names several.
pub fn each(spec: &DeviceSpec) -> Vec<DeviceSpec> {
    match spec {
        DeviceSpec::AllOfCuda => {
            let n = backend::find(Backend::Cuda).len().max(1); // opening a missing one reports why
            (0..n).map(|index| DeviceSpec::On(Backend::Cuda, Some(index))).collect()
        }
        one => vec![*one],
    }
}

/// The argument of `--device` for the device that `spec` would open, for instance the device that `auto` chooses.
///
/// # Errors
/// In the same cases as [`open`], except for errors of drivers, which are not called.
pub fn resolve(spec: &DeviceSpec) -> Result<String, DeviceError> {
    Ok(match choose(spec)? {
        Resolved::Cpu(backend) => backend.to_string(),
        Resolved::Adapter(adapter) => adapter.spec(),
    })
}

/// Whether `device`, with or without gradients, computes on the CPU.
pub fn is_cpu(device: &burn::tensor::Device) -> bool {
    Backend::ALL.into_iter().filter_map(backend::open_cpu).any(|cpu| cpu == *device)
}

/// Whether `device`, with or without gradients, is burn's own CPU backend, flex.
pub fn is_flex(device: &burn::tensor::Device) -> bool {
    backend::open_cpu(Backend::Flex).is_some_and(|flex| flex == *device)
}

/// Runs `f`, which computes on `device`, on the thread where that is fastest.
///
/// For a CPU that is one of rayon's threads, since any other thread would hand over each operation and sleep. For a GPU
/// it is the calling thread.
pub fn compute<T: Send>(device: &burn::tensor::Device, f: impl FnOnce() -> T + Send) -> T {
    if is_cpu(device) { rayon::scope(|_| f()) } else { f() }
}

/// The devices of every backend, or the reason why the backend has none.
pub fn list() -> Vec<DeviceListing> {
    Backend::ALL.into_iter().flat_map(list_backend).collect()
}

/// The backends that this binary was built with.
pub fn compiled() -> Vec<Backend> {
    Backend::ALL.into_iter().filter(|&backend| backend::is_compiled(backend)).collect()
}

fn list_backend(backend: Backend) -> Vec<DeviceListing> {
    let listing =
        DeviceListing { device: backend.to_string(), backend, name: None, api: None, kind: None, unavailable: None };
    let unusable = |reason: String| vec![DeviceListing { unavailable: Some(reason), ..listing.clone() }];
    if backend == Backend::Metal && !cfg!(target_os = "macos") {
        return unusable(choice::hint(backend).to_owned());
    }
    if !backend::is_compiled(backend) {
        return unusable(format!("not in this binary: `cargo build --release --features {backend}`"));
    }
    if backend.is_cpu() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let s = if threads == 1 { "" } else { "s" };
        let name = Some(format!("this CPU, {threads} thread{s}"));
        return vec![DeviceListing { name, kind: Some(AdapterKind::Cpu), ..listing }];
    }
    let found = backend::find(backend);
    if found.is_empty() {
        return unusable(format!("no adapter: {}", choice::hint(backend)));
    }
    let spirv = "its driver crashes with SPIR-V: build without the `vulkan` feature";
    let listed = found.into_iter().map(|adapter| DeviceListing {
        device: adapter.spec(),
        backend,
        unavailable: adapter.crashes().then(|| spirv.to_owned()),
        name: Some(adapter.name),
        api: Some(adapter.api),
        kind: Some(adapter.kind),
    });
    listed.collect()
}

enum Resolved {
    Cpu(Backend),
    Adapter(Adapter),
}

fn choose(spec: &DeviceSpec) -> Result<Resolved, DeviceError> {
    match *spec {
        DeviceSpec::Auto => match automatic() {
            Some(adapter) => Ok(Resolved::Adapter(adapter)),
            None => choose(&DeviceSpec::Cpu),
        },
        DeviceSpec::Cpu => {
            let cpu = [Backend::Flex, Backend::Ndarray].into_iter().find(|&backend| backend::is_compiled(backend));
            cpu.map(Resolved::Cpu).ok_or(DeviceError::NoCpu)
        }
        DeviceSpec::AllOfCuda => choose(&DeviceSpec::On(Backend::Cuda, None)),
        DeviceSpec::On(backend, _) if !backend::is_compiled(backend) => {
            Err(DeviceError::NotCompiled(backend, choice::joined(&compiled())))
        }
        DeviceSpec::On(backend, _) if backend.is_cpu() => Ok(Resolved::Cpu(backend)),
        DeviceSpec::On(backend, index) => {
            choice::pick(backend, index, &backend::find(backend)).cloned().map(Resolved::Adapter)
        }
    }
}

/// The GPU that `auto` chooses. No further backend is tried once a GPU is found, since initializing a graphics API
/// takes 0.1 s. `vulkan` and `metal` find nothing that `wgpu` does not find.
fn automatic() -> Option<Adapter> {
    let is_candidate = |&backend: &Backend| backend::is_compiled(backend) && backend::may_have_gpu(backend);
    let mut candidates = [Backend::Cuda, Backend::Wgpu].into_iter().filter(is_candidate);
    candidates.find_map(|backend| choice::automatic(&backend::find(backend)).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> DeviceSpec {
        spec.parse().expect("the name is known")
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

    #[test]
    fn list_has_every_backend_and_only_usable_names() {
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

    #[test]
    fn software_gpus_have_caution() {
        let has_caution = |kind| {
            let cpu = open(&parse("cpu")).expect("a CPU backend is always there");
            OpenDevice { kind, ..cpu }.caution().is_some()
        };
        let kinds = [AdapterKind::Software, AdapterKind::Discrete, AdapterKind::Cpu];
        assert_eq!(kinds.map(has_caution), [true, false, false]);
    }
}
