//! `[finetune]`: the keys of a run that starts from another one, with their defaults and rules.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tinderbox_model::section::Problems;
use tinderbox_model::{Lora, Target};

tinderbox_model::sections! {
    /// `[finetune]`: how a trained model is adapted to records such as conversations; only with a `base`.
    pub struct FinetuneConfig {
        /// The run whose model is adapted, or one of its checkpoints. The training data are records then: JSON Lines with
        /// `messages`, `prompt` and `completion`, `instruction` and `output`, or `text`. Each pass over them has every
        /// record once, whatever `train.with_replacement` says. Default none: the run is not a fine-tuning.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub base: Option<PathBuf> = None,
        /// What is trained: `lora` (two narrow matrices beside each of the `targets`, a hundredth of the parameters) or
        /// `full` (all parameters, in about three times the memory).
        pub method: FinetuneMethod = FinetuneMethod::default(),
        /// The inner width of an adapter. At least 1.
        pub rank: usize = 16,
        /// An adapter's change of a weight is multiplied by alpha / rank. Above 0.
        pub alpha: f64 = 32.0,
        /// Whether an adapter's change is multiplied by alpha / sqrt(rank) instead, which suits ranks above 64.
        ///
        /// Source: Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
        pub use_rslora: bool = false,
        /// The matrices with adapters: `q`, `k`, `v`, `attention_output`, `gate`, `up`, `down`. Default: all of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub targets: Vec<Target> = Vec::new(),
        /// The number of blocks with adapters, counted from the last. At least 1; default all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub last_blocks: Option<usize> = None,
        /// The probability with which an element of an adapter's input is dropped in training. In [0, 1).
        pub dropout: f64 = 0.0,
        /// The tokens that count in the loss: `assistant` (every answer), `last` (the last answer) or `all`. The end of
        /// an answer counts with it; the tokens with which every answer begins do not.
        pub train_on: TrainOn = TrainOn::default(),
        /// The most tokens of a record; what is beyond is cut off. At least 2; at most `model.context_length` is used.
        pub max_tokens: usize = 1024,
    }
}

/// What a fine-tuning trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum FinetuneMethod {
    /// Low-rank adapters of linear layers.
    #[default]
    Lora,
    /// All parameters.
    Full,
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
    #[must_use]
    pub fn lora(&self) -> Option<Lora> {
        let Self { base, method, rank, alpha, use_rslora, targets, last_blocks, dropout, .. } = self.clone();
        let targets = if targets.is_empty() { Target::ALL.to_vec() } else { targets };
        let is_adapted = base.is_some() && method == FinetuneMethod::Lora;
        is_adapted.then_some(Lora { rank, alpha, use_rslora, dropout, targets, last_blocks })
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn check_into(&self, problems: &mut Problems) {
        let Self {
            base: _,
            method: _,
            rank,
            alpha,
            use_rslora: _,
            targets: _,
            last_blocks,
            dropout,
            train_on: _,
            max_tokens,
        } = self;
        problems.size("finetune.rank", *rank);
        problems.above_zero("finetune.alpha", *alpha);
        problems.at_least_one("finetune.last_blocks", last_blocks.unwrap_or(1));
        problems.below_one("finetune.dropout", *dropout);
        problems.must(*max_tokens >= 2, "finetune.max_tokens", max_tokens, "be at least 2");
        let is_alone = self.base.is_some() || self.is_default();
        let rule = "be given: the other keys of [finetune] do nothing without it";
        problems.must(is_alone, "finetune.base", "none", rule);
    }
}
