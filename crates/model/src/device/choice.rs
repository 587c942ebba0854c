//! The rules for choosing an adapter. They are functions of the adapters found, so that their tests need no hardware.

use std::fmt;

use serde::Serialize;

use super::DeviceError;
use super::spec::Backend;

/// A kind of hardware, in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU that a virtual machine passes through.
    Virtual,
    /// A GPU that its driver does not classify.
    Other,
    /// A software GPU: a graphics driver that computes on the CPU, such as Mesa's lavapipe.
    Software,
    /// The CPU itself.
    Cpu,
}

impl AdapterKind {
    /// Whether this is a hardware GPU.
    pub fn is_gpu(self) -> bool {
        !matches!(self, Self::Software | Self::Cpu)
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The API through which a program uses an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Api {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// `DirectX` 12.
    #[serde(rename = "DirectX 12")]
    Dx12,
    /// `OpenGL`.
    #[serde(rename = "OpenGL")]
    OpenGl,
    /// CUDA.
    #[serde(rename = "CUDA")]
    Cuda,
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A hardware or software GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// The backend that found the adapter.
    pub backend: Backend,
    /// The index among that backend's adapters, best first: the `n` of `wgpu:n`.
    pub index: usize,
    /// The index among the adapters of the same kind, in the driver's order: burn's index of the adapter.
    pub(super) index_of_kind: usize,
    /// The name reported by the driver.
    pub name: String,
    /// The API through which the adapter is used.
    pub api: Api,
    /// The kind of hardware.
    pub kind: AdapterKind,
}

impl Adapter {
    /// The adapter as an argument of `--device`.
    pub fn spec(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }

    /// Whether the driver would crash the program. With the `vulkan` feature, burn compiles kernels to SPIR-V for every
    /// driver that claims to accept it and has no switch to turn that off; Mesa's lavapipe then segfaults.
    pub(super) fn crashes(&self) -> bool {
        cfg!(feature = "vulkan") && self.kind == AdapterKind::Software && self.api == Api::Vulkan
    }
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.spec(), self.name, self.api)
    }
}

/// The adapter that `auto` chooses. It takes an integrated GPU only on Metal; on other APIs the CPU is often faster.
pub(super) fn automatic(found: &[Adapter]) -> Option<&Adapter> {
    found.iter().find(|adapter| match adapter.backend {
        Backend::Cuda => true,
        _ => adapter.kind == AdapterKind::Discrete || (adapter.api == Api::Metal && adapter.kind.is_gpu()),
    })
}

/// The adapter with this index; without an index the first one, which is the best.
pub(super) fn pick(backend: Backend, index: Option<usize>, found: &[Adapter]) -> Result<&Adapter, DeviceError> {
    if found.is_empty() {
        let found = match backend {
            Backend::Cuda => "no NVIDIA driver or no GPU",
            Backend::Vulkan => "no Vulkan driver was found",
            Backend::Metal => "no Metal device was found",
            _ => "no graphics driver was found",
        };
        return Err(DeviceError::NoAdapter(backend, found, hint(backend)));
    }
    let index = index.unwrap_or(0);
    found.get(index).ok_or_else(|| DeviceError::NoSuchAdapter(backend, index, joined(found)))
}

pub(super) fn joined(names: &[impl ToString]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn hint(backend: Backend) -> &'static str {
    match backend {
        Backend::Cuda => "install NVIDIA's driver (`nvidia-smi` must list the GPU)",
        Backend::Metal => "Metal is there only on macOS",
        _ if cfg!(target_os = "linux") => {
            "install the GPU's Vulkan driver, or `apt-get install mesa-vulkan-drivers` for one in software"
        }
        _ => "install the GPU's driver",
    }
}

