//! Converts our `[model]` to the `config.json` and `generation_config.json` of transformers: the inverse of
//! [`config`](super::config), with all keys that have defaults there written out.

use serde_json::{Map, Value, json};

use crate::{Family, Outgoing};
use tinderbox_model::Dtype;
use tinderbox_train::config::{GenerateConfig, MlpKind, ModelConfig, RopeScaling};

/// The ids of the BOS and EOS tokens, `null` if there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

/// The content of `config.json`.
pub(super) fn config(model: &Outgoing, dtype: Dtype, ends: Ends) -> Value {
    let ModelConfig { context_length, tie_embeddings, .. } = *model.model();
    let mut config = of_family(model.family, model.model());
    let dtype = match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    };
    let positions = if model.family == Family::Gpt2 { "n_positions" } else { "max_position_embeddings" };
    let common = json!({
        "architectures": [architecture(model.family)],
        "model_type": model.family.name(),
        "vocab_size": model.vocab_size(),
        positions: context_length,
        "tie_word_embeddings": tie_embeddings,
        "bos_token_id": ends.bos,
        "eos_token_id": ends.eos,
        "use_cache": true,
        "torch_dtype": dtype,
    });
    extend(&mut config, common);
    config
}

/// The content of `generation_config.json`: the run's default sampling settings.
pub(super) fn generation(generate: &GenerateConfig, ends: Ends) -> Value {
    let GenerateConfig { temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens, .. } = *generate;
    let mut config = json!({
        "bos_token_id": ends.bos,
        "eos_token_id": ends.eos,
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": repetition_penalty,
        "do_sample": temperature > 0.0,
    });
    if temperature > 0.0 {
        extend(&mut config, json!({ "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p }));
    }
    config
}

fn extend(config: &mut Value, more: Value) {
    let (Value::Object(config), Value::Object(more)) = (config, more) else { unreachable!("both are objects") };
    config.extend(more);
}

fn architecture(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "GPT2LMHeadModel",
        Family::Llama => "LlamaForCausalLM",
        Family::Mistral => "MistralForCausalLM",
        Family::Qwen2 => "Qwen2ForCausalLM",
        Family::Qwen3 => "Qwen3ForCausalLM",
        Family::Arcee => "ArceeForCausalLM",
        Family::GptNeox => "GPTNeoXForCausalLM",
        Family::GptNeo => "GPTNeoForCausalLM",
    }
}

fn of_family(family: Family, model: &ModelConfig) -> Value {
    let ModelConfig { d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, norm_eps, bias, .. } = *model;
    let gelu = if model.mlp == MlpKind::GeluTanh { "gelu_new" } else { "gelu" };
    match family {
        Family::Gpt2 => json!({
            "n_embd": d_model, "n_layer": n_layers, "n_head": n_heads, "n_inner": d_ff,
            "activation_function": gelu, "layer_norm_epsilon": norm_eps, "scale_attn_weights": true,
            "scale_attn_by_inverse_layer_idx": false, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        }),
        Family::GptNeo => {
            let windows: Vec<usize> = (0..n_layers).map(|i| model.attention_window_of(i).unwrap_or(0)).collect();
            let name = |window: &usize| if *window == 0 { "global" } else { "local" };
            let layers: Vec<&str> = windows.iter().map(name).collect();
            json!({
                "hidden_size": d_model, "num_layers": n_layers, "num_heads": n_heads, "intermediate_size": d_ff,
                "activation_function": gelu, "layer_norm_epsilon": norm_eps, "attention_types": [[layers, 1]],
                "attention_layers": layers, "window_size": windows.iter().find(|window| **window > 0).unwrap_or(&256),
                "attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0,
            })
        }
        Family::GptNeox => json!({
            "hidden_size": d_model, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
            "intermediate_size": d_ff, "hidden_act": gelu, "layer_norm_eps": norm_eps, "attention_bias": true,
            "use_parallel_residual": model.parallel_residual, "rotary_pct": model.rotary_fraction,
            "rotary_emb_base": model.rope_theta, "rope_scaling": scaling(model.rope_scaling),
            "attention_dropout": 0.0, "hidden_dropout": 0.0,
        }),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::Arcee => {
            let mut config = json!({
                "hidden_size": d_model, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
                "num_key_value_heads": n_kv_heads, "head_dim": head_dim, "intermediate_size": d_ff,
                "hidden_act": if family == Family::Arcee { "relu2" } else { "silu" }, "rms_norm_eps": norm_eps,
                "rope_theta": model.rope_theta, "rope_scaling": scaling(model.rope_scaling),
                "attention_dropout": 0.0,
            });
            let own = match family {
                Family::Llama | Family::Arcee => json!({ "attention_bias": bias, "mlp_bias": bias }),
                Family::Qwen3 => json!({ "attention_bias": false, "use_sliding_window": false }),
                Family::Qwen2 => json!({ "use_sliding_window": false }),
                _ => json!({ "sliding_window": null }),
            };
            extend(&mut config, own);
            config
        }
    }
}

fn scaling(scaling: Option<RopeScaling>) -> Option<Map<String, Value>> {
    let table = match scaling? {
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context_length,
        }),
    };
    table.as_object().cloned()
}
