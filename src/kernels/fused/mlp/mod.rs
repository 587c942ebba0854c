//! The feed-forward layer as one operation.
//!
//! The activation and its derivative are computed together, once, from sums that are still in registers: both are
//! made of the same exponential. What lies between the two projections stays in panels.

mod finish;

use burn::backend::flex::FlexTensor;
use burn::tensor::{Shape, Tensor};

use self::finish::{Activate, Biased, Slopes};
use super::activation::Activation;
use super::linear::{column_sums, matrix};
use super::operation::{Operation, apply};
use super::product::{
    Matrix, MatrixMut, Packed, Panels, PanelsMut, Plain, Turned, WIDTH, add, multiply_all,
    n_panels, part_of, product,
};
use super::scratch::Scratch;
use super::{assume_written, room, shaped, tensor, values};
use crate::kernels;
use crate::kernels::mlp::{Layer, Mlp};

/// As [`crate::kernels::mlp`], of f32 on flex.
pub(in crate::kernels) fn mlp(x: Tensor<3>, mlp: Mlp) -> Tensor<3> {
    let Mlp {
        expand,
        activation,
        contract,
    } = mlp;
    let biased = expand.bias.is_some();
    let (activation, gate) = match activation {
        kernels::mlp::Activation::Gelu => (Activation::Gelu, None),
        kernels::mlp::Activation::ReluSquared => (Activation::ReluSquared, None),
        kernels::mlp::Activation::Swiglu(gate) => (Activation::Swiglu, Some(gate)),
    };
    let operation = FeedForward { activation, biased };
    let part = |layer: Layer| {
        let bias = layer.bias.map(Tensor::into_dispatch);
        (layer.weight.into_dispatch(), bias)
    };
    let (x, expand, contract) = (x.into_dispatch(), part(expand), part(contract));
    match (expand, contract, gate.map(part)) {
        ((expand, None), (contract, None), None) => apply([x, expand, contract], operation),
        ((expand, Some(b)), (contract, Some(c)), None) => {
            apply([x, expand, contract, b, c], operation)
        }
        ((expand, None), (contract, None), Some((gate, None))) => {
            apply([x, expand, contract, gate], operation)
        }
        ((expand, Some(b)), (contract, Some(c)), Some((gate, Some(g)))) => {
            apply([x, expand, contract, gate, b, c, g], operation)
        }
        _ => unreachable!("all projections have a bias, or none has"),
    }
}

/// Inputs: x; the weights of expand, contract, and gate where there is one; then their biases if `biased`.
#[derive(Debug)]
struct FeedForward {
    activation: Activation,
    biased: bool,
}

impl FeedForward {
    fn is_gated(&self) -> bool {
        self.activation == Activation::Swiglu
    }

    /// How many weights there are.
    fn n_weights(&self) -> usize {
        if self.is_gated() { 3 } else { 2 }
    }

    /// The bias of a weight; an empty one is none.
    fn bias<'a>(&self, inputs: &'a [FlexTensor], weight: usize) -> &'a [f32] {
        match self.biased {
            true => values(&inputs[1 + self.n_weights() + weight]),
            false => &[],
        }
    }
}

/// Which of the weights is which.
const EXPAND: usize = 0;
const CONTRACT: usize = 1;
const GATE: usize = 2;

