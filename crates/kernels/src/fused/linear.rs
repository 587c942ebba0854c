//! A linear layer, and the gradient of a bias, which it shares with the feed-forward layer.

use std::marker::PhantomData;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use crate::MatmulPrecision;
use crate::flex::{from_vec, tensor, values};
use crate::gemm::{Bf16x2, Element, Matrix, Packed, PackedRef, Plain, Role, Transposed, WIDTH, n_panels, product};
use crate::op::{FlexOperation, apply_on_flex};
use crate::tasks::run;

/// `x weight + bias` of f32 on flex.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
pub(crate) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    precision: MatmulPrecision,
) -> Tensor<D> {
    let bias = bias.map(Tensor::into_dispatch);
    Tensor::from_dispatch(of_any_rank(x.into_dispatch(), weight.into_dispatch(), bias, precision))
}

/// Not generic, so that the products are compiled in this crate, in one unit with what they inline.
fn of_any_rank(
    x: DispatchTensor,
    weight: DispatchTensor,
    bias: Option<DispatchTensor>,
    precision: MatmulPrecision,
) -> DispatchTensor {
    match precision {
        MatmulPrecision::F32 => with::<f32>(x, weight, bias),
        MatmulPrecision::Bf16 => with::<Bf16x2>(x, weight, bias),
    }
}

fn with<E: Element>(x: DispatchTensor, weight: DispatchTensor, bias: Option<DispatchTensor>) -> DispatchTensor {
    let operation = Linear::<E>(PhantomData);
    match bias {
        None => apply_on_flex::<1, _>([x, weight], operation),
        Some(bias) => apply_on_flex::<1, _>([x, weight, bias], operation),
    }
    .into_dispatch()
}

/// Inputs: x, weight, and bias where there is one. Multiplies elements of `E`.
#[derive(Debug)]
struct Linear<E>(PhantomData<E>);

impl<E: Element> FlexOperation for Linear<E> {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [k, m] = matrix(&inputs[1]);
        let (x, weight) = (values(&inputs[0]), values(&inputs[1]));
        let bias = inputs.get(2).map_or(&[][..], values);
        let n = x.len() / k;
        let [x, weight] =
            Packed::<E>::all([(Matrix::new(x, [n, k]), Role::Left), (Matrix::new(weight, [k, m]), Role::Right)]);
        let out = product(Plain(x.left()), weight.right(), bias);
        let mut shape = inputs[0].layout().shape().clone();
        let last = shape.num_dims() - 1;
        shape[last] = m;
        let out = from_vec(out, shape);
        if !keep {
            inputs.clear();
        }
        (out, inputs)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [k, m] = matrix(&saved[1]);
        let (x, weight) = (values(&saved[0]), values(&saved[1]));
        let n = x.len() / k;
        let gradient = gradient.to_contiguous();
        let [grad_out, x, weight] = Packed::<E>::all([
            (Matrix::new(values(&gradient), [n, m]), Role::Both),
            (Matrix::new(x, [n, k]), Role::Right),
            (Matrix::new(weight, [k, m]).transposed(), Role::Right),
        ]);
        let (grad_x, (grad_weight, grad_bias)) = rayon::join(
            || product(Plain(grad_out.left()), weight.right(), &[]),
            || {
                rayon::join(
                    || product(Transposed(x.right()), grad_out.right(), &[]),
                    || saved.get(2).map(|_| column_sums(grad_out.right())),
                )
            },
        );
        let mut parts = vec![tensor(grad_x, &saved[0]), tensor(grad_weight, &saved[1])];
        parts.extend(grad_bias.map(|grad_bias| tensor(grad_bias, &saved[2])));
        parts.into_iter().map(Some).collect()
    }
}

/// The two sizes of a matrix.
pub(crate) fn matrix(x: &FlexTensor) -> [usize; 2] {
    let shape = x.layout().shape();
    assert_eq!(shape.num_dims(), 2, "a matrix");
    [shape[0], shape[1]]
}

/// The sum of each column of a right matrix.
pub(super) fn column_sums<E: Element>(x: PackedRef<'_, E>) -> Vec<f32> {
    let mut sums = vec![0.0; n_panels(x.n_columns()) * WIDTH];
    let panels = sums.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate();
    let tasks = panels.map(|(panel, sums)| ColumnSums { x, panel, sums });
    run(x.n_rows() * x.n_columns(), tasks);
    sums.truncate(x.n_columns());
    sums
}

struct ColumnSums<'a, E> {
    x: PackedRef<'a, E>,
    panel: usize,
    sums: &'a mut [f32; WIDTH],
}

impl<E: Element> WithSimd for ColumnSums<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.x.panel(self.panel) {
            E::add_to(row, self.sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flex::testing::{assert_close, assert_within, constant, leaf, numbers, with_threads};
    use burn::tensor::module;

    /// As [`linear`], of f32.
    fn exact(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<3> {
        linear(x, weight, bias, MatmulPrecision::F32)
    }

    /// As [`linear`], of bfloat16.
    fn rounded(x: Tensor<3>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<3> {
        linear(x, weight, bias, MatmulPrecision::Bf16)
    }

    /// Output and gradients of an input that `view` cuts out of a leaf.
    fn run_with(
        f: fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>,
        [b, t, k, m]: [usize; 4],
        biased: bool,
        view: fn(Tensor<3>) -> Tensor<3>,
    ) -> Vec<Vec<f32>> {
        let (x, weight) = (leaf([b, t, k], 1), leaf([k, m], 2));
        let bias = biased.then(|| leaf([m], 3));
        let out = f(view(x.clone()), weight.clone(), bias.clone());
        let asked = constant(out.dims(), 4);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(x.grad(&gradients).expect("x has one")));
        got.push(numbers(weight.grad(&gradients).expect("the weight too")));
        got.extend(bias.map(|bias| numbers(bias.grad(&gradients).expect("the bias too"))));
        got
    }

    /// Rows of the batch, positions, inputs, outputs.
    const SHAPES: [[usize; 4]; 6] =
        [[1, 1, 1, 1], [2, 3, 5, 7], [12, 64, 128, 384], [3, 100, 33, 65], [1, 1, 64, 300], [2, 700, 8, 3]];

    #[test]
    fn equals_burns_own_and_its_gradients() {
        for shape in SHAPES {
            for biased in [false, true] {
                let [got, want] = [exact, module::linear].map(|f| run_with(f, shape, biased, |x| x));
                assert_close(&got, &want, &format!("{shape:?}, bias {biased}"));
            }
        }
        let view = |x: Tensor<3>| x.swap_dims(0, 1);
        let [got, want] = [exact, module::linear].map(|f| run_with(f, [4, 9, 6, 5], true, view));
        assert_close(&got, &want, "a view");
    }

    #[test]
    fn in_bfloat16_it_is_nearly_the_same() {
        for shape in SHAPES {
            let [got, want] = [rounded, exact].map(|f| run_with(f, shape, true, |x| x));
            // A factor is off by 2^-9 of itself at most.
            assert_within(&got, &want, 1.0 / 128.0, &format!("{shape:?}"));
            assert_ne!(got[0], want[0], "{shape:?}");
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        let bytes = |threads| {
            let got = with_threads(threads, || [exact, rounded].map(|f| run_with(f, [7, 91, 131, 70], true, |x| x)));
            let got = got.concat().concat();
            got.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bytes(1), bytes(2));
    }
}
