//! Looking at the numbers of a tensor from the host.

use burn::tensor::{Tensor, TensorReadError};

use crate::flex;

/// What `f` makes of the numbers of `x`. On burn's CPU backend they are in the host's memory and stay where they
/// are; elsewhere they are read back and dropped again.
///
/// # Errors
/// If the device fails.
///
/// # Shapes
/// `x: [n]`, without gradients
pub fn with_values<R>(x: &Tensor<1>, f: impl FnOnce(&[f32]) -> R) -> Result<R, TensorReadError> {
    if flex::is_for(x) {
        return Ok(flex::with_values(x, f));
    }
    Ok(f(&x.clone().try_into_vec_as()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn sees(device: &Device) {
        let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device);
        let sees = |x: Tensor<1>, want: &[f32]| {
            let seen = with_values(&x, |values| values == want);
            assert!(seen.expect("a device that works"), "{x}");
        };
        sees(x.clone().reshape([6]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let tail: Tensor<1> = x.clone().reshape([6]).narrow(0, 2, 3);
        sees(tail, &[3.0, 4.0, 5.0]);
        let turned: Tensor<2> = x.swap_dims(0, 1);
        sees(turned.reshape([6]), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn numbers_are_seen_in_their_order_and_no_others() {
        sees(&Device::flex());
    }

    #[test]
    #[cfg(feature = "ndarray")]
    #[allow(deprecated, reason = "the numerical second opinion")]
    fn numbers_of_another_backend_are_read_back() {
        sees(&Device::ndarray());
    }
}