impl Operation for FeedForward {
    /// Keeps the inputs, and in panels what the activation gave, and its derivatives by what went into it.
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let mut inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [c, f] = matrix(&inputs[1]);
        let n = values(&inputs[0]).len() / c;
        let mut matrices = vec![Matrix::new(values(&inputs[0]), [n, c])];
        let weights = &inputs[1..=self.n_weights()];
        matrices.extend(
            weights
                .iter()
                .map(|weight| Matrix::new(values(weight), matrix(weight))),
        );
        let packed = Packed::all_of(&matrices);
        let (x, weights) = (Plain(packed[0].panels()), &packed[1..]);
        let size = n * n_panels(f) * WIDTH;
        let gated = self.is_gated();
        let kept = [true, keep, gated].map(|is_kept| room(if is_kept { size } else { 0 }));
        let [mut active, mut slope, mut gate] = kept;
        let shape = [n, f];
        if gated {
            #[allow(unsafe_code)]
            // SAFETY: it is written before it is read.
            let out = unsafe { PanelsMut::of_room(&mut gate, shape) };
            let bias = self.bias(&inputs, GATE);
            multiply_all(x, weights[GATE].panels(), |[rows, columns]| {
                #[allow(unsafe_code)]
                // SAFETY: cells do not overlap.
                let out = unsafe { out.cell(rows, columns.clone()) };
                let bias = part_of(bias, columns);
                Biased { out, bias }
            });
        }
        {
            #[allow(unsafe_code)]
            // SAFETY: all but the gate, which was written above, are only written.
            let outs = [&mut active, &mut slope, &mut gate]
                .map(|out| unsafe { PanelsMut::of_room(out, shape) });
            let bias = self.bias(&inputs, EXPAND);
            multiply_all(x, weights[EXPAND].panels(), |[rows, columns]| Activate {
                activation: self.activation,
                bias: part_of(bias, columns.clone()),
                #[allow(unsafe_code)]
                // SAFETY: cells do not overlap.
                outs: outs
                    .each_ref()
                    .map(|out| unsafe { out.cell(rows.clone(), columns.clone()) }),
            });
        }
        let kept = [active, slope, gate].map(|mut kept| {
            let beyond = (n_panels(f) - 1) * n * WIDTH;
            let last = kept.get_mut(beyond..).unwrap_or_default(); // of no room, nothing
            for row in last.as_chunks_mut::<WIDTH>().0 {
                for x in row.iter_mut().skip((f - 1) % WIDTH + 1) {
                    x.write(0.0);
                }
            }
            #[allow(unsafe_code)]
            // SAFETY: the products wrote all columns of every row, and the loop what is beyond the last one.
            unsafe {
                assume_written(kept)
            }
        });
        let active = Plain(in_panels(&kept[0], shape));
        let bias = self.bias(&inputs, CONTRACT);
        let out = product(active, weights[CONTRACT].panels(), bias);
        drop(packed);
        let out = tensor(out, &inputs[0]);
        if !keep {
            return (out, Vec::new());
        }
        let kept = kept.into_iter().take(if gated { 3 } else { 2 });
        inputs.extend(kept.map(|kept| shaped(kept, Shape::new([size]))));
        (out, inputs)
    }

    fn backward(&self, kept: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let [c, f] = matrix(&kept[1]);
        let gated = self.is_gated();
        let (inputs, kept) = kept.split_at(kept.len() - if gated { 3 } else { 2 });
        let gradient = gradient.to_contiguous();
        let n = values(&gradient).len() / c;
        let mut matrices = vec![
            Matrix::new(values(&inputs[0]), [n, c]),
            Matrix::new(values(&gradient), [n, c]),
        ];
        let weights = &inputs[1..=self.n_weights()];
        matrices.extend(
            weights
                .iter()
                .map(|weight| Matrix::new(values(weight), matrix(weight)).transposed()),
        );
        let packed = Packed::all_of(&matrices);
        let [x, of_out] = [packed[0].panels(), packed[1].panels()];
        let weight = |i: usize| packed[2 + i].panels();
        let shape = [n, f];
        let [mut of_hidden, mut of_gate] =
            [true, gated].map(|is| Scratch::new(if is { n * n_panels(f) } else { 0 }));
        {
            let outs = [&mut of_hidden, &mut of_gate].map(|out| PanelsMut::of_rows(out, shape));
            let slopes = [Some(1), gated.then_some(2)]
                .map(|slope| slope.map(|slope| in_panels(values(&kept[slope]), shape)));
            multiply_all(Plain(of_out), weight(CONTRACT), |[rows, columns]| Slopes {
                slopes: slopes
                    .map(|slope| slope.map(|x| x.rows(rows.clone()).columns(columns.clone()))),
                #[allow(unsafe_code)]
                // SAFETY: cells do not overlap.
                outs: outs
                    .each_ref()
                    .map(|out| unsafe { out.cell(rows.clone(), columns.clone()) }),
            });
        }
        let of_hidden = Panels::new(&of_hidden, shape);
        let of_gate = gated.then(|| Panels::new(&of_gate, shape));
        let active = in_panels(values(&kept[0]), shape);
        let of_x = || {
            let mut of_x = product(Plain(of_hidden), weight(EXPAND), &[]);
            if let Some(of_gate) = of_gate {
                let of_x = MatrixMut::new(&mut of_x, [n, c]);
                add(of_x, Plain(of_gate), weight(GATE));
            }
            of_x
        };
        let of_bias = |of_out: Panels<'_>| self.biased.then(|| column_sums(of_out));
        // Of a weight and its bias.
        let of_layer = |x: Panels<'_>, of_out: Panels<'_>| {
            rayon::join(|| product(Turned(x), of_out, &[]), || of_bias(of_out))
        };
        let (of_x, ((expand, contract), gate)) = rayon::join(of_x, || {
            rayon::join(
                || rayon::join(|| of_layer(x, of_hidden), || of_layer(active, of_out)),
                || of_gate.map(|of_gate| of_layer(x, of_gate)),
            )
        });
        let layers = [Some(expand), Some(contract), gate].into_iter().flatten();
        let (weights, biases): (Vec<_>, Vec<_>) = layers.unzip();
        let parts = [of_x].into_iter().chain(weights);
        let parts = parts.chain(biases.into_iter().flatten());
        let parts = parts.zip(inputs);
        parts.map(|(part, like)| Some(tensor(part, like))).collect()
    }
}

