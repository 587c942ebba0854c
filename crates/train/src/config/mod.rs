//! The config of a run: the sections of its TOML file with the meaning, the default and the rules of every key.
//!
//! Every key except `data.path` has a default. A loaded [`Config`] has passed all rules, so code that reads it need not
//! check again; whether the text exists or the device can be opened is found out later.

mod cautions;
mod choices;
mod inherit;
mod load;
mod overrides;
mod rules;
mod unknown_keys;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use choices::{
    GradientDtype, KeptCheckpoints, NewtonSchulz, OptimizerKind, PrecisionChoice, ScheduleKind, SyncKind, TextFormat,
    precision_remark,
};
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
    /// `[data]`: the training text.
    pub struct DataConfig {
        /// A text file, a folder of text files, or `-` for standard input; relative to the working directory. Required,
        /// unless there are `sources`.
        #[serde(skip_serializing_if = "is_empty")]
        pub path: PathBuf = PathBuf::new(),
        /// How files are read. Default `auto`.
        pub format: TextFormat = TextFormat::default(),
        /// The field that holds the text of a JSON Lines record. Default `text`.
        pub text_field: String = "text".to_owned(),
        /// The text at the end of each document in a text file; it is part of the document. Not empty; default none: a
        /// text file is one document.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub document_separator: Option<String> = None,
        /// Patterns of the files in a folder that are read, such as `*.txt`. Default: all of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub include: Vec<String> = Vec::new(),
        /// Patterns of the files in a folder that are left out, such as `*.png`. Default: none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub exclude: Vec<String> = Vec::new(),
        /// The share of each source, at its end, that is kept for validation. In (0, 1); default 0.1.
        pub val_fraction: f64 = 0.1,
        /// The folder of encoded token files. Default: `tinderbox/tokens` in the user's cache directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cache_dir: Option<PathBuf> = None,
        /// The most space that token files may take, in GiB; the least recently used are deleted first, but never one
        /// in use. Above 0; default 20.
        pub cache_limit_gib: f64 = 20.0,
        /// Several texts instead of `path`, each under `[[data.sources]]`. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub sources: Vec<SourceConfig> = Vec::new(),
    }

    /// `[[data.sources]]`: one of several training texts.
    pub struct SourceConfig {
        /// A text file or a folder of text files; relative to the working directory. Required.
        pub path: PathBuf = PathBuf::new(),
        /// How often training windows are drawn from this text relative to the others, whatever its length. Above 0, at
        /// most 1e15; default 1.
        pub weight: f64 = 1.0,
        /// How its files are read. Default `data.format`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub format: Option<TextFormat> = None,
        /// The field that holds the text of a JSON Lines record. Default `data.text_field`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub text_field: Option<String> = None,
        /// The text at which a document of its text files ends. Default `data.document_separator`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub document_separator: Option<String> = None,
        /// Patterns of its files that are read. Default `data.include`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub include: Option<Vec<String>> = None,
        /// Patterns of its files that are left out. Default `data.exclude`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub exclude: Option<Vec<String>> = None,
    }

    /// `[train]`: the length of the run and its intervals.
    pub struct TrainConfig {
        /// The seed of initial weights, batches and dropout. Below 2^63, since TOML integers are signed; default 1337.
        pub seed: u64 = 1337,
        /// The device: `auto`, `cpu`, `wgpu:1` and so on, as `tinderbox devices` lists them. Default `auto`.
        pub device: String = "auto".to_owned(),
        /// The precision of matrix products in projections and in Muon's steps; `bf16` only on `flex`. Default `f32`.
        pub matmul_precision: PrecisionChoice = PrecisionChoice::default(),
        /// The number of weight updates. At least 1; default 2000.
        pub max_steps: usize = 2000,
        /// The number of windows of text in one forward pass. At least 1; default 12.
        pub batch_size: usize = 12,
        /// The number of batches whose gradients are accumulated for one update. At least 1; default 1.
        pub grad_accumulation_steps: usize = 1,
        /// Whether windows of the text are sampled with replacement. Without replacement, an epoch reads each window
        /// once in random order, and each epoch cuts the text at different places. Default true.
        pub with_replacement: bool = true,
        /// Steps between two lines of the log. At least 1; default 10.
        pub log_interval: usize = 10,
        /// Steps between two evaluations; 0: only at the end. Default 250.
        pub eval_interval: usize = 250,
        /// The number of batches of each split in an evaluation during the run. At least 1; default 20.
        pub eval_batches: usize = 20,
        /// Steps between two checkpoints; 0: only at the end. Default 250.
        pub checkpoint_interval: usize = 250,
        /// The number of latest checkpoints kept on disk, or `"all"`; the best one is always kept. At least 1; default
        /// 2.
        pub keep_checkpoints: KeptCheckpoints = KeptCheckpoints::default(),
        /// The prompt of the sample text at each evaluation. Not empty unless samples are off; default a line break.
        pub sample_prompt: String = "\n".to_owned(),
        /// The length, in tokens, of the sample text at each evaluation; 0: off. Default 200.
        pub sample_tokens: usize = 200,
        /// Whether a step whose loss or gradient is not finite is skipped instead of ending the run. Default false.
        pub skip_non_finite: bool = false,
        /// Skips a step if its loss is more than this many standard deviations above the mean of the last 128 losses;
        /// 0: never. At least 0; default 0.
        pub skip_loss_spikes: f64 = 0.0,
        /// Stops the run after this many evaluations in a row without a better validation loss; 0: never. Default 0.
        pub early_stopping_patience: usize = 0,
        /// Whether curves and samples are also written for `TensorBoard`, to `tensorboard/` in the run directory.
        /// Default false.
        pub tensorboard: bool = false,
        /// Whether evaluations also measure every attention head, to `head_metrics.jsonl` in the run directory. Default
        /// false.
        pub head_metrics: bool = false,
    }

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

    /// `[distributed]`: how several processes train one run under a launcher such as `mpirun`; ignored without one.
    pub struct DistributedConfig {
        /// The quantity that processes synchronize, and how often. Default `step`.
        pub sync: SyncKind = SyncKind::default(),
        /// With `local`, the number of steps that each process trains alone; an evaluation or a checkpoint ends them
        /// early. At least 1; default 50.
        pub local_steps: usize = 50,
        /// With `local`, the share of the way from the weights at which all processes started to the average of the
        /// weights at which they arrived that the weights move. Above 0; default 0.7.
        ///
        /// Source: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
        pub outer_learning_rate: f64 = 0.7,
        /// With `local`, the share of the previous such move that is repeated. In [0, 1); default 0.9.
        pub outer_momentum: f64 = 0.9,
        /// With `step`, the format in which gradients are sent. Default `f32`.
        pub gradient_dtype: GradientDtype = GradientDtype::default(),
        /// The seconds that a process waits for another before the run ends; 0 waits forever. Default 300.
        pub timeout_s: usize = 300,
    }
}

