//! The config of a run: the sections of its TOML file. Each stands in the module that reads it, with the meaning, the
//! default and the rule of every key.
//!
//! Every key except `data.path` has a default. A loaded [`Config`] has passed all rules, so code that reads it need not
//! check again; whether the text exists or the device can be opened is found out later.

pub(crate) mod commented;
mod inherit;
mod load;
mod overrides;
pub mod reference;
mod rules;
mod unknown_keys;

use serde::{Deserialize, Serialize};

pub use crate::data::{DataConfig, SourceConfig, TextFormat, ValSplit};
pub use crate::distributed::{DistributedConfig, ExchangeDtype, SyncKind};
pub use crate::finetune::{BaseWeights, FinetuneConfig, FinetuneMethod, PreferenceLoss, TrainOn};
pub use crate::optimizer::{NewtonSchulz, OptimizerConfig, OptimizerKind, ScheduleConfig, ScheduleKind};
pub use crate::train::precision::{PrecisionChoice, precision_remark};
pub use crate::train::{KeptCheckpoints, TrainConfig};
pub use commented::with_overrides;
pub use inherit::Base;
pub use load::{ConfigError, Key};
pub use tinderbox_kernels::MatmulPrecision;
pub use tinderbox_model::config::{
    GenerateConfig, MlpKind, ModelConfig, NormKind, PositionKind, RopeScaling, TokenizerConfig, TokenizerKind,
};

/// The config of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The training text.
    pub data: DataConfig,
    /// How text becomes tokens.
    pub tokenizer: TokenizerConfig,
    /// The shape of the network.
    pub model: ModelConfig,
    /// The length of the run and its intervals.
    pub train: TrainConfig,
    /// How gradients change the weights.
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes during the run.
    pub schedule: ScheduleConfig,
    /// The run that is adapted, and how; omitted from a saved config if all keys have their defaults.
    #[serde(skip_serializing_if = "FinetuneConfig::is_default")]
    pub finetune: FinetuneConfig,
    /// How text is generated from the trained model.
    pub generate: GenerateConfig,
    /// How several processes train together; omitted from a saved config if all keys have their defaults.
    #[serde(skip_serializing_if = "DistributedConfig::is_default")]
    pub distributed: DistributedConfig,
}

impl Config {
    /// The config of a run that has only the model: it names no text and no run that it was adapted from.
    #[must_use]
    pub fn of_model(self) -> Self {
        let data = DataConfig { document_separator: self.data.document_separator, ..DataConfig::default() };
        Self { data, finetune: FinetuneConfig::default(), ..self }
    }
}
