//! The linear layer over a frozen weight in bf16 or int8, which the tasks of a product widen as they pack it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Device, Tensor, TensorData};

use crate::MatmulPrecision;
use crate::decode::{PackedLinear, Precision};
use crate::flex::{self, primitive, values};
use crate::gemm::{Bf16x2, Element, Matrix, PackSource, Row, Scratch, WIDTH};
use crate::linear::{self, WEIGHT};
use crate::op::{FlexOperation, Wanted, apply_on_flex};

/// A weight `[K, M]` that is not trained, stored in fewer bytes than f32. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FrozenWeight(Arc<PackedLinear>);

impl FrozenWeight {
    /// Rounds a weight on burn's CPU backend, flex.
    ///
    /// # Panics
    /// If it is on another device.
    pub fn new(weight: Tensor<2>, precision: Precision) -> Self {
        let shape @ [_, n_columns] = weight.dims();
        let weight = primitive(weight.inner()).to_contiguous();
        let values = values(&weight);
        let at = |row: usize, column: usize| values[row * n_columns + column];
        Self(Arc::new(PackedLinear::pack(precision, shape, at, None)))
    }

    /// The rounded weight, `[K, M]`.
    pub fn widened(&self, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(self.0.widened(), self.0.shape()), device)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// Like [`linear`](fn@crate::linear), over a frozen weight. Nothing is saved for the backward pass.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
///
/// # Panics
/// If `x` is not on burn's CPU backend, flex.
pub fn frozen_linear<const D: usize>(
    x: Tensor<D>,
    weight: &FrozenWeight,
    bias: Option<Tensor<1>>,
    precision: MatmulPrecision,
) -> Tensor<D> {
    assert!(flex::is_for(&x), "frozen weights are for flex");
    let mut inputs = vec![x.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused(inputs, weight.clone(), precision))
}

/// Not generic, like `linear::fused_linear`.
fn fused(inputs: Vec<DispatchTensor>, weight: FrozenWeight, precision: MatmulPrecision) -> DispatchTensor {
    let has_bias = inputs.len() > 1;
    match precision {
        MatmulPrecision::F32 => apply_on_flex(inputs, Frozen::<f32> { weight, has_bias, elements: PhantomData }),
        MatmulPrecision::Bf16 => apply_on_flex(inputs, Frozen::<Bf16x2> { weight, has_bias, elements: PhantomData }),
    }
}

/// Inputs: x, and the bias if there is one. `E` is the element type of the products.
#[derive(Debug)]
struct Frozen<E> {
    weight: FrozenWeight,
    has_bias: bool,
    elements: PhantomData<E>,
}

impl<E> Frozen<E> {
    fn widened(&self, is_transposed: bool) -> Widened<'_> {
        Widened { weight: &self.weight.0, is_transposed }
    }
}

impl<E: Element> FlexOperation for Frozen<E> {
    fn forward(&self, inputs: Vec<FlexTensor>, _: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let bias = if self.has_bias { values(&inputs[1]) } else { &[] };
        (linear::forward::<E>(&inputs[0], &self.widened(false), bias), Vec::new())
    }

    fn backward(&self, _: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>> {
        let wanted = [wanted.of(0), false, wanted.of(1)];
        let mut gradients = linear::backward::<E>(&gradient, None, &self.widened(true), wanted);
        gradients.remove(WEIGHT);
        gradients.truncate(if self.has_bias { 2 } else { 1 });
        gradients
    }
}

/// The rounded weights as a matrix of f32, which may be transposed.
struct Widened<'a> {
    weight: &'a PackedLinear,
    is_transposed: bool,
}

impl<E: Element> PackSource<E> for Widened<'_> {
    fn shape(&self) -> [usize; 2] {
        let [inputs, outputs] = self.weight.shape();
        if self.is_transposed { [outputs, inputs] } else { [inputs, outputs] }
    }

    fn pack(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [Row<E>]) {
        let (inputs, outputs) = if self.is_transposed { (columns, rows) } else { (rows, columns) };
        let shape @ [n_inputs, n_outputs] = [inputs.len(), outputs.len()];
        let mut rows = Scratch::<f32>::new((n_inputs * n_outputs).div_ceil(WIDTH));
        let scalars = &mut rows.as_flattened_mut()[..n_inputs * n_outputs];
        self.weight.widen(inputs, outputs, scalars);
        let part = Matrix::new(scalars, shape);
        let part = if self.is_transposed { part.transposed() } else { part };
        part.pack(0..part.n_rows(), 0..part.n_columns(), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{constant, scalars};

    #[test]
    fn frozen_weight_is_close_and_smaller() {
        let exact = constant::<2>([64, 96], 2); // from -2 to 2
        for (precision, bytes, tolerance) in
            [(Precision::F32, 4.0, 0.0), (Precision::Bf16, 2.0, 0.004), (Precision::Int8, 1.125, 0.008)]
        {
            let weight = FrozenWeight::new(exact.clone(), precision);
            assert_eq!(weight.bytes(), (bytes * 64.0 * 96.0) as usize, "{precision}");
            let near = scalars(weight.widened(&exact.device())).into_iter().zip(scalars(exact.clone()));
            let worst = near.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            assert!(worst <= tolerance && (worst > 0.0) == (tolerance > 0.0), "{precision}: {worst}");
        }
    }
}
