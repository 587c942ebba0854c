//! Causal self-attention from the fused projection to the gathered values, in memory that grows with T.
//!
//! One task computes the heads that share a key head, of one row of the batch: it norms and rotates queries and
//! keys as it reads them, holds the scores of a few queries at a time, and keeps of them only the logarithm of
//! each row's sum, from which the backward pass computes the weights again.
//!
//! Source: Dao et al. 2022, "`FlashAttention`", algorithms 1 and 4, with whole rows instead of blocks of keys: a
//! CPU's cache holds them.

#![allow(unsafe_code, reason = "each block says why it is sound")]

mod backward;
mod forward;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use self::backward::BackwardPass;
use self::forward::Forward;
use crate::attention::{QkNorm, SelfAttention};
use crate::dropout::Dropout;
use crate::flex::in_f32;
use crate::flex::{from_vec, values};
use crate::gemm::MatrixMut;
use crate::heads::{HeadLayout, Prepared};
use crate::op::{FlexOperation, apply_on_flex};
use crate::rows::Norm;
use crate::tasks::{assume_init, run, uninit};

/// Queries whose scores a task holds at once: fewer see less of a future that is computed in vain, more make
/// larger products.
const QUERIES: usize = 32;

/// As [`crate::self_attention`], of f32 on flex.
pub(crate) fn self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    let SelfAttention { n_heads, n_kv_heads, norm, rotation, dropout } = attention;
    let [_, t, width] = qkv.dims();
    let heads = HeadLayout { n_heads, n_kv_heads, head_dim: width / (n_heads + 2 * n_kv_heads), t };
    let epsilon = norm.as_ref().map(|norm| in_f32(norm.epsilon));
    let operation = |rotated| Attention { heads, epsilon, rotated, dropout };
    let qkv = qkv.into_dispatch();
    let norm = norm.map(|QkNorm { q, k, .. }| [q.into_dispatch(), k.into_dispatch()]);
    let rotation = rotation.map(|[cos, sin]| [cos.into_dispatch(), sin.into_dispatch()]);
    match (rotation, norm) {
        (None, None) => apply_on_flex([qkv], operation(false)),
        (Some([cos, sin]), None) => apply_on_flex([qkv, cos, sin], operation(true)),
        (None, Some([q, k])) => apply_on_flex([qkv, q, k], operation(false)),
        (Some([cos, sin]), Some([q, k])) => apply_on_flex([qkv, cos, sin, q, k], operation(true)),
    }
}

/// Inputs: the projection `[B, T, (H + 2 Hkv) D]`; cosines and sines `[.., T, D / 2]` if `rotated`; the weights
/// of the queries' and the keys' norm `[D]` if there is an `epsilon`.
#[derive(Debug)]
struct Attention {
    heads: HeadLayout,
    epsilon: Option<f32>,
    rotated: bool,
    dropout: Option<Dropout>,
}

impl Attention {
    /// How heads are read from these inputs.
    fn prepared<'a>(&self, inputs: &'a [FlexTensor]) -> Prepared<'a> {
        let (rotation, norms) = inputs[1..].split_at(if self.rotated { 2 } else { 0 });
        Prepared {
            heads: self.heads,
            row_step: self.heads.row(),
            rotation: self.rotated.then(|| [values(&rotation[0]), values(&rotation[1])]),
            norms: self.epsilon.map(|_| [values(&norms[0]), values(&norms[1])]),
            norm: Norm { centred: false, epsilon: self.epsilon.unwrap_or_default() },
        }
    }
}

