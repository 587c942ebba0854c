//! Every fused operation beside its reference, a composition of burn's operations: they agree in outputs and gradients,
//! and the number of threads does not change a byte. A test of `simd` repeats this at every SIMD level of the CPU.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData, module};

use crate::MatmulPrecision::{self, Bf16, F32};
use crate::activation::{self, Activation, activate};
use crate::attention::{QkNorm, SelfAttention, attention_scale, composed_self_attention, self_attention};
use crate::decode::Precision;
use crate::embedding::{Positions, composed_embed, embed};
use crate::frozen::{FrozenWeight, frozen_linear};
use crate::gemm::{Matrix, Packed, Role, RowMajor, product};
use crate::linear;
use crate::loss::{Output, Targets, composed_cross_entropy, cross_entropy};
use crate::low_rank::low_rank;
use crate::mix::{composed_mix, mix};
use crate::mlp::{Layer, Mlp, composed_mlp, mlp};
use crate::newton_schulz::{ColumnBlock, Polynomials, composed_newton_schulz, newton_schulz};
use crate::norm::{composed_rms_norm, layer_norm, rms_norm};
use crate::optimizer::{
    AdamW, adamw, composed_adamw, composed_descend, composed_lerp, composed_mean_squares, composed_nesterov,
    composed_sum_of_squares, descend, lerp, mean_squares_of_columns, nesterov, sum_of_squares,
};
use crate::testing::{
    DROPOUT, Leaves, assert_threads_change_nothing, constant, largest_error, noise, output_and_gradients,
    output_and_gradients_by, scalars,
};

/// The sizes of an operation, each in its own order, padded with zeros.
type Sizes = [usize; 5];

/// The outputs and gradients for these sizes.
type Run = Box<dyn Fn(Sizes) -> Vec<Vec<f32>> + Sync>;

struct Operation {
    name: String,
    fused: Run,
    reference: Run,
    sizes: &'static [Sizes],
    /// Sizes of several tasks, for which numbers of threads are compared.
    parallel: Sizes,
    /// The largest error, relative to the largest absolute value of an output or gradient.
    tolerance: f32,
    /// Whether `fused` rounds to bfloat16, which must show.
    is_rounded: bool,
}

const CLOSE: f32 = 2e-6;

/// Rounding a factor to bfloat16 changes it by a relative error of at most 2^-9.
const ROUNDED: f32 = 1.0 / 128.0;

impl Operation {
    fn new(name: impl Into<String>, fused: Run, reference: Run) -> Self {
        let name = name.into();
        Self { name, fused, reference, sizes: &[], parallel: [0; 5], tolerance: CLOSE, is_rounded: false }
    }

    fn sizes(self, sizes: &'static [Sizes], parallel: Sizes) -> Self {
        Self { sizes, parallel, ..self }
    }

    fn within(self, tolerance: f32) -> Self {
        Self { tolerance, ..self }
    }

    fn rounded(self, tolerance: f32) -> Self {
        Self { is_rounded: true, ..self.within(tolerance) }
    }
}

/// The output and the gradients of a function of leaves.
fn with_gradients<const D: usize>(f: impl Fn(&mut Leaves, Sizes) -> Tensor<D> + Sync + 'static) -> Run {
    Box::new(move |sizes| output_and_gradients(|leaves| f(leaves, sizes)))
}

fn operations() -> Vec<Operation> {
    let groups =
        [products, linears, low_ranks, frozen, embeddings, norms, mixes, activations, mlps, losses, attentions];
    groups.into_iter().chain([iterations, optimizers]).flat_map(|operations| operations()).collect()
}

