//! The adapters of graphics APIs, as listed by wgpu; burn's list has no names.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::backend::wgpu::graphics::AutoGraphicsApi;
use burn::backend::wgpu::{RuntimeOptions, try_init_setup, wgpu};
use burn::backend::{WgpuBackend, WgpuDevice, WgpuDeviceKind};
use burn::cubecl::future::block_on;
use burn::tensor::Device;

use super::choice::{self, Adapter, AdapterKind, Api};
use super::spec::Backend;
use super::tuning;

/// The APIs that the `wgpu` backend tries, fastest first; no adapters are found for one that the platform lacks.
pub(super) const BEST_FIRST: &[Api] =
    if cfg!(target_os = "macos") { &[Api::Metal] } else { &[Api::Vulkan, Api::Dx12, Api::OpenGl] };

/// Whether this machine may have a GPU. Initializing an API takes 0.1 s, and some drivers print warnings without a GPU.
pub(super) fn may_have_gpu() -> bool {
    !cfg!(target_os = "linux") || has_gpu_node(Path::new("/dev"))
}

/// Whether there is a device file of a GPU: from a driver in the kernel, from NVIDIA's driver, or in WSL.
fn has_gpu_node(dev: &Path) -> bool {
    let is_renderer = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("renderD");
    let has_renderer = fs::read_dir(dev.join("dri")).is_ok_and(|dri| dri.flatten().any(is_renderer));
    has_renderer || ["nvidiactl", "dxg"].iter().any(|name| dev.join(name).exists())
}

/// The adapters of the first of `apis` that has a GPU, or else of the first that has any adapter; with two APIs a GPU
/// would be listed twice.
pub(super) fn find(backend: Backend, apis: &[Api]) -> Vec<Adapter> {
    let mut software = Vec::new();
    for &api in apis {
        let found = choice::number(backend, api, probe(api));
        if found.iter().any(|adapter| adapter.kind.is_gpu()) {
            return found;
        }
        if software.iter().all(Adapter::crashes) && !found.is_empty() {
            software = found;
        }
    }
    software
}

/// The name and the kind of an adapter, as its driver reports them.
type Named = (String, AdapterKind);

/// The adapters of one API, in the driver's order. Each API is initialized only once: Vulkan's loader crashes when
/// instances are created and destroyed on several threads.
fn probe(api: Api) -> Vec<Named> {
    static PROBED: Mutex<Vec<(Api, Vec<Named>)>> = Mutex::new(Vec::new());
    let mut probed = PROBED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = probed.iter().find(|(known, _)| *known == api) {
        return found.clone();
    }
    let backends = wgpu::Backends::from(match api {
        Api::Vulkan => wgpu::Backend::Vulkan,
        Api::Metal => wgpu::Backend::Metal,
        Api::Dx12 => wgpu::Backend::Dx12,
        Api::OpenGl => wgpu::Backend::Gl,
        Api::Cuda => unreachable!("CUDA is not a graphics interface"),
    });
    let mut found = Vec::new();
    if wgpu::Instance::enabled_backend_features().contains(backends) {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = backends;
        for adapter in block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends)) {
            let info = adapter.get_info();
            let kind = match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Other,
            };
            found.push((info.name, kind));
        }
    }
    probed.push((api, found.clone()));
    found
}

/// The devices that are open, with their queues.
static OPENED: Mutex<Vec<(WgpuDevice, wgpu::Queue)>> = Mutex::new(Vec::new());

/// Opens an adapter; opening the same adapter again returns the same device.
pub(super) fn open(adapter: &Adapter) -> Result<Device, String> {
    let kind = match adapter.kind {
        AdapterKind::Discrete => WgpuDeviceKind::DiscreteGpu(adapter.index_of_kind),
        AdapterKind::Integrated => WgpuDeviceKind::IntegratedGpu(adapter.index_of_kind),
        AdapterKind::Virtual => WgpuDeviceKind::VirtualGpu(adapter.index_of_kind),
        AdapterKind::Other => WgpuDeviceKind::Other(adapter.index_of_kind),
        AdapterKind::Software | AdapterKind::Cpu => WgpuDeviceKind::Cpu,
    };
    let api = match adapter.api {
        Api::Vulkan => WgpuBackend::Vulkan,
        Api::Metal => WgpuBackend::Metal,
        Api::Dx12 => WgpuBackend::Dx12,
        Api::OpenGl => WgpuBackend::Gl,
        Api::Cuda => unreachable!("CUDA is not a graphics interface"),
    };
    let device = WgpuDevice::new(kind).on(api);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    // Burn refuses to initialize the same adapter twice.
    if opened.iter().all(|(other, _)| *other != device) {
        tuning::configure(adapter.kind);
        let options = RuntimeOptions::try_default().map_err(|error| error.to_string())?;
        let setup = try_init_setup::<AutoGraphicsApi>(&device, options).map_err(|error| error.to_string())?;
        opened.push((device.clone(), setup.queue));
    }
    Ok(Device::new(device))
}

/// The number of submissions to the queue of an open device so far, with one more for the question; `None` for another
/// device. wgpu shows the number only in the text of an index.
pub(super) fn submissions(device: &Device) -> Option<u64> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, queue) = opened.iter().find(|(other, _)| Device::new(other.clone()) == *device)?;
    let index = format!("{:?}", queue.submit([]));
    index.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_gpu_node_finds_device_files() {
        // A `card` file is a display device, which cannot compute.
        for (name, is_gpu) in [("dri/card0", false), ("dri/renderD128", true), ("nvidiactl", true), ("dxg", true)] {
            let dev = tempfile::tempdir().expect("a temporary directory can be created");
            assert!(!has_gpu_node(dev.path()));
            fs::create_dir(dev.path().join("dri")).expect("the folder can be created");
            fs::write(dev.path().join(name), "").expect("the file can be written");
            assert_eq!(has_gpu_node(dev.path()), is_gpu, "{name}");
        }
    }
}
