//! The config of a run: the sections of its TOML file. Each stands in the module that reads it, with the meaning, the
//! default and the rule of every key.
//!
//! Every key except `data.path` has a default. A loaded [`Config`] has passed all rules, so code that reads it need not
//! check again; whether the text exists or the device can be opened is found out later.

mod cautions;
mod choices;
mod inherit;
mod load;
mod overrides;
pub mod reference;
mod rules;
mod unknown_keys;

use serde::{Deserialize, Serialize};

pub use crate::data::{DataConfig, SourceConfig, TextFormat};
pub use crate::distributed::{DistributedConfig, ExchangeDtype, SyncKind};
pub use crate::train::precision::{PrecisionChoice, precision_remark};
pub use crate::train::{KeptCheckpoints, TrainConfig};
pub use choices::{NewtonSchulz, OptimizerKind, ScheduleKind};
pub use inherit::Base;
pub(crate) use load::read_text;
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
    /// How text is generated from the trained model.
    pub generate: GenerateConfig,
    /// How several processes train together; omitted from a saved config if all keys have their defaults.
    #[serde(skip_serializing_if = "DistributedConfig::is_default")]
    pub distributed: DistributedConfig,
}

tinderbox_model::sections! {
    /// `[optimizer]`: how gradients change the weights.
    pub struct OptimizerConfig {
        /// The optimizer. Default `adamw`.
        pub kind: OptimizerKind = OptimizerKind::default(),
        /// The peak learning rate; with `muon`, of everything but the blocks' matrices. Above 0; default 1e-3.
        pub learning_rate: f64 = 1e-3,
        /// The decay rates of the running means of the gradient and its square. Each in [0, 1); default [0.9, 0.99].
        pub betas: [f64; 2] = [0.9, 0.99],
        /// The decoupled weight decay of matrices. At least 0; default 0.1.
        pub weight_decay: f64 = 0.1,
        /// The global norm to which larger gradients are scaled down; 0: off. At least 0; default 1.
        pub grad_clip_norm: f64 = 1.0,
        /// The peak learning rate of the blocks' matrices, with the same schedule as `learning_rate`. Above 0; default
        /// 0.02.
        pub muon_learning_rate: f64 = 0.02,
        /// The decay rate of the running mean of these matrices' gradients. `adamw` ignores this key and the one before
        /// it. In [0, 1); default 0.95.
        pub muon_momentum: f64 = 0.95,
        /// The polynomials that make Muon's steps orthogonal. Default `jordan`.
        pub newton_schulz: NewtonSchulz = NewtonSchulz::default(),
        /// The number of polynomials applied in a step. From 1 to 10; default 5.
        pub newton_schulz_steps: usize = 5,
        /// The decay rate of the running mean square of Muon's steps, one number per output. The step of each output is
        /// divided by the root of its number, so that all outputs move equally far. 0: off. In [0, 1); default 0.
        ///
        /// Source: Li et al. 2025, "`NorMuon`: Making Muon more efficient and scalable", algorithm 1.
        pub normuon_beta2: f64 = 0.0,
        /// The decay rate of a running mean of the weights, which is evaluated and saved instead of the weights; 0:
        /// off. In [0, 1); default 0.
        ///
        /// Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
        pub ema_decay: f64 = 0.0,
    }

    /// `[schedule]`: how the learning rate changes during the run.
    pub struct ScheduleConfig {
        /// The curve after the warm-up. Default `cosine`.
        pub kind: ScheduleKind = ScheduleKind::default(),
        /// The number of steps over which the learning rate rises from 0; may exceed the run. Default 100.
        pub warmup_steps: usize = 100,
        /// The final learning rate of the curve. From 0 to `optimizer.learning_rate`; default a tenth of it.
        pub min_learning_rate: f64 = 1e-4,
        /// The share of the run, at its end, in which `wsd` falls; other kinds ignore it. In (0, 1]; default 0.2.
        pub decay_fraction: f64 = 0.2,
        /// The number of tokens in each row of the first step, from which rows grow to `model.context_length`. From 1
        /// to that; default that: all rows have the same length.
        ///
        /// Source: Li et al. 2022, "The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for Training
        /// GPT Models", section 4.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub initial_context_length: Option<usize> = None,
        /// The number of rows in each micro-batch of the first step, from which batches grow to `train.batch_size`.
        /// From 1 to that; default that: all batches have the same size.
        ///
        /// Source: Smith et al. 2018, "Don't Decay the Learning Rate, Increase the Batch Size"; GPT-3's batches grew in
        /// the same way.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub initial_batch_size: Option<usize> = None,
        /// The share of the run, at its beginning, in which rows and batches grow. In (0, 1]; default 0.3.
        pub ramp_fraction: f64 = 0.3,
    }
}

impl ScheduleConfig {
    /// The same schedule with batches of full size from the first step on.
    #[must_use]
    pub fn without_ramp(&self) -> Self {
        Self { initial_context_length: None, initial_batch_size: None, ..self.clone() }
    }
}
