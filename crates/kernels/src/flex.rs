//! Access to tensors of burn's CPU backend, flex, as slices.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Device, Int, Shape, Tensor, TensorReadError};

use crate::gemm::Matrix;

/// Whether the fused operations support the tensor: f32 on flex, with or without autodiff.
pub(crate) fn is_for<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && x.device() == Device::flex()
}

/// Whether `device`, with or without autodiff, computes on the CPU.
pub(crate) fn is_host(device: &Device) -> bool {
    #[cfg(feature = "ndarray")]
    #[allow(deprecated, reason = "kept as a numerical second opinion until burn drops it")]
    if *device == Device::ndarray() {
        return true;
    }
    *device == Device::flex()
}

/// The elements of a contiguous f32 tensor, as a slice.
pub(crate) fn values(x: &FlexTensor) -> &[f32] {
    let start = x.layout().start_offset();
    &x.storage::<f32>()[start..start + x.layout().num_elements()]
}

/// A contiguous f32 tensor as a matrix, whose rows run along the last dimension.
pub(crate) fn matrix(x: &FlexTensor) -> Matrix<'_> {
    let shape = x.layout().shape();
    let n_columns = shape[shape.num_dims() - 1];
    let values = values(x);
    Matrix::new(values, [values.len() / n_columns, n_columns])
}

/// Calls `f` with the elements of `x` and returns its result. Burn's CPU backend lends them; other devices copy them to
/// the host first.
///
/// # Errors
/// If the device fails.
///
/// # Shapes
/// `x: [n]`, without autodiff
pub fn with_values<R>(x: &Tensor<1>, f: impl FnOnce(&[f32]) -> R) -> Result<R, TensorReadError> {
    if is_for(x) {
        return Ok(f(values(&primitive(x.clone()).to_contiguous())));
    }
    Ok(f(&x.clone().try_into_vec_as()?))
}

/// The tokens of a tensor, copied to the host.
pub(crate) fn tokens<const D: usize>(x: Tensor<D, Int>) -> Vec<usize> {
    x.into_data().iter::<i64>().map(|token| usize::try_from(token).expect("tokens are not negative")).collect()
}

/// The flex tensor behind `x`, which must be on flex without autodiff.
pub(crate) fn primitive<const D: usize>(x: Tensor<D>) -> FlexTensor {
    x.try_into_primitive::<Flex>().expect("the tensor is on flex, without autodiff")
}

pub(crate) fn tensor(values: Vec<f32>, like: &FlexTensor) -> FlexTensor {
    from_vec(values, like.layout().shape().clone())
}

pub(crate) fn from_vec(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape.into()), DType::F32)
}

/// The elements of an f32 tensor as a mutable slice: in place if the tensor is the only owner of its buffer, otherwise
/// in a copy, which replaces it.
pub(crate) fn values_mut(x: &mut FlexTensor) -> &mut [f32] {
    // `to_contiguous` shares the buffer of a contiguous tensor, and a shared buffer would be copied.
    if !x.is_contiguous() {
        *x = x.to_contiguous();
    }
    let start = x.layout().start_offset();
    let end = start + x.layout().num_elements();
    &mut x.storage_mut::<f32>()[start..end]
}

/// Rounds to f32, the precision of the operations.
#[allow(clippy::cast_possible_truncation, reason = "the operations compute in f32")]
pub(crate) fn in_f32(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_mut_keeps_shared_storage() {
        let x = FlexTensor::from_data(burn::tensor::TensorData::from([1.0_f32, 2.0, 3.0]));
        let mut view = x.narrow(0, 1, 2);
        for x in values_mut(&mut view) {
            *x *= 2.0;
        }
        assert_eq!(values(&view), [4.0, 6.0]);
        assert_eq!(values(&x), [1.0, 2.0, 3.0]);
    }

    #[test]
    #[allow(deprecated, reason = "ndarray is the numerical second opinion")]
    fn with_values_reads_elements_in_order() {
        let devices = [
            Device::flex(),
            #[cfg(feature = "ndarray")]
            Device::ndarray(),
        ];
        for device in devices {
            let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
            let turned: Tensor<2> = x.clone().swap_dims(0, 1);
            let table: [(Tensor<1>, &[f32]); 3] = [
                (x.clone().reshape([6]), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
                (x.reshape([6]).narrow(0, 2, 3), &[3.0, 4.0, 5.0]),
                (turned.reshape([6]), &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]),
            ];
            for (x, want) in table {
                let seen = with_values(&x, |values| values == want);
                assert!(seen.expect("the CPU does not fail"), "{x}");
            }
        }
    }
}
