//! The parameters of a model, each once for all the blocks that have it: a model of thousands of layers is planned as
//! quickly as one of two.

use crate::config::ModelConfig;
use tinderbox_model::Parameter;

/// Parameters, and how many blocks have each.
#[derive(Clone, Debug)]
pub(super) struct Tensors(Vec<(Parameter, usize)>);

impl Tensors {
    pub(super) fn new(config: &ModelConfig, vocab_size: usize) -> Self {
        let [embeddings, last] = Parameter::outside_blocks(config, vocab_size);
        let blocks = [(0, 1), (1, config.n_layers.saturating_sub(1))];
        let blocks = blocks.into_iter().filter(|(_, n_blocks)| *n_blocks > 0);
        let blocks = blocks.flat_map(|(block_idx, n_blocks)| {
            Parameter::of_block(config, block_idx).into_iter().map(move |parameter| (parameter, n_blocks))
        });
        let once = |parameter| (parameter, 1);
        Self(embeddings.into_iter().map(once).chain(blocks).chain(last.into_iter().map(once)).collect())
    }

    /// The sum of a number over all parameters.
    pub(super) fn sum(&self, of: impl Fn(&Parameter) -> f64) -> f64 {
        self.0.iter().fold(0.0, |sum, (parameter, n)| sum + *n as f64 * of(parameter))
    }

    pub(super) fn sum_of_largest(&self, mut n: usize, of: impl Fn(&Parameter) -> f64) -> f64 {
        let mut numbers: Vec<(f64, usize)> = self.0.iter().map(|(parameter, n)| (of(parameter), *n)).collect();
        numbers.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut sum = 0.0;
        for (number, n_blocks) in numbers {
            sum += number * n.min(n_blocks) as f64;
            n -= n.min(n_blocks);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MlpKind;

    #[test]
    fn sums_cover_all_parameters() {
        for n_layers in [1, 2, 7] {
            let config = ModelConfig { n_layers, mlp: MlpKind::Swiglu, ..ModelConfig::default() }.with_derived();
            let tensors = Tensors::new(&config, 65);
            let mut numbers: Vec<f64> = Parameter::all(&config, 65).map(|it| it.n_numbers() as f64).collect();
            let of = |parameter: &Parameter| parameter.n_numbers() as f64;
            let is = |found: f64, expected: f64| assert!((found - expected).abs() < 0.5, "{found} {expected}");
            is(tensors.sum(of), numbers.iter().sum());
            numbers.sort_by(|a, b| b.total_cmp(a));
            for n in [0, 1, 3, 1000] {
                is(tensors.sum_of_largest(n, of), numbers.iter().take(n).sum());
            }
        }
    }
}