impl DistributedConfig {
    /// The limit of `timeout_s`, or `None` without a limit.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        (self.timeout_s > 0).then(|| Duration::from_secs(self.timeout_s as u64))
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl ScheduleConfig {
    /// The same schedule with batches of full size from the first step on.
    #[must_use]
    pub fn without_ramp(&self) -> Self {
        Self { initial_context_length: None, initial_batch_size: None, ..self.clone() }
    }
}

impl DataConfig {
    /// Whether the config names a training text; only the run of an imported model has none.
    pub fn has_text(&self) -> bool {
        !is_empty(&self.path) || !self.sources.is_empty()
    }

    /// The training texts, with all their settings filled in: the `sources`, or the one at `path`.
    pub fn all_sources(&self) -> Vec<SourceConfig> {
        let filled = |source: SourceConfig| SourceConfig {
            format: source.format.or(Some(self.format)),
            text_field: source.text_field.or_else(|| Some(self.text_field.clone())),
            document_separator: source.document_separator.or_else(|| self.document_separator.clone()),
            include: source.include.or_else(|| Some(self.include.clone())),
            exclude: source.exclude.or_else(|| Some(self.exclude.clone())),
            ..source
        };
        let only = SourceConfig { path: self.path.clone(), ..SourceConfig::default() };
        if self.sources.is_empty() { vec![filled(only)] } else { self.sources.iter().cloned().map(filled).collect() }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}