#[test]
fn fused_operations_equal_references() {
    let mut wrong = Vec::new();
    for Operation { name, fused, reference, sizes, tolerance, is_rounded, .. } in operations() {
        for sizes in sizes {
            let (got, want) = (fused(*sizes), reference(*sizes));
            let error = largest_error(&got, &want);
            let is_scalar = sizes.iter().all(|size| *size <= 1);
            let is_right = error <= tolerance && (!is_rounded || is_scalar || got != want);
            if !is_right {
                wrong.push(format!("{name}, {sizes:?}: off by {error:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn threads_change_no_byte() {
    for Operation { name, fused, parallel, .. } in operations() {
        assert_threads_change_nothing(&name, || fused(parallel));
    }
}

/// `[M, K, N]`
fn products() -> Vec<Operation> {
    let factors = |[m, k, n, ..]: Sizes| [noise(m * k, 1), noise(k * n, 2)];
    let fused = move |sizes @ [m, k, n, ..]: Sizes| {
        let [a, b] = factors(sizes);
        let matrices = [Matrix::new(&a, [m, k]), Matrix::new(&b, [k, n])];
        let [left, right] = Packed::all(matrices.map(|matrix| (matrix, Role::Both)));
        vec![product(RowMajor(left.view()), right.view(), &[])]
    };
    let reference = move |sizes @ [m, k, n, ..]: Sizes| {
        let [a, b] = factors(sizes);
        let tensor = |x, shape| Tensor::<2>::from_data(TensorData::new(x, shape), &Device::flex());
        vec![scalars(tensor(a, [m, k]).matmul(tensor(b, [k, n])))]
    };
    let sizes = [300, 200, 150, 0, 0];
    vec![Operation::new("product", Box::new(fused), Box::new(reference)).sizes(&[[300, 200, 150, 0, 0]], sizes)]
}

type LinearLayer = fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>;

/// `[B, T, K, M]`
fn linears() -> Vec<Operation> {
    const EXACT: LinearLayer = |x, weight, bias| linear(x, weight, bias, F32);
    const IN_BF16: LinearLayer = |x, weight, bias| linear(x, weight, bias, Bf16);
    let run = |layer: LinearLayer, is_biased: bool, view: fn(Tensor<3>) -> Tensor<3>| {
        with_gradients(move |leaves, [b, t, k, m, _]| {
            let (x, weight) = (leaves.next([b, t, k]), leaves.next([k, m]));
            layer(view(x), weight, is_biased.then(|| leaves.next([m])))
        })
    };
    let plain = |layer, is_biased| run(layer, is_biased, |x| x);
    let turned = |layer| run(layer, true, |x| x.swap_dims(0, 1));
    [
        Operation::new("linear", plain(EXACT, false), plain(module::linear, false)),
        Operation::new("linear with bias", plain(EXACT, true), plain(module::linear, true)),
        Operation::new("linear of a view", turned(EXACT), turned(module::linear)),
        Operation::new("linear in bf16", plain(IN_BF16, true), plain(EXACT, true)).rounded(ROUNDED),
    ]
    .map(|operation| {
        operation.sizes(
            &[
                [1, 1, 1, 1, 0],
                [2, 3, 5, 7, 0],
                [4, 9, 6, 5, 0],
                [12, 64, 128, 384, 0],
                [3, 100, 33, 65, 0],
                [1, 1, 64, 300, 0],
                [2, 700, 8, 3, 0],
            ],
            [7, 91, 131, 70, 0],
        )
    })
    .into()
}

/// `[B, T, K, R, M]`
fn low_ranks() -> Vec<Operation> {
    type Columns = fn(usize) -> Range<usize>;
    let columns: [(&str, Columns); 2] = [("all", |m| 0..m), ("some", |m| m / 2..m - m / 3)];
    let operations = columns.map(|(name, columns)| {
        let fused = |precision: MatmulPrecision| {
            with_gradients(move |leaves, [b, t, k, r, m]| {
                let (out, x) = (leaves.next::<3>([b, t, m]), leaves.next([b, t, k]));
                let narrow = [leaves.next([k, r]), leaves.next([r, columns(m).len()])];
                let out = if narrow[1].dims() == [r, m] { out * 1.0 } else { out }; // in place, or shared
                low_rank(out, x, narrow, 0.5, columns(m), precision)
            })
        };
        // The product with a matrix that is zero in all other columns.
        let reference = || {
            with_gradients(move |leaves, [b, t, k, r, m]| {
                let (out, x) = (leaves.next::<3>([b, t, m]), leaves.next::<3>([b, t, k]));
                let Range { start, end } = columns(m);
                let update = leaves.next::<2>([k, r]).matmul(leaves.next::<2>([r, end - start])) * 0.5;
                let [before, after] = [start, m - end].map(|n| Tensor::<2>::zeros([k, n], &update.device()));
                let parts = [before, update, after].into_iter().filter(|part| part.dims()[1] > 0);
                out + x.reshape([b * t, k]).matmul(Tensor::cat(parts.collect(), 1)).reshape([b, t, m])
            })
        };
        let [f32, bf16] = ["f32", "bf16"].map(|precision| format!("low_rank of {name} columns in {precision}"));
        [
            Operation::new(f32, fused(F32), reference()),
            Operation::new(bf16, fused(Bf16), reference()).rounded(2.0 * ROUNDED),
        ]
    });
    let sizes = &[[1, 1, 1, 1, 1], [2, 3, 5, 2, 7], [2, 64, 96, 16, 192], [1, 33, 70, 8, 65]];
    operations.into_iter().flatten().map(|it| it.sizes(sizes, [3, 91, 131, 16, 200])).collect()
}

/// `[B, T, K, M]`, some of which are not multiples of blocks
fn frozen() -> Vec<Operation> {
    let operation = |(precision, is_biased): (Precision, bool)| {
        let run = |is_frozen: bool| {
            with_gradients(move |leaves, [b, t, k, m, _]| {
                let (x, bias) = (leaves.next::<3>([b, t, k]), is_biased.then(|| leaves.next([m])));
                let weight = FrozenWeight::new(constant([k, m], 2), precision);
                if is_frozen {
                    return frozen_linear(x, &weight, bias, F32);
                }
                let weight = weight.widened(&x.device());
                linear(x, weight, bias, F32)
            })
        };
        Operation::new(format!("frozen_linear in {precision}, bias {is_biased}"), run(true), run(false))
            .sizes(&[[1, 1, 1, 1, 0], [2, 3, 5, 7, 0], [2, 33, 64, 96, 0], [3, 70, 33, 65, 0]], [3, 70, 33, 65, 0])
    };
    Precision::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]).map(operation).collect()
}

/// `[B, T, V, C]`
fn embeddings() -> Vec<Operation> {
    type Embed = fn(Tensor<2, Int>, Tensor<2>, Option<Positions>) -> Tensor<3>;
    let operation = |first: Option<usize>| {
        let run = |embed: Embed| {
            with_gradients(move |leaves, [b, t, vocab_size, c, _]| {
                // Some tokens occur often and some never.
                let tokens: Vec<u64> = (0..b * t).map(|i| ((i * i) % vocab_size) as u64).collect();
                let tokens = Tensor::from_data(TensorData::new(tokens, [b, t]), &Device::flex().autodiff());
                let weight = leaves.next([vocab_size, c]);
                embed(tokens, weight, first.map(|first| Positions { weight: leaves.next([t + 3, c]), first }))
            })
        };
        Operation::new(format!("embed from {first:?}"), run(embed), run(composed_embed))
            .sizes(&[[1, 1, 1, 1, 0], [2, 5, 7, 3, 0], [12, 64, 65, 128, 0], [3, 1, 9, 33, 0]], [12, 64, 65, 128, 0])
    };
    [None, Some(0), Some(2)].map(operation).into()
}

/// `[B, T, C]`
fn norms() -> Vec<Operation> {
    type Norm = fn(Tensor<3>, Tensor<1>, Option<Tensor<1>>) -> Tensor<3>;
    const LAYER: [Norm; 2] = [
        |x, weight, bias| layer_norm(x, weight, bias, 1e-5),
        |x, weight, bias| module::layer_norm(x, weight, bias, 1e-5),
    ];
    const RMS: [Norm; 2] =
        [|x, weight, _| rms_norm(x, weight, 1e-6), |x, weight, _| composed_rms_norm(x, weight, 1e-6)];
    let operation = |name: String, norms: [Norm; 2], is_biased: bool, view: fn(Tensor<3>) -> Tensor<3>| {
        let [fused, reference] = norms.map(|norm| {
            with_gradients(move |leaves, [b, t, c, ..]| {
                let x = view(leaves.next([b, t, c]));
                let [.., c] = x.dims();
                let weight = leaves.next([c]);
                norm(x, weight, is_biased.then(|| leaves.next([c])))
            })
        });
        Operation::new(name, fused, reference)
    };
    let kinds = [("layer_norm", LAYER, false), ("layer_norm with bias", LAYER, true), ("rms_norm", RMS, false)];
    let plain = kinds.map(|(name, norms, is_biased)| {
        operation(name.to_owned(), norms, is_biased, |x| x).sizes(
            &[[1, 1, 8, 0, 0], [2, 1, 128, 0, 0], [1, 3, 5, 0, 0], [12, 64, 128, 0, 0], [2, 301, 33, 0, 0]],
            [7, 91, 65, 0, 0],
        )
    });
    let views: [fn(Tensor<3>) -> Tensor<3>; 3] =
        [|x| x.swap_dims(1, 2), |x| x.swap_dims(0, 1).narrow(2, 3, 9), |x| x.narrow(0, 1, 1)];
    let of_views = kinds.into_iter().flat_map(|(name, norms, is_biased)| {
        let operation = |view| operation(format!("{name} of a view"), norms, is_biased, view);
        views.map(operation).map(|it| it.sizes(&[[3, 20, 16, 0, 0]], [3, 91, 65, 0, 0]))
    });
    plain.into_iter().chain(of_views).collect()
}

/// `[B, T, C, D]`, the columns of both tensors
fn mixes() -> Vec<Operation> {
    let run = |mix: fn(Tensor<3>, Tensor<3>, Tensor<1>) -> Tensor<3>| {
        with_gradients(move |leaves, [b, t, c, d, _]| {
            mix(leaves.next([b, t, c]), leaves.next([b, t, d]), leaves.next([2]))
        })
    };
    let sizes = &[[1, 1, 1, 1, 0], [2, 3, 7, 7, 0], [2, 30, 33, 5, 0], [3, 100, 96, 32, 0]];
    let mix = Operation::new("mix", run(mix), run(composed_mix));
    vec![mix.within(1e-5).sizes(sizes, [3, 200, 96, 32, 0])]
}

/// `[N, F]`
fn activations() -> Vec<Operation> {
    let operation = |kind: Activation| {
        let run = |activate: fn(Activation, Tensor<2>, Option<Tensor<2>>) -> Tensor<2>| {
            with_gradients(move |leaves, [n, f, ..]| {
                let x: Tensor<2> = leaves.next([n, f]);
                let x = if kind.is_gated() { x * 1.0 } else { x }; // in place, or shared
                activate(kind, x, kind.is_gated().then(|| leaves.next([n, f])))
            })
        };
        let operation = Operation::new(format!("{kind:?}"), run(activate), run(activation::composed));
        operation.sizes(&[[70, 300, 0, 0, 0]], [70, 300, 0, 0, 0])
    };
    Activation::ALL.map(operation).into()
}

/// `[B, T, C, F]`
fn mlps() -> Vec<Operation> {
    let run = |mlp: fn(Tensor<3>, Mlp) -> Tensor<3>, activation: Activation, is_biased: bool, precision| {
        with_gradients(move |leaves, [b, t, c, d_ff, _]| {
            // Factors with which a layer of single scalars has no sum that cancels, and none in the tail of GELU.
            let x = leaves.next([b, t, c]) * -0.3;
            let mut layer = |[k, m]: [usize; 2]| {
                let (weight, bias) = (leaves.next([k, m]), leaves.next([m]) * -0.3);
                Layer { weight, bias: is_biased.then_some(bias) }
            };
            let (up, down) = (layer([c, d_ff]), layer([d_ff, c]));
            let gate = activation.is_gated().then(|| layer([c, d_ff]));
            mlp(x, Mlp { up, gate, down, activation, precision })
        })
    };
    let operations = Activation::ALL.into_iter().flat_map(|kind| {
        let exact = [false, true].map(|is_biased| {
            let [fused, reference] = [mlp, composed_mlp].map(|mlp| run(mlp, kind, is_biased, F32));
            Operation::new(format!("mlp of {kind:?}, bias {is_biased}"), fused, reference)
        });
        let bf16 =
            Operation::new(format!("mlp of {kind:?} in bf16"), run(mlp, kind, true, Bf16), run(mlp, kind, true, F32));
        // A product of products has several factors, and the sum with a bias may be smaller than its terms.
        exact.into_iter().chain([bf16.rounded(4.0 * ROUNDED)])
    });
    let sizes = &[[1, 1, 1, 1, 0], [2, 3, 5, 7, 0], [12, 64, 64, 256, 0], [1, 200, 33, 65, 0]];
    operations.map(|operation| operation.sizes(sizes, [7, 91, 33, 121, 0])).collect()
}

/// `[N, C, V]`
fn losses() -> Vec<Operation> {
    type Loss = fn(Tensor<2>, Output, Targets, Option<f64>) -> Tensor<1>;
    const EXACT: Loss = |hidden, output, targets, cap| cross_entropy(hidden, output, targets, cap, F32);
    const IN_BF16: Loss = |hidden, output, targets, cap| cross_entropy(hidden, output, targets, cap, Bf16);
    let operations = |(is_tied, (factor, cap)): (bool, (f32, Option<f64>))| {
        let run = |loss: Loss| -> Run {
            Box::new(move |[n, c, vocab_size, ..]| {
                let targets = (0..n).map(|i| i32::try_from((i * 7 + 3) % vocab_size).expect("a small token")).collect();
                let targets = Targets::new(targets, &Device::flex().autodiff());
                let loss = |leaves: &mut Leaves| {
                    let hidden = leaves.next([n, c]);
                    let output = match is_tied {
                        true => Output::Tied(leaves.next([vocab_size, c])),
                        false => Output::Own(leaves.next([c, vocab_size])),
                    };
                    loss(hidden, output, targets, cap)
                };
                output_and_gradients_by(loss, |loss| loss * factor)
            })
        };
        let name = format!("cross_entropy, tied {is_tied}, cap {cap:?}");
        // A loss is a small difference of large numbers, and therefore less accurate than its gradients.
        let exact = Operation::new(name.clone(), run(EXACT), run(composed_cross_entropy)).within(1e-5);
        [exact, Operation::new(format!("{name} in bf16"), run(IN_BF16), run(EXACT)).rounded(ROUNDED)]
    };
    let options = [(1.0, None), (0.25, None), (1.0, Some(15.0)), (0.25, Some(0.7))];
    let sizes = &[[1, 1, 1, 0, 0], [1, 8, 5, 0, 0], [70, 32, 65, 0, 0], [33, 7, 1000, 0, 0], [5, 3, 130, 0, 0]];
    let options = [false, true].into_iter().flat_map(|is_tied| options.map(|options| (is_tied, options)));
    options.flat_map(operations).map(|it| it.sizes(sizes, [91, 33, 300, 0, 0])).collect()
}

/// `[H, Hkv, D, B, T]`
fn attentions() -> Vec<Operation> {
    // Windows of one key, up to and beyond the borders of blocks and panels, and of more than all keys.
    let windows = [None, Some(1), Some(2), Some(31), Some(32), Some(33), Some(63), Some(100), Some(128), Some(500)];
    windows.into_iter().flat_map(|window| (0..12).map(move |i| attention(window, i))).collect()
}

/// One of 12 combinations of norm, rotation and dropout, each with another scale, and some with a cap.
fn attention(window: Option<usize>, i: usize) -> Operation {
    let (has_norm, has_dropout) = (i & 1 > 0, i & 2 > 0);
    let rotated_share = [None, Some(1.0), Some(0.25)][i / 4];
    let (scale, softcap) = (0.4 + i as f64 / 12.0, (i % 5 == 1).then_some(0.6));
    let run = |self_attention: fn(Tensor<3>, SelfAttention) -> Tensor<3>| -> Run {
        let layer = move |leaves: &mut Leaves, [n_heads, n_kv_heads, d, b, t]: Sizes| {
            let qkv = leaves.next([b, t, (n_heads + 2 * n_kv_heads) * d]);
            let rotation = rotated_share.map(|share| {
                let n_pairs = ((d as f64 * share / 2.0) as usize).max(1);
                let angles = constant::<4>([1, 1, t, n_pairs], 4);
                [angles.clone().cos(), angles.sin()]
            });
            let attention = SelfAttention {
                n_heads,
                n_kv_heads,
                norm: has_norm.then(|| QkNorm { q: leaves.next([d]), k: leaves.next([d]), epsilon: 1e-6 }),
                rotation,
                scale: scale * attention_scale(d),
                softcap,
                window,
                dropout: has_dropout.then_some(DROPOUT),
                lengths: None,
            };
            self_attention(qkv, attention)
        };
        let loss = |out: Tensor<3>| (out.clone() * constant(out.dims(), 5)).sum();
        let run = move |sizes| output_and_gradients_by(|leaves| layer(leaves, sizes), loss);
        // If a query sees only itself, the gradient of its score is the rounding error of a difference of equal
        // scalars, which are as large as the other parts. The gradient of a norm's weight sums it over up to 768 heads
        // of all positions: almost 1e-5 with this gradient of the output, and up to 1.4e-5 with others.
        let is_joined = window == Some(1);
        Box::new(move |sizes| if is_joined { vec![run(sizes).concat()] } else { run(sizes) })
    };
    let name = format!(
        "self_attention, norm {has_norm}, rotated {rotated_share:?}, cap {softcap:?}, window {window:?}, \
         dropout {has_dropout}"
    );
    let operation = Operation::new(name, run(self_attention), run(composed_self_attention)).sizes(
        &[
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
        ],
        [4, 2, 16, 5, 70],
    );
    operation.within(if window == Some(1) { 1e-5 } else { 4e-6 })
}

/// `[M, N]`
fn iterations() -> Vec<Operation> {
    const POLYNOMIALS: Polynomials<'_> =
        Polynomials { coefficients: &[[3.0, -3.2, 1.2], [2.5, -2.0, 0.7], [2.0, -1.5, 0.5]], safety: 1.01 };
    /// All columns in one block, or in three.
    fn blocks(n: usize, is_split: bool) -> Vec<ColumnBlock> {
        let widths = if is_split { [n / 3, n / 20, n - n / 3 - n / 20] } else { [0, 0, n] };
        let blocks = widths.into_iter().zip([1.0, 2.0, 1.5]).filter(|(width, _)| *width > 0);
        blocks.map(|(width, scale)| ColumnBlock { width, scale }).collect()
    }
    const WHOLE: &[Sizes] =
        &[[1, 1, 0, 0, 0], [1, 9, 0, 0, 0], [7, 5, 0, 0, 0], [33, 70, 0, 0, 0], [64, 64, 0, 0, 0], [100, 301, 0, 0, 0]];
    const SPLIT: &[Sizes] = &[[40, 137, 0, 0, 0]];
    let operations = |(is_split, is_transposed): (bool, bool)| {
        let run = move |iterate: fn(Tensor<2>, &[ColumnBlock]) -> Tensor<2>| -> Run {
            Box::new(move |[m, n, ..]| {
                let x = Tensor::<2>::from_data(TensorData::new(noise(m * n, 1), [m, n]), &Device::flex());
                let x = if is_transposed { x.transpose() } else { x };
                let blocks = blocks(x.dims()[1], is_split);
                vec![scalars(iterate(x, &blocks))]
            })
        };
        let reference = || run(|x, blocks| composed_newton_schulz(x, blocks, POLYNOMIALS));
        let exact = run(|x, blocks| newton_schulz(x, blocks, POLYNOMIALS, F32));
        let in_bf16 = run(|x, blocks| newton_schulz(x, blocks, POLYNOMIALS, Bf16));
        let name = format!("newton_schulz, split {is_split}, transposed {is_transposed}");
        let exact = Operation::new(name.clone(), exact, reference());
        // Up to a few hundredths of the largest element, after three steps with factors that are off by 2^-9.
        let in_bf16 = Operation::new(format!("{name} in bf16"), in_bf16, reference()).rounded(4.0 * ROUNDED);
        let sizes = if is_split { SPLIT } else { WHOLE };
        [exact, in_bf16].map(|operation| operation.sizes(sizes, [131, 301, 0, 0, 0]))
    };
    [(false, false), (false, true), (true, false)].into_iter().flat_map(operations).collect()
}

/// `[N]`, or `[M, N]` of the columns
fn optimizers() -> Vec<Operation> {
    type Vector = Tensor<1>;
    type AdamWStep = fn(Vector, Vector, Option<Vector>, Option<[Vector; 2]>, AdamW) -> (Vector, [Vector; 2]);
    type NesterovStep = fn(Vector, Option<Vector>, Option<Vector>, f64) -> [Vector; 2];
    const UPDATE: AdamW = AdamW { betas: [0.9, 0.99], step_size: 0.02, second_scale: 3.0, epsilon: 1e-8, decay: 0.01 };
    /// The sizes of chunks, and what is before and beyond them.
    const N: &[Sizes] =
        &[[1, 0, 0, 0, 0], [7, 0, 0, 0, 0], [1000, 0, 0, 0, 0], [16_385, 0, 0, 0, 0], [81_917, 0, 0, 0, 0]];
    let vector = |n: usize, seed: u32| constant([n], seed).inner();
    // The second step clips the gradient.
    let factor = || Some(Tensor::from_floats([0.25], &Device::flex()));
    let adamw_steps = |step: AdamWStep| -> Run {
        Box::new(move |[n, ..]| {
            let (weights, means) = step(vector(n, 1), vector(n, 2), None, None, UPDATE);
            let (weights, [first, second]) = step(weights, vector(n, 3), factor(), Some(means), UPDATE);
            [weights, first, second].map(scalars).into()
        })
    };
    let nesterov_steps = |step: NesterovStep| -> Run {
        Box::new(move |[n, ..]| {
            let [update, mean] = step(vector(n, 1), None, None, 0.9);
            let [further, mean] = step(vector(n, 2), factor(), Some(mean), 0.9);
            [update, further, mean].map(scalars).into()
        })
    };
    let of_two = |f: fn(Vector, Vector) -> Vector| -> Run {
        Box::new(move |[n, ..]| vec![scalars(f(vector(n, 1), vector(n, 2)))])
    };
    let squares = |f: fn(Vector) -> Vector| -> Run { Box::new(move |[n, ..]| vec![scalars(f(vector(n, 1)))]) };
    let of_columns = |f: fn(Tensor<2>) -> Vector| -> Run {
        Box::new(move |[m, n, ..]| {
            let x = constant([m, n], 1).inner();
            [x.clone(), x.transpose()].map(|x| scalars(f(x))).into()
        })
    };
    let columns = Operation::new(
        "mean_squares_of_columns",
        of_columns(mean_squares_of_columns),
        of_columns(composed_mean_squares),
    );
    let columns = columns
        .sizes(&[[1, 1, 0, 0, 0], [7, 5, 0, 0, 0], [300, 129, 0, 0, 0], [64, 640, 0, 0, 0]], [300, 701, 0, 0, 0]);
    [
        Operation::new("adamw", adamw_steps(adamw), adamw_steps(composed_adamw)),
        Operation::new("nesterov", nesterov_steps(nesterov), nesterov_steps(composed_nesterov)),
        Operation::new(
            "descend",
            of_two(|x, y| descend(x, y, 0.02, 0.1)),
            of_two(|x, y| composed_descend(x, y, 0.02, 0.1)),
        ),
        Operation::new("lerp", of_two(|x, y| lerp(x, y, 0.3)), of_two(|x, y| composed_lerp(x, y, 0.3))),
        Operation::new("sum_of_squares", squares(sum_of_squares), squares(composed_sum_of_squares)),
    ]
    .map(|operation| operation.sizes(N, [9 << 14, 0, 0, 0, 0]))
    .into_iter()
    .chain([columns])
    .collect()
}
