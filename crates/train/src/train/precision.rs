//! Checks whether a device can train in the matmul precision set in the config.

use crate::config::{MatmulPrecision, PrecisionChoice};
use tinderbox_model::device::{Backend, OpenDevice};

/// The error that the config asks for bf16 on a device that always computes in f32.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "train.matmul_precision = \"bf16\" is only for `flex`, burn's CPU backend, and `{0}` computes in f32\n  \
     hint: compute there with --device flex, or in f32 with --set train.matmul_precision=f32"
)]
pub struct PrecisionError(String);

/// The precision in which `device` trains.
///
/// # Errors
/// If the device does not support the chosen precision.
pub fn check(choice: PrecisionChoice, device: &OpenDevice) -> Result<MatmulPrecision, PrecisionError> {
    match choice.on(&device.device) {
        MatmulPrecision::Bf16 if device.backend != Backend::Flex => Err(PrecisionError(device.name.clone())),
        precision => Ok(precision),
    }
}

/// A warning if `precision` is slow on this CPU and f32 would be faster.
pub fn warning(precision: MatmulPrecision) -> Option<String> {
    warning_if(!precision.is_native())
}

fn warning_if(is_slow: bool) -> Option<String> {
    is_slow.then(|| {
        "train.matmul_precision = \"bf16\" works on this CPU, but f32 is faster here: there are no instructions for \
         products of bf16 (AVX512-BF16)\n  hint: --set train.matmul_precision=f32"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_cpu_without_the_instructions_gets_a_warning() {
        assert_eq!(warning(MatmulPrecision::F32), None, "every CPU has them");
        assert_eq!(warning_if(false), None);
        let warning = warning_if(true).unwrap();
        assert!(warning.contains("train.matmul_precision") && warning.contains("hint: "), "{warning}");
    }
}
