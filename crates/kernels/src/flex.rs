//! Tensors of burn's CPU backend, flex, as slices.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape, Tensor};

use crate::backend;
use crate::tasks::CHUNK;

/// Whether these operations can take the tensor: f32 on flex.
pub(crate) fn is_for<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && backend::is_flex(&x.device())
}

/// The numbers of a contiguous tensor of f32.
pub(crate) fn values(x: &FlexTensor) -> &[f32] {
    let start = x.layout().start_offset();
    &x.storage::<f32>()[start..start + x.layout().num_elements()]
}

/// As [`crate::with_values`], of f32 on flex.
pub(crate) fn with_values<R>(x: &Tensor<1>, f: impl FnOnce(&[f32]) -> R) -> R {
    f(values(&primitive(x.clone()).to_contiguous()))
}

/// A tensor without gradients, as flex has it.
pub(crate) fn primitive<const D: usize>(x: Tensor<D>) -> FlexTensor {
    x.try_into_primitive::<Flex>().expect("a tensor of flex, without gradients")
}

/// A tensor of these numbers, in the shape of another.
pub(crate) fn tensor(values: Vec<f32>, like: &FlexTensor) -> FlexTensor {
    from_vec(values, like.layout().shape().clone())
}

/// A tensor of these numbers.
pub(crate) fn from_vec(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}

/// Lets `f` overwrite the numbers of `x`: in place where nobody else holds them, else in a copy.
pub(crate) fn map_in_place(x: FlexTensor, f: impl FnOnce(&mut [f32])) -> FlexTensor {
    // `to_contiguous` shares what is contiguous already, and what is shared would be copied.
    let mut x = if x.is_contiguous() { x } else { x.to_contiguous() };
    let start = x.layout().start_offset();
    let end = start + x.layout().num_elements();
    f(&mut x.storage_mut::<f32>()[start..end]);
    x
}

/// The number in the precision of the operations.
#[allow(clippy::cast_possible_truncation, reason = "the operations compute in f32")]
pub(crate) fn in_f32(x: f64) -> f32 {
    x as f32
}

/// How many rows of `row` numbers one task takes: a function of the shape alone.
pub(crate) fn rows_per_task(row: usize) -> usize {
    (CHUNK / row.max(1)).max(1)
}

/// What the tests of these operations share.
#[cfg(test)]
pub(crate) mod testing {
    use burn::tensor::{Device, Tensor, TensorData};

    use crate::dropout::{Dropout, DropoutKey};

    /// Of three of ten numbers.
    pub(crate) const DROPOUT: Dropout =
        Dropout { probability: 0.3, key: DropoutKey { seed: 1, step: 2, micro_step: 3 }, site: 4 };

    /// Numbers without a pattern, between -2 and 2: the same in every run.
    pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
        (0..n)
            .map(|i| {
                let bits = (i as u32 ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
                let bits = (bits ^ (bits >> 15)).wrapping_mul(0xC2B2_AE35);
                (bits >> 8) as f32 / (1 << 22) as f32 - 2.0
            })
            .collect()
    }

    /// A tensor of [`noise`] that gradients are asked of.
    pub(crate) fn leaf<const D: usize>(shape: [usize; D], seed: u32) -> Tensor<D> {
        constant(shape, seed).require_grad()
    }

    /// A tensor of [`noise`].
    pub(crate) fn constant<const D: usize>(shape: [usize; D], seed: u32) -> Tensor<D> {
        let values = noise(shape.iter().product(), seed);
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    }

    /// The numbers of a tensor.
    pub(crate) fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("f32")
    }

    /// Numbers that agree within 2e-6 of the largest of them.
    pub(crate) fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
        assert_within(got, want, 2e-6, what);
    }

    /// Numbers that agree within so much of the largest of them.
    pub(crate) fn assert_within(got: &[Vec<f32>], want: &[Vec<f32>], share: f32, what: &str) {
        assert_eq!(got.len(), want.len());
        for (part, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(got.len(), want.len(), "{what}, part {part}");
            let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                assert!((got - want).abs() <= share * largest, "{what}, part {part}, number {i}: {got} is not {want}");
            }
        }
    }

    /// What `f` returns when rayon has so many threads.
    pub(crate) fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("threads can be started").install(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_in_place_leaves_shared_storage_alone() {
        let x = FlexTensor::from_data(burn::tensor::TensorData::from([1.0_f32, 2.0, 3.0]));
        let view = x.narrow(0, 1, 2);
        let doubled = map_in_place(view, |values| values.iter_mut().for_each(|x| *x *= 2.0));
        assert_eq!(values(&doubled), [4.0, 6.0]);
        assert_eq!(values(&x), [1.0, 2.0, 3.0]);
    }
}
