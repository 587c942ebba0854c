//! Muon: a step of the same size in every direction of a matrix.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};

use super::gradients::flatten;
use super::newton_schulz::orthogonalize;
use super::state::{State, StateError, put, take};
use crate::config::OptimizerConfig;
use tinderbox_kernels::MatmulPrecision;

/// What the names of its running means begin with in a checkpoint.
const KEY: &str = "momentum.";

/// Whether a tensor of a checkpoint is one of Muon's.
pub(super) fn is_key(key: &str) -> bool {
    key.starts_with(KEY)
}

/// The rule, and the running mean it keeps of each matrix's gradients.
///
/// The gradient of a matrix is close to low rank: a few directions are far larger than all others. Muon
/// looks one step ahead on the running mean (Nesterov's momentum), makes that orthogonal, and so moves the
/// rare directions as far as the frequent ones. Decay is decoupled, as in `AdamW`.
///
/// Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
/// <https://kellerjordan.github.io/posts/muon/>, and <https://github.com/KellerJordan/Muon>, `muon_update`.
#[derive(Clone, Debug)]
pub(super) struct Muon {
    learning_rate: f64,
    momentum: f64,
    weight_decay: f64,
    /// Of the products that make a step orthogonal.
    pub(super) precision: MatmulPrecision,
    /// The matrices that it moves, each with the widths of the matrices side by side in it.
    matrices: BTreeMap<String, Vec<usize>>,
    /// Running means of their gradients, flattened.
    means: BTreeMap<String, Tensor<1>>,
}

impl Muon {
    /// The rule before its first gradient, for `matrices` as
    /// [`hidden_matrices`](crate::model::parameters::hidden_matrices) names them.
    pub(super) fn new(config: &OptimizerConfig, matrices: BTreeMap<String, Vec<usize>>) -> Self {
        let OptimizerConfig {
            muon_learning_rate: learning_rate,
            muon_momentum: momentum,
            weight_decay,
            ..
        } = *config;
        Self {
            learning_rate,
            momentum,
            weight_decay,
            precision: MatmulPrecision::F32,
            matrices,
            means: BTreeMap::new(),
        }
    }

    /// Whether a parameter is one of its matrices.
    pub(super) fn moves(&self, name: &str) -> bool {
        self.matrices.contains_key(name)
    }

    /// The new weights of one of its matrices, from its gradient and what that is to be multiplied with, at
    /// `share` of the highest learning rate.
    ///
    /// # Shapes
    /// `weights, gradient: [m n]`, row by row, factor `[1]` -> `[m n]`
    pub(super) fn update(
        &mut self,
        name: String,
        weights: Tensor<1>,
        (gradient, factor): (Tensor<1>, Option<Tensor<1>>),
        share: f64,
    ) -> Tensor<1> {
        let gradient = match factor {
            Some(factor) => gradient * factor,
            None => gradient,
        };
        let keep = self.momentum;
        let new = gradient * (1.0 - keep);
        // A mean that started at zero and nothing to add to: the first step makes it.
        let mean = match self.means.remove(&name) {
            Some(old) => old * keep + new.clone(),
            None => new.clone(),
        };
        let ahead = mean.clone() * keep + new; // the mean if this gradient came once more
        let direction = direction(ahead, &self.matrices[&name], self.precision); // [m n]
        self.means.insert(name, mean);
        let learning_rate = self.learning_rate * share;
        weights * (1.0 - learning_rate * self.weight_decay) - direction * learning_rate
    }

    /// Adds the running means to `state`, as `momentum.NAME`.
    pub(super) fn save(&self, state: &mut State) {
        for (name, mean) in &self.means {
            put(state, format!("{KEY}{name}"), mean);
        }
    }

    /// Takes the running mean of a matrix of `n` numbers out of `state`.
    pub(super) fn load(
        &mut self,
        name: &str,
        n: usize,
        state: &mut State,
        device: &Device,
    ) -> Result<(), StateError> {
        let mean = take(state, format!("{KEY}{name}"), n, device)?;
        self.means.insert(name.to_owned(), mean);
        Ok(())
    }

