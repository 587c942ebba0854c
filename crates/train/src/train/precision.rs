//! The precision of matrix products: the choice in the config, and whether a device can train in it.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::config::BaseWeights;
use tinderbox_kernels::MatmulPrecision;
use tinderbox_model::device::{self, Backend, OpenDevice};

/// The precision of matrix products, or `auto`, which chooses it by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionChoice {
    /// Products in f32, without rounding.
    #[default]
    F32,
    /// Matrices are rounded to 8 significant bits before they are multiplied.
    Bf16,
    /// `bf16` where `flex` computes on a CPU that has instructions for it, otherwise `f32`.
    Auto,
}

/// A remark on the precision for messages, appended to the device's name; empty for f32.
pub fn precision_remark(precision: MatmulPrecision) -> &'static str {
    match precision {
        MatmulPrecision::F32 => "",
        MatmulPrecision::Bf16 => ", matrices in bf16",
    }
}

impl PrecisionChoice {
    /// The precision that this choice means on `device`.
    pub fn on(self, device: &Device) -> MatmulPrecision {
        self.resolve(device::is_flex(device) && MatmulPrecision::Bf16.is_native())
    }

    /// The precision that this choice means on a device where bf16 is native, or is not.
    fn resolve(self, is_native: bool) -> MatmulPrecision {
        match self {
            Self::F32 => MatmulPrecision::F32,
            Self::Auto if !is_native => MatmulPrecision::F32,
            Self::Bf16 | Self::Auto => MatmulPrecision::Bf16,
        }
    }
}

impl From<MatmulPrecision> for PrecisionChoice {
    fn from(precision: MatmulPrecision) -> Self {
        match precision {
            MatmulPrecision::F32 => Self::F32,
            MatmulPrecision::Bf16 => Self::Bf16,
        }
    }
}

/// The error that the config requests a precision that only flex has, on a device that always computes in f32.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} = \"{value}\" is only for `flex`, burn's CPU backend, and `{device}` computes in f32\n  \
     hint: compute there with --device flex, or in f32 with --set {key}=f32"
)]
pub struct PrecisionError {
    key: &'static str,
    value: &'static str,
    device: String,
}

/// The training precision on `device`.
pub fn check(choice: PrecisionChoice, device: &OpenDevice) -> Result<MatmulPrecision, PrecisionError> {
    match choice.on(&device.device) {
        MatmulPrecision::Bf16 if device.backend != Backend::Flex => {
            Err(PrecisionError { key: "train.matmul_precision", value: "bf16", device: device.name.clone() })
        }
        precision => Ok(precision),
    }
}

/// Checks that `device` can compute with base weights in this format.
pub(super) fn check_base(base_weights: BaseWeights, device: &OpenDevice) -> Result<(), PrecisionError> {
    match base_weights.precision() {
        Some(precision) if device.backend != Backend::Flex => {
            Err(PrecisionError { key: "finetune.base_weights", value: precision.name(), device: device.name.clone() })
        }
        _ => Ok(()),
    }
}

/// A warning if `precision` is slow on this CPU and f32 would be faster.
pub fn warning(precision: MatmulPrecision) -> Option<String> {
    (!precision.is_native()).then(|| {
        "train.matmul_precision = \"bf16\" works on this CPU, but f32 is faster here: it has no fast instructions \
         for products of bf16 (AMD's AVX512-BF16, Intel's AMX)\n  hint: --set train.matmul_precision=f32"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_automatic_precision_depends_on_machine() {
        let resolved = |choice: PrecisionChoice| [false, true].map(|is_native| choice.resolve(is_native));
        let (f32, bf16) = (MatmulPrecision::F32, MatmulPrecision::Bf16);
        assert_eq!(resolved(PrecisionChoice::F32), [f32, f32]);
        assert_eq!(resolved(PrecisionChoice::Bf16), [bf16, bf16]);
        assert_eq!(resolved(PrecisionChoice::Auto), [f32, bf16]);
    }
}
