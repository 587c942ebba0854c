//! Attention: every position asks (query), every position answers (key), and what answers best is
//! read (value).
//!
//! [`scaled_dot_product_attention`] is the formula by itself, [`steps`] takes it apart,
//! [`MultiHeadAttention`] is the learned module around it, [`Rotation`] tells it positions, and
//! [`KvCache`] lets it write one token at a time without starting over. Probes and norms it takes
//! from [`crate::model`]; it knows nothing of vocabularies, losses or training.

mod kv_cache;
mod multi_head;
mod rope;
mod scaled_dot_product;
pub mod steps;

pub use kv_cache::{KvCache, LayerCache};
pub use multi_head::{Attended, MultiHeadAttention, MultiHeadAttentionConfig};
pub use rope::Rotation;
pub use scaled_dot_product::{causal_mask, scaled_dot_product_attention};