    /// Forgets all gradients.
    pub(super) fn clear(&mut self) {
        self.means.clear();
    }
}

/// The orthogonal step of each of the matrices that stand side by side in `x`, each with `widths` columns.
///
/// Weights are `[in, out]`. A matrix with more outputs than inputs takes a longer step, so that what it
/// writes changes as much per number as with any other shape.
///
/// # Shapes
/// `x: [m n]`, row by row, `n` being the sum of `widths` -> `[m n]`
fn direction(x: Tensor<1>, widths: &[usize], precision: MatmulPrecision) -> Tensor<1> {
    let [n_all] = x.dims();
    let columns = widths.iter().sum::<usize>();
    let rows = n_all / columns;
    let x = x.reshape([rows, columns]); // [m, n]
    let parts = x.split_with_sizes(widths.to_vec(), 1);
    let scaled = |part: Tensor<2>| {
        let [_, width] = part.dims();
        #[allow(clippy::cast_precision_loss, reason = "sizes are below 2^24")]
        let scale = (width as f64 / rows as f64).max(1.0).sqrt();
        orthogonalize(part, precision) * scale
    };
    flatten(Tensor::cat(parts.into_iter().map(scaled).collect(), 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(x: Tensor<1>, widths: &[usize]) -> Tensor<1> {
        super::direction(x, widths, MatmulPrecision::F32)
    }

    fn numbers(n: usize) -> Tensor<1> {
        #[allow(clippy::cast_precision_loss, reason = "small sizes")]
        let values: Vec<f32> = (0..n).map(|i| ((i * i % 17) as f32 - 8.0) / 8.0).collect();
        Tensor::from_floats(values.as_slice(), &Device::flex())
    }

    fn host(x: Tensor<1>) -> Vec<f32> {
        x.into_data().try_to_vec().expect("f32")
    }

    #[test]
    fn matrices_side_by_side_are_made_orthogonal_each_by_itself() {
        let x = numbers(6 * 16);
        let together = direction(x.clone(), &[8, 4, 4]).reshape([6, 16]);
        for (start, width) in [(0, 8), (8, 4), (12, 4)] {
            let alone = x.clone().reshape([6, 16]).narrow(1, start, width);
            let alone = direction(flatten(alone), &[width]);
            let part = together.clone().narrow(1, start, width);
            assert_eq!(host(flatten(part)), host(alone));
        }
        assert_ne!(host(direction(x, &[16])), host(flatten(together)));
    }

    /// `[in, out]`: with four times as many outputs as inputs the step is twice as long.
    #[test]
    fn more_outputs_than_inputs_make_a_longer_step() {
        let step = |rows: usize, columns: usize| {
            let x = numbers(rows * columns);
            let plain = orthogonalize(x.clone().reshape([rows, columns]), MatmulPrecision::F32);
            (host(direction(x, &[columns])), host(flatten(plain)))
        };
        let (wide, plain) = step(3, 12);
        let doubled: Vec<f32> = plain.iter().map(|x| x * 2.0).collect();
        assert_eq!(wide, doubled);
        let (tall, plain) = step(12, 3);
        assert_eq!(tall, plain);
    }

    #[test]
    fn without_a_gradient_only_decay_moves_weights() {
        let config = OptimizerConfig {
            weight_decay: 0.5,
            muon_learning_rate: 0.25,
            ..OptimizerConfig::default()
        };
        let mut muon = Muon::new(&config, BTreeMap::from([("w".to_owned(), vec![4])]));
        let weights = numbers(12);
        let zeros = weights.zeros_like();
        let new = muon.update("w".to_owned(), weights.clone(), (zeros, None), 0.5);
        let shrunk: Vec<f32> = host(weights).iter().map(|x| x * (1.0 - 0.0625)).collect();
        assert_eq!(host(new), shrunk);
    }
}
