//! A linear layer, and the gradient of a bias, which it shares with the feed-forward layer.

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::operation::{Operation, apply};
use super::product::{Matrix, Packed, Panels, Plain, Turned, WIDTH, n_panels, product};
use super::{run, shaped, tensor, values};

/// `x weight + bias` of f32 on flex.
///
/// # Shapes
/// `x: [.., K]`, `weight: [K, M]`, `bias: [M]` -> `[.., M]`
pub(in crate::kernels) fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    match bias {
        None => apply([x, weight], Linear),
        Some(bias) => apply([x, weight, bias.into_dispatch()], Linear),
    }
}

/// Inputs: x, weight, and bias where there is one.
#[derive(Debug)]
struct Linear;

impl Operation for Linear {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [k, m] = matrix(&inputs[1]);
        let (x, weight) = (values(&inputs[0]), values(&inputs[1]));
        let bias = inputs.get(2).map_or(&[][..], values);
        let n = x.len() / k;
        let [x, weight] = Packed::all([Matrix::new(x, [n, k]), Matrix::new(weight, [k, m])]);
        let out = product(Plain(x.panels()), weight.panels(), bias);
        let mut shape = inputs[0].layout().shape().clone();
        let last = shape.num_dims() - 1;
        shape[last] = m;
        let out = shaped(out, shape);
        if !keep {
            inputs.clear();
        }
        (out, inputs)
    }

    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [k, m] = matrix(&kept[1]);
        let (x, weight) = (values(&kept[0]), values(&kept[1]));
        let n = x.len() / k;
        let gradient = gradient.to_contiguous();
        let [of_out, x, weight] = Packed::all([
            Matrix::new(values(&gradient), [n, m]),
            Matrix::new(x, [n, k]),
            Matrix::new(weight, [k, m]).transposed(),
        ]);
        let of_out = of_out.panels();
        let (of_x, (of_weight, of_bias)) = rayon::join(
            || product(Plain(of_out), weight.panels(), &[]),
            || {
                rayon::join(
                    || product(Turned(x.panels()), of_out, &[]),
                    || kept.get(2).map(|_| column_sums(of_out)),
                )
            },
        );
        let mut parts = vec![tensor(of_x, &kept[0]), tensor(of_weight, &kept[1])];
        parts.extend(of_bias.map(|of_bias| tensor(of_bias, &kept[2])));
        parts.into_iter().map(Some).collect()
    }
}

/// The two sizes of a matrix.
pub(super) fn matrix(x: &FlexTensor) -> [usize; 2] {
    let shape = x.layout().shape();
    assert_eq!(shape.num_dims(), 2, "a matrix");
    [shape[0], shape[1]]
}

/// The sum of each column.
pub(super) fn column_sums(x: Panels<'_>) -> Vec<f32> {
    let mut sums = vec![0.0; n_panels(x.n_columns()) * WIDTH];
    let panels = sums.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate();
    let tasks = panels.map(|(panel, sums)| ColumnSums { x, panel, sums });
    run(x.n_rows() * x.n_columns(), tasks);
    sums.truncate(x.n_columns());
    sums
}

struct ColumnSums<'a> {
    x: Panels<'a>,
    panel: usize,
    sums: &'a mut [f32; WIDTH],
}

impl WithSimd for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.x.panel(self.panel) {
            for (sum, x) in self.sums.iter_mut().zip(row) {
                *sum += x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use burn::tensor::module;

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

    #[test]
    fn equals_burns_own_and_its_gradients() {
        for shape in [
            [1, 1, 1, 1],
            [2, 3, 5, 7],
            [12, 64, 128, 384],
            [3, 100, 33, 65],
            [1, 1, 64, 300],
            [2, 700, 8, 3],
        ] {
            for biased in [false, true] {
                let [got, want] =
                    [linear, module::linear].map(|f| run_with(f, shape, biased, |x| x));
                assert_close(&got, &want, &format!("{shape:?}, bias {biased}"));
            }
        }
        let view = |x: Tensor<3>| x.swap_dims(0, 1);
        let [got, want] = [linear, module::linear].map(|f| run_with(f, [4, 9, 6, 5], true, view));
        assert_close(&got, &want, "a view");
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        let bytes = |threads| {
            let got = with_threads(threads, || run_with(linear, [7, 91, 130, 70], true, |x| x));
            got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bytes(1), bytes(2));
    }
}
