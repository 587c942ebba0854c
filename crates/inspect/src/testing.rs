//! Small models and prompts for the tests of this crate and of the program.

use burn::tensor::Device;

use crate::{HeadSelection, Prompt, PromptAttention, Recording};
use tinderbox_model::Gpt;
use tinderbox_model::config::ModelConfig;
use tinderbox_model::parameters::{self, HostTensor};
use tinderbox_model::tokenizer::Tokenizer;

pub fn small_config() -> ModelConfig {
    ModelConfig {
        context_length: 16,
        d_model: 16,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        d_ff: 32,
        ..ModelConfig::default()
    }
    .with_derived()
}

/// A new byte-level model.
pub fn model(config: &ModelConfig) -> Gpt {
    Gpt::new(config, 256, 1, &Device::flex())
}

/// The model with every parameter edited by `edit`.
pub fn edited(model: Gpt, edit: impl Fn(&str, &mut HostTensor)) -> Gpt {
    let drawn = parameters::read(&model);
    let edited = parameters::assign(model, |path, _| {
        let mut tensor = drawn[path].clone();
        edit(path, &mut tensor);
        Some(tensor)
    });
    edited.expect("edits keep shapes")
}

/// A model with weights large enough for every part to matter.
pub fn louder(config: &ModelConfig, vocab_size: usize) -> Gpt {
    edited(Gpt::new(config, vocab_size, 1, &Device::flex()), |_, tensor| {
        tensor.values.iter_mut().for_each(|x| *x *= 8.0);
    })
}

/// The attention of a text of at most 200 bytes by `weight(head, query, key)`, with heads numbered across layers.
pub fn attention(
    text: &str,
    [n_layers, n_heads]: [usize; 2],
    [layer, head]: [Option<usize>; 2],
    weight: impl Fn(usize, usize, usize) -> f32,
) -> PromptAttention {
    let prompt = Prompt::read(text, &Tokenizer::byte(), 200).expect("any text encodes as bytes");
    let config = ModelConfig { n_layers, n_heads, ..ModelConfig::default() }.with_derived();
    let selection = HeadSelection::new(layer, head, &config).expect("the selection is within the model");
    let t = prompt.len();
    let cells = (0..n_layers * n_heads * t * t).map(|at| weight(at / (t * t), at / t % t, at % t));
    let recording = Recording::of_weights([n_layers, n_heads, t], &cells.collect::<Vec<_>>());
    PromptAttention { prompt, config, selection, recording }
}

pub fn prompt(text: &str) -> Prompt {
    Prompt::read(text, &Tokenizer::byte(), 32).expect("any text encodes as bytes")
}
