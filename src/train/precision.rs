//! In which precision a config's matrices are multiplied, and on what.

use crate::config::MatmulPrecision;
use crate::device::{Backend, OpenDevice};

/// Matrices were to be rounded to bf16 where they are multiplied as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "train.matmul_precision = \"bf16\" is only for `flex`, burn's CPU backend, and `{device}` computes in f32\n  \
     hint: compute there with --device flex, or in f32 with --set train.matmul_precision=f32"
)]
pub struct PrecisionError {
    /// What was to compute.
    device: String,
}

/// Checks that `device` has the precision.
///
/// # Errors
/// If it has not.
pub fn check(precision: MatmulPrecision, device: &OpenDevice) -> Result<(), PrecisionError> {
    match precision {
        MatmulPrecision::Bf16 if device.backend != Backend::Flex => {
            Err(PrecisionError { device: device.name.clone() })
        }
        _ => Ok(()),
    }
}

/// What a user should know who is about to compute in `precision` on `device`: that another one is faster there.
///
/// # Errors
/// If the device has not the precision.
pub fn advice(
    precision: MatmulPrecision,
    device: &OpenDevice,
) -> Result<Option<String>, PrecisionError> {
    check(precision, device)?;
    Ok(warning(precision))
}

/// As [`advice`], on this CPU, whose precision was checked before.
#[must_use]
pub fn warning(precision: MatmulPrecision) -> Option<String> {
    warning_where(precision.is_native())
}

fn warning_where(is_native: bool) -> Option<String> {
    let said = "train.matmul_precision = \"bf16\" works on this CPU, but f32 is faster here: there are no \
                instructions for products of bf16 (AVX512-BF16)\n  hint: --set train.matmul_precision=f32";
    (!is_native).then(|| said.to_owned())
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::device;

    #[test]
    fn bf16_is_for_the_cpu_and_f32_for_every_device() {
        let flex = device::open(&"flex".parse().unwrap()).unwrap();
        let gpu = OpenDevice {
            name: "wgpu:0 (a card, Vulkan)".to_owned(),
            backend: Backend::Wgpu,
            ..flex.clone()
        };
        assert_eq!(check(MatmulPrecision::Bf16, &flex), Ok(()));
        assert_eq!(check(MatmulPrecision::F32, &flex), Ok(()));
        assert_eq!(check(MatmulPrecision::F32, &gpu), Ok(()));
        let error = check(MatmulPrecision::Bf16, &gpu).unwrap_err().to_string();
        for said in [
            "train.matmul_precision = \"bf16\"",
            "`wgpu:0 (a card, Vulkan)`",
            "hint: compute there with --device flex",
            "--set train.matmul_precision=f32",
        ] {
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn nothing_is_advised_where_a_precision_is_not() {
        let flex = device::open(&"flex".parse().unwrap()).unwrap();
        let gpu = OpenDevice { backend: Backend::Wgpu, ..flex.clone() };
        for precision in [MatmulPrecision::F32, MatmulPrecision::Bf16] {
            assert_eq!(advice(precision, &flex), Ok(warning(precision)));
        }
        assert_eq!(advice(MatmulPrecision::F32, &gpu), Ok(None));
        let refused = check(MatmulPrecision::Bf16, &gpu).unwrap_err();
        assert_eq!(advice(MatmulPrecision::Bf16, &gpu), Err(refused));
    }

    #[test]
    fn only_a_cpu_without_the_instructions_is_warned_of() {
        assert_eq!(warning(MatmulPrecision::F32), None, "every CPU has them");
        assert_eq!(warning_where(true), None);
        let warning = warning_where(false).unwrap();
        assert!(
            warning.contains("train.matmul_precision") && warning.contains("hint: "),
            "{warning}"
        );
    }
}
