//! Dispatches to the backends that are compiled in.

use burn::tensor::Device;

use super::choice::Adapter;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::choice::Api;
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "wgpu")]
use super::graphics;
use super::spec::Backend;

pub(super) fn is_compiled(backend: Backend) -> bool {
    match backend {
        Backend::Flex => cfg!(feature = "flex"),
        Backend::Ndarray => cfg!(feature = "ndarray"),
        Backend::Wgpu => cfg!(feature = "wgpu"),
        Backend::Vulkan => cfg!(feature = "vulkan"),
        Backend::Metal => cfg!(feature = "metal"),
        Backend::Cuda => cfg!(feature = "cuda"),
    }
}

/// The device of a CPU backend, or `None` if the backend is not compiled in.
pub(super) fn open_cpu(backend: Backend) -> Option<Device> {
    match backend {
        #[cfg(feature = "flex")]
        Backend::Flex => Some(Device::flex()),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated, reason = "kept as a numerical second opinion until burn drops it")]
        Backend::Ndarray => Some(Device::ndarray()),
        _ => None,
    }
}

/// The adapters of a backend, best first; empty if the backend is not compiled in.
pub(super) fn find(backend: Backend) -> Vec<Adapter> {
    match backend {
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => graphics::find(backend, graphics::BEST_FIRST),
        #[cfg(feature = "vulkan")]
        Backend::Vulkan => graphics::find(backend, &[Api::Vulkan]),
        #[cfg(feature = "metal")]
        Backend::Metal => graphics::find(backend, &[Api::Metal]),
        #[cfg(feature = "cuda")]
        Backend::Cuda => cuda::find(),
        _ => Vec::new(),
    }
}

/// Whether this machine may have a GPU for `backend`, as far as that can be told without initializing the backend.
pub(super) fn may_have_gpu(backend: Backend) -> bool {
    match backend {
        #[cfg(feature = "wgpu")]
        Backend::Wgpu | Backend::Vulkan => graphics::may_have_gpu(),
        _ => true,
    }
}

pub(super) fn open(adapter: &Adapter) -> Result<Device, String> {
    match adapter.api {
        #[cfg(feature = "cuda")]
        Api::Cuda => cuda::open(adapter),
        #[cfg(feature = "wgpu")]
        Api::Vulkan | Api::Metal | Api::Dx12 | Api::OpenGl => graphics::open(adapter),
        #[allow(unreachable_patterns, reason = "reached if a backend is left out")]
        _ => Err("its backend is not in this binary".to_owned()),
    }
}
