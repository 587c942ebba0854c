//! Causal self-attention from the fused projection to the gathered values, in memory that grows with T.
//!
//! One task computes the heads that share a key head, of one row of the batch: it norms and rotates queries and
//! keys as it reads them, holds the scores of a few queries at a time, and keeps of them only the logarithm of
//! each row's sum, from which the backward pass computes the weights again.
//!
//! Source: Dao et al. 2022, "`FlashAttention`", algorithms 1 and 4, with whole rows instead of blocks of keys: a
//! CPU's cache holds them.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};
use pulp::{Simd, WithSimd};

use super::heads::{Heads, Prepared};
use super::norm::Norm;
use super::operation::{Operation, apply};
use super::product::{
    Add, Matrix, MatrixMut, Packed, Panels, Plain, Put, ToPanels, Turned, WIDTH, multiply, n_panels,
};
use super::rows::{Query, Tile, attend, attend_backward};
use super::scratch::Scratch;
use super::{assume_written, room, run, shaped, values};
use crate::kernels::attention::{QkNorm, SelfAttention};
use crate::kernels::dropout::Dropout;

/// Queries whose scores a task holds at once: fewer see less of a future that is computed in vain, more make
/// larger products.
const QUERIES: usize = 32;

/// Queries whose weights the backward pass holds at once: what it adds to the gradients of keys and values is
/// summed over them in the registers. A multiple of a panel's width.
const BLOCK: usize = 128;

/// As [`crate::kernels::self_attention`], of f32 on flex.
pub(in crate::kernels) fn self_attention(qkv: Tensor<3>, attention: SelfAttention) -> Tensor<3> {
    let SelfAttention {
        n_heads,
        n_kv_heads,
        norm,
        rotation,
        dropout,
    } = attention;
    let [_, t, width] = qkv.dims();
    let heads = Heads {
        n_heads,
        n_kv_heads,
        head_dim: width / (n_heads + 2 * n_kv_heads),
        t,
    };
    let epsilon = norm.as_ref().map(|norm| super::norm::in_f32(norm.epsilon));
    let operation = |rotated| Attention {
        heads,
        epsilon,
        rotated,
        dropout,
    };
    let qkv = qkv.into_dispatch();
    let norm = norm.map(|QkNorm { q, k, .. }| [q.into_dispatch(), k.into_dispatch()]);
    let rotation = rotation.map(|[cos, sin]| [cos.into_dispatch(), sin.into_dispatch()]);
    match (rotation, norm) {
        (None, None) => apply([qkv], operation(false)),
        (Some([cos, sin]), None) => apply([qkv, cos, sin], operation(true)),
        (None, Some([q, k])) => apply([qkv, q, k], operation(false)),
        (Some([cos, sin]), Some([q, k])) => apply([qkv, cos, sin, q, k], operation(true)),
    }
}

/// Inputs: the projection `[B, T, (H + 2 Hkv) D]`; cosines and sines `[.., T, D / 2]` if `rotated`; the weights
/// of the queries' and the keys' norm `[D]` if there is an `epsilon`.
#[derive(Debug)]
struct Attention {
    heads: Heads,
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
            rotation: self
                .rotated
                .then(|| [values(&rotation[0]), values(&rotation[1])]),
            norms: self.epsilon.map(|_| [values(&norms[0]), values(&norms[1])]),
            norm: Norm {
                centred: false,
                epsilon: self.epsilon.unwrap_or_default(),
            },
        }
    }
}

