//! The gradients of all parameters in a step, by parameter name.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients as Backward, Tensor, TensorReadError};
use rayon::prelude::*;

use tinderbox_kernels as kernels;
use tinderbox_model::follow_path;
use tinderbox_model::{Parameter, device};

/// The gradient of a parameter, `[n]`, and the factor to multiply it by, `[1]`.
pub(super) type Gradient = (Tensor<1>, Option<Tensor<1>>);

/// Gradients by parameter name, as flattened tensors on the device without autodiff.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    by_name: BTreeMap<String, Tensor<1>>,
    /// The clipping factor, `[1]`; the update rules multiply each gradient by it. `None` means 1.
    factor: Option<Tensor<1>>,
}

impl Gradients {
    /// Takes the gradients of `module`'s parameters from a backward pass.
    pub fn take<M: Module>(module: &M, backward: Backward) -> Self {
        struct GradientVisitor(Vec<String>, Backward, BTreeMap<String, Tensor<1>>);
        impl ModuleVisitor for GradientVisitor {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = param.val().grad_remove(&mut self.1) {
                    self.2.insert(self.0.join("."), flatten(gradient));
                }
            }
            follow_path!(0);
        }
        let mut visitor = GradientVisitor(Vec::new(), backward, BTreeMap::new());
        module.visit(&mut visitor);
        Self::from_named(visitor.2)
    }

    /// Creates gradients from flattened tensors by parameter name.
    pub fn from_named(by_name: BTreeMap<String, Tensor<1>>) -> Self {
        Self { by_name, factor: None }
    }

    /// The sum with the gradients of another micro-batch.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, gradient) in other.by_name {
            let sum = match self.by_name.remove(&name) {
                Some(so_far) => so_far + gradient,
                None => gradient,
            };
            self.by_name.insert(name, sum);
        }
        self
    }

    /// The sum of the squares of each gradient, `[1]` each, on the device.
    pub fn squares(&self) -> Squares {
        let gradients: Vec<_> = self.by_name.iter().collect();
        let on_cpu = gradients.first().is_some_and(|(_, gradient)| device::is_cpu(&gradient.device()));
        let square =
            |(name, gradient): (&String, &Tensor<1>)| (name.clone(), kernels::sum_of_squares(gradient.clone()));
        Squares(match on_cpu {
            true => gradients.into_par_iter().map(square).collect(),
            false => gradients.into_iter().map(square).collect(),
        })
    }

    /// Clips by global norm: scales all gradients so that their common `norm` is at most `max_norm`.
    ///
    /// Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", section 3.2. The
    /// constant added to the norm prevents a division by zero, as in PyTorch's `clip_grad_norm_`.
    #[must_use]
    pub fn clip(mut self, norm: Tensor<1>, max_norm: f64) -> Self {
        self.factor = Some(((norm + 1e-6).recip() * max_norm).clamp_max(1.0));
        self
    }

    /// The gradients by name, before clipping.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<1>)> {
        self.by_name.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Removes the gradient of one parameter. Returns it with the factor to multiply it by.
    pub(super) fn remove(&mut self, name: &str) -> Option<Gradient> {
        Some((self.by_name.remove(name)?, self.factor.clone()))
    }
}

/// The sum of the squares of each parameter's gradient, in the order of the names: `[1]` each, still on the device.
#[derive(Clone, Debug, Default)]
pub struct Squares(Vec<(String, Tensor<1>)>);

impl Squares {
    /// The Euclidean norm of all gradients together, `[1]`, on the device.
    ///
    /// # Panics
    /// If there are no gradients.
    pub fn global_norm(&self) -> Tensor<1> {
        let squares = self.0.iter().map(|(_, square)| square.clone());
        squares.reduce(|sum, square| sum + square).expect("a model has parameters").sqrt()
    }

    /// The Euclidean norm of the gradients of each layer, in the order of the model: `token_embedding`, `blocks.0` and so
    /// on. Reads all of them back at once.
    pub fn norms_by_layer(self) -> Result<Vec<(String, f64)>, TensorReadError> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        let (names, squares): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let squares = Tensor::cat(squares, 0).try_into_vec_as::<f32>()?;
        let mut layers: BTreeMap<(usize, &str), f64> = BTreeMap::new();
        for (name, square) in names.iter().zip(squares) {
            *layers.entry((place_of(name), layer_of(name))).or_default() += f64::from(square);
        }
        Ok(layers.into_iter().map(|((_, layer), square)| (layer.to_owned(), square.sqrt())).collect())
    }
}

/// The layer of a parameter: `blocks.0` of `blocks.0.mlp.up.weight`, and `token_embedding` of
/// `token_embedding.weight`.
pub(crate) fn layer_of(name: &str) -> &str {
    let n_parts = if name.starts_with("blocks.") { 2 } else { 1 };
    name.match_indices('.').nth(n_parts - 1).map_or(name, |(end, _)| &name[..end])
}

/// Where a parameter's layer is in the model: embeddings, blocks by number, the last norm and the output layer.
pub(crate) fn place_of(name: &str) -> usize {
    match Parameter::block_of(name) {
        Some(idx) => idx + 1,
        None if layer_of(name).ends_with("embedding") => 0,
        None => usize::MAX,
    }
}

/// Flattens a tensor: `[..]` -> `[n]`.
pub(super) fn flatten<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let n = x.shape().num_elements();
    x.reshape([n])
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Shape, TensorData};

    use super::*;

    #[test]
    fn norms_cover_all_gradients_and_each_layer_in_order() {
        let named = |(name, values): (&str, Vec<f32>)| {
            let shape = Shape::from([values.len()]);
            (name.to_owned(), Tensor::from_data(TensorData::new(values, shape), &Device::flex()))
        };
        let gradients = Gradients::from_named(
            [
                ("blocks.0.mlp.up.weight", vec![3.0]),
                ("blocks.0.mlp_norm.weight", vec![4.0]),
                ("blocks.10.mlp.up.weight", vec![2.0, 0.0]),
                ("blocks.2.mlp.up.weight", vec![1.0, -1.0, 1.0, 1.0]),
                ("final_norm.weight", vec![0.0]),
                ("token_embedding.weight", vec![-6.0]),
            ]
            .map(named)
            .into(),
        );
        let squares = gradients.squares();
        let all = squares.global_norm().try_into_vec_as::<f32>().unwrap();
        assert!((all[0] - 69.0_f32.sqrt()).abs() < 1e-6, "{all:?}");
        let layers = squares.norms_by_layer().unwrap();
        let expected =
            [("token_embedding", 6.0), ("blocks.0", 5.0), ("blocks.2", 2.0), ("blocks.10", 2.0), ("final_norm", 0.0)];
        assert_eq!(layers, expected.map(|(layer, norm)| (layer.to_owned(), norm)));
        assert_eq!(Squares::default().norms_by_layer().unwrap(), []);
    }
}
