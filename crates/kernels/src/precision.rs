//! The precision of matrix products.

#[cfg(target_arch = "x86_64")]
use crate::SimdLevel;

/// The precision of matrix products with weights, forward and backward, and of Muon's Newton-Schulz iteration: matrices
/// are rounded to it before they are multiplied. Accumulation is always in f32, and so is everything else, except that
/// the gradients of biases are f32 sums of rounded elements.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MatmulPrecision {
    /// 24 significant bits: nothing is rounded.
    #[default]
    F32,
    /// `bfloat16`: 8 significant bits, with the range of f32. Only on burn's CPU backend, flex; others compute in f32.
    /// With fast bfloat16 instructions products take at most half the time: see [`MatmulPrecision::is_native`].
    Bf16,
}

impl MatmulPrecision {
    /// Whether this CPU, at the current [`SimdLevel`], has instructions that make products in this precision at least
    /// as fast as in [`MatmulPrecision::F32`]: for bfloat16 AMX or, except on Intel's CPUs, AVX512-BF16. Without them
    /// elements are widened to f32 first, and products take longer.
    pub fn is_native(self) -> bool {
        match self {
            Self::F32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16 => match SimdLevel::current() {
                Ok(SimdLevel::Amx) => true,
                Ok(SimdLevel::Avx512) => is_x86_feature_detected!("avx512bf16") && !is_of_intel(),
                _ => false,
            },
            #[cfg(not(target_arch = "x86_64"))]
            Self::Bf16 => false,
        }
    }
}

/// Whether Intel made the CPU. Its `vdpbf16ps` takes as long as four multiply-adds of f32, for twice the scalars
/// (measured on an Emerald Rapids).
#[cfg(target_arch = "x86_64")]
fn is_of_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}