impl Operation for Attention {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let prepared = self.prepared(&inputs);
        let Heads {
            n_heads,
            n_kv_heads,
            head_dim,
            t,
        } = self.heads;
        let qkv = values(&inputs[0]);
        let batch_size = inputs[0].layout().shape()[0];
        let (width, row) = (n_heads * head_dim, self.heads.row());
        let mut out = room(batch_size * t * width);
        let mut log_sums = vec![0.0; batch_size * n_heads * t];
        let group = n_heads / n_kv_heads;
        let tasks = out
            .chunks_mut((t * width).max(1))
            .zip(qkv.chunks((t * row).max(1)))
            .flat_map(|(out, qkv)| {
                #[allow(unsafe_code)]
                // SAFETY: tasks write before they read, and nobody reads before all are done.
                let out = unsafe { MatrixMut::of_room(out, [t, width]) };
                out.split_columns(std::iter::repeat_n(group * head_dim, n_kv_heads))
                    .enumerate()
                    .map(move |(kv_head, out)| (kv_head, out, qkv))
            })
            .zip(log_sums.chunks_mut((group * t).max(1)))
            .enumerate()
            .map(|(task, ((kv_head, out, qkv), log_sums))| Forward {
                prepared,
                dropout: self.dropout,
                first_map: task * group,
                kv_head,
                qkv,
                out,
                log_sums,
            });
        run(batch_size * t * t * width, tasks);
        #[allow(unsafe_code)]
        // SAFETY: each task wrote the outputs of its heads, at every position.
        let out = unsafe { assume_written(out) };
        let out = shaped(out, Shape::new([batch_size, t, width]));
        if !keep {
            return (out, Vec::new());
        }
        let log_sums = shaped(log_sums, Shape::new([batch_size, n_heads, t]));
        let mut kept = vec![out.clone(), log_sums];
        kept.extend(inputs);
        (out, kept)
    }

    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let (outputs, inputs) = kept.split_at(2);
        let prepared = self.prepared(inputs);
        let Heads {
            n_heads,
            n_kv_heads,
            head_dim,
            t,
        } = self.heads;
        let gradient = gradient.to_contiguous();
        let (width, row) = (n_heads * head_dim, self.heads.row());
        let group = n_heads / n_kv_heads;
        let batch_size = inputs[0].layout().shape()[0];
        let mut of_qkv = room(batch_size * t * row);
        // Of the norms' weights, from each task; added up in the tasks' order.
        let mut of_norms = vec![0.0; batch_size * n_kv_heads * 2 * head_dim];
        let rows = of_qkv
            .chunks_mut((t * row).max(1))
            .zip(values(&inputs[0]).chunks((t * row).max(1)))
            .zip(values(&outputs[0]).chunks((t * width).max(1)))
            .zip(values(&gradient).chunks((t * width).max(1)));
        let tasks = rows
            .flat_map(|(((of_qkv, qkv), out), gradient)| {
                let repeat = |width| std::iter::repeat_n(width, n_kv_heads);
                let widths = repeat(group * head_dim)
                    .chain(repeat(head_dim))
                    .chain(repeat(head_dim));
                #[allow(unsafe_code)]
                // SAFETY: tasks write before they read, and nobody reads before all are done.
                let of_qkv = unsafe { MatrixMut::of_room(of_qkv, [t, row]) };
                let mut parts: Vec<_> = of_qkv.split_columns(widths).collect();
                let of_v = parts.split_off(2 * n_kv_heads);
                let of_k = parts.split_off(n_kv_heads);
                let parts = parts.into_iter().zip(of_k).zip(of_v).enumerate();
                parts.map(move |(kv_head, ((of_q, of_k), of_v))| {
                    (kv_head, [of_q, of_k, of_v], qkv, out, gradient)
                })
            })
            .zip(values(&outputs[1]).chunks((group * t).max(1)))
            .zip(of_norms.chunks_mut((2 * head_dim).max(1)))
            .enumerate()
            .map(|(task, ((parts, log_sums), of_norms))| {
                let (kv_head, of_qkv, qkv, out, gradient) = parts;
                BackwardPass {
                    prepared,
                    dropout: self.dropout,
                    first_map: task * group,
                    kv_head,
                    qkv,
                    out,
                    gradient,
                    log_sums,
                    of_qkv,
                    of_norms,
                }
            });
        run(batch_size * t * t * width, tasks);
        #[allow(unsafe_code)]
        // SAFETY: each task wrote the gradients of its heads, at every position.
        let of_qkv = unsafe { assume_written(of_qkv) };
        let mut parts = vec![Some(shaped(of_qkv, inputs[0].layout().shape().clone()))];
        if self.rotated {
            parts.extend([None, None]);
        }
        if self.epsilon.is_some() {
            let mut sums = vec![0.0; 2 * head_dim];
            for of_norms in of_norms.chunks_exact(2 * head_dim) {
                for (sum, part) in sums.iter_mut().zip(of_norms) {
                    *sum += part;
                }
            }
            let of_k = sums.split_off(head_dim);
            parts.extend([sums, of_k].map(|part| Some(shaped(part, Shape::new([head_dim])))));
        }
        parts
    }
}

