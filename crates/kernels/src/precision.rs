//! The precision of matrix products.

#[cfg(target_arch = "x86_64")]
use crate::SimdLevel;

/// The precision to which matrices are rounded before they are multiplied: in products with weights, forward and
/// backward, and in Muon's Newton-Schulz iteration. Accumulation is always in f32, and so is everything else except the
/// gradients of biases, which are f32 sums of rounded elements.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MatmulPrecision {
    /// 24 significant bits: nothing is rounded.
    #[default]
    F32,
    /// `bfloat16`: 8 significant bits, with the range of f32. Only on burn's CPU backend, flex; others compute in f32.
    /// On a CPU with bfloat16 instructions, products take half the time: see [`MatmulPrecision::is_native`].
    Bf16,
}

impl MatmulPrecision {
    /// Whether this CPU, at the current [`SimdLevel`], has instructions for products in this precision. Without them, elements are first widened to
    /// f32, and products take longer than in [`MatmulPrecision::F32`].
    #[must_use]
    pub fn is_native(self) -> bool {
        match self {
            Self::F32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16 => {
                matches!(SimdLevel::current(), Ok(SimdLevel::Avx512)) && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Bf16 => false,
        }
    }
}