/// Numbers that are kept in panels.
fn in_panels(values: &[f32], shape: [usize; 2]) -> Panels<'_> {
    Panels::new(values.as_chunks().0, shape)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_close, constant, leaf, numbers, with_threads};
    use super::*;
    use crate::kernels::mlp::composed_mlp;

    type Operation = fn(Tensor<3>, Mlp) -> Tensor<3>;

    /// Output and gradients.
    fn run_with(
        f: Operation,
        [b, t, c, d_ff]: [usize; 4],
        activation: Activation,
        biased: bool,
    ) -> Vec<Vec<f32>> {
        let x = leaf([b, t, c], 1);
        let layer = |shape: [usize; 2], seed| Layer {
            weight: leaf(shape, seed),
            bias: biased.then(|| leaf([shape[1]], seed + 10)),
        };
        let (expand, contract) = (layer([c, d_ff], 2), layer([d_ff, c], 3));
        let gate = layer([c, d_ff], 4);
        let mut layers = vec![expand.clone(), contract.clone()];
        let activation = match activation {
            Activation::Gelu => kernels::mlp::Activation::Gelu,
            Activation::ReluSquared => kernels::mlp::Activation::ReluSquared,
            Activation::Swiglu => {
                layers.push(gate.clone());
                kernels::mlp::Activation::Swiglu(gate)
            }
        };
        let mlp = Mlp {
            expand,
            activation,
            contract,
        };
        let out = f(x.clone() * 0.3, mlp);
        let asked = constant(out.dims(), 5);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(x.grad(&gradients).expect("x has one")));
        for Layer { weight, bias } in layers {
            got.push(numbers(weight.grad(&gradients).expect("weights too")));
            got.extend(bias.map(|bias| numbers(bias.grad(&gradients).expect("biases too"))));
        }
        got
    }

    const ACTIVATIONS: [Activation; 3] = [
        Activation::Gelu,
        Activation::ReluSquared,
        Activation::Swiglu,
    ];

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in [
            [1, 1, 1, 1],
            [2, 3, 5, 7],
            [12, 64, 64, 256],
            [1, 200, 33, 65],
        ] {
            for activation in ACTIVATIONS {
                for biased in [false, true] {
                    let [got, want] =
                        [mlp, composed_mlp].map(|f| run_with(f, shape, activation, biased));
                    let what = format!("{shape:?}, {activation:?}, bias {biased}");
                    assert_close(&got, &want, &what);
                }
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for activation in ACTIVATIONS {
            let (mut x, mut gate) = ([f32::NAN, 1.0], [1.0, f32::NAN]);
            let mut out = [std::mem::MaybeUninit::uninit(); 2];
            let out = activation.forward::<pulp::Scalar>(&mut x, &mut gate, &mut out);
            assert!(out[0].is_nan() && out[1].is_nan() == (activation == Activation::Swiglu));
        }
    }

    #[test]
    fn threads_do_not_change_a_byte() {
        for activation in ACTIVATIONS {
            let bytes = |threads| {
                let got = with_threads(threads, || {
                    run_with(mlp, [7, 91, 33, 120], activation, true)
                });
                got.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bytes(1), bytes(2));
        }
    }
}
