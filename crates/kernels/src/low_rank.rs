//! Low-rank updates of a linear layer's output (LoRA).

use std::marker::PhantomData;
use std::ops::Range;

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use crate::MatmulPrecision;
use crate::flex::{self, from_vec, in_f32, matrix, tensor, values_mut};
use crate::gemm::{Bf16x2, Element, Matrix, MatrixMut, Packed, Role, RowMajor, StoreMode, Transposed, product, store};
use crate::linear;
use crate::op::{FlexOperation, Wanted, apply_on_flex};

/// `out` with `scale (x a) b` added to some of its columns: the output of a layer whose weight changed by `scale a b`
/// there. Only the two narrow matrices get gradients, and no gradient of a full matrix is computed.
///
/// Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1, eq. 3.
///
/// # Shapes
/// `out: [.., M]`, `x: [.., K]`, `a: [K, R]`, `b: [R, columns]` -> `[.., M]`
///
/// # Panics
/// If `out` lacks one of the columns, or their number is not that of `b`.
pub fn low_rank<const D: usize>(
    out: Tensor<D>,
    x: Tensor<D>,
    [a, b]: [Tensor<2>; 2],
    scale: f64,
    columns: Range<usize>,
    precision: MatmulPrecision,
) -> Tensor<D> {
    let n_columns = out.dims()[D - 1];
    assert!(columns.end <= n_columns && columns.len() == b.dims()[1], "columns {columns:?} of {n_columns}");
    if !flex::is_for(&x) {
        let mut shape = x.dims();
        shape[D - 1] = columns.len();
        let update = linear::rows(x).matmul(a).matmul(b) * scale;
        return add_to_columns(out, update.reshape(shape), columns);
    }
    let inputs = vec![out.into_dispatch(), x.into_dispatch(), a.into_dispatch(), b.into_dispatch()];
    Tensor::from_dispatch(fused(inputs, in_f32(scale), columns, precision))
}

/// The weight `[K, M]` of a layer whose output [`low_rank`] updates: `weight + scale a b` in these columns.
pub fn merged(weight: Tensor<2>, [a, b]: [Tensor<2>; 2], scale: f64, columns: Range<usize>) -> Tensor<2> {
    add_to_columns(weight, a.matmul(b) * scale, columns)
}

fn add_to_columns<const D: usize>(out: Tensor<D>, update: Tensor<D>, columns: Range<usize>) -> Tensor<D> {
    let n_columns = out.dims()[D - 1];
    let part = |range: Range<usize>| (!range.is_empty()).then(|| out.clone().narrow(D - 1, range.start, range.len()));
    let [before, after] = [0..columns.start, columns.end..n_columns].map(part);
    let updated = part(columns).map(|part| part + update);
    Tensor::cat([before, updated, after].into_iter().flatten().collect(), D - 1)
}

/// Not generic, like `linear::fused_linear`.
fn fused(inputs: Vec<DispatchTensor>, scale: f32, columns: Range<usize>, precision: MatmulPrecision) -> DispatchTensor {
    match precision {
        MatmulPrecision::F32 => apply_on_flex(inputs, LowRank::<f32> { scale, columns, elements: PhantomData }),
        MatmulPrecision::Bf16 => apply_on_flex(inputs, LowRank::<Bf16x2> { scale, columns, elements: PhantomData }),
    }
}

/// Inputs: the layer's output, x, a and b. `E` is the element type of the products.
#[derive(Debug)]
struct LowRank<E> {
    scale: f32,
    columns: Range<usize>,
    elements: PhantomData<E>,
}

impl<E: Element> LowRank<E> {
    /// `scale left right`, `[N, R]`: so small that a pass over it costs nothing.
    fn scaled_product(&self, left: &Packed<E>, right: &Packed<E>) -> Vec<f32> {
        let mut inner = product(RowMajor(left.left()), right.right(), &[]);
        for x in &mut inner {
            *x *= self.scale;
        }
        inner
    }
}

impl<E: Element> FlexOperation for LowRank<E> {
    /// Saves x, a, b and `scale (x a)`.
    fn forward(&self, inputs: Vec<FlexTensor>, wanted: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let [mut out, x, a, b] = <[FlexTensor; 4]>::try_from(inputs).expect("the operation has four inputs");
        let inner = {
            let [x, a] = Packed::<E>::all([(matrix(&x), Role::Left), (matrix(&a), Role::Right)]);
            self.scaled_product(&x, &a)
        };
        let [n, r] = [matrix(&x).n_rows(), matrix(&a).n_columns()];
        {
            let [inner, b] = Packed::<E>::all([(Matrix::new(&inner, [n, r]), Role::Left), (matrix(&b), Role::Right)]);
            let n_columns = matrix(&out).n_columns();
            let out = MatrixMut::new(values_mut(&mut out), [n, n_columns]).columns(self.columns.clone());
            store(StoreMode::Accumulate, out, RowMajor(inner.left()), b.right(), &[]);
        }
        let saved = if wanted.any() { vec![x, a, b, from_vec(inner, [n, r])] } else { Vec::new() };
        (out, saved)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let [x, a, b, inner] = [0, 1, 2, 3].map(|i| matrix(&saved[i]));
        let [grad_out, b, inner] = Packed::<E>::all([
            (matrix(&gradient).columns(self.columns.clone()), Role::Both),
            (b.transposed(), Role::Right),
            (inner, Role::Right),
        ]);
        let grad_inner = self.scaled_product(&grad_out, &b);
        let [grad_inner, x, a] = Packed::<E>::all([
            (Matrix::new(&grad_inner, [x.n_rows(), a.n_columns()]), Role::Both),
            (x, Role::Right),
            (a.transposed(), Role::Right),
        ]);
        let (grad_x, (grad_a, grad_b)) = rayon::join(
            || product(RowMajor(grad_inner.left()), a.right(), &[]),
            || {
                rayon::join(
                    || product(Transposed(x.right()), grad_inner.right(), &[]),
                    || product(Transposed(inner.right()), grad_out.right(), &[]),
                )
            },
        );
        let parts = [grad_x, grad_a, grad_b].into_iter().zip(&saved);
        let parts = parts.map(|(part, like)| tensor(part, like)).collect::<Vec<_>>();
        std::iter::once(gradient).chain(parts).map(Some).collect()
    }
}
