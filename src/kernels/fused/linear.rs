//! A linear layer, and the three products that it and the feed-forward layer are made of.

use std::mem::MaybeUninit;

use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use pulp::{Simd, WithSimd};

use super::operation::{Operation, apply};
use super::product::{self, Matrix, MatrixMut, multiply};
use super::{repeat, run, shaped, tensor, values, written};

/// Multiplications that one task makes: enough to be worth waking a core for.
const PRODUCTS: usize = 1 << 23;

/// Rows or columns that one task takes at least: fewer do not fill the registers of a product.
const LEAST: usize = 64;

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
        let out = project_all(x, weight, bias, [n, k, m]);
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
        let gradient = gradient.to_contiguous();
        let gradient = values(&gradient);
        let n = x.len() / k;
        let of_x = project_all(gradient, &transposed(weight, [k, m]), &[], [n, m, k]);
        let of_weight = weight_gradient(x, gradient, [n, k, m]);
        let mut parts = vec![tensor(of_x, &kept[0]), tensor(of_weight, &kept[1])];
        parts.extend(
            kept.get(2)
                .map(|bias| tensor(column_sums(gradient, m), bias)),
        );
        parts.into_iter().map(Some).collect()
    }
}

/// The two sizes of a matrix.
pub(super) fn matrix(x: &FlexTensor) -> [usize; 2] {
    let shape = x.layout().shape();
    assert_eq!(shape.num_dims(), 2, "a matrix");
    [shape[0], shape[1]]
}

/// Rows that one task takes of a product whose rows cost `products` each: a function of the shape alone.
pub(super) fn rows_per_task(products: usize) -> usize {
    (PRODUCTS / products.max(1))
        .next_multiple_of(LEAST)
        .max(LEAST)
}

/// `x weight + bias` on all cores: `[N, K] [K, M] + [M]`; an empty bias is none.
pub(super) fn project_all(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    [n, k, m]: [usize; 3],
) -> Vec<f32> {
    assert_eq!(x.len(), n * k, "[{n}, {k}]");
    let weight = Matrix::new(weight, [k, m]);
    let rows = rows_per_task(k * m);
    let fill = |out: &mut [MaybeUninit<f32>]| {
        let chunks = out.chunks_mut(rows * m).zip(x.chunks(rows * k));
        run(
            n * m,
            chunks.map(|(out, x)| Project {
                x: Matrix::new(x, [x.len() / k, k]),
                weight,
                bias,
                out,
            }),
        );
    };
    #[allow(unsafe_code)]
    // SAFETY: there are as many chunks of rows of `x` as of the output, and each task writes its own.
    unsafe {
        written(n * m, fill)
    }
}

struct Project<'a> {
    x: Matrix<'a>,
    weight: Matrix<'a>,
    bias: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Project<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, _: S) {
        project(self.x, self.weight, self.bias, self.out);
    }
}

/// Writes `x weight + bias` in this thread, and returns it.
pub(super) fn project<'a>(
    x: Matrix<'_>,
    weight: Matrix<'_>,
    bias: &[f32],
    out: &'a mut [MaybeUninit<f32>],
) -> &'a mut [f32] {
    if bias.is_empty() {
        return product::write(out, x, weight);
    }
    let out = repeat(out, bias);
    let sums = MatrixMut::new(out, [x.n_rows(), weight.n_columns()]);
    multiply(sums, x, weight, true);
    out
}

/// `x^T gradient`: `[N, K]^T [N, M]` -> `[K, M]`.
pub(super) fn weight_gradient(x: &[f32], gradient: &[f32], [n, k, m]: [usize; 3]) -> Vec<f32> {
    let gradient = Matrix::new(gradient, [n, m]);
    let rows = rows_per_task(n * m);
    let fill = |out: &mut [MaybeUninit<f32>]| {
        let chunks = out.chunks_mut(rows * m).enumerate();
        run(
            k * m,
            chunks.map(|(chunk, out)| {
                let columns = out.len() / m;
                let first = (chunk * rows).min(x.len());
                WeightGradient {
                    x: Matrix::within(&x[first..], [n, columns], k),
                    gradient,
                    out,
                }
            }),
        );
    };
    #[allow(unsafe_code)]
    // SAFETY: the chunks are the whole output, and each task writes its own.
    unsafe {
        written(k * m, fill)
    }
}

struct WeightGradient<'a> {
    x: Matrix<'a>,
    gradient: Matrix<'a>,
    out: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for WeightGradient<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, _: S) {
        product::write(self.out, self.x.transposed(), self.gradient);
    }
}

/// The sum of each of `m` columns.
pub(super) fn column_sums(x: &[f32], m: usize) -> Vec<f32> {
    let mut sums = vec![0.0; m];
    for row in x.chunks_exact(m) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
    sums
}

/// Rows as columns: `[K, M]` -> `[M, K]`. Products read it many times, in the order in which it then lies.
pub(super) fn transposed(x: &[f32], [k, m]: [usize; 2]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    let columns = (super::CHUNK / k.max(1)).next_multiple_of(TILE).max(TILE); // of a long one too
    let chunks = out.chunks_mut((columns * k).max(1)).enumerate();
    run(
        x.len(),
        chunks.map(|(chunk, out)| Transpose {
            x,
            k,
            m,
            first: chunk * columns,
            out,
        }),
    );
    out
}

/// Side of the squares in which a matrix is turned: one fits the registers.
const TILE: usize = 16;

struct Transpose<'a> {
    x: &'a [f32],
    k: usize,
    m: usize,
    /// First of the columns that become rows of `out`.
    first: usize,
    out: &'a mut [f32],
}

impl WithSimd for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.out.len() / self.k.max(1);
        let columns = Matrix::within(&self.x[self.first..], [self.k, rows], self.m);
        turn(columns, self.out);
    }
}

/// Writes the columns of `x` as rows, in this thread.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the instructions are those of the caller's SIMD level"
)]
pub(super) fn turn(x: Matrix<'_>, out: &mut [f32]) {
    let [n_rows, n_columns] = [x.n_rows(), x.n_columns()];
    assert_eq!(out.len(), n_rows * n_columns, "[{n_columns}, {n_rows}]");
    for first_column in (0..n_columns).step_by(TILE) {
        let columns = first_column..n_columns.min(first_column + TILE);
        for first_row in (0..n_rows).step_by(TILE) {
            let rows = TILE.min(n_rows - first_row);
            for column in columns.clone() {
                let out = &mut out[column * n_rows + first_row..][..rows];
                for (row, out) in out.iter_mut().enumerate() {
                    *out = x.at(first_row + row, column);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CHUNK;
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
    fn matrices_of_any_size_are_turned() {
        for [k, m] in [[1, 1], [3, 40], [40, 3], [CHUNK + 1, 3], [3 * CHUNK, 17]] {
            let x: Vec<f32> = (0..k * m).map(|i| i as f32).collect();
            let turned = transposed(&x, [k, m]);
            for (i, row) in turned.chunks_exact(k).enumerate() {
                let want = x[i..].iter().step_by(m);
                assert!(row.iter().eq(want), "row {i} of {k} by {m}");
            }
        }
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

    #[test]
    fn transposing_turns_rows_into_columns() {
        for [k, m] in [[1, 1], [3, 50], [50, 3], [128, 384], [17, 1000]] {
            let x: Vec<f32> = (0..k * m).map(|i| i as f32).collect();
            let turned = transposed(&x, [k, m]);
            for (i, value) in turned.iter().enumerate() {
                let (column, row) = (i / k, i % k);
                assert_eq!(value.to_bits(), x[row * m + column].to_bits());
            }
        }
    }
}
