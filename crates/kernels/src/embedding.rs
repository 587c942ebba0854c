//! Token and position embeddings.

use burn::backend::DispatchTensor;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Int, Tensor, module};

use crate::elementary::add_to;
use crate::flex::{self, from_vec, matrix, tensor, values};
use crate::linear::rows;
use crate::op::{FlexOperation, Operation, Wanted, apply, apply_on_flex};
use crate::positions::positions;

/// Learned position embeddings, and the position of the first token.
#[derive(Clone, Debug)]
pub struct Positions {
    /// `[P, C]`
    pub weight: Tensor<2>,
    /// The position of the first of the T tokens; `first + T` is at most P.
    pub first: usize,
}

/// The embedding of each token, plus that of its position if there are position embeddings.
///
/// Source: Vaswani et al. 2017, sections 3.4 and 3.5; learned positions: Gehring et al. 2017, "Convolutional
/// Sequence to Sequence Learning", section 3.1.
///
/// # Shapes
/// `tokens: [B, T]` with values in `0..V`, `weight: [V, C]` -> `[B, T, C]`
///
/// # Panics
/// If a token or a position is out of range: a bug in the caller, never bad user input.
pub fn embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    if !flex::is_for(&weight) {
        return composed_embed(tokens, weight, positions);
    }
    let [_, seq_len] = tokens.dims();
    let first = positions.as_ref().map_or(0, |positions| positions.first);
    let operation = Embedding { tokens: flex::tokens(tokens), seq_len, first };
    let weights = std::iter::once(weight).chain(positions.map(|positions| positions.weight));
    Tensor::from_dispatch(apply_on_flex(weights.map(Tensor::into_dispatch).collect(), operation))
}

pub(crate) fn composed_embed(tokens: Tensor<2, Int>, weight: Tensor<2>, positions: Option<Positions>) -> Tensor<3> {
    let [b, t] = tokens.dims();
    let vocab_size = weight.dims()[0];
    let is_one_product = !flex::is_host(&weight.device()) && b * t * vocab_size <= MOST_ONES;
    let x = match is_one_product {
        true => one_product(tokens, weight),
        false => module::embedding(weight, tokens),
    }; // [B, T, C]
    match positions {
        None => x,
        Some(Positions { weight, first }) => x + weight.narrow(0, first, t).unsqueeze(),
    }
}

fn one_product(tokens: Tensor<2, Int>, weight: Tensor<2>) -> Tensor<3> {
    let [vocab_size, _] = weight.dims();
    Tensor::from_dispatch(apply(vec![weight.into_dispatch()], OneProduct { tokens: tokens.inner(), vocab_size }))
}

/// The most zeros and ones in [`OneProduct`]: 128 MiB, the largest buffer that every WebGPU device can bind. They are as
/// many as the logits, which are freed before.
const MOST_ONES: usize = 1 << 25;

/// The embedding of each token, whose gradient is a product with a matrix of ones, where a token is that of the row, and
/// zeros. Input: the token embeddings `[V, C]`.
///
/// Burn's own gradient on a GPU is computed by one thread per column, which goes through all tokens.
#[derive(Debug)]
struct OneProduct {
    tokens: Tensor<2, Int>,
    vocab_size: usize,
}

impl Operation for OneProduct {
    fn forward(&self, mut inputs: Vec<DispatchTensor>, _: Wanted) -> (DispatchTensor, Vec<DispatchTensor>) {
        let weight = Tensor::<2>::from_dispatch(inputs.remove(0));
        (module::embedding(weight, self.tokens.clone()).into_dispatch(), Vec::new())
    }

    fn backward(&self, _: Vec<DispatchTensor>, gradient: DispatchTensor, _: Wanted) -> Vec<Option<DispatchTensor>> {
        let gradient = rows(Tensor::<3>::from_dispatch(gradient)); // [N, C]
        let ([n, _], v) = (gradient.dims(), self.vocab_size);
        let tokens = self.tokens.clone().reshape([1, n]).expand([v, n]);
        let ids = positions(0..v, tokens.dtype(), &gradient.device()).reshape([v, 1]).expand([v, n]);
        vec![Some(ids.equal(tokens).float().matmul(gradient).into_dispatch())] // [V, N] times [N, C]
    }
}

/// Inputs: the token embeddings `[V, C]`, and the position embeddings `[P, C]` if there are any.
#[derive(Debug)]
struct Embedding {
    /// The tokens of all rows, one row after another.
    tokens: Vec<usize>,
    seq_len: usize,
    first: usize,
}

impl Embedding {
    /// The id and the position of each token.
    fn places(&self) -> impl Iterator<Item = [usize; 2]> {
        let positions = (self.first..self.first + self.seq_len).cycle();
        self.tokens.iter().copied().zip(positions).map(<[usize; 2]>::from)
    }
}

impl FlexOperation for Embedding {
    fn forward(&self, inputs: Vec<FlexTensor>, _: Wanted) -> (FlexTensor, Vec<FlexTensor>) {
        let c = matrix(&inputs[0]).n_columns();
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
        let out = from_vec(out, [self.tokens.len() / self.seq_len.max(1), self.seq_len, c]);
        // Only the shapes of the inputs are needed; saving them costs nothing, since they are parameters.
        (out, inputs)
    }

    /// Scatter-adds the rows of the gradient, one after another.
    fn backward(&self, saved: Vec<FlexTensor>, gradient: FlexTensor, _: Wanted) -> Vec<Option<FlexTensor>> {
        let c = matrix(&gradient).n_columns();
        let sums = saved.iter().enumerate().map(|(input, weight)| {
            let mut sums = vec![0.0; values(weight).len()];
            for (place, gradient) in self.places().zip(values(&gradient).chunks_exact(c)) {
                add_to(&mut sums[place[input] * c..][..c], gradient);
            }
            Some(tensor(sums, weight))
        });
        sums.collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::testing::{assert_close, constant, output_and_gradients};

    #[test]
    fn one_product_equals_burns_embedding() {
        let tokens = || {
            let tokens = TensorData::new(vec![4_i64, 0, 4, 4, 2, 1], [2, 3]);
            Tensor::<2, Int>::from_data(tokens, &constant::<1>([1], 1).device())
        };
        let got = output_and_gradients(|leaves| one_product(tokens(), leaves.next([5, 7])));
        let want = output_and_gradients(|leaves| module::embedding(leaves.next([5, 7]), tokens()));
        assert_close(&got, &want, "embedding");
    }
}
