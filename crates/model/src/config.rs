//! `[model]`: the shape of the network. The keys of a config that other parts of this crate read, `[tokenizer]` and
//! `[generate]`, stand beside them.

use serde::{Deserialize, Serialize};

pub use crate::generate::GenerateConfig;
use crate::section::{MAX_SIZE, Problems};
pub use crate::tokenizer::{TokenizerConfig, TokenizerKind};
pub use tinderbox_kernels::Activation as MlpKind;

const MAX_LAYERS: usize = 1 << 16;

crate::sections! {
    /// `[model]`: the shape of the network.
    pub struct ModelConfig {
        /// The most tokens that the model sees at once. At least 1.
        pub context_length: usize = 128,
        /// The width of the residual stream. Divisible by `n_heads`.
        pub d_model: usize = 128,
        /// The number of blocks. At least 1.
        pub n_layers: usize = 4,
        /// The number of query heads in each attention layer. At least 1.
        pub n_heads: usize = 4,
        /// The number of key and value heads; fewer than `n_heads` is grouped-query attention. Divides `n_heads`, the
        /// default.
        pub n_kv_heads: usize = 4,
        /// The width of a head. At least 1, even with `rope`; default `d_model / n_heads`.
        pub head_dim: usize = Self::default_head_dim(128, 4),
        /// The width inside the MLP. At least 1; default 4 `d_model`, or for `swiglu` and `geglu`, which have a third matrix,
        /// 8/3 `d_model` rounded up to a multiple of 32.
        pub d_ff: usize = Self::default_d_ff(MlpKind::default(), 128),
        /// The position encoding: `learned` (a vector for each position) or `rope` (queries and keys are rotated).
        pub position: PositionKind = PositionKind::default(),
        /// The base of the wavelengths of `rope`; `learned` ignores it. Above 0.
        pub rope_theta: f64 = 10_000.0,
        /// The fraction of each head's dimensions, from the first on, that `rope` rotates. In (0, 1].
        pub rotary_fraction: f64 = 1.0,
        /// The normalisation before each attention layer and MLP: `layer_norm` or `rms_norm`.
        pub norm: NormKind = NormKind::default(),
        /// The epsilon that norms add to the variance or the mean square, under the root. Above 0; default 1e-5 with
        /// `layer_norm`, 1e-6 with `rms_norm`.
        pub norm_eps: f64 = Self::default_norm_eps(NormKind::default()),
        /// The activation of the MLP: `gelu`, `gelu_tanh` (GPT-2's approximation of it), `swiglu`, `geglu` or
        /// `relu_squared`.
        pub mlp: MlpKind = MlpKind::default(),
        /// Whether linear layers and layer norms have biases.
        pub bias: bool = false,
        /// Whether the projections to queries, keys and values have biases. Default `bias`.
        pub qkv_bias: bool = false,
        /// Whether the queries and keys of each head are normalised.
        pub qk_norm: bool = false,
        /// Whether `qk_norm` normalises the queries of all heads as one vector, and the keys of all heads.
        ///
        /// Source: OLMo Team 2024, "2 OLMo 2 Furious", section 3.3.
        pub qk_norm_across_heads: bool = false,
        /// Whether attention and the MLP of a block both read the block's input, instead of running one after the
        /// other.
        pub parallel_residual: bool = false,
        /// The number of tokens that a position attends to, itself included, one number per layer, repeated from the
        /// first if there are more layers; 0 is the whole context. Empty: no windows.
        pub attention_window: Vec<usize> = Vec::new(),
        /// The factor that scales the products of queries and keys. Above 0; default 1 over the root of `head_dim`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub attention_scale: Option<f64> = None,
        /// The bound on the magnitude of scaled attention scores: `attention_softcap * tanh(score / attention_softcap)`.
        /// Above 0; default none.
        ///
        /// Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub attention_softcap: Option<f64> = None,
        /// Whether the output layer uses the token embedding's weights.
        pub tie_embeddings: bool = true,
        /// Whether the projections to the residual stream, attention's output projection and the MLP's second matrix, are
        /// initialized to zero instead of small random numbers, so that a new block is the identity.
        ///
        /// Source: Zhang, Dauphin and Ma 2019, "Fixup Initialization: Residual Learning Without Normalization", section
        /// 3.1.
        pub zero_init_projections: bool = false,
        /// Whether norms have learned scales, and layer norms shifts.
        ///
        /// Source for norms without them: Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models",
        /// section 2.1.
        pub norm_weights: bool = true,
        /// Whether the values of attention are a weighted sum of the block's values and the first block's, with two
        /// learned factors in each block except the first.
        ///
        /// Source: Zhou et al. 2024, "Value Residual Learning", section 3.
        pub value_residual: bool = false,
        /// Whether the input of each block is a weighted sum of the residual stream and the embedding, with two learned
        /// factors.
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
        /// The fraction of activations dropped in training. In [0, 1).
        pub dropout: f64 = 0.0,
        /// Multiplies the token embeddings. Above 0.
        pub embedding_scale: f64 = 1.0,
        /// Multiplies what attention and the MLP add to the residual stream. Above 0.
        ///
        /// Source: Yang et al. 2021, "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter
        /// Transfer", for this and the scales of embeddings and logits.
        pub residual_scale: f64 = 1.0,
        /// Multiplies the logits. Above 0.
        pub logit_scale: f64 = 1.0,
        /// Whether `rope` rotates in a layer: one value per layer, repeated from the first if there are more layers.
        /// Empty: in all layers.
        ///
        /// Source: Yang et al. 2025, "`RoPE` to `NoPE` and Back Again: A New Hybrid Attention Strategy".
        pub rope_layers: Vec<bool> = Vec::new(),
        /// How the wavelengths of `rope` were stretched for a longer context: `{ kind = "linear", factor = 4.0 }`, `llama3`
        /// as in Llama 3.1, `yarn` as in Qwen3, or `longrope` as in Phi-3. Default: they were not.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rope_scaling: Option<RopeScaling> = None,
        /// Whether the outputs of attention and the MLP are normalised before they are added to the residual stream.
        ///
        /// Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2.
        pub post_norm: bool = false,
        /// Whether the inputs of attention and the MLP are normalised. OLMo 2 has `post_norm` instead.
        pub pre_norm: bool = true,
        /// The base of the wavelengths of `rope` in layers with an attention window, where nothing is stretched. Above 0;
        /// default: as in all layers.
        ///
        /// Source: Gemma Team 2025, "Gemma 3 Technical Report", section 2.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub rope_local_theta: Option<f64> = None,
    }
}

