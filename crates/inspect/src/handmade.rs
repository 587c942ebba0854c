//! Models with weights set by hand, for tests.

use std::ops::Range;

use burn::tensor::Device;

use crate::testing::edited;
use tinderbox_model::Gpt;
use tinderbox_model::config::{ModelConfig, NormKind};

/// The model with these rows of some matrices set to zero.
pub(crate) fn with_zero_rows(model: Gpt, matrices: &[(&str, Range<usize>)]) -> Gpt {
    edited(model, |path, tensor| {
        for (_, rows) in matrices.iter().filter(|(name, _)| *name == path) {
            let n_columns = tensor.shape[1];
            tensor.values[rows.start * n_columns..rows.end * n_columns].fill(0.0);
        }
    })
}

/// A model with one head per layer: norm scales of 1, zeros elsewhere, then edited by `fill`.
pub(crate) fn by_hand(config: ModelConfig, vocab_size: usize, fill: impl Fn(&str, &mut [f32])) -> Gpt {
    let config = ModelConfig { n_heads: 1, n_kv_heads: 1, d_ff: 1, norm: NormKind::RmsNorm, ..config };
    let config = config.with_derived();
    edited(Gpt::zeros(&config, vocab_size, &Device::flex()), |path, tensor| match path.ends_with("norm.weight") {
        true => tensor.values.fill(1.0),
        false => fill(path, &mut tensor.values),
    })
}