/// Numbers the adapters of one API, best first. `found` is in the driver's order, in which burn numbers each kind.
/// OpenGL in software is left out: a step of a tiny model takes tens of seconds, and most Linux machines have it.
#[cfg(any(feature = "wgpu", feature = "cuda", test))]
pub(super) fn number(backend: Backend, api: Api, found: Vec<(String, AdapterKind)>) -> Vec<Adapter> {
    let mut adapters: Vec<Adapter> = Vec::new();
    let is_too_slow = |kind: AdapterKind| kind == AdapterKind::Software && api == Api::OpenGl;
    for (name, kind) in found.into_iter().filter(|(_, kind)| !is_too_slow(*kind)) {
        let index_of_kind = adapters.iter().filter(|other| other.kind == kind).count();
        // Burn can select only the first software adapter.
        if kind != AdapterKind::Software || index_of_kind == 0 {
            adapters.push(Adapter { backend, index: 0, index_of_kind, name, api, kind });
        }
    }
    adapters.sort_by_key(|adapter| adapter.kind);
    for (index, adapter) in adapters.iter_mut().enumerate() {
        adapter.index = index;
    }
    adapters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(backend: Backend, api: Api, kinds: &[AdapterKind]) -> Vec<Adapter> {
        let named = kinds.iter().enumerate().map(|(i, &kind)| (format!("card {i}"), kind)).collect();
        number(backend, api, named)
    }

    #[test]
    fn best_adapter_gets_index_0_and_keeps_index_of_burn() {
        use AdapterKind::{Discrete, Integrated, Software};
        let adapters = found(Backend::Wgpu, Api::Vulkan, &[Software, Integrated, Discrete, Discrete, Software]);
        let seen: Vec<_> = adapters.iter().map(|a| (a.index, a.kind, a.index_of_kind, &*a.name)).collect();
        let discrete = [(0, Discrete, 0, "card 2"), (1, Discrete, 1, "card 3")];
        assert_eq!(seen[..2], discrete);
        assert_eq!(seen[2..], [(2, Integrated, 0, "card 1"), (3, Software, 0, "card 0")]);
    }

    #[test]
    fn software_opengl_is_skipped() {
        use AdapterKind::{Discrete, Software};
        assert!(found(Backend::Wgpu, Api::OpenGl, &[Software]).is_empty());
        assert_eq!(found(Backend::Wgpu, Api::OpenGl, &[Software, Discrete]).len(), 1);
        assert_eq!(found(Backend::Wgpu, Api::Vulkan, &[Software]).len(), 1);
    }

    #[test]
    fn auto_takes_discrete_gpus_or_metal_never_software() {
        use AdapterKind::{Discrete, Integrated, Other, Software, Virtual};
        let auto = |api: Api, kinds: &[AdapterKind]| automatic(&found(Backend::Wgpu, api, kinds)).map(Adapter::spec);
        assert_eq!(auto(Api::Vulkan, &[Software]), None);
        assert_eq!(auto(Api::Vulkan, &[Integrated, Virtual, Other, Software]), None);
        assert_eq!(auto(Api::Vulkan, &[Software, Integrated, Discrete]).as_deref(), Some("wgpu:0"));
        assert_eq!(auto(Api::Metal, &[Integrated]).as_deref(), Some("wgpu:0"));
        assert_eq!(auto(Api::Metal, &[Software]), None);
        assert_eq!(auto(Api::Vulkan, &[]), None);
        let cuda = found(Backend::Cuda, Api::Cuda, &[Discrete, Discrete]);
        assert_eq!(automatic(&cuda).map(Adapter::spec).as_deref(), Some("cuda:0"));
    }

    #[test]
    fn explicit_backend_takes_any_adapter_by_index() {
        use AdapterKind::{Discrete, Software};
        let adapters = found(Backend::Wgpu, Api::Vulkan, &[Software, Discrete]);
        let pick = |index| pick(Backend::Wgpu, index, &adapters).map(|a| a.kind);
        assert_eq!(pick(None).ok(), Some(Discrete));
        assert_eq!(pick(Some(1)).ok(), Some(Software));
        let expected =
            "there is no `wgpu:2`\n  hint: choose one that is there: wgpu:0 (card 1, Vulkan), wgpu:1 (card 0, Vulkan)";
        assert_eq!(pick(Some(2)).expect_err("there are two adapters").to_string(), expected);
    }

    #[test]
    fn missing_adapters_are_explained() {
        let error = |backend, index| pick(backend, index, &[]).expect_err("there is no adapter").to_string();
        let cuda = error(Backend::Cuda, None);
        assert!(cuda.contains("no adapter for `cuda`: no NVIDIA driver"), "{cuda}");
        assert!(cuda.contains("`nvidia-smi`") && cuda.ends_with("`--device cpu`"), "{cuda}");
        assert!(error(Backend::Wgpu, Some(3)).contains("no graphics driver was found"));
    }
}
