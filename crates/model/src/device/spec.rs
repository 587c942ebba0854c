//! The names of devices in arguments, such as `wgpu:1`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tinderbox_kernels::Operations;

use super::DeviceError;

/// A device as named by the user: `auto`, `cpu`, a backend with or without an adapter's index, or `cuda:all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceSpec {
    /// The first of CUDA, a discrete GPU or Metal, and the CPU; never a software adapter.
    Auto,
    /// The best CPU backend.
    Cpu,
    /// A backend, with the adapter of this index or else the best one.
    On(Backend, Option<usize>),
    /// All CUDA GPUs, for training; all other commands use the best one.
    AllOfCuda,
}

/// A backend of burn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Burn's own CPU backend.
    Flex,
    /// The `ndarray` crate on the CPU, for checking results against a second implementation.
    Ndarray,
    /// Any GPU, through the fastest available graphics API.
    Wgpu,
    /// GPUs through Vulkan, with SPIR-V shaders.
    Vulkan,
    /// GPUs through Metal, with shaders in Metal's shading language.
    Metal,
    /// NVIDIA GPUs through CUDA.
    Cuda,
}

impl Backend {
    /// All backends, in the order of listings.
    pub const ALL: [Self; 6] = [Self::Flex, Self::Ndarray, Self::Wgpu, Self::Vulkan, Self::Metal, Self::Cuda];

    /// The backend's name, which is also the name of its cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        }
    }

    /// How the backend computes a model's operations.
    pub fn operations(self) -> Operations {
        match self {
            Self::Flex => Operations::Fused,
            _ => Operations::Composed,
        }
    }

    /// Whether the backend computes on the CPU and thus has no adapters.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::Flex | Self::Ndarray)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(spec: &str) -> Result<Self, DeviceError> {
        let (name, index) = match spec.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (spec, None),
        };
        let backend = || Backend::ALL.into_iter().find(|backend| backend.name() == name);
        let unknown = || DeviceError::Unknown(name.to_owned(), nearest(name));
        let parsed = match name {
            "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            _ => Self::On(backend().ok_or_else(unknown)?, None),
        };
        match (parsed, index) {
            (parsed, None) => Ok(parsed),
            (Self::On(Backend::Cuda, _), Some("all")) => Ok(Self::AllOfCuda),
            (Self::On(backend, _), Some(index)) if !backend.is_cpu() => {
                let number = index.parse().map_err(|_| DeviceError::BadIndex(spec.to_owned(), index.to_owned()))?;
                Ok(Self::On(backend, Some(number)))
            }
            _ => Err(DeviceError::NoIndex(spec.to_owned(), name.to_owned())),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::On(backend, None) => write!(f, "{backend}"),
            Self::On(backend, Some(index)) => write!(f, "{backend}:{index}"),
            Self::AllOfCuda => f.write_str("cuda:all"),
        }
    }
}

fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    ["auto", "cpu"]
        .into_iter()
        .chain(Backend::ALL.map(Backend::name))
        .map(|known| (strsim::damerau_levenshtein(&name, known), known))
        .filter(|(distance, _)| *distance <= 2)
        .min_by_key(|(distance, known)| (*distance, !known.contains(&name))) // gpu: wgpu, not cpu
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_round_trip() {
        for text in ["auto", "cpu", "flex", "ndarray", "wgpu", "wgpu:0", "vulkan:12", "metal", "cuda:1", "cuda:all"] {
            let spec: DeviceSpec = text.parse().expect("the name is known");
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("cuda:1".parse::<DeviceSpec>().ok(), Some(DeviceSpec::On(Backend::Cuda, Some(1))));
    }

    #[test]
    fn unknown_devices_are_explained() {
        for (text, expected) in [
            ("wpgu:0", "unknown device `wpgu`\n  hint: did you mean `wgpu`?"),
            ("CUDA", "did you mean `cuda`?"),
            ("gpu", "did you mean `wgpu`?"), // not `cpu`
            ("quantum", "unknown device `quantum`\n  hint: known are auto"),
            ("", "unknown device ``"),
            ("wgpu:one", "`one` is not an adapter's number"),
            ("wgpu:", "`` is not an adapter's number"),
            ("wgpu:-1", "`-1` is not"),
            ("flex:0", "only one `flex`"),
            ("wgpu:all", "`all` is not an adapter's number"),
            ("auto:0", "only one `auto`"),
        ] {
            let error = text.parse::<DeviceSpec>().expect_err("the name is unknown").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