/// The heads that share one key head, of one row of the batch.
struct Forward<'a> {
    prepared: Prepared<'a>,
    dropout: Option<Dropout>,
    /// Which of all B H maps of weights is the first one of these heads'.
    first_map: usize,
    kv_head: usize,
    /// `[T, (H + 2 Hkv) D]`
    qkv: &'a [f32],
    /// `[T, G D]`, between the other heads' columns.
    out: MatrixMut<'a>,
    /// `[G, T]`
    log_sums: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, simd: S) {
        let heads = self.prepared.heads;
        let Heads { head_dim, t, .. } = heads;
        let scale = heads.scale();
        let mut buffer = Vec::new();
        let k = self.prepared.keys(self.qkv, self.kv_head, &mut buffer);
        let turned_k = Packed::here(simd, k.transposed());
        let v = self.prepared.values(self.qkv, self.kv_head);
        let v = Packed::here(simd, v);
        let mut scores = Scratch::new(QUERIES.min(t) * n_panels(t));
        let mut kept = vec![0.0; if self.dropout.is_some() { t } else { 0 }];
        let group = heads.group();
        let outs = self.out.split_columns(std::iter::repeat_n(head_dim, group));
        for (i, (mut out, log_sums)) in outs.zip(self.log_sums.chunks_exact_mut(t)).enumerate() {
            let head = self.kv_head * group + i;
            let q = self.prepared.queries(self.qkv, head, &mut buffer);
            let q = Packed::here(simd, q);
            for first in (0..t).step_by(QUERIES) {
                let rows = QUERIES.min(t - first);
                let keys = first + rows; // those that the last of these queries sees
                let mut tile = ToPanels {
                    out: &mut scores,
                    step: rows,
                };
                let q = Plain(q.panels().rows(first..keys));
                multiply(simd, q, turned_k.panels().columns(0..keys), &mut tile);
                let mut tile = Tile {
                    rows: &mut scores,
                    step: rows,
                };
                for row in 0..rows {
                    let query = first + row;
                    log_sums[query] = attend::<S>(&mut tile, row, query + 1, scale);
                    if let Some(dropout) = self.dropout {
                        let kept = &mut kept[..=query];
                        kept.fill(1.0);
                        dropout.apply(kept, ((self.first_map + i) * t + query) * t);
                        tile.multiply(row, kept);
                    }
                }
                let weights = Plain(Panels::within(&scores, [rows, keys], rows));
                let v = v.panels().rows(0..keys);
                let out = out.rows(first, rows);
                multiply(simd, weights, v, &mut Put { out, bias: &[] });
            }
        }
    }
}

/// As [`Forward`], the other way.
struct BackwardPass<'a> {
    prepared: Prepared<'a>,
    dropout: Option<Dropout>,
    first_map: usize,
    kv_head: usize,
    /// `[T, (H + 2 Hkv) D]`
    qkv: &'a [f32],
    /// `[T, H D]`
    out: &'a [f32],
    /// `[T, H D]`
    gradient: &'a [f32],
    /// `[G, T]`
    log_sums: &'a [f32],
    /// Of queries `[T, G D]`, keys and values `[T, D]`: not written yet.
    of_qkv: [MatrixMut<'a>; 3],
    /// Of the weights of the queries' and the keys' norm, `[2, D]`.
    of_norms: &'a mut [f32],
}

