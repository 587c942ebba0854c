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
    GradientDtype, KeptCheckpoints, MlpKind, NewtonSchulz, NormKind, OptimizerKind, PositionKind, PrecisionChoice,
    RopeScaling, ScheduleKind, SyncKind, TextFormat, TokenizerKind, precision_remark,
};
pub use inherit::Base;
pub(crate) use load::read_text;
pub use load::{ConfigError, Key};
pub use tinderbox_kernels::MatmulPrecision;

/// Defines the sections of a config: structs with the default of each key next to its type.
macro_rules! sections {
    ($($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$key_doc:meta])* pub $key:ident: $type:ty = $default:expr,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$key_doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    )*};
}

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

sections! {
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

    /// `[tokenizer]`: how text becomes tokens.
    pub struct TokenizerConfig {
        /// The kind of tokens. Default `char`.
        pub kind: TokenizerKind = TokenizerKind::default(),
        /// Only with `bpe`: the most tokens in the vocabulary. At least 257, the bytes and the end-of-text token;
        /// default 2048.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub vocab_size: Option<usize> = None,
        /// Whether `char` and `byte` have one more token, `<|endoftext|>`, which follows each document. `bpe` always
        /// has it, and `file` has it if its file does. Default false.
        pub end_of_text: bool = false,
        /// Only with `file`, and required there: a `tokenizer.json`; relative to the working directory.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub path: Option<PathBuf> = None,
    }

    /// `[model]`: the shape of the network.
    pub struct ModelConfig {
        /// The most tokens that the model sees at once. At least 1; default 128.
        pub context_length: usize = 128,
        /// The width of the residual stream. Divisible by `n_heads`; default 128.
        pub d_model: usize = 128,
        /// The number of blocks. At least 1; default 4.
        pub n_layers: usize = 4,
        /// The number of query heads in each attention layer. At least 1; default 4.
        pub n_heads: usize = 4,
        /// The number of key and value heads; fewer than `n_heads` is grouped-query attention. Divides `n_heads`, the
        /// default.
        pub n_kv_heads: usize = 4,
        /// The width of a head. At least 1, even with `rope`; default `d_model / n_heads`.
        pub head_dim: usize = Self::default_head_dim(128, 4),
        /// The width inside the MLP. At least 1; default 4 `d_model`, or for `swiglu`, which has a third matrix, 8/3
        /// `d_model` rounded up to a multiple of 32.
        pub d_ff: usize = Self::default_d_ff(MlpKind::default(), 128),
        /// The position encoding. Default `learned`.
        pub position: PositionKind = PositionKind::default(),
        /// The base of the wavelengths of `rope`; `learned` ignores it. Above 0; default 10000.
        pub rope_theta: f64 = 10_000.0,
        /// The share of each head's dimensions, from the first on, that `rope` rotates. In (0, 1]; default 1.
        pub rotary_fraction: f64 = 1.0,
        /// The normalisation before each attention layer and MLP. Default `layer_norm`.
        pub norm: NormKind = NormKind::default(),
        /// The epsilon that norms add to the variance or the mean square, under the root. Above 0; default 1e-5 with
        /// `layer_norm`, 1e-6 with `rms_norm`.
        pub norm_eps: f64 = Self::default_norm_eps(NormKind::default()),
        /// The activation of the MLP. Default `gelu`.
        pub mlp: MlpKind = MlpKind::default(),
        /// Whether linear layers and layer norms have biases. Default false.
        pub bias: bool = false,
        /// Whether the projections to queries, keys and values have biases. Default `bias`.
        pub qkv_bias: bool = false,
        /// Whether the queries and keys of each head are normalised. Default false.
        pub qk_norm: bool = false,
        /// Whether attention and the MLP of a block both read the block's input, instead of running one after the
        /// other. Default false.
        pub parallel_residual: bool = false,
        /// The number of tokens that a position attends to, itself included, one number per layer, repeated from the
        /// first when there are more layers; 0 is the whole context. Default: no windows.
        pub attention_window: Vec<usize> = Vec::new(),
        /// The factor that scales the products of queries and keys. Above 0; default 1 over the root of `head_dim`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub attention_scale: Option<f64> = None,
        /// Whether the output layer uses the token embedding's weights. Default true.
        pub tie_embeddings: bool = true,
        /// Whether the projections that write to the residual stream, attention's output projection and the MLP's
        /// second matrix, are initialized to zero instead of small random numbers, so that a new block is the identity.
        /// Default false.
        ///
        /// Source: Zhang, Dauphin and Ma 2019, "Fixup Initialization: Residual Learning Without Normalization", section
        /// 3.1.
        pub zero_init_projections: bool = false,
        /// Whether norms have learned scales, and layer norms shifts. Default true.
        ///
        /// Source for norms without them: Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models",
        /// section 2.1.
        pub norm_weights: bool = true,
        /// Whether the values of attention are a weighted sum of the block's values and the first block's, with two
        /// learned factors in each block except the first. Default false.
        ///
        /// Source: Zhou et al. 2024, "Value Residual Learning", section 3.
        pub value_residual: bool = false,
        /// Whether the input of each block is a weighted sum of the residual stream and the embedding, with two learned
        /// factors. Default false.
        ///
        /// Source: Jordan et al. 2024, <https://github.com/KellerJordan/modded-nanogpt>.
        pub embedding_skip: bool = false,
        /// The number of rows of the token embedding, if larger than the tokenizer's vocabulary. Default: as many as
        /// tokens.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub vocab_size: Option<usize> = None,
        /// The bound on the magnitude of logits: `logit_softcap * tanh(logit / logit_softcap)`. Above 0; default none.
        ///
        /// Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub logit_softcap: Option<f64> = None,
        /// The share of activations dropped in training. In [0, 1); default 0.
        pub dropout: f64 = 0.0,
        /// How the wavelengths of `rope` were stretched for a longer context. Default: they were not.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rope_scaling: Option<RopeScaling> = None,
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

    /// `[generate]`: the defaults of `tinderbox generate`, whose arguments take precedence.
    pub struct GenerateConfig {
        /// The most tokens generated after the prompt. At least 1; default 500.
        pub max_new_tokens: usize = 500,
        /// The number of samples. At least 1; default 1.
        pub num_samples: usize = 1,
        /// Divides the logits: below 1 is safer, above 1 more random, 0 always takes the most likely token. Default
        /// 0.8.
        pub temperature: f64 = 0.8,
        /// Only this many of the most likely tokens may be sampled; 0: off. Default 0.
        pub top_k: usize = 0,
        /// Only the most likely tokens that together have this probability may be sampled; 1: off. In (0, 1]; default
        /// 1.
        pub top_p: f64 = 1.0,
        /// Only tokens with this share of the most likely token's probability may be sampled; 0: off. In [0, 1];
        /// default 0.
        pub min_p: f64 = 0.0,
        /// Makes tokens that already occur in the text less likely; 1: off. Above 0; default 1.
        pub repetition_penalty: f64 = 1.0,
        /// Texts that end the generation, none of them empty. Default: none.
        pub stop: Vec<String> = Vec::new(),
        /// The seed of sampling: the same seed generates the same text. Below 2^63; default 1337.
        pub seed: u64 = 1337,
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
    pub(crate) fn without_ramp(&self) -> Self {
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

impl TokenizerConfig {
    /// The `vocab_size` of a config with `kind = "bpe"` that does not give one.
    const DEFAULT_VOCAB_SIZE: usize = 2048;

    /// The vocabulary size of BPE: the given one, or the default.
    pub fn bpe_vocab_size(&self) -> usize {
        self.vocab_size.unwrap_or(Self::DEFAULT_VOCAB_SIZE)
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

impl ModelConfig {
    /// The `d_ff` of a config that does not set it.
    pub(crate) fn default_d_ff(mlp: MlpKind, d_model: usize) -> usize {
        match mlp {
            MlpKind::Gelu | MlpKind::GeluTanh | MlpKind::ReluSquared => d_model.saturating_mul(4),
            MlpKind::Swiglu => d_model.saturating_mul(8).div_ceil(3).div_ceil(32).saturating_mul(32),
        }
    }

    /// The `head_dim` of a config that does not set it; 0 if `d_model` is not divisible by `n_heads`.
    fn default_head_dim(d_model: usize, n_heads: usize) -> usize {
        match n_heads {
            0 => 0,
            n_heads if d_model.is_multiple_of(n_heads) => d_model / n_heads,
            _ => 0,
        }
    }

    /// The `norm_eps` of a config that does not set it.
    fn default_norm_eps(norm: NormKind) -> f64 {
        match norm {
            NormKind::LayerNorm => 1e-5,
            NormKind::RmsNorm => RMS_NORM_EPS,
        }
    }

    /// The config with the `head_dim`, `norm_eps` and `qkv_bias` that follow from its other keys. A config built in
    /// code needs this; a loaded one already has them.
    #[must_use]
    pub fn with_derived(self) -> Self {
        Self {
            head_dim: Self::default_head_dim(self.d_model, self.n_heads),
            norm_eps: Self::default_norm_eps(self.norm),
            qkv_bias: self.bias,
            ..self
        }
    }

    /// Whether the MLP has a third matrix, the gate.
    pub fn is_gated(&self) -> bool {
        self.mlp == MlpKind::Swiglu
    }

    /// The epsilon of the norms of queries and keys, which are always RMS norms.
    pub fn qk_norm_eps(&self) -> f64 {
        match self.norm {
            NormKind::LayerNorm => RMS_NORM_EPS,
            NormKind::RmsNorm => self.norm_eps,
        }
    }

    /// The number of dimensions of each head that are rotated, from the first on.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down, as in GPT-NeoX")]
    pub fn rotary_dim(&self) -> usize {
        (self.head_dim as f64 * self.rotary_fraction) as usize
    }

    /// The number of tokens that a position attends to in a layer, itself included; `None` for all tokens before it.
    pub fn attention_window_of(&self, layer: usize) -> Option<usize> {
        let n = self.attention_window.len().max(1);
        self.attention_window.get(layer % n).copied().filter(|window| *window > 0)
    }

    /// The factor that scales the products of queries and keys.
    pub fn attention_scale(&self) -> f64 {
        self.attention_scale.unwrap_or_else(|| tinderbox_kernels::attention_scale(self.head_dim))
    }
}

/// The default epsilon of an RMS norm.
const RMS_NORM_EPS: f64 = 1e-6;
