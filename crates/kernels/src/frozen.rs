//! The linear layer over a frozen weight that is kept in bf16 or int8. The tasks of a product widen it as they pack it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Device, Tensor, TensorData};

use crate::MatmulPrecision;
use crate::decode::{PackedLinear, Precision};
use crate::flex::{self, primitive, values};
use crate::gemm::{Bf16x2, Element, Matrix, Row, Scratch, Source, WIDTH};
use crate::linear::{self, WEIGHT};
use crate::op::{FlexOperation, Wanted, apply_on_flex};

/// A weight `[K, M]` that is not trained, in fewer bytes than f32 has. Cheap to clone.
#[derive(Clone)]
pub struct FrozenWeight {
    weight: Arc<PackedLinear>,
}

impl FrozenWeight {
    /// Rounds a weight on burn's CPU backend, flex.
    ///
    /// # Panics
    /// If it is on another device.
    #[must_use]
    pub fn new(weight: Tensor<2>, precision: Precision) -> Self {
        let shape @ [_, n_columns] = weight.dims();
        let weight = primitive(weight.inner()).to_contiguous();
        let values = values(&weight);
        let at = |row: usize, column: usize| values[row * n_columns + column];
        Self { weight: Arc::new(PackedLinear::pack(precision, shape, at, None)) }
    }

    /// The rounded weight, `[K, M]`.
    #[must_use]
    pub fn widened(&self, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(self.weight.widened(), self.weight.shape()), device)
    }

    /// The number of bytes in which it is kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }
}

impl fmt::Debug for FrozenWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenWeight({:?} in {})", self.weight.shape(), self.weight.precision())
    }
}

/// As [`linear`](fn@crate::linear), over a frozen weight, of which nothing is kept for the backward pass.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
///
/// # Panics
/// If `x` is not on burn's CPU backend, flex.
#[must_use]
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

/// Not generic, like that of the linear layer.
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

impl<E: Element> FlexOperation for Frozen<E> {
    /// Saves nothing.
    fn forward(&self, inputs: Vec<FlexTensor>, _: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let bias = if self.has_bias { values(&inputs[1]) } else { &[] };
        (linear::forward::<E>(&inputs[0], &Widened(&self.weight.weight), bias), Vec::new())
    }

    fn backward(&self, _: Vec<FlexTensor>, gradient: FlexTensor, wanted: Wanted) -> Vec<Option<FlexTensor>> {
        let wanted = wanted.with_constant(WEIGHT);
        let mut gradients = linear::backward::<E>(&gradient, None, &Transposed(&self.weight.weight), wanted);
        gradients.remove(WEIGHT);
        gradients.truncate(if self.has_bias { 2 } else { 1 });
        gradients
    }
}

/// The rounded weights, as numbers of f32.
struct Widened<'a>(&'a PackedLinear);

impl<E: Element> Source<E> for Widened<'_> {
    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn pack(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [Row<E>]) {
        pack(self.0, rows, columns, false, out);
    }
}

/// The same, transposed.
struct Transposed<'a>(&'a PackedLinear);

impl<E: Element> Source<E> for Transposed<'_> {
    fn shape(&self) -> [usize; 2] {
        let [inputs, outputs] = self.0.shape();
        [outputs, inputs]
    }

    fn pack(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [Row<E>]) {
        pack(self.0, columns, rows, true, out);
    }
}

/// Widens a part of the weights and packs it.
fn pack<E: Element>(
    weights: &PackedLinear,
    inputs: Range<usize>,
    outputs: Range<usize>,
    is_transposed: bool,
    out: &mut [Row<E>],
) {
    let shape @ [n_rows, n_columns] = [inputs.len(), outputs.len()];
    let mut rows = Scratch::<f32>::new((n_rows * n_columns).div_ceil(WIDTH));
    let numbers = &mut rows.as_flattened_mut()[..n_rows * n_columns];
    weights.widen(inputs, outputs, numbers);
    let part = Matrix::new(numbers, shape);
    let part = if is_transposed { part.transposed() } else { part };
    part.pack(0..part.n_rows(), 0..part.n_columns(), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear;
    use crate::testing::{assert_close, assert_threads_change_nothing, constant, output_and_gradients};

    /// `[B, T, K, M]`, of which some are not multiples of blocks.
    const SHAPES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 3, 5, 7], [2, 33, 64, 96], [3, 70, 33, 65]];

    fn weight([k, m]: [usize; 2], precision: Precision) -> FrozenWeight {
        FrozenWeight::new(constant([k, m], 2), precision)
    }

    fn run_with(shape: [usize; 4], precision: Precision, is_biased: bool, is_frozen: bool) -> Vec<Vec<f32>> {
        let [b, t, k, m] = shape;
        output_and_gradients(4, |leaves| {
            let x = leaves.next::<3>([b, t, k], 1);
            let bias = is_biased.then(|| leaves.next([m], 3));
            let weight = weight([k, m], precision);
            if is_frozen {
                return frozen_linear(x, &weight, bias, MatmulPrecision::F32);
            }
            let weight = weight.widened(&x.device());
            linear(x, weight, bias, MatmulPrecision::F32)
        })
    }

    #[test]
    fn equals_the_layer_over_the_rounded_weight() {
        for (shape, precision) in SHAPES.into_iter().flat_map(|shape| Precision::ALL.map(|it| (shape, it))) {
            for is_biased in [false, true] {
                let [got, want] = [true, false].map(|it| run_with(shape, precision, is_biased, it));
                assert_close(&got, &want, &format!("{shape:?}, {precision}, bias {is_biased}"));
            }
        }
    }

    #[test]
    fn a_rounded_weight_is_near_and_smaller() {
        let exact = constant::<2>([64, 96], 2); // from -2 to 2
        let numbers = |weight: Tensor<2>| weight.into_data().try_to_vec::<f32>().expect("f32");
        for (precision, bytes, tolerance) in
            [(Precision::F32, 4.0, 0.0), (Precision::Bf16, 2.0, 0.004), (Precision::Int8, 1.125, 0.008)]
        {
            let weight = weight([64, 96], precision);
            assert_eq!(weight.bytes(), (bytes * 64.0 * 96.0) as usize, "{precision}");
            let near = numbers(weight.widened(&exact.device())).into_iter().zip(numbers(exact.clone()));
            let worst = near.map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            assert!(worst <= tolerance && (worst > 0.0) == (tolerance > 0.0), "{precision}: {worst}");
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        assert_threads_change_nothing(|| run_with([3, 70, 33, 65], Precision::Int8, true, true));
    }
}
