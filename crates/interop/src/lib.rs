//! Imports models of other projects as runs, and exports runs as models that other projects can read.
//!
//! A [`Family`] says which keys of `[model]` another project supports, a [`layout`] maps its tensors to parts of our
//! parameters, and [`convert`] applies the layout. A [`Source`] is an opened model, a Hugging Face folder (`hf`) or a
//! llama.cpp file (`gguf`). Nothing here prints.

#![cfg_attr(
    test,
    allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers in tests are small")
)]
#![allow(clippy::missing_errors_doc, reason = "every error is an `InteropError`, whose messages say when it happens")]

pub mod convert;
mod error;
mod family;
pub mod gguf;
pub mod hf;
#[cfg(feature = "hub")]
pub mod hub;
mod import;
pub mod layout;
mod outgoing;
mod source;
pub mod verify;

pub use error::InteropError;
pub use family::Family;
pub use import::{Imported, import};
pub use layout::Naming;
pub use outgoing::Outgoing;
pub use source::{Source, TokenizerFiles};

#[cfg(test)]
mod tests {
    use super::*;
    use tinderbox_train::config::{MlpKind, ModelConfig, NormKind, PositionKind};

    /// Small configs of every family, with and without everything optional.
    pub fn configs() -> Vec<(Family, ModelConfig)> {
        let small = ModelConfig { context_length: 8, d_model: 24, n_layers: 2, d_ff: 40, ..ModelConfig::default() };
        let gpt = ModelConfig { n_heads: 4, n_kv_heads: 4, ..small.clone() };
        let llama = ModelConfig {
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 10,
            position: PositionKind::Rope,
            norm: NormKind::RmsNorm,
            mlp: MlpKind::Swiglu,
            ..small
        };
        let mut configs = Vec::new();
        let mut add = |family: Family, config: ModelConfig| {
            assert_eq!(family.obstacles(&config), [""; 0], "{family}");
            configs.push((family, config));
        };
        for tie_embeddings in [true, false] {
            for bias in [true, false] {
                let gpt = ModelConfig { tie_embeddings, bias, head_dim: 6, ..gpt.clone() };
                for qkv_bias in [true, false] {
                    add(Family::Gpt2, ModelConfig { qkv_bias, mlp: MlpKind::GeluTanh, ..gpt.clone() });
                    let rope = PositionKind::Rope;
                    add(
                        Family::GptNeox,
                        ModelConfig { qkv_bias, position: rope, parallel_residual: bias, ..gpt.clone() },
                    );
                }
                let scale = Some(1.0);
                let attention_window = vec![0, 3];
                add(Family::GptNeo, ModelConfig { qkv_bias: false, attention_scale: scale, attention_window, ..gpt });
                let llama = ModelConfig { tie_embeddings, bias, qkv_bias: bias, ..llama.clone() };
                add(Family::Llama, llama.clone());
                add(Family::Arcee, ModelConfig { mlp: MlpKind::ReluSquared, ..llama });
            }
            let llama = ModelConfig { tie_embeddings, ..llama.clone() };
            add(Family::Mistral, llama.clone());
            add(Family::Qwen2, ModelConfig { qkv_bias: true, ..llama.clone() });
            add(Family::Qwen3, ModelConfig { qk_norm: true, ..llama });
        }
        configs
    }

    #[test]
    fn a_config_is_said_in_the_family_that_it_is_of() {
        for (family, config) in configs() {
            // Mistral's configs are Llama's, too.
            let expected = if family == Family::Mistral { Family::Llama } else { family };
            assert_eq!(Family::of(&config), Ok(expected), "{config:?}");
        }
    }

    #[test]
    fn what_stands_in_the_way_is_said_with_its_key_and_value() {
        let mixture = ModelConfig {
            position: PositionKind::Rope,
            mlp: MlpKind::ReluSquared,
            qk_norm: true,
            ..ModelConfig::default()
        };
        insta::assert_snapshot!(Family::of(&mixture).expect_err("no family has all of these").join("\n"), @r#"
        model.norm = "layer_norm": qwen3 has "rms_norm"
        model.mlp = "relu_squared": qwen3 has "swiglu"
        "#);
        let windows =
            ModelConfig { attention_window: vec![0, 4, 8], attention_scale: Some(1.0), ..ModelConfig::default() };
        insta::assert_snapshot!(Family::of(&windows).expect_err("windows of two sizes").join("\n"), @"model.attention_window = [0, 4, 8]: gpt_neo has windows of one size");
    }

    #[test]
    fn families_have_the_names_of_transformers() {
        for family in Family::ALL {
            assert_eq!(Family::from_name(family.name()), Some(family));
        }
        assert_eq!(Family::from_name("gemma"), None);
    }
}
