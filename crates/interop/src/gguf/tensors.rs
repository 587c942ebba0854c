//! The names of tensors in llama.cpp. They are the same in every architecture, except for queries, keys and values.
//!
//! Source: llama.cpp, `llama-arch.cpp`.

use crate::layout::{QkvNames, TensorNames};
use tinderbox_model::Role;

/// All layers; `qkv` is as in most architectures.
pub(crate) const TENSORS: TensorNames = TensorNames {
    qkv: SEPARATE_QKV,
    is_conv: false,
    norms_less_one: false,
    own: &[],
    others: &[
        (Role::TokenEmbedding, "token_embd"),
        (Role::PositionEmbedding, "position_embd"),
        (Role::AttentionNorm, "blk.{}.attn_norm"),
        (Role::QNorm, "blk.{}.attn_q_norm"),
        (Role::KNorm, "blk.{}.attn_k_norm"),
        (Role::AttentionOutput, "blk.{}.attn_output"),
        (Role::PostAttentionNorm, "blk.{}.post_attention_norm"),
        (Role::MlpNorm, "blk.{}.ffn_norm"),
        (Role::PostMlpNorm, "blk.{}.post_ffw_norm"),
        (Role::Gate, "blk.{}.ffn_gate"),
        (Role::Up, "blk.{}.ffn_up"),
        (Role::Down, "blk.{}.ffn_down"),
        (Role::FinalNorm, "output_norm"),
        (Role::Output, "output"),
    ],
};

const NAMES: [&str; 3] = ["blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"];

/// For architectures in which `RoPE` rotates the halves of a head.
const SEPARATE_QKV: QkvNames = QkvNames::Separate(NAMES);

/// For architectures in which `RoPE` rotates neighbouring dimensions.
pub(crate) const INTERLEAVED_QKV: QkvNames = QkvNames::Interleaved(NAMES);

/// For architectures with one projection.
pub(crate) const FUSED_QKV: QkvNames = QkvNames::Fused("blk.{}.attn_qkv");