impl WithSimd for BackwardPass<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "the instructions are those of the caller's SIMD level"
    )]
    fn with_simd<S: Simd>(self, simd: S) {
        let heads = self.prepared.heads;
        let Heads { head_dim, t, .. } = heads;
        let (scale, group, width) = (heads.scale(), heads.group(), heads.n_heads * head_dim);
        let [of_q, mut of_k, mut of_v] = self.of_qkv;
        let (of_query_norm, of_key_norm) = self.of_norms.split_at_mut(head_dim);
        let mut buffer = Vec::new();
        let k = self.prepared.keys(self.qkv, self.kv_head, &mut buffer);
        let turned_k = Packed::here(simd, k.transposed());
        let k = Packed::here(simd, k);
        let v = self.prepared.values(self.qkv, self.kv_head);
        let turned_v = Packed::here(simd, v.transposed());
        let block = BLOCK.min(t);
        let [mut weights, mut of_scores] = [(); 2].map(|()| Scratch::new(block * n_panels(t)));
        let mut kept = vec![0.0; if self.dropout.is_some() { n_panels(t) * WIDTH } else { 0 }];
        let of_qs = of_q.split_columns(std::iter::repeat_n(head_dim, group));
        for (i, (mut of_q, log_sums)) in of_qs.zip(self.log_sums.chunks_exact(t)).enumerate() {
            let head = self.kv_head * group + i;
            let q = self.prepared.queries(self.qkv, head, &mut buffer);
            let q = Packed::here(simd, q);
            let column = head * head_dim;
            let out = Matrix::within(&self.out[column..], [t, head_dim], width);
            let of_out = Matrix::within(&self.gradient[column..], [t, head_dim], width);
            let of_out_panels = Packed::here(simd, of_out);
            for start in (0..t).step_by(BLOCK) {
                let block = BLOCK.min(t - start);
                for first in (0..block).step_by(QUERIES) {
                    let rows = QUERIES.min(block - first);
                    let queries = start + first..start + first + rows;
                    let keys = queries.end;
                    let left = [&q, &of_out_panels];
                    let left = left.map(|left| Plain(left.panels().rows(queries.clone())));
                    let right = [&turned_k, &turned_v];
                    let right = right.map(|right| right.panels().columns(0..keys));
                    let tiles = [&mut weights[first..], &mut of_scores[first..]];
                    let [weights, of_scores] = tiles;
                    let step = block;
                    let mut tile = ToPanels { out: weights, step };
                    multiply(simd, left[0], right[0], &mut tile);
                    let mut tile = ToPanels { out: of_scores, step };
                    multiply(simd, left[1], right[1], &mut tile);
                    let mut weights = Tile { rows: weights, step };
                    let mut tile = Tile { rows: of_scores, step };
                    for (row, query) in queries.clone().enumerate() {
                        let kept = self.dropout.map(|dropout| {
                            kept.fill(1.0);
                            let at = ((self.first_map + i) * t + query) * t;
                            dropout.apply(&mut kept[..=query], at);
                            &*kept
                        });
                        let (out, of_out) = (out.row(query), of_out.row(query));
                        let query = Query {
                            visible: query + 1,
                            scale,
                            log_sum: log_sums[query],
                            along: super::sum(out, of_out, |out, of_out| out * of_out),
                            kept,
                        };
                        attend_backward::<S>(&mut weights, &mut tile, row, query);
                    }
                    let of_scores = Plain(Panels::within(of_scores, [rows, keys], block));
                    let out = of_q.rows(queries.start, rows);
                    let k = k.panels().rows(0..keys);
                    multiply(simd, of_scores, k, &mut Put { out, bias: &[] });
                }
                // Of the keys of each panel, from the queries that see any of them.
                let end = start + block;
                for first in (0..end).step_by(WIDTH) {
                    let keys = first..end.min(first + WIDTH);
                    let blind = first.saturating_sub(start);
                    let queries = start + blind..end;
                    let is_first = i == 0 && start <= first;
                    let pairs = [(&of_scores, &q, &mut of_k), (&weights, &of_out_panels, &mut of_v)];
                    for (left, right, out) in pairs {
                        let left = Panels::within(left, [block, end], block);
                        let left = left.rows(blind..block).columns(keys.clone());
                        let right = right.panels().rows(queries.clone());
                        let out = out.rows(keys.start, keys.len());
                        if is_first {
                            multiply(simd, Turned(left), right, &mut Put { out, bias: &[] });
                        } else {
                            multiply(simd, Turned(left), right, &mut Add { out });
                        }
                    }
                }
            }
            self.prepared
                .queries_backward(self.qkv, head, &mut of_q, of_query_norm);
        }
        self.prepared
            .keys_backward(self.qkv, self.kv_head, &mut of_k, of_key_norm);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use crate::kernels::attention::composed_self_attention;
    use crate::kernels::dropout::DropoutKey;

    /// Heads, key heads, width of a head, rows, positions.
    const SHAPES: [[usize; 5]; 9] = [
        [1, 1, 2, 1, 1],
        [1, 1, 8, 2, 5],
        [4, 4, 32, 3, 64],
        [4, 2, 16, 2, 33],
        [6, 1, 10, 1, 65],
        [3, 3, 6, 2, 17],
        [2, 2, 64, 1, 130],
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
        let norm = parts.norm.then(|| QkNorm {
            q: leaf([d], 2),
            k: leaf([d], 3),
            epsilon: 1e-6,
        });
        let angles = constant::<4>([1, 1, t, d / 2], 4);
        let attention = SelfAttention {
            n_heads,
            n_kv_heads,
            norm: norm.clone(),
            rotation: parts
                .rotation
                .then(|| [angles.clone().cos(), angles.clone().sin()]),
            dropout: parts.dropout.then_some(Dropout {
                probability: 0.3,
                key: DropoutKey {
                    seed: 1,
                    step: 2,
                    micro_step: 3,
                },
                site: 4,
            }),
        };
        let out = f(qkv.clone(), attention);
        let asked = constant(out.dims(), 5);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(
            qkv.grad(&gradients).expect("the projection has one"),
        ));
        for weight in norm.into_iter().flat_map(|norm| [norm.q, norm.k]) {
            got.push(numbers(weight.grad(&gradients).expect("the norm too")));
        }
        got
    }

    fn all_parts() -> impl Iterator<Item = Parts> {
        (0..8).map(|bits| Parts {
            norm: bits & 1 > 0,
            rotation: bits & 2 > 0,
            dropout: bits & 4 > 0,
        })
    }

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in SHAPES {
            for parts in all_parts() {
                let [got, want] =
                    [self_attention, composed_self_attention].map(|f| run_with(f, shape, parts));
                assert_close(&got, &want, &format!("{shape:?}, {parts:?}"));
            }
        }
    }

    #[test]
    fn huge_scores_stay_finite_and_nan_stays_nan() {
        let attention = || SelfAttention {
            n_heads: 2,
            n_kv_heads: 1,
            norm: None,
            rotation: None,
            dropout: None,
        };
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
                let got = with_threads(threads, || {
                    run_with(self_attention, [4, 2, 16, 5, 70], parts)
                });
                got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
