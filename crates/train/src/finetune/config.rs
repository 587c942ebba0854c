//! `[finetune]`: the keys of a run that starts from another one, with their defaults and rules.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tinderbox_kernels::decode::Precision;
use tinderbox_model::section::Problems;
use tinderbox_model::{Lora, Target};

tinderbox_model::sections! {
    /// `[finetune]`: how a trained model is adapted to records such as conversations; only with a `base`.
    pub struct FinetuneConfig {
        /// The run whose model is adapted, or one of its checkpoints. The training data are records then, such as JSON
        /// Lines with `messages`, `prompt` and `completion`, or `text`. Each pass has every
        /// record once, regardless of `train.with_replacement`. Default none: no fine-tuning.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub base: Option<PathBuf> = None,
        /// The trained parameters: `lora` (two narrow matrices for each of the `targets`, a few hundredths of the
        /// parameters), `dora` (these and the length of each column of the weight) or `full` (all parameters, in about
        /// three times the memory).
        pub method: FinetuneMethod = FinetuneMethod::default(),
        /// The inner width of an adapter. At least 1.
        pub rank: usize = 16,
        /// Scales an adapter's change by alpha / rank. Above 0.
        pub alpha: f64 = 32.0,
        /// Scales an adapter's change by alpha / sqrt(rank) instead, which suits ranks above 64.
        ///
        /// Source: Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
        pub use_rslora: bool = false,
        /// The matrices with adapters: `q`, `k`, `v`, `attention_output`, `gate`, `up`, `down`. Default: all of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub targets: Vec<Target> = Vec::new(),
        /// The number of blocks with adapters, counted from the last. At least 1; default all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub last_blocks: Option<usize> = None,
        /// The probability of dropping an element of an adapter's input in training. In [0, 1); 0 with `dora`.
        pub dropout: f64 = 0.0,
        /// The format of the base's linear weights while adapters train: `f32`, `bf16` (half the bytes) or `int8` (a
        /// quarter). Adapters train with the rounded weights and are merged with the exact ones. Only for flex.
        pub base_weights: BaseWeights = BaseWeights::default(),
        /// The ids of tokens whose vectors are trained in addition to adapters, such as the roles of a new chat
        /// template. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub trained_tokens: Vec<u32> = Vec::new(),
        /// The tokens that count in the loss: `assistant` (every answer), `last` (the last answer) or `all`. The end of
        /// an answer counts, too; the tokens that start every answer do not.
        pub train_on: TrainOn = TrainOn::default(),
        /// The loss of preferences, which are records with `chosen` and `rejected`: `dpo` (how much better the chosen answer
        /// is than with the base) or `orpo` (the loss of the chosen answer, and how much likelier than the other it is).
        pub preference: PreferenceLoss = PreferenceLoss::default(),
        /// The weight of a preference: the larger, the closer `dpo` stays to the base. Above 0.
        pub beta: f64 = 0.1,
        /// The most tokens of a record; the rest is cut off. At least 2; limited to `model.context_length`.
        pub max_tokens: usize = 1024,
        /// Packs records into rows of up to `max_tokens` tokens instead of padding each to a row. Each record attends
        /// only to itself, and its positions start at 0. Not for preferences.
        pub packing: bool = false,
        /// The fields of records in another form, each as OURS=THEIRS, such as `["prompt=question",
        /// "completion=answer"]`. Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub map: Vec<String> = Vec::new(),
        /// The fields of records and of their messages that are left out; others that are not known are an error.
        /// Default none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ignored_fields: Vec<String> = Vec::new(),
    }
}

/// The parameters that a fine-tuning trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum FinetuneMethod {
    /// Low-rank adapters of linear layers.
    #[default]
    Lora,
    /// Low-rank adapters and the column lengths of the weights.
    Dora,
    /// All parameters.
    Full,
}

/// The format of the base's weights.
///
/// Source: Dettmers et al. 2023, "`QLoRA`: Efficient Finetuning of Quantized LLMs", section 3, with blocks of 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseWeights {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 8 significant bits.
    Bf16,
    /// Integers from -127 to 127 in blocks of 32 with one scale each.
    Int8,
}

impl BaseWeights {
    /// The precision of the rounding; `None` without rounding.
    pub fn precision(self) -> Option<Precision> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Precision::Bf16),
            Self::Int8 => Some(Precision::Int8),
        }
    }
}

/// The loss of a pair of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreferenceLoss {
    /// Rafailov et al. 2023, "Direct Preference Optimization", eq. 7.
    #[default]
    Dpo,
    /// Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model", eq. 6.
    Orpo,
}

/// The tokens of a conversation that count in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// Those of every answer.
    #[default]
    Assistant,
    /// Those of the last answer.
    Last,
    /// All of them.
    All,
}

impl FinetuneConfig {
    /// The adapters of a run that trains adapters.
    pub fn lora(&self) -> Option<Lora> {
        let Self { base, method, rank, alpha, use_rslora, targets, last_blocks, dropout, .. } = self.clone();
        let targets = if targets.is_empty() { Target::ALL.to_vec() } else { targets };
        let is_adapted = base.is_some() && method != FinetuneMethod::Full;
        let (use_dora, tokens) = (method == FinetuneMethod::Dora, self.trained_tokens.clone());
        is_adapted.then_some(Lora { rank, alpha, use_rslora, use_dora, dropout, targets, last_blocks, tokens })
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn check_into(&self, problems: &mut Problems) {
        let Self {
            base: _,
            method,
            rank,
            alpha,
            use_rslora: _,
            targets: _,
            last_blocks,
            dropout,
            base_weights,
            trained_tokens: _, // those that the model lacks are found with its tokenizer
            train_on: _,
            preference: _,
            beta,
            max_tokens,
            packing: _,
            map,
            ignored_fields: _,
        } = self;
        let is_pair =
            |pair: &String| pair.split_once('=').is_some_and(|(ours, theirs)| !ours.is_empty() && !theirs.is_empty());
        let rule = "name two fields each, such as \"prompt=question\"";
        problems.must(map.iter().all(is_pair), "finetune.map", format!("{map:?}"), rule);
        problems.size("finetune.rank", *rank);
        problems.above_zero("finetune.alpha", *alpha);
        problems.at_least_one("finetune.last_blocks", last_blocks.unwrap_or(1));
        problems.below_one("finetune.dropout", *dropout);
        let has_none = *method != FinetuneMethod::Dora || *dropout <= 0.0;
        problems.must(has_none, "finetune.dropout", dropout, "be 0 with finetune.method = \"dora\"");
        let is_kept = *base_weights == BaseWeights::F32 || *method != FinetuneMethod::Full;
        let rule = "be \"f32\" with finetune.method = \"full\", which trains them";
        problems.must(is_kept, "finetune.base_weights", format!("{base_weights:?}").to_lowercase(), rule);
        problems.above_zero("finetune.beta", *beta);
        problems.must(*max_tokens >= 2, "finetune.max_tokens", max_tokens, "be at least 2");
        let is_alone = self.base.is_some() || self.is_default();
        let rule = "be given: the other keys of [finetune] do nothing without it";
        problems.must(is_alone, "finetune.base", "none", rule);
    }
}
