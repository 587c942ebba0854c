//! The precision in which matrices are multiplied.

/// The precision to which matrices are rounded before products: with weights, forward and backward, and in Muon's
/// steps. Sums are in f32 either way, and so is everything else but the gradients of biases, which are sums of rounded
/// numbers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum MatmulPrecision {
    /// 24 significant bits: nothing is rounded.
    #[default]
    F32,
    /// 8 significant bits, with the range of f32: `bfloat16`. On burn's CPU backend, flex; others compute in f32. On a
    /// CPU that has instructions for it products take half the time, see [`MatmulPrecision::is_native`].
    Bf16,
}

impl MatmulPrecision {
    /// Whether this CPU has instructions for products of such numbers. One that has none widens the numbers first,
    /// which takes longer than products of f32.
    #[must_use]
    pub fn is_native(self) -> bool {
        match self {
            Self::F32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16 => is_x86_feature_detected!("avx512bf16"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Bf16 => false,
        }
    }
}
