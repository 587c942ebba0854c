//! The default value of each key.

use std::path::PathBuf;

use super::{
    DataConfig, GenerateConfig, MatmulPrecision, MlpKind, ModelConfig, NormKind, OptimizerConfig, OptimizerKind,
    PositionKind, ScheduleConfig, ScheduleKind, SourceConfig, TextFormat, TokenizerConfig, TrainConfig,
};

impl TokenizerConfig {
    /// The `vocab_size` of a config with `kind = "bpe"` that does not give one.
    pub(crate) const DEFAULT_VOCAB_SIZE: usize = 2048;
}

impl ModelConfig {
    /// The `d_ff` of a config that does not give one.
    pub(super) fn default_d_ff(mlp: MlpKind, d_model: usize) -> usize {
        match mlp {
            MlpKind::Gelu | MlpKind::ReluSquared => d_model.saturating_mul(4),
            MlpKind::Swiglu => d_model.saturating_mul(8).div_ceil(3).div_ceil(32).saturating_mul(32),
        }
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            format: TextFormat::default(),
            text_field: "text".to_owned(),
            val_fraction: 0.1,
            cache_dir: None,
            cache_limit_gib: 20.0,
            sources: Vec::new(),
        }
    }
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self { path: PathBuf::new(), weight: 1.0, format: None, text_field: None }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            context_length: 128,
            d_model: 128,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: 4,
            d_ff: Self::default_d_ff(MlpKind::default(), 128),
            position: PositionKind::default(),
            norm: NormKind::default(),
            mlp: MlpKind::default(),
            bias: false,
            qk_norm: false,
            tie_embeddings: true,
            dropout: 0.0,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            device: "auto".to_owned(),
            matmul_precision: MatmulPrecision::F32,
            max_steps: 2000,
            batch_size: 12,
            grad_accumulation_steps: 1,
            log_interval: 10,
            eval_interval: 250,
            eval_batches: 20,
            checkpoint_interval: 250,
            keep_checkpoints: 2,
            sample_prompt: "\n".to_owned(),
            sample_tokens: 200,
            early_stopping_patience: 0,
            tensorboard: false,
            head_metrics: false,
        }
    }
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            learning_rate: 1e-3,
            betas: [0.9, 0.99],
            weight_decay: 0.1,
            grad_clip_norm: 1.0,
            muon_learning_rate: 0.02,
            muon_momentum: 0.95,
        }
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { kind: ScheduleKind::default(), warmup_steps: 100, min_learning_rate: 1e-4, decay_fraction: 0.2 }
    }
}

impl Default for GenerateConfig {
    fn default() -> Self {
        Self {
            max_new_tokens: 500,
            num_samples: 1,
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            seed: 1337,
        }
    }
}