/// The position encoding of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionKind {
    /// A learned position embedding, added to the token embedding.
    #[default]
    Learned,
    /// Rotary position embedding (`RoPE`): queries and keys are rotated by an angle that depends on their position.
    Rope,
}

/// The normalisation before each attention layer and MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Normalises to mean 0 and variance 1.
    #[default]
    LayerNorm,
    /// Normalises to a root mean square of 1.
    RmsNorm,
}

/// How the wavelengths of rotary positions are stretched for a longer context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Stretches all wavelengths by one factor.
    ///
    /// Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation".
    Linear {
        /// The factor. At least 1.
        factor: f64,
    },
    /// Stretches long wavelengths by a factor and short ones not at all, with a smooth transition in between.
    ///
    /// Source: Llama 3.1, `apply_scaling` in its reference code; Grattafiori et al. 2024, "The Llama 3 Herd of Models".
    Llama3 {
        /// The factor. At least 1.
        factor: f64,
        /// Wavelengths that fit fewer times than this into `original_context_length` are stretched by the whole factor.
        /// Above 0.
        low_freq_factor: f64,
        /// Wavelengths that fit into it more often than this are not stretched. Above `low_freq_factor`.
        high_freq_factor: f64,
        /// The context length before the stretching. At least 1.
        original_context_length: usize,
    },
    /// Stretches long wavelengths by a factor and short ones not at all, with a linear transition in between, and sharpens
    /// attention (`YaRN`).
    ///
    /// Source: Peng et al. 2023, "`YaRN`: Efficient Context Window Extension of Large Language Models", section 3.
    Yarn {
        /// The factor. At least 1.
        factor: f64,
        /// The context length before the stretching. At least 1.
        original_context_length: usize,
        /// Wavelengths that fit into `original_context_length` at least so many times are not stretched. Above `beta_slow`;
        /// default 32.
        #[serde(default = "RopeScaling::beta_fast")]
        beta_fast: f64,
        /// Wavelengths that fit into it at most so many times are stretched by the whole factor. Above 0; default 1.
        #[serde(default = "RopeScaling::beta_slow")]
        beta_slow: f64,
        /// Multiplies the rotated queries and keys. Above 0; default 0.1 times the logarithm of the factor, plus 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
    /// Stretches each wavelength by a factor of its own (`LongRoPE`), found by a search, and sharpens attention.
    ///
    /// Source: Ding et al. 2024, "`LongRoPE`: Extending LLM Context Window Beyond 2 Million Tokens", section 3.
    Longrope {
        /// The factors of a model whose `context_length` is at most `original_context_length`, the shortest wavelength
        /// first. Each above 0.
        short_factors: Vec<f64>,
        /// The factors of a model with a longer context.
        long_factors: Vec<f64>,
        /// The context length before the stretching. At least 1.
        original_context_length: usize,
        /// Multiplies the rotated queries and keys. Above 0; default the root of 1 plus the logarithm of `context_length`
        /// over `original_context_length`, to the base of the latter, and 1 if the context is not longer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
}

impl RopeScaling {
    /// The default of `beta_fast`.
    pub fn beta_fast() -> f64 {
        32.0
    }

    /// The default of `beta_slow`.
    pub fn beta_slow() -> f64 {
        1.0
    }

    /// The default of `attention_factor` with `yarn`.
    pub fn default_attention_factor(factor: f64) -> f64 {
        0.1 * libm::log(factor) + 1.0
    }

    /// The default of `attention_factor` with `longrope`.
    pub fn longrope_attention_factor(context_length: usize, original_context_length: usize) -> f64 {
        let original = original_context_length as f64;
        let factor = context_length as f64 / original;
        if factor > 1.0 { (1.0 + libm::log(factor) / libm::log(original)).sqrt() } else { 1.0 }
    }

    /// Stretches the longest wavelengths; `None` if each has a factor of its own.
    pub fn factor(&self) -> Option<f64> {
        match *self {
            Self::Linear { factor } | Self::Llama3 { factor, .. } | Self::Yarn { factor, .. } => Some(factor),
            Self::Longrope { .. } => None,
        }
    }

    /// The factor that multiplies rotated queries and keys in a model with this `context_length`.
    pub fn attention_factor(&self, context_length: usize) -> f64 {
        match *self {
            Self::Linear { .. } | Self::Llama3 { .. } => 1.0,
            Self::Yarn { factor, attention_factor, .. } => {
                attention_factor.unwrap_or_else(|| Self::default_attention_factor(factor))
            }
            Self::Longrope { original_context_length, attention_factor, .. } => attention_factor
                .unwrap_or_else(|| Self::longrope_attention_factor(context_length, original_context_length)),
        }
    }
}

impl ModelConfig {
    /// The `d_ff` of a config that does not set it.
    pub fn default_d_ff(mlp: MlpKind, d_model: usize) -> usize {
        match mlp {
            MlpKind::Gelu | MlpKind::GeluTanh | MlpKind::ReluSquared => d_model.saturating_mul(4),
            MlpKind::Swiglu | MlpKind::Geglu => d_model.saturating_mul(8).div_ceil(3).div_ceil(32).saturating_mul(32),
        }
    }

    /// The `head_dim` of a config that does not set it; 0 if `d_model` is not divisible by `n_heads`.
    fn default_head_dim(d_model: usize, n_heads: usize) -> usize {
        if n_heads > 0 && d_model.is_multiple_of(n_heads) { d_model / n_heads } else { 0 }
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
    pub fn with_derived(mut self) -> Self {
        self.derive_defaults(|key| matches!(key, "head_dim" | "norm_eps" | "qkv_bias"));
        self
    }

    /// Sets the keys whose defaults follow from other keys, where `is_missing`; returns each with the key that it
    /// follows from, as `section.key`.
    pub fn derive_defaults(&mut self, is_missing: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
        let mut derived = Vec::new();
        let mut set = |key: &'static str, from, set: &dyn Fn(&mut Self)| {
            if is_missing(key.trim_start_matches("model.")) {
                set(self);
                derived.push((key, from));
            }
        };
        set("model.n_kv_heads", "model.n_heads", &|it| it.n_kv_heads = it.n_heads);
        set("model.head_dim", "model.d_model", &|it| it.head_dim = Self::default_head_dim(it.d_model, it.n_heads));
        set("model.norm_eps", "model.norm", &|it| it.norm_eps = Self::default_norm_eps(it.norm));
        set("model.qkv_bias", "model.bias", &|it| it.qkv_bias = it.bias);
        set("model.d_ff", "model.d_model", &|it| it.d_ff = Self::default_d_ff(it.mlp, it.d_model));
        derived
    }

    /// The defaults, with a value for each key that has none.
    pub fn with_every_key() -> Self {
        Self {
            attention_scale: Some(0.125),
            attention_softcap: Some(50.0),
            logit_softcap: Some(30.0),
            vocab_size: Some(50_304),
            rope_scaling: Some(RopeScaling::Linear { factor: 4.0 }),
            rope_local_theta: Some(10_000.0),
            ..Self::default()
        }
    }

    /// Whether a key has an effect, given the values of the keys that it depends on.
    pub fn has_effect(&self, key: &str) -> bool {
        let rotates = self.position == PositionKind::Rope;
        match key {
            "qk_norm_across_heads" => self.qk_norm,
            "rope_theta" | "rotary_fraction" | "rope_scaling" | "rope_local_theta" => rotates,
            "rope_layers" => rotates && self.rope_layers.contains(&false),
            _ => true,
        }
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

    /// The bytes of the keys and values of a sequence of `n_tokens` tokens, or of as many as the context holds. A
    /// decoder has memory for the next power of two of them.
    pub fn cache_bytes(&self, n_tokens: u64) -> u64 {
        let position = tinderbox_kernels::decode::Cache::position_bytes(self.n_kv_heads, self.head_dim);
        let factors = [position as u64, self.n_layers as u64, n_tokens.min(self.context_length as u64)];
        factors.into_iter().fold(1, u64::saturating_mul)
    }

    /// The number of tokens that a position attends to in a layer, itself included; `None` for all tokens before it.
    pub fn attention_window_of(&self, layer: usize) -> Option<usize> {
        let n = self.attention_window.len().max(1);
        self.attention_window.get(layer % n).copied().filter(|window| *window > 0)
    }

    /// Whether queries and keys are rotated in a layer.
    pub fn rotates(&self, layer: usize) -> bool {
        let n = self.rope_layers.len().max(1);
        self.position == PositionKind::Rope && self.rope_layers.get(layer % n).is_none_or(|rotates| *rotates)
    }

    /// Whether a layer has wavelengths of its own.
    pub fn has_local_rope(&self, layer: usize) -> bool {
        self.rope_local_theta.is_some() && self.attention_window_of(layer).is_some()
    }

    /// The base of the wavelengths of `rope` and their scaling, in layers [with wavelengths of their
    /// own](Self::has_local_rope) or in all others.
    pub(crate) fn wavelengths(&self, is_local: bool) -> (f64, Option<&RopeScaling>) {
        match self.rope_local_theta.filter(|_| is_local) {
            Some(theta) => (theta, None),
            None => (self.rope_theta, self.rope_scaling.as_ref()),
        }
    }

    /// The factor that scales the products of queries and keys.
    pub fn attention_scale(&self) -> f64 {
        self.attention_scale.unwrap_or_else(|| tinderbox_kernels::attention_scale(self.head_dim))
    }
}

const RMS_NORM_EPS: f64 = 1e-6;

impl ModelConfig {
    /// All problems of a model config that was not loaded from a file; empty if the model can be built.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Problems::default();
        self.check_into(&mut problems);
        problems.0
    }

    /// Checks the rules of this section.
    pub fn check_into(&self, problems: &mut Problems) {
        let Self {
            context_length,
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff,
            position: _,
            rope_theta,
            rotary_fraction,
            norm: _,
            norm_eps,
            mlp: _,
            bias: _,
            qkv_bias: _,
            qk_norm,
            qk_norm_across_heads,
            parallel_residual: _,
            attention_window,
            attention_scale,
            attention_softcap,
            tie_embeddings: _,
            zero_init_projections: _,
            norm_weights: _,
            value_residual: _,
            embedding_skip: _,
            vocab_size,
            logit_softcap,
            dropout,
            embedding_scale,
            residual_scale,
            logit_scale,
            rope_layers: _,
            rope_scaling,
            post_norm: _,
            pre_norm: _,
            rope_local_theta,
        } = self;
        for (key, value) in [
            ("model.rope_local_theta", rope_local_theta),
            ("model.attention_scale", attention_scale),
            ("model.attention_softcap", attention_softcap),
            ("model.logit_softcap", logit_softcap),
            ("model.embedding_scale", &Some(*embedding_scale)),
            ("model.residual_scale", &Some(*residual_scale)),
            ("model.logit_scale", &Some(*logit_scale)),
            ("model.rope_theta", &Some(*rope_theta)),
            ("model.norm_eps", &Some(*norm_eps)),
        ] {
            if let Some(value) = value {
                problems.above_zero(key, *value);
            }
        }
        problems.size("model.context_length", *context_length);
        problems.size("model.d_model", *d_model);
        let rule = format!("be at least 1 and at most {MAX_LAYERS}");
        problems.must((1..=MAX_LAYERS).contains(n_layers), "model.n_layers", n_layers, &rule);
        problems.size("model.n_heads", *n_heads);
        problems.size("model.n_kv_heads", *n_kv_heads);
        problems.size("model.d_ff", *d_ff);
        if *n_heads > 0 && *d_model > 0 {
            match head_dim {
                0 if d_model % n_heads != 0 => {
                    problems
                        .0
                        .push(format!("model.d_model = {d_model} must be divisible by model.n_heads = {n_heads}"));
                }
                _ => problems.size("model.head_dim", *head_dim),
            }
        }
        if *n_heads > 0 && *n_kv_heads > 0 && n_heads % n_kv_heads != 0 {
            problems.0.push(format!("model.n_heads = {n_heads} must be divisible by model.n_kv_heads = {n_kv_heads}"));
        }
        let is_share = *rotary_fraction > 0.0 && *rotary_fraction <= 1.0;
        problems.must(is_share, "model.rotary_fraction", rotary_fraction, "be above 0 and at most 1");
        if is_share {
            self.check_rotation(problems);
        }
        let are_sizes = attention_window.iter().all(|window| *window <= MAX_SIZE);
        let rule = format!("hold at most {MAX_SIZE} for each layer, or 0 for the whole context");
        problems.must(are_sizes, "model.attention_window", format!("{attention_window:?}"), &rule);
        if *qk_norm_across_heads && !qk_norm {
            problems.0.push("model.qk_norm_across_heads = true needs model.qk_norm = true".to_owned());
        }
        if let Some(vocab_size) = vocab_size {
            problems.size("model.vocab_size", *vocab_size);
        }
        problems.below_one("model.dropout", *dropout);
        if let Some(scaling) = rope_scaling {
            self.check_scaling(scaling, problems);
        }
    }

    /// Checks that the rotated dimensions form pairs.
    fn check_rotation(&self, problems: &mut Problems) {
        let Self { d_model, n_heads, head_dim, rotary_fraction, .. } = *self;
        let n = self.rotary_dim();
        let is_rotated = self.position == PositionKind::Rope && head_dim > 0;
        if !is_rotated || n >= 2 && n.is_multiple_of(2) {
            return;
        }
        let n_heads = n_heads.max(1);
        let of = if rotary_fraction < 1.0 {
            format!("model.rotary_fraction = {rotary_fraction} of model.head_dim = {head_dim}")
        } else if head_dim == d_model / n_heads {
            format!("model.d_model = {d_model} over model.n_heads = {n_heads}")
        } else {
            format!("model.head_dim = {head_dim}")
        };
        problems.0.push(format!("model.position = \"rope\" rotates pairs: {of} must be even, and is {n}"));
    }

    fn check_scaling(&self, scaling: &RopeScaling, problems: &mut Problems) {
        if self.position != PositionKind::Rope {
            problems
                .0
                .push("model.rope_scaling is only for model.position = \"rope\": leave it out, or use rope".to_owned());
        }
        if let Some(factor) = scaling.factor() {
            let is_factor = factor.is_finite() && factor >= 1.0;
            problems.must(is_factor, "model.rope_scaling.factor", factor, "be a finite number, 1 or more");
        }
        let mut above = |key: &str, value: f64, than: &str, least: f64| {
            let rule = format!("be a finite number above {than} = {least}");
            problems.must(value.is_finite() && value > least, key, value, &rule);
        };
        let (low, original) = match *scaling {
            RopeScaling::Linear { .. } => return,
            RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor, original_context_length, .. } => {
                above("model.rope_scaling.high_freq_factor", high_freq_factor, "low_freq_factor", low);
                (("model.rope_scaling.low_freq_factor", low), original_context_length)
            }
            RopeScaling::Yarn { original_context_length, beta_fast, beta_slow, .. } => {
                above("model.rope_scaling.beta_fast", beta_fast, "beta_slow", beta_slow);
                above("model.rope_theta", self.rope_theta, "the smallest with yarn", 1.0);
                problems
                    .above_zero("model.rope_scaling.attention_factor", scaling.attention_factor(self.context_length));
                (("model.rope_scaling.beta_slow", beta_slow), original_context_length)
            }
            RopeScaling::Longrope {
                ref short_factors,
                ref long_factors,
                original_context_length,
                attention_factor,
            } => {
                let n_pairs = self.rotary_dim() / 2;
                for (key, factors) in [("short_factors", short_factors), ("long_factors", long_factors)] {
                    let are_factors = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
                    let rule = format!("hold {n_pairs} numbers above 0, one for each pair of rotated dimensions");
                    let key = format!("model.rope_scaling.{key}");
                    problems.must(are_factors && factors.len() == n_pairs, &key, format!("{factors:?}"), &rule);
                }
                if attention_factor.is_none() && original_context_length < 2 {
                    let rule = "be at least 2, or model.rope_scaling.attention_factor has to be there";
                    let key = "model.rope_scaling.original_context_length";
                    return problems.must(false, key, original_context_length, rule);
                }
                let attention_factor = scaling.attention_factor(self.context_length);
                (("model.rope_scaling.attention_factor", attention_factor), original_context_length)
            }
        };
        problems.above_zero(low.0, low.1);
        problems.size("model.rope_scaling.original_context_length", original);
    }
}
