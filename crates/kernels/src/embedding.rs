//! The vectors that a model begins with: of tokens and of positions.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Shape, Tensor, module};

use crate::flex::{self, from_vec, tensor, values};
use crate::fused::linear::matrix;
use crate::op::{FlexOperation, apply_on_flex};

/// Learned vectors of positions, `[P, C]`, and the position of the first token.
#[derive(Clone, Debug)]
pub struct Positions {
    /// `[P, C]`
    pub weight: Tensor<2>,
    /// The position of the first of the T tokens; `first + T` is at most P.
    pub first: usize,
}

/// The vector of each token, plus that of its position where positions have one.
///
/// Source: Vaswani et al. 2017, sections 3.4 and 3.5; learned positions: Gehring et al. 2017, "Convolutional
/// Sequence to Sequence Learning", section 3.1.
///
/// # Shapes
/// `tokens: [B, T]` with values in `0..V`, `weight: [V, C]` -> `[B, T, C]`
///
/// # Panics
/// If a token or a position is past the weights: a bug in the caller, never bad user input.
#[must_use]
pub fn embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    if flex::is_for(&weight) {
        return fused_embed(tokens, weight, positions);
    }
    composed_embed(tokens, weight, positions)
}

/// [`embed`] by burn's own operations.
fn composed_embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    let [_, t] = tokens.dims();
    let x = module::embedding(weight, tokens); // [B, T, C]
    match positions {
        None => x,
        Some(Positions { weight, first }) => x + weight.narrow(0, first, t).unsqueeze(),
    }
}

/// [`embed`] of f32 on flex.
fn fused_embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    let [_, seq_len] = tokens.dims();
    let tokens = tokens.into_data();
    let tokens = tokens.iter::<i64>().map(|token| usize::try_from(token).expect("a token"));
    let mut operation = Embedding { tokens: tokens.collect(), seq_len, first: 0 };
    let weight = weight.into_dispatch();
    match positions {
        None => apply_on_flex([weight], operation),
        Some(positions) => {
            operation.first = positions.first;
            apply_on_flex([weight, positions.weight.into_dispatch()], operation)
        }
    }
}

/// Inputs: the tokens' vectors `[V, C]`, and the positions' `[P, C]` where they have some.
#[derive(Debug)]
struct Embedding {
    /// Of all rows, one after another.
    tokens: Vec<usize>,
    seq_len: usize,
    /// Position of the first token of each row.
    first: usize,
}

impl Embedding {
    /// Of each token its number, and its position.
    fn places(&self) -> impl Iterator<Item = [usize; 2]> {
        let positions = (self.first..self.first + self.seq_len).cycle();
        self.tokens.iter().copied().zip(positions).map(<[usize; 2]>::from)
    }
}

impl FlexOperation for Embedding {
    fn forward(&self, inputs: Vec<FlexTensor>, keep: bool) -> (FlexTensor, Vec<FlexTensor>) {
        let inputs: Vec<_> = inputs.iter().map(FlexTensor::to_contiguous).collect();
        let [_, c] = matrix(&inputs[0]);
        let (weight, positions) = (values(&inputs[0]), inputs.get(1).map(values));
        let mut out = Vec::with_capacity(self.tokens.len() * c);
        for [token, position] in self.places() {
            let vector = &weight[token * c..][..c];
            match positions {
                None => out.extend_from_slice(vector),
                Some(positions) => {
                    let position = &positions[position * c..][..c];
                    out.extend(vector.iter().zip(position).map(|(a, b)| a + b));
                }
            }
        }
        let shape = [self.tokens.len() / self.seq_len.max(1), self.seq_len, c];
        let out = from_vec(out, Shape::new(shape));
        // Only their shapes are asked for; nothing is held longer than elsewhere, since these are parameters.
        (out, if keep { inputs } else { Vec::new() })
    }

    /// Rows of the gradient are added one after another, where they belong.
    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor) -> Vec<Option<FlexTensor>> {
        let gradient = gradient.to_contiguous();
        let [_, c] = matrix(&saved[0]);
        let sums = saved.iter().enumerate().map(|(input, weight)| {
            let mut sums = vec![0.0; values(weight).len()];
            for (place, gradient) in self.places().zip(values(&gradient).chunks_exact(c)) {
                let row = &mut sums[place[input] * c..][..c];
                for (sum, gradient) in row.iter_mut().zip(gradient) {
                    *sum += gradient;
                }
            }
            Some(tensor(sums, weight))
        });
        sums.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flex::testing::{assert_close, constant, leaf, numbers};
    use burn::tensor::{Device, TensorData};

    type Operation = fn(Tensor<2, Int>, Tensor<2>, Option<Positions>) -> Tensor<3>;

    /// Output and gradients, of tokens of which some come often and some never.
    fn run_with(f: Operation, [b, t, vocab_size, c]: [usize; 4], first: Option<usize>) -> Vec<Vec<f32>> {
        let tokens: Vec<u64> = (0..b * t).map(|i| ((i * i) % vocab_size) as u64).collect();
        let device = Device::flex().autodiff();
        let tokens = Tensor::from_data(TensorData::new(tokens, [b, t]), &device);
        let (weight, of_positions) = (leaf([vocab_size, c], 1), leaf([t + 3, c], 2));
        let positions = first.map(|first| Positions { weight: of_positions.clone(), first });
        let out = f(tokens, weight.clone(), positions);
        let asked = constant(out.dims(), 3);
        let gradients = (out.clone() * asked).sum().backward();
        let mut got = vec![numbers(out)];
        got.push(numbers(weight.grad(&gradients).expect("the weight has one")));
        got.extend(of_positions.grad(&gradients).map(numbers));
        assert_eq!(got.len(), if first.is_some() { 3 } else { 2 });
        got
    }

    #[test]
    fn equals_the_composed_operation_and_its_gradients() {
        for shape in [[1, 1, 1, 1], [2, 5, 7, 3], [12, 64, 65, 128], [3, 1, 9, 33]] {
            for first in [None, Some(0), Some(2)] {
                let [got, want] = [fused_embed, composed_embed].map(|f: Operation| run_with(f, shape, first));
                assert_close(&got, &want, &format!("{shape:?} from {first:?}"));
            }
        }
    }
}