impl FlexOperation for Attention {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let prepared = self.prepared(&inputs);
        let HeadLayout { n_heads, n_kv_heads, head_dim, t } = self.heads;
        let qkv = values(&inputs[0]);
        let batch_size = inputs[0].layout().shape()[0];
        let (width, row) = (n_heads * head_dim, self.heads.row());
        let mut out = uninit(batch_size * t * width);
        let mut lse = vec![0.0; batch_size * n_heads * t];
        let group = self.heads.group();
        let tasks = out
            .chunks_mut((t * width).max(1))
            .zip(qkv.chunks((t * row).max(1)))
            .flat_map(|(out, qkv)| {
                // SAFETY: tasks write before they read, and nobody reads before all are done.
                let out = unsafe { MatrixMut::from_uninit(out, [t, width]) };
                out.split_columns(std::iter::repeat_n(group * head_dim, n_kv_heads))
                    .enumerate()
                    .map(move |(kv_head, out)| (kv_head, out, qkv))
            })
            .zip(lse.chunks_mut((group * t).max(1)))
            .enumerate()
            .map(|(task, ((kv_head, out, qkv), lse))| Forward {
                prepared,
                dropout: self.dropout,
                first_map: task * group,
                kv_head,
                qkv,
                out,
                lse,
            });
        run(batch_size * t * t * width, tasks);
        // SAFETY: each task wrote the outputs of its heads, at every position.
        let out = unsafe { assume_init(out) };
        let out = from_vec(out, Shape::new([batch_size, t, width]));
        if !keep {
            return (out, Vec::new());
        }
        let lse = from_vec(lse, Shape::new([batch_size, n_heads, t]));
        let mut saved = vec![out.clone(), lse];
        saved.extend(inputs);
        (out, saved)
    }

    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let (outputs, inputs) = saved.split_at(2);
        let prepared = self.prepared(inputs);
        let HeadLayout { n_heads, n_kv_heads, head_dim, t } = self.heads;
        let gradient = gradient.to_contiguous();
        let (width, row) = (n_heads * head_dim, self.heads.row());
        let group = self.heads.group();
        let batch_size = inputs[0].layout().shape()[0];
        let mut grad_qkv = uninit(batch_size * t * row);
        // Of the norms' weights, from each task; added up in the tasks' order.
        let mut grad_norms = vec![0.0; batch_size * n_kv_heads * 2 * head_dim];
        let rows = grad_qkv
            .chunks_mut((t * row).max(1))
            .zip(values(&inputs[0]).chunks((t * row).max(1)))
            .zip(values(&outputs[0]).chunks((t * width).max(1)))
            .zip(values(&gradient).chunks((t * width).max(1)));
        let tasks = rows
            .flat_map(|(((grad_qkv, qkv), out), gradient)| {
                let repeat = |width| std::iter::repeat_n(width, n_kv_heads);
                let widths = repeat(group * head_dim).chain(repeat(head_dim)).chain(repeat(head_dim));
                // SAFETY: tasks write before they read, and nobody reads before all are done.
                let grad_qkv = unsafe { MatrixMut::from_uninit(grad_qkv, [t, row]) };
                let mut parts: Vec<_> = grad_qkv.split_columns(widths).collect();
                let grad_v = parts.split_off(2 * n_kv_heads);
                let grad_k = parts.split_off(n_kv_heads);
                let parts = parts.into_iter().zip(grad_k).zip(grad_v).enumerate();
                parts.map(move |(kv_head, ((grad_q, grad_k), grad_v))| {
                    (kv_head, [grad_q, grad_k, grad_v], qkv, out, gradient)
                })
            })
            .zip(values(&outputs[1]).chunks((group * t).max(1)))
            .zip(grad_norms.chunks_mut((2 * head_dim).max(1)))
            .enumerate()
            .map(|(task, ((parts, lse), grad_norms))| {
                let (kv_head, grad_qkv, qkv, out, gradient) = parts;
                BackwardPass {
                    prepared,
                    dropout: self.dropout,
                    first_map: task * group,
                    kv_head,
                    qkv,
                    out,
                    gradient,
                    lse,
                    grad_qkv,
                    grad_norms,
                }
            });
        run(batch_size * t * t * width, tasks);
        // SAFETY: each task wrote the gradients of its heads, at every position.
        let grad_qkv = unsafe { assume_init(grad_qkv) };
        let mut parts = vec![Some(from_vec(grad_qkv, inputs[0].layout().shape().clone()))];
        if self.rotated {
            parts.extend([None, None]);
        }
        if self.epsilon.is_some() {
            let mut sums = vec![0.0; 2 * head_dim];
            for grad_norms in grad_norms.chunks_exact(2 * head_dim) {
                for (sum, part) in sums.iter_mut().zip(grad_norms) {
                    *sum += part;
                }
            }
            let grad_k = sums.split_off(head_dim);
            parts.extend([sums, grad_k].map(|part| Some(from_vec(part, Shape::new([head_dim])))));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::composed_self_attention;
    use crate::flex::testing::{DROPOUT, assert_close, constant, leaf, numbers, with_threads};

    /// Heads, key heads, width of a head, rows, positions.
    const SHAPES: [[usize; 5]; 10] = [
        [1, 1, 2, 1, 1],
        [1, 1, 8, 2, 5],
        [4, 4, 32, 3, 64],
        [4, 2, 16, 2, 33],
        [6, 1, 10, 1, 65],
        [3, 3, 6, 2, 17],
        [2, 2, 64, 1, 130],
        [4, 2, 8, 1, 200],
        [8, 4, 4, 2, 100],
        [1, 1, 16, 1, 200],
    ];

    /// Which parts an attention has beside its heads.
    #[derive(Clone, Copy, Debug)]
    struct Parts {
        norm: bool,
        rotation: bool,
        dropout: bool,
    }

    /// Output and gradients.
    fn run_with(
        f: fn(Tensor<3>, SelfAttention) -> Tensor<3>,
        [n_heads, n_kv_heads, d, b, t]: [usize; 5],
        parts: Parts,
    ) -> Vec<Vec<f32>> {
        let qkv = leaf([b, t, (n_heads + 2 * n_kv_heads) * d], 1);
        let norm = parts.norm.then(|| QkNorm { q: leaf([d], 2), k: leaf([d], 3), epsilon: 1e-6 });
        let angles = constant::<4>([1, 1, t, d / 2], 4);
        let attention = SelfAttention {
            n_heads,
            n_kv_heads,
            norm: norm.clone(),
            rotation: parts.rotation.then(|| [angles.clone().cos(), angles.clone().sin()]),
            dropout: parts.dropout.then_some(DROPOUT),
        };
        let out = f(qkv.clone(), attention);
        let asked = constant(out.dims(), 5);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(qkv.grad(&gradients).expect("the projection has one")));
        for weight in norm.into_iter().flat_map(|norm| [norm.q, norm.k]) {
            got.push(numbers(weight.grad(&gradients).expect("the norm too")));
        }
        got
    }

    fn all_parts() -> impl Iterator<Item = Parts> {
        (0..8).map(|bits| Parts { norm: bits & 1 > 0, rotation: bits & 2 > 0, dropout: bits & 4 > 0 })
    }

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in SHAPES {
            for parts in all_parts() {
                let [got, want] = [self_attention, composed_self_attention].map(|f| run_with(f, shape, parts));
                assert_close(&got, &want, &format!("{shape:?}, {parts:?}"));
            }
        }
    }

    #[test]
    fn huge_scores_stay_finite_and_nan_stays_nan() {
        let attention = || SelfAttention { n_heads: 2, n_kv_heads: 1, norm: None, rotation: None, dropout: None };
        let qkv = constant([1, 70, 32], 1) * 1e3;
        let got = numbers(self_attention(qkv.clone(), attention()));
        let want = numbers(composed_self_attention(qkv.clone(), attention()));
        assert!(got.iter().all(|x| x.is_finite()));
        assert_close(&[got], &[want], "1e3");
        let nan = numbers(self_attention(qkv * f32::NAN, attention()));
        assert!(nan.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for parts in all_parts() {
            let bytes = |threads| {
                let got = with_threads(threads, || run_with(self_attention, [4, 2, 16, 5, 70], parts));
                got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
